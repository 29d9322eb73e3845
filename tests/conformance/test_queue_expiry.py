"""Time to live, with and without dead-lettering, and duplicate detection."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable

import pytest
from azure.servicebus import ServiceBusMessage

from tests.conformance.sdk import Bus, spec, texts
from tests.waiting import wait_until

SECOND = dt.timedelta(seconds=1)


@pytest.mark.promise("B43")
@spec("expired with dead-lettering on: in the DLQ with the reason")
def test_expired_message_is_dead_lettered(bus: Bus, make_queue: Callable[..., str]) -> None:
    queue = make_queue(dead_lettering_on_message_expiration=True)
    bus.send(queue, ServiceBusMessage("short", time_to_live=SECOND), ServiceBusMessage("long"))

    dead = bus.take(queue, 1, sub_queue="deadletter")[0]

    assert (str(dead), dead.dead_letter_reason) == ("short", "TTLExpiredException")
    assert dead.dead_letter_error_description
    assert texts(bus.take(queue, 1)) == ["long"]


@pytest.mark.promise("B43")
@spec("expired without dead-lettering: gone")
def test_expired_message_is_dropped(bus: Bus, queue: str) -> None:
    bus.send(queue, ServiceBusMessage("short", time_to_live=SECOND), ServiceBusMessage("long"))

    wait_until(lambda: texts(bus.peek(queue)) == ["long"])

    assert texts(bus.take(queue, 1)) == ["long"]
    assert bus.peek(queue, sub_queue="deadletter") == []


@spec("the entity's default applies where the message sets none or more")
def test_default_time_to_live_shortens(bus: Bus, make_queue: Callable[..., str]) -> None:
    queue = make_queue(default_message_time_to_live=SECOND, dead_lettering_on_message_expiration=True)
    bus.send(queue, ServiceBusMessage("none"), ServiceBusMessage("more", time_to_live=dt.timedelta(hours=1)))

    dead = bus.take(queue, 2, sub_queue="deadletter")

    assert sorted(texts(dead)) == ["more", "none"]


@pytest.mark.promise("B41")
@spec("a locked message does not expire, it may be settled")
def test_locked_message_outlives_its_time(bus: Bus, make_queue: Callable[..., str]) -> None:
    queue = make_queue(dead_lettering_on_message_expiration=True)
    for seconds in (2, 10, 30):  # on a busy machine the first may expire before it is taken
        life = seconds * SECOND
        bus.send(queue, *(ServiceBusMessage(text, time_to_live=life) for text in ("held", "free")))
        with bus.receiver(queue) as receiver:
            taken = receiver.receive_messages(1, max_wait_time=seconds)
            if texts(taken) != ["held"]:
                for message in taken:
                    receiver.complete_message(message)
                wait_until(lambda: bus.peek(queue) == [])
                bus.take(queue, 2 - len(taken), sub_queue="deadletter")
                continue
            wait_until(lambda: texts(bus.peek(queue, sub_queue="deadletter")) == ["free"])
            receiver.complete_message(taken[0])
            break

    assert texts(taken) == ["held"]
    assert bus.peek(queue) == []
    assert texts(bus.peek(queue, sub_queue="deadletter")) == ["free"]


@pytest.mark.promise("B47")
@spec("duplicates are accepted and dropped")
def test_duplicate_is_accepted_and_dropped(bus: Bus, make_queue: Callable[..., str]) -> None:
    queue = make_queue(requires_duplicate_detection=True)
    bus.send(queue, *(ServiceBusMessage(text, message_id=text[0]) for text in ("a1", "b1", "a2", "c1", "b2")))

    assert texts(bus.take(queue, 3)) == ["a1", "b1", "c1"]
    assert bus.peek(queue) == []


@pytest.mark.promise("B47", "B48")
@spec("inside batches, for scheduled ones, after completion")
def test_duplicates_are_known_after_completion(bus: Bus, make_queue: Callable[..., str]) -> None:
    queue = make_queue(requires_duplicate_detection=True)
    bus.send(queue, ServiceBusMessage("first", message_id="x"))
    bus.take(queue, 1)

    bus.send(
        queue,
        ServiceBusMessage("second", message_id="x"),
        [ServiceBusMessage("in batch", message_id="x"), ServiceBusMessage("new", message_id="y")],
        [ServiceBusMessage("twin", message_id="z"), ServiceBusMessage("twin again", message_id="z")],
    )
    with bus.sender(queue) as sender:
        due = dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)
        sender.schedule_messages(ServiceBusMessage("scheduled", message_id="x"), due)

    assert texts(bus.peek(queue)) == ["new", "twin"]


@pytest.mark.promise("B49")
@spec("without detection equal ids are stored")
def test_equal_ids_are_kept_without_detection(bus: Bus, queue: str) -> None:
    bus.send(queue, ServiceBusMessage("a", message_id="x"), ServiceBusMessage("b", message_id="x"))

    assert texts(bus.take(queue, 2)) == ["a", "b"]
