"""P9: our encoder writes the bytes of the official SDK's, for every message that an application can make, and refuses what a broker would."""

from __future__ import annotations

import copy
import datetime
import uuid
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus._pyamqp._encode import encode_payload
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageHeader, AmqpMessageProperties
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pairbus.amqp.message.scan import scan
from pairbus.errors import Refusal, RemoteProtocolError
from pairbus.pairing.client.sending import checks
from pairbus.pairing.errors import InvalidMessageError, MessageTooLargeForBacklogError
from pairbus.sdk.messages import encoding, message_bytes
from tests.unit.engine.engine_kit import Bench

QUEUE = Bench().entity("q").main
"""A queue of a broker: it says what it refuses."""

texts = st.one_of(
    st.text(max_size=12),
    st.text("aé💶", max_size=8),
    st.integers(250, 260).map(lambda size: "x" * size),
    st.integers(84, 90).map(lambda size: "€" * size),
)
numbers = st.one_of(
    st.integers(-130, 130),
    st.integers(-(2**31), 2**31 - 1),
    st.sampled_from([2**31 - 1, 2**31, -(2**31), -(2**31) - 1, 2**40]),
)
zones: st.SearchStrategy[Any] = st.sampled_from(
    [None, datetime.UTC, datetime.timezone(datetime.timedelta(hours=5, minutes=30))]
)
times = st.datetimes(datetime.datetime(1960, 1, 1), datetime.datetime(2200, 1, 1), timezones=zones)


class Text(str):
    __slots__ = ()


simple = st.one_of(
    st.none(),
    st.booleans(),
    texts,
    numbers,
    st.floats(),
    st.uuids(),
    st.binary(max_size=300),
    times,
    st.decimals(allow_nan=False, allow_infinity=False, places=2),
    texts.map(Text),
    st.integers(-5, 5).map(lambda value: {"TYPE": "LONG", "VALUE": value}),
    st.just(["a", 1]),
)
keys: st.SearchStrategy[Any] = st.one_of(texts, texts, st.binary(max_size=10), texts.map(Text))
odd_keys: st.SearchStrategy[Any] = st.one_of(keys, keys, st.none(), st.integers(0, 3))
annotation_keys: st.SearchStrategy[Any] = st.one_of(
    keys,
    st.integers(0, 9),
    st.sampled_from(["x-opt-enqueued-time", b"x-opt-locked-until"]),
    st.sampled_from(["x-opt-partition-key", b"x-opt-scheduled-enqueue-time"]),
)
field = st.none() | texts
rare_field = st.one_of(st.none(), texts, st.binary(max_size=9), st.integers(-3, 3), texts.map(Text))
names = (
    "session_id",
    "message_id",
    "content_type",
    "correlation_id",
    "to",
    "reply_to",
    "reply_to_session_id",
    "subject",
)


@st.composite
def messages(draw: st.DrawFn) -> ServiceBusMessage:
    """A message with any of the features of ``ServiceBusMessage``."""
    message = ServiceBusMessage(
        draw(st.one_of(st.none(), st.text(max_size=5), st.binary(max_size=300))),
        **draw(
            st.fixed_dictionaries({}, optional={name: st.none() | st.text(max_size=128) for name in names})
        ),
        application_properties=draw(st.none() | st.dictionaries(keys, simple, max_size=5)),
        time_to_live=draw(st.none() | st.timedeltas(datetime.timedelta(0), datetime.timedelta.max)),
        scheduled_enqueue_time_utc=draw(st.none() | times),
    )
    session = message.session_id
    message.partition_key = draw(st.sampled_from([None, "p"] if session is None else [None, session]))
    return message


@st.composite
def raw_messages(draw: st.DrawFn) -> AmqpAnnotatedMessage:
    """A message with any section that ``AmqpAnnotatedMessage`` allows, odd ones included."""
    body: dict[str, Any] = draw(
        st.one_of(
            st.lists(st.binary(max_size=300) | texts, max_size=3).map(lambda data: {"data_body": data}),
            st.lists(st.lists(simple, max_size=3), max_size=2).map(lambda rows: {"sequence_body": rows}),
            simple.map(lambda value: {"value_body": value}),
        )
    )
    flags: st.SearchStrategy[Any] = st.none() | st.booleans()
    raw = AmqpAnnotatedMessage(
        application_properties=draw(st.none() | st.dictionaries(odd_keys, simple, max_size=12)),
        annotations=draw(st.none() | st.dictionaries(annotation_keys, simple, max_size=5)),
        delivery_annotations=draw(st.none() | st.just({"x-d": 1})),
        footer=draw(st.none() | st.just({}) | st.just({"x-sum": 7})),
        **body,
    )
    if draw(st.booleans()):
        raw.header = AmqpMessageHeader(
            time_to_live=draw(st.one_of(st.none(), st.integers(0, 2**33), st.just(922337203685477))),
            **draw(
                st.just({})
                | st.fixed_dictionaries({"durable": flags, "priority": st.none() | st.integers(0, 9)})
            ),
        )
    if draw(st.booleans()):
        given_fields: dict[str, Any] = {
            name: draw(field)
            for name in (
                "message_id",
                "to",
                "subject",
                "reply_to",
                "correlation_id",
                "group_id",
                "content_type",
            )
        }
        if draw(st.booleans()):
            given_fields |= {
                "user_id": draw(rare_field),
                "content_encoding": draw(rare_field),
                "reply_to_group_id": draw(rare_field),
                "message_id": draw(rare_field | st.uuids()),
                "group_sequence": draw(st.none() | st.integers(0, 300)),
                "creation_time": draw(st.none() | st.integers(0, 2**41)),
                "absolute_expiry_time": draw(st.none() | st.integers(0, 2**41)),
            }
        properties = AmqpMessageProperties(**given_fields)
        if draw(st.integers(0, 9)) == 0:
            properties["further"] = "attribute"
        raw.properties = properties
    return raw


