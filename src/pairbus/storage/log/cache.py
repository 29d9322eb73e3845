"""Message bytes in memory: the most recent ones, and blocks of what was read from disk. Bounded (B62). Owner's thread."""

from __future__ import annotations

import errno
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from pairbus.errors import StoreCorrupt, StoreFailed
from pairbus.storage.log.segment import OFFSET_BITS, OFFSET_MASK, segment_name
from pairbus.storage.recent import RecentBlobs

if TYPE_CHECKING:
    from pairbus.storage.files import FileSystem

BLOCK_BITS: Final = 17
BLOCK_BYTES: Final = 1 << BLOCK_BITS
"""What one read from disk brings: enough that a drain of small messages reads seldom."""
BLOCKS_MIN: Final = 2
HANDLES_MAX: Final = 64
"""Old segments held open for reading."""


class BlobCache(RecentBlobs):
    """Reads blobs.

    Args:
        files: Where the segments live.
        cache_bytes: Bound of what is kept; half for recent blobs, half for blocks.
    """

    def __init__(self, files: FileSystem, cache_bytes: int) -> None:
        super().__init__(cache_bytes // 2)
        self._files = files
        self._blocks: OrderedDict[int, bytes] = OrderedDict()
        self._last = (-1, b"")
        """The block that was used last, by its key: the next message of a backlog mostly lies in it too."""
        self._blocks_max = max(BLOCKS_MIN, cache_bytes // 2 // BLOCK_BYTES)
        self._handles: OrderedDict[int, int] = OrderedDict()
        self.hits = 0
        self.misses = 0

    @property
    def cached_bytes(self) -> int:
        return self.recent_bytes + sum(map(len, self._blocks.values()))

    def read(self, location: int, size: int, durable: int) -> bytes:
        """The blob at a location, from memory or disk."""
        blob = self.get(location)
        if blob is not None:
            self.hits += 1
            return blob
        first = location >> BLOCK_BITS
        last = (location + size - 1) >> BLOCK_BITS
        # A block that is still being filled must not be kept.
        if last - first > 1 or (
            (last + 1) << BLOCK_BITS > durable and location >> OFFSET_BITS == durable >> OFFSET_BITS
        ):
            self.misses += 1
            return self._pread(location, size)
        data = self._block(first)
        start = location & (BLOCK_BYTES - 1)
        if last != first:
            data += self._block(last)
        blob = data[start : start + size]
        if len(blob) != size:
            raise _short(location, size)
        return blob

    def _block(self, key: int) -> bytes:
        last_key, last_block = self._last
        if key == last_key:
            self.hits += 1
            return last_block
        block = self._blocks.get(key)
        if block is not None:
            self.hits += 1
            self._blocks.move_to_end(key)
            self._last = (key, block)
            return block
        self.misses += 1
        location = key << BLOCK_BITS
        block = self._load(location, BLOCK_BYTES)
        self._last = (key, block)
        self._blocks[key] = block
        if len(self._blocks) > self._blocks_max:
            self._blocks.popitem(last=False)
        return block

    def _pread(self, location: int, size: int) -> bytes:
        data = self._load(location, size)
        if len(data) != size:
            raise _short(location, size)
        return data

    def _load(self, location: int, size: int) -> bytes:
        try:
            handle = self._handle(location >> OFFSET_BITS)
            return self._files.read(handle, size, location & OFFSET_MASK)
        except OSError as error:
            raise StoreFailed(f"{segment_name(location >> OFFSET_BITS)} cannot be read: {error}") from error

    def _handle(self, number: int) -> int:
        handle = self._handles.get(number)
        if handle is None:
            handle = self._open(number)
            self._handles[number] = handle
            if len(self._handles) > HANDLES_MAX:
                self._files.close(self._handles.popitem(last=False)[1])
        else:
            self._handles.move_to_end(number)
        return handle

    def _open(self, number: int) -> int:
        try:
            return self._files.open(segment_name(number))
        except OSError as error:
            # No descriptor is left: one of those that are kept for other segments serves as well.
            if error.errno not in (errno.EMFILE, errno.ENFILE) or not self._handles:
                raise
            self._files.close(self._handles.popitem(last=False)[1])
            return self._files.open(segment_name(number))

    def drop_segment(self, number: int) -> None:
        handle = self._handles.pop(number, None)
        if handle is not None:
            self._files.close(handle)

    def close(self) -> None:
        """Close what is open. Idempotent."""
        while self._handles:
            self._files.close(self._handles.popitem()[1])


def _short(location: int, size: int) -> StoreCorrupt:
    name, offset = segment_name(location >> OFFSET_BITS), location & OFFSET_MASK
    return StoreCorrupt(
        f"{name}: the file ends inside the {size} bytes at {offset}", file=name, offset=offset
    )
