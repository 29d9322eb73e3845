"""Browsing: peek shows everything that is stored and changes nothing."""

from __future__ import annotations

import datetime as dt

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageState

from tests.conformance.sdk import Bus, numbers, spec, take, texts


@spec("in sequence order, from last seen + 1")
def test_peek_goes_on_from_the_last_seen(bus: Bus, queue: str) -> None:
    bus.send(queue, [ServiceBusMessage(str(i)) for i in range(7)])

    with bus.receiver(queue) as receiver:
        first = receiver.peek_messages(3)
        second = receiver.peek_messages(10)
        assert receiver.peek_messages(1) == []

    assert numbers(first) == [1, 2, 3]
    assert numbers(second) == [4, 5, 6, 7]


@spec("from a number, inclusive; a gap is no obstacle")
def test_peek_from_a_sequence_number(bus: Bus, queue: str) -> None:
    bus.send(queue, [ServiceBusMessage(str(i)) for i in range(5)])
    bus.take(queue, 2)

    with bus.receiver(queue) as receiver:
        assert numbers(receiver.peek_messages(10, sequence_number=4)) == [4, 5]
        assert numbers(receiver.peek_messages(10, sequence_number=1)) == [3, 4, 5]
        assert numbers(receiver.peek_messages(1, sequence_number=99)) == []


@pytest.mark.promise("B33")
@spec("active, locked, deferred, scheduled; nothing changes")
def test_peek_sees_every_state_and_changes_none(bus: Bus, queue: str) -> None:
    later = dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)
    bus.send(queue, *(ServiceBusMessage(text) for text in ("locked", "deferred", "active")))
    with bus.sender(queue) as sender:
        sender.schedule_messages(ServiceBusMessage("scheduled"), later)

    with bus.receiver(queue) as receiver:
        locked, deferred = take(receiver, 2)
        receiver.defer_message(deferred)
        seen = [bus.peek(queue) for _ in range(3)][-1]
        assert [(str(m), m.state) for m in seen] == [
            ("locked", ServiceBusMessageState.ACTIVE),
            ("deferred", ServiceBusMessageState.DEFERRED),
            ("active", ServiceBusMessageState.ACTIVE),
            ("scheduled", ServiceBusMessageState.SCHEDULED),
        ]
        assert {m.lock_token for m in seen} == {None}
        assert seen[0].delivery_count == 0
        receiver.complete_message(locked)

    active = bus.take(queue, 1)[0]
    assert (str(active), active.delivery_count) == ("active", 0)


@spec("a peeked message carries all it was sent with")
def test_peeked_message_is_complete(bus: Bus, queue: str) -> None:
    bus.send(queue, ServiceBusMessage("b", subject="s", application_properties={"p": 1}, message_id="id"))

    message = bus.peek(queue, 1)[0]

    assert (str(message), message.subject, message.application_properties) == ("b", "s", {b"p": 1})
    assert (message.message_id, message.sequence_number) == ("id", 1)
    assert message.enqueued_time_utc


@spec("dead-letter queues can be browsed")
def test_dead_letters_can_be_peeked(bus: Bus, queue: str) -> None:
    bus.send(queue, ServiceBusMessage("a"), ServiceBusMessage("b"))
    with bus.receiver(queue) as receiver:
        for message in take(receiver, 2):
            receiver.dead_letter_message(message, reason=f"no {message}")

    dead = bus.peek(queue, sub_queue="deadletter")

    assert [(str(m), m.dead_letter_reason) for m in dead] == [("a", "no a"), ("b", "no b")]


@spec("the count is a wish; going on reaches everything")
def test_peek_reaches_everything_in_pages(bus: Bus, queue: str) -> None:
    with bus.sender(queue) as sender:
        for start in range(0, 600, 100):
            sender.send_messages([ServiceBusMessage(str(i)) for i in range(start, start + 100)])

    seen: list[str] = []
    with bus.receiver(queue) as receiver:
        while page := receiver.peek_messages(400):
            seen += texts(page)

    assert seen == [str(i) for i in range(600)]
