"""How long a new owner waits for its database before it gives up reading the log."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from pairbus.errors import StoreUnavailable

if TYPE_CHECKING:
    from pairbus.storage.table.ports import OutcomeUnknown

logger = logging.getLogger(__name__)

STALL_SECONDS_MAX: Final = 10.0
PAUSE_SECONDS: Final = 0.1
PAUSE_SECONDS_MIN: Final = 0.02
PAUSE_SECONDS_MAX: Final = 0.5


def next_pause(seconds: float) -> float:
    """How long to wait before the next repetition of a call without an answer, after this pause; 0: there was none."""
    return min(max(2 * seconds, PAUSE_SECONDS_MIN), PAUSE_SECONDS_MAX)


class StoreUnreachable(StoreUnavailable):
    """The database gave no answer, or no further connection, for too long: the shard is better left to another node."""


class Patience:
    """Waits between two tries, and tells of each new reason once.

    Args:
        may_retry: False: this node stops or lost the shard.
        pause: Waits for so many seconds.
        seconds_max: How long tries may fail in a row.
        clock: Seconds of a monotonic clock.
    """

    def __init__(
        self,
        may_retry: Callable[[], bool],
        pause: Callable[[float], None],
        *,
        seconds_max: float = STALL_SECONDS_MAX,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._may_retry = may_retry
        self._pause = pause
        self._seconds_max = seconds_max
        self._clock = clock
        self._logged = ""
        self.since: float | None = None
        """Since when every try has failed; None: the last one succeeded."""

    def check(self) -> None:
        """Between two steps that went well. Raises StoreUnavailable if this node is to read no further."""
        if not self._may_retry():
            raise StoreUnavailable(
                "the log was not read to its end, because this node stops or lost the shard"
            )

    def lost(self, error: OutcomeUnknown) -> None:
        """A try has failed: return when the next one may begin. Raises StoreUnavailable, or StoreUnreachable after ``seconds_max``."""
        if not self._may_retry():
            raise StoreUnavailable(
                f"the log cannot be read, and this node stops or lost the shard: {error}"
            ) from error
        if str(error) != self._logged:
            self._logged = str(error)
            logger.warning(
                "the database did not answer the new owner",
                extra={
                    "event": "cluster.database_failed",
                    "connection": "log",
                    "call": "replay",
                    "error": self._logged,
                },
            )
        now = self._clock()
        if self.since is None:
            self.since = now
        elif now - self.since >= self._seconds_max:
            raise StoreUnreachable(
                f"the log could not be read for {self._seconds_max:g} s: {error}"
            ) from error
        self._pause(PAUSE_SECONDS)
