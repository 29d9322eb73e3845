"""How many requests a second are taken before the work is done (M12)."""

from __future__ import annotations

from typing import Final

REQUESTS_PER_SECOND: Final = 1_000
BURST: Final = 2_000
"""Requests that may come at once after a quiet while."""
STRANGER_REQUESTS_PER_SECOND: Final = 100
STRANGER_BURST: Final = 200
"""The same for all callers together that have shown no valid token or key."""


class RateLimit:
    """A bucket that fills with time and is emptied by requests."""

    __slots__ = ("_burst", "_filled_at", "_left", "_per_second")

    def __init__(self, per_second: int = REQUESTS_PER_SECOND, burst: int = BURST) -> None:
        self._per_second = per_second
        self._burst = burst
        self._left = burst * 1000
        """In thousandths of a request, so that milliseconds count exactly."""
        self._filled_at = 0

    def takes(self, now: int) -> bool:
        """Whether one more request is taken now."""
        if now > self._filled_at:
            self._left = min(self._burst * 1000, self._left + (now - self._filled_at) * self._per_second)
        self._filled_at = now
        if self._left < 1000:
            return False
        self._left -= 1000
        return True
