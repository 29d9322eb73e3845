"""Settling: complete, abandon, defer, dead-letter, on the link and through ``$management``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageState
from azure.servicebus.exceptions import MessageAlreadySettled, MessageNotFoundError, ServiceBusError

from tests.conformance.sdk import Bus, numbers, spec, take, texts


@pytest.fixture(params=["link", "management"])
def settle(request: pytest.FixtureRequest, bus: Bus, queue: str) -> Callable[..., Any]:
    """Receive one message and settle it, either on its own link or from a second receiver.

    The client settles on the link that delivered a message; from any other receiver it goes through the
    management link.
    """

    def run(operation: str, **details: Any) -> Any:
        with bus.receiver(queue) as first:
            message = take(first, 1)[0]
            if request.param == "link":
                getattr(first, operation)(message, **details)
                return message
        with bus.receiver(queue) as second:
            getattr(second, operation)(message, **details)
        return message

    return run


@pytest.mark.promise("B5")
@spec("accepted / completed deletes")
def test_completed_message_is_gone(bus: Bus, queue: str, settle: Callable[..., Any]) -> None:
    bus.send(queue, ServiceBusMessage("a"), ServiceBusMessage("b"))

    settle("complete_message")

    assert texts(bus.peek(queue)) == ["b"]
    assert texts(bus.take(queue, 1)) == ["b"]


@spec("abandon: back to its place, delivery count +1")
def test_abandoned_message_returns_first_with_a_higher_count(
    bus: Bus, queue: str, settle: Callable[..., Any]
) -> None:
    bus.send(queue, ServiceBusMessage("a"), ServiceBusMessage("b"))

    first = settle("abandon_message")

    again = bus.take(queue, 2)
    assert texts(again) == ["a", "b"]
    assert [m.delivery_count for m in again] == [1, 0]
    assert again[0].sequence_number == first.sequence_number


@pytest.mark.promise("B34")
@spec("defer: only by sequence number, state 1, visible to peek")
def test_deferred_message_is_reached_by_its_number_only(
    bus: Bus, queue: str, settle: Callable[..., Any]
) -> None:
    bus.send(queue, ServiceBusMessage("a"), ServiceBusMessage("b"))

    deferred = settle("defer_message")

    assert texts(bus.take(queue, 1)) == ["b"]
    assert [(str(m), m.state) for m in bus.peek(queue)] == [("a", ServiceBusMessageState.DEFERRED)]
    with bus.receiver(queue) as receiver:
        assert receiver.receive_messages(1, max_wait_time=0.3) == []
        again = receiver.receive_deferred_messages(deferred.sequence_number)
        assert [(str(m), m.state, m.sequence_number) for m in again] == [
            ("a", ServiceBusMessageState.DEFERRED, deferred.sequence_number)
        ]
        assert again[0].lock_token
        assert again[0].locked_until_utc
        assert again[0].delivery_count == 1
        receiver.complete_message(again[0])
    assert bus.peek(queue) == []


@pytest.mark.promise("B39")
@spec("dead-letter: reason and description as properties")
def test_dead_lettered_message_keeps_its_content(bus: Bus, queue: str, settle: Callable[..., Any]) -> None:
    sent = ServiceBusMessage("a", message_id="id", subject="s", application_properties={"p": "v"})
    bus.send(queue, sent)

    original = settle("dead_letter_message", reason="broken", error_description="could not parse")

    assert bus.peek(queue) == []
    dead = bus.take(queue, 1, sub_queue="deadletter")[0]
    assert (str(dead), dead.message_id, dead.subject) == ("a", "id", "s")
    assert (dead.dead_letter_reason, dead.dead_letter_error_description) == ("broken", "could not parse")
    assert dead.application_properties[b"p"] == b"v"
    assert (dead.sequence_number, dead.enqueued_time_utc) == (
        original.sequence_number,
        original.enqueued_time_utc,
    )
    assert dead.delivery_count == 0


@spec("empty strings for unset dead-letter details are unset")
def test_dead_letter_without_reason(bus: Bus, queue: str, settle: Callable[..., Any]) -> None:
    bus.send(queue, ServiceBusMessage("a"))

    settle("dead_letter_message")

    dead = bus.take(queue, 1, sub_queue="deadletter")[0]
    assert (dead.dead_letter_reason, dead.dead_letter_error_description) == (None, None)


@pytest.mark.promise("B40")
@spec("a dead letter can be abandoned, deferred and completed")
def test_dead_letter_queue_settles_like_any_queue(bus: Bus, queue: str) -> None:
    bus.send(queue, *(ServiceBusMessage(text) for text in ("a", "b", "c")))
    with bus.receiver(queue) as receiver:
        for message in take(receiver, 3):
            receiver.dead_letter_message(message, reason="r")

    with bus.receiver(queue, sub_queue="deadletter") as receiver:
        a, b, c = take(receiver, 3)
        receiver.abandon_message(a)
        receiver.complete_message(b)
        receiver.defer_message(c)
        again = take(receiver, 1)[0]
        assert (str(again), again.delivery_count) == ("a", 0)
        receiver.complete_message(again)
        deferred = receiver.receive_deferred_messages([c.sequence_number])
        assert deferred[0].delivery_count == 0
        receiver.complete_message(deferred[0])
        assert receiver.peek_messages(10, sequence_number=1) == []


@pytest.mark.promise("B40")
@spec("dead-lettering inside a dead-letter queue is refused")
def test_dead_letter_cannot_be_dead_lettered_again(bus: Bus, queue: str) -> None:
    bus.send(queue, ServiceBusMessage("a"))
    with bus.receiver(queue) as receiver:
        receiver.dead_letter_message(take(receiver, 1)[0])

    with bus.receiver(queue, sub_queue="deadletter") as receiver:
        message = take(receiver, 1)[0]
        with pytest.raises(ServiceBusError):
            receiver.dead_letter_message(message)

    assert texts(bus.peek(queue, sub_queue="deadletter")) == ["a"]


@pytest.mark.promise("B30")
@spec("the last abandon moves it to the dead-letter queue, once")
def test_max_delivery_count_dead_letters(bus: Bus, make_queue: Callable[..., str]) -> None:
    queue = make_queue(max_delivery_count=3)
    bus.send(queue, ServiceBusMessage("poison"), ServiceBusMessage("next"))

    counts = []
    with bus.receiver(queue) as receiver:
        for _ in range(3):
            message = take(receiver, 1)[0]
            counts.append((str(message), message.delivery_count))
            receiver.abandon_message(message)
        assert texts(take(receiver, 1)) == ["next"]

    assert counts == [("poison", 0), ("poison", 1), ("poison", 2)]
    dead = bus.take(queue, 1, sub_queue="deadletter")[0]
    assert (str(dead), dead.dead_letter_reason) == ("poison", "MaxDeliveryCountExceeded")
    assert dead.dead_letter_error_description


@spec("abandoned messages are seen again before younger ones, in order")
def test_order_after_abandoning_in_reverse(bus: Bus, queue: str) -> None:
    bus.send(queue, *(ServiceBusMessage(str(i)) for i in range(5)))
    with bus.receiver(queue) as receiver:
        for message in reversed(take(receiver, 3)):
            receiver.abandon_message(message)

    assert texts(bus.take(queue, 5)) == ["0", "1", "2", "3", "4"]


@spec("messages of one link may be settled in any order")
def test_settlement_in_any_order_on_one_link(bus: Bus, queue: str) -> None:
    bus.send(queue, [ServiceBusMessage(str(i)) for i in range(12)])

    with bus.receiver(queue) as receiver:
        messages = take(receiver, 12)
        for place, message in enumerate(reversed(messages)):
            settle = (receiver.complete_message, receiver.abandon_message, receiver.dead_letter_message)[
                place % 3
            ]
            settle(message)

    assert sorted(texts(bus.take(queue, 4))) == ["1", "10", "4", "7"]
    assert sorted(texts(bus.take(queue, 4, sub_queue="deadletter"))) == ["0", "3", "6", "9"]


@spec(
    "a second settlement is refused by the client",
    source="azure-servicebus receiver_mixins._check_message_alive",
)
def test_settling_twice_is_refused(bus: Bus, queue: str) -> None:
    bus.send(queue, ServiceBusMessage("a"))

    with bus.receiver(queue) as receiver:
        message = take(receiver, 1)[0]
        receiver.complete_message(message)
        with pytest.raises(MessageAlreadySettled):
            receiver.complete_message(message)


@spec("several deferred at once, each with a lock of its own")
def test_several_deferred_messages_at_once(bus: Bus, queue: str) -> None:
    bus.send(queue, *(ServiceBusMessage(str(i)) for i in range(4)))
    with bus.receiver(queue) as receiver:
        for message in take(receiver, 4):
            receiver.defer_message(message)

        again = receiver.receive_deferred_messages([3, 1])
        assert sorted(texts(again)) == ["0", "2"]
        assert len({m.lock_token for m in again}) == 2
        by_text = {str(m): m for m in again}
        receiver.dead_letter_message(by_text["0"], reason="late", error_description="very")
        receiver.abandon_message(by_text["2"])

    assert [(str(m), m.state.value) for m in bus.peek(queue)] == [("1", 1), ("2", 1), ("3", 1)]
    dead = bus.take(queue, 1, sub_queue="deadletter")[0]
    assert (str(dead), dead.dead_letter_reason, dead.dead_letter_error_description) == ("0", "late", "very")


@spec("abandoning a deferred message leaves it deferred; defer again as well")
def test_deferred_message_stays_deferred_after_abandon_and_defer(bus: Bus, queue: str) -> None:
    bus.send(queue, ServiceBusMessage("a"))
    with bus.receiver(queue) as receiver:
        receiver.defer_message(take(receiver, 1)[0])

        receiver.abandon_message(receiver.receive_deferred_messages(1)[0])
        receiver.defer_message(receiver.receive_deferred_messages(1)[0])

        message = receiver.receive_deferred_messages(1)[0]
        assert message.state is ServiceBusMessageState.DEFERRED
        receiver.complete_message(message)
    assert bus.peek(queue) == []


@spec("receiver-settle-mode 0 deletes a deferred message with the answer")
def test_deferred_message_can_be_received_and_deleted(bus: Bus, queue: str) -> None:
    bus.send(queue, ServiceBusMessage("a"))
    with bus.receiver(queue) as receiver:
        receiver.defer_message(take(receiver, 1)[0])

    with bus.receiver(queue, receive_mode="receiveanddelete") as receiver:
        assert texts(receiver.receive_deferred_messages([1])) == ["a"]

    assert bus.peek(queue) == []


@spec("any number missing or locked: message-not-found, and nothing is locked")
def test_missing_deferred_message_is_not_found(bus: Bus, queue: str) -> None:
    bus.send(queue, ServiceBusMessage("a"), ServiceBusMessage("b"))
    with bus.receiver(queue) as receiver:
        receiver.defer_message(take(receiver, 1)[0])

        for wanted in ([99], [1, 99], [2]):
            with pytest.raises(MessageNotFoundError):
                receiver.receive_deferred_messages(wanted)

        first = receiver.receive_deferred_messages([1])
        with pytest.raises(MessageNotFoundError):
            receiver.receive_deferred_messages([1])
        receiver.complete_message(first[0])


@spec("no numbers, no request", source="azure-servicebus receive_deferred_messages")
def test_no_deferred_numbers_gives_nothing(bus: Bus, queue: str) -> None:
    with bus.receiver(queue) as receiver:
        assert receiver.receive_deferred_messages([]) == []


@spec("a peeked message has no lock to settle")
def test_peeked_message_cannot_be_settled(bus: Bus, queue: str) -> None:
    bus.send(queue, ServiceBusMessage("a"))

    with bus.receiver(queue) as receiver:
        message = receiver.peek_messages(1)[0]
        with pytest.raises(ValueError, match="peeked"):
            receiver.complete_message(message)

    assert numbers(bus.peek(queue)) == [1]
