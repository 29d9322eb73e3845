"""Values whose AMQP type matters beyond what a Python value says.

Decoding gives plain ``bool``, ``int``, ``float``, ``str``, ``bytes``, ``list`` and ``dict`` wherever they say enough,
and the classes here elsewhere. The integer and float wrappers serve encoding only: they pick the width on the wire.
"""

from __future__ import annotations

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


class Sized:
    """A number that must be encoded with the width its class names."""

    __slots__ = ("value",)

    def __init__(self, value: int) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sized) and type(other) is type(self) and other.value == self.value

    def __hash__(self) -> int:
        return hash(self.value)

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


class Float:
    """32 bits of IEEE 754; a plain ``float`` becomes 64."""

    __slots__ = ("value",)

    def __init__(self, value: float) -> None:
        self.value = value

    def __repr__(self) -> str:
        return f"Float({self.value!r})"


class Double:
    """64 bits of IEEE 754."""

    __slots__ = ("value",)

    def __init__(self, value: float) -> None:
        self.value = value

    def __repr__(self) -> str:
        return f"Double({self.value!r})"


class Timestamp:
    """Milliseconds since the Unix epoch, UTC (AMQP 1.0, 1.6.17)."""

    __slots__ = ("ms",)

    def __init__(self, ms: int) -> None:
        self.ms = ms

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Timestamp) and other.ms == self.ms

    def __hash__(self) -> int:
        return hash(self.ms)

    def __repr__(self) -> str:
        return f"Timestamp({self.ms})"


class Char:
    """One Unicode code point (AMQP 1.0, 1.6.16)."""

    __slots__ = ("code",)

    def __init__(self, code: int) -> None:
        self.code = code

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Char) and other.code == self.code

    def __hash__(self) -> int:
        return hash(self.code)

    def __repr__(self) -> str:
        return f"Char({self.code})"


class Raw:
    """A value kept as the bytes it has on the wire."""

    __slots__ = ("raw",)

    def __init__(self, raw: bytes) -> None:
        self.raw = raw

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Raw) and type(other) is type(self) and other.raw == self.raw

    def __hash__(self) -> int:
        return hash(self.raw)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.raw.hex()})"


class Uuid(Raw):
    """Sixteen bytes in RFC order (AMQP 1.0, 1.6.18)."""

    __slots__ = ()

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


class Described:
    """A value with a descriptor nobody here interprets (AMQP 1.0, 1.2.2)."""

    __slots__ = ("descriptor", "value")

    def __init__(self, descriptor: object, value: object) -> None:
        self.descriptor = descriptor
        self.value = value

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Described) and other.descriptor == self.descriptor and other.value == self.value
        )

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
