"""Our broker with its log in PostgreSQL, as a peer: the benchmark starts the database itself, alone and with a synchronous standby.

Everything lies on the disk that the embedded log uses in the same run, and is flushed before an answer.

A new database fills each file of its log with zeros before it uses it. Such a file holds 16 MB, and here no commit ends for 42 ms each
time, which was a third of the time at 100,000 messages a second. A database that has been in use for a while takes files again that it
does not need any more, if ``min_wal_size`` lets it keep them, as PairBus's own log prepares its files ahead. So the databases are
used a little before anything is measured.
"""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, Final

from bench.ours import OurBroker
from tests import postgres_kit

if TYPE_CHECKING:
    from contextlib import ExitStack
    from pathlib import Path

    from bench.peer import Peer

ALONE: Final = "PostgreSQL"
WITH_STANDBY: Final = "with standby"
SETTINGS: Final = {
    "shared_buffers": "512MB",
    "min_wal_size": "2GB",
    "max_wal_size": "3GB",
    "checkpoint_timeout": "15min",
}
USED_MB: Final = 2200
"""What a database writes before anything is measured: with it, files of its log for ``min_wal_size`` are there."""
TARGETS: Final = (
    (ALONE, 100, 4, 0.75),
    (ALONE, 1000, 4, 0.9),
    (WITH_STANDBY, 100, 4, 0.5),
    (WITH_STANDBY, 1000, 4, 0.5),
)
"""Store, window, connections, and the rate it should reach in parts of the embedded log's."""
RELAY_US_MAX: Final = 3.0
"""Processor time that a relaying node may take for a message."""


def version() -> str:
    done = subprocess.run(
        [postgres_kit.programs() / "postgres", "--version"], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def brokers(home: Path, stack: ExitStack, form: str) -> list[Peer]:
    """Two brokers in this form, each with a database of its own; they and their databases end with the stack."""
    alone = _server(home, stack)
    primary = _server(home, stack)
    standby = primary.add_standby()
    stack.callback(standby.dispose)
    _use(alone)
    _use(primary, standby)
    return [
        stack.enter_context(_broker(home, alone, ALONE, form, (alone.pid,))),
        stack.enter_context(_broker(home, primary, WITH_STANDBY, form, (primary.pid, standby.pid))),
    ]


def _server(home: Path, stack: ExitStack) -> postgres_kit.PostgresServer:
    server = postgres_kit.new_server(fsync=True, tcp=True, settings=SETTINGS, base=home)
    stack.callback(server.dispose)
    return server


def _use(primary: postgres_kit.PostgresServer, *standbys: postgres_kit.PostgresServer) -> None:
    """Let a database write, and keep the files of its log."""
    primary.run("create table used (bytes bytea)")
    primary.run("alter table used alter column bytes set storage external")
    for _ in range(USED_MB // 100):
        primary.run(
            "set synchronous_commit = local; insert into used select repeat('x', 1000000)::bytea from generate_series(1, 100)"
        )
        primary.run("truncate used")
    primary.run("drop table used")
    for server in (primary, *standbys):
        server.run("checkpoint")


def _broker(
    home: Path, server: postgres_kit.PostgresServer, name: str, form: str, beside: tuple[int, ...]
) -> OurBroker:
    options = ("--store", server.url(), "--node", "bench", "--lease", "10")
    return OurBroker(home, options=options, name=name, form=form, beside=beside)
