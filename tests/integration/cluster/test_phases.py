"""What is asked of a node while it takes over, in every phase of that: the node that ships, in this process, over a real PostgreSQL."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from pairbus.model.access import ROOT_RULE
from pairbus.sdk.credentials import credentials_of
from pairbus.server import server as server_module
from pairbus.server.assemble import assemble_shard
from pairbus.server.cluster import node as node_module
from pairbus.server.cluster import readiness
from pairbus.server.cluster.node import Node
from pairbus.server.config.options import ClusterOptions, Options
from pairbus.server.loop import Driver
from pairbus.server.ready import ReadyInfo
from pairbus.storage.postgres.database import Database
from pairbus.storage.table.ports import REQUEST_DRAIN, REQUEST_MOVE, REQUEST_NONE, Ownership, SequenceTaken
from tests.contract.table_kinds import new_name
from tests.postgres_kit import shared_server
from tests.waiting import wait_until

SECONDS_MAX: Final = 60.0
NEVER_SECONDS: Final = 2 * SECONDS_MAX
PHASES: Final = ("reading", "read", "starting")


class Stage:
    """One node whose takeover stands still at a phase until ``go_on``."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, phase: str, name: str = "a") -> None:
        self.phase = phase
        self.name = name
        self.arrived = asyncio.Event()
        self._released = threading.Event()
        self._loop = asyncio.get_running_loop()
        url, shard = shared_server().url(), new_name("phases")
        self.database, others = Database(url, shard), Database(url, shard)
        self.database.prepare()
        others.prepare()
        # Those of an operator: a node that has stopped cuts its own.
        self.nodes, self.lease, self.settings = others.nodes(), others.lease(), others.settings()
        # Whoever waits in vain does so for longer than the test.
        for module, constant in (
            (node_module, "TASKS_SECONDS_MAX"),
            (node_module, "ANSWERS_SECONDS_MAX"),
            (server_module, "COMMIT_SECONDS_MAX"),
        ):
            monkeypatch.setattr(module, constant, NEVER_SECONDS)
        wait_durable = Driver.wait_durable

        async def hold_first_commit(driver: Driver, seconds_max: float) -> bool:
            if self.phase == "starting" and not self.arrived.is_set():
                driver._may_write = lambda: self._released.is_set() and self.node.may_write()
                driver._idle.clear()
                self.arrived.set()
            return await wait_durable(driver, seconds_max)

        monkeypatch.setattr(Driver, "wait_durable", hold_first_commit)
        self.options = Options(
            data=tmp_path / name, namespace="phases", amqp=("127.0.0.1", 0), http=None, tls=False
        )
        self.node = self.new_node()

    def new_node(self) -> Node:
        real = assemble_shard(self.database)

        def assemble(options: Options, now: int, acquired: Any, may_retry: Callable[[], bool]) -> Any:
            if self.phase == "reading" and not self.arrived.is_set():
                self._arrive()
                until = time.monotonic() + SECONDS_MAX
                while may_retry() and not self._released.wait(0.01) and time.monotonic() < until:
                    pass
            assembly = real(options, now, acquired, may_retry)
            if self.phase == "read" and not self.arrived.is_set():
                self._arrive()
                self._released.wait(SECONDS_MAX)
            return assembly

        return Node(self.options, ClusterOptions(node=self.name, lease_ms=1_000), self.database, assemble)

    def _arrive(self) -> None:
        self._loop.call_soon_threadsafe(self.arrived.set)

    async def start(self) -> None:
        await self.node.start()
        async with asyncio.timeout(SECONDS_MAX):
            await self.arrived.wait()

    def go_on(self) -> None:
        self._released.set()
        if self.node._building is None and self.node._server is not None:
            self.node._server.wake()

    async def look(self) -> Ownership:
        return await asyncio.to_thread(self.lease.look)

    async def until(self, is_so: Callable[[], object], what: str) -> None:
        """In a thread: most conditions ask the database."""
        await asyncio.to_thread(wait_until, is_so, what, SECONDS_MAX)

    def is_free(self) -> bool:
        return not self.lease.look().owner

    def is_served(self) -> bool:
        return bool(self.lease.look().address)

    async def close(self) -> None:
        self._released.set()
        async with asyncio.timeout(SECONDS_MAX):
            await self.node.stop()
        for part in (self.nodes, self.lease, self.settings):
            part.close()


