"""What a node counts of takeovers, and when it tries again after one of its own failed."""

from __future__ import annotations

import logging
from typing import Final

logger = logging.getLogger(__name__)

PAUSE_MS_MIN: Final = 1_000
PAUSE_MS_MAX: Final = 60_000


class Takeovers:
    """The takeovers of one node that failed because its database did not let it read the log."""

    def __init__(self) -> None:
        self.failures = 0
        """Since the node started."""
        self.reason = ""
        """Why the last one failed; empty: it did not, or somebody serves since."""
        self._pause_ms = PAUSE_MS_MIN

    def failed(self, error: Exception) -> int:
        """The lease is given back. Returns for how many milliseconds this node leaves the shard to others: longer each time."""
        pause_ms, self._pause_ms = self._pause_ms, min(2 * self._pause_ms, PAUSE_MS_MAX)
        self.failures += 1
        self.reason = str(error)
        logger.error(
            "this node could not take over, and gives the lease back",
            extra={"event": "cluster.takeover_failed", "error": self.reason, "pause_ms": pause_ms},
        )
        return pause_ms

    def served(self) -> None:
        """Somebody serves: this node or another."""
        self.reason = ""

    def succeeded(self) -> None:
        """This node serves."""
        self.reason = ""
        self._pause_ms = PAUSE_MS_MIN


class SeenOwners:
    """Counts changes of owner: the first one that a node sees is none."""

    def __init__(self) -> None:
        self.changes = 0
        self._last: tuple[int, str] | None = None

    def saw(self, epoch: int, owner: str) -> None:
        """``owner``: empty if there is none now; that alone is no change."""
        if owner and (epoch, owner) != self._last:
            self.changes += self._last is not None
            self._last = (epoch, owner)
