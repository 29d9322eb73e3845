"""Messages as rows and rows as messages: one schema for source and sink. Pure; data is never code (D9)."""

from __future__ import annotations

import base64
import struct
import uuid
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime, timedelta
from operator import itemgetter
from typing import Any, Final

from pairbus.amqp import types
from pairbus.amqp.decode import decode_value
from pairbus.amqp.encode import encode_value
from pairbus.amqp.message.layout import DATA, SEQUENCE, VALUE
from pairbus.amqp.message.whole import PROPERTY_FIELDS, DecodedMessage, decode_message
from pairbus.amqp.types import Symbol, Timestamp
from pairbus.errors import PairbusError, RemoteProtocolError, UsageError
from pairbus.model.message import ACTIVE, STATE_NAMES
from pairbus.model.message_row import (
    BINARY,
    BOOLEAN,
    INT64,
    PROPERTIES,
    SENT_NAMES,
    SPARK_ROW,
    TEXT,
    TIMESTAMP,
    property_values,
)
from pairbus.sdk.messages import sections as amqp
from pairbus.spark.connector.batches import BeyondCalendar

_SPARK_TYPES: Final = {
    TEXT: "string",
    INT64: "long",
    TIMESTAMP: "timestamp",
    BINARY: "binary",
    BOOLEAN: "boolean",
    PROPERTIES: "map<string, struct<type: string, value: string>>",
}
FIELDS: Final = tuple(SPARK_ROW)
"""The columns of the schema, in order."""
SCHEMA: Final = ", ".join(f"{name} {_SPARK_TYPES[column.type]}" for name, column in SPARK_ROW.items())
SCHEMA_WITHOUT_RAW: Final = SCHEMA.replace(" raw binary,", "")
"""The schema unless the option ``includeRaw`` asks for the encoded original."""
TIME_MS_MIN: Final = -62_135_596_800_000
TIME_MS_MAX: Final = 253_402_300_799_999
"""From the year 1 to the last second of the year 9999: Spark's timestamps end there for most readers."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TYPE_OF: Final[dict[int, str]] = {
    0x40: "null",
    **dict.fromkeys((0x41, 0x42, 0x56), "boolean"),
    0x50: "ubyte",
    0x51: "byte",
    0x60: "ushort",
    0x61: "short",
    **dict.fromkeys((0x43, 0x52, 0x70), "uint"),
    **dict.fromkeys((0x54, 0x71), "int"),
    **dict.fromkeys((0x44, 0x53, 0x80), "ulong"),
    **dict.fromkeys((0x55, 0x81), "long"),
    0x72: "float",
    0x82: "double",
    0x83: "timestamp",
    0x98: "uuid",
    **dict.fromkeys((0xA0, 0xB0), "binary"),
    **dict.fromkeys((0xA1, 0xB1), "string"),
    **dict.fromkeys((0xA3, 0xB3), "symbol"),
}
OTHER: Final = "encoded"
"""Types without a plain text form: the value's AMQP encoding in hexadecimal."""


# --- a message as a row ---------------------------------------------------------------------------


def row_of(payload: bytes, entity: str, *, has_raw: bool = True) -> tuple[Any, ...]:
    """A browsed message as a row, values in the order of ``FIELDS``; ``raw`` is None unless it is asked for."""
    message = decode_message(payload)
    annotations, applications = message.message_annotations, message.application_properties
    values: dict[str, Any] = property_values(SPARK_ROW, message.properties, _text)
    for name, symbol, read in _ANNOTATED:
        values[name] = read(annotations.get(symbol))
    for name, mark in _MARKED.items():
        values[name] = _text(applications.get(mark))
    values["body_type"], values["body"] = _body(message)
    values["application_properties"] = _typed_properties(payload)
    values["raw"] = original_of(payload) if has_raw else None
    values["state"] = _state(annotations)
    life = message.header[2] if len(message.header) > 2 else None
    # A header may say 0. It means that the sender set none.
    values["time_to_live_ms"] = life if isinstance(life, int) and life else None
    deliveries = message.header[4] if len(message.header) > 4 else None
    values["delivery_count"] = deliveries if isinstance(deliveries, int) else 0
    enqueued = _moment_ms(annotations.get(_ENQUEUED))
    values["expires_at"] = (
        _moment(enqueued + life) if enqueued is not None and isinstance(life, int) else None
    )
    values["entity"] = entity
    return _in_order(values)


