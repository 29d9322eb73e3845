"""Reads the log back: heads only, in order, each verified.

Rule 1: numbers have no gaps and epochs never fall (S1, S2).
Rule 2: the log ends with our own fence: a reader that sees less has reached a copy that is behind.
Rule 3: a batch of several frames counts if its last one is there. Otherwise its owner ended before it was acknowledged.
Rule 4: whatever is against this is refused with its place. Nothing is skipped (B10).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING
from zlib import crc32

from pairbus.errors import StoreCorrupt
from pairbus.storage.table.frame import MORE, damaged, head_checksum, read_preamble
from pairbus.storage.table.ports import OutcomeUnknown

if TYPE_CHECKING:
    from pairbus.storage.table.ports import FrameHead, FrameReader


def heads(
    reader: FrameReader, first: int, end: int, retry: Callable[[OutcomeUnknown], None]
) -> Iterator[FrameHead]:
    """Frames ``first`` up to, not including, ``end``, verified. ``retry`` is called when the connection was lost; it may raise."""
    expected = first
    while expected < end:
        try:
            for frame in reader.heads(expected, end):
                if frame.sequence != expected:
                    raise damaged(expected, f"it is missing: frame {frame.sequence} follows in its place")
                if frame.head and crc32(frame.head) != head_checksum(frame.mark):
                    raise damaged(frame.sequence, "its head has another checksum")
                expected += 1
                yield frame
        except OutcomeUnknown as error:
            retry(error)
            continue
        if expected < end:
            raise damaged(expected, f"it is missing, and the log should reach to frame {end - 1}")


def complete(
    reader: FrameReader, epoch: int, fence: int, retry: Callable[[OutcomeUnknown], None], void: set[int]
) -> Iterator[FrameHead]:
    """Every frame up to the fence. Numbers of frames that never counted are put into ``void`` before their successor comes.

    A frame that the batch goes on behind is given out once the batch is known to be whole.
    """
    first = _retried(reader.oldest, retry)
    last_epoch = 0
    oldest = 0
    waiting: list[FrameHead] = []
    last = None
    for frame in heads(reader, first, fence + 1, retry):
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
        flags, oldest = read_preamble(frame.head, frame.sequence)
        waiting.append(frame)
        if not flags & MORE:
            yield from waiting
            waiting = []
    if last is None or last.mark.epoch != epoch or last.head:
        raise StoreCorrupt(
            f"the log does not end with the fence of epoch {epoch} at frame {fence}: the database that was read is not the one "
            "that gave the lease"
        )
    if first > max(oldest, 1):
        raise damaged(max(oldest, 1), f"it is missing: the log begins with frame {first}")


def _retried(question: Callable[[], int], retry: Callable[[OutcomeUnknown], None]) -> int:
    while True:
        try:
            return question()
        except OutcomeUnknown as error:
            retry(error)
