"""A move into a database that sleeps for longer than its leases, and wakes when somebody else has taken what it made."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pairbus.errors import StoreUnavailable, UsageError
from pairbus.model.entity import QUEUE, Settings
from pairbus.server.offline import held_shard
from pairbus.server.offline import move as module
from pairbus.storage.postgres.database import Database
from pairbus.storage.postgres.opening import open_database
from pairbus.storage.postgres.settings import PostgresSettings
from pairbus.storage.table.ports import SequenceTaken, TableFailed
from tests.contract.table_kinds import new_name
from tests.integration.cli.test_store_move import NAME, commit, fill, in_database, on_disk, taken
from tests.postgres_kit import shared_server
from tests.unit.engine.engine_kit import START, incoming
from tests.waiting import wait_until

WAIT_SECONDS_MAX = 60


@pytest.fixture
def data(tmp_path: Path) -> Path:
    made = tmp_path / "data"
    made.mkdir()
    fill(made)
    return made


@pytest.fixture
def url() -> str:
    return shared_server().new_database(new_name("wakes"))


def leases_end(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("update pairbus_shard set until = 'epoch'")


def serve(url: str) -> dict[str, Any]:
    """What a node does that finds the lease ended, and takes one message. Returns what the namespace holds then."""
    leases_end(url)
    with taken(open_database(url, NAME)) as (namespace, store):
        entity = namespace.create(QUEUE, "new", Settings(), START)
        namespace.send(entity, incoming("acknowledged"), START)
        commit(store)
    return in_database(url)


def never_renewed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As while the process is suspended."""
    monkeypatch.setattr(held_shard.LeaseKeeper, "_run", lambda _: None)


def nothing(*_: object) -> None: ...


@pytest.mark.promise("S3", "S6")
def test_what_a_node_took_between_the_row_and_the_lease_of_a_move_is_kept(
    data: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, prepare = on_disk(data), Database.prepare
    served: list[dict[str, Any]] = []

    def prepared(database: Database) -> bool:
        made = prepare(database)
        if database.namespace == NAME and not served:
            served.append({})
            served[:] = [serve(url)]
        return made

    monkeypatch.setattr(Database, "prepare", prepared)
    with pytest.raises((StoreUnavailable, UsageError)):
        module.move_to_database(data, Database(url, NAME), START, nothing)
    assert in_database(url) == served[0]
    assert on_disk(data) == before


STOPPED = """
import os, signal, sys
from pairbus.cli.root import root
from pairbus.storage.postgres.database import Database
from pairbus.storage.postgres.lease import PostgresLease

left = int(sys.argv[1])

def stopping(owner, name):
    real = getattr(owner, name)
    def call(*given):
        global left
        result = real(*given)
        if result is not None:
            if left == 0:
                os.kill(os.getpid(), signal.SIGSTOP)
            left -= 1
        return result
    setattr(owner, name, call)

stopping(Database, "prepare")
stopping(PostgresLease, "acquire")
root(sys.argv[2:])
"""
"""Suspends itself once it has made a shard or has its lease: first the namespace's own, then its copy."""


@pytest.mark.promise("S3", "S6")
@pytest.mark.parametrize("place", range(4))
def test_what_a_node_took_from_a_suspended_move_is_kept(place: int, data: Path, url: str) -> None:
    """The process is stopped as a laptop that is closed."""
    before = on_disk(data)
    command = [sys.executable, "-c", STOPPED, str(place), "store", "move", "--data", str(data)]
    with subprocess.Popen(
        [*command, "--to", url, "--namespace", NAME], stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            wait_until(lambda: _is_stopped(process.pid), "it is suspended", WAIT_SECONDS_MAX)
            served = serve(url)
            process.send_signal(signal.SIGCONT)
            _, told = process.communicate(timeout=WAIT_SECONDS_MAX)
        finally:
            process.kill()
    assert process.returncode not in (0, -signal.SIGKILL)
    assert in_database(url) == served
    assert on_disk(data) == before
    assert "this node" not in told
    assert not Database(url, NAME).beside().find(), "its copy is removed"


def _is_stopped(pid: int) -> bool:
    found, status = os.waitpid(pid, os.WUNTRACED | os.WNOHANG)
    return found == pid and os.WIFSTOPPED(status)


@pytest.mark.promise("S3", "S6")
@pytest.mark.parametrize("place", ["while it copies", "before it names its copy"])
def test_what_another_move_brought_meanwhile_is_kept(
    place: str, data: Path, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same namespace from another directory: a restored backup, say."""
    never_renewed(monkeypatch)
    other = tmp_path / "other"
    shutil.copytree(data, other)
    before, put = on_disk(data), PostgresSettings.put
    moves: list[Path] = []

    def another() -> None:
        if not moves:
            moves.append(other)
            leases_end(url)
            module.move_to_database(other, Database(url, NAME), START, nothing)

    def progress(done: int, total: int) -> None:
        if place == "while it copies":
            another()

    def puts(settings: PostgresSettings, name: str, value: bytes) -> None:
        if name == module.COPY_SETTING:
            another()
        put(settings, name, value)

    monkeypatch.setattr(PostgresSettings, "put", puts)
    with pytest.raises(StoreUnavailable):
        module.move_to_database(data, Database(url, NAME), START, progress)
    assert moves
    assert in_database(url) == before
    assert on_disk(data) == before


@pytest.mark.promise("S3", "S6")
def test_a_move_removes_no_copy_that_was_finished_since_it_looked(
    data: Path, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy has got the namespace's name, and is served."""
    other = tmp_path / "other"
    shutil.copytree(data, other)
    copied = Database.copied_by
    seen: list[str | None] = []

    def looks(database: Database) -> str | None:
        found = copied(database)
        if not seen and database.namespace != NAME:
            seen.append(found)
            _name_copy(url)
        return found

    with suppress(KeyboardInterrupt):
        module.move_to_database(other, Database(url, NAME), START, _interrupted)
    with psycopg.connect(url, autocommit=True) as connection:
        # What a move leaves that was killed.
        connection.execute(
            "insert into pairbus_shard (name, range_frames) values (%s, 8)", [f"{NAME} (moving)"]
        )
    monkeypatch.setattr(Database, "copied_by", looks)
    with pytest.raises(StoreUnavailable):
        module.move_to_database(data, Database(url, NAME), START, nothing)
    assert seen
    assert Database(url, NAME).find()


def _interrupted(_done: int, _total: int) -> None:
    raise KeyboardInterrupt


def _name_copy(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("delete from pairbus_shard where name = %s", [NAME])
        connection.execute("update pairbus_shard set name = %s", [NAME])


@pytest.mark.promise("S3")
@pytest.mark.parametrize("holds", ["a lease", "a message"])
def test_a_copy_does_not_get_the_name_of_a_shard_that_a_node_began(holds: str, url: str) -> None:
    begun = open_database(url, NAME)
    copy = begun.beside()
    copy.prepare()
    if holds == "a message":
        serve(url)
    else:
        lease = begun.lease()
        with suppress(SequenceTaken):
            lease.acquire("a", "", 60_000)
        lease.acquire("a", "", 60_000)
        lease.close()
    with pytest.raises(TableFailed, match="a node has begun"):
        begun.replace_with(copy)
    assert Database(url, NAME).find()
    assert copy.find()