@pytest.mark.promise("S6")
@pytest.mark.parametrize("phase", PHASES)
async def test_a_node_that_is_stopped_while_it_takes_over_gives_the_lease_back_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, phase: str
) -> None:
    stage = Stage(tmp_path, monkeypatch, phase)
    await stage.start()
    assert (await stage.look()).owner == "a"
    stopping = asyncio.create_task(stage.node.stop())
    if phase == "read":
        await asyncio.sleep(0)  # the thread returns what it has built to a node that stops
        stage.go_on()
    async with asyncio.timeout(SECONDS_MAX):
        await stopping
    assert stage.is_free()
    await stage.close()


@pytest.mark.parametrize("phase", PHASES)
async def test_a_node_that_is_drained_while_it_takes_over_gives_the_lease_back_and_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, phase: str
) -> None:
    stage = Stage(tmp_path, monkeypatch, phase)
    await stage.start()
    await asyncio.to_thread(stage.nodes.ask, "a", REQUEST_DRAIN)
    await stage.until(lambda: stage.node._is_drained, "the request is seen")
    if phase == "read":
        stage.go_on()
    await stage.until(stage.is_free, "the lease is given back")
    assert not stage.node._ended.done(), "it stays and takes no part"

    await asyncio.to_thread(stage.nodes.ask, "a", REQUEST_NONE)
    await stage.until(stage.is_served, "the node takes part again")
    await stage.close()


@pytest.mark.parametrize("phase", PHASES)
async def test_a_move_that_is_asked_of_a_node_that_takes_over_is_made_once_it_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, phase: str
) -> None:
    stage = Stage(tmp_path, monkeypatch, phase)
    await stage.start()
    epoch = (await stage.look()).epoch
    await asyncio.to_thread(stage.nodes.ask, "a", REQUEST_MOVE)
    keeper = stage.node._keeper
    assert keeper is not None
    await stage.until(lambda: keeper.view().asked == REQUEST_MOVE, "the request is seen")
    stage.node._review()
    assert keeper.view().asked == REQUEST_MOVE, "it waits"
    stage.go_on()
    await stage.until(stage.is_free, "the shard is given up")
    assert (await stage.look()).epoch == epoch
    assert not stage.node._ended.done()
    await stage.close()


@pytest.mark.promise("M5")
async def test_a_root_key_that_was_replaced_reaches_every_ready_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While this node relays, and when it becomes the owner."""
    monkeypatch.setattr(readiness, "KEY_SECONDS", 0.1)
    stage = Stage(tmp_path, monkeypatch, "none")
    lease = stage.lease
    with pytest.raises(SequenceTaken):  # the first range is made
        await asyncio.to_thread(lease.acquire, "b", "127.0.0.1:1", 600_000)
    held = await asyncio.to_thread(lease.acquire, "b", "127.0.0.1:1", 600_000)
    assert held is not None
    await asyncio.to_thread(stage.settings.put, readiness.ROOT_KEY, b"first")
    await stage.node.start()
    async with asyncio.timeout(SECONDS_MAX):
        told = [await stage.node.readiness.wait()]
    stage.node.readiness.changed = told.append
    assert _key(told[-1]) == "first"

    await asyncio.to_thread(stage.settings.put, readiness.ROOT_KEY, b"second")
    await stage.until(lambda: _key(told[-1]) == "second", "the node that relays knows the new key")

    monkeypatch.setattr(readiness, "KEY_SECONDS", NEVER_SECONDS)
    await asyncio.to_thread(lease.release, held.epoch)
    await stage.until(stage.is_served, "the node is the owner")
    await stage.until(lambda: _key(told[-1]) not in ("first", "second"), "the owner's own key")
    server: Any = stage.node._server
    rules = server._assembly.broker.namespace.access_rules
    assert _key(told[-1]) == next(rule.primary_key for rule in rules if rule.name == ROOT_RULE)
    await stage.close()


async def test_an_owner_that_is_stopped_writes_its_usage_to_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(tmp_path, monkeypatch, "none")
    await stage.node.start()
    await stage.until(stage.is_served, "the node is the owner")
    server: Any = stage.node._server
    finished: list[str] = []
    monkeypatch.setattr(server._usage, "finish", lambda: finished.append("usage"))
    await stage.close()
    assert finished == ["usage"]


def _key(ready: ReadyInfo) -> str:
    return credentials_of(ready.connection_string).key
