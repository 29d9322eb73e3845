"""Close together: when one side ends and the other is not closed within the grace period, it is faulted (P43)."""

from __future__ import annotations

from enum import Enum
from typing import Final

GRACE_MS: Final = 5_000
"""Counted from the moment at which the end of the first side was noticed."""


class Side(Enum):
    """One of the two namespaces."""

    PRIMARY = "primary"
    SECONDARY = "secondary"

    @property
    def other(self) -> Side:
        return Side.SECONDARY if self is Side.PRIMARY else Side.PRIMARY


class Partnership:
    """The ends of both sides. No clock: the client asks ``next_deadline`` and calls ``tick``."""

    __slots__ = ("_ended_ms", "faulted", "is_hosting_syphon")

    def __init__(self, *, is_hosting_syphon: bool) -> None:
        self.is_hosting_syphon = is_hosting_syphon
        self.faulted: Side | None = None
        self._ended_ms: dict[Side, int] = {}

    def ended(self, side: Side, now: int) -> None:
        """A side was closed or has failed. A second notice changes nothing."""
        self._ended_ms.setdefault(side, now)

    def next_deadline(self) -> int | None:
        """When the partner of the side that ended will be faulted."""
        if not self.is_hosting_syphon or len(self._ended_ms) != 1:
            return None
        return next(iter(self._ended_ms.values())) + GRACE_MS

    def tick(self, now: int) -> Side | None:
        """The side that is faulted now, once; otherwise None."""
        deadline = self.next_deadline()
        if deadline is None or now < deadline:
            return None
        self.faulted = next(iter(self._ended_ms)).other
        self._ended_ms[self.faulted] = now
        return self.faulted
