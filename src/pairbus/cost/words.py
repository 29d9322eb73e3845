"""Numbers with their words."""

from __future__ import annotations


def many(number: int, word: str, plural: str = "") -> str:
    """``1 hour``, ``2 hours``, ``1,000 entities``."""
    return f"{number:,} {word}" if number == 1 else f"{number:,} {plural or word + 's'}"
