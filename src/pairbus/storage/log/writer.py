"""Makes batches durable: checksum, write, sync, in this order, one at a time. The committer's side of the log.

After the first write or sync that did not fully succeed nothing is tried again: what the disk then holds is
unknown until the store is opened again (B11).
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING
from zlib import crc32

from pairbus.errors import StoreFailed
from pairbus.storage.files import LockLost
from pairbus.storage.log.frame import FRAME, HEADER_BYTES, FrameHeader, pack_header
from pairbus.storage.log.mark import MARK_FILE
from pairbus.storage.log.segment import OpenSegment, segment_name

if TYPE_CHECKING:
    from pairbus.storage.files import FileSystem
    from pairbus.storage.log.mark import MarkWriter
    from pairbus.storage.log.pool import SegmentPool


@dataclass(slots=True, kw_only=True)
class Frame:
    """A frame whose place is settled and whose bytes are not yet written."""

    segment: int
    offset: int
    number: int
    part: int
    previous_end: int
    pieces: list[bytes]
    flags: int
    oldest: int


@dataclass(slots=True)
class LogBatch:
    """One atomic group of records: usually one frame, more where it crosses segments."""

    frames: list[Frame]
    end: int
    """The location behind its last byte."""
    released: list[tuple[str, int]]
    """(name, length) of files that matter no more once this is durable."""


class LogWriter:
    """Writes to the segment that is in use.

    Args:
        files: Where the segments live.
        pool: Gives the next segment, takes old files back.
        active: The segment to go on in.
        mark: Takes the number of every frame that was acknowledged.
        number: The number of the last frame.
        durable: The location up to which everything is durable.
    """

    def __init__(
        self,
        files: FileSystem,
        pool: SegmentPool,
        active: OpenSegment,
        mark: MarkWriter,
        number: int,
        durable: int,
    ) -> None:
        self._files = files
        self._pool = pool
        self._active = active
        self._mark = mark
        self._number = number
        self.durable = durable
        self.failure: str | None = None
        self.commits = 0
        self.last_sync_ms = 0.0

    def commit(self, batch: LogBatch) -> None:
        """Return once the batch is durable. StoreFailed if that is not certain."""
        if self.failure is not None:
            raise StoreFailed(f"the store failed before: {self.failure}; restart the broker")
        segment = self._active
        try:
            self._files.check_lock()
            for frame in batch.frames:
                self._write(frame)
        except LockLost as error:
            self.failure = str(error)
            raise StoreFailed(f"{error}. Nothing is acknowledged any more") from error
        except (OSError, StoreFailed) as error:
            self.failure = f"{segment_name(self._active.number)}: {error}"
            raise StoreFailed(
                f"{self.failure}. Nothing is acknowledged any more; restart the broker"
            ) from error
        self.durable = batch.end
        self.commits += 1
        self._number = batch.frames[-1].number
        try:
            if self._active is segment:
                self._mark.note(self._number, batch.end)
            else:
                self._mark.confirm(self._number, batch.end)
        except OSError as error:
            # The batch is durable and may be acknowledged. What follows may not: its loss could go unnoticed.
            self.failure = f"{MARK_FILE}: {error}"
        for name, length in batch.released:
            self._pool.release(name, length)

    def _write(self, frame: Frame) -> None:
        segment = self._active
        if frame.segment != segment.number:
            self._active = self._pool.take(frame.segment)
            self._files.close(segment.handle)
            segment = self._active
        records = b"".join(frame.pieces)
        header = pack_header(
            segment.marker,
            FrameHeader(
                FRAME, frame.flags, frame.part, len(records), frame.number, frame.oldest, frame.previous_end,
                crc32(records),
            ),
        )  # fmt: skip
        length = HEADER_BYTES + len(records)
        if frame.offset + length > segment.capacity:
            self._pool.lengthen(segment, frame.offset + length)
        started = time.perf_counter()
        written = self._files.write(segment.handle, (header, records), frame.offset)
        if written != length:
            raise StoreFailed(f"short write: {written} of {length} bytes at offset {frame.offset}")
        self._files.sync(segment.handle)
        self.last_sync_ms = (time.perf_counter() - started) * 1000

    def close(self) -> None:
        """Close the files. After good commits only, the mark is exact from here on, whatever happens to the machine."""
        if self.failure is None:
            try:
                self._files.check_lock()
                self._mark.confirm(self._number, self.durable)
            except OSError as error:
                self.failure = f"{MARK_FILE}: {error}"  # the mark that was written before still holds
        self._mark.close()
        self._files.close(self._active.handle)
