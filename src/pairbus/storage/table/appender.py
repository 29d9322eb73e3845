"""The commit thread's part: makes frames durable, or says that it is not certain.

| the table answers | then |
|---|---|
| done | durable |
| outcome unknown | the same frame again, under the same number: the number makes that safe. Given up when ``may_retry`` says so (S5) |
| number taken, by our own frame | it was ours and its answer was lost: durable behind a barrier (S7) |
| the frame before is not there | the database lost what it had acknowledged: fenced, so that nothing is written behind a hole (S1) |
| number taken, by another | somebody else owns the shard: fenced (S2) |
| full | the reserve is given up, and the frame tried again; then for a while, in which space may come free; then failed (B12, S8). If the database has no space even to give the reserve up, both are tried again for a while: it is still held |
| refused | failed: a repetition does not mend it |

The reserve is made before the first commit: an owner without one takes no sends (``is_full``), for there would be no space for the
settlements that make room again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from pairbus.errors import StoreFailed, StoreFenced
from pairbus.storage.table.frame import EMPTY_FRAME_BYTES
from pairbus.storage.table.patience import next_pause
from pairbus.storage.table.ports import (
    FrameMark,
    LogShortened,
    OutcomeUnknown,
    SequenceTaken,
    TableFailed,
    TableFull,
)

if TYPE_CHECKING:
    from pairbus.storage.table.frame import Frame
    from pairbus.storage.table.patience import Patience
    from pairbus.storage.table.ports import FrameWriter

logger = logging.getLogger(__name__)

VANISHED_MAX: Final = 3
"""How often a number may be taken and yet have no frame, before somebody else must have written and dropped it."""
REFILL_COMMITS: Final = 64
"""So many commits succeed on a full database before it is asked whether the reserve fits again; twice as many each time it does not."""
REFILL_COMMITS_MAX: Final = 4096
FULL_TRIES_MAX: Final = 8
"""How often a frame with messages is tried on a full database that has no reserve left: about a second. What failed writes leave behind
takes space from the settlements that come after it."""
FULL_TRIES_MAX_SMALL: Final = 64
"""The same for a frame without messages, such as settlements, and for any frame while the reserve is still to be given up: about half a
minute."""


class CommitsLost(StoreFenced):
    """The database lost frames that it had acknowledged to this owner."""


def shortened(newest: int, error: LogShortened) -> CommitsLost:
    """What an owner is told whose database lost frames that it had acknowledged; ``newest`` is the last of them. Logs it too."""
    missing = newest - error.last
    logger.error(
        "the database lost frames that it had acknowledged",
        extra={"event": "cluster.log_shortened", "missing": missing, "last": error.last, "newest": newest},
    )
    return CommitsLost(
        f"the database lacks the last {missing} {'frame' if missing == 1 else 'frames'} of this owner's log (it has frame {error.last}, and "
        f"frame {newest} was acknowledged): a standby without them was promoted, or an older backup was restored. What they held is lost, "
        "although it was acknowledged. This node ends, and the next owner serves what the database has; start this one again, and it takes "
        "part as before"
    )


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
        self._before = 0
        """The checksum of the last frame; at first that of the fence."""
        self._dropped_below = 0
        self._drop_tried = 0
        self._drop_wait = 0
        """So many commits pass before ranges that could not be dropped are tried again."""
        self._refill_wait = self._refill_commits = REFILL_COMMITS
        self._held = 0
        """How much of the reserve is held."""
        self._given_up = 0
        """How much was held when it was given up."""
        self._spent = 0
        """How much was written since."""
        self.is_full = False
        """The database had no space for the whole reserve when last asked; read by the owner's thread."""

    @property
    def spare_bytes(self) -> int:
        """On a full database: what is certainly left of the reserve that was given up; read by the owner's thread."""
        return max(0, self._given_up - self._spent)

    def begin(self, first: int, patience: Patience) -> None:
        """Before the first commit; ``first`` is the first frame there is. Raises StoreFailed or StoreFenced, and what ``patience`` raises."""
        self._dropped_below = first
        self._fill_reserve(patience)

    def _became_full(self) -> None:
        if not self.is_full:
            logger.warning(
                "the database is full: sends are refused, settlements go on",
                extra={"event": "store.full", "reserve_bytes": self._held},
            )
        # If nothing was held there is nothing to spare: a write has just failed.
        self._given_up = self._spent = 0
        self.is_full = True
        if self._reserve_bytes and self._gave_up():
            self._given_up, self._held = self._held, 0

    def append(self, frame: Frame) -> None:
        """Return once the frame is durable. Raises StoreFailed or StoreFenced; then nothing is appended any more."""
        mark, body = frame.marked(self._epoch), [frame.body()]
        self._durably(
            frame.sequence,
            mark,
            lambda: self._writer.insert(frame.sequence, mark, frame.head, body, self._before),
            FULL_TRIES_MAX if frame.body_bytes else FULL_TRIES_MAX_SMALL,
        )
        if self.is_full:
            self._spent += len(frame.head) + frame.body_bytes + EMPTY_FRAME_BYTES
            self._refill_wait -= 1
            if self._refill_wait <= 0:
                self._fill_reserve()

    def fill(self, first: int, end: int) -> None:
        """Give the numbers ``first`` up to, not including, ``end`` to empty frames, so that the next frame begins a range."""
        while first < end:
            piece, first = first, min(end, self._writer.range_end(first))
            self._durably(
                piece,
                FrameMark(self._epoch, 0),
                partial(self._writer.fill, piece, first, self._epoch, self._before),
                FULL_TRIES_MAX_SMALL,
            )
            self._spent += (first - piece) * EMPTY_FRAME_BYTES

    def _durably(
        self, sequence: int, mark: FrameMark, write: Callable[[], None], full_tries_max: int
    ) -> None:
        if self._failure:
            raise StoreFailed(f"the store has failed before: {self._failure}")
        try:
            self._write(sequence, mark, write, full_tries_max)
            self._before = mark.checksum
        except StoreFailed as error:
            self._failure = str(error)
            raise
        except TableFailed as error:
            self._failure = str(error)
            raise StoreFailed(f"frame {sequence} cannot be written: {error}") from error

    def _write(self, sequence: int, mark: FrameMark, write: Callable[[], None], full_tries_max: int) -> None:
        seconds = 0.0
        vanished = full_tries = 0
        while True:
            try:
                write()
                return
            except SequenceTaken:
                try:
                    found = self._writer.mark_of(sequence)
                    if found == mark:
                        # It may be visible and yet on one disk alone, as after a restart of the database.
                        self._writer.barrier()
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
            except LogShortened as error:
                raise shortened(sequence - 1, error) from None
            except OutcomeUnknown as error:
                seconds = self._paused(f"frame {sequence}", seconds, error)
            except TableFull as error:
                had_reserve = bool(self._held)
                self._became_full()
                if had_reserve and not self._held:
                    full_tries = 0
                    continue
                full_tries += 1
                self._check_full(
                    sequence, full_tries, FULL_TRIES_MAX_SMALL if self._held else full_tries_max, error
                )
                seconds = self._paused(f"frame {sequence}", seconds, error)

    def _paused(self, what: str, seconds: float, error: Exception) -> float:
        """Wait before a repetition; how long, for the next time. Raises StoreFailed when there is no time left."""
        if self._failure or not self._may_retry():
            raise StoreFailed(
                f"whether {what} was written is not known, and it is not tried again, because this node stops or lost the shard: {error}"
            ) from error
        if seconds:
            self._pause(seconds)
        return next_pause(seconds)

    def _gave_up(self) -> bool:
        """Whether the reserve is given up. A database without space may refuse even that: then all of it is still held."""
        seconds = 0.0
        while True:
            try:
                self._writer.hold_reserve(0)
                return True
            except OutcomeUnknown as error:
                seconds = self._paused("the reserve", seconds, error)
            except TableFull:
                return False
            except TableFailed as error:
                raise StoreFailed(f"the reserve cannot be given up: {error}") from error

    def _check_full(self, sequence: int, tries: int, tries_max: int, error: TableFull) -> None:
        if tries == 1:
            logger.error(
                "the database has no space, and no reserve that it can give up: a commit waits for space",
                extra={
                    "event": "store.no_space",
                    "frame": sequence,
                    "reserve_bytes": self._held,
                    "error": str(error),
                },
            )
        if tries > tries_max:
            reserve = "cannot give up the reserve" if self._held else "has nothing left of the reserve"
            raise StoreFailed(
                f"frame {sequence} cannot be written: the database has no space, and {reserve} for settlements. "
                f"Nothing in it was acknowledged. Give the database more space: {error}"
            ) from error

    def _fill_reserve(self, patience: Patience | None = None) -> None:
        """Hold the reserve again, or give up at once what of it fits: then that much is certain to be there for settlements.

        ``patience``: as for ``begin``; None: after a lost connection a later commit tries again.
        """
        self._refill_wait = self._refill_commits
        if not self._reserve_bytes:
            self.is_full = False
            return
        while self._held < self._reserve_bytes:
            if patience is not None:
                patience.check()
            try:
                self._held = self._writer.hold_reserve(self._reserve_bytes)
            except TableFull:
                self._became_full()
                self._refill_commits = min(2 * self._refill_commits, REFILL_COMMITS_MAX)
                return
            except OutcomeUnknown as error:
                if patience is None:
                    return
                patience.lost(error)
            except TableFailed as error:
                raise StoreFailed(f"the reserve cannot be written: {error}") from error
        if self.is_full:
            self.is_full = False
            logger.info("the database has space again", extra={"event": "store.has_space"})
        self._refill_commits = REFILL_COMMITS

    def tend(self) -> None:
        """While nothing else is committed: look whether a full database has space again."""
        if self._failure:
            raise StoreFailed(f"the store has failed before: {self._failure}")
        self._drop_wait = 0
        self.drop_below(self._drop_tried)
        if self.is_full:
            self._fill_reserve()

    def drop_below(self, sequence: int) -> None:
        """Give back frames that no longer matter: the commit that says so is durable. Tried again with a later one if it fails."""
        if sequence <= self._dropped_below:
            return
        if sequence == self._drop_tried and self._drop_wait > 0:
            self._drop_wait -= 1
            return
        self._drop_tried = sequence
        error = "somebody reads them"
        try:
            is_dropped = self._writer.drop_below(sequence)
        except (OutcomeUnknown, TableFull, TableFailed) as why:
            is_dropped, error = False, str(why)
        if not is_dropped:
            self._drop_wait = REFILL_COMMITS
            logger.warning(
                "old frames were not dropped yet", extra={"event": "store.not_dropped", "error": error}
            )
            return
        has_space = self._writer.range_end(self._dropped_below) <= sequence
        self._dropped_below = sequence
        if has_space and self.is_full:
            self._refill_commits = REFILL_COMMITS
            self._fill_reserve()

    def close(self) -> None:
        self._failure = self._failure or "it is closed"
        self._writer.close()
