"""A node of a cluster, without its database."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pairbus.errors import StoreFenced
from pairbus.server.cluster.node import FENCED_SECONDS_MAX, Node
from pairbus.server.cluster.ownership.building import Building
from pairbus.server.cluster.ownership.keeper import LeaseView
from pairbus.server.cluster.ownership.lease import LeaseState
from pairbus.server.config.options import ClusterOptions, Options
from pairbus.storage.table.appender import CommitsLost
from pairbus.storage.table.patience import StoreUnreachable
from pairbus.storage.table.ports import Acquired


def new_node(tmp_path: Path, assemble: Any = None) -> Node:
    database: Any = SimpleNamespace(settings=lambda: None)
    return Node(
        Options(data=tmp_path, namespace="contoso"), ClusterOptions(node="node-0"), database, assemble
    )


async def test_metrics_of_a_node_that_starts_or_stops_are_not_there(tmp_path: Path) -> None:
    node = new_node(tmp_path)
    assert [node.health(target)[0] for target in ("/health", "/health/owner", "/health/metrics")] == [503] * 3
    assert node.metrics() == []


class FakeKeeper:
    def __init__(self) -> None:
        self.calls: list[tuple[str, object]] = []

    def withdraw(self, hold_off_ms: int | None = None) -> None:
        self.calls.append(("withdraw", hold_off_ms))

    def drained(self) -> None:
        self.calls.append(("drained", None))

    def view(self) -> LeaseView:
        return LeaseView(LeaseState.IDLE, None, None, "", (), 0)


@pytest.mark.promise("S8")
async def test_a_node_that_cannot_read_the_log_gives_the_lease_back_and_says_why(tmp_path: Path) -> None:
    def assemble(*_: object) -> object:
        raise StoreUnreachable("too many connections")

    node = new_node(tmp_path, assemble)
    keeper: Any = FakeKeeper()
    node._keeper = keeper
    for pause_ms in (1_000, 2_000):
        node._building = Building(Acquired(1, 1), lambda: True)
        await node._build(node._building)
        assert keeper.calls == [("withdraw", pause_ms), ("drained", None)]
        keeper.calls.clear()
    assert node._building is None
    assert not node._ended.done(), "it stays, relays, and tries again"
    status, _, body = node.health("/health")
    assert (status, json.loads(body)["reason"]) == (
        503,
        "this node could not take over: too many connections",
    )


async def test_the_collector_learns_what_the_owner_holds_and_that_a_relay_holds_nothing(
    tmp_path: Path,
) -> None:
    node = new_node(tmp_path)
    assert node.held_objects() == 0

    owner: Any = SimpleNamespace(held_objects=lambda: 4_000_000)
    node._server = owner

    assert node.held_objects() == 4_000_000


@pytest.mark.promise("S3")
async def test_a_node_that_was_fenced_ends_once_it_is_known_whether_commits_are_lost(tmp_path: Path) -> None:
    node = new_node(tmp_path)
    done: list[object] = []
    server: Any = SimpleNamespace(fail=done.append, cut_connections=lambda: done.append("cut"))
    node._server = server
    view = LeaseView(LeaseState.FENCED, None, None, "", (), 0)
    keeper: Any = SimpleNamespace(view=lambda: view, may_write=lambda: False)
    node._keeper = keeper
    node._review()
    assert len(done) == 2, "it is silent at once"
    assert not node._ended.done()
    lost = CommitsLost("the database lacks the last 5 frames")
    view = replace(view, ending=lost, is_over=True)
    node._review()
    assert await node.wait_ended() is lost


async def test_who_waits_for_the_end_of_a_node_learns_that_it_was_stopped(tmp_path: Path) -> None:
    node = new_node(tmp_path)
    nothing: Any = SimpleNamespace(close=lambda: None)
    node._settings.table = nothing
    database: Any = SimpleNamespace(cut=lambda: None)
    node._database = database
    waiting = asyncio.ensure_future(node.wait_ended())
    await asyncio.sleep(0)

    await node.stop()

    assert await waiting is None
    assert await node.wait_ended() is None


async def test_a_node_that_was_fenced_does_not_wait_long_for_its_database(tmp_path: Path) -> None:
    node = new_node(tmp_path)
    view = LeaseView(LeaseState.FENCED, None, None, "", (), 0)
    keeper: Any = SimpleNamespace(view=lambda: view, may_write=lambda: False)
    node._keeper = keeper
    node._review()
    assert not node._ended.done()
    node._fenced_since -= FENCED_SECONDS_MAX
    node._review()
    assert isinstance(await node.wait_ended(), StoreFenced)
