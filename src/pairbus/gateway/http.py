"""One HTTP request and its answer as plain values, and how many requests a second are taken before the work is done (M12)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

REQUESTS_PER_SECOND: Final = 1_000
BURST: Final = 2_000
"""Requests that may come at once after a quiet while."""
STRANGER_REQUESTS_PER_SECOND: Final = 100
STRANGER_BURST: Final = 200
"""The same for all callers together that have shown no valid token or key."""


@dataclass(slots=True, eq=False, repr=False)
class HttpRequest:
    """A whole request: its body has arrived and is within the limit."""

    method: str
    """In capitals."""
    target: str
    """Path and query as they came, still percent-encoded."""
    headers: dict[str, str]
    """Names in lower case; repeated ones joined with a comma."""
    body: bytes
    peer: str
    """The peer's own address, ``host:port``."""
    secure: bool
    """Whether it came through TLS."""
    is_known: bool = False
    """Whether the caller proved to hold a key; set by the broker."""


@dataclass(slots=True, eq=False, repr=False)
class HttpResponse:
    """What to answer. The carrier adds length, date and connection headers."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes


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
