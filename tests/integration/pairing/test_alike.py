"""Answers alike: what the official sender refuses, a paired one refuses in the same class: healthy, failed over, and into the spool."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch, ServiceBusSender
from azure.servicebus.amqp import AmqpAnnotatedMessage

from pairbus import PairedServiceBusClient
from pairbus.testing import Namespace, Pair
from tests.integration.pairing.kit import by_hand, paired, text

pytestmark = pytest.mark.timeout(300)
LATER = datetime.now(UTC) + timedelta(hours=1)


def raw(**sections: Any) -> AmqpAnnotatedMessage:
    return AmqpAnnotatedMessage(data_body=b"x", **sections)


def with_property(value: object) -> ServiceBusMessage:
    properties: dict[Any, Any] = {"a": value}
    return ServiceBusMessage("x", application_properties=properties)


def with_properties(**fields: Any) -> ServiceBusMessage:
    message = ServiceBusMessage("x", message_id="m")
    for name, value in fields.items():
        setattr(message.raw_amqp_message.properties, name, value)
    return message


def with_key_and_then_session() -> ServiceBusMessage:
    message = ServiceBusMessage("x", partition_key="p")
    message.session_id = "s"
    return message


def with_time(given: Any) -> ServiceBusMessage:
    return ServiceBusMessage("x", scheduled_enqueue_time_utc=given)


NUMBER_FOR_NAME = "property name that is a number"
MESSAGES: dict[str, Callable[[], Any]] = {
    "session id of 128": lambda: raw(properties={"group_id": "s" * 128}),
    "session id of 129": lambda: raw(properties={"group_id": "s" * 129}),
    "partition key of 129": lambda: raw(annotations={"x-opt-partition-key": "p" * 129}),
    "partition key and session id": lambda: raw(
        properties={"group_id": "s"}, annotations={"x-opt-partition-key": "p"}
    ),
    "property of unknown type": lambda: with_property(object()),
    "property beyond 64 bits": lambda: with_property(2**70),
    NUMBER_FOR_NAME: lambda: {"body": "x", "application_properties": {5: 1}},
    "None as property name": lambda: {"body": "x", "application_properties": {None: 1}},
    "property list": lambda: with_property([1]),
    "properties of 70 KB": lambda: with_property("x" * 70_000),
    "properties and body of 70 KB": lambda: ServiceBusMessage(
        b"x" * 70_000, application_properties={"a": "b"}
    ),
    "partition key, then session id": with_key_and_then_session,
    "user id that is text": lambda: with_properties(user_id="me"),
    "long user id that is text": lambda: with_properties(user_id="u" * 25),
    "list with a user id that is text": lambda: [text(1), with_properties(user_id="me")],
    "user id": lambda: with_properties(user_id=b"me"),
    "session id set in the properties, of 129": lambda: with_properties(group_id="s" * 129),
    "message id of 129": lambda: with_properties(message_id="m" * 129),
    "partition key that is a number": lambda: raw(annotations={"x-opt-partition-key": 5}),
    "group sequence that is text": lambda: with_properties(group_sequence="5"),
    "time that is text": lambda: with_time("x"),
    "time that is a number": lambda: with_time(1.5),
    "body of unknown type": lambda: AmqpAnnotatedMessage(value_body=object()),
    "negative life": lambda: {"body": "x", "time_to_live": timedelta(seconds=-5)},
    "too large": lambda: ServiceBusMessage(b"x" * 300_000),
    "list too large": lambda: [ServiceBusMessage(b"x" * 100_000) for _ in range(3)],
    "one of a list too large": lambda: [ServiceBusMessage(b"x" * 300_000)],
    "list of text": lambda: ["a"],
    "list of None": lambda: [None],
    "list of lists": lambda: [[text(1)]],
    "generator of text": lambda: (item for item in ["a"]),
    "set of numbers": lambda: {1},
    "text": lambda: "a",
    "bytes": lambda: b"a",
    "None": lambda: None,
    "number": lambda: 5,
    "empty mapping": dict,
    "mapping": lambda: {"body": "x"},
    "mapping without body": lambda: {"bod": 1},
    "mapping with a wrong body": lambda: {"body": 5},
    "list of wrong mappings": lambda: [{"body": 5}],
    "empty list": list,
    "empty tuple": tuple,
    "generator": lambda: (text(number) for number in range(2)),
    "empty batch": ServiceBusMessageBatch,
}

CALLS: dict[str, Callable[[ServiceBusSender, Any], object]] = {
    "send": lambda sender, message: sender.send_messages(message, timeout=30),
    "schedule": lambda sender, message: sender.schedule_messages(message, LATER, timeout=30),
    "schedule for a text": lambda sender, message: sender.schedule_messages(message, "soon", timeout=30),  # type: ignore[arg-type]
    "send as a batch": lambda sender, message: sender.send_messages(in_a_batch(sender, message), timeout=30),
    "send with timeout 0": lambda sender, message: sender.send_messages(message, timeout=0),
    "send with an unknown keyword": lambda sender, message: sender.send_messages(message, colour="red"),
}


def in_a_batch(sender: ServiceBusSender, message: Any) -> ServiceBusMessageBatch:
    batch = sender.create_message_batch()
    batch.add_message(message)
    return batch


IN_A_BATCH = (
    NUMBER_FOR_NAME,
    "partition key, then session id",
    "properties of 70 KB",
    "time that is text",
    "user id",
    "user id that is text",
)


class Senders(NamedTuple):
    official: ServiceBusSender
    paired: ServiceBusSender
    client: PairedServiceBusClient
    spooled: ServiceBusSender
    """Of a client whose namespaces are both away: its spool takes the messages."""


@pytest.fixture(scope="module")
def senders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Senders]:
    logging.getLogger("azure").setLevel(logging.CRITICAL)
    with (
        Pair(Namespace("contoso", queues=["orders"]), Namespace("fabrikam")) as pair,
        pair.primary.client(retry_total=0) as official,
        paired(pair, by_hand(), ledger=tmp_path_factory.mktemp("ledger")) as client,
        official.get_queue_sender("orders") as plain,
        client.get_queue_sender("orders") as sender,
        Pair(Namespace("adatum", queues=["orders"]), Namespace("litware")) as away,
        paired(away, by_hand(spool=tmp_path_factory.mktemp("spool"))) as spooling,
        spooling.get_queue_sender("orders") as spooled,
    ):
        away.primary.kill()
        away.secondary.kill()
        spooled.send_messages(text("first"))
        assert spooling.health()["orders"].spooled == 1
        yield Senders(plain, sender, client, spooled)


def error_of(
    call: Callable[[ServiceBusSender, Any], object], sender: ServiceBusSender, message: Any
) -> BaseException | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            call(sender, message)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is compared
        return error
    return None


def cases() -> Iterator[tuple[str, str]]:
    for message in MESSAGES:
        yield "send", message
        yield "schedule", message
    for message in IN_A_BATCH:
        yield "send as a batch", message
    yield "schedule for a text", "mapping"
    yield "send with timeout 0", "mapping"
    yield "send with an unknown keyword", "mapping"


@pytest.mark.parametrize(("call", "message"), list(cases()))
def test_a_refusal_has_the_same_class(senders: Senders, call: str, message: str) -> None:
    do, make = CALLS[call], MESSAGES[message]
    expected = error_of(do, senders.official, make())
    healthy = error_of(do, senders.paired, make())
    senders.client.fail_over("orders")
    try:
        failed_over = error_of(do, senders.paired, make())
    finally:
        senders.client.mark_healthy("orders")
    spooled = error_of(do, senders.spooled, make())

    for found in (healthy, failed_over, spooled):
        if expected is None:
            assert found is None
        else:
            assert isinstance(found, type(expected)), f"{found!r} instead of {expected!r}"


def test_a_batch_takes_what_the_sdks_takes(senders: Senders) -> None:
    for sender in (senders.official, senders.paired):
        batch = sender.create_message_batch()
        not_a_message: Any = "a"
        with pytest.raises(TypeError, match="Only AmqpAnnotatedMessage"):
            batch.add_message(not_a_message)
        with pytest.raises(ValueError, match="1000000000"):
            sender.create_message_batch(10**9)


def test_a_refusal_while_failed_over_is_no_doubt_and_evicts_no_queue(senders: Senders) -> None:
    before = senders.client.statistics()
    senders.client.fail_over("orders")
    for message in ("session id of 129", "list too large", "property of unknown type", NUMBER_FOR_NAME):
        error_of(CALLS["send"], senders.paired, MESSAGES[message]())
    senders.client.mark_healthy("orders")
    after = senders.client.statistics()

    assert after.unknown == before.unknown
    assert after.evictions == before.evictions
    assert after.to_backlog == before.to_backlog
