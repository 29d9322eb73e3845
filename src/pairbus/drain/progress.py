"""How far a drain is: how old the oldest message is, and how many are delivered per second. No clock."""

from __future__ import annotations

from collections import deque
from typing import Final

RATE_WINDOW_MS: Final = 10_000


class Progress:
    """The progress of one drain. Another thread may ask while the drain notes something."""

    def __init__(self) -> None:
        self._oldest: dict[str, int] = {}
        self._delivered_at: deque[int] = deque(maxlen=10_000)

    def note_oldest(self, queue: str, stored_ms: int | None) -> None:
        """Note when the oldest message that is held of a queue was stored in the backlog; None: none is held."""
        if stored_ms is not None:
            self._oldest[queue] = stored_ms
        else:
            self._oldest.pop(queue, None)

    def delivered(self, now: int) -> None:
        """A message was delivered."""
        self._delivered_at.append(now)

    def rate_per_s(self, now: int) -> float:
        """Messages delivered per second, over the last ten seconds."""
        since = now - RATE_WINDOW_MS
        return sum(1 for at in list(self._delivered_at) if at >= since) * 1000 / RATE_WINDOW_MS

    def oldest_age_ms(self, wall_ms: int) -> int | None:
        """How long the oldest message that is held or was just seen has been in the backlog."""
        times = list(self._oldest.values())
        return max(0, wall_ms - min(times)) if times else None
