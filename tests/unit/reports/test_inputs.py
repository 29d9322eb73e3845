"""Which files a report reads; no Java."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from pairbus.errors import UsageError
from pairbus.reports.bill.days import DAYS_MAX
from pairbus.reports.engines import arrow
from pairbus.reports.engines.audit_log import AUDIT, BACKLOG, RECEIVED, SENT
from pairbus.reports.engines.usage_log import AHEAD_MAX, EARLIEST, USAGE, usage_range
from pairbus.reports.inputs import find_all, find_inputs
from pairbus.server.logs.message_journal import convert
from tests.integration.reports.ledger_kit import NOON_MS, journal_bytes, parked, row

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


def journal(data: Path, namespace: str, rows: list[dict[str, object]]) -> Path:
    """An open journal in the data directory of a broker."""
    file = data / AUDIT.folder / f"journal-{1:016}-{namespace}-life.log"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(journal_bytes(rows, namespace, 1))
    return file


def test_the_rows_of_an_open_journal_have_its_namespace(tmp_path: Path) -> None:
    journal(tmp_path, "contoso", [row("sent", "a"), row("sent", "b")])
    found = find_inputs(None, [str(tmp_path)], AUDIT)
    (made,) = found.parquet
    assert pyarrow.parquet.ParquetFile(made).read()["namespace"].to_pylist() == ["contoso"] * 2
    assert len(found.journals) == 1


def test_a_journal_that_does_not_name_its_namespace_is_refused(tmp_path: Path) -> None:
    journal(tmp_path, "", [row("sent", "a")])
    with pytest.raises(UsageError, match="does not name its namespace: an older version wrote it"):
        find_inputs(None, [str(tmp_path)], AUDIT)
    # Without a row it says nothing.
    journal(tmp_path, "", [])
    assert find_inputs(None, [str(tmp_path)], AUDIT).parquet == []


@pytest.mark.promise("D8")
@pytest.mark.parametrize("copied", ["ab", "abc", "abcd"])
def test_a_copy_of_a_journal_counts_as_the_part_that_was_made_of_it(tmp_path: Path, copied: str) -> None:
    """Also one with a row that its broker cut off after a crash."""
    copy = journal(tmp_path / "copy", "contoso", [row("sent", name) for name in copied])
    whole = journal(tmp_path / "data", "contoso", [row("sent", name) for name in "abc"])
    convert(whole, whole.parent, "contoso")
    for places in (["copy", "data"], ["data", "copy"]):
        found = find_inputs(None, [str(tmp_path / place) for place in places], AUDIT)
        (path,) = found.parquet
        assert Path(path).is_relative_to(tmp_path / "data")
        assert (found.journals, found.repeated) == ([], [str(copy)])


@pytest.mark.parametrize("is_parent", [False, True])
def test_what_a_drain_moves_while_the_files_are_read_is_not_called_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_parent: bool
) -> None:
    """Whichever file is read next, a message is sent, one is parked and one is drained before."""
    primary: list[dict[str, object]] = []
    secondary: list[dict[str, object]] = []
    secondary += [parked("sent", f"parked-{number}", namespace="standby") for number in range(9)]

    reads: list[Path] = []

    def go_on() -> None:
        number = len(reads)
        moment: dict[str, Any] = {"time": NOON_MS + number}
        primary.append(row("sent", f"direct-{number}", **moment))
        secondary.append(parked("sent", f"late-{number}", namespace="standby", **moment))
        for name in (f"parked-{number}", f"late-{number}"):
            primary.append(row("sent", name, **moment))
            secondary.append(parked("completed", name, namespace="standby", **moment))
        journal(tmp_path / "primary", "contoso", primary)
        journal(tmp_path / "secondary", "standby", secondary)

    go_on()
    copy = shutil.copy

    def copied(source: Path, target: Path) -> str:
        reads.append(source)
        go_on()
        return str(copy(source, target))

    monkeypatch.setattr("pairbus.reports.inputs.shutil.copy", copied)
    a, b = str(tmp_path / "primary"), str(tmp_path / "secondary")
    places = {SENT: [str(tmp_path)] if is_parent else [a, b], RECEIVED: [a], BACKLOG: [b]}

    found = arrow.reconcile(find_all(None, places, AUDIT)).certificate

    assert len(reads) == 2
    fates = {fate: count for fate, count in found.fates.items() if count}
    assert fates == {"arrived": found.accepted - fates["in_backlog"], "in_backlog": 6}
