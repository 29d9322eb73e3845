"""Values to bytes, and the small pieces that performatives are made of."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final, TypeVar

from pairbus.amqp.types import (
    Array,
    Byte,
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
    Described,
    Double,
    Float,
    Int,
    Long,
    Short,
    Sized,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
    Uuid,
)
from pairbus.errors import UsageError

_Key = TypeVar("_Key")

NULL: Final = b"\x40"
TRUE: Final = b"\x41"
FALSE: Final = b"\x42"
EMPTY_LIST: Final = b"\x45"

_DOUBLE: Final = struct.Struct(">Bd")
_FLOAT: Final = struct.Struct(">Bf")
_LONG: Final = struct.Struct(">Bq")
_U32: Final = struct.Struct(">BI")
_COMPOUND32: Final = struct.Struct(">BII")

# The widest constructor of each fixed-width type, with its struct format: what arrays use for all elements.
_WIDE_INTEGERS: Final[dict[type, tuple[int, str]]] = {
    UByte: (0x50, ">B"),
    UShort: (0x60, ">H"),
    UInt: (0x70, ">I"),
    ULong: (0x80, ">Q"),
    Byte: (0x51, ">b"),
    Short: (0x61, ">h"),
    Int: (0x71, ">i"),
    Long: (0x81, ">q"),
}


def encode_value(value: object) -> bytes:
    """The bytes of one value, constructor first.

    Raises:
        UsageError: the value has no AMQP type or does not fit the width asked for.
    """
    if value is None:
        return NULL
    if isinstance(value, bool):
        return TRUE if value else FALSE
    if isinstance(value, Symbol):
        return encode_symbol(value)
    if isinstance(value, str):
        return encode_string(value)
    if isinstance(value, int):
        return _encode_long(value)
    if isinstance(value, bytes):
        return encode_binary(value)
    if isinstance(value, Array):
        return encode_array(value)
    if isinstance(value, list):
        return encode_list([encode_value(item) for item in value])
    if isinstance(value, dict):
        return encode_map(value)
    if isinstance(value, Sized):
        return _encode_sized(value)
    return _encode_rare(value)


def _encode_rare(value: object) -> bytes:
    if isinstance(value, float):
        return _DOUBLE.pack(0x82, value)
    if isinstance(value, Timestamp):
        return encode_timestamp(value.ms)
    if isinstance(value, Uuid):
        return b"\x98" + value.raw
    if isinstance(value, Described):
        return b"\x00" + encode_value(value.descriptor) + encode_value(value.value)
    if isinstance(value, Double):
        return _DOUBLE.pack(0x82, value.value)
    if isinstance(value, Float):
        return _FLOAT.pack(0x72, value.value)
    if isinstance(value, Char):
        return _U32.pack(0x73, value.code)
    if isinstance(value, Decimal32):
        return b"\x74" + value.raw
    if isinstance(value, Decimal64):
        return b"\x84" + value.raw
    if isinstance(value, Decimal128):
        return b"\x94" + value.raw
    raise UsageError(f"no AMQP type for {type(value).__name__}; use one of pairbus.amqp.types")


def _encode_long(value: int) -> bytes:
    if -128 <= value <= 127:
        return bytes((0x55, value & 0xFF))
    try:
        return _LONG.pack(0x81, value)
    except struct.error as error:
        raise UsageError(f"{value} does not fit a long; use ULong or a string") from error


def _encode_sized(value: Sized) -> bytes:
    number = value.value
    if isinstance(value, UInt) and number >= 0:
        return encode_uint(number)
    if isinstance(value, ULong) and 0 <= number <= 0xFF:
        return encode_small_ulong(number)
    if isinstance(value, Int) and -128 <= number <= 127:
        return bytes((0x54, number & 0xFF))
    if isinstance(value, Long):
        return _encode_long(number)
    code, layout = _WIDE_INTEGERS[type(value)]
    return bytes((code,)) + _packed(layout, number, value)


def _packed(layout: str, number: int, value: object) -> bytes:
    try:
        return struct.pack(layout, number)
    except struct.error as error:
        raise UsageError(f"{number} does not fit {type(value).__name__}") from error


def encode_uint(value: int) -> bytes:
    """An unsigned 32-bit number in its shortest form."""
    if value == 0:
        return b"\x43"
    if value <= 0xFF:
        return bytes((0x52, value))
    if value > 0xFFFFFFFF:
        raise UsageError(f"{value} does not fit UInt")
    return _U32.pack(0x70, value)


def encode_ulong(value: int) -> bytes:
    """An unsigned 64-bit number in its shortest form; for max-message-size and the like."""
    return encode_value(ULong(value))


def encode_small_ulong(value: int) -> bytes:
    """The one-byte form, also for 0: every descriptor goes out like this."""
    return bytes((0x53, value))


def encode_timestamp(ms: int) -> bytes:
    """Milliseconds since the Unix epoch."""
    try:
        return _LONG.pack(0x83, ms)
    except struct.error as error:
        raise UsageError(f"{ms} does not fit a timestamp") from error


def encode_string(value: str) -> bytes:
    """UTF-8 text."""
    raw = value.encode("utf-8", "replace")
    if len(raw) <= 0xFF:
        return bytes((0xA1, len(raw))) + raw
    return _U32.pack(0xB1, len(raw)) + raw


def encode_symbol(value: str) -> bytes:
    raw = value.encode("utf-8", "replace")
    if len(raw) <= 0xFF:
        return bytes((0xA3, len(raw))) + raw
    return _U32.pack(0xB3, len(raw)) + raw


def encode_binary(value: bytes) -> bytes:
    """Opaque bytes."""
    if len(value) <= 0xFF:
        return bytes((0xA0, len(value))) + value
    return _U32.pack(0xB0, len(value)) + value


def encode_list(items: list[bytes]) -> bytes:
    """A list of already encoded items."""
    if not items:
        return EMPTY_LIST
    return _compound(0xC0, 0xD0, len(items), b"".join(items))


def encode_map(pairs: Mapping[_Key, object]) -> bytes:
    """A map; a ``str`` key becomes a string, a ``Symbol`` key a symbol."""
    return encode_map_items([encode_value(key) + encode_value(value) for key, value in pairs.items()])


def encode_symbols(names: list[str]) -> bytes:
    """Several symbols as an array; null for none."""
    return encode_array(Array([Symbol(name) for name in names])) if names else NULL


def encode_fields(pairs: Mapping[str, object]) -> bytes:
    """A map whose keys are symbols: properties of connections and links, details of errors, filters."""
    return encode_map_items([encode_symbol(key) + encode_value(value) for key, value in pairs.items()])


def encode_map_items(pairs: list[bytes]) -> bytes:
    """A map from already encoded pairs."""
    return _compound(0xC1, 0xD1, 2 * len(pairs), b"".join(pairs))


def encode_array(items: Array) -> bytes:
    """An array; every item has the type of the first."""
    if not items:
        return b"\xe0\x02\x00\x40"
    code, contents = _array_contents(items)
    body = code + b"".join(contents)
    return _compound(0xE0, 0xF0, len(items), body)


def encode_described(code: int, value: bytes) -> bytes:
    """A value behind a numeric descriptor in the one-byte form, which is all that ``_pyamqp`` reads."""
    return bytes((0x00, 0x53, code)) + value


def _compound(small: int, large: int, count: int, content: bytes) -> bytes:
    if len(content) < 0xFF and count <= 0xFF:
        return bytes((small, len(content) + 1, count)) + content
    return _COMPOUND32.pack(large, len(content) + 4, count) + content


def _array_contents(items: Array) -> tuple[bytes, list[bytes]]:
    first = items[0]
    if isinstance(first, Described):
        values = Array()
        for item in items:
            if not isinstance(item, Described) or item.descriptor != first.descriptor:
                raise UsageError("an array of described values needs one descriptor for all")
            values.append(item.value)
        code, contents = _array_contents(values)
        return b"\x00" + encode_value(first.descriptor) + code, contents
    contents = [_array_item(item, first) for item in items]
    return bytes((_array_code(first),)), contents


def _array_code(first: object) -> int:
    if isinstance(first, bool):
        return 0x56
    if isinstance(first, int):
        return 0x81
    if isinstance(first, Sized):
        return _WIDE_INTEGERS[type(first)][0]
    if isinstance(first, list) and not isinstance(first, Array):
        return 0xD0
    # The encoded form of anything else starts with its constructor, once the short forms are widened.
    code = encode_value(first)[0]
    if code in (0xA0, 0xA1, 0xA3, 0xC1, 0xE0):
        return code + 0x10
    return code


def _array_item(item: object, first: object) -> bytes:
    """The content of one element, without constructor, in the wide form."""
    if type(item) is not type(first):
        raise UsageError(f"an array mixes {type(first).__name__} and {type(item).__name__}")
    if isinstance(item, bool):
        return b"\x01" if item else b"\x00"
    if isinstance(item, int):
        return _packed(">q", item, item)
    if isinstance(item, Sized):
        return _packed(_WIDE_INTEGERS[type(item)][1], item.value, item)
    encoded = encode_value(item)
    code = encoded[0]
    if code in (0xA0, 0xA1, 0xA3):
        return (len(encoded) - 2).to_bytes(4, "big") + encoded[2:]
    if code in (0xC0, 0xC1, 0xE0):
        # Size and count grow from one byte to four; the size counts the count.
        return (len(encoded) + 1).to_bytes(4, "big") + encoded[2].to_bytes(4, "big") + encoded[3:]
    if code == 0x45:
        return b"\x00\x00\x00\x04\x00\x00\x00\x00"
    return encoded[1:]
