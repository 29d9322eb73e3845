"""A message as encoded sections: taken apart and joined again without touching what is not asked for.

The official SDK's decoder forgets types (a long, an int and a timestamp all become ``int``; text becomes bytes), so
"bit for bit" can only be kept on the bytes themselves. Everything here works on slices of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pairbus.amqp.decode import skip_value
from pairbus.errors import RemoteProtocolError

HEADER: Final = 0x70
DELIVERY_ANNOTATIONS: Final = 0x71
MESSAGE_ANNOTATIONS: Final = 0x72
PROPERTIES: Final = 0x73
APPLICATION_PROPERTIES: Final = 0x74
BODIES: Final = (0x75, 0x76, 0x77)
FOOTER: Final = 0x78

NULL: Final = b"\x40"
HEADER_COUNT: Final = 5
BROKER_ANNOTATIONS: Final = frozenset(
    {
        "x-opt-sequence-number",
        "x-opt-enqueued-time",
        "x-opt-locked-until",
        "x-opt-enqueue-sequence-number",
        "x-opt-message-state",
        "x-opt-deadletter-source",
        "x-opt-lock-token",
        "x-opt-partition-id",
    }
)
"""Message annotations that the broker adds to a delivery."""

_SMALL_ULONG: Final = 0x53
_ULONG: Final = 0x80
_SYMBOL: Final = 0xA3
_NAMES: Final = {
    b"amqp:header:list": 0x70,
    b"amqp:delivery-annotations:map": 0x71,
    b"amqp:message-annotations:map": 0x72,
    b"amqp:properties:list": 0x73,
    b"amqp:application-properties:map": 0x74,
    b"amqp:data:binary": 0x75,
    b"amqp:amqp-sequence:list": 0x76,
    b"amqp:amqp-value:*": 0x77,
    b"amqp:footer:map": 0x78,
}
_TYPE_NAMES: Final = {
    0x40: "null",
    0x41: "boolean",
    0x42: "boolean",
    0x43: "uint",
    0x44: "ulong",
    0x45: "list",
    0x50: "ubyte",
    0x51: "byte",
    0x52: "uint",
    0x53: "ulong",
    0x54: "int",
    0x55: "long",
    0x56: "boolean",
    0x60: "ushort",
    0x61: "short",
    0x70: "uint",
    0x71: "int",
    0x72: "float",
    0x73: "char",
    0x74: "decimal32",
    0x80: "ulong",
    0x81: "long",
    0x82: "double",
    0x83: "timestamp",
    0x84: "decimal64",
    0x94: "decimal128",
    0x98: "uuid",
    0xA0: "binary",
    0xA1: "string",
    0xA3: "symbol",
    0xB0: "binary",
    0xB1: "string",
    0xB3: "symbol",
    0x00: "described",
}

Items = list[tuple[bytes, bytes]]
"""A map as encoded keys and values, in their order."""


@dataclass(slots=True)
class Section:
    """One section: its descriptor's code, and its encoded value without the descriptor."""

    code: int
    value: bytes


def split(payload: bytes) -> list[Section]:
    """The sections of a message, in their order.

    Raises:
        RemoteProtocolError: The bytes are no message.
    """
    sections = []
    offset, end = 0, len(payload)
    while offset < end:
        if payload[offset] != 0:
            raise RemoteProtocolError("amqp:decode-error", f"no section starts at byte {offset}")
        value_start = skip_value(payload, offset + 1, end)
        code = _code_of(payload, offset + 1, value_start)
        stop = skip_value(payload, value_start, end)
        sections.append(Section(code, payload[value_start:stop]))
        offset = stop
    return sections


def join(sections: list[Section]) -> bytes:
    """The message of these sections, in the order of the standard (3.2)."""
    ordered = sorted(sections, key=lambda section: section.code)
    return b"".join(b"\x00\x53" + bytes((section.code,)) + section.value for section in ordered)


def find(sections: list[Section], code: int) -> bytes | None:
    """The encoded value of the section with this code."""
    return next((section.value for section in sections if section.code == code), None)


def replace(sections: list[Section], code: int, value: bytes | None) -> list[Section]:
    """The sections with one of them changed, added, or (None) left out."""
    kept = [section for section in sections if section.code != code]
    return kept if value is None else [*kept, Section(code, value)]


def list_items(value: bytes | None) -> list[bytes]:
    """The encoded items of an encoded list; none for no list at all."""
    if value is None or value[0] in (0x40, 0x45):
        return []
    if value[0] not in (0xC0, 0xD0):
        raise RemoteProtocolError("amqp:decode-error", f"a list was expected, not {type_name(value)}")
    return _elements(value)


def first_item(value: bytes) -> list[bytes]:
    """The first item of an encoded list, also when others are damaged; none when there is no list."""
    if value[0] not in (0xC0, 0xD0):
        return []
    start = 3 if value[0] == 0xC0 else 9
    return [value[start : skip_value(value, start, len(value))]]


