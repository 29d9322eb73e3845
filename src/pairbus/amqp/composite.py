"""Composite types by table: an AMQP list whose fields have a name, a type and a position (AMQP 1.0, 1.4).

A composite is a dataclass whose fields all have a default. Its ``Form`` lists the fields in the order of the standard, and one reader and one writer serve all of
them. Frames that come once per message have quicker readers and writers in ``fast``.

Rule 1: every field is written, the last nulls too, behind the short numeric descriptor. Older ``_pyamqp`` raises on short lists and
        knows no other descriptor.
Rule 2: a field that is null or missing keeps the default of the dataclass.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from pairbus.amqp.decode import bad
from pairbus.amqp.encode import (
    FALSE,
    NULL,
    encode_binary,
    encode_described,
    encode_fields,
    encode_list,
    encode_string,
    encode_symbol,
    encode_symbols,
    encode_uint,
    encode_ulong,
    encode_value,
)
from pairbus.amqp.types import Array, Described, Timestamp, UByte, UShort
from pairbus.errors import RemoteProtocolError

Writer = Callable[[Any], bytes]
Reader = Callable[[object, str], object]
"""Checks a decoded value that is not null; the text names the field in errors."""


@dataclass(slots=True, eq=False)
class Kind:
    """How values of one type are written and read."""

    write: Writer
    read: Reader


def _number_up_to(maximum: int) -> Reader:
    def read(value: object, where: str) -> object:
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= maximum:
            raise bad(f"{where} is no number up to {maximum}")
        return value

    return read


def _read_boolean(value: object, where: str) -> object:
    if not isinstance(value, bool):
        raise bad(f"{where} is no boolean")
    return value


def _read_text(value: object, where: str) -> object:
    if not isinstance(value, str):
        raise bad(f"{where} is no text")
    return str(value)


def _read_binary(value: object, where: str) -> object:
    if not isinstance(value, bytes):
        raise bad(f"{where} is no binary")
    return value


def _read_symbols(value: object, where: str) -> object:
    """One symbol or several (AMQP 1.0, 1.4: a field marked multiple)."""
    if isinstance(value, str):
        return [str(value)]
    if isinstance(value, Array):
        return [str(item) for item in value if isinstance(item, str)]
    raise bad(f"{where} is neither a symbol nor an array of them")


def _read_timestamp(value: object, where: str) -> object:  # noqa: ARG001 - what is no timestamp counts as absent
    return value.ms if isinstance(value, Timestamp) else None


def _read_any(value: object, where: str) -> object:  # noqa: ARG001 - any value will do
    return value


def text_keyed(value: object, where: str) -> dict[str, object]:
    """A decoded map whose keys must be symbols or strings."""
    if not isinstance(value, dict):
        raise bad(f"{where} is no map")
    pairs: dict[str, object] = {}
    for key, item in value.items():
        if not isinstance(key, str):
            raise bad(f"{where} has a key that is no symbol")
        pairs[str(key)] = item
    return pairs


def _encode_ubyte(value: int) -> bytes:
    return encode_value(UByte(value))


def _encode_ushort(value: int) -> bytes:
    return encode_value(UShort(value))


def _encode_timestamp(value: int) -> bytes:
    return encode_value(Timestamp(value))


ANY: Final = Kind(encode_value, _read_any)
BINARY: Final = Kind(encode_binary, _read_binary)
BOOLEAN: Final = Kind(encode_value, _read_boolean)
MAP: Final = Kind(encode_fields, text_keyed)
SYMBOL: Final = Kind(encode_symbol, _read_text)
SYMBOLS: Final = Kind(encode_symbols, _read_symbols)
TEXT: Final = Kind(encode_string, _read_text)
TIMESTAMP: Final = Kind(_encode_timestamp, _read_timestamp)
UINT: Final = Kind(encode_uint, _number_up_to(0xFFFF_FFFF))
ULONG: Final = Kind(encode_ulong, _number_up_to(0xFFFF_FFFF_FFFF_FFFF))
USHORT: Final = Kind(_encode_ushort, _number_up_to(0xFFFF))


def ubyte_up_to(maximum: int) -> Kind:
    """An unsigned byte of a limited range."""
    return Kind(_encode_ubyte, _number_up_to(maximum))


class Field:
    """One field of a composite.

    Args:
        name: The attribute that holds it; empty for a field that nothing here reads.
        null: The value of the attribute that is written as null.
        is_required: Whether a missing field is an error.
        written: The attribute to write, where another one than ``name``.
        stand_in: The field whose value this one has when it is null.
        constant: What is written for a field without a name.
    """

    __slots__ = ("constant", "is_required", "kind", "name", "null", "stand_in", "written")

    def __init__(
        self,
        name: str,
        kind: Kind,
        null: object = None,
        *,
        is_required: bool = False,
        written: str = "",
        stand_in: str = "",
        constant: bytes = NULL,
    ) -> None:
        self.name = name
        self.kind = kind
        self.null = null
        self.is_required = is_required
        self.written = written or name
        self.stand_in = stand_in
        self.constant = constant


def unused(count: int) -> list[Field]:
    """Fields that nothing here reads, written as null."""
    return [Field("", ANY)] * count


UNUSED_FALSE: Final = Field("", ANY, constant=FALSE)


class Form:
    """Descriptor, name and fields of one composite type; ``name`` is for errors."""

    __slots__ = ("code", "fields", "name", "writing")

    def __init__(self, code: int, name: str, fields: tuple[Field, ...]) -> None:
        self.code = code
        self.name = name
        self.fields = fields
        self.writing = [(field.written, field.null, field.kind.write, field.constant) for field in fields]


_FORMS: Final[dict[type, Form]] = {}


def define(kind: type, code: int, *fields: Field) -> None:
    """Say how a class of composites is written: its numeric descriptor, and its fields in the order of the standard."""
    _FORMS[kind] = Form(code, kind.__name__.lower(), fields)


class Composite:
    """The base of all composites."""

    __slots__ = ()

    def encode(self) -> bytes:
        form = _FORMS[type(self)]
        parts: list[bytes] = []
        for name, null, write, constant in form.writing:
            if name:
                value = getattr(self, name)
                parts.append(NULL if value is None or value == null else write(value))
            else:
                parts.append(constant)
        return encode_described(form.code, encode_list(parts))


_Made = TypeVar("_Made")


def read_composite(kind: type[_Made], items: list[object]) -> _Made:
    """The composite whose decoded fields are ``items``; fields beyond their end are null.

    Raises:
        RemoteProtocolError: a field has another type than its own, or a mandatory one is missing.
    """
    form = _FORMS[kind]
    made = kind()
    count = len(items)
    for index, field in enumerate(form.fields):
        value = items[index] if index < count and field.name else None
        if value is not None:
            setattr(made, field.name, field.kind.read(value, f"field {index} of {form.name}"))
        elif field.is_required:
            raise RemoteProtocolError(
                "amqp:invalid-field", f"mandatory field {index} of {form.name} is missing"
            )
        elif field.stand_in:
            setattr(made, field.name, getattr(made, field.stand_in))
    return made


def described_list(value: object, symbols: dict[str, int], what: str) -> tuple[int, list[object]]:
    """Numeric descriptor and items of a decoded described list, whichever way its descriptor was written."""
    if isinstance(value, Described) and isinstance(value.value, list):
        descriptor = value.descriptor
        if isinstance(descriptor, str):
            descriptor = symbols.get(str(descriptor))
        if isinstance(descriptor, int):
            return descriptor, value.value
    raise bad(f"{what} is no described list")
