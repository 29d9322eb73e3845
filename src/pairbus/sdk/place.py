"""Keeps with an error which namespace of a pair it came from: the official client's errors do not say."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

_ATTRIBUTE: Final = "_pairbus_place"


@contextmanager
def errors_of(place: str) -> Iterator[None]:
    """Inside this block an error comes from ``place``, unless it is known to come from another one."""
    try:
        yield
    except Exception as error:
        if not place_of(error):
            with suppress(AttributeError):
                setattr(error, _ATTRIBUTE, place)
        raise


def place_of(error: BaseException) -> str:
    """Which namespace an error came from; empty when that is not known."""
    return str(getattr(error, _ATTRIBUTE, ""))
