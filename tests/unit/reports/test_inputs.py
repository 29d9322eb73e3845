"""Which files a report reads; no Java."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

pytest.importorskip("pyspark")

from pairbus.errors import UsageError
from pairbus.reports.bill.days import DAYS_MAX
from pairbus.reports.engines import arrow
from pairbus.reports.engines.audit_log import AUDIT
from pairbus.reports.engines.usage_log import AHEAD_MAX, EARLIEST, USAGE, usage_range
from pairbus.reports.inputs import find_inputs

NOW = datetime(2026, 11, 20, tzinfo=UTC)
HOUR_MS = 3_600_000
LAST_HOUR_MS = 253_402_297_200_000
"""The last hour of the calendar, 9999-12-31T23."""


def usage(directory: Path, hour: str, *minutes_ms: int) -> Path:
    file = directory / "usage" / f"hour={hour}" / "part-life1.parquet"
    file.parent.mkdir(parents=True)
    count = len(minutes_ms)
    columns: dict[str, object] = {
        "bucket": pyarrow.array(minutes_ms, pyarrow.timestamp("ms", "UTC")),
        **{name: ["x"] * count for name in ("namespace", "entity")},
        "operation": ["send"] * count,
        "stage": ["primary"] * count,
        **{name: [1] * count for name in ("count", "bytes", "units")},
        "connection_peak": pyarrow.array([1] * count, pyarrow.int32()),
    }
    pyarrow.parquet.write_table(pyarrow.table(columns), file)
    return file


@pytest.mark.parametrize(
    ("hour", "minutes", "is_unsure"),
    [
        ("2026-11-15T10", (1_794_736_800_000, 1_794_740_340_000), False),
        ("2026-11-15T10", (1_794_736_800_000, 1_794_740_400_000), True),
        ("2026-11-15T10", (1_794_736_740_000,), True),
        ("9999-12-31T23", (LAST_HOUR_MS, LAST_HOUR_MS + 60_000), False),
        ("9999-12-31T23", (LAST_HOUR_MS + HOUR_MS,), True),
        ("10000-01-01T00", (LAST_HOUR_MS + HOUR_MS,), True),
        ("0001-01-01T00", (-62_135_596_800_000,), False),
        ("0001-01-01T00", (-62_135_596_860_000,), True),
    ],
)
def test_a_part_of_any_hour_is_judged_by_its_statistics(
    tmp_path: Path, hour: str, minutes: tuple[int, ...], is_unsure: bool
) -> None:
    """At the ends of the calendar too, where one hour more cannot be expressed."""
    file = usage(tmp_path, hour, *minutes)

    found = find_inputs(None, [str(tmp_path)], USAGE)

    assert found.parquet == [str(file.resolve())]
    assert found.unsure == ([str(file.resolve())] if is_unsure else [])


def test_a_bill_of_an_empty_usage_log_is_refused_before_java_starts(tmp_path: Path) -> None:
    (tmp_path / "new" / "usage").mkdir(parents=True)
    with pytest.raises(UsageError, match="nothing that can be read"):
        find_inputs(None, [str(tmp_path / "new")], USAGE)

    # Beside a log with rows it is one where nothing has happened yet.
    usage(tmp_path / "old", "2026-11-15T10", 1_794_736_800_000)
    assert len(find_inputs(None, [str(tmp_path / "old"), str(tmp_path / "new")], USAGE).parquet) == 1

    (tmp_path / "new" / AUDIT.folder).mkdir(exist_ok=True)
    assert find_inputs(None, [str(tmp_path / "new")], AUDIT).parquet == []


def test_a_column_without_a_name_is_shown(tmp_path: Path) -> None:
    pyarrow.parquet.write_table(pyarrow.table({"": [1], "x": [1]}), tmp_path / "other.parquet")

    with pytest.raises(UsageError, match=r"no column 'bucket' \(it has '', x\)"):
        find_inputs(None, [str(tmp_path)], USAGE)


def test_rows_that_count_never_span_more_days_than_a_bill_may_have() -> None:
    """A row of a clock that was not set is set apart alone; it must not make the whole bill impossible."""
    for now in (datetime(2026, 11, 15, tzinfo=UTC), datetime(2034, 1, 1, tzinfo=UTC)):
        assert (now + AHEAD_MAX - EARLIEST).days <= DAYS_MAX


def test_requests_about_a_whole_secondary_are_no_further_backlog_queue(tmp_path: Path) -> None:
    row = {
        "bucket": "2026-11-15T10:00:00Z", "namespace": "contoso", "operation": "management", "stage": "backlog",
        "count": 1, "bytes": 0, "units": 1, "connection_peak": 0, "part": "one",
    }  # fmt: skip
    entities = ("", "p/x-servicebus-transfer/0", "p/x-servicebus-transfer/0/$DeadLetterQueue")
    log = tmp_path / "usage.jsonl"
    log.write_text("\n".join(json.dumps({**row, "entity": entity}) for entity in entities))
    inputs = find_inputs(None, [str(log)], USAGE)

    recorded, _ = arrow.recorded_usage(usage_range(inputs, None, None, NOW), (), 0, (), 0)

    assert recorded.queues == 1
