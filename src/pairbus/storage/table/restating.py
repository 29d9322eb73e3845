"""The records of old frames that may still be true, brought by the reading thread so that the event loop never waits."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from pairbus.engine.records import MessageStored
from pairbus.storage.accounts import ENTITY_SHIFT, RESTATABLE
from pairbus.storage.codec import decode
from pairbus.storage.table.bodies import HeadRequest
from pairbus.storage.table.frame import OFFSET_BITS, PREAMBLE

if TYPE_CHECKING:
    from pairbus.engine.records import Record
    from pairbus.storage.accounts import SegmentAccount
    from pairbus.storage.table.bodies import Bodies
    from pairbus.storage.table.ports import FrameHead

HEADS_AT_ONCE: Final = 512
AHEAD_BYTES_MAX: Final = 8 << 20
"""Bodies that are asked for ahead of their turn."""


class Round:
    """Goes through the frames of one account.

    Args:
        account: What is known of them.
        first: The first of them.
        end: The frame behind the last.
        void: Frames that never counted.
    """

    def __init__(self, bodies: Bodies, account: SegmentAccount, first: int, end: int, void: set[int]) -> None:
        self._bodies = bodies
        self._live = account.live
        self._next = first
        self._end = end
        self._void = void
        self._request: HeadRequest | None = None
        self._frames: deque[FrameHead] = deque()
        self._records: Iterator[Record] = iter(())
        self._is_over = False

    @property
    def is_over(self) -> bool:
        """Whether everything was given out."""
        return self._is_over

    def take(self, limit: int, bytes_max: int) -> list[Record]:
        """Some of the records; none: the round is over, or what comes next is not here yet."""
        taken: list[Record] = []
        size = 0
        while len(taken) < limit and size < bytes_max:
            record = next(self._records, None)
            if record is None:
                if not self._next_frame():
                    break
                continue
            taken.append(record)
            if isinstance(record, MessageStored):
                size += record.message.size
        return taken

    def _next_frame(self) -> bool:
        if not self._frames and not self._more_heads():
            return False
        frame = self._frames[0]
        records: list[Record] = []
        if frame.head and frame.sequence not in self._void:
            found = decode(frame.head, PREAMBLE.size, len(frame.head), frame.sequence << OFFSET_BITS, 0)
            records = [record for record in found if self._matters(record)]
        if any(isinstance(record, MessageStored) for record in records) and not self._bodies.has(
            frame.sequence
        ):
            self._ask_ahead()
            if not self._bodies.has(frame.sequence):
                return False
        self._frames.popleft()
        self._records = iter(records)
        return True

    def _matters(self, record: Record) -> bool:
        """Of entities that have nothing alive here, messages need not be looked at: their bytes need not be read."""
        if isinstance(record, MessageStored):
            return bool(record.duplicate_key) or record.queue_id >> ENTITY_SHIFT in self._live
        return isinstance(record, RESTATABLE)

    def _more_heads(self) -> bool:
        if self._request is None:
            if self._next >= self._end:
                self._is_over = True
                return False
            self._request = HeadRequest(self._next, min(self._end, self._next + HEADS_AT_ONCE))
            self._bodies.ask_heads(self._request)
        if self._request.frames is None:
            self._bodies.raise_if_failed()
            return False
        self._frames.extend(self._request.frames)
        self._next = self._request.end
        self._request = None
        return bool(self._frames)

    def _ask_ahead(self) -> None:
        wanted: list[int] = []
        size = 0
        # The first must still be there when the last has come.
        bytes_max = min(AHEAD_BYTES_MAX, self._bodies.cache_bytes // 2)
        for frame in self._frames:
            size += frame.body_bytes
            if wanted and size > bytes_max:
                break
            if frame.body_bytes and not self._bodies.has(frame.sequence):
                wanted.append(frame.sequence)
        self._bodies.ask(wanted, 0)
