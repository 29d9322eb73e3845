"""What a task does when Spark runs it a second time."""

from __future__ import annotations

import pytest

from pairbus.spark.drain import source
from pairbus.spark.drain.rows import MOVED, LedgerRow
from pairbus.spark.drain.source import DrainReader, SharePartition
from pairbus.spark.drain.task import TaskSettings

SETTINGS = TaskSettings(primary="", secondary="", seconds=7)
ROW = LedgerRow("q", 1, "m", "orders", MOVED, "", 1, 2, 1)


def rows_of(monkeypatch: pytest.MonkeyPatch, *, is_speculated: bool, attempt: int) -> tuple[int, list[float]]:
    """How many rows an attempt yields, and how long it waited."""
    waited: list[float] = []
    monkeypatch.setattr(source, "run_task", lambda settings, queues: [ROW])
    monkeypatch.setattr(source, "_attempt", lambda: attempt)
    monkeypatch.setattr("time.sleep", waited.append)
    reader = DrainReader(SETTINGS, [("q",)], is_speculated=is_speculated)
    batches = list(reader.read(SharePartition(("q",))))
    return sum(batch.num_rows for batch in batches), waited


@pytest.mark.parametrize("is_speculated", [True, False])
def test_the_first_attempt_pumps(monkeypatch: pytest.MonkeyPatch, is_speculated: bool) -> None:
    assert rows_of(monkeypatch, is_speculated=is_speculated, attempt=0) == (1, [])


@pytest.mark.promise("D3")
def test_a_second_try_pumps_where_no_copies_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    assert rows_of(monkeypatch, is_speculated=False, attempt=1) == (1, [])


@pytest.mark.promise("D3")
def test_what_may_be_a_copy_lets_the_first_end(monkeypatch: pytest.MonkeyPatch) -> None:
    moved, waited = rows_of(monkeypatch, is_speculated=True, attempt=1)

    assert moved == 0
    assert sum(waited) > SETTINGS.seconds


def test_outside_of_spark_every_attempt_is_the_first() -> None:
    assert source._attempt() == 0