def original_of(payload: bytes) -> bytes:
    """A browsed message as its sender encoded it: without what the broker added."""
    parts = amqp.split(payload)
    header = amqp.list_items(amqp.find(parts, amqp.HEADER))[:3]
    kept = amqp.encode_list(header) if any(item != amqp.NULL for item in header) else None
    parts = amqp.replace(parts, amqp.HEADER, kept)
    for code in (amqp.DELIVERY_ANNOTATIONS, amqp.MESSAGE_ANNOTATIONS):
        items = amqp.map_items(amqp.find(parts, code))
        rest = [item for item in items if amqp.text_of(item[0]) not in amqp.BROKER_ANNOTATIONS]
        parts = amqp.replace(parts, code, amqp.encode_map(rest) if rest else None)
    items = amqp.map_items(amqp.find(parts, amqp.APPLICATION_PROPERTIES))
    rest = [item for item in items if amqp.text_of(item[0]) not in _MARKED.values()]
    if len(rest) != len(items):
        parts = amqp.replace(parts, amqp.APPLICATION_PROPERTIES, amqp.encode_map(rest) if rest else None)
    return amqp.join(parts)


def _body(message: DecodedMessage) -> tuple[str, bytes | None]:
    if message.body_kind == "data" and isinstance(message.body, bytes):
        return "data", message.body
    if message.body_kind == "":
        return "none", None
    return message.body_kind, encode_value(message.body)


def _typed_properties(payload: bytes) -> dict[str, tuple[str, str | None]]:
    found: dict[str, tuple[str, str | None]] = {}
    for key, value in amqp.map_items(amqp.find(amqp.split(payload), amqp.APPLICATION_PROPERTIES)):
        name = amqp.text_of(key)
        if name is not None and name not in _MARKED.values():
            found[name] = _typed(value)
    return found


def _typed(raw: bytes) -> tuple[str, str | None]:
    kind = _TYPE_OF.get(raw[0], OTHER)
    if kind == OTHER:
        return OTHER, raw.hex()
    value = decode_value(raw)[0]
    if value is None:
        return kind, None
    if isinstance(value, bool):
        return kind, "true" if value else "false"
    if isinstance(value, Timestamp):
        return kind, str(value.ms)
    if isinstance(value, bytes):
        return kind, base64.b64encode(value).decode()
    return kind, repr(value) if isinstance(value, float) else str(value)


def _text(value: object) -> str | None:
    if value is None:
        return None
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)


def _state(annotations: Mapping[object, object]) -> str:
    number = annotations.get(Symbol("x-opt-message-state"))
    return (
        STATE_NAMES[number]
        if isinstance(number, int) and 0 <= number < len(STATE_NAMES)
        else STATE_NAMES[ACTIVE]
    )


def _moment_ms(value: object) -> int | None:
    return value.ms if isinstance(value, Timestamp) else None


def _moment(ms: int | None) -> datetime | None:
    """A time as Spark takes it; what lies beyond its calendar is only in ``raw``."""
    return None if ms is None or not TIME_MS_MIN <= ms <= TIME_MS_MAX else _EPOCH + timedelta(milliseconds=ms)


