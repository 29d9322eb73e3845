"""The bytes of an ordinary outgoing message, equal to those of the SDK's own encoder, in a fraction of its time.

The SDK builds a dictionary for each field of a message, also for those that are not set, and finds out by an exception that a value
has no type of its own. A send into the spool needs the bytes and nothing else, and spent most of its time there. ``encoded`` writes
them directly, for messages whose parts all have the usual types, and leaves every other message to the SDK.

A property test compares it with the SDK byte by byte, so a version of the SDK that writes anything else is noticed.
"""

from __future__ import annotations

import calendar
import datetime
import struct
import time
import uuid
from typing import Final

from azure.servicebus._common.constants import MAX_ABSOLUTE_EXPIRY_TIME, MAX_DURATION_VALUE
from azure.servicebus._transport._pyamqp_transport import _LONG_ANNOTATIONS
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageHeader, AmqpMessageProperties

from pairbus.sdk.messages import sections

_STRING: Final = (0xA1, 0xB1)
_SYMBOL: Final = (0xA3, 0xB3)
_BINARY: Final = (0xA0, 0xB0)
_BEFORE_TIMES: Final = (
    ("message_id", _STRING),
    ("user_id", None),
    ("to", _STRING),
    ("subject", _STRING),
    ("reply_to", _STRING),
    ("correlation_id", _STRING),
    ("content_type", _SYMBOL),
    ("content_encoding", _SYMBOL),
)
"""Fields of the properties in the order of the standard, with the type of a text in them; None: left to the SDK."""
_AFTER_TIMES: Final = (("group_id", _STRING), ("group_sequence", None), ("reply_to_group_id", _STRING))
_PROPERTIES: Final = frozenset(
    [name for name, _ in _BEFORE_TIMES + _AFTER_TIMES] + ["creation_time", "absolute_expiry_time"]
)
_HEADER: Final = frozenset(["delivery_count", "time_to_live", "first_acquirer", "durable", "priority"])
_UINT_MAX: Final = 2**32 - 1
_DOUBLE: Final = struct.Struct(">Bd")
_INT: Final = struct.Struct(">Bi")


class _Unusual(Exception):
    """The message has a part that is left to the SDK."""


def encoded(raw: AmqpAnnotatedMessage) -> bytes | None:
    """The bytes that the SDK would send for a message, without a trace context; None: ask the SDK.

    Never changes the message. Raises UnicodeEncodeError for text that is no Unicode, as the SDK does.
    """
    data = raw._data_body
    if (
        type(data) is not list
        or raw._sequence_body is not None
        or raw._value_body is not None
        or raw.footer is not None
        or raw.delivery_annotations is not None
    ):
        return None
    try:
        header, times = _header(raw.header)
        parts = [
            header,
            _annotations(raw.annotations),
            _properties(raw.properties, times),
            _application_properties(raw.application_properties),
        ]
    except _Unusual:
        return None
    for item in data:
        if type(item) is not bytes:
            return None
        parts.append(b"\x00\x53\x75" + _sized(_BINARY, item))
    return b"".join(parts)


def _header(header: AmqpMessageHeader | None) -> tuple[bytes, tuple[int, int] | None]:
    """The header, and the times that limit the life of the message: creation and expiry."""
    if header is None:
        return b"", None
    fields = header.__dict__
    if type(header) is not AmqpMessageHeader or fields.keys() != _HEADER:
        raise _Unusual
    life = fields["time_to_live"]
    for name, value in fields.items():
        if value is not None and name != "time_to_live":
            raise _Unusual
    if life is None:
        return b"", None
    if type(life) is not int or not 0 < life <= _UINT_MAX or life == MAX_DURATION_VALUE:
        raise _Unusual
    # The SDK reads the time of day in UTC as if it were local. What it would send is asked for, not what is right.
    now = datetime.datetime.now(datetime.UTC)  # noqa: TID251 - the SDK reads the clock here, too
    creation = int(time.mktime(now.timetuple()) * 1000)
    items = [sections.NULL, sections.NULL, sections.encode_uint(life), sections.NULL, sections.NULL]
    expiry = int(min(MAX_ABSOLUTE_EXPIRY_TIME, creation + life))
    return b"\x00\x53\x70" + sections.encode_list(items), (creation, expiry)


def _properties(properties: AmqpMessageProperties | None, times: tuple[int, int] | None) -> bytes:
    if properties is None:
        if times is not None:
            raise _Unusual
        return b""
    fields = properties.__dict__
    if type(properties) is not AmqpMessageProperties or fields.keys() != _PROPERTIES:
        raise _Unusual
    items = [_field(fields[name], code) for name, code in _BEFORE_TIMES]
    if times is None:
        if fields["creation_time"] is not None or fields["absolute_expiry_time"] is not None:
            raise _Unusual
        items += (sections.NULL, sections.NULL)
    else:
        creation, expiry = times
        items += (sections.encode_timestamp(expiry), sections.encode_timestamp(creation))
    items += [_field(fields[name], code) for name, code in _AFTER_TIMES]
    if items.count(sections.NULL) == len(items):
        return b""
    return b"\x00\x53\x73" + sections.encode_list(items)


def _field(value: object, code: tuple[int, int] | None) -> bytes:
    if value is None:
        return sections.NULL
    if code is None or type(value) is not str:
        raise _Unusual
    return _sized(code, value.encode())


def _annotations(annotations: object) -> bytes:
    if not annotations:
        return b""
    if type(annotations) is not dict:
        raise _Unusual
    items = []
    for key, value in annotations.items():
        if key in _LONG_ANNOTATIONS:
            raise _Unusual
        if type(key) is str:
            name = key.encode()
        elif type(key) is bytes:  # as the SDK itself writes them
            name = key
        else:
            raise _Unusual
        items.append((_sized(_SYMBOL, name), _value(value)))
    return b"\x00\x53\x72" + sections.encode_map(items)


def _application_properties(given: object) -> bytes:
    if not given:
        return b""
    if type(given) is not dict:
        raise _Unusual
    items = []
    for key, value in given.items():
        # The SDK makes text of bytes.
        if type(key) is not str or type(value) is bytes:
            raise _Unusual
        items.append((_sized(_STRING, key.encode()), _value(value)))
    return b"\x00\x53\x74" + sections.encode_map(items)


def _value(value: object) -> bytes:
    """A value of an annotation or an application property, as the SDK chooses its type."""
    kind = type(value)
    if kind is str:
        return _sized(_STRING, value.encode())  # type: ignore[attr-defined]  # mypy does not follow ``kind``
    if value is None:
        return sections.NULL
    if isinstance(value, bool):
        return b"\x56\x01" if value else b"\x56\x00"
    if kind is int and isinstance(value, int) and -(2**31) <= value < 2**31:
        return bytes((0x54, value & 0xFF)) if -128 <= value <= 127 else _INT.pack(0x71, value)
    if kind is float:
        return _DOUBLE.pack(0x82, value)
    if kind is bytes and isinstance(value, bytes):
        return _sized(_BINARY, value)
    if kind is uuid.UUID and isinstance(value, uuid.UUID):
        return b"\x98" + value.bytes
    if kind is datetime.datetime and isinstance(value, datetime.datetime):
        return sections.encode_timestamp(
            int(calendar.timegm(value.utctimetuple()) * 1000 + value.microsecond / 1000)
        )
    raise _Unusual


def _sized(code: tuple[int, int], content: bytes) -> bytes:
    if len(content) <= 255:
        return bytes((code[0], len(content))) + content
    return bytes((code[1],)) + len(content).to_bytes(4, "big") + content
