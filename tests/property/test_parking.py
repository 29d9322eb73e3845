"""P8, P9, P10: parked and restored bit for bit, through the official SDK's own encoder and decoder."""

from __future__ import annotations

import datetime
import json
import uuid
from contextlib import suppress
from decimal import Decimal
from typing import Any

import pytest
from azure.servicebus import ServiceBusReceivedMessage
from azure.servicebus._pyamqp._decode import decode_payload
from azure.servicebus._pyamqp._encode import encode_payload
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageHeader, AmqpMessageProperties
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from pairbus.errors import InvalidParkedPropertyError
from pairbus.pairing import parking
from pairbus.pairing.parking import Passport
from pairbus.sdk.messages import sections

PASSPORT = Passport("factory-1", 1_700_000_000_000, 3, "timeout")
texts = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=20)


def typed(kind: str, values: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    return values.map(lambda value: {"TYPE": kind, "VALUE": value})


simple = st.one_of(
    st.booleans(),
    texts,
    st.floats(allow_nan=False),
    st.uuids(),
    st.integers(-(2**31), 2**31 - 1),
    typed("UBYTE", st.integers(0, 255)),
    typed("BYTE", st.integers(-128, 127)),
    typed("USHORT", st.integers(0, 65535)),
    typed("SHORT", st.integers(-32768, 32767)),
    typed("UINT", st.integers(0, 2**32 - 1)),
    typed("INT", st.integers(-(2**31), 2**31 - 1)),
    typed("ULONG", st.integers(0, 2**64 - 1)),
    typed("LONG", st.integers(-(2**63), 2**63 - 1)),
    typed("FLOAT", st.floats(width=32, allow_nan=False)),
    typed("DOUBLE", st.floats(allow_nan=False)),
    typed("TIMESTAMP", st.integers(-62_135_596_800_000, 253_402_300_799_000)),
    typed("BINARY", st.binary(max_size=300)),
    typed("SYMBOL", st.text("abcxyz-:", max_size=20)),
    typed("STRING", st.text("aé💶", max_size=200)),
    st.datetimes(datetime.datetime(1970, 1, 1), datetime.datetime(2200, 1, 1)),
    st.integers(0, 10**12).map(lambda digits: Decimal(digits).scaleb(-3)),
    st.none(),
)
values = st.recursive(
    simple,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(texts, inner, max_size=3),
        typed("ARRAY", st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=4)),
    ),
    max_leaves=6,
)
aliases = st.sampled_from(sorted(parking.ALIASES)).flatmap(
    lambda name: st.lists(st.booleans(), min_size=len(name), max_size=len(name)).map(
        lambda upper: "".join(c.upper() if up else c for c, up in zip(name, upper, strict=True))
    )
)
names = st.one_of(
    texts.filter(bool),
    aliases,
    aliases.map(lambda name: parking.USER_PREFIX + name),
    st.just("X-PairBus-User-mine"),
)
CREATED = 1_600_000_000_000
message_ids: st.SearchStrategy[Any] = st.one_of(
    texts.filter(bool), st.uuids(), st.binary(min_size=1, max_size=20), st.integers(0, 2**63)
)


@st.composite
def originals(draw: st.DrawFn) -> bytes:
    """Any message that the SDK can send, as the bytes it sends."""
    body = draw(
        st.one_of(
            st.lists(st.binary(max_size=300), min_size=1, max_size=3).map(lambda data: {"data_body": data}),
            st.lists(st.lists(values, max_size=3), min_size=1, max_size=2).map(
                lambda rows: {"sequence_body": rows}
            ),
            values.map(lambda value: {"value_body": value}),
        )
    )
    session = draw(st.one_of(st.none(), texts))
    annotations: dict[str, object] = {}
    for name in draw(
        st.permutations(["x-opt-scheduled-enqueue-time", "x-opt-partition-key", "x-mine", "x-b"])
    ):
        if draw(st.booleans()):
            annotations[name] = {
                "x-opt-scheduled-enqueue-time": datetime.datetime(2030, 5, 4, 3, 2, 1),
                "x-opt-partition-key": draw(st.one_of(texts, st.just(session or "p"))),
                "x-mine": "kept",
                "x-b": 5,
            }[name]
    life = draw(st.one_of(st.none(), st.none(), st.integers(1, 2**32 - 2)))
    times = draw(st.sampled_from(["both", "none", "both", "creation", "absolute"])) if life is None else "sdk"
    spent = draw(st.sampled_from([5_000, 2**40, 0, -5_000, 2**62]))
    raw = AmqpAnnotatedMessage(
        header=AmqpMessageHeader(
            time_to_live=life,
            priority=draw(st.one_of(st.none(), st.integers(0, 9))),
            durable=draw(st.none() | st.booleans()),
            first_acquirer=draw(st.none() | st.booleans()),
        ),
        properties=AmqpMessageProperties(
            message_id=draw(message_ids),
            group_id=session,
            correlation_id=draw(st.one_of(st.none(), texts)),
            to=draw(st.none() | texts),
            subject=draw(st.none() | texts),
            reply_to=draw(st.none() | texts),
            content_type=draw(st.none() | st.text("abc/", max_size=5)),
            reply_to_group_id=draw(st.none() | texts),
            group_sequence=draw(st.none() | st.integers(0, 99)),
            creation_time=CREATED if times in ("both", "creation") else None,
            absolute_expiry_time=CREATED + spent if times in ("both", "absolute") else None,
        ),
        application_properties=draw(st.none() | st.dictionaries(names, simple, max_size=5)),
        annotations=annotations or None,
        footer=draw(st.none() | st.just({"x-sum": 7})),
        **body,
    )
    message = PyamqpTransport.to_outgoing_amqp_message(raw)
    output = bytearray()
    try:
        encode_payload(output, message)
    except (ValueError, TypeError, OverflowError):
        assume(False)
    return bytes(output)


