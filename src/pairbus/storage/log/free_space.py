"""Whether the disk can take more (B12). What is staged and not yet written counts, and so do the segments still to be made for it.

Rule 1: what fits into segments that are ready, less the reserve, has room: it is written through already.
Rule 2: whatever needs more space of the disk must leave enough for everything staged before it and for two segments more.
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
        self._reserve_bytes = reserve_bytes
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

    def _owed(self, durable_number: int) -> int:
        growth = self._growth
        if growth and growth[0][0] < durable_number:
            growth[:] = [entry for entry in growth if entry[0] >= durable_number]
        return sum([more_bytes for _, more_bytes in growth])
