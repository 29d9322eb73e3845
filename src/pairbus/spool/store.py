"""One spool: messages in an SQLite file, durable when ``commit`` returns.

One transaction for all who wait
--------------------------------
A disk needs milliseconds to make a write durable, whether it holds one message or a thousand. So an append has two steps.
``enter`` puts the messages into a list in memory and returns at once. ``commit`` waits while somebody writes. Then one of those
who wait writes everything that is in the list, in one transaction, and wakes the others. Each waits at a gate of its own: with one
condition for all, a hundred threads would ask for its lock again, one after the other, only to learn that they are done.

Why SQLite
----------
Measured beside a file of our own with checksums, a single append takes the same time: that of one sync. SQLite recovers from a
crash at any point, gives space back and lets others read meanwhile, all of which we would have to write. Its pages have no
checksums, so each message has one.

Rules
-----
Rule 1: nothing is removed before it was asked for. What cannot be delivered stays, with the reason.
Rule 2: the messages of an entity are read in the order in which they were entered.
Rule 3: an error of a commit belongs to all messages of it. They are not stored if it came before the last step, or if that step
found the disk full (``SpoolNotStored``). After any other error it is not known.
Rule 4: a message that a namespace has does not wait any more, also while the disk is too full to remove it. It is removed later. A
process that is killed before that repeats it, with the same message id.
"""

from __future__ import annotations

import sqlite3
import threading
import zlib
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pairbus.errors import SpoolError, SpoolNotStored
from pairbus.spool.disk import MAKE_ROOM, is_disk_full, sync_directory
from pairbus.spool.file import (
    FILE_NAME,
    FORMAT,
    OVERHEAD_BYTES,
    SCHEMA,
    SELECT,
    WAY_OUT,
    About,
    Content,
    Spooled,
    connect,
    read_about,
    read_contents,
    spooled,
    stricter,
)

if TYPE_CHECKING:
    from _thread import LockType

CHECKPOINT_PAGES: Final = 4_000
ROWS_MAX: Final = 100
"""Messages that are written with one statement."""

_INSERT: Final = "INSERT INTO message (number, entity, at_ms, checksum, payload) VALUES"


@dataclass(slots=True, eq=False)
class Append:
    """Messages on their way into a spool. ``numbers`` are theirs once it is done."""

    key: str
    path: str
    payloads: Sequence[bytes]
    at_ms: int
    is_done: bool = False
    error: SpoolError | None = None
    numbers: Sequence[int] = ()
    size: int = 0
    """Bytes that it takes in the spool."""
    gate: LockType | None = None
    """Opened for a caller who waits: when the append is done, or when it is the caller's turn to write."""
    is_next: bool = False
    """Whether it is the caller's turn to write."""

    def __post_init__(self) -> None:
        self.size = sum(map(len, self.payloads)) + OVERHEAD_BYTES * len(self.payloads)


