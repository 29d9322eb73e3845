"""Values that come with a rule: parameters and correlation properties, with the type they were declared by.

The management interface must give back type and text as they came (``long`` stays ``long``), while a rule
works with the plain value. :class:`Declared` carries all three; whatever has no such history stays plain.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from pairbus.amqp.types import Timestamp
from pairbus.engine.rules.sql.text import double_from, duration_ms_from, instant_ms_from, integer_from
from pairbus.engine.rules.sql.values import INTEGER_MAX, INTEGER_MIN, OPAQUE, Duration, kind_of
from pairbus.errors import InvalidRule

if TYPE_CHECKING:
    from collections.abc import Mapping

VALUE_CHARACTERS_MAX: Final = 32_768
SPECIAL_DOUBLES: Final[dict[str, float]] = {
    "INF": float("inf"),
    "inf": float("inf"),
    "-INF": float("-inf"),
    "-inf": float("-inf"),
    "NaN": float("nan"),
    "nan": float("nan"),
}
"""XML schema writes capitals, the Python client what ``str`` gives."""


@final
class Declared:
    """A value with the XML schema type and the text it was declared by."""

    __slots__ = ("text", "type_name", "value")

    def __init__(self, value: object, type_name: str, text: str) -> None:
        self.value = value
        self.type_name = type_name
        self.text = text

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Declared)
            and self.value == other.value
            and self.type_name == other.type_name
            and self.text == other.text
        )

    def __hash__(self) -> int:
        return hash((self.type_name, self.text))

    def __repr__(self) -> str:
        return f"Declared({self.type_name}, {self.text!r})"


def declared(type_name: str, text: str) -> Declared:
    """The value of a text by its XML schema type. Instants and durations keep milliseconds only.

    Raises InvalidRule for an unknown type or a text that is not of its type.
    """
    if len(text) > VALUE_CHARACTERS_MAX:
        raise InvalidRule(f"a value has {len(text)} characters; at most {VALUE_CHARACTERS_MAX} are allowed")
    value = text if type_name == "string" else _parsed(type_name, text.strip())
    if value is None:
        raise InvalidRule(f"{text[:40]!r} is not of type {type_name}")
    return Declared(value, type_name, text)


def _parsed(type_name: str, text: str) -> object:
    if type_name in ("int", "long", "short", "byte", "unsignedInt", "unsignedShort", "unsignedByte"):
        number = integer_from(text)
        return number if number is not None and INTEGER_MIN <= number <= INTEGER_MAX else None
    if type_name in ("double", "float", "decimal"):
        return SPECIAL_DOUBLES[text] if text in SPECIAL_DOUBLES else double_from(text)
    if type_name == "boolean":
        return {"true": True, "1": True, "false": False, "0": False}.get(text.lower())
    if type_name == "dateTime":
        ms = instant_ms_from(text)
        return None if ms is None else Timestamp(ms)
    if type_name == "duration":
        ms = duration_ms_from(text)
        return None if ms is None else Duration(ms)
    raise InvalidRule(
        f"values of type {type_name[:40]!r} are not supported; "
        "use string, int, long, double, boolean, dateTime or duration"
    )


def plain(value: object) -> object:
    """The value a rule works with."""
    return value.value if isinstance(value, Declared) else value


def parameter_values(parameters: Mapping[str, object]) -> dict[str, object]:
    """Parameters by name in lower case; clients give their names with and without ``@``."""
    return plain_values({name.removeprefix("@"): value for name, value in parameters.items()})


def plain_values(values: Mapping[str, object]) -> dict[str, object]:
    """Names in lower case with their plain values.

    Raises InvalidRule for two names that differ in case only, and for a value no rule can work with.
    """
    result: dict[str, object] = {}
    for name, value in values.items():
        key = name.lower()
        if not key or key in result:
            raise InvalidRule(f"the name {name!r} is empty or given twice")
        if kind_of(plain(value)) == OPAQUE:
            raise InvalidRule(
                f"the value of {name!r} has type {type(value).__name__}, which rules do not know"
            )
        result[key] = plain(value)
    return result
