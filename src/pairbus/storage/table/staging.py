"""The batch that is being filled while another one is committed: frames that are closed already, and the one that records go to."""

from __future__ import annotations

from pairbus.storage.codec import REMOVED_HEAD_BYTES, REMOVED_NUMBER_BYTES, encode_removed
from pairbus.storage.table.frame import OFFSET_BITS, Frame


class TableBatch:
    """What one commit makes durable."""

    __slots__ = ("drop_below", "fill_end", "fill_first", "frames")

    def __init__(self, frames: list[Frame], drop_below: int, fill_first: int = 0, fill_end: int = 0) -> None:
        self.frames = frames
        """Empty: the commit only looks whether a full database has space again."""
        self.drop_below = drop_below
        """Frames below this number do not matter once the batch is durable."""
        self.fill_first = fill_first
        self.fill_end = fill_end
        """The numbers from ``fill_first`` up to this one are given to empty frames."""


class TableStaging:
    """Where the next record goes. A record's location is known at once: one owner writes, and numbers have no gaps.

    Args:
        sequence: The number of the next frame.
    """

    __slots__ = (
        "_frames",
        "_frames_bytes",
        "_run",
        "base",
        "blobs",
        "body_bytes",
        "head_bytes",
        "records",
        "run_queue_id",
        "sequence",
    )

    def __init__(self, sequence: int) -> None:
        self._frames: list[Frame] = []
        self._frames_bytes = 0
        self._run: list[int] = []
        self._open(sequence)

    def _open(self, sequence: int) -> None:
        self.sequence = sequence
        self.base = sequence << OFFSET_BITS
        """The location of the first byte of the open frame's body."""
        self.records: list[bytes] = []
        self.blobs: list[bytes] = []
        self.head_bytes = 0
        self.body_bytes = 0
        self.run_queue_id = -1
        """The queue of the open run of removals; -1: there is none."""

    @property
    def has_records(self) -> bool:
        return bool(self.records or self._run)

    def staged_bytes(self) -> int:
        return self._frames_bytes + self.head_bytes + self.body_bytes

    def add(self, data: bytes) -> None:
        """Add an encoded record; the run has been closed."""
        self.records.append(data)
        self.head_bytes += len(data)

    def add_removal(self, queue_id: int, sequence_number: int) -> None:
        if queue_id != self.run_queue_id:
            self.close_run()
            self.run_queue_id = queue_id
            self.head_bytes += REMOVED_HEAD_BYTES
        self._run.append(sequence_number)
        self.head_bytes += REMOVED_NUMBER_BYTES

    def close_run(self) -> None:
        if self._run:
            self.records.append(encode_removed(self.run_queue_id, self._run))
            self._run = []
        self.run_queue_id = -1

    def close_frame(self, flags: int, oldest: int) -> None:
        """Close the open frame and open the next one."""
        self.close_run()
        frame = Frame(self.sequence, flags, oldest, self.records, self.blobs, self.body_bytes)
        self._frames.append(frame)
        self._frames_bytes += self.head_bytes + self.body_bytes
        self._open(self.sequence + 1)

    def skip_to(self, sequence: int) -> None:
        """The numbers up to this one are filled with empty frames; nothing is staged now."""
        self._open(sequence)

    def take_frames(self) -> list[Frame]:
        """The closed frames; a new batch begins."""
        frames, self._frames, self._frames_bytes = self._frames, [], 0
        return frames