_READ: Final[dict[str, Callable[[object], Any]]] = {
    TEXT: _text,
    INT64: lambda value: value,
    BOOLEAN: lambda value: value,
    TIMESTAMP: lambda value: _moment(_moment_ms(value)),
}
_ANNOTATED: Final = [
    (name, Symbol(column.annotation), _READ[column.type])
    for name, column in SPARK_ROW.items()
    if column.annotation and name != "state"
]
_MARKED: Final = {name: column.application for name, column in SPARK_ROW.items() if column.application}
_ENQUEUED: Final = Symbol(SPARK_ROW["enqueued_time"].annotation)
_PROPERTY_INDEX: Final = {
    name: PROPERTY_FIELDS.index(column.properties) for name, column in SPARK_ROW.items() if column.properties
}
_in_order: Final[Callable[[dict[str, Any]], tuple[Any, ...]]] = itemgetter(*FIELDS)


# --- a row as a message ---------------------------------------------------------------------------


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("expected true or false")
    return text.lower() == "true"


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{text!r}; expected whole milliseconds since 1970") from None


_FROM_TEXT: Final[dict[str, Callable[[str], object]]] = {
    "null": lambda text: None,  # noqa: ARG005 - null has no text
    "boolean": _boolean,
    "ubyte": lambda text: types.UByte(int(text)),
    "byte": lambda text: types.Byte(int(text)),
    "ushort": lambda text: types.UShort(int(text)),
    "short": lambda text: types.Short(int(text)),
    "uint": lambda text: types.UInt(int(text)),
    "int": lambda text: types.Int(int(text)),
    "ulong": lambda text: types.ULong(int(text)),
    "long": lambda text: types.Long(int(text)),
    "float": lambda text: types.Float(float(text)),
    "double": lambda text: types.Double(float(text)),
    "timestamp": lambda text: Timestamp(_whole(text)),
    "uuid": lambda text: types.Uuid(uuid.UUID(text).bytes),
    "binary": lambda text: base64.b64decode(text, validate=True),
    "string": str,
    "symbol": Symbol,
}


def payload_of(
    row: Mapping[str, Any], source_id: str | None, *, new_id: str = "", property_type: str = ""
) -> bytes:
    """The encoded message of a row, by field name.

    ``raw`` is sent as it is when it comes alone, or when every other field of the message is there and still says the same as
    ``raw`` does. A row whose columns were changed is sent as the columns say, so a job that masks a column never sends the
    original. ``raw`` beside some of the fields only is refused: a column that was dropped must not go out.

    Args:
        row: Values by field.
        source_id: The id to give a message that has none: derived from where it came from, so that a repeat of the
            row is the same message.
        new_id: The id for a row that has neither.
        property_type: The AMQP type of application properties that are plain values, not structs of type and value.

    Raises:
        UsageError: A value cannot be a message's.
    """
    raw = row.get("raw")
    if raw is None:
        if "raw" in row and "body" not in row:
            raise UsageError("raw is null, and there is no column body: nothing says what to send")
        return _built(row, _string(row, "message_id") or source_id or new_id, property_type)
    judge_fields_beside_raw(row)
    original = bytes(raw)
    shown = _shown(original)
    if all(field not in row or _says_same(row, shown, field, property_type) for field in SENT_NAMES):
        return _with_id(original, source_id)
    return _built(row, _string(row, "message_id") or source_id or new_id, property_type)


def judge_fields_beside_raw(fields: Collection[str]) -> None:
    """Refuse ``raw`` beside some of a message's fields only: nothing tells whether the others were dropped on purpose.

    Raises:
        UsageError: A field is missing; the text names the missing ones.
    """
    missing = [field for field in SENT_NAMES if field not in fields]
    if missing and len(missing) < len(SENT_NAMES):
        raise UsageError(
            f"raw holds the whole message, but there is no column for {', '.join(missing)}: .drop('raw') to send what the "
            "other columns say, or select raw alone (with path or sequence_number, if needed) for an exact copy"
        )


def _shown(original: bytes) -> dict[str, Any]:
    """The columns that the source shows for an encoded message."""
    try:
        return dict(zip(FIELDS, row_of(original, "", has_raw=False), strict=True))
    except (RemoteProtocolError, IndexError, ValueError) as error:
        raise UsageError(f"raw is no encoded message: {error}") from None


