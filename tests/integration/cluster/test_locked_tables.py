"""Real nodes while another session locks a table of theirs: they cannot report, so their silence says nothing."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.contract.table_kinds import new_name
from tests.integration.cluster.kit import Cluster
from tests.postgres_kit import shared_server
from tests.waiting import wait_until

NAMESPACE = "locked"


@pytest.fixture(params=[("a", "b")])
def cluster(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    url = shared_server().new_database(new_name("locked"))
    made = Cluster(tmp_path / "cluster", url, *request.param, namespace=NAMESPACE)
    made.start()
    yield made
    made.kill()


def start(cluster: Cluster, *words: str) -> subprocess.Popen[str]:
    named = ("--store", cluster.url, "--namespace", cluster.namespace)
    command = [sys.executable, "-m", "pairbus", "cluster", *words, *named]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run(cluster: Cluster, *words: str) -> tuple[int, str, str]:
    process = start(cluster, *words)
    said, errors = process.communicate()
    return process.returncode, said, errors


@contextmanager
def locked(cluster: Cluster, what: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(cluster.url) as other:
        other.execute(what.encode())
        yield other


def look_long_silent(cluster: Cluster, owner: str) -> None:
    """Wait for the end of the lease. The last reports are made an hour older than they are: a lock that is held for long, without waiting for it."""
    with psycopg.connect(cluster.url, autocommit=True) as other:

        def has_ended() -> bool:
            found = other.execute(
                "select from pairbus_shard where owner = %s and until <= clock_timestamp()", [owner]
            )
            return found.fetchone() is not None

        wait_until(has_ended, "the lease has ended")
        other.execute("update pairbus_node set seen = seen - interval '1 hour'")


LOCKS = ["lock table pairbus_shard in exclusive mode", "select from pairbus_shard for update"]


@pytest.mark.long
@pytest.mark.parametrize("lock", LOCKS)
def test_silence_during_a_lock_is_no_proof_that_a_node_is_gone(cluster: Cluster, lock: str) -> None:
    """Such a lock lets the commands read, and holds up the renewals, without which no node reports."""
    owner, _ = cluster.owner_and_other()
    with locked(cluster, lock) as other:
        holder = other.info.backend_pid
        look_long_silent(cluster, owner.name)
        place = f"for a lock on pairbus_shard (held by process {holder})"

        code, _, errors = run(cluster, "drain", owner.name, "--forget")
        assert (code, place in errors) == (1, True), errors
        assert f"{owner.name} may run" in errors
        code, _, errors = run(cluster, "drain", owner.name)
        assert (code, place in errors) == (1, True), errors
        code, _, errors = run(cluster, "move")
        assert (code, place in errors) == (1, True), errors

        _, said, _ = run(cluster, "status")
        assert place in said
        assert "former primary" not in said
        found = json.loads(run(cluster, "status", "--json")[1])
        assert found["held_up"] == [{"table": "pairbus_shard", "processes": [holder]}]

        reason = wait_until(
            lambda: next((text for text in [owner.health().get("reason", "")] if "lock" in text), ""),
            "the owner says what it waits for",
        )
        assert f"it waits for a lock on pairbus_shard that another session holds (process {holder})" in reason
    cluster.await_owner()
    wait_until(
        lambda: "late" not in run(cluster, "status")[1] and "gone" not in run(cluster, "status")[1],
        "both nodes report again",
    )
    assert json.loads(run(cluster, "status", "--json")[1])["held_up"] == []


@pytest.mark.long
@pytest.mark.parametrize("cluster", [("a",)], indirect=True)
def test_a_command_that_waited_for_a_lock_looks_at_the_nodes_once_they_can_report(cluster: Cluster) -> None:
    """The command itself cannot read under this lock. What it reads first after its end is as old as the lock.

    There is no second node, which might take the namespace as soon as the lock ends: then the former owner stops, and may be forgotten.
    """
    owner = cluster.await_owner()
    with locked(cluster, "lock table pairbus_shard in access exclusive mode") as other:
        began = time.monotonic()
        commands = [start(cluster, "drain", owner.name, "--forget"), start(cluster, "status", "--json")]
        with psycopg.connect(cluster.url, autocommit=True) as beside:
            waiting = (
                "select from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database() "
                "and application_name = 'pairbus-setup'"
            )
            wait_until(lambda: len(beside.execute(waiting).fetchall()) == 2, "both commands wait")
            beside.execute("update pairbus_node set seen = seen - interval '1 hour'")
        wait_until(lambda: time.monotonic() - began > 4, "the lease has ended")
        other.rollback()
        (_, forgot), (said, _) = (one.communicate() for one in commands)
    assert commands[0].returncode == 1, forgot
    found = json.loads(said)
    assert {one["state"] for one in found["nodes"]} <= {"serving", "idle", "replaying"}, found
