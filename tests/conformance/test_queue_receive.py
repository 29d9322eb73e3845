"""Receiving from a queue: both modes, the iterator, prefetch, competing receivers, closing."""

from __future__ import annotations

import datetime as dt
import threading
import time
import uuid
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageState

from tests.conformance.sdk import Bus, numbers, spec, take, texts
from tests.waiting import wait_until

MILLISECOND = dt.timedelta(milliseconds=1)
"""The wire has no smaller times."""
ENDING_SECONDS_MAX = 40
"""Waits that end early must end well before this; the waits themselves are given longer."""


def plain(count: int) -> list[ServiceBusMessage]:
    return [ServiceBusMessage(f"m{i}") for i in range(count)]


@spec("peek-lock: a 16-byte tag, the token in the annotation, locked until")
def test_peek_lock_gives_a_lock(bus: Bus, queue: str) -> None:
    bus.send(queue, *plain(1))

    with bus.receiver(queue) as receiver:
        before = dt.datetime.now(dt.UTC)
        message = take(receiver, 1)[0]
        after = dt.datetime.now(dt.UTC)
        token, locked_until = message.lock_token, message.locked_until_utc
        receiver.complete_message(message)

    assert isinstance(token, uuid.UUID)
    assert message.raw_amqp_message.delivery_annotations[b"x-opt-lock-token"] == token
    minute = dt.timedelta(minutes=1)
    assert before + minute <= locked_until + MILLISECOND
    assert locked_until <= after + minute + MILLISECOND
    assert message.state is ServiceBusMessageState.ACTIVE


@pytest.mark.promise("B32")
@spec("receive-and-delete removes with the delivery")
def test_receive_and_delete_removes_at_once(bus: Bus, queue: str) -> None:
    bus.send(queue, *plain(3))

    with bus.receiver(queue, receive_mode="receiveanddelete") as receiver:
        messages = take(receiver, 3)

        assert texts(messages) == ["m0", "m1", "m2"]
        assert messages[0].lock_token is None
        with pytest.raises(ValueError, match="RECEIVE_AND_DELETE"):
            receiver.complete_message(messages[0])
    assert bus.peek(queue) == []


@pytest.mark.promise("B21")
@spec("the iterator tops up its credit by one and keeps order")
def test_iterator_yields_in_order_and_ends_after_the_wait(bus: Bus, queue: str) -> None:
    bus.send(queue, plain(15))

    seen: list[Any] = []
    with bus.receiver(queue, max_wait_time=1) as receiver:
        while (
            len(seen) < 15
        ):  # a second of silence ends it, so on a busy machine it may have to be asked again
            for message in receiver:
                seen.append(message)
                receiver.complete_message(message)

    assert texts(seen) == [f"m{i}" for i in range(15)]
    assert numbers(seen) == list(range(1, 16))


@pytest.mark.parametrize("prefetch", [1, 10, 100])
@spec("prefetch grants its credit at attach and tops it up")
def test_prefetching_receiver_gets_everything_once(bus: Bus, queue: str, prefetch: int) -> None:
    bus.send(queue, plain(60))

    seen: list[Any] = []
    with bus.receiver(queue, prefetch_count=prefetch) as receiver:
        while len(seen) < 60:
            for message in take(receiver, min(20, 60 - len(seen))):
                receiver.complete_message(message)
                seen.append(message)

    assert texts(seen) == [f"m{i}" for i in range(60)]
    assert bus.peek(queue) == []


@pytest.mark.promise("B35")
@spec("no more deliveries than credit")
def test_receive_brings_no_more_than_asked(bus: Bus, queue: str) -> None:
    bus.send(queue, plain(10))

    with bus.receiver(queue) as receiver:
        first = take(receiver, 4)
        other = bus.take(queue, 6)
        for message in first:
            receiver.complete_message(message)

    assert texts(first) == ["m0", "m1", "m2", "m3"]
    assert texts(other) == [f"m{i}" for i in range(4, 10)]


@spec("a burst arrives back to back, within the 0.2 s after the first")
def test_one_call_brings_the_whole_burst(bus: Bus, queue: str) -> None:
    def comes_whole() -> bool:
        bus.send(queue, plain(50))
        with bus.receiver(queue) as receiver:
            messages = receiver.receive_messages(50, max_wait_time=30)
            for message in messages:
                receiver.complete_message(message)
            for message in take(receiver, 50 - len(messages)):
                receiver.complete_message(message)
        return len(messages) == 50

    # A machine that is busy for 0.2 s at the wrong moment is no slow broker.
    assert wait_until(comes_whole)


@spec("an empty queue answers with nothing after the wait", source="azure-servicebus receive_messages")
def test_empty_queue_returns_nothing_after_the_wait(bus: Bus, queue: str) -> None:
    with bus.receiver(queue) as receiver:
        start = time.monotonic()
        assert receiver.receive_messages(1, max_wait_time=0.6) == []
        assert 0.4 < time.monotonic() - start < ENDING_SECONDS_MAX


@spec("credit waits at the broker: a message is pushed when it comes")
def test_waiting_receiver_gets_a_message_as_it_arrives(bus: Bus, queue: str) -> None:
    other = Bus("sync", bus.endpoint)
    with other.sender(queue) as sender, bus.receiver(queue) as receiver:
        sender.create_message_batch()
        threading.Timer(0.5, sender.send_messages, [ServiceBusMessage("late")]).start()
        start = time.monotonic()
        message = receiver.receive_messages(1, max_wait_time=ENDING_SECONDS_MAX + 20)[0]
        receiver.complete_message(message)

        assert time.monotonic() - start < ENDING_SECONDS_MAX
    other.close()


