"""Sending to a queue: every form the client offers, and what comes out at the other end."""

from __future__ import annotations

import datetime as dt
import time
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.amqp import (
    AmqpAnnotatedMessage,
    AmqpMessageBodyType,
    AmqpMessageHeader,
    AmqpMessageProperties,
)
from azure.servicebus.exceptions import MessageSizeExceededError, ServiceBusError

from tests.conformance.sdk import Bus, numbers, spec, take, texts

KIB = 1024
SIZE_LIMIT = 256 * KIB


@pytest.mark.parametrize(
    "body", ["text", b"\x00\xff raw", "", "naïve ☃"], ids=["str", "bytes", "empty", "unicode"]
)
@spec("the body comes back as it was sent")
def test_single_message_keeps_its_body(bus: Bus, queue: str, body: str | bytes) -> None:
    bus.send(queue, ServiceBusMessage(body))

    message = bus.take(queue, 1)[0]

    assert b"".join(message.body) == (body.encode() if isinstance(body, str) else body)


@spec("message-format 0x80013700: a list travels as one transfer")
def test_list_of_messages_arrives_whole_and_in_order(bus: Bus, queue: str) -> None:
    with bus.sender(queue) as sender:
        sender.send_messages([ServiceBusMessage(f"m{i}") for i in range(20)])

    assert texts(bus.take(queue, 20)) == [f"m{i}" for i in range(20)]


@spec("one inner message in a batch is allowed; each keeps its own properties")
def test_batch_object_keeps_each_message_apart(bus: Bus, queue: str) -> None:
    with bus.sender(queue) as sender:
        batch = sender.create_message_batch()
        batch.add_message(ServiceBusMessage("a", subject="first", application_properties={"n": 1}))
        batch.add_message(AmqpAnnotatedMessage(value_body={"k": 2}))
        batch.add_message({"body": "c", "message_id": "third"})
        sender.send_messages(batch)
        single = sender.create_message_batch()
        single.add_message(ServiceBusMessage("alone"))
        sender.send_messages(single)

    first, second, third, alone = bus.take(queue, 4)
    assert (str(first), first.subject, first.application_properties) == ("a", "first", {b"n": 1})
    assert second.raw_amqp_message.body == {b"k": 2}
    assert (str(third), third.message_id) == ("c", "third")
    assert str(alone) == "alone"


@spec("an empty list or batch is not sent", source="azure-servicebus _servicebus_sender.send_messages")
def test_empty_batch_sends_nothing(bus: Bus, queue: str) -> None:
    with bus.sender(queue) as sender:
        sender.send_messages([])
        sender.send_messages(sender.create_message_batch())

    assert bus.peek(queue) == []


@spec("max-message-size below 1 MiB gives a batch limit of 256 KiB")
def test_batch_size_is_negotiated_from_the_link(bus: Bus, queue: str) -> None:
    with bus.sender(queue) as sender:
        assert sender.create_message_batch().max_size_in_bytes == SIZE_LIMIT
        assert sender.create_message_batch(1000).max_size_in_bytes == 1000
        with pytest.raises(ValueError, match="too large"):
            sender.create_message_batch(SIZE_LIMIT + 1)


@pytest.mark.parametrize("options", [{}, {"session_id": "s" * 128}, {"partition_key": "p" * 128}])
@spec(
    "a batch that is full to the last byte by the client's own count can be sent",
    source="azure-servicebus ServiceBusMessageBatch.add_message",
)
def test_batch_that_is_full_to_the_last_byte_is_accepted(
    bus: Bus, queue: str, options: dict[str, Any]
) -> None:
    with bus.sender(queue) as sender:
        batch = sender.create_message_batch()
        size = 60 * KIB
        while size:
            try:
                batch.add_message(ServiceBusMessage(b"x" * size, **options))
            except MessageSizeExceededError:
                size -= 1 + size // 3
        assert batch.size_in_bytes > SIZE_LIMIT - 300
        sender.send_messages(batch)

    assert bus.peek(queue)