def sdk_reads(payload: bytes) -> str:
    try:
        return repr(decode_payload(memoryview(payload)))
    except ValueError:
        assume(False)
        raise


def created_at(payload: bytes) -> int:
    items = sections.list_items(sections.find(sections.split(payload), sections.PROPERTIES))
    return sections.timestamp_of(items[9]) or 0


@pytest.mark.promise("P8")
@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(originals(), st.integers(0, 2**41))
def test_restored_is_the_original_bit_for_bit(original: bytes, later_ms: int) -> None:
    """Whenever it is restored. Only a time to live begins again, with the times that the SDK wrote for it."""
    parked = parking.park(original, "Orders", PASSPORT)
    header = sections.list_items(sections.find(sections.split(original), sections.HEADER))
    is_limited = len(header) > 2 and header[2] != sections.NULL

    restored = parking.restore(parked, created_at(original) + (0 if is_limited else later_ms))

    assert restored.payload == original
    assert restored.path == "Orders"
    assert restored.passport is not None
    assert (restored.passport.factory, restored.passport.detour) == ("factory-1", 3)


@pytest.mark.promise("P10")
@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(originals())
def test_parked_values_do_not_act_in_the_backlog(original: bytes) -> None:
    sdk_reads(original)

    parked = decode_payload(memoryview(parking.park(original, "orders", PASSPORT)))

    assert parked.properties is not None
    assert parked.header is None or parked.header.ttl is None
    assert parked.properties.group_id is None
    assert parked.properties.absolute_expiry_time is None
    assert not {b"x-opt-scheduled-enqueue-time", b"x-opt-partition-key"} & set(
        parked.message_annotations or {}
    )


@pytest.mark.promise("P9")
@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(originals())
def test_the_sdk_reads_the_same_original_after_the_detour(original: bytes) -> None:
    before = sdk_reads(original)
    restored = parking.restore(parking.park(original, "orders", PASSPORT), created_at(original)).payload

    after = repr(decode_payload(memoryview(restored)))

    assert before == after


@pytest.mark.promise("P8")
def test_what_the_broker_adds_on_the_way_is_taken_off() -> None:
    raw = AmqpAnnotatedMessage(data_body=b"x", properties=AmqpMessageProperties(message_id=str(uuid.uuid4())))
    output = bytearray()
    encode_payload(output, PyamqpTransport.to_outgoing_amqp_message(raw))
    parts = sections.split(parking.park(bytes(output), "orders", PASSPORT))
    parts = sections.replace(
        parts,
        sections.MESSAGE_ANNOTATIONS,
        sections.encode_map([(sections.encode_symbol("x-opt-sequence-number"), sections.encode_long(7))]),
    )
    parts = sections.replace(
        parts, sections.HEADER, sections.encode_list([sections.NULL] * 4 + [sections.encode_uint(2)])
    )

    restored = parking.restore(sections.join(parts), 0)

    assert restored.payload == bytes(output)
    assert ServiceBusReceivedMessage.from_bytes(restored.payload).message_id == restored.message_id_text


@pytest.mark.promise("P39")
@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(originals(), st.data())
def test_whatever_a_backlog_message_holds_it_is_restored_or_refused(
    original: bytes, data: st.DataObject
) -> None:
    spoilt = bytearray(parking.park(original, "orders", PASSPORT))
    for _ in range(data.draw(st.integers(1, 4))):
        spoilt[data.draw(st.integers(0, len(spoilt) - 1))] = data.draw(st.integers(0, 255))

    with suppress(InvalidParkedPropertyError):
        parking.restore(bytes(spoilt), 0, elapsed_ms=data.draw(st.integers(0, 10**9)))


@pytest.mark.promise("P39")
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["f", "t", "n", "r", "h", "abs", "at", "pk", "ttl", "x-opt-partition-key"]),
                inner,
                max_size=5,
            )
        ),
        max_leaves=8,
    )
)
def test_whatever_a_passport_says_the_message_is_restored_or_refused(value: object) -> None:
    items = [
        (sections.encode_text(parking.ALIAS_PATH), sections.encode_text("orders")),
        (sections.encode_text(parking.ALIAS_PARTITION), sections.encode_text("p")),
        (sections.encode_text(parking.ALIAS_LIFE), sections.encode_long(10_000_000)),
        (sections.encode_text(parking.ALIAS_PASSPORT), sections.encode_text(json.dumps(value))),
    ]
    payload = sections.join([sections.Section(sections.APPLICATION_PROPERTIES, sections.encode_map(items))])

    with suppress(InvalidParkedPropertyError):
        parking.restore(payload, 0)
