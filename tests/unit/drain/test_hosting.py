"""What a paired client passes to the drain that it hosts."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from pairbus import SendAvailabilityOptions
from pairbus.drain import hosting
from pairbus.drain.hosting import EventObserver
from pairbus.drain.message import BacklogMessage
from pairbus.drain.problems import Problems
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
        _state=SimpleNamespace(
            drained_queues=[], primary="p", counters=None, is_failed_over=None, emit=lambda *_: None
        ),
    )
    host._client = client

    host._build(None, None)

    assert (given["order"], given["follow_ms"]) == ("session", 90_000)


def test_an_order_that_is_given_up_is_an_event() -> None:
    events: list[tuple[Kind, str, str]] = []
    observer = EventObserver(lambda kind, subject, text: events.append((kind, subject, text)))

    observer.order_given_up(BacklogMessage("q", 1, "orders", b"", "m", "s", None, 0), "it goes on")

    assert events == [(Kind.ORDER_GIVEN_UP, "q", "it goes on")]


def test_a_secondary_that_does_not_let_the_drain_listen_is_one_event() -> None:
    events: list[tuple[Kind, str, str]] = []
    problems = Problems(EventObserver(lambda kind, subject, text: events.append((kind, subject, text))))

    for _ in range(3):
        problems.failed("secondary", "q", Failure.UNAUTHORIZED, "no Listen claim")
    problems.failed("primary", "orders", Failure.UNAUTHORIZED, "the health events have it")
    problems.failed("secondary", "other", Failure.CONNECTION, "away")

    ((kind, queue, text),) = events
    assert (kind, queue) == (Kind.SYPHON_REFUSED, "q")
    assert text.startswith("nothing is drained: q: ")
    assert "no Listen claim" in text
    assert "needs the right to listen" in text