@spec(
    "a received message can be sent again as it is", source="azure-servicebus ServiceBusSender.send_messages"
)
def test_received_message_with_a_partition_key_can_be_sent_again(bus: Bus, queue: str) -> None:
    with bus.sender(queue) as sender:
        sender.send_messages(
            ServiceBusMessage(
                "x", session_id="s", partition_key="s", subject="l", application_properties={"a": "b"}
            )
        )
        for _ in range(2):
            sender.send_messages(bus.take(queue, 1)[0])
    (last,) = bus.take(queue, 1)

    assert (last.session_id, last.partition_key, last.subject) == ("s", "s", "l")
    assert last.application_properties == {b"a": b"b"}


@spec(
    "a full batch refuses one more and can still be sent",
    source="azure-servicebus ServiceBusMessageBatch.add_message",
)
def test_full_batch_is_accepted(bus: Bus, queue: str) -> None:
    with bus.sender(queue) as sender:
        batch = sender.create_message_batch()
        for _ in range(25):
            batch.add_message(ServiceBusMessage(b"x" * 10 * KIB))
        with pytest.raises(MessageSizeExceededError):
            batch.add_message(ServiceBusMessage(b"x" * 10 * KIB))
        sender.send_messages(batch)

    assert len(bus.take(queue, 25)) == len(batch)


@pytest.mark.promise("B13")
@spec("one bad inner message rejects the whole transfer")
def test_batch_with_one_refused_message_stores_none(bus: Bus, session_queue: str) -> None:
    good, bad = ServiceBusMessage("good", session_id="s"), ServiceBusMessage("no session")

    with bus.sender(session_queue) as sender, pytest.raises(ServiceBusError):
        sender.send_messages([good, bad, good])

    assert bus.peek(session_queue, session_id="s") == []


@spec("the application's names of the properties sections")
def test_every_property_of_a_message_round_trips(bus: Bus, queue: str) -> None:
    sent: dict[str, Any] = {
        "message_id": "id-1",
        "session_id": "session-1",
        "content_type": "application/json",
        "correlation_id": "correlation-1",
        "subject": "subject-1",
        "partition_key": "session-1",
        "to": "to-1",
        "reply_to": "reply-1",
        "reply_to_session_id": "reply-session-1",
        "time_to_live": dt.timedelta(minutes=5),
    }
    bus.send(queue, ServiceBusMessage("body", **sent))

    message = bus.take(queue, 1)[0]

    assert {name: getattr(message, name) for name in sent} == sent
    assert message.expires_at_utc == message.enqueued_time_utc + dt.timedelta(minutes=5)


@spec("properties keep their exact type")
def test_application_property_types_round_trip(bus: Bus, queue: str) -> None:
    moment = dt.datetime(2026, 3, 4, 5, 6, 7, 89000, tzinfo=dt.UTC)
    sent: dict[str | bytes, Any] = {
        "text": "naïve ☃",
        "empty": "",
        "int": 7,
        "negative": -5,
        "large": 2**31 - 1,
        "float": 2.5,
        "yes": True,
        "no": False,
        "raw": b"\x00\x01",
        "uuid": uuid.UUID(int=5),
        "nothing": None,
        "time": moment,
    }
    bus.send(queue, ServiceBusMessage("body", application_properties=sent))

    received = bus.take(queue, 1)[0].application_properties

    expected = {
        key.encode(): value.encode() if isinstance(value, str) else value
        for key, value in sent.items()
        if isinstance(key, str)
    }
    expected[b"time"] = int(moment.timestamp() * 1000)
    assert received == expected
    assert [type(received[key]) for key in (b"yes", b"int", b"float")] == [bool, int, float]


