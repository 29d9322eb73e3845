"""Application properties as a person types them: ``NAME=TEXT`` or, with a type, ``NAME:=JSON``.

The command line and the page share this form. SQL filters compare by type, so ``size > 40`` matches the number 42 and
never the text "42".
"""

from __future__ import annotations

import json

from pairbus.errors import UsageError

LONG_MIN = -(2**63)
LONG_MAX = 2**63 - 1
DOUBLE_MAX = 1.7976931348623157e308
FORM = "write NAME=TEXT, or NAME:=VALUE for a number, true, false or null"


def property_of(text: str) -> tuple[str, str | int | float | bool | None]:
    """The name and value of one property. Raises UsageError."""
    name, separator, value = text.partition("=")
    if not separator or not name.strip(" :"):
        raise UsageError(f"the property '{text}' is not understood: {FORM}")
    if not name.endswith(":"):
        return name.strip(), value
    return name[:-1].strip(), _typed(text, value)


def _typed(text: str, value: str) -> str | int | float | bool | None:
    try:
        found = json.loads(value, parse_constant=_no_constant)
    except ValueError:
        raise UsageError(
            f"the value of the property '{text}' is not a number, true, false or null: {FORM}"
        ) from None
    if isinstance(found, (dict, list)):
        raise UsageError(f"the value of the property '{text}' is a structure: {FORM}")
    if isinstance(found, int) and not LONG_MIN <= found <= LONG_MAX:
        raise UsageError(f"the value of the property '{text}' is outside of {LONG_MIN} to {LONG_MAX}: {FORM}")
    if isinstance(found, float) and not -DOUBLE_MAX <= found <= DOUBLE_MAX:
        raise UsageError(
            f"the value of the property '{text}' is larger than any number that can be sent: {FORM}"
        )
    assert found is None or isinstance(found, (str, int, float, bool))
    return found


def _no_constant(word: str) -> float:
    raise ValueError(word)


def properties_of(given: object) -> dict[str, str | int | float | bool | None]:
    """The properties that a form sends: lines as a person typed them, or a map of names to plain values.

    Raises:
        UsageError: A line or value is not understood, or a name comes twice. Nothing is left out in silence.
    """
    if given is None:
        return {}
    found: dict[str, str | int | float | bool | None] = {}
    if isinstance(given, list):
        for line in given:
            if not isinstance(line, str):
                raise UsageError(f"properties holds {line!r:.60}: each line must be text")
            name, value = property_of(line)
            if name in found:
                raise UsageError(f"the property '{name}' is given twice")
            found[name] = value.strip() if isinstance(value, str) and not _is_typed(line) else value
        return found
    if not isinstance(given, dict):
        raise UsageError("properties is neither a list of lines nor a map of names to values")
    for name, value in given.items():
        if not isinstance(name, str) or not (value is None or isinstance(value, (str, int, float, bool))):
            raise UsageError(
                f"the property '{name!s:.60}' is {value!r:.60}: give text, a number, true, false or null"
            )
        found[name] = value
    return found


def _is_typed(line: str) -> bool:
    return line.partition("=")[0].endswith(":")
