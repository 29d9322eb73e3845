"""Reads the log back: heads only, in order, each verified.

Rule 1: numbers have no gaps and epochs never fall (S1, S2).
Rule 2: the log ends with our own fence: a reader that sees less has reached a copy that is behind.
Rule 3: a batch of several frames counts if its last one is there. Otherwise its owner ended before it was acknowledged.
Rule 4: whatever is against this is refused with its place. Nothing is skipped (B10).
        So is a frame that is missing, unless another owner has dropped it, or the database that was read is behind.
Rule 5: frames below the oldest that matters, as the last frame states it, are not read: a former owner may still be dropping them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar
from zlib import crc32

from pairbus.errors import StorageError, StoreCorrupt, StoreFenced
from pairbus.storage.table.frame import MORE, damaged, head_checksum, read_preamble
from pairbus.storage.table.ports import FrameMark, LastFrame, OutcomeUnknown

if TYPE_CHECKING:
    from pairbus.storage.table.ports import FrameHead, FrameReader

FRAMES_AT_ONCE: Final = 8
"""How many frames are looked at together, at first, to find the last one with records."""
FRAMES_AT_ONCE_MAX: Final = 512
"""The rest of a range may be filled with empty frames."""
Answer = TypeVar("Answer")


class LogEnd:
    """What an owner knows of the end of its log: by it a reader tells a frame that is lost from one that it cannot see."""

    __slots__ = ("epoch", "last", "newest")

    def __init__(self, epoch: int, fence: int) -> None:
        self.epoch = epoch
        self.newest = fence
        """The last frame that is durable; written by the commit thread."""
        self.last = LastFrame(fence, FrameMark(epoch, 0))
        """The same frame, with its mark."""

    def committed(self, last: LastFrame) -> None:
        """This frame is durable."""
        self.last = last
        self.newest = last.sequence


def heads(
    reader: FrameReader, first: int, end: int, log_end: LogEnd, retry: Callable[[OutcomeUnknown], None]
) -> Iterator[FrameHead]:
    """Frames ``first`` up to, not including, ``end``, verified. ``retry`` is called when the connection was lost; it may raise."""
    expected = first
    while expected < end:
        try:
            for frame in reader.heads(expected, end):
                if frame.sequence != expected:
                    raise why_missing(
                        reader, expected, log_end, f"frame {frame.sequence} follows in its place"
                    )
                _verify(frame)
                expected += 1
                yield frame
            if expected < end:
                raise why_missing(reader, expected, log_end, f"the log should reach to frame {end - 1}")
        except OutcomeUnknown as error:
            retry(error)


def why_missing(reader: FrameReader, sequence: int, log_end: LogEnd, what: str) -> StorageError:
    """Why a frame that should be there is not: another owner dropped it, the database that was read is behind, or it is damage."""
    newest = log_end.newest
    is_dropped = reader.oldest() > newest
    if is_dropped or any(frame.mark.epoch > log_end.epoch for frame in reader.heads(newest + 1, newest + 3)):
        return StoreFenced(
            f"frame {sequence} is not needed any more: another node has taken the shard (ours is epoch {log_end.epoch})"
        )
    if not any(frame.sequence == newest for frame in reader.heads(newest, newest + 1)):
        reader.reconnect()
        return OutcomeUnknown(f"the database that was read is behind: it does not have frame {newest}")
    return damaged(sequence, f"it is missing: {what}")


def complete(
    reader: FrameReader, log_end: LogEnd, retry: Callable[[OutcomeUnknown], None], void: set[int]
) -> Iterator[FrameHead]:
    """Every frame up to the fence. Numbers of frames that never counted are put into ``void`` before their successor comes.

    A frame that the batch goes on behind is given out once the batch is known to be whole.
    """
    fence = log_end.newest
    oldest = _stated_oldest(reader, fence, retry)
    last_epoch = 0
    waiting: list[FrameHead] = []
    last = None
    for frame in heads(reader, oldest, fence + 1, log_end, retry):
        last = frame
        mark = frame.mark
        if mark.epoch < last_epoch:
            raise damaged(frame.sequence, f"it is of epoch {mark.epoch}, behind one of epoch {last_epoch}")
        if waiting and (mark.epoch != last_epoch or not frame.head):
            void.update(one.sequence for one in waiting)
            waiting = []
        last_epoch = mark.epoch
        if not frame.head:
            yield frame
            continue
        flags, _ = read_preamble(frame.head, frame.sequence)
        waiting.append(frame)
        if not flags & MORE:
            yield from waiting
            waiting = []
    if last is None or last.mark.epoch != log_end.epoch or last.head:
        raise StoreCorrupt(
            f"the log does not end with the fence of epoch {log_end.epoch} at frame {fence}: the database that was read is not the one "
            "that gave the lease"
        )


def _verify(frame: FrameHead) -> None:
    if frame.head and crc32(frame.head) != head_checksum(frame.mark):
        raise damaged(frame.sequence, "its head has another checksum")


def _stated_oldest(reader: FrameReader, fence: int, retry: Callable[[OutcomeUnknown], None]) -> int:
    """The oldest frame that matters, as the last frame before the fence states it that is not itself a fence."""
    end = fence
    step = FRAMES_AT_ONCE
    while end > 1:
        first = max(1, end - step)
        step = min(4 * step, FRAMES_AT_ONCE_MAX)
        for frame in reversed(_retried(partial(_listed, reader, first, end), retry)):
            if frame.head:
                _verify(frame)
                return max(1, read_preamble(frame.head, frame.sequence)[1])
        end = first
    return 1


def _listed(reader: FrameReader, first: int, end: int) -> list[FrameHead]:
    return list(reader.heads(first, end))


def _retried(question: Callable[[], Answer], retry: Callable[[OutcomeUnknown], None]) -> Answer:
    while True:
        try:
            return question()
        except OutcomeUnknown as error:
            retry(error)
