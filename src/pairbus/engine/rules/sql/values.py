"""The values of the rule language: their kinds, how they compare and how they compute.

A value is None (null, and inside an evaluation also: unknown), bool, int, float, str, bytes, an AMQP
``Timestamp`` (an instant in milliseconds), a :class:`Duration` (milliseconds), an AMQP ``Uuid``, or any
other decoded object, which can only be equal to one of its own type. The parameter type is ``object``
because the last case is open.

Rule 1: comparisons are mathematical: 1 = 1.0, and no integer is rounded to meet a double.
Rule 2: integers are 64 bits wide and doubles finite; a result outside is FilterFailed, never a wrong number.
Rule 3: values of different families (text and number, boolean and number, …) neither compare nor compute:
FilterFailed. The exception is ``+`` with text on either side, which joins texts as C# does.
Rule 4: text is ordered by code point, with case.
"""

from __future__ import annotations

import math
from typing import Final, final

from pairbus.amqp.types import Timestamp, Uuid
from pairbus.engine.rules.sql.text import (
    TEXT_CHARACTERS_MAX,
    duration_text,
    instant_text,
    number_text,
)
from pairbus.errors import FilterFailed

INTEGER_MIN: Final = -(2**63)
INTEGER_MAX: Final = 2**63 - 1

NOTHING: Final = 0
BOOLEAN: Final = 1
INTEGER: Final = 2
DOUBLE: Final = 3
STRING: Final = 4
BINARY: Final = 5
INSTANT: Final = 6
DURATION: Final = 7
UUID: Final = 8
OPAQUE: Final = 9

KIND_NAMES: Final = (
    "null",
    "boolean",
    "integer",
    "double",
    "string",
    "binary",
    "instant",
    "duration",
    "uuid",
    "another type",
)

EQUAL: Final = 0
DIFFERENT: Final = 1
LESS: Final = 2
LESS_OR_EQUAL: Final = 3
GREATER: Final = 4
GREATER_OR_EQUAL: Final = 5
COMPARISON_TEXTS: Final = ("=", "<>", "<", "<=", ">", ">=")

ADD: Final = 0
SUBTRACT: Final = 1
MULTIPLY: Final = 2
DIVIDE: Final = 3
REMAINDER: Final = 4
ARITHMETIC_TEXTS: Final = ("+", "-", "*", "/", "%")


@final
class Duration:
    """A length of time in milliseconds, such as ``sys.TimeToLive``."""

    __slots__ = ("ms",)

    def __init__(self, ms: int) -> None:
        self.ms = ms

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Duration) and self.ms == other.ms

    def __hash__(self) -> int:
        return hash(self.ms)

    def __repr__(self) -> str:
        return f"Duration({self.ms})"


_KINDS: Final[dict[type, int]] = {
    type(None): NOTHING,
    bool: BOOLEAN,
    int: INTEGER,
    float: DOUBLE,
    str: STRING,
    bytes: BINARY,
    Timestamp: INSTANT,
    Duration: DURATION,
    Uuid: UUID,
}


def kind_of(value: object) -> int:
    kind = _KINDS.get(type(value))
    if kind is None:
        return STRING if isinstance(value, str) else OPAQUE  # a symbol is a text
    return kind


def family_of(value: object) -> int:
    """The kind, with integers and doubles taken together as DOUBLE: what can be compared at all."""
    kind = kind_of(value)
    return DOUBLE if kind == INTEGER else kind


def primitive(value: object) -> object:
    """The plain value that decides equality within a family; hashable for every kind but OPAQUE."""
    if isinstance(value, (Timestamp, Duration)):
        return value.ms
    if isinstance(value, Uuid):
        return value.raw
    return value


def is_nan(value: object) -> bool:
    """Whether this is the double that is equal to nothing, not even to itself."""
    return isinstance(value, float) and math.isnan(value)


def compare(operator: int, left: object, right: object) -> bool:
    """The comparison of two values that are not null. Raises FilterFailed."""
    family = family_of(left)
    if family != family_of(right) or (family == OPAQUE and type(left) is not type(right)):
        raise _unfit(COMPARISON_TEXTS[operator], left, right)
    if operator == EQUAL:
        return bool(primitive(left) == primitive(right))
    if operator == DIFFERENT:
        return bool(primitive(left) != primitive(right))
    if family == STRING:
        return _ordered_texts(operator, str(left), str(right))
    if family not in (DOUBLE, INSTANT, DURATION):
        raise _unfit(COMPARISON_TEXTS[operator], left, right)
    return _ordered_numbers(operator, _number(left), _number(right))


def _ordered_texts(operator: int, left: str, right: str) -> bool:
    if operator == LESS:
        return left < right
    if operator == LESS_OR_EQUAL:
        return left <= right
    if operator == GREATER:
        return left > right
    return left >= right


def _ordered_numbers(operator: int, left: int | float, right: int | float) -> bool:
    if operator == LESS:
        return left < right
    if operator == LESS_OR_EQUAL:
        return left <= right
    if operator == GREATER:
        return left > right
    return left >= right


def _number(value: object) -> int | float:
    """The number behind a number, an instant or a duration."""
    if isinstance(value, (Timestamp, Duration)):
        return value.ms
    assert isinstance(value, (int, float)), value
    return value