def encode_list(items: list[bytes]) -> bytes:
    """A list of encoded items, in the form that the official SDK writes."""
    return _compound(0xC0, 0xD0, items) if items else b"\x45"


def map_items(value: bytes | None) -> Items:
    """The encoded keys and values of an encoded map."""
    if value is None or value[0] == 0x40:
        return []
    if value[0] not in (0xC1, 0xD1):
        raise RemoteProtocolError("amqp:decode-error", f"a map was expected, not {type_name(value)}")
    elements = _elements(value)
    if len(elements) % 2:
        raise RemoteProtocolError("amqp:decode-error", "a map has a key without a value")
    return list(zip(elements[::2], elements[1::2], strict=True))


def encode_map(items: Items) -> bytes:
    """A map of encoded keys and values, in the form that the official SDK writes."""
    return _compound(0xC1, 0xD1, [part for pair in items for part in pair])


def text_of(raw: bytes) -> str | None:
    """The text of an encoded string or symbol; None for any other type."""
    if raw[0] in (0xA1, 0xA3):
        return raw[2:].decode("utf-8", "replace")
    if raw[0] in (0xB1, 0xB3):
        return raw[5:].decode("utf-8", "replace")
    return None


def encode_text(text: str) -> bytes:
    content = text.encode()
    if len(content) <= 255:
        return b"\xa1" + bytes((len(content),)) + content
    return b"\xb1" + len(content).to_bytes(4, "big") + content


def encode_symbol(text: str) -> bytes:
    content = text.encode()
    return b"\xa3" + bytes((len(content),)) + content


def encode_long(value: int) -> bytes:
    if -128 <= value <= 127:
        return b"\x55" + value.to_bytes(1, "big", signed=True)
    return b"\x81" + value.to_bytes(8, "big", signed=True)


def encode_uint(value: int) -> bytes:
    if value == 0:
        return b"\x43"
    return b"\x52" + bytes((value,)) if value <= 255 else b"\x70" + value.to_bytes(4, "big")


def encode_timestamp(ms: int) -> bytes:
    return b"\x83" + ms.to_bytes(8, "big", signed=True)


def uint_of(raw: bytes) -> int | None:
    """The number of an encoded uint; None for any other type."""
    if raw[0] == 0x43:
        return 0
    return int.from_bytes(raw[1:], "big") if raw[0] in (0x52, 0x70) else None


def timestamp_of(raw: bytes) -> int | None:
    """The milliseconds of an encoded timestamp; None for any other type."""
    return int.from_bytes(raw[1:], "big", signed=True) if raw[0] == 0x83 else None


def long_of(raw: bytes) -> int | None:
    """The number of an encoded long; None for any other type."""
    return int.from_bytes(raw[1:], "big", signed=True) if raw[0] in (0x55, 0x81) else None


def described(raw: bytes) -> tuple[str | None, bytes] | None:
    """The symbolic descriptor and the encoded value of a described value; None when it is not described."""
    if raw[0] != 0:
        return None
    stop = skip_value(raw, 1, len(raw))
    return text_of(raw[1:stop]), raw[stop:]


def type_name(raw: bytes) -> str:
    """What an encoded value is, for a person."""
    parts = described(raw)
    if parts is not None:
        return f"described {parts[0] or 'value'}"
    return _TYPE_NAMES.get(raw[0], "compound")


def _code_of(payload: bytes, start: int, stop: int) -> int:
    kind = payload[start]
    if kind == _SMALL_ULONG:
        return payload[start + 1]
    if kind == _ULONG:
        code = int.from_bytes(payload[start + 1 : stop], "big")
    elif kind == _SYMBOL:
        code = _NAMES.get(payload[start + 2 : stop], 0)
    else:
        code = 0
    if not HEADER <= code <= FOOTER:
        raise RemoteProtocolError("amqp:decode-error", f"unknown section at byte {start}")
    return code


def _elements(value: bytes) -> list[bytes]:
    width = 1 if value[0] < 0xD0 else 4
    count = int.from_bytes(value[1 + width : 1 + 2 * width], "big")
    offset, end = 1 + 2 * width, len(value)
    items = []
    for _ in range(count):
        stop = skip_value(value, offset, end)
        items.append(value[offset:stop])
        offset = stop
    if offset != end:
        raise RemoteProtocolError("amqp:decode-error", f"{end - offset} bytes too many in a compound value")
    return items


def _compound(small: int, large: int, parts: list[bytes]) -> bytes:
    content = b"".join(parts)
    # The same bound as the official SDK's encoder, so that an untouched value is written as it was.
    if len(parts) <= 255 and len(content) < 255:
        return bytes((small, len(content) + 1, len(parts))) + content
    return bytes((large,)) + (len(content) + 4).to_bytes(4, "big") + len(parts).to_bytes(4, "big") + content
