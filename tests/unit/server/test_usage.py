from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from pairbus.gateway.telemetry.meter import MINUTE_MS, Meter, UsageRow
from pairbus.server.committer import Commit, CommitQueue, PendingOutput
from pairbus.server.logs.parquet import HOUR_MS, hour_name, remove_hours_before
from pairbus.server.logs.usage import HOURS_HELD_MAX, TYPES, UsageBook, UsageLog, UsageWriter
from tests.unit.server.fakes import FakeStore, disk_error

START = 1_699_999_200_000
assert START % HOUR_MS == 0


def row(minute: int = 0, count: int = 1, path: str = "orders", peak: int = 0) -> UsageRow:
    operation = "connections" if peak else "send"
    return UsageRow(START + minute * MINUTE_MS, path, operation, "primary", count, 10 * count, count, peak)


def read(directory: Path) -> list[dict[str, Any]]:
    """All rows of all parts, as a reader of the whole directory finds them."""
    found: list[dict[str, Any]] = []
    for file in sorted(directory.glob("hour=*/[!.]*")):
        found += pyarrow.parquet.ParquetFile(file).read().to_pylist()
    return found


def total(directory: Path) -> int:
    return sum(found["count"] for found in read(directory))


def writer(directory: Path, boot_id: str = "boot", days: int = 400) -> UsageWriter:
    made = UsageWriter(directory, "contoso", boot_id, days)
    made.start()
    return made


def test_rows_of_one_minute_entity_and_operation_are_one_row(tmp_path: Path) -> None:
    made = writer(tmp_path)
    made.submit([row(), row(peak=2)])
    made.submit([row(count=2), row(minute=1), row(peak=1), row(path="invoices")])
    made.stop()

    found = [(r["bucket"].minute, r["entity"], r["operation"], r["count"], r["bytes"], r["units"], r["connection_peak"])
             for r in read(tmp_path)]  # fmt: skip

    assert found == [
        (0, "invoices", "send", 1, 10, 1, 0),
        (0, "orders", "connections", 2, 20, 2, 2),
        (0, "orders", "send", 3, 30, 3, 0),
        (1, "orders", "send", 1, 10, 1, 0),
    ]


def test_the_schema_is_the_documented_one(tmp_path: Path) -> None:
    made = writer(tmp_path)
    made.submit([row()])
    made.stop()

    (file,) = tmp_path.glob("hour=2023-11-14T22/part-boot.parquet")
    schema = pyarrow.parquet.ParquetFile(file).schema_arrow
    assert [(field.name, str(field.type)) for field in schema] == [
        (name, {"timestamp": "timestamp[ms, tz=UTC]", "text": "string"}.get(kind, kind))
        for name, kind in TYPES.items()
    ]
    assert file.stat().st_mode & 0o777 == 0o600


def test_each_hour_has_a_part_of_its_own(tmp_path: Path) -> None:
    made = writer(tmp_path)
    made.submit([row(59), row(60), row(125)])
    made.stop()

    assert sorted(path.name for path in tmp_path.iterdir()) == [
        hour_name(START + n * HOUR_MS) for n in range(3)
    ]
    assert total(tmp_path) == 3


@pytest.mark.promise("D6")
def test_a_new_life_adds_a_part_and_counts_nothing_twice(tmp_path: Path) -> None:
    for life in range(3):
        made = writer(tmp_path, f"boot{life}")
        for _ in range(5):
            made.submit([row()])
        made.stop()

    assert len(list(tmp_path.glob("hour=*/*"))) == 3
    assert total(tmp_path) == 15


@pytest.mark.promise("D6")
def test_what_a_crash_left_half_written_is_not_read_and_goes(tmp_path: Path) -> None:
    directory = tmp_path / hour_name(START)
    directory.mkdir()
    (directory / ".part-dead.parquet.tmp").write_bytes(b"PAR1 half")

    assert read(tmp_path) == []
    made = writer(tmp_path)
    made.submit([row()])
    made.stop()

    assert [file.name for file in directory.iterdir()] == ["part-boot.parquet"]


def test_a_disk_that_takes_nothing_for_a_while_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = [2]
    real = os.fsync

    def fsync(handle: int) -> None:
        if failures[0]:
            failures[0] -= 1
            raise OSError(28, "No space left on device")
        real(handle)

    monkeypatch.setattr("pairbus.server.files.os.fsync", fsync)
    made = UsageWriter(tmp_path, "contoso", "boot")
    for minute in (0, 59, 60):
        made._book.add([row(minute)])
        made._write()
    made._write()

    assert total(tmp_path) == 3


def test_memory_is_bounded_when_nothing_can_be_written() -> None:
    book = UsageBook()
    book.add([row(60 * hour) for hour in range(HOURS_HELD_MAX + 5)])

    assert book.give_up_oldest() == 5
    assert len(book.changed()) == HOURS_HELD_MAX


def test_an_hour_that_is_over_needs_no_memory() -> None:
    book = UsageBook()
    book.add([row(0), row(60)])
    for hour in book.changed():
        book.written(hour)

    assert list(book._hours) == [START + HOUR_MS]


def test_old_hours_go_and_foreign_files_stay(tmp_path: Path) -> None:
    for hours in (1, 24, 49, 1000):
        directory = tmp_path / hour_name(START - hours * HOUR_MS)
        directory.mkdir()
        (directory / "part-x.parquet").touch()
    (tmp_path / hour_name(START - 1000 * HOUR_MS) / "notes.txt").touch()
    (tmp_path / "hour=unknown").mkdir()

    remove_hours_before(tmp_path, START - 48 * HOUR_MS)

    kept = sorted(path.name for path in tmp_path.iterdir())
    assert kept == sorted(
        [
            hour_name(START - HOUR_MS),
            hour_name(START - 24 * HOUR_MS),
            hour_name(START - 1000 * HOUR_MS),
            "hour=unknown",
        ]
    )


class World:
    """The meter, the log and the group commit of a server, step by step."""

    def __init__(self, directory: Path) -> None:
        self.meter = Meter()
        self.store = FakeStore()
        self.writer = writer(directory)
        self.log = UsageLog(self.meter.take, lambda: START, self.writer)
        self.queue = CommitQueue(self._words, self.store.seal)
        self.meter.roll(START)

    def _words(self) -> list[PendingOutput]:
        return self.log.take_output()

    def command(self) -> None:
        self.store.stage("message")
        self.meter.tally("orders", "send").add(1)

    def begin(self) -> Commit:
        self.log.ask()
        commit = self.queue.begin()
        assert commit is not None
        return commit

    def finish(self, commit: Commit) -> None:
        for output in self.queue.finish(commit):
            output.sink.write(output.chunks, output.closes)


@pytest.mark.promise("D6")
def test_counts_reach_the_file_only_with_the_commit_that_covers_them(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.command()
    first = world.begin()
    world.command()  # comes too late for this commit
    world.finish(first)
    world.writer.stop()

    assert total(tmp_path) == 1


@pytest.mark.promise("D6")
def test_what_a_failed_commit_undid_is_not_counted(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.command()
    commit = world.begin()
    commit.error = disk_error()
    world.finish(commit)
    world.writer.stop()

    assert total(tmp_path) == 0
