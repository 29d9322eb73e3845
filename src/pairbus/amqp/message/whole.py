"""Whole messages as objects: requests and responses of ``$cbs`` and ``$management``, and tests. Not the hot path."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from pairbus.amqp.composite import (
    ANY,
    BINARY,
    SYMBOL,
    TEXT,
    TIMESTAMP,
    UINT,
    Field,
    define,
    read_composite,
    text_keyed,
)
from pairbus.amqp.decode import bad, decode_value, skip_value, values_budget
from pairbus.amqp.encode import (
    NULL,
    encode_binary,
    encode_described,
    encode_fields,
    encode_list,
    encode_map,
    encode_value,
)
from pairbus.amqp.message.layout import (
    APPLICATION_PROPERTIES,
    DATA,
    DELIVERY_ANNOTATIONS,
    FOOTER,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    SEQUENCE,
    VALUE,
    raw_items,
)
from pairbus.amqp.types import Described, Symbol, Timestamp

BODY_KINDS: Final[dict[int, str]] = {DATA: "data", SEQUENCE: "sequence", VALUE: "value"}


@dataclass(slots=True)
class Properties:
    """The immutable properties of a message (AMQP 1.0, 3.2.4)."""

    message_id: object | None = None
    user_id: bytes = b""
    to: str | None = None
    subject: str | None = None
    reply_to: str | None = None
    correlation_id: object | None = None
    content_type: str | None = None
    content_encoding: str | None = None
    absolute_expiry_time: int | None = None
    creation_time: int | None = None
    group_id: str | None = None
    group_sequence: int | None = None
    reply_to_group_id: str | None = None
    message_id_raw: bytes = b""
    """The id with its constructor: a response copies it, so that its type stays the same."""
    correlation_id_raw: bytes = b""


_PROPERTY_FIELDS: Final = (
    Field("message_id", ANY),
    Field("user_id", BINARY),
    Field("to", TEXT),
    Field("subject", TEXT),
    Field("reply_to", TEXT),
    Field("correlation_id", ANY),
    Field("content_type", SYMBOL),
    Field("content_encoding", SYMBOL),
    Field("absolute_expiry_time", TIMESTAMP),
    Field("creation_time", TIMESTAMP),
    Field("group_id", TEXT),
    Field("group_sequence", UINT),
    Field("reply_to_group_id", TEXT),
)
define(Properties, PROPERTIES, *_PROPERTY_FIELDS)
PROPERTY_FIELDS: Final = tuple(item.name for item in _PROPERTY_FIELDS)
"""The names of the section's fields, in the order of the wire."""


@dataclass(slots=True)
class DecodedMessage:
    """Every section of a message, decoded."""

    header: list[object] = field(default_factory=list)
    """durable, priority, ttl, first-acquirer, delivery-count; shorter when the sender's list is."""
    delivery_annotations: dict[object, object] = field(default_factory=dict)
    message_annotations: dict[object, object] = field(default_factory=dict)
    properties: Properties = field(default_factory=Properties)
    application_properties: dict[str, object] = field(default_factory=dict)
    body_kind: str = ""
    """"data", "sequence", "value", or empty when there is no body."""
    body: object | None = None
    """The value; for data and sequences the bytes or items of all sections joined."""
    footer: dict[object, object] = field(default_factory=dict)


def decode_message(payload: bytes, values_max: int = -1) -> DecodedMessage:
    """Decode every section; with ``values_max``, of no more than so many values in all.

    Raises:
        RemoteProtocolError: the bytes are no message.
    """
    message = DecodedMessage()
    decode_into(message, payload, values_max)
    return message


def decode_into(message: DecodedMessage, payload: bytes, values_max: int = -1) -> None:
    """As ``decode_message``; a message that cannot be read to its end keeps the sections before."""
    offset, end = 0, len(payload)
    budget = values_budget(values_max) if values_max >= 0 else None
    while offset < end:
        start = offset
        section, offset = decode_value(payload, offset, end, budget)
        if not isinstance(section, Described) or not isinstance(section.descriptor, int):
            raise bad("a message section was expected")
        code, value = section.descriptor, section.value
        if code == PROPERTIES and isinstance(value, list):
            message.properties = _properties(value, payload[skip_value(payload, start + 1, end) : offset])
        elif code in BODY_KINDS:
            _add_body(message, code, value)
        elif code == HEADER and isinstance(value, list):
            message.header = value
        elif isinstance(value, dict):
            _add_map(message, code, value)
        else:
            raise bad(f"descriptor {code} is no message section")