class Spool:
    """One file. Safe to use from several threads; one process at a time, which ``directory`` sees to."""

    def __init__(self, directory: Path, about: About) -> None:
        """Open or create the spool in ``directory``. Raises SpoolError when it cannot be read or written: SpoolNotStored on a full disk."""
        self.directory = directory
        self.file = directory / FILE_NAME
        self.contents: dict[str, Content] = {}
        self.size = 0
        """Bytes of all messages, those on their way and those that no namespace takes included."""
        self.newest_ms = 0
        """When the newest message was sent that was in it when it was opened."""
        self._entities: dict[str, int] = {}
        self._waiting: list[Append] = []
        self._lock = threading.Lock()
        self._turn = threading.Lock()
        """Held while the file is used. Never taken while one has the other lock."""
        self._is_committing = False
        self._is_writing = False
        """Whether a caller of ``commit`` writes, or is about to."""
        self._unsaved: dict[int, str | None] = {}
        """Messages that have left and could not be removed, and those that are undeliverable and could not be marked, with the reason."""
        try:
            self._database = connect(self.file)
            try:
                self.about = self._prepare(about)
                self._count()
                self._unsaved_order = self._order_to_save(about.order)
            except BaseException:
                self._database.close()
                raise
        except (sqlite3.Error, OSError) as error:
            text = f"the spool {self.file} cannot be opened: {error}"
            if is_disk_full(directory, error):
                raise SpoolNotStored(f"{text}. {MAKE_ROOM}") from error
            raise SpoolError(f"{text}. {WAY_OUT}") from error

    def _prepare(self, about: About) -> About:
        database = self._database
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        database.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
        database.execute("BEGIN IMMEDIATE")
        try:
            if not database.execute("SELECT 1 FROM sqlite_master WHERE name = 'message'").fetchone():
                for statement in filter(str.strip, SCHEMA.split(";")):
                    database.execute(statement)
                given = {"format": FORMAT, "primary": about.primary, "address": about.address}
                database.executemany("INSERT INTO about VALUES (?, ?)", given.items())
                sync_directory(self.directory)
            database.execute("COMMIT")
        except BaseException:
            database.rollback()
            raise
        found = read_about(database, self.file)
        if about.address and about.address != found.address and not _has_messages(database):
            # It takes messages of a client that reaches the primary there, and the next one may not know the address before.
            with suppress(sqlite3.Error):
                database.execute("UPDATE about SET value = ? WHERE name = 'address'", (about.address,))
                found = replace(found, address=about.address)
        if about.queues and about.queues != found.queues:
            # Nothing depends on it but a replay by hand: a full disk must not keep the spool from being opened.
            with suppress(sqlite3.Error):
                database.execute("INSERT OR REPLACE INTO about VALUES ('queues', ?)", (str(about.queues),))
        return found

    def _order_to_save(self, own: str | None) -> str | None:
        """The order to note with the next messages; None: the noted one is right."""
        if own is None:
            return None
        kept = own if not self.contents else stricter([own, self.about.order])
        return None if kept == self.about.order else kept

    def _count(self) -> None:
        self._entities = dict(self._database.execute("SELECT key, id FROM entity"))
        self.contents = read_contents(self._database)
        size, newest_ms = self._database.execute(
            "SELECT coalesce(sum(length(payload) + ?), 0), coalesce(max(at_ms), 0) FROM message",
            (OVERHEAD_BYTES,),
        ).fetchone()
        self.size, self.newest_ms = int(size), int(newest_ms)
        # Never a number again that a handle may name: SQLite remembers the highest one that ever was.
        last = self._database.execute("SELECT seq FROM sqlite_sequence WHERE name = 'message'").fetchone()
        self._next_number = 1 if last is None else int(last[0]) + 1

    # --- append -----------------------------------------------------------------------------------

    def enter(self, append: Append) -> None:
        """Put messages into the list of what the next commit writes. Returns at once."""
        with self._lock:
            self._waiting.append(append)
            content = self.contents.setdefault(append.key, Content(append.path))
            content.entered += len(append.payloads)
            self.size += append.size

    def commit(self, append: Append) -> None:
        """Return once an append is durable. Raises SpoolError: the file cannot be written."""
        gate = None
        with self._lock:
            is_mine = not append.is_done and not self._is_writing
            if is_mine:
                self._is_writing = True
            elif not append.is_done:
                gate = append.gate = threading.Lock()
                gate.acquire()
        if gate is not None:
            is_mine = self._wait(append, gate)
        if is_mine:
            try:
                with self._turn:
                    self._commit_waiting()
            finally:
                self._pass_on()
        if append.error is not None:
            raise append.error

    def _wait(self, append: Append, gate: LockType) -> bool:
        """Wait until an append is done, or until it is the caller's turn to write: True."""
        try:
            gate.acquire()
        except BaseException:  # Ctrl+C: the turn must not end with this caller
            with self._lock:
                append.gate = None
            if append.is_next:
                self._pass_on()
            raise
        return append.is_next

    def _pass_on(self) -> None:
        """The next of those who wait writes."""
        with self._lock:
            waits = next((append for append in self._waiting if append.gate is not None), None)
            self._is_writing = waits is not None
            if waits is not None and waits.gate is not None:
                gate, waits.gate, waits.is_next = waits.gate, None, True
                gate.release()

    def _commit_waiting(self) -> None:
        with self._lock:
            batch, self._waiting = self._waiting, []
        try:
            if batch:
                self._write(batch)
        except BaseException as caught:
            error = _of_write(self.file, caught, is_begun=self._is_committing)
            error.__cause__ = caught
            self._end(batch, error)
            if not isinstance(caught, sqlite3.Error | OSError):
                raise
        else:
            self._end(batch, None)

    def _end(self, batch: Sequence[Append], error: SpoolError | None) -> None:
        with self._lock:
            for append in batch:
                content = self.contents[append.key]
                content.entered -= len(append.payloads)
                if error is None:
                    content.count += len(append.payloads)
                    content.size += append.size
                    content.oldest_ms = append.at_ms if content.oldest_ms is None else content.oldest_ms
                else:
                    self.size -= append.size
                append.error = error
                append.is_done = True
                if append.gate is not None:
                    gate, append.gate = append.gate, None
                    gate.release()

    def _write(self, batch: Iterable[Append]) -> None:
        database = self._database
        rows: list[tuple[int, int, int, int, bytes]] = []
        next_number = self._next_number
        self._is_committing = False
        database.execute("BEGIN IMMEDIATE")
        try:
            for append in batch:
                entity = self._entities.get(append.key)
                if entity is None:
                    inserted = database.execute(
                        "INSERT INTO entity (key, path) VALUES (?, ?)", (append.key, append.path)
                    )
                    entity = int(inserted.lastrowid or 0)
                    self._entities[append.key] = entity
                for number, payload in enumerate(append.payloads, next_number):
                    rows.append((number, entity, append.at_ms, zlib.crc32(payload), payload))
                append.numbers = range(next_number, next_number + len(append.payloads))
                next_number += len(append.payloads)
            for at in range(0, len(rows), ROWS_MAX):
                # One statement for many rows: Python asks for its lock again after each one, and may wait for it.
                part = rows[at : at + ROWS_MAX]
                places = ", ".join(["(?, ?, ?, ?, ?)"] * len(part))
                database.execute(f"{_INSERT} {places}", [value for row in part for value in row])
            if self._unsaved_order is not None:
                # With the messages, or not at all: who replays them must know it.
                database.execute("INSERT OR REPLACE INTO about VALUES ('order', ?)", (self._unsaved_order,))
            self._is_committing = True
            database.execute("COMMIT")
            self._unsaved_order = None
            self._next_number = next_number
        except BaseException:
            self._roll_back()
            raise

    def _roll_back(self) -> None:
        with suppress(sqlite3.Error):
            self._database.rollback()
        with suppress(sqlite3.Error):
            self._entities = dict(self._database.execute("SELECT key, id FROM entity"))

    # --- read and remove --------------------------------------------------------------------------

    def first(self, key: str, count: int, size: int) -> list[Spooled]:
        """The oldest messages of an entity that wait: at most ``count``, and about ``size`` bytes, but at least one."""
        with self._turn:
            if self._waiting:
                self._commit_waiting()
            found: list[Spooled] = []
            left = size
            with self._reported():
                rows = self._database.execute(
                    f"{SELECT} WHERE entity.key = ? AND number >= ? AND reason IS NULL ORDER BY number LIMIT ?",
                    (key, self._oldest(key)[0], count + len(self._unsaved)),
                )
                for row in rows:
                    if row[0] in self._unsaved:
                        continue
                    message = spooled(row)
                    left -= len(message.payload)
                    if len(found) == count or (found and left < 0):
                        break
                    found.append(message)
                rows.close()
            return found

    def remove(self, key: str, messages: Sequence[Spooled]) -> None:
        """A namespace has these messages, or a person has taken them. Durable when it returns."""
        with self._turn, self._reported():
            self._change("", [], [(one.number,) for one in messages])
            self._have_left(key, messages)
            with self._lock:
                self.size -= _size_of(messages)

    def delivered(self, key: str, messages: Sequence[Spooled]) -> None:
        """A namespace has these messages: they do not wait any more. Raises SpoolError: they are removed later (``tidy``)."""
        with self._turn, self._reported():
            self._unsaved.update((one.number, None) for one in messages)
            with self._lock:
                self.size -= _size_of(messages)
            self._have_left(key, messages)
            self._save()

    def mark_undeliverable(self, key: str, message: Spooled, reason: str) -> None:
        """A message that no namespace will take: it stays, with the reason, and no other waits behind it.

        Raises SpoolError: the reason is written later (``tidy``).
        """
        with self._turn, self._reported():
            self._unsaved[message.number] = reason
            with self._lock:
                self.contents[key].undeliverable += 1
            self._have_left(key, [message])
            self._save()

    def tidy(self) -> None:
        """Write what could not be written before: removals and reasons. Raises SpoolError."""
        with self._turn, self._reported():
            self._save()

    @property
    def is_tidy(self) -> bool:
        return not self._unsaved

    def _save(self) -> None:
        if self._unsaved:
            self._change(
                "UPDATE message SET reason = ? WHERE number = ?",
                [(reason, number) for number, reason in self._unsaved.items() if reason is not None],
                [(number,) for number, reason in self._unsaved.items() if reason is None],
            )
            self._unsaved.clear()

    def find(self, key: str, number: int) -> Spooled | None:
        """A message that waits; None: it is gone, or no namespace takes it."""
        with self._turn, self._reported():
            if number in self._unsaved:
                return None
            row = self._database.execute(
                f"{SELECT} WHERE number = ? AND entity.key = ? AND reason IS NULL", (number, key)
            ).fetchone()
            return None if row is None else spooled(row)

    def retry_undeliverable(self) -> int:
        """Messages that no namespace took wait again. How many that is. Not while others use the spool."""
        with self._turn, self._reported():
            changed = self._change("UPDATE message SET reason = NULL WHERE reason IS NOT NULL", [()])
            self._count()
            return changed

    def _change(
        self, statement: str, rows: Sequence[tuple[object, ...]], removed: Sequence[tuple[int]] = ()
    ) -> int:
        """Execute a statement for each row, and remove messages by number, in one transaction. How many rows changed."""
        database = self._database
        changed = 0
        database.execute("BEGIN IMMEDIATE")
        try:
            if rows:
                changed = database.executemany(statement, rows).rowcount
            if removed:
                database.executemany("DELETE FROM message WHERE number = ?", removed)
            database.execute("COMMIT")
        except BaseException:
            self._roll_back()
            raise
        return changed

    def _have_left(self, key: str, messages: Sequence[Spooled]) -> None:
        """Messages of an entity do not wait any more."""
        with self._lock:
            content = self.contents[key]
            content.count -= len(messages)
            content.size -= _size_of(messages)
        _, content.oldest_ms = self._oldest(key)

    def _oldest(self, key: str) -> tuple[int, int | None]:
        """Number and time of the oldest message of an entity that waits."""
        rows = self._database.execute(
            "SELECT number, at_ms FROM message WHERE entity = ? AND reason IS NULL ORDER BY number",
            (self._entities.get(key, 0),),
        )
        for number, at_ms in rows:
            if number not in self._unsaved:
                rows.close()
                return number, at_ms
        return 0, None

    # --- questions --------------------------------------------------------------------------------

    def waits(self, key: str) -> int:
        """How many messages of an entity are here and wait, those on their way in included."""
        content = self.contents.get(key)
        return 0 if content is None else content.count + content.entered

    def oldest_ms(self, key: str) -> int:
        """When the oldest message of an entity that waits was sent; 0: none waits."""
        content = self.contents.get(key)
        return 0 if content is None or content.oldest_ms is None else content.oldest_ms

    @property
    def is_waiting(self) -> bool:
        """Whether any message waits for a namespace."""
        return any(content.count or content.entered for content in self.contents.values())

    @property
    def is_empty(self) -> bool:
        return not any(
            content.count or content.entered or content.undeliverable for content in self.contents.values()
        )

    def close(self) -> None:
        """Write what waits, and close the file."""
        with self._turn:
            if self._waiting:
                self._commit_waiting()
            with suppress(sqlite3.Error):
                self._save()
            with suppress(sqlite3.Error):
                self._database.close()

    def _reported(self) -> _Reported:
        return _Reported(self.file)


class _Reported:
    """Turns errors of SQLite inside the block into SpoolError."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, sqlite3.Error | OSError):
            raise SpoolError(f"the spool {self._file} cannot be read or written: {error}") from error


def _of_write(file: Path, error: BaseException, *, is_begun: bool) -> SpoolError:
    """The error of an append. ``is_begun``: its last step, which makes it durable, has begun."""
    text = f"the spool {file} cannot be written: {error}"
    if not is_begun or getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL:
        return SpoolNotStored(f"{text}. The spool does not have the message")
    return SpoolError(f"{text}. It is not known whether the spool has the message")


def _has_messages(database: sqlite3.Connection) -> bool:
    return database.execute("SELECT 1 FROM message LIMIT 1").fetchone() is not None


def _size_of(messages: Sequence[Spooled]) -> int:
    return sum(len(one.payload) + OVERHEAD_BYTES for one in messages)