def arithmetic(operator: int, left: object, right: object) -> object:
    """The result of one operator on two values that are not null. Raises FilterFailed."""
    left_kind, right_kind = kind_of(left), kind_of(right)
    if left_kind == INTEGER and right_kind == INTEGER:
        return _integer_result(operator, int(_number(left)), int(_number(right)))
    if left_kind in (INTEGER, DOUBLE) and right_kind in (INTEGER, DOUBLE):
        return _double_result(operator, as_double(_number(left)), as_double(_number(right)))
    if operator == ADD and STRING in (left_kind, right_kind):
        return joined(left, right)
    if operator in (ADD, SUBTRACT):
        result = _time_result(operator, left, right)
        if result is not None:
            return result
    raise _unfit(ARITHMETIC_TEXTS[operator], left, right)


def _integer_result(operator: int, left: int, right: int) -> int:
    if operator == ADD:
        result = left + right
    elif operator == SUBTRACT:
        result = left - right
    elif operator == MULTIPLY:
        result = left * right
    elif right == 0:
        raise FilterFailed(f"division by zero: {left} {ARITHMETIC_TEXTS[operator]} 0")
    else:
        # C# cuts towards zero, and the remainder takes the sign of the left side.
        result = abs(left) // abs(right) if operator == DIVIDE else abs(left) % abs(right)
        is_negative = (left < 0) != (right < 0) if operator == DIVIDE else left < 0
        result = -result if is_negative else result
    return checked_integer(result)


def checked_integer(number: int) -> int:
    """The number itself if it fits 64 bits. Raises FilterFailed."""
    if not INTEGER_MIN <= number <= INTEGER_MAX:
        raise FilterFailed("an integer result does not fit 64 bits")
    return number


def as_double(number: int | float) -> float:
    """The nearest double. Raises FilterFailed for a number beyond every double."""
    try:
        return float(number)
    except OverflowError:
        raise FilterFailed("an integer does not fit a double") from None


def _double_result(operator: int, left: float, right: float) -> float:
    if operator == ADD:
        result = left + right
    elif operator == SUBTRACT:
        result = left - right
    elif operator == MULTIPLY:
        result = left * right
    elif right == 0.0:
        raise FilterFailed(f"division by zero: {left} {ARITHMETIC_TEXTS[operator]} {right}")
    elif operator == DIVIDE:
        result = left / right
    elif math.isinf(left):
        raise FilterFailed("infinity has no remainder")
    else:
        result = math.fmod(left, right)
    if not math.isfinite(result):
        raise FilterFailed(f"{left} {ARITHMETIC_TEXTS[operator]} {right} is not a finite number")
    return result


def _time_result(operator: int, left: object, right: object) -> object:
    """Instants and durations add and subtract as C# has it; None when these two do not."""
    sign = 1 if operator == ADD else -1
    if isinstance(right, Duration) and isinstance(left, Timestamp):
        return Timestamp(checked_integer(left.ms + sign * right.ms))
    if isinstance(right, Duration) and isinstance(left, Duration):
        return Duration(checked_integer(left.ms + sign * right.ms))
    if operator == SUBTRACT and isinstance(left, Timestamp) and isinstance(right, Timestamp):
        return Duration(checked_integer(left.ms - right.ms))
    return None


def joined(left: object, right: object) -> str:
    """Both values as one text. Raises FilterFailed when a value has no text or the result is too long."""
    left_text, right_text = text_of(left), text_of(right)
    if left_text is None or right_text is None:
        raise _unfit("+", left, right)
    if len(left_text) + len(right_text) > TEXT_CHARACTERS_MAX:
        raise FilterFailed(
            f"a joined text has {len(left_text) + len(right_text)} characters; "
            f"at most {TEXT_CHARACTERS_MAX} are allowed"
        )
    return left_text + right_text


def negated(value: object) -> object:
    """Minus the value. Raises FilterFailed."""
    kind = kind_of(value)
    if kind == INTEGER:
        return checked_integer(-int(_number(value)))
    if kind == DOUBLE:
        return -float(_number(value))
    if kind == DURATION:
        return Duration(checked_integer(-int(_number(value))))
    raise FilterFailed(f"minus cannot be put before {described(value)}")


def text_of(value: object) -> str | None:
    """The value as text, or None when it has none (binary and other types)."""
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bool):
        return "True" if value else "False"
    if isinstance(value, Timestamp):
        return instant_text(value.ms)
    if isinstance(value, Duration):
        return duration_text(value.ms)
    if isinstance(value, (int, float)):
        return number_text(value)
    if isinstance(value, Uuid):
        return str(value)
    return None


def described(value: object) -> str:
    """The kind and, where it is short, the text of a value, for error messages."""
    kind = kind_of(value)
    text = text_of(value)
    if text is None:
        return KIND_NAMES[kind] if kind != OPAQUE else f"a value of type {type(value).__name__}"
    return f"{KIND_NAMES[kind]} {text[:40]!r}" if kind == STRING else f"{KIND_NAMES[kind]} {text}"


def _unfit(operator: str, left: object, right: object) -> FilterFailed:
    return FilterFailed(f"{described(left)} {operator} {described(right)}: the types do not fit together")
