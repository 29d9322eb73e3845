"""Whether the disk can take more (B12). What is staged and not yet written counts, and so do the segments still to be made for it.

Rule 1: what fits into segments that are ready, less the reserve, has room: it is written through already.
Rule 2: whatever needs more space of the disk must leave enough for everything staged before it and for two segments more.
Rule 3: the reserve has two parts, and sends leave both alone. One is for settlements. The other is as long as a segment: with it
        housekeeping can move the messages of any ordinary segment, so garbage comes back on a disk without a free byte (0137).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pairbus.storage.log.frame import HEADER_BYTES
from pairbus.storage.log.pool import READY_MIN
from pairbus.storage.log.segment import SEGMENT_HEADER_BYTES

if TYPE_CHECKING:
    from pairbus.storage.files import FileSystem
    from pairbus.storage.log.pool import SegmentPool


class FreeSpace:
    """Knows what the disk owes to records that are staged."""

    def __init__(self, files: FileSystem, pool: SegmentPool, segment_bytes: int, reserve_bytes: int) -> None:
        self._files = files
        self._pool = pool
        self._segment_bytes = segment_bytes
        self._settlement_bytes = reserve_bytes
        self._reserve_bytes = reserve_bytes + segment_bytes
        self._record_bytes_max = segment_bytes - SEGMENT_HEADER_BYTES - HEADER_BYTES
        self._growth: list[tuple[int, int]] = []
        """(number, bytes beyond its ordinary length) of segments that will grow when they are written."""

    def will_grow(self, number: int, more_bytes: int) -> None:
        """A segment was given to a record that is longer than any."""
        self._growth.append((number, more_bytes))

    def admitted(self, number: int) -> int:
        """How many bytes short of a segment's end anything is admitted unasked; negative: nothing is."""
        if self._pool.unmade(number):
            return -1
        return max(0, self._reserve_bytes - self._pool.ready_bytes(number))

    def has(self, size: int, rest: int, number: int, durable_number: int) -> bool:
        """Whether ``size`` bytes have room behind the segment ``number``, in which ``rest`` are left."""
        pool = self._pool
        unmade = pool.unmade(number)
        room = pool.ready_bytes(number) - self._reserve_bytes
        if size <= rest and not unmade:
            room += rest  # else the rest is lost: a record does not cross segments
        is_long = size > self._record_bytes_max
        if size <= room and not unmade and not is_long:
            return True
        if pool.is_full:
            return False
        # Many copies may each leave nearly their own length unused at the end of a segment.
        need = (2 * size if is_long else size) - min(room, 0)
        need += (unmade + READY_MIN) * self._segment_bytes + self._owed(durable_number)
        try:
            return self._files.free_bytes() >= need
        except OSError:
            return False

    def can_move(self, size: int, rest: int, number: int) -> bool:
        """Whether housekeeping can write so many bytes of messages, none longer than a segment, without space of the disk.

        Half of what is kept for settlements stays: facts, whose length is not known before they are read, may need the other half.
        """
        return size + self._settlement_bytes // 2 <= self._left(rest, number)

    def is_reserve_used(self, rest: int, number: int) -> bool:
        """Whether settlements have used so much of the reserve that it must be won back at any price."""
        return self._left(rest, number) < self._reserve_bytes - self._settlement_bytes // 4

    def _left(self, rest: int, number: int) -> int:
        """What can be written without space of the disk."""
        return 0 if self._pool.unmade(number) else rest + self._pool.ready_bytes(number)

    def _owed(self, durable_number: int) -> int:
        growth = self._growth
        if growth and growth[0][0] < durable_number:
            growth[:] = [entry for entry in growth if entry[0] >= durable_number]
        return sum([more_bytes for _, more_bytes in growth])
