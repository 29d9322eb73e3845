from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage

from pairbus.amqp.encode import encode_value
from pairbus.amqp.message import decode_message, encode_message
from pairbus.amqp.types import Int, Long, Symbol, Timestamp, Uuid
from pairbus.errors import UsageError
from pairbus.pairing import wire
from pairbus.spark.schema import SCHEMA, original_of, payload_of, row_of
from pairbus.spark.source import FIELDS

NOW = 1_800_000_000_000
BROKERS = {
    "x-opt-sequence-number": Long(7),
    "x-opt-enqueued-time": Timestamp(NOW),
    "x-opt-message-state": Int(0),
}


def delivered(**given: Any) -> bytes:
    """A message as a broker shows it."""
    annotations = {**given.pop("message_annotations", {}), **BROKERS}
    header = given.pop("header", [True, None, None, None, 2])
    return encode_message(header=header, message_annotations=annotations, **given)


def as_fields(payload: bytes) -> dict[str, Any]:
    return dict(zip(FIELDS, row_of(payload, "orders"), strict=True))


def test_the_fields_are_those_of_the_schema() -> None:
    import re

    names = re.findall(r"(\w+) (?:binary|string|long|timestamp|map)", SCHEMA)
    assert tuple(names) == FIELDS


def test_a_row_shows_what_the_broker_says() -> None:
    row = as_fields(
        delivered(
            message_id="m1",
            group_id="s1",
            subject="hello",
            body=b"text",
            body_kind="data",
            application_properties={"colour": "red", "DeadLetterReason": "Tired"},
            header=[True, None, 60_000, None, 2],
        )
    )

    assert (row["body"], row["body_type"], row["message_id"], row["session_id"]) == (
        b"text",
        "data",
        "m1",
        "s1",
    )
    assert (row["sequence_number"], row["delivery_count"], row["state"]) == (7, 2, "active")
    assert row["enqueued_time"] == datetime.fromtimestamp(NOW / 1000, UTC)
    assert row["expires_at"] == datetime.fromtimestamp(NOW / 1000 + 60, UTC)
    assert row["dead_letter_reason"] == "Tired"
    assert row["application_properties"] == {"colour": ("string", "red")}
    assert row["entity"] == "orders"


def test_raw_is_the_original_bit_for_bit() -> None:
    original = wire.encoded(
        ServiceBusMessage(
            b"body", message_id="m1", session_id="s", application_properties={"n": 1, "x": b"\x00"}
        )
    )
    sent = decode_message(original)
    annotations = {str(k): v for k, v in sent.message_annotations.items()}
    # What a broker adds is taken away again, whatever it is added to.
    shown = delivered(
        message_id="m1",
        group_id="s",
        body=b"body",
        body_kind="data",
        message_annotations=annotations,
        header=[True],
    )

    again = original_of(shown)

    assert original_of(again) == again
    assert not any(str(key).startswith("x-opt-s") for key in decode_message(again).message_annotations)
    assert payload_of({"raw": original}, "orders:7") == original


@pytest.mark.parametrize(
    "value",
    [
        "text",
        True,
        False,
        Int(-5),
        Long(5),
        1.5,
        Timestamp(NOW),
        Uuid(bytes(range(16))),
        b"\x00\xff",
        Symbol("s"),
        None,
    ],
)
def test_every_type_of_property_comes_back_as_it_was(value: object) -> None:
    payload = delivered(message_id="m", body=b"", body_kind="data", application_properties={"p": value})
    kind, text = as_fields(payload)["application_properties"]["p"]

    again = payload_of({"body": b"", "application_properties": {"p": {"type": kind, "value": text}}}, None)

    assert encode_value(decode_message(again).application_properties["p"]) == encode_value(
        decode_message(payload).application_properties["p"]
    )


def test_a_row_without_an_id_gets_the_one_of_its_source() -> None:
    assert decode_message(payload_of({"body": b"x"}, "orders:7")).properties.message_id == "orders:7"
    assert (
        decode_message(payload_of({"body": b"x", "message_id": "m"}, "orders:7")).properties.message_id == "m"
    )


def test_a_row_becomes_a_message_field_by_field() -> None:
    moment = datetime(2026, 11, 15, 12, tzinfo=UTC)
    message = decode_message(
        payload_of(
            {
                "body": "text",
                "session_id": "s",
                "subject": "hello",
                "time_to_live_ms": 5_000,
                "scheduled_enqueue_time": moment,
                "application_properties": {"a": "b"},
            },
            "id",
        )
    )

    assert (message.body, message.properties.group_id, message.properties.subject) == (b"text", "s", "hello")
    assert message.header[2] == 5_000
    assert message.message_annotations["x-opt-scheduled-enqueue-time"] == Timestamp(
        int(moment.timestamp() * 1000)
    )
    assert message.application_properties == {"a": "b"}


@pytest.mark.parametrize(
    ("row", "named"),
    [
        ({"body": 5}, "body is a int"),
        ({"body": b"", "message_id": 5}, "message_id is a int"),
        ({"body": b"", "time_to_live_ms": -1}, "time_to_live_ms is -1"),
        ({"body": b"", "application_properties": {"a": {"type": "wish", "value": "x"}}}, "type 'wish'"),
        ({"body": b"", "application_properties": {"a": {"type": "int", "value": "x"}}}, "'a' is no int"),
        ({"raw": b"\x00\x01\x02"}, "raw is no encoded message"),
        ({"body": b"", "body_type": "value"}, "body_type is 'value'"),
    ],
)
def test_a_value_that_cannot_be_sent_is_named(row: dict[str, Any], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        payload_of(row, None)


@pytest.mark.parametrize("ms", [-(2**62), 2**62])
def test_a_time_beyond_the_calendar_leaves_the_column_empty_and_the_message_readable(ms: int) -> None:
    row = as_fields(
        delivered(
            message_annotations={"x-opt-scheduled-enqueue-time": Timestamp(ms)}, body=b"x", body_kind="data"
        )
    )

    assert row["scheduled_enqueue_time"] is None
    assert row["body"] == b"x"
    assert ms.to_bytes(8, "big", signed=True) in row["raw"]
