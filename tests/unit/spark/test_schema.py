from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage

from pairbus.amqp.encode import encode_value
from pairbus.amqp.message.whole import decode_message, encode_message
from pairbus.amqp.types import Int, Long, Symbol, Timestamp, UInt, Uuid
from pairbus.errors import UsageError
from pairbus.model.message_row import BINARY, COLUMNS, PROPERTIES, SENT_NAMES
from pairbus.sdk.messages import message_bytes
from pairbus.spark.connector import schema
from pairbus.spark.connector.batches import BeyondCalendar
from pairbus.spark.connector.schema import FIELDS, SCHEMA, original_of, payload_of, row_of

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
    original = message_bytes.encoded(
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
        ({"body": b"", "time_to_live_ms": 0}, "time_to_live_ms is 0: expected 1 to .*, or null for none"),
        (
            {
                "body": b"",
                "application_properties": {"a": {"type": "timestamp", "value": "2026-11-15T12:00:00Z"}},
            },
            "'a' is no timestamp: '2026-11-15T12:00:00Z'; expected whole milliseconds since 1970",
        ),
        ({"body": b"", "application_properties": {"a": {"type": "wish", "value": "x"}}}, "type 'wish'"),
        ({"body": b"", "application_properties": {"a": {"type": "int", "value": "x"}}}, "'a' is no int"),
        ({"body": b"", "application_properties": {"a": 5}}, "'a' is a int"),
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


def test_the_last_millisecond_of_the_calendar_is_a_time() -> None:
    ms = 253_402_300_799_999
    row = as_fields(
        delivered(
            message_annotations={"x-opt-scheduled-enqueue-time": Timestamp(ms)}, body=b"x", body_kind="data"
        )
    )

    assert row["scheduled_enqueue_time"] == datetime(9999, 12, 31, 23, 59, 59, 999000, tzinfo=UTC)


# --- raw is sent only while the columns still say the same ----------------------------------------

FULL = b"".join(
    b"\x00\x53" + bytes([code]) + encode_value(value)
    for code, value in (
        (0x70, [True, None, UInt(60_000), None, UInt(2)]),
        (
            0x72,
            {
                **{Symbol(name): value for name, value in BROKERS.items()},
                Symbol("x-opt-partition-key"): "s1",
                Symbol("x-opt-scheduled-enqueue-time"): Timestamp(NOW + 5_000),
                Symbol("x-opt-own"): "kept in raw only",
            },
        ),
        (0x73, ["m1", None, "you", "hello", "me", "c1", "text/plain", None, None, None, "s1", None, "s2"]),
        (0x74, {"n": Int(5), "who": "secret"}),
        (0x75, b"secret"),
    )
)


def test_a_row_that_nobody_changed_is_sent_bit_for_bit() -> None:
    row = as_fields(FULL)

    assert payload_of(row, "orders:7") == row["raw"] == original_of(FULL)
    # As a task has it: structs as mappings, times in any zone.
    local = row["scheduled_enqueue_time"].astimezone(timezone(timedelta(hours=9)))
    kinds = {
        name: {"type": kind, "value": text} for name, (kind, text) in row["application_properties"].items()
    }
    given = {
        **row,
        "scheduled_enqueue_time": local,
        "application_properties": kinds,
        "body": bytearray(b"secret"),
    }
    assert payload_of(given, "orders:7") == row["raw"]
    assert payload_of({"raw": row["raw"]}, "orders:7") == row["raw"]


CHANGED: dict[str, object] = {
    "body": b"MASKED",
    "body_type": "none",
    "message_id": "m2",
    "session_id": None,
    "correlation_id": None,
    "subject": "MASKED",
    "content_type": None,
    "to": "MASKED",
    "reply_to": None,
    "reply_to_session_id": None,
    "partition_key": None,
    "application_properties": {"n": ("int", "5")},
    "time_to_live_ms": 5,
    "scheduled_enqueue_time": None,
}


@pytest.mark.parametrize("field", SENT_NAMES)
def test_a_changed_column_is_sent_and_the_original_is_not(field: str) -> None:
    assert set(CHANGED) == set(SENT_NAMES), "every field of a message is tried"
    row = {**as_fields(FULL), field: CHANGED[field]}

    sent = payload_of(row, None)

    assert sent != row["raw"]
    shown = as_fields(sent)
    assert shown[field] == CHANGED[field]
    if field in ("body", "body_type"):
        assert b"secret" not in sent.replace(b"who\xa1\x06secret", b"")
    for other in set(SENT_NAMES) - {field, "body", "body_type"}:
        assert shown[other] == row[other], other


@pytest.mark.parametrize("body", [None, b"", "", "MASKED"])
def test_a_body_that_was_masked_in_any_way_never_goes_out(body: object) -> None:
    sent = payload_of({**as_fields(FULL), "body": body, "application_properties": None}, None)

    assert b"secret" not in sent


@pytest.mark.parametrize("field", SENT_NAMES)
def test_a_dropped_column_is_never_sent_out_of_raw(field: str) -> None:
    row = as_fields(FULL)
    del row[field]

    with pytest.raises(UsageError, match=rf"no column for {field}: .drop\('raw'\).*select raw alone"):
        payload_of(row, None)


def test_a_row_with_nothing_but_an_empty_raw_is_refused() -> None:
    with pytest.raises(UsageError, match="raw is null, and there is no column body"):
        payload_of({"raw": None, "sequence_number": 7}, "orders:7")


@pytest.mark.parametrize(
    ("row", "named"),
    [
        ({"body": b"no value", "body_type": "value"}, "body is no encoded AMQP value, as body_type 'value'"),
        ({"body": encode_value("a") + b"\x40", "body_type": "value"}, "it ends after 3 of 4 bytes"),
        ({"body": encode_value("a"), "body_type": "sequence"}, "body is no encoded AMQP list"),
        ({"body": b"", "application_properties": {"p": ("encoded", "ff")}}, "application property 'p'"),
    ],
)
def test_a_row_without_raw_is_refused_by_the_names_of_its_columns(row: dict[str, Any], named: str) -> None:
    with pytest.raises(UsageError) as caught:
        payload_of(row, None)

    assert named in str(caught.value)
    assert "raw" not in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "value", "encoded"),
    [
        ("int", 5, Int(5)),
        ("long", 5, Long(5)),
        ("boolean", True, True),
        ("double", 0.1, 0.1),
        ("binary", b"\x00\xff", b"\x00\xff"),
        ("timestamp", datetime.fromtimestamp(NOW / 1000, UTC), Timestamp(NOW)),
        ("int", None, None),
    ],
)
def test_application_properties_may_be_plain_values(kind: str, value: object, encoded: object) -> None:
    sent = payload_of({"body": b"x", "application_properties": {"p": value}}, None, property_type=kind)

    assert b"\xa1\x01p" + encode_value(encoded) in sent


@pytest.mark.parametrize("when", [datetime(2026, 10, 25, 2, 30), 5, BeyondCalendar(-(10**18))])
def test_what_is_no_instant_of_the_calendar_is_refused_by_name(when: object) -> None:
    """In October half past two is twice: a time without a zone says nothing."""
    with pytest.raises(UsageError, match="^scheduled_enqueue_time is .*: expected a time"):
        payload_of({"body": b"x", "scheduled_enqueue_time": when}, "id")
    if when != 5:  # milliseconds
        with pytest.raises(UsageError, match="^application property 'p' is .*: expected a time"):
            payload_of({"body": b"x", "application_properties": {"p": when}}, None, property_type="timestamp")


def test_every_type_of_a_column_has_one_in_spark_and_a_way_to_read_it() -> None:
    kinds = {column.type for column in COLUMNS}
    assert kinds == set(schema._SPARK_TYPES)
    # The other two are not read from a field of the delivery.
    assert kinds - {BINARY, PROPERTIES} == set(schema._READ)
