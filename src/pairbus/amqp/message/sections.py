"""The sections of a message where they belong and as AMQP wants them, for the few messages whose sender writes them otherwise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pairbus.amqp.decode import bad, decode_value, read_u32, skip_value
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
)

if TYPE_CHECKING:
    from mypy_extensions import i64

_SYMBOLIC: Final[dict[str, int]] = {
    "amqp:header:list": HEADER,
    "amqp:delivery-annotations:map": DELIVERY_ANNOTATIONS,
    "amqp:message-annotations:map": MESSAGE_ANNOTATIONS,
    "amqp:properties:list": PROPERTIES,
    "amqp:application-properties:map": APPLICATION_PROPERTIES,
    "amqp:data:binary": DATA,
    "amqp:amqp-sequence:list": SEQUENCE,
    "amqp:amqp-value:*": VALUE,
    "amqp:footer:map": FOOTER,
}


def descriptor(payload: bytes, offset: i64, end: i64) -> tuple[i64, i64]:
    """The code of a section, and where its value starts."""
    if end - offset > 3 and payload[offset] == 0 and payload[offset + 1] == 0x53:
        return payload[offset + 2], offset + 3
    return long_descriptor(payload, offset, end)


def long_descriptor(payload: bytes, offset: i64, end: i64) -> tuple[i64, i64]:
    if payload[offset] != 0:
        raise bad(f"a message section was expected at byte {offset}")
    descriptor, at = decode_value(payload, offset + 1, end)
    code = _SYMBOLIC.get(str(descriptor), 0) if isinstance(descriptor, str) else descriptor
    if not isinstance(code, int) or not HEADER <= code <= FOOTER:
        raise bad(f"descriptor {descriptor!r} is no message section")
    return code, at


def joined_in_order(payload: bytes) -> bytes:
    """The sections of the bare message where they belong, each with the short descriptor. ``_scan`` has checked them."""
    end = len(payload)
    offset = 0
    pieces: list[tuple[int, bytes]] = []
    while offset < end:
        code, at = descriptor(payload, offset, end)
        offset = skip_value(payload, at, end)
        if code >= PROPERTIES:
            place = DATA if DATA <= code <= VALUE else code
            value = payload[at:offset]
            if code == FOOTER:
                first = _first_key(value)
                value = value[:first] + with_symbol_keys(value[first:])
            pieces.append((place, bytes((0x00, 0x53, code)) + value))
    return b"".join(
        piece
        for place in (PROPERTIES, APPLICATION_PROPERTIES, DATA, FOOTER)
        for at, piece in pieces
        if at == place
    )


def has_string_keys(footer: bytes) -> bool:
    """Whether an encoded footer has a key that should be a symbol."""
    items = footer[_first_key(footer) :]
    return with_symbol_keys(items) != items


def _first_key(encoded: bytes) -> int:
    """Where the items of an encoded map begin, if they are whole pairs."""
    count = encoded[2] if encoded[0] == 0xC1 else read_u32(encoded, 5)
    if count & 1:
        raise bad("a footer has a key without a value")
    return 3 if encoded[0] == 0xC1 else 9


def with_symbol_keys(items: bytes) -> bytes:
    """Keys and values with symbols for keys that are strings.

    AMQP 1.0, 3.2.10, has no other text keys, and the Java client fails at them, although it writes its own footers so.
    A symbol has as many bytes as the string; only ASCII can be one.
    """
    made = bytearray(items)
    end: i64 = len(items)
    at: i64 = 0
    while at < end:
        start = at
        at = skip_value(items, at, end)
        code: i64 = items[start]
        if (code == 0xA1 or code == 0xB1) and items[start + (2 if code == 0xA1 else 5) : at].isascii():
            made[start] = code + 2
        at = skip_value(items, at, end)
    return bytes(made)
