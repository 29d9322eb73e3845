"""What a paired client passes to the drain that it hosts."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from pairbus import SendAvailabilityOptions
from pairbus.drain import hosting
from pairbus.drain.hosting import EventObserver
from pairbus.drain.ports import Observer
from pairbus.drain.rules.message import BacklogMessage
from pairbus.drain.rules.problems import PATIENCE_MS, Problems
from pairbus.pairing.client.drain_host import TaskDrainHost
from pairbus.pairing.events import Kind
from pairbus.sdk.failures import Failure


def test_a_hosted_drain_keeps_the_order_of_its_client_and_waits_as_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setattr(hosting, "build", lambda *_, **options: given.update(options))
    host = TaskDrainHost()
    client: Any = SimpleNamespace(
        options=SendAvailabilityOptions(order="session", fence_timeout=timedelta(seconds=90)),
        ledger=None,
        not_found="dead-letter",
        _identity=None,
        _setup=SimpleNamespace(read_in_vain=None),
        _checks=SimpleNamespace(found_unfit=None),
        _state=SimpleNamespace(
            drained_queues=[], primary="p", counters=None, is_failed_over=None, emit=lambda *_: None
        ),
    )
    host._client = client

    host._build(None, None)

    assert (given["order"], given["follow_ms"]) == ("session", 90_000)


def test_an_order_that_is_given_up_is_an_event() -> None:
    events: list[tuple[Kind, str, str]] = []
    observer = EventObserver(lambda *told: events.append(told), print, print)

    observer.order_given_up(BacklogMessage("q", 1, "orders", b"", "m", "s", None, 0), "it goes on")

    assert events == [(Kind.ORDER_GIVEN_UP, "q", "it goes on")]


def test_a_secondary_that_does_not_let_the_drain_listen_is_one_event() -> None:
    events: list[tuple[Kind, str, str]] = []
    problems = Problems(EventObserver(lambda *told: events.append(told), print, print))

    for _ in range(3):
        problems.failed("secondary", "q", Failure.UNAUTHORIZED, "no Listen claim", is_refused=True)
    problems.failed("primary", "orders", Failure.UNAUTHORIZED, "the health events have it")
    problems.failed("secondary", "other", Failure.CONNECTION, "away")

    ((kind, queue, text),) = events
    assert (kind, queue) == (Kind.SYPHON_REFUSED, "q")
    assert text.startswith("nothing is drained: q: ")
    assert "no Listen claim" in text
    assert "needs the right to listen" in text


def test_a_backlog_queue_that_is_deleted_while_it_is_drained_is_told_once_and_never_counts_as_still_there() -> (
    None
):
    deleted: list[str] = []
    sentences: list[str] = []

    class Told(EventObserver):
        def unavailable(self, subject: str, sentence: str) -> None:
            sentences.append(sentence)

    problems = Problems(Told(print, deleted.append, print))

    problems.failed("secondary", "never there", Failure.NOT_FOUND, "404")
    assert deleted == []
    assert "or drain only those that exist" in sentences.pop()
    problems.works("secondary", "q")
    for _ in range(2):
        problems.failed("secondary", "q", Failure.NOT_FOUND, "404")

    assert deleted == ["q"]
    (sentence,) = sentences
    assert sentence.startswith("q: somebody deleted it while it was drained: what was still in it is gone")
    reason = problems.reason_to_give_up(PATIENCE_MS)
    assert reason is not None
    assert "Nothing is lost" not in reason
    assert reason.endswith("What other backlog queues hold is still there; run the command again")


def test_what_cannot_be_read_at_present_is_still_there() -> None:
    problems = Problems(Observer())

    problems.failed("secondary", "q", Failure.CONNECTION, "away")

    assert "Nothing is lost: the messages are still in the backlog" in str(
        problems.reason_to_give_up(PATIENCE_MS)
    )
