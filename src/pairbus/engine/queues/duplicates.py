"""Duplicate detection: which message ids were accepted within the window (B47–B49)."""

from __future__ import annotations

from collections import deque
from typing import Final

FORGET_MAX: Final = 64
"""Ids forgotten before one is looked up. A queue that was idle for a window may have a million to forget, and nobody waits for that
(B63): what is out of the window and still here is known to be too old."""


class DuplicateHistory:
    """Ids with the instant of acceptance, forgotten in order as they leave the window."""

    __slots__ = ("_order", "_seen")

    def __init__(self) -> None:
        self._seen: dict[bytes, int] = {}
        self._order: deque[tuple[int, bytes]] = deque()

    def __len__(self) -> int:
        return len(self._seen)

    def holds(self, key: bytes, now: int, window_ms: int) -> bool:
        """Whether a message with this id was accepted less than a window ago."""
        self.forget(now - window_ms)
        at = self._seen.get(key)
        return at is not None and at > now - window_ms

    def add(self, key: bytes, at: int) -> None:
        """Remember an acceptance. A later instant for the same id replaces an earlier one."""
        known = self._seen.get(key)
        if known is None or at > known:
            self._seen[key] = at
            self._order.append((at, key))

    def begin(self, now: int) -> None:
        """A life begins. What a clock that was ahead has noted for later than now was accepted before: now, at the latest.
        Otherwise its window would last longer by as much as the clock was set back.
        """
        seen = self._seen
        late = [key for key, at in seen.items() if at > now]
        if late:
            for key in late:
                seen[key] = now
            self._order = deque(sorted([(at, key) for key, at in seen.items()]))

    def accepted_at(self, key: bytes) -> int | None:
        """When this id was accepted last, if it is remembered."""
        return self._seen.get(key)

    def forget(self, before: int) -> None:
        """Drop some of what was accepted at or before an instant, oldest first."""
        order = self._order
        for _ in range(FORGET_MAX):
            if not order or order[0][0] > before:
                return
            at, key = order.popleft()
            if self._seen.get(key) == at:
                del self._seen[key]

    def drop(self, count: int) -> bool:
        """Free so many ids of a place that is gone; whether there are more."""
        for _ in range(min(count, len(self._seen))):
            self._seen.popitem()
        for _ in range(min(count, len(self._order))):
            self._order.pop()
        return bool(self._seen or self._order)
