"""Values whose AMQP type a plain Python value does not express.

Decoding gives plain ``bool``, ``int``, ``float``, ``str``, ``bytes``, ``list`` and ``dict`` wherever they are enough,
and the classes here elsewhere. The integer and float wrappers serve encoding only: they pick the width on the wire.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

_Class = TypeVar("_Class")


def interpreted(cls: _Class) -> _Class:
    """Mark a class that inherits from a built-in type: the compiler leaves it to the interpreter."""
    return cls


@interpreted
class Symbol(str):
    """A name from a constrained domain (AMQP 1.0, 1.6.21). Compares equal to the same ``str``."""

    __slots__ = ()


@interpreted
class Array(list[object]):
    """Values of one type (AMQP 1.0, 1.6.24). The first item decides the type on the wire."""

    __slots__ = ()


@dataclass(slots=True, unsafe_hash=True, repr=False)
class Sized:
    """A number that must be encoded with the width its class names."""

    value: int

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.value})"


class UByte(Sized):
    """8 bits, unsigned."""

    __slots__ = ()


class UShort(Sized):
    """16 bits, unsigned."""

    __slots__ = ()


class UInt(Sized):
    """32 bits, unsigned."""

    __slots__ = ()


class ULong(Sized):
    """64 bits, unsigned."""

    __slots__ = ()


class Byte(Sized):
    """8 bits, signed."""

    __slots__ = ()


class Short(Sized):
    """16 bits, signed."""

    __slots__ = ()


class Int(Sized):
    """32 bits, signed."""

    __slots__ = ()


class Long(Sized):
    """64 bits, signed; what a plain ``int`` becomes too."""

    __slots__ = ()


@dataclass(slots=True)
class Float:
    """32 bits of IEEE 754; a plain ``float`` becomes 64."""

    value: float


@dataclass(slots=True)
class Double:
    """64 bits of IEEE 754."""

    value: float


@dataclass(slots=True, unsafe_hash=True)
class Timestamp:
    """Milliseconds since the Unix epoch, UTC (AMQP 1.0, 1.6.17)."""

    ms: int


@dataclass(slots=True, unsafe_hash=True, repr=False)
class Char:
    """One Unicode code point (AMQP 1.0, 1.6.16)."""

    code: int

    def __repr__(self) -> str:
        return f"Char({self.code})"


@dataclass(slots=True, unsafe_hash=True, repr=False)
class Raw:
    """A value kept as the bytes it has on the wire."""

    raw: bytes

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.raw.hex()})"


class Uuid(Raw):
    """Sixteen bytes in RFC order (AMQP 1.0, 1.6.18)."""

    __slots__ = ()

    def __str__(self) -> str:
        text = self.raw.hex()
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"

    @property
    def bytes(self) -> bytes:
        """The sixteen bytes, most significant first."""
        return self.raw


class Decimal32(Raw):
    """IEEE 754 decimal32, not interpreted."""

    __slots__ = ()


class Decimal64(Raw):
    """IEEE 754 decimal64, not interpreted."""

    __slots__ = ()


class Decimal128(Raw):
    """IEEE 754 decimal128, not interpreted."""

    __slots__ = ()


@dataclass(slots=True, repr=False)
class Described:
    """A value with a descriptor that nothing here interprets (AMQP 1.0, 1.2.2)."""

    descriptor: object | None
    value: object | None

    def __hash__(self) -> int:
        # A descriptor may itself be unhashable; the constant keeps equal values equal.
        return 0x0DE5

    def __repr__(self) -> str:
        return f"Described({self.descriptor!r}, {self.value!r})"


def text_of(value: object) -> str | None:
    """The text of a string, a symbol, or a binary that holds UTF-8; None for anything else.

    A program that passes on what it received may send as binary what was a string: the Python client reads annotations as bytes.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return None
    return None