@pytest.mark.parametrize(
    ("kind", "body", "expected"),
    [
        ("data_body", [b"one", b"two", b""], [b"one", b"two", b""]),
        ("data_body", b"bytes", [b"bytes"]),
        ("sequence_body", [[1, "two", b"three"], [None, True]], [[1, b"two", b"three"], [None, True]]),
        ("value_body", "text", b"text"),
        ("value_body", 123, 123),
        ("value_body", 1.5, 1.5),
        ("value_body", True, True),
        ("value_body", {"a": [1, {"b": None}]}, {b"a": [1, {b"b": None}]}),
        ("value_body", uuid.UUID(int=9), uuid.UUID(int=9)),
    ],
)
@spec("body kinds data, amqp-sequence and amqp-value return unchanged")
def test_annotated_message_keeps_its_body_kind(
    bus: Bus, queue: str, kind: str, body: Any, expected: Any
) -> None:
    bus.send(queue, AmqpAnnotatedMessage(**{kind: body}))

    message = bus.take(queue, 1)[0].raw_amqp_message

    received = message.body if kind == "value_body" else list(message.body)
    assert received == expected
    assert message.body_type is AmqpMessageBodyType[kind.removesuffix("_body").upper()]


@spec("body=None: no body section at all, and so on delivery")
def test_message_without_body_stays_without(bus: Bus, queue: str) -> None:
    bus.send(queue, ServiceBusMessage(None, subject="only properties"))

    message = bus.take(queue, 1)[0]

    assert message.body is None
    assert message.subject == "only properties"


@spec("a message has a body; the client sends an empty value as no section at all", source="AMQP 1.0 §3.2")
def test_message_without_sections_is_refused(bus: Bus, queue: str) -> None:
    with pytest.raises(ServiceBusError, match="amqp:decode-error"):
        bus.send(queue, AmqpAnnotatedMessage(value_body=None))

    assert bus.peek(queue) == []


@spec("unknown annotations, delivery-annotations, footer and header come back")
def test_every_section_of_an_annotated_message_round_trips(bus: Bus, queue: str) -> None:
    created = int(time.time() * 1000)
    bus.send(
        queue,
        AmqpAnnotatedMessage(
            data_body=b"body",
            header=AmqpMessageHeader(durable=True, priority=7),
            properties=AmqpMessageProperties(
                user_id=b"me",
                content_encoding="gzip",
                group_sequence=3,
                creation_time=created,
                absolute_expiry_time=created + 60_000,
            ),
            annotations={"x-mine": "kept", "x-number": 4},
            delivery_annotations={"x-delivery": "kept too"},
            footer={"x-foot": "at the end"},
        ),
    )

    message = bus.take(queue, 1)[0].raw_amqp_message

    assert (message.header.durable, message.header.priority) == (True, 7)
    assert (message.properties.user_id, message.properties.content_encoding) == (b"me", b"gzip")
    assert message.properties.group_sequence == 3
    assert (message.properties.creation_time, message.properties.absolute_expiry_time) == (
        created,
        created + 60_000,
    )
    assert message.annotations[b"x-mine"] == b"kept"
    assert message.annotations[b"x-number"] == 4
    assert message.delivery_annotations[b"x-delivery"] == b"kept too"
    assert message.footer == {b"x-foot": b"at the end"}


@pytest.mark.parametrize(
    "value", ["text", uuid.UUID(int=77), b"raw", 2**63], ids=["str", "uuid", "binary", "ulong"]
)
@spec("message-id and correlation-id keep the type of the sender")
def test_message_id_keeps_its_type(bus: Bus, queue: str, value: Any) -> None:
    bus.send(
        queue,
        AmqpAnnotatedMessage(
            data_body=b"x", properties=AmqpMessageProperties(message_id=value, correlation_id=value)
        ),
    )

    received = bus.take(queue, 1)[0].raw_amqp_message.properties

    expected = value.encode() if isinstance(value, str) else value
    assert (received.message_id, received.correlation_id) == (expected, expected)


@spec("ttl absent when neither sender nor entity set one; first delivery count 0")
def test_plain_message_has_the_defaults_of_the_service(bus: Bus, queue: str) -> None:
    before = dt.datetime.now(dt.UTC)
    bus.send(queue, ServiceBusMessage("body"))

    message = bus.take(queue, 1)[0]

    assert not message.time_to_live
    assert not message.application_properties
    assert (message.delivery_count, message.state.value) == (0, 0)
    assert not message.enqueued_sequence_number
    assert abs((message.enqueued_time_utc - before).total_seconds()) < 5
    assert (message.dead_letter_reason, message.dead_letter_source, message.session_id) == (None, None, None)