def _add_map(message: DecodedMessage, code: int, value: dict[object, object]) -> None:
    if code == APPLICATION_PROPERTIES:
        message.application_properties = text_keyed(value, "application-properties")
    elif code == MESSAGE_ANNOTATIONS:
        message.message_annotations = value
    elif code == DELIVERY_ANNOTATIONS:
        message.delivery_annotations = value
    elif code == FOOTER:
        message.footer = value
    else:
        raise bad(f"descriptor {code} is no message section")


def _add_body(message: DecodedMessage, code: int, value: object) -> None:
    kind = BODY_KINDS[code]
    if message.body_kind not in ("", kind):
        raise bad("a message has bodies of two kinds")
    message.body_kind = kind
    if code == DATA and isinstance(value, bytes):
        message.body = message.body + value if isinstance(message.body, bytes) else value
    elif code == SEQUENCE and isinstance(value, list):
        message.body = message.body + value if isinstance(message.body, list) else value
    elif code == VALUE:
        message.body = value
    else:
        raise bad(f"section 0x{code:02x} has a value of another type")


def _properties(items: list[object], raw: bytes) -> Properties:
    properties = read_composite(Properties, items)
    slices = raw_items(raw)
    properties.message_id_raw = slices[0] if properties.message_id is not None else b""
    properties.correlation_id_raw = slices[5] if properties.correlation_id is not None else b""
    return properties


def encode_message(
    *,
    message_id: object | None = None,
    correlation_id: object | None = None,
    correlation_id_raw: bytes = b"",
    to: str | None = None,
    reply_to: str | None = None,
    subject: str | None = None,
    content_type: str | None = None,
    group_id: str | None = None,
    absolute_expiry_time: int | None = None,
    creation_time: int | None = None,
    application_properties: dict[str, object] | None = None,
    message_annotations: dict[str, object] | None = None,
    delivery_annotations: dict[str, object] | None = None,
    header: list[object] | None = None,
    body: object | None = None,
    body_kind: str = "value",
) -> bytes:
    """One encoded message. ``body_kind`` empty: no body at all."""
    parts: list[bytes] = []
    if header is not None:
        parts.append(encode_described(HEADER, encode_value(header)))
    if delivery_annotations is not None:
        parts.append(encode_described(DELIVERY_ANNOTATIONS, encode_fields(delivery_annotations)))
    if message_annotations is not None:
        parts.append(encode_described(MESSAGE_ANNOTATIONS, encode_fields(message_annotations)))
    fields = [
        encode_value(message_id),
        NULL,
        encode_value(to),
        encode_value(subject),
        encode_value(reply_to),
        correlation_id_raw or encode_value(correlation_id),
        NULL if content_type is None else encode_value(Symbol(content_type)),
        NULL,
        NULL if absolute_expiry_time is None else encode_value(Timestamp(absolute_expiry_time)),
        NULL if creation_time is None else encode_value(Timestamp(creation_time)),
        encode_value(group_id),
        NULL,
        NULL,
    ]
    if any(field != NULL for field in fields):
        parts.append(encode_described(PROPERTIES, encode_list(fields)))
    if application_properties is not None:
        parts.append(encode_described(APPLICATION_PROPERTIES, encode_map(application_properties)))
    parts.extend(_encoded_body(body, body_kind))
    return b"".join(parts)


def _encoded_body(body: object, kind: str) -> list[bytes]:
    if kind == "data" and isinstance(body, bytes):
        return [encode_described(DATA, encode_binary(body))]
    if kind == "sequence":
        return [encode_described(SEQUENCE, encode_value(body))]
    if kind == "value":
        return [encode_described(VALUE, encode_value(body))]
    return []
