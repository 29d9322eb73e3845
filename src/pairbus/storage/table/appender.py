"""The commit thread's part: makes frames durable, or says that it is not certain.

| the table answers | then |
|---|---|
| done | durable |
| outcome unknown | the same frame again, under the same number: the number makes that safe. Given up when ``may_retry`` says so (S5) |
| number taken, by our own frame | it was ours and its answer was lost: durable behind a barrier (S7) |
| number taken, by another | somebody else owns the shard: fenced (S2) |
| full | the reserve is given up, and the frame tried again; then until there is space or ``may_retry`` says no (S8) |
| refused | failed: a repetition does not mend it |
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from pairbus.errors import StoreFailed, StoreFenced
from pairbus.storage.table.ports import OutcomeUnknown, SequenceTaken, TableFailed, TableFull

if TYPE_CHECKING:
    from pairbus.storage.table.frame import Frame
    from pairbus.storage.table.ports import FrameWriter

logger = logging.getLogger(__name__)

PAUSE_SECONDS_MIN: Final = 0.02
PAUSE_SECONDS_MAX: Final = 0.5
VANISHED_MAX: Final = 3
"""How often a number may be taken and yet have no frame, before somebody else must have written and dropped it."""
REFILL_COMMITS: Final = 64
"""So many commits succeed on a full database before it is asked whether the reserve fits again."""


class Appender:
    """Appends frames.

    Args:
        writer: The table.
        epoch: The owner's.
        may_retry: Whether to repeat: False once this node stops or another owns the shard. Silence alone does not end it.
        pause: Waits for so many seconds.
        reserve_bytes: Space to hold for the day the database is full; 0: none.
    """

    def __init__(
        self,
        writer: FrameWriter,
        epoch: int,
        *,
        may_retry: Callable[[], bool],
        pause: Callable[[float], None],
        reserve_bytes: int,
    ) -> None:
        self._writer = writer
        self._epoch = epoch
        self._may_retry = may_retry
        self._pause = pause
        self._reserve_bytes = reserve_bytes
        self._failure = ""
        self._dropped_below = 0
        self._commits_since_full = 0
        self._has_reserve = not reserve_bytes
        """It is filled by the first commits, a step with each."""
        self.is_full = False
        """The database had no space when last asked; read by the owner's thread."""
        self.repetitions = 0
        self.barriers = 0

    def begin(self, first: int) -> None:
        """Before the first commit; ``first`` is the first frame there is."""
        self._dropped_below = first

    def _became_full(self) -> None:
        if not self.is_full:
            logger.warning(
                "the database is full: sends are refused, settlements go on",
                extra={"event": "store.full"},
            )
        self.is_full = True
        self._commits_since_full = 0
        self._has_reserve = not self._reserve_bytes
        if self._reserve_bytes:
            self._retrying("the reserve", lambda: self._writer.hold_reserve(0))

    def append(self, frame: Frame) -> None:
        """Return once the frame is durable. Raises StoreFailed or StoreFenced; then nothing is appended any more."""
        if self._failure:
            raise StoreFailed(f"the store has failed before: {self._failure}")
        try:
            self._append(frame)
        except StoreFailed as error:
            self._failure = str(error)
            raise
        except TableFailed as error:
            self._failure = str(error)
            raise StoreFailed(f"frame {frame.sequence} cannot be written: {error}") from error
        if self.is_full or not self._has_reserve:
            self._tend_reserve()

    def _append(self, frame: Frame) -> None:
        sequence, mark, body = frame.sequence, frame.marked(self._epoch), [frame.body()]
        seconds = 0.0
        vanished = 0
        while True:
            try:
                self._writer.insert(sequence, mark, frame.head, body)
                return
            except SequenceTaken:
                try:
                    found = self._writer.mark_of(sequence)
                    if found == mark:
                        # It may be visible and yet on one disk alone, as after a restart of the database.
                        self._writer.barrier()
                        self.barriers += 1
                        return
                except OutcomeUnknown as error:
                    seconds = self._paused(f"frame {sequence}", seconds, error)
                    continue  # from the start: a failover may have taken back what was seen
                if found is not None or vanished >= VANISHED_MAX:
                    raise StoreFenced(
                        f"frame {sequence} was written by another owner (epoch {found.epoch if found else 'unknown'}, ours is "
                        f"{self._epoch}): this node no longer owns the shard"
                    ) from None
                vanished += 1
            except OutcomeUnknown as error:
                seconds = self._paused(f"frame {sequence}", seconds, error)
            except TableFull as error:
                is_first = not self.is_full
                self._became_full()
                if not is_first:
                    seconds = self._paused(f"frame {sequence}", seconds, error)

    def _paused(self, what: str, seconds: float, error: Exception) -> float:
        """Wait before a repetition; how long, for the next time. Raises StoreFailed when there is no time left."""
        if self._failure or not self._may_retry():
            raise StoreFailed(
                f"whether {what} was written is not known, and it is not tried again, because this node stops or lost the shard: {error}"
            ) from error
        if seconds:
            self._pause(seconds)
        self.repetitions += 1
        return min(max(2 * seconds, PAUSE_SECONDS_MIN), PAUSE_SECONDS_MAX)

    def _retrying(self, what: str, work: Callable[[], object]) -> None:
        seconds = 0.0
        while True:
            try:
                work()
                return
            except OutcomeUnknown as error:
                seconds = self._paused(what, seconds, error)
            except TableFull:
                return  # on a full database not even this is possible
            except TableFailed as error:
                raise StoreFailed(f"{what} cannot be written: {error}") from error

    def _tend_reserve(self) -> None:
        """Take a step towards the reserve; on a full database only now and then."""
        if self.is_full:
            self._commits_since_full += 1
            if self._commits_since_full < REFILL_COMMITS:
                return
            self._commits_since_full = 0
        try:
            self._has_reserve = self._has_reserve or self._writer.hold_reserve(self._reserve_bytes)
        except TableFull:
            self._became_full()
        except OutcomeUnknown:
            pass  # the next commit finds out
        else:
            if self.is_full:
                self.is_full = not self._has_reserve
                if not self.is_full:
                    logger.info("the database has space again", extra={"event": "store.has_space"})

    def drop_below(self, sequence: int) -> None:
        """Give back frames that no longer matter: the commit that says so is durable. Tried again with a later one if it fails."""
        if sequence <= self._dropped_below:
            return
        try:
            self._writer.drop_below(sequence)
        except (OutcomeUnknown, TableFull, TableFailed) as error:
            logger.warning(
                "old frames were not dropped yet", extra={"event": "store.not_dropped", "error": str(error)}
            )
        else:
            self._dropped_below = sequence

    def close(self) -> None:
        self._failure = self._failure or "it is closed"
        self._writer.close()