def raw_of(message: ServiceBusMessage | AmqpAnnotatedMessage) -> AmqpAnnotatedMessage:
    return message.raw_amqp_message if isinstance(message, ServiceBusMessage) else message


def encoded_by_sdk(message: ServiceBusMessage | AmqpAnnotatedMessage) -> bytes | type[Exception]:
    raw = copy.deepcopy(raw_of(message))
    output = bytearray()
    try:
        encode_payload(output, PyamqpTransport.to_outgoing_amqp_message(raw))
    except Exception as error:  # noqa: BLE001 - the other one must fail alike
        return type(error)
    return bytes(output)


def encoded_by_us(message: ServiceBusMessage | AmqpAnnotatedMessage) -> bytes | type[Exception]:
    try:
        return message_bytes.encoded(message, is_traced=True)
    except Exception as error:  # noqa: BLE001
        return type(error)


def alike(message: ServiceBusMessage | AmqpAnnotatedMessage) -> None:
    """Both make the same bytes. A life begins with the second in which it is encoded: one may pass between the two."""
    before = repr(vars(raw_of(message)))
    for _ in range(5):
        theirs, ours, again = encoded_by_sdk(message), encoded_by_us(message), encoded_by_sdk(message)
        if theirs == again:
            break
    assert ours == theirs
    assert repr(vars(raw_of(message))) == before


slow = settings(
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
)


@pytest.mark.promise("P9")
@slow
@given(messages())
def test_messages_of_an_application_are_encoded_as_the_sdk_does(message: ServiceBusMessage) -> None:
    alike(message)


@pytest.mark.promise("P9")
@slow
@given(raw_messages())
def test_annotated_messages_are_encoded_as_the_sdk_does(raw: AmqpAnnotatedMessage) -> None:
    alike(raw)


def is_refused_by_a_broker(payload: bytes) -> bool:
    try:
        QUEUE.check_send(scan(payload), 0)
    except (RemoteProtocolError, Refusal):
        return True
    return False


def refused_alike(message: ServiceBusMessage | AmqpAnnotatedMessage) -> None:
    """What a broker refuses, or the SDK cannot encode, is refused before it is parked or spooled; nothing else is."""
    for _ in range(5):
        theirs = encoded_by_sdk(message)
        try:
            ours = checks.encoded(message)
        except (InvalidMessageError, MessageTooLargeForBacklogError):
            assert not isinstance(theirs, bytes) or is_refused_by_a_broker(theirs)
            return
        if ours == theirs:
            break
    assert ours == theirs
    assert not is_refused_by_a_broker(ours)


@pytest.mark.promise("P9")
@slow
@given(messages())
def test_messages_of_an_application_are_refused_as_a_broker_does(message: ServiceBusMessage) -> None:
    refused_alike(message)


@pytest.mark.promise("P9")
@slow
@given(raw_messages())
def test_annotated_messages_are_refused_as_a_broker_does(raw: AmqpAnnotatedMessage) -> None:
    refused_alike(raw)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"user_id": "me"}, "message 'm' cannot be encoded: user_id is 'me', of type str: give bytes"),
        ({"group_id": "s" * 129}, "the session id has 129 characters: at most 128 are allowed"),
        ({"message_id": "m" * 129}, "the message id has 129 characters: at most 128 are allowed"),
    ],
)
def test_a_refusal_names_the_message_or_the_field(fields: dict[str, Any], said: str) -> None:
    message = ServiceBusMessage("x", message_id="m")
    for name, value in fields.items():
        setattr(message.raw_amqp_message.properties, name, value)

    with pytest.raises(InvalidMessageError) as refused:
        checks.encoded(message)
    refused_alike(message)

    assert str(refused.value) == said


@pytest.mark.parametrize("size", [60_000, 66_000])
@pytest.mark.parametrize("place", ["body", "property"])
def test_properties_have_at_most_64_KB(size: int, place: str) -> None:
    long = "x" * size
    message = (
        ServiceBusMessage(long)
        if place == "body"
        else ServiceBusMessage("x", application_properties={"a": long})
    )

    refused_alike(message)
    if (size, place) == (66_000, "property"):
        with pytest.raises(
            MessageTooLargeForBacklogError, match="an entity takes 65536: make the message at"
        ):
            checks.encoded(message)
    else:
        checks.encoded(message)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"session_id": "s", "partition_key": "s"},
        {"time_to_live": datetime.timedelta(minutes=1)},
        {"scheduled_enqueue_time_utc": datetime.datetime(2030, 1, 2, 3, 4, 5, 678_000)},
        {"application_properties": {"a": "b", "n": 1, "f": 1.5, "t": True, "z": None, "u": uuid.UUID(int=7)}},
        {
            "content_type": "application/json",
            "correlation_id": "c",
            "subject": "s",
            "to": "t",
            "reply_to": "r",
        },
    ],
)
def test_ordinary_messages_do_not_need_the_slow_encoder(options: dict[str, Any]) -> None:
    message = ServiceBusMessage(b"x" * 1024, **options)

    assert encoding.encoded(message.raw_amqp_message) is not None
    alike(message)
    refused_alike(message)
