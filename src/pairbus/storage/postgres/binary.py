"""Numbers and texts in PostgreSQL's binary form."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from psycopg import pq

INT4: Final = 23
INT8: Final = 20
BYTEA: Final = 17
TEXT: Final = 25
INT8_ARRAY: Final = 1016

_INT4: Final = struct.Struct("!i")
_INT8: Final = struct.Struct("!q")
_ARRAY_HEAD: Final = struct.Struct("!iiIii")
_ITEM: Final = struct.Struct("!iq")
_SIGN: Final = 1 << 63
_ALL: Final = 1 << 64

int4 = _INT4.pack
int8 = _INT8.pack


def unsigned8(value: int) -> bytes:
    """A number of 64 bits without a sign, which PostgreSQL does not have, by the same bits."""
    return _INT8.pack(signed(value))


def signed(value: int) -> int:
    """The number with a sign that has the same 64 bits."""
    return value - _ALL if value >= _SIGN else value


def int8_array(values: list[int]) -> bytes:
    """Several numbers as one parameter."""
    items = b"".join(_ITEM.pack(8, value) for value in values)
    return _ARRAY_HEAD.pack(1, 0, INT8, len(values), 1) + items


def number(result: pq.abc.PGresult, row: int, column: int) -> int:
    """A cell that holds an int4 or an int8."""
    data = result.get_value(row, column)
    assert data is not None, "the column is declared not null"
    value: int = (_INT8 if len(data) == _INT8.size else _INT4).unpack(data)[0]
    return value


def optional_number(result: pq.abc.PGresult, row: int, column: int) -> int | None:
    """As ``number``, of a cell that may be empty."""
    return None if result.get_value(row, column) is None else number(result, row, column)


def unsigned(result: pq.abc.PGresult, row: int, column: int) -> int:
    """What ``unsigned8`` wrote."""
    return number(result, row, column) % _ALL


def raw(result: pq.abc.PGresult, row: int, column: int) -> bytes:
    """A cell's bytes."""
    data = result.get_value(row, column)
    assert data is not None, "the column is declared not null"
    return data


def text(result: pq.abc.PGresult, row: int, column: int) -> str:
    return raw(result, row, column).decode()
