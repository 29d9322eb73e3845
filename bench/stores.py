"""The embedded store beside SQLite: one cycle is enqueue + complete of a 1 KB message, everything synced.

    python -m bench.stores [--directory D] [--messages N] [--reopen N]

Both keep locks in memory and commit the same batches: a batch stores B messages and removes the B of the batch before. "raw syncs" is
the median commit divided by the median of what one sync of 4 KB to a written-through file costs on this disk now. Rounds are
interleaved and the best of each is shown, for a shared machine disturbs some of them.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sqlite3
import statistics
import tempfile
import time
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from pairbus.engine.records import MessageRemoved, MessageStored
from pairbus.model.message import Message
from pairbus.storage.log.store import LogStore

BODY_BYTES: Final = 1024
QUEUE: Final = 4
ROUNDS: Final = 5
RAW_SYNCS: Final = 300
BLOB: Final = os.urandom(BODY_BYTES)


class Row(NamedTuple):
    """One round."""

    per_second: float
    cpu_us: float
    commit_ms: float


class Subject(Protocol):
    """A store under measurement."""

    def cycle(self, first: int, count: int, previous: list[Message]) -> tuple[list[Message], float]:
        """Store so many messages, remove the previous ones, commit. (messages, seconds the commit took)."""

    def close(self) -> None: ...


class Log:
    def __init__(self, directory: Path) -> None:
        self._store = LogStore.open(directory)
        for _ in self._store.replay():
            pass

    def cycle(self, first: int, count: int, previous: list[Message]) -> tuple[list[Message], float]:
        store = self._store
        messages: list[Message] = []
        for number in range(first, first + count):
            message = Message(number, number, 0, BODY_BYTES, None)
            store.append(MessageStored(QUEUE, message, BLOB, b""))
            messages.append(message)
        for message in previous:
            store.append(MessageRemoved(QUEUE, message.sequence_number, message.location, message.size))
        batch = store.seal()
        assert batch is not None
        started = time.perf_counter()
        store.commit(batch)
        return messages, time.perf_counter() - started

    def close(self) -> None:
        self._store.close()


class Sqlite:
    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._connection = sqlite3.connect(directory / "store.sqlite", isolation_level=None)
        self._connection.execute("PRAGMA journal_mode=WAL")
        self._connection.execute("PRAGMA synchronous=FULL")
        # A rowid table, rows found by their id alone: SQLite's own advice for rows of this length. WITHOUT ROWID, which was
        # tried first, made it three to four times slower at 1000 per commit.
        self._connection.execute(
            "CREATE TABLE IF NOT EXISTS message (id INTEGER PRIMARY KEY, queue INTEGER, number INTEGER, "
            "enqueued INTEGER, expires INTEGER, state INTEGER, failed INTEGER, blob BLOB)"
        )
        self._next_id = 1

    def cycle(self, first: int, count: int, previous: list[Message]) -> tuple[list[Message], float]:
        execute = self._connection.execute
        messages = [Message(number, number, 0, BODY_BYTES, None) for number in range(first, first + count)]
        for message in messages:
            message.location = self._next_id
            self._next_id += 1
        execute("BEGIN")
        self._connection.executemany(
            "INSERT INTO message VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            [
                (m.location, QUEUE, m.sequence_number, m.enqueued_at, m.expires_at, m.state, 0, BLOB)
                for m in messages
            ],
        )
        self._connection.executemany("DELETE FROM message WHERE id = ?", [(m.location,) for m in previous])
        started = time.perf_counter()
        execute("COMMIT")
        return messages, time.perf_counter() - started

    def close(self) -> None:
        self._connection.close()


def measure(subject: Subject, batch: int, messages: int, first: int) -> Row:
    previous: list[Message] = []
    commits: list[float] = []
    cpu = time.process_time()
    started = time.perf_counter()
    for number in range(first, first + messages, batch):
        previous, seconds = subject.cycle(number, batch, previous)
        commits.append(seconds)
    elapsed = time.perf_counter() - started
    used = time.process_time() - cpu
    subject.cycle(first + messages, 1, previous)
    return Row(messages / elapsed, used / messages * 1e6, statistics.median(commits) * 1000)


def raw_sync_ms(directory: Path) -> float:
    path = directory / "raw"
    handle = os.open(path, os.O_RDWR | os.O_CREAT)
    os.pwrite(handle, bytes(4096 * 256), 0)
    os.fsync(handle)
    times = []
    for turn in range(RAW_SYNCS):
        started = time.perf_counter()
        os.pwrite(handle, bytes(4096), turn % 256 * 4096)
        os.fdatasync(handle)
        times.append(time.perf_counter() - started)
    os.close(handle)
    path.unlink()
    return statistics.median(times) * 1000


def compare(directory: Path, messages: int) -> None:
    print("| store | batch | msgs/s | CPU µs/msg | commit, median ms | raw syncs |")
    print("|---|---|---|---|---|---|")
    for batch in (1, 100, 1000):
        count = messages if batch > 1 else max(200, messages // 100)
        rows: dict[str, list[Row]] = {"segmented log": [], "SQLite WAL FULL": []}
        raw: list[float] = []
        subjects: dict[str, Subject] = {
            "segmented log": Log(directory / f"log{batch}"),
            "SQLite WAL FULL": Sqlite(directory / f"sqlite{batch}"),
        }
        for turn in range(ROUNDS):
            raw.append(raw_sync_ms(directory))
            for name, subject in subjects.items():
                rows[name].append(measure(subject, batch, count, 1 + turn * 10_000_000))
        for name, subject in subjects.items():
            subject.close()
            best = max(row.per_second for row in rows[name])
            cpu = min(row.cpu_us for row in rows[name])
            commit = min(row.commit_ms for row in rows[name])
            print(
                f"| {name} | {batch} | {best:,.0f} | {cpu:.1f} | {commit:.2f} | {commit / min(raw):.1f} |",
                flush=True,
            )


def reopen(directory: Path, messages: int) -> None:
    """Fill, forget the cache, open again."""
    for name, make in (("segmented log", Log), ("SQLite WAL FULL", Sqlite)):
        place = directory / f"reopen-{name.split()[0]}"
        subject: Subject = make(place)
        for number in range(1, messages + 1, 1000):
            subject.cycle(number, 1000, [])
        subject.close()
        for path in place.iterdir():
            handle = os.open(path, os.O_RDONLY)
            os.fsync(handle)
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(handle)
        started = time.perf_counter()
        found: list[Message] = []
        if name.startswith("SQLite"):
            connection = sqlite3.connect(place / "store.sqlite")
            query = "SELECT number, enqueued, expires, length(blob) FROM message ORDER BY id"
            for number, enqueued, expires, size in connection.execute(query):
                found.append(Message(number, enqueued, expires, size, None))
            connection.close()
        else:
            store = LogStore.open(place)
            found.extend(record.message for record in store.replay() if isinstance(record, MessageStored))
            store.close()
        seconds = time.perf_counter() - started
        size = sum(path.stat().st_size for path in place.iterdir()) / 2**20
        print(
            f"{name}: reopened {len(found):,} messages in {seconds:.1f} s, cold; {size:,.0f} MiB on disk",
            flush=True,
        )
        shutil.rmtree(place)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--directory", type=Path, help="where to measure; a real disk, not a tmpfs")
    parser.add_argument("--messages", type=int, default=50_000, help="per round")
    parser.add_argument("--reopen", type=int, default=0, help="also measure opening with so many messages")
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="pairbus-stores-", dir=options.directory or "/var/tmp"))
    try:
        compare(directory, options.messages)
        if options.reopen:
            reopen(directory, options.reopen)
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
