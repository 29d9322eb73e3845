"""Where ledger rows go."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from pairbus.spark.drain.ledger import ROWS_PER_SLICE_MAX, LedgerWriter
from pairbus.spark.drain.report import Count
from pairbus.spark.drain.rows import LOCK_LOST, MOVED, SET_ASIDE, LedgerRow, record_batches


class Rows:
    """A job that has run."""

    def __init__(self, rows: list[LedgerRow]) -> None:
        self._rows = rows

    def toArrow(self) -> pyarrow.Table:
        whole = [*self._rows, row(0, "", "")]
        return pyarrow.Table.from_batches(record_batches(whole)).slice(0, len(self._rows))


def row(number: int, outcome: str, reason: str = "") -> LedgerRow:
    return LedgerRow("q", number, f"m{number}", "orders", outcome, reason, 1_000, 2_000, 1)


def kept(book: LedgerWriter, rows: list[LedgerRow], number: int = 1) -> list[Count]:
    nobody: Any = None
    job: Any = Rows(rows)
    return book.write_slice(nobody, job, number)


def test_rows_are_kept_by_the_driver_and_counted_by_fate(tmp_path: Path) -> None:
    book = LedgerWriter(str(tmp_path), "r1")

    counts = kept(book, [row(1, MOVED), row(2, MOVED), row(3, SET_ASIDE, "why"), row(4, LOCK_LOST)], 7)

    assert sorted(counts, key=lambda count: count.outcome) == [
        Count("q", "orders", LOCK_LOST, 1, ""),
        Count("q", "orders", MOVED, 2, ""),
        Count("q", "orders", SET_ASIDE, 1, "why"),
    ]
    [file] = (tmp_path / "run=r1" / "slice=000007").iterdir()
    assert pyarrow.parquet.ParquetFile(file).read()["sequence_number"].to_pylist() == [1, 2, 3, 4]


@pytest.mark.parametrize("scheme", ["", "file:", "file://"])
def test_a_slice_that_moved_nothing_leaves_no_file(tmp_path: Path, scheme: str) -> None:
    book = LedgerWriter(f"{scheme}{tmp_path}", "r1")

    assert kept(book, []) == []
    assert list(tmp_path.iterdir()) == []
    kept(book, [row(1, MOVED)])
    assert len(list(tmp_path.rglob("part-*.parquet"))) == 1


def test_what_the_driver_itself_moved_is_added_and_never_replaced(tmp_path: Path) -> None:
    book, nobody = LedgerWriter(str(tmp_path), "r1"), Any
    for number in (1, 2):
        book.write_rows(nobody, [row(number, MOVED)], 3)  # type: ignore[arg-type]

    assert len(list((tmp_path / "run=r1" / "slice=000003-watch").glob("part-*.parquet"))) == 2


@pytest.mark.promise("D10")
def test_the_driver_takes_in_no_more_than_its_bound() -> None:
    here = LedgerWriter("/data/ledger", "r1")

    assert here.messages_max(50_000, 2) == 50_000
    assert here.messages_max(50_000, 1_000) * 1_000 <= ROWS_PER_SLICE_MAX
    assert LedgerWriter("s3a://bucket/ledger", "r1").messages_max(50_000, 1_000) == 50_000
