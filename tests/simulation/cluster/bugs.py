"""Faults planted in the nodes of a simulated cluster: a simulation that nobody has seen fail proves nothing."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pairbus.storage.table.ports import Acquired, FrameHead, FrameMark, FrameWriter, OutcomeUnknown
from tests.simulation.cluster.table import SimulatedReader


@dataclass(frozen=True, kw_only=True)
class ClusterBugs:
    """Which faults are planted."""

    no_fence_frame: bool = False
    retries_with_a_new_number: bool = False
    assumes_committed: bool = False
    speaks_after_the_lease: bool = False
    no_barrier: bool = False
    counts_from_the_answer: bool = False
    replays_without_order: bool = False
    drops_a_live_range: bool = False
    never_looks_twice: bool = False
    ends_locks_early: bool = False


class WatchedWriter:
    """Passes every call on, remembers the last frame, and has the planted faults of a commit."""

    def __init__(self, writer: FrameWriter, bugs: ClusterBugs, range_frames: int) -> None:
        self._writer = writer
        self._bugs = bugs
        self._range_frames = range_frames
        self._shift = 0
        self.last: tuple[int, FrameMark] | None = None
        """Number and mark of the last frame that was to be added."""

    def insert(
        self, sequence: int, mark: FrameMark, head: bytes, body: Sequence[bytes], after: int | None = None
    ) -> None:
        """See FrameWriter."""
        sequence += self._shift
        self.last = (sequence, mark)
        try:
            self._writer.insert(sequence, mark, head, body, after)
        except OutcomeUnknown:
            if self._bugs.assumes_committed:
                return
            if self._bugs.retries_with_a_new_number:
                self._shift += 1
            raise

    def mark_of(self, sequence: int) -> FrameMark | None:
        """See FrameWriter."""
        return self._writer.mark_of(sequence + self._shift)

    def barrier(self) -> None:
        """See FrameWriter."""
        if not self._bugs.no_barrier:
            self._writer.barrier()

    def fill(self, first: int, end: int, epoch: int, after: int | None = None) -> None:
        """See FrameWriter."""
        first, end = first + self._shift, end + self._shift
        self.last = (end - 1, FrameMark(epoch, 0))
        self._writer.fill(first, end, epoch, after)

    def range_end(self, sequence: int) -> int:
        """See FrameWriter."""
        return self._writer.range_end(sequence)

    def hold_reserve(self, size: int) -> int:
        """See FrameWriter."""
        return self._writer.hold_reserve(size)

    def drop_below(self, sequence: int) -> bool:
        """See FrameWriter."""
        extra = self._range_frames if self._bugs.drops_a_live_range else 0
        return self._writer.drop_below(sequence + extra)

    def close(self) -> None:
        """See FrameWriter."""
        self._writer.close()


class FaultyReader(SimulatedReader):
    """Reads frames with the planted faults of a replay."""

    def __init__(
        self, reader: SimulatedReader, acquired: Acquired, bugs: ClusterBugs, chance: random.Random
    ) -> None:
        super().__init__(reader.database, reader.client)
        self._epoch = acquired.epoch
        self._fence = acquired.fence
        self._bugs = bugs
        self._chance = chance

    def heads(self, first: int, end: int) -> Iterator[FrameHead]:
        """See FrameReader."""
        found = list(super().heads(first, end))
        if (
            self._bugs.no_fence_frame
            and end == self._fence + 1
            and (not found or found[-1].sequence < self._fence)
        ):
            found.append(FrameHead(self._fence, FrameMark(self._epoch, 0), b"", 0))  # replay would miss it
        for place in range(len(found) - 2):
            if self._bugs.replays_without_order and self._chance.random() < 0.2:
                found[place], found[place + 1] = found[place + 1], found[place]
        yield from found