def _says_same(row: Mapping[str, Any], shown: Mapping[str, Any], field: str, property_type: str) -> bool:
    """Whether a column still says what ``raw`` says: both are encoded, for a value has more than one form as a row."""
    left, right = row[field], shown[field]
    if field == "body_type":
        return bool((left or "data") == right)
    if field == "body":
        text = left.encode() if isinstance(left, str) else left
        return bool((None if text is None else bytes(text)) == right)
    if field == "application_properties":
        return _properties(left, property_type) == _properties(right, "")
    if field == "scheduled_enqueue_time":
        return (None if left is None else milliseconds_of(left, field)) == (
            None if right is None else milliseconds_of(right, field)
        )
    return bool(left == right)


def _properties(values: Any, property_type: str) -> list[tuple[str, bytes]]:
    return sorted((str(name), _encoded(name, value, property_type)) for name, value in (values or {}).items())


def _built(row: Mapping[str, Any], message_id: str, property_type: str) -> bytes:
    """The message that the columns say."""
    properties: list[object] = [None] * len(PROPERTY_FIELDS)
    for name, index in _PROPERTY_INDEX.items():
        properties[index] = (message_id or None) if name == "message_id" else _string(row, name)
    parts = []
    life = row.get("time_to_live_ms")
    if life is not None:
        parts.append((amqp.HEADER, encode_value([True, None, types.UInt(_life(life))])))
    annotations: dict[object, object] = {}
    partition_key = _string(row, "partition_key")
    if partition_key is not None:
        annotations[Symbol("x-opt-partition-key")] = partition_key
    scheduled = row.get("scheduled_enqueue_time")
    if scheduled is not None:
        annotations[Symbol("x-opt-scheduled-enqueue-time")] = Timestamp(
            milliseconds_of(scheduled, "scheduled_enqueue_time")
        )
    if annotations:
        parts.append((amqp.MESSAGE_ANNOTATIONS, encode_value(annotations)))
    parts.append((amqp.PROPERTIES, encode_value(properties)))
    applications = row.get("application_properties")
    if applications:
        items = [
            (amqp.encode_text(str(name)), _encoded(name, value, property_type))
            for name, value in applications.items()
        ]
        parts.append((amqp.APPLICATION_PROPERTIES, amqp.encode_map(items)))
    parts += _body_parts(row)
    return b"".join(b"\x00\x53" + bytes([code]) + value for code, value in parts)


def addressing_of(payload: bytes, *, has_raw: bool = True) -> tuple[str, str | None, str | None]:
    """Message id, session id and partition key of an encoded message, as the broker will see them.

    Args:
        payload: The message.
        has_raw: Whether it comes from ``raw``, or else was made of the other columns.

    Raises:
        UsageError: It cannot be decoded.
    """
    try:
        message = decode_message(payload)
    except (RemoteProtocolError, IndexError, ValueError) as error:
        source = "raw is" if has_raw else "the columns (body, body_type, application_properties, …) make"
        raise UsageError(f"{source} no encoded message: {error}") from None
    key = message.message_annotations.get(Symbol("x-opt-partition-key"))
    return _text(message.properties.message_id) or "", message.properties.group_id, _text(key)


def _with_id(raw: bytes, source_id: str | None) -> bytes:
    try:
        parts = amqp.split(raw)
        items = amqp.list_items(amqp.find(parts, amqp.PROPERTIES))
    except (RemoteProtocolError, IndexError, ValueError) as error:
        raise UsageError(f"raw is no encoded message: {error}") from None
    if source_id is None or (items and items[0] != amqp.NULL):
        return raw
    items = [amqp.encode_text(source_id), *items[1:]]
    return amqp.join(amqp.replace(parts, amqp.PROPERTIES, amqp.encode_list(items)))


def _string(row: Mapping[str, Any], field: str) -> str | None:
    value = row.get(field)
    if value is None or isinstance(value, str):
        return value
    raise UsageError(f"{field} is a {type(value).__name__}: expected a string")


