"""Ranges of frames, which a database gives back as a whole: how much one may hold, and when it pays to empty one."""

from __future__ import annotations

from typing import Final

RANGE_BYTES_MAX: Final = 128 << 20
"""A range that holds more ends early."""
RANGE_BYTES_MIN: Final = 8 << 20
"""A range that holds less does not end early for its bytes: to fill its numbers takes up to a megabyte."""
QUOTA_RANGES: Final = 8
"""A quota is so many ranges, unless they would be too small."""


def range_bytes_max(bytes_max: int | None, reserve_bytes: int) -> int:
    """How much a range may hold under a quota: little of it, because a part of a range does not come back."""
    if bytes_max is None:
        return RANGE_BYTES_MAX
    return min(max((bytes_max - reserve_bytes) // QUOTA_RANGES, RANGE_BYTES_MIN), RANGE_BYTES_MAX)


class RangeAccount:
    """What is known of a range that might be given back."""

    __slots__ = ("end", "kept_bytes", "used_bytes")

    def __init__(self, end: int, used_bytes: int, kept_bytes: int) -> None:
        self.end = end
        """The first number behind it."""
        self.used_bytes = used_bytes
        self.kept_bytes = kept_bytes
        """What would have to be moved first."""

    def is_mostly_dead(self) -> bool:
        return 2 * self.kept_bytes < self.used_bytes

    def fits(self, spare_bytes: int) -> bool:
        """Whether it can be moved before its own space comes back, and as much is left then."""
        return 2 * self.kept_bytes <= spare_bytes
