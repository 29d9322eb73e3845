from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest
from azure.servicebus.exceptions import MessagingEntityNotFoundError

from pairbus.errors import UsageError
from pairbus.spark.drain.driver import SyphonOptions, _Run
from pairbus.spark.drain.report import TIME_IS_UP, Count, Progress, Report
from pairbus.spark.drain.rows import (
    LEDGER_SCHEMA,
    LOCK_LOST,
    MOVED,
    SET_ASIDE,
    WAITING,
    LedgerRow,
    record_batches,
)


@pytest.mark.promise("P45")
def test_the_report_counts_what_slices_did() -> None:
    report = Report()
    report.add(
        [
            Count("q0", "orders", MOVED, 90, ""),
            Count("q0", "orders", LOCK_LOST, 2, ""),
            Count("q0", "gone", SET_ASIDE, 3, "DestinationNotFound: expected entity 'gone'"),
            Count("q1", "bills", WAITING, 5, "entity disabled: it is"),
            Count("q1", "orders", WAITING, 5, TIME_IS_UP),
        ]
    )

    assert (report.moved, report.possible_repeats) == (92, 2)
    assert report.set_aside == {"DestinationNotFound": 3}
    assert report.waiting == {"bills": "entity disabled: it is"}


def test_the_exit_code_says_whether_everything_is_home() -> None:
    assert Report(moved=5).exit_code == 0
    assert Report(set_aside={"DestinationNotFound": 1}).exit_code == 1
    assert Report(left={"q0": 4}).exit_code == 1
    assert Report(vanished=["q0"]).exit_code == 3


def test_the_line_for_people_tells_rate_rest_and_time() -> None:
    line = Progress(
        moved=1_000, left=500, rate_per_s=100, set_aside=1, waiting={"bills": "entity disabled"}
    ).line()

    assert (
        line == "1,000 delivered, 100/s, 500 left, about 5 s to go, 1 dead-lettered, "
        "bills is unavailable (entity disabled)"
    )


def test_ledger_batches_have_the_columns_of_the_schema() -> None:
    row = LedgerRow("q0", 1, "m", "orders", MOVED, "", 1, 2, 1)

    batch = record_batches([row])[0]

    assert batch.schema.names == [column.split()[0] for column in LEDGER_SCHEMA.split(", ")]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("queues", 0),
        ("tasks", 0),
        ("slice_seconds", 0.5),
        ("window", 0),
        ("order", "random"),
        ("not_found", "drop"),
    ],
)
def test_a_wrong_option_is_named(field: str, value: object) -> None:
    with pytest.raises(UsageError, match=field):
        SyphonOptions(primary="Endpoint=sb://a/", secondary="Endpoint=sb://b/", **{field: value})  # type: ignore[arg-type]


def test_no_connection_string_shows_in_the_options() -> None:
    assert "secret" not in repr(
        SyphonOptions(primary="Endpoint=sb://a/;SharedAccessKey=secret", secondary="secret")
    )


@pytest.mark.promise("P45")
def test_what_is_left_does_not_contain_what_was_dead_lettered(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shown: list[Progress] = []
    text = "Endpoint=sb://{0}.servicebus.windows.net;SharedAccessKeyName=n;SharedAccessKey=k"
    options = SyphonOptions(
        primary=text.format("one"), secondary=text.format("two"), tasks=1, ledger=str(tmp_path)
    )
    run = _Run(options, threading.Event(), shown.append, lambda sentence: None, None)
    counts = [Count("q", "orders", MOVED, 7, ""), Count("q", "gone", SET_ASIDE, 2, "DestinationNotFound: x")]
    monkeypatch.setattr(run, "_session", object)
    monkeypatch.setattr(run, "_run_tasks", lambda spark, shares: counts)

    assert run._slice({"q": 10}) == 7
    assert (shown[0].left, shown[0].moved, shown[0].set_aside) == (1, 7, 2)


class ShrinkingCensus:
    """A secondary with two backlog queues, of which somebody deletes the last: after a look at the list, or after one at the queue."""

    def __init__(self, *, is_listed_once_more: bool) -> None:
        self._listed = [NAMES, NAMES, NAMES[:1]] if is_listed_once_more else [NAMES, NAMES[:1]]
        self.delivered = False

    def backlog(self) -> dict[str, int | None]:
        names = self._listed.pop(0) if len(self._listed) > 1 else self._listed[0]
        return dict.fromkeys(names, 0 if self.delivered else 5)

    def highest(self, queue: str) -> int | None:
        return 5

    def first(self, queue: str) -> int | None:
        if queue == NAMES[1]:
            raise MessagingEntityNotFoundError(message="not found")
        return 1

    def close(self) -> None: ...


NAMES = [f"one/x-servicebus-transfer/{index}" for index in range(2)]


@pytest.mark.promise("P41")
@pytest.mark.parametrize("is_listed_once_more", [False, True])
def test_a_backlog_queue_that_is_deleted_while_it_is_drained_is_named_and_the_others_are_drained(
    is_listed_once_more: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    text = "Endpoint=sb://{0}.servicebus.windows.net;SharedAccessKeyName=n;SharedAccessKey=k"
    options = SyphonOptions(
        primary=text.format("one"), secondary=text.format("two"), tasks=1, ledger=str(tmp_path)
    )
    run = _Run(options, threading.Event(), lambda progress: None, lambda sentence: None, None)
    census = ShrinkingCensus(is_listed_once_more=is_listed_once_more)

    def drain(spark: object, shares: object) -> list[Count]:
        census.delivered = True
        return [Count(NAMES[0], "orders", MOVED, 5, "")]

    monkeypatch.setattr(run, "_session", object)
    monkeypatch.setattr(run, "_run_tasks", drain)
    monkeypatch.setattr("pairbus.spark.drain.driver.Census", lambda *given: census)
    run._options = replace(options, once=True)

    report = run.run()

    assert (report.moved, report.vanished, report.left, report.deleted) == (5, [NAMES[1]], {}, [])
    assert report.exit_code == 3