@pytest.mark.promise("B19")
@spec("sequence numbers start at 1 without gaps")
def test_sequence_numbers_count_from_one(bus: Bus, queue: str) -> None:
    bus.send(queue, ServiceBusMessage("a"), [ServiceBusMessage("b"), ServiceBusMessage("c")])

    messages = bus.take(queue, 3)

    assert numbers(messages) == [1, 2, 3]
    assert [m.enqueued_time_utc for m in messages] == sorted(m.enqueued_time_utc for m in messages)


@pytest.mark.promise("B61")
@spec("250 KiB pass, 256 KiB of body fail with MessageSizeExceededError, link stays")
def test_message_over_the_limit_is_refused_and_the_link_lives(bus: Bus, queue: str) -> None:
    with bus.sender(queue) as sender:
        sender.send_messages(ServiceBusMessage(b"x" * 250 * KIB))
        with pytest.raises(MessageSizeExceededError):
            sender.send_messages(ServiceBusMessage(b"x" * SIZE_LIMIT))
        sender.send_messages(ServiceBusMessage(b"after"))

    assert [len(b"".join(m.body)) for m in bus.take(queue, 2)] == [250 * KIB, 5]


@spec("a queue with a larger limit takes larger messages in many frames")
def test_large_messages_cross_in_many_frames_both_ways(bus: Bus, make_queue: Callable[..., str]) -> None:
    queue = make_queue(max_message_size_in_kilobytes=4096)
    body = bytes(range(256)) * (3 * 4 * KIB)
    bus.send(queue, ServiceBusMessage(body), ServiceBusMessage(b"small"))

    with bus.receiver(queue) as receiver:
        large, small = take(receiver, 2)
        receiver.complete_message(large)
        receiver.complete_message(small)

    assert b"".join(large.body) == body
    assert b"".join(small.body) == b"small"
    assert bus.peek(queue) == []


@spec("a received message can be sent again", source="azure-servicebus test_queue_message_properties")
def test_received_message_can_be_sent_again(bus: Bus, queue: str) -> None:
    bus.send(queue, ServiceBusMessage("again", subject="s", application_properties={"p": 1}))
    with bus.receiver(queue) as receiver:
        first = take(receiver, 1)[0]
        bus.send(queue, first)
        receiver.complete_message(first)

    second = bus.take(queue, 1)[0]
    assert (str(second), second.subject, second.application_properties) == ("again", "s", {b"p": 1})
    assert (second.sequence_number, second.delivery_count) == (2, 0)


@spec("addresses match in any letter case, and names may hold slashes")
def test_entity_names_ignore_case_and_may_hold_slashes(bus: Bus, namespace: Any) -> None:
    name = f"Orders/{uuid.uuid4().hex}/Inner"
    namespace.create_queue(name)
    bus.send(name.upper(), ServiceBusMessage("x"))

    assert texts(bus.take(name.lower(), 1)) == ["x"]


@spec("many sends on one link, each with its own answer")
def test_many_sends_on_one_link_keep_their_order(bus: Bus, queue: str) -> None:
    bus.send(queue, *(ServiceBusMessage(str(i)) for i in range(200)))

    messages = bus.take(queue, 200)

    assert texts(messages) == [str(i) for i in range(200)]
    assert numbers(messages) == list(range(1, 201))


@spec(
    "a message without an id gets one, and keeps it",
    source="@azure/service-bus LockRenewer (settling needs an id)",
)
def test_message_without_an_id_gets_one(bus: Bus, queue: str) -> None:
    bus.send(queue, AmqpAnnotatedMessage(data_body=b"x"), AmqpAnnotatedMessage(data_body=b"y"))

    with bus.receiver(queue) as receiver:
        first, second = take(receiver, 2)
        assert len({first.message_id, second.message_id, None, ""}) == 4
        receiver.abandon_message(first)
        assert take(receiver, 1)[0].message_id == first.message_id
