"""Durations and instants as the management API writes them, from and to milliseconds."""

from __future__ import annotations

from typing import Final

from pairbus.engine.rules.sql.text import (
    INSTANT_MS_MAX,
    INSTANT_MS_MIN,
    duration_ms_from,
    duration_text,
    instant_ms_from,
    instant_text,
)
from pairbus.errors import ArgumentError
from pairbus.model.entity import FOREVER_MS

FOREVER_TEXT: Final = "P10675199DT2H48M5.4775807S"
"""The longest duration .NET can write; it stands for no limit."""
NEVER_TEXT: Final = "0001-01-01T00:00:00.0000000Z"
"""The earliest instant .NET can write; it stands for not yet."""


def duration(ms: int) -> str:
    """ISO 8601; the longest duration in the exact form that the clients compare with."""
    return FOREVER_TEXT if ms >= FOREVER_MS else duration_text(ms)


def duration_ms(name: str, text: str) -> int:
    """Milliseconds; what is finer than a millisecond is cut off. Raises ArgumentError naming the element."""
    ms = duration_ms_from(text)
    if ms is None or not 0 <= ms <= FOREVER_MS:
        raise ArgumentError(
            f"{name} is '{text[:80]}': it must be an ISO 8601 duration such as PT1M, up to {FOREVER_TEXT}."
        )
    return ms


def instant(ms: int) -> str:
    """ISO 8601 in UTC with seven digits of fraction; 0 is the instant that means never."""
    if ms == 0:
        return NEVER_TEXT
    within = min(max(ms, INSTANT_MS_MIN), INSTANT_MS_MAX)
    return instant_text(within)[:-1] + "0000Z"


def instant_ms(name: str, text: str) -> int:
    """Milliseconds since the epoch. Raises ArgumentError naming the element."""
    ms = instant_ms_from(text)
    if ms is None:
        raise ArgumentError(
            f"{name} is '{text[:80]}': it must be an ISO 8601 instant such as 2026-01-01T00:00:00Z."
        )
    return ms
