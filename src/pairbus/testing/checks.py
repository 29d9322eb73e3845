"""Refuses arguments of the test kit that can never work, with an error that names the field, the value and what is possible.

Without these checks a wrong value fails far from the test that gave it: in the broker's thread, or not at all.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence

from pairbus.errors import UsageError, WrongTypeError


def check_whole(field: str, value: object, least: int, most: int, hint: str = "") -> None:
    """Refuse what is no whole number from ``least`` to ``most``."""
    wanted = f"{field} is {value!r}: give a whole number from {least} to {most}{hint}"
    # True is an int to Python and never meant as one here.
    if not isinstance(value, int) or isinstance(value, bool):
        raise WrongTypeError(wanted)
    if not least <= value <= most:
        raise UsageError(wanted)


def check_seconds(field: str, value: object, most: float, hint: str = "") -> None:
    """Refuse what is no number above 0 and up to ``most``."""
    wanted = f"{field} is {value!r}: give a number above 0 and up to {most:g}{hint}"
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise WrongTypeError(wanted)
    if math.isnan(value) or not 0 < value <= most:
        raise UsageError(wanted)


def check_flag(field: str, value: object) -> None:
    """Refuse what is neither True nor False."""
    if not isinstance(value, bool):
        raise WrongTypeError(f"{field} is {value!r}: give True or False")


def check_text(field: str, value: object, hint: str) -> None:
    """Refuse what is no text, or an empty one."""
    if not isinstance(value, str):
        raise WrongTypeError(f"{field} is {value!r}: {hint}")
    if not value:
        raise UsageError(f"{field} is {value!r}: {hint}")


def check_optional(field: str, value: object, kind: type, hint: str) -> None:
    """Refuse what is neither None nor of this type."""
    if value is not None and not isinstance(value, kind):
        raise WrongTypeError(f"{field} is {value!r}: {hint}")


def check_path(field: str, value: object) -> None:
    """Refuse what is neither None nor the path of a directory; an empty path would be the current one."""
    if value is not None and not (isinstance(value, str | os.PathLike) and os.fspath(value)):
        raise WrongTypeError(
            f"{field} is {value!r}: give the path of a directory, or None for a temporary one"
        )


def check_list(field: str, value: object, item: type) -> None:
    """Refuse what is no list of names and of ``item``. A text is a sequence too, of its letters, and is never meant as one."""
    name = item.__name__
    if isinstance(value, str) and value:
        raise WrongTypeError(f"{field} is {value!r}: give a list, {field}=[{value!r}]")
    if isinstance(value, item):
        raise WrongTypeError(f"{field} is one {name}: give a list, {field}=[{name}(…)]")
    if not isinstance(value, Sequence) or isinstance(value, str | bytes | Mapping):
        raise WrongTypeError(f"{field} is {value!r}: give a list of names or of {name}")
    for index, one in enumerate(value):
        if not isinstance(one, str | item) or not one:
            raise WrongTypeError(f"{field}[{index}] is {one!r}: give a name or a {name}")
