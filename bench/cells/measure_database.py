"""What PostgreSQL costs a shard, through the code that ships: commits by size and number of writers, renewals, replay, memory.

Besides, what the shipping code does not do yet: the leases of many shards renewed by one statement.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bench.cells import shard
from bench.cells.clock import processor_s
from bench.cells.costs import HEAD_BYTES_REMOVED, HEAD_BYTES_STORED, MESSAGE_BYTES
from bench.peer import cpu_seconds
from pairbus.storage.postgres.database import Database
from pairbus.storage.table.ports import FrameMark
from tests.postgres_kit import PostgresServer, new_server

if TYPE_CHECKING:
    import psycopg

BASE = Path("/var/tmp")
"""A disk, not memory; and open to the user that PostgreSQL runs as."""
RUN_SECONDS = 0.5
WRITERS = (1, 4, 16)
BATCHES = (1, 10, 100, 1000)
RENEWED_TOGETHER = 100
REPLAYED_MESSAGES = 200_000
REPLAYED_BATCH = 100
SETTINGS = {
    "synchronous_commit": "on",
    "shared_buffers": "256MB",
    "min_wal_size": "2GB",
    "max_wal_size": "8GB",
    "checkpoint_timeout": "30min",
    "max_connections": "100",
    "autovacuum": "off",
}
"""Checkpoints and vacuum are kept out of runs that take a second."""
RENEW_MANY = """
update pairbus_shard set address = mine.address, until = clock_timestamp() + interval '10 s'
from unnest(%s::int[], %s::bigint[], %s::text[]) as mine(shard, epoch, address)
where pairbus_shard.shard = mine.shard and pairbus_shard.epoch = mine.epoch and owner <> '' returning pairbus_shard.shard"""


class Commits(NamedTuple):
    """So many writers committing frames of so many messages, each as fast as it can. All figures but the rate are for one commit."""

    writers: int
    messages: int
    per_s: float
    p10_ms: float
    """The tenth percentile: close to what a commit takes when nobody else wants the processor."""
    p50_ms: float
    p99_ms: float
    client_cpu_us: float
    primary_cpu_us: float
    standby_cpu_us: float
    wal_bytes: float


class Statement(NamedTuple):
    """One small statement, again and again. All figures but the rate are for one."""

    per_s: float
    p10_ms: float
    p50_ms: float
    client_cpu_us: float
    primary_cpu_us: float
    wal_bytes: float


class Replay(NamedTuple):
    """A restart: reading the heads of a shard's frames and folding them."""

    messages: int
    seconds: float
    client_cpu_s: float
    primary_cpu_s: float
    bytes_per_message: float
    """Memory of a queued message."""


@dataclass(frozen=True, slots=True)
class Servers:
    """A primary, and perhaps its synchronous standby on the same disk."""

    primary: PostgresServer
    standby: PostgresServer | None
    connection: psycopg.Connection[Any]
    """For questions between runs; a new connection for each would take processor time itself."""

    def ask(self, query: str) -> int:
        """The one number that a query gives."""
        row = self.connection.execute(query.encode()).fetchone()
        assert row is not None
        return int(row[0])

    @property
    def url(self) -> str:
        return self.primary.url()

    def shard(self, name: str) -> Database:
        database = Database(self.url, name)
        database.prepare()
        return database

    def pids(self) -> list[int]:
        """The first process of the primary, then of the standby."""
        return [server.pid for server in (self.primary, self.standby) if server is not None]


@contextlib.contextmanager
def servers(*, standby: bool) -> Iterator[Servers]:
    """A PostgreSQL that syncs its disk."""
    primary = new_server(fsync=True, tcp=True, settings=SETTINGS, base=BASE)
    copy = None
    try:
        copy = primary.add_standby() if standby else None
        with primary.connect() as connection:
            yield Servers(primary, copy, connection)
    finally:
        for server in (copy, primary):
            if server is not None:
                server.dispose()


