"""Scheduled messages: accepted now, delivered later, cancelled in between."""

from __future__ import annotations

import datetime as dt

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageState
from azure.servicebus.exceptions import MessageNotFoundError

from tests.conformance.sdk import Bus, numbers, spec, texts


def in_seconds(seconds: float) -> dt.datetime:
    return dt.datetime.now(dt.UTC) + dt.timedelta(seconds=seconds)


@pytest.mark.promise("B24", "B44")
@spec("not before its time; a new number at the tail")
def test_scheduled_message_arrives_at_its_time_with_a_new_number(bus: Bus, queue: str) -> None:
    with bus.sender(queue) as sender:
        due = in_seconds(5)  # both are there before, on a busy machine too
        given = sender.schedule_messages(ServiceBusMessage("later"), due)
        sender.send_messages(ServiceBusMessage("now"))

    first, second = bus.take(queue, 2)

    assert texts([first, second]) == ["now", "later"]
    assert given == [1]
    assert second.sequence_number > first.sequence_number > given[0]
    assert second.enqueued_time_utc >= due - dt.timedelta(milliseconds=1)
    assert dt.datetime.now(dt.UTC) >= due
    assert abs(second.scheduled_enqueue_time_utc - due) < dt.timedelta(milliseconds=1)
    assert (first.state, second.state) == (ServiceBusMessageState.ACTIVE, ServiceBusMessageState.SCHEDULED)


@spec("one number per message, in order")
def test_several_messages_are_scheduled_in_one_request(bus: Bus, queue: str) -> None:
    with bus.sender(queue) as sender:
        given = sender.schedule_messages([ServiceBusMessage(str(i)) for i in range(5)], in_seconds(3600))

    seen = bus.peek(queue)
    assert numbers(seen) == given == [1, 2, 3, 4, 5]
    assert {m.state for m in seen} == {ServiceBusMessageState.SCHEDULED}


@spec("the annotation on an ordinary sender schedules too")
def test_message_with_a_scheduled_time_waits(bus: Bus, queue: str) -> None:
    bus.send(queue, ServiceBusMessage("later", scheduled_enqueue_time_utc=in_seconds(3600)))

    seen = bus.peek(queue)[0]

    assert seen.state is ServiceBusMessageState.SCHEDULED
    with bus.receiver(queue) as receiver:
        assert receiver.receive_messages(1, max_wait_time=0.3) == []


@pytest.mark.promise("B46")
@spec("a cancelled message is never delivered")
def test_cancelled_message_never_arrives(bus: Bus, queue: str) -> None:
    with bus.sender(queue) as sender:
        given = sender.schedule_messages([ServiceBusMessage(text) for text in "abc"], in_seconds(5))
        sender.cancel_scheduled_messages(given[0])
        sender.cancel_scheduled_messages([given[2]])

    assert texts(bus.take(queue, 1)) == ["b"]
    assert bus.peek(queue) == []


@pytest.mark.promise("B46")
@spec("unknown, cancelled or activated: not found")
def test_cancelling_what_is_not_scheduled_is_not_found(bus: Bus, queue: str) -> None:
    with bus.sender(queue) as sender:
        given = sender.schedule_messages(ServiceBusMessage("x"), in_seconds(3600))
        sender.cancel_scheduled_messages(given)

        for number in (given[0], 4711):
            with pytest.raises(MessageNotFoundError):
                sender.cancel_scheduled_messages(number)


@spec("a time in the past: at once")
def test_time_in_the_past_enqueues_at_once(bus: Bus, queue: str) -> None:
    with bus.sender(queue) as sender:
        sender.schedule_messages(ServiceBusMessage("past"), in_seconds(-60))

    assert texts(bus.take(queue, 1)) == ["past"]


@spec("all properties of a scheduled message survive")
def test_scheduled_message_keeps_its_properties(bus: Bus, queue: str) -> None:
    message = ServiceBusMessage(
        "x", message_id="id", subject="s", application_properties={"p": 1}, time_to_live=dt.timedelta(hours=1)
    )
    with bus.sender(queue) as sender:
        sender.schedule_messages(message, in_seconds(0.3))

    received = bus.take(queue, 1)[0]

    assert (received.message_id, received.subject, received.application_properties) == ("id", "s", {b"p": 1})
    assert received.time_to_live == dt.timedelta(hours=1)
    assert received.state is ServiceBusMessageState.SCHEDULED


@spec("a scheduled message for a session waits for its session")
def test_scheduled_message_keeps_its_session(bus: Bus, session_queue: str) -> None:
    with bus.sender(session_queue) as sender:
        sender.schedule_messages(ServiceBusMessage("x", session_id="s1"), in_seconds(0.3))

    received = bus.take(session_queue, 1, session_id="s1")[0]

    assert (str(received), received.session_id) == ("x", "s1")
