"""Bytes to values: every AMQP type, within bounds.

Rule 1: a count, width or nesting that the bytes claim is never believed beyond the bytes that are there.
Rule 2: whatever is wrong ends in ``RemoteProtocolError("amqp:decode-error")`` and nothing else.
Rule 3: decoding n bytes makes at most n + ELEMENTS_SLACK values, each of bounded overhead (B60).
Rule 4: one byte can become a value of 70 bytes and a microsecond of work. Where a peer chooses the bytes, the caller
therefore limits the number of values too (``values_budget``), and skips the fields that it does not need.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from pairbus.amqp.types import (
    Array,
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
    Described,
    Symbol,
    Timestamp,
    Uuid,
)
from pairbus.errors import RemoteProtocolError

if TYPE_CHECKING:
    from mypy_extensions import i64

DEPTH_MAX: Final = 32
"""How deep compound values may nest."""
ELEMENTS_MAX: Final = 65536
"""How many elements one list, map or array may have."""
ELEMENTS_SLACK: Final = 1024
"""How many values a decoding may make beyond one per byte: elements of arrays may have no width at all."""

DECODE_ERROR: Final = "amqp:decode-error"

_INT: Final = struct.Struct(">i")
_LONG: Final = struct.Struct(">q")
_SHORT: Final = struct.Struct(">h")
_BYTE: Final = struct.Struct(">b")
_FLOAT: Final = struct.Struct(">f")
_DOUBLE: Final = struct.Struct(">d")

# AMQP 1.0, 1.2: the high half of a constructor says how wide the value is. Negative: a size of one (-1) or
# four (-4) bytes follows. UNKNOWN marks a constructor that the standard does not define.
UNKNOWN: Final = -9


def _widths() -> bytes:
    """Width + 9 by constructor, so that the table can be bytes and is quick to index."""
    table = [UNKNOWN] * 256
    known = {
        0: (0x40, 0x41, 0x42, 0x43, 0x44, 0x45),
        1: (0x50, 0x51, 0x52, 0x53, 0x54, 0x55, 0x56),
        2: (0x60, 0x61),
        4: (0x70, 0x71, 0x72, 0x73, 0x74),
        8: (0x80, 0x81, 0x82, 0x83, 0x84),
        16: (0x94, 0x98),
        -1: (0xA0, 0xA1, 0xA3, 0xC0, 0xC1, 0xE0),
        -4: (0xB0, 0xB1, 0xB3, 0xD0, 0xD1, 0xF0),
    }
    for width, codes in known.items():
        for code in codes:
            table[code] = width
    return bytes(width - UNKNOWN for width in table)


WIDTHS: Final = _widths()

STEPS: Final = bytes(
    1 + width if width >= 0 else 254 if width == -1 else 0 for width in (entry + UNKNOWN for entry in WIDTHS)
)
"""For loops that skip many values: constructor and content together, 254 when a one-byte size follows, 0 when only
``skip_value`` can tell."""


TEXT_CODES: Final = b"\xa1\xa3\xb1\xb3"
"""Constructors of strings and symbols, short and long."""


class Budget:
    """How many more values a decoding may make."""

    __slots__ = ("left",)

    def __init__(self, size: int) -> None:
        self.left = size + ELEMENTS_SLACK


def values_budget(values_max: int) -> Budget:
    """A budget of a fixed number of values, whatever the number of bytes."""
    return Budget(values_max - ELEMENTS_SLACK)


def bad(description: str) -> RemoteProtocolError:
    """The error for bytes that are no AMQP value."""
    return RemoteProtocolError(DECODE_ERROR, description)


def decode_value(
    buf: bytes, offset: int = 0, end: int = -1, budget: Budget | None = None
) -> tuple[object, int]:
    """The value that starts at ``offset`` and where the next one would start.

    Raises:
        RemoteProtocolError: the bytes up to ``end`` hold no complete, valid value.
    """
    if end < 0:
        end = len(buf)
    if budget is None:
        budget = Budget(end - offset)
    return _decode(buf, offset, end, 0, budget)


def decode_list(
    buf: bytes, offset: int, end: int, wanted: int, count_max: int, budget: Budget
) -> tuple[list[object], int]:
    """The list at ``offset`` and where it ends; only the elements whose bit is set in ``wanted`` are decoded.

    The other elements are skipped and read as null, which takes no memory however many values they hold.

    Raises:
        RemoteProtocolError: the bytes up to ``end`` hold no list, or one of more than ``count_max`` elements.
    """
    code = buf[offset] if offset < end else -1
    if code == 0x45:
        return [], offset + 1
    width = 1 if code == 0xC0 else 4 if code == 0xD0 else 0
    start = offset + 1 + width
    if not width or start + width > end:
        raise bad("a list is missing or cut short")
    stop = start + int.from_bytes(buf[offset + 1 : start], "big")
    at = start + width
    if stop > end or at > stop:
        raise bad(f"a list ends at byte {stop}; it must end between {at} and {end}")
    count = int.from_bytes(buf[start:at], "big")
    if count > count_max:
        raise bad(f"a list of {count} fields; at most {count_max} are allowed here")
    items: list[object] = []
    for index in range(count):
        if wanted >> index & 1:
            item, at = _decode(buf, at, stop, 1, budget)
            items.append(item)
        else:
            at = skip_value(buf, at, stop)
            items.append(None)
    if at != stop:
        raise bad(f"a list ends {stop - at} bytes before its size says")
    return items, stop


def read_u32(buf: bytes, offset: i64) -> i64:
    """The unsigned number in four bytes. IndexError if they are not there."""
    return buf[offset] << 24 | buf[offset + 1] << 16 | buf[offset + 2] << 8 | buf[offset + 3]


def skip_value(buf: bytes, offset: i64, end: i64) -> i64:
    """Where the value that starts at ``offset`` ends. Makes nothing; looks at sizes, not into compounds."""
    pending: i64 = 1
    while pending:
        if offset >= end:
            raise bad(f"a value ends before it is complete, at byte {offset}")
        code: i64 = buf[offset]
        offset += 1
        if code == 0:  # a described value: descriptor, then value
            pending += 1
            continue
        width: i64 = WIDTHS[code] + UNKNOWN
        if width >= 0:
            offset += width
        elif width == -1 and offset < end:
            offset += 1 + buf[offset]
        elif width == -4 and offset + 4 <= end:
            offset += 4 + read_u32(buf, offset)
        else:
            raise bad(f"type constructor 0x{code:02x} is unknown or cut short, at byte {offset - 1}")
        pending -= 1
    if offset > end:
        raise bad(f"a value claims {offset - end} bytes more than there are")
    return offset


def _decode(buf: bytes, offset: int, end: int, depth: int, budget: Budget) -> tuple[object, int]:
    if offset >= end:
        raise bad(f"a value is missing at byte {offset}")
    code = buf[offset]
    if code == 0:
        if depth >= DEPTH_MAX:
            raise bad(f"values nest deeper than {DEPTH_MAX}")
        descriptor, offset = _decode(buf, offset + 1, end, depth + 1, budget)
        value, offset = _decode(buf, offset, end, depth + 1, budget)
        return Described(descriptor, value), offset
    return _decode_as(code, buf, offset + 1, end, depth, budget)


def _decode_as(
    code: int, buf: bytes, offset: int, end: int, depth: int, budget: Budget
) -> tuple[object, int]:
    """The value of constructor ``code`` whose content starts at ``offset``."""
    budget.left -= 1
    if budget.left < 0:
        raise bad("more values are claimed than the bytes can hold, or than are allowed here")
    width = WIDTHS[code] + UNKNOWN
    if width >= 0:
        stop = offset + width
        if stop > end:
            raise bad(f"a value of {width} bytes is cut short at byte {end}")
        return _fixed(code, buf, offset), stop
    if width == UNKNOWN:
        raise bad(f"type constructor 0x{code:02x} is unknown, at byte {offset - 1}")
    start = offset - width
    if start > end:
        raise bad(f"a size is cut short at byte {end}")
    stop = start + int.from_bytes(buf[offset:start], "big")
    if stop > end:
        raise bad(f"a value claims {stop - end} bytes more than there are")
    if code < 0xC0:
        return _variable(code, buf[start:stop]), stop
    return _compound(code, buf, start, stop, -width, depth, budget), stop


def _fixed(code: int, buf: bytes, at: int) -> object:
    if code < 0x50:
        if code == 0x45:
            return list[object]()
        return _CONSTANTS[code - 0x40]
    if code in (0x50, 0x52, 0x53):
        return buf[at]
    if code in (0x51, 0x54, 0x55):
        return _BYTE.unpack_from(buf, at)[0]
    if code == 0x56:
        if buf[at] > 1:
            raise bad(f"a boolean of 0x{buf[at]:02x} is neither true nor false")
        return buf[at] == 1
    return _wide(code, buf, at)


def _wide(code: int, buf: bytes, at: int) -> object:
    if code in (0x60, 0x70, 0x80):
        return int.from_bytes(buf[at : at + (2 << ((code >> 4) - 6))], "big")
    if code == 0x81:
        return _LONG.unpack_from(buf, at)[0]
    if code == 0x71:
        return _INT.unpack_from(buf, at)[0]
    if code == 0x61:
        return _SHORT.unpack_from(buf, at)[0]
    if code == 0x83:
        return Timestamp(_LONG.unpack_from(buf, at)[0])
    if code == 0x98:
        return Uuid(buf[at : at + 16])
    if code == 0x72:
        return _FLOAT.unpack_from(buf, at)[0]
    if code == 0x82:
        return _DOUBLE.unpack_from(buf, at)[0]
    if code == 0x73:
        return Char(int.from_bytes(buf[at : at + 4], "big"))
    if code == 0x74:
        return Decimal32(buf[at : at + 4])
    if code == 0x84:
        return Decimal64(buf[at : at + 8])
    return Decimal128(buf[at : at + 16])


_CONSTANTS: Final[list[object]] = [None, True, False, 0, 0]


def _variable(code: int, content: bytes) -> object:
    kind = code & 0x0F
    if kind == 0:
        return content
    try:
        text = content.decode("utf-8")  # symbols are ASCII by the standard, but clients slip
        return text if kind == 1 else Symbol(text)
    except UnicodeDecodeError as error:
        raise bad(f"a text holds bytes that are none: {error.reason}") from error


def _compound(code: int, buf: bytes, start: int, stop: int, width: int, depth: int, budget: Budget) -> object:
    offset = start + width
    if offset > stop:
        raise bad("a compound value has no room for its count")
    if depth >= DEPTH_MAX:
        raise bad(f"values nest deeper than {DEPTH_MAX}")
    count = int.from_bytes(buf[start:offset], "big")
    if count > ELEMENTS_MAX:
        raise bad(f"{count} elements in one value are more than {ELEMENTS_MAX}")
    if code >= 0xE0:
        return _array(buf, offset, stop, count, depth + 1, budget)
    if count > stop - offset:
        raise bad(f"{count} elements do not fit into {stop - offset} bytes")
    if code in (0xC0, 0xD0):
        return _list(buf, offset, stop, count, depth + 1, budget)
    return _map(buf, offset, stop, count, depth + 1, budget)


def _list(buf: bytes, offset: int, stop: int, count: int, depth: int, budget: Budget) -> object:
    items: list[object] = []
    for _ in range(count):
        item, offset = _decode(buf, offset, stop, depth, budget)
        items.append(item)
    if offset != stop:
        raise bad(f"a list ends {stop - offset} bytes before its size says")
    return items


def _map(buf: bytes, offset: int, stop: int, count: int, depth: int, budget: Budget) -> object:
    if count & 1:
        raise bad(f"a map of {count} elements has a key without a value")
    pairs: dict[object, object] = {}
    for _ in range(count >> 1):
        key, offset = _decode(buf, offset, stop, depth, budget)
        if isinstance(key, (list, dict, Described)):
            raise bad("a map has a compound key")
        value, offset = _decode(buf, offset, stop, depth, budget)
        pairs[key] = value
    if offset != stop:
        raise bad(f"a map ends {stop - offset} bytes before its size says")
    return pairs


def _array(buf: bytes, offset: int, stop: int, count: int, depth: int, budget: Budget) -> object:
    """AMQP 1.0, 1.6.24: one constructor for all elements, possibly a described one."""
    items = Array()
    if count == 0 and offset == stop:
        return items  # some encoders leave the constructor of an empty array out
    descriptors: list[object] = []
    while offset < stop and buf[offset] == 0:
        if depth + len(descriptors) >= DEPTH_MAX:
            raise bad(f"values nest deeper than {DEPTH_MAX}")
        descriptor, offset = _decode(buf, offset + 1, stop, depth, budget)
        descriptors.append(descriptor)
    if offset >= stop:
        raise bad("an array lacks its constructor")
    code = buf[offset]
    offset += 1
    descriptors.reverse()
    for _ in range(count):
        item, offset = _decode_as(code, buf, offset, stop, depth, budget)
        for descriptor in descriptors:
            budget.left -= 1
            item = Described(descriptor, item)
        items.append(item)
    if offset != stop:
        raise bad(f"an array ends {stop - offset} bytes before its size says")
    return items