class Writer(threading.Thread):
    """One shard's commit thread."""

    def __init__(self, servers: Servers, name: str, messages: int, seconds: float) -> None:
        super().__init__()
        database = servers.shard(name)
        lease = database.lease()
        acquired = shard.acquire(lease)
        lease.release(acquired.epoch)
        lease.close()
        self._epoch, self._sequence, self._before = acquired.epoch, acquired.fence + 1, 0
        self._writer = database.writer()
        self._head = bytes((HEAD_BYTES_STORED + HEAD_BYTES_REMOVED) * messages)
        self._body = bytes(range(256)) * (MESSAGE_BYTES * messages // 256)
        self._seconds = seconds
        self.took: list[float] = []
        self._insert()  # makes the range, and connects

    def _insert(self) -> None:
        mark = FrameMark(self._epoch, zlib.crc32(self._head))
        self._writer.insert(self._sequence, mark, self._head, [self._body], self._before)
        self._sequence, self._before = self._sequence + 1, mark.checksum

    def run(self) -> None:
        clock = time.perf_counter
        until = clock() + self._seconds
        while (started := clock()) < until:
            self._insert()
            self.took.append(clock() - started)

    def close(self) -> None:
        self._writer.close()


class Meter:
    """Processor time of the database and of this process, and the growth of the log, from its making to ``stop``."""

    def __init__(self, measured: Servers) -> None:
        self._servers = measured
        self._before = self._now()

    def _now(self) -> tuple[float, float, float, float, int]:
        wal = self._servers.ask("select pg_current_wal_insert_lsn() - '0/0'")
        cpus = [processor_s(pid) for pid in self._servers.pids()]
        return time.perf_counter(), time.process_time(), cpus[0], cpus[1] if len(cpus) > 1 else 0.0, wal

    def stop(self) -> tuple[float, float, float, float, int]:
        """Seconds: of the clock, of this process, of the primary, of the standby. Then bytes of the log."""
        seconds, client, primary, standby, wal = (
            after - before for after, before in zip(self._now(), self._before, strict=True)
        )
        return seconds, client, primary, standby, int(wal)


def checkpoint(measured: Servers) -> None:
    """Let the next run write into files of the log that exist already, as a database does that has run for a while."""
    measured.connection.execute("checkpoint")


def commits(measured: Servers, writers: int, messages: int, seconds: float = RUN_SECONDS) -> Commits:
    checkpoint(measured)
    threads = [Writer(measured, f"shard-{number}", messages, seconds) for number in range(writers)]
    meter = Meter(measured)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    elapsed, client, primary, standby, wal = meter.stop()
    for thread in threads:
        thread.close()
    took = sorted(one for thread in threads for one in thread.took)
    count = len(took)
    return Commits(
        writers=writers,
        messages=messages,
        per_s=count / elapsed,
        p10_ms=took[count // 10] * 1e3,
        p50_ms=took[count // 2] * 1e3,
        p99_ms=took[count * 99 // 100] * 1e3,
        client_cpu_us=client / count * 1e6,
        primary_cpu_us=primary / count * 1e6,
        standby_cpu_us=standby / count * 1e6,
        wal_bytes=wal / count,
    )


def statement(measured: Servers, execute: Callable[[], object], seconds: float = RUN_SECONDS) -> Statement:
    took: list[float] = []
    for _ in range(10):
        execute()
    meter = Meter(measured)
    until = time.perf_counter() + seconds
    while (started := time.perf_counter()) < until:
        execute()
        took.append(time.perf_counter() - started)
    elapsed, client, primary, _standby, wal = meter.stop()
    took.sort()
    count = len(took)
    return Statement(
        per_s=count / elapsed,
        p10_ms=took[count // 10] * 1e3,
        p50_ms=took[count // 2] * 1e3,
        client_cpu_us=client / count * 1e6,
        primary_cpu_us=primary / count * 1e6,
        wal_bytes=wal / count,
    )


def renewals(measured: Servers) -> dict[str, Statement]:
    """A lease taken over, looked at, renewed by its own statement, and the leases of a hundred shards by one."""
    lease = measured.shard(f"renewed-{time.time_ns()}").lease()
    acquired = shard.acquire(lease)
    alone = statement(measured, lambda: lease.renew(acquired.epoch, shard.ADDRESS, shard.LEASE_MS))

    def take() -> None:
        nonlocal acquired
        lease.release(acquired.epoch)
        acquired = shard.acquire(lease)

    taken = statement(measured, take)
    looked = statement(measured, lease.look)
    lease.close()
    with measured.primary.connect() as connection:
        query = "insert into pairbus_shard (name, owner, range_frames) select 'other-' || n || clock_timestamp(), 'node', 8192 from generate_series(1, 500) n returning shard"
        shards = [row[0] for row in connection.execute(query).fetchall()][:RENEWED_TOGETHER]
        arguments = (shards, [0] * len(shards), [shard.ADDRESS] * len(shards))
        together = statement(
            measured, lambda: connection.execute(RENEW_MANY, arguments, prepare=True).fetchall()
        )
    return {"acquire": taken, "look": looked, "renew": alone, "renew_many": together}


def replay(measured: Servers, messages: int = REPLAYED_MESSAGES) -> Replay:
    """A restart with so many queued messages in frames of a hundred, in a process of its own."""
    name = f"replayed-{time.time_ns()}"
    shard.fill(measured.url, name, messages, REPLAYED_BATCH)
    command = [sys.executable, "-m", "bench.cells.shard", measured.url, name]
    checkpoint(measured)
    pid = measured.primary.pid
    before = cpu_seconds(pid)  # in ticks, but with the connections that have ended meanwhile
    found = json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)
    primary = cpu_seconds(pid) - before
    assert found["messages"] == messages
    return Replay(messages, found["seconds"], found["cpu_s"], primary, found["grown_bytes"] / messages)


def connection_memory_mib(measured: Servers) -> float:
    """Memory of its own that the connection of a commit thread takes in the database."""
    before = set(_backends(measured))
    writer = Writer(measured, "memory", 100, 0.2)
    pid = (set(_backends(measured)) - before).pop()
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    writer.close()
    private = [
        int(line.split()[1])
        for line in rollup.splitlines()
        if line.startswith(("Private_Clean", "Private_Dirty"))
    ]
    return sum(private) / 1024


def _backends(measured: Servers) -> list[int]:
    return [
        row[0]
        for row in measured.primary.run(
            "select pid from pg_stat_activity where backend_type = 'client backend' and pid <> pg_backend_pid()"
        )
    ]