def _life(value: object) -> int:
    # Service Bus takes 0 for none: the message would never expire.
    if isinstance(value, int) and 0 < value < 2**32:
        return value
    raise UsageError(f"time_to_live_ms is {value!r}: expected 1 to {2**32 - 1}, or null for none")


def milliseconds_of(value: object, name: str) -> int:
    """A timestamp of a row in milliseconds since the epoch.

    Raises:
        UsageError: It is no time in the years 1 to 9999; the text begins with ``name``.
    """
    if isinstance(value, BeyondCalendar):
        raise UsageError(f"{name} is {value}: expected a time in the years 1 to 9999")
    if not isinstance(value, datetime) or value.tzinfo is None:
        # A time without a zone would be taken for local time, and the repeated hour is two of those.
        raise UsageError(f"{name} is a {type(value).__name__}: expected a time with a zone")
    return (value - _EPOCH) // timedelta(milliseconds=1)


def _encoded(name: str, value: Any, property_type: str) -> bytes:
    if value is None or isinstance(value, str):
        return encode_value(value)
    if isinstance(value, Mapping):
        kind, text = value.get("type"), value.get("value")
    elif isinstance(value, tuple) and len(value) == 2:
        kind, text = value
    elif property_type:
        kind, text = property_type, _plain_text(name, value)
    else:
        raise UsageError(
            f"application property {name!r} is a {type(value).__name__}: expected a string, or a struct of type and value"
        )
    try:
        if text is None:
            return encode_value(None)
        if kind == OTHER:
            encoded = bytes.fromhex(text)
            _whole_value(encoded, f"application property {name!r} is no encoded AMQP value")
            return encoded
        return encode_value(_FROM_TEXT[kind or "string"](text))
    except KeyError:
        known = ", ".join((*_FROM_TEXT, OTHER))
        raise UsageError(
            f"application property {name!r} has type {kind!r}: expected one of {known}"
        ) from None
    except (ValueError, OverflowError) as error:
        raise UsageError(f"application property {name!r} is no {kind}: {error}") from None
    except UsageError:
        raise
    except (PairbusError, struct.error, TypeError) as error:
        raise UsageError(f"application property {name!r} cannot be encoded as {kind}: {error}") from None


def _plain_text(name: str, value: Any) -> str:
    """A plain value of an application property in the text form that ``_FROM_TEXT`` reads."""
    if isinstance(value, bytes | bytearray):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime | BeyondCalendar):
        return str(milliseconds_of(value, f"application property {name!r}"))
    return repr(value) if isinstance(value, float) else str(value)


def _body_parts(row: Mapping[str, Any]) -> list[tuple[int, bytes]]:
    body, kind = row.get("body"), row.get("body_type") or "data"
    if isinstance(body, str):
        body = body.encode()
    if body is not None and not isinstance(body, bytes | bytearray):
        raise UsageError(f"body is a {type(body).__name__}: expected binary or string")
    if kind == "none":
        return []
    if kind == "data":
        return [(DATA, encode_value(bytes(body or b"")))]
    codes = {"value": VALUE, "sequence": SEQUENCE}
    if kind not in codes or not body:
        raise UsageError(
            f"body_type is {kind!r}: expected data, value, sequence or none, with a body that fits"
        )
    value = _whole_value(bytes(body), f"body is no encoded AMQP value, as body_type {kind!r} says")
    if kind == "sequence" and not isinstance(value, list):
        raise UsageError("body is no encoded AMQP list, as body_type 'sequence' says")
    return [(codes[kind], bytes(body))]


def _whole_value(encoded: bytes, wrong: str) -> object:
    """The one AMQP value that the bytes hold. Raises UsageError: they hold none, or something after it."""
    try:
        value, end = decode_value(encoded)
    except (RemoteProtocolError, IndexError, ValueError) as error:
        raise UsageError(f"{wrong}: {error}") from None
    if end != len(encoded):
        raise UsageError(f"{wrong}: it ends after {end} of {len(encoded)} bytes")
    return value
