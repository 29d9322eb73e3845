"""Lengths of time as people write them (``90s``, ``15m``, ``2h``, ``1d``, ``1h30m``), and numbers with their nouns."""

from __future__ import annotations

import re
from typing import Final

from pairbus.errors import UsageError

DURATION_MS_MAX: Final = 10 * 366 * 86_400_000
_UNITS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_PART: Final = re.compile(r"(\d{1,12})(ms|s|m|h|d)")
_WHOLE: Final = re.compile(r"(?:\d{1,12}(?:ms|s|m|h|d))+")


def duration_ms(text: str) -> int:
    """Milliseconds of a length of time.

    Raises:
        UsageError: It is not one, or longer than ten years.
    """
    compact = text.replace(" ", "").lower()
    if compact == "0":
        return 0
    if not _WHOLE.fullmatch(compact):
        raise UsageError(f"{text!r} is not a length of time: write 90s, 15m, 2h, 1d or 1h30m")
    total = sum(int(number) * _UNITS[unit] for number, unit in _PART.findall(compact))
    if total > DURATION_MS_MAX:
        raise UsageError(f"{text!r} is longer than ten years")
    return total


def duration_text(milliseconds: int) -> str:
    """The same for people, in the largest units that fit."""
    if milliseconds == 0:
        return "0s"
    rest, parts = milliseconds, []
    for unit in ("d", "h", "m", "s", "ms"):
        number, rest = divmod(rest, _UNITS[unit])
        if number:
            parts.append(f"{number}{unit}")
    return "".join(parts)


def many(number: int, word: str, plural: str = "") -> str:
    """``1 hour``, ``2 hours``, ``1,000 entities``."""
    return f"{number:,} {word}" if number == 1 else f"{number:,} {plural or word + 's'}"
