"""The file of a spool: its tables, and how everybody reads them who opens it, owner or not."""

from __future__ import annotations

import os
import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pairbus.errors import SpoolError

FILE_NAME: Final = "spool.db"
FORMAT: Final = "1"
OVERHEAD_BYTES: Final = 64
"""What a message takes in the file beside its own bytes, about."""
BUSY_SECONDS: Final = 10.0
"""How long a commit waits for somebody who reads the file."""

WAY_OUT: Final = (
    "If the file is damaged, `pairbus spool export` writes what can still be read of it; `sqlite3 COPY .recover`, on a copy of its "
    "directory, may find more. Move the directory away afterwards"
)

ORDERS: Final = ("relaxed", "session", "partition")
"""The orders that a client may keep. Each keeps what those before it keep."""

SALVAGED_MAX: Final = 1_000_000
"""How many numbers are tried one by one when a file is damaged."""

SCHEMA: Final = """
CREATE TABLE about (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE entity (id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, path TEXT NOT NULL);
CREATE TABLE message (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    entity INTEGER NOT NULL,
    at_ms INTEGER NOT NULL,
    checksum INTEGER NOT NULL,
    reason TEXT,
    payload BLOB NOT NULL
);
CREATE INDEX by_entity ON message (entity, number);
"""

SELECT: Final = "SELECT number, path, at_ms, payload, reason, checksum FROM message JOIN entity ON entity.id = message.entity"


@dataclass(frozen=True, slots=True)
class About:
    """Which primary the messages of a spool are for: its name, and its address as passports have it. No secrets.

    ``queues``: how many backlog queues the program that wrote the spool uses; 0: not known. ``order``: the order that its clients
    keep, the strictest one when there were several; None: not known.
    """

    primary: str
    address: str
    queues: int = 0
    order: str | None = None


@dataclass(frozen=True, slots=True)
class Spooled:
    """A message in a spool. ``reason``: why no namespace takes it; None: it waits for a namespace."""

    number: int
    path: str
    at_ms: int
    payload: bytes
    reason: str | None = None
    is_damaged: bool = False


@dataclass(slots=True)
class Content:
    """What a spool holds of one entity: messages that wait, and those that no namespace takes."""

    path: str
    count: int = 0
    size: int = 0
    oldest_ms: int | None = None
    undeliverable: int = 0
    entered: int = 0
    """Messages that are entered and not durable yet."""

    def age_ms(self, now_ms: int) -> int | None:
        """For how long the oldest message has waited; None: none waits."""
        return None if self.oldest_ms is None else max(0, now_ms - self.oldest_ms)


def total_of(contents: Iterable[Content], path: str = "") -> Content:
    """Several contents as one."""
    parts = list(contents)
    return Content(
        path,
        sum(part.count for part in parts),
        sum(part.size for part in parts),
        min((part.oldest_ms for part in parts if part.oldest_ms is not None), default=None),
        sum(part.undeliverable for part in parts),
        sum(part.entered for part in parts),
    )


def connect(file: Path) -> sqlite3.Connection:
    """A connection for any thread; the file is created for its owner alone. Raises sqlite3.Error, OSError."""
    os.close(os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    check_log(file)
    return sqlite3.connect(file, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)


def log_of(file: Path) -> Path:
    """The log of a file: messages that are durable and not in the file itself yet."""
    return file.with_name(f"{file.name}-wal")


def check_log(file: Path) -> None:
    """Raise sqlite3.DatabaseError for a file without bytes whose log has some."""
    log = log_of(file)
    if not file.stat().st_size and log.exists() and log.stat().st_size:
        # SQLite takes the log for that of a file that was deleted, and deletes it too.
        raise sqlite3.DatabaseError("the file has no bytes, and its log has some")


def is_written(database: sqlite3.Connection) -> bool:
    """Whether a spool was ever written: one that could not be created, for instance on a full disk, has no tables."""
    return database.execute("SELECT 1 FROM sqlite_master").fetchone() is not None


def read_about(database: sqlite3.Connection, file: Path) -> About:
    """Whose messages these are. Raises SpoolError for another format."""
    found = dict(database.execute("SELECT name, value FROM about"))
    if found.get("format") != FORMAT:
        raise SpoolError(
            f"the spool {file} has the format {found.get('format')!r}, and this version of pairbus reads {FORMAT!r}: use the version "
            "that wrote it"
        )
    queues = str(found.get("queues", ""))
    return About(
        str(found.get("primary", "")),
        str(found.get("address", "")),
        int(queues) if queues.isdecimal() else 0,
        found.get("order"),
    )


def stricter(orders: Iterable[str | None]) -> str:
    """The order that keeps all of these. One that is not known counts as the strictest."""
    return max((one if one in ORDERS else ORDERS[-1] for one in orders), key=ORDERS.index)


def read_contents(database: sqlite3.Connection) -> dict[str, Content]:
    """What a spool holds, by entity."""
    rows = database.execute(
        "SELECT key, path, count(*) FILTER (WHERE reason IS NULL), total(length(payload) + ?) FILTER (WHERE reason IS NULL), "
        "count(*) FILTER (WHERE reason IS NOT NULL), min(at_ms) FILTER (WHERE reason IS NULL) "
        "FROM message JOIN entity ON entity.id = message.entity GROUP BY entity.id",
        (OVERHEAD_BYTES,),
    )
    return {
        key: Content(path, count, int(size), oldest, undeliverable)
        for key, path, count, size, undeliverable, oldest in rows
    }


def spooled(row: Sequence[object]) -> Spooled:
    """A row of number, path, time, payload, reason and checksum."""
    number, path, at_ms, payload, reason, checksum = row
    assert isinstance(number, int)
    assert isinstance(at_ms, int)
    content = payload if isinstance(payload, bytes) else b""
    return Spooled(
        number,
        str(path),
        at_ms,
        content,
        None if reason is None else str(reason),
        is_damaged=zlib.crc32(content) != checksum,
    )


def read_messages(database: sqlite3.Connection) -> Iterator[Spooled]:
    """Every message of a spool, in the order in which they were entered.

    Where the file is damaged, those that are readable one by one. Then raises sqlite3.Error.
    """
    last = 0
    try:
        for row in database.execute(f"{SELECT} ORDER BY number"):
            message = spooled(row)
            last = message.number
            yield message
    except sqlite3.DatabaseError:
        for number in range(last + 1, min(_highest(database), last + SALVAGED_MAX) + 1):
            with suppress(sqlite3.DatabaseError):
                found = database.execute(f"{SELECT} WHERE number = ?", (number,)).fetchone()
                if found is not None:
                    yield spooled(found)
        raise


def _highest(database: sqlite3.Connection) -> int:
    """The highest number that a message ever had; 0 when that cannot be read."""
    with suppress(sqlite3.DatabaseError):
        found = database.execute("SELECT seq FROM sqlite_sequence WHERE name = 'message'").fetchone()
        return 0 if found is None else int(found[0])
    return 0
