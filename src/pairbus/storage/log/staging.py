"""The batch that is being filled: the frames that are closed already, and the one that records are added to.

A record's location is known as soon as it is staged, because there is one writer and it writes frames in this order, without gaps. A
run of removals from one queue becomes one record: it stays open until something else is staged.
"""

from __future__ import annotations

from pairbus.storage.codec import REMOVED_HEAD_BYTES, REMOVED_NUMBER_BYTES, encode_removed
from pairbus.storage.log.frame import HEADER_BYTES
from pairbus.storage.log.segment import OFFSET_BITS, SEGMENT_HEADER_BYTES
from pairbus.storage.log.writer import Frame


class Staging:
    """Where the next record goes, and the bytes that wait for the commit.

    Args:
        segment: Number of the segment in use.
        offset: Where its next frame starts.
        limit: Where its space ends.
        frame_number: The number of the last frame.
    """

    __slots__ = (
        "_frame_number",
        "_frames",
        "_frames_bytes",
        "_previous_end",
        "_run",
        "base",
        "frame_start",
        "limit",
        "pieces",
        "position",
        "run_queue_id",
        "segment",
    )

    def __init__(self, segment: int = 0, offset: int = 0, limit: int = 0, frame_number: int = 0) -> None:
        self.segment = segment
        self.base = segment << OFFSET_BITS
        """The location of the segment's first byte."""
        self.limit = limit
        self.frame_start = offset
        self.position = offset + HEADER_BYTES
        self.pieces: list[bytes] = []
        """The records of the open frame."""
        self.run_queue_id = -1
        """The queue of the open run of removals; -1: there is none."""
        self._run: list[int] = []
        self._frame_number = frame_number
        self._frames: list[Frame] = []
        self._frames_bytes = 0
        self._previous_end = 0

    @property
    def end(self) -> int:
        """The location behind the last closed frame."""
        return self.base | self.frame_start

    @property
    def has_records(self) -> bool:
        """Whether the open frame holds anything."""
        return bool(self.pieces or self._run)

    @property
    def has_segment_to_itself(self) -> bool:
        """Whether the open frame is the first of its segment and still empty."""
        return self.frame_start <= SEGMENT_HEADER_BYTES and not self.pieces

    def staged_bytes(self) -> int:
        return self._frames_bytes + max(0, self.position - self.frame_start - HEADER_BYTES)

    def add(self, data: bytes) -> None:
        """Add an encoded record. The caller has closed the run and made sure that it fits."""
        self.pieces.append(data)
        self.position += len(data)

    def begin_run(self, queue_id: int) -> None:
        self.run_queue_id = queue_id
        self.position += REMOVED_HEAD_BYTES

    def add_removal(self, sequence_number: int) -> None:
        """Add to the open run."""
        self._run.append(sequence_number)
        self.position += REMOVED_NUMBER_BYTES

    def add_removals(self, sequence_numbers: list[int]) -> None:
        """Add several to the open run."""
        self._run += sequence_numbers
        self.position += REMOVED_NUMBER_BYTES * len(sequence_numbers)

    def close_run(self) -> None:
        if self._run:
            self.pieces.append(encode_removed(self.run_queue_id, self._run))
            self._run = []
        self.run_queue_id = -1

    def close_frame(self, flags: int, oldest: int) -> None:
        """Close the open frame and open the next one behind it; ``oldest`` is the oldest segment that matters from then on."""
        self._frame_number += 1
        self._frames.append(
            Frame(
                segment=self.segment,
                offset=self.frame_start,
                number=self._frame_number,
                part=len(self._frames),
                previous_end=self._previous_end if self.frame_start == SEGMENT_HEADER_BYTES else 0,
                pieces=self.pieces,
                flags=flags,
                oldest=oldest,
            )
        )
        self._frames_bytes += self.position - self.frame_start
        self._open_frame(self.position)

    def begin_segment(self, limit: int) -> None:
        """Go on in the next segment; every frame of this one is closed."""
        self._previous_end = self.frame_start
        self.segment += 1
        self.base = self.segment << OFFSET_BITS
        self.limit = limit
        self._open_frame(SEGMENT_HEADER_BYTES)

    def _open_frame(self, offset: int) -> None:
        self.frame_start = offset
        self.position = offset + HEADER_BYTES
        self.pieces = []

    def take_frames(self) -> list[Frame]:
        """The closed frames; a new batch begins."""
        frames, self._frames, self._frames_bytes = self._frames, [], 0
        return frames