@pytest.mark.promise("B25")
@spec("competing receivers get the next unlocked message")
def test_competing_receivers_share_without_overlap(bus: Bus, queue: str) -> None:
    bus.send(queue, plain(20))

    with bus.receiver(queue) as one, bus.receiver(queue) as two:
        first, second = take(one, 10), take(two, 10)
        for receiver, messages in ((one, first), (two, second)):
            for message in messages:
                receiver.complete_message(message)

    assert sorted(numbers(first) + numbers(second)) == list(range(1, 21))
    assert bus.peek(queue) == []


@pytest.mark.promise("B29")
@spec("closing releases without raising the delivery count")
def test_closing_a_prefetching_receiver_gives_everything_back(bus: Bus, queue: str) -> None:
    bus.send(queue, plain(10))
    with bus.receiver(queue, prefetch_count=20) as receiver:
        kept = take(receiver, 1)[0]
        receiver.complete_message(kept)

    messages = bus.take(queue, 9)

    assert texts(messages) == [f"m{i}" for i in range(1, 10)]
    assert {m.delivery_count for m in messages} == {0}


@spec("a message outside a call is released by the keep-alive and comes again")
def test_message_for_stale_credit_is_released_and_delivered_later(bus: Bus, queue: str) -> None:
    with bus.receiver(queue) as receiver:
        assert receiver.receive_messages(5, max_wait_time=0.5) == []
        bus.send(queue, *plain(1))

        messages = take(receiver, 1)

        assert messages[0].delivery_count == 0
        receiver.complete_message(messages[0])
    assert bus.peek(queue) == []


@pytest.mark.promise("B26")
@spec("a message held by a closed receiver stays locked; its lock is its own")
def test_lock_survives_the_link_that_got_it(bus: Bus, queue: str) -> None:
    bus.send(queue, *plain(2))
    with bus.receiver(queue) as receiver:
        held = take(receiver, 1)[0]

    with bus.receiver(queue) as other:
        assert texts(take(other, 1)) == ["m1"]
        assert other.receive_messages(1, max_wait_time=0.4) == []
        other.complete_message(held)
    assert texts(bus.peek(queue)) == ["m1"]


@spec("a client may name its links")
def test_client_identifier_is_accepted(bus: Bus, queue: str) -> None:
    with bus.sender(queue, client_identifier="my-sender") as sender:
        sender.send_messages(ServiceBusMessage("x"))
    with bus.receiver(queue, client_identifier="my-receiver") as receiver:
        message = take(receiver, 1)[0]
        receiver.complete_message(message)

    assert receiver.client_identifier == "my-receiver"


@spec("the transfer dead-letter queue can be received from")
def test_transfer_dead_letter_queue_is_there_and_empty(bus: Bus, queue: str) -> None:
    with bus.receiver(queue, sub_queue="transferdeadletter") as receiver:
        assert receiver.receive_messages(1, max_wait_time=0.3) == []
        assert receiver.peek_messages(1) == []


@spec("ten receivers open ten connections")
def test_many_receivers_at_once(bus: Bus, queue: str) -> None:
    receivers = [bus.receiver(queue) for _ in range(10)]
    for receiver in receivers:
        receiver.__enter__()
    bus.send(queue, plain(10))

    messages = [take(receiver, 1)[0] for receiver in receivers]
    for receiver, message in zip(receivers, messages, strict=True):
        receiver.complete_message(message)
        receiver.close()

    assert sorted(numbers(messages)) == list(range(1, 11))
    assert wait_until(lambda: bus.peek(queue) == [])


@pytest.mark.filterwarnings("ignore:The `message` property is deprecated:DeprecationWarning")
@pytest.mark.parametrize(
    ("mode", "size", "annotations"),
    [
        ("receiveanddelete", 263, {b"x-opt-enqueued-time", b"x-opt-sequence-number", b"x-opt-partition-key"}),
        (
            "peeklock",
            333,
            {
                b"x-opt-enqueued-time",
                b"x-opt-sequence-number",
                b"x-opt-partition-key",
                b"x-opt-locked-until",
            },
        ),
    ],
)
@spec(
    "what the broker adds to a message, counted in bytes by the client",
    source="azure-servicebus TestServiceBusMessageBackcompat",
)
def test_received_message_is_as_large_as_the_services(
    bus: Bus, queue: str, mode: str, size: int, annotations: set[bytes]
) -> None:
    bus.send(
        queue,
        ServiceBusMessage(
            "hello",
            application_properties={"prop": "test"},
            session_id="id_session",
            message_id="id_message",
            time_to_live=dt.timedelta(seconds=30),
            content_type="content type",
            correlation_id="correlation",
            subject="github",
            partition_key="id_session",
            to="forward to",
            reply_to="reply to",
            reply_to_session_id="reply to session",
        ),
    )
    with bus.receiver(queue, receive_mode=mode) as receiver:
        (message,) = take(receiver, 1)
        raw = message.raw_amqp_message
        assert message.message.get_message_encoded_size() == size
        assert set(raw.annotations) == annotations
        assert set(raw.delivery_annotations) == ({b"x-opt-lock-token"} if mode == "peeklock" else set())
