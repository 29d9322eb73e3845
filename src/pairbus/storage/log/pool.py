"""Segments made ready ahead of use, and used ones taken back.

A ready segment is written through once (zeros, or the past of a recycled file), carries its number and a fresh salt, and
is synced together with its name: the first commit into it costs one ordinary sync. A thread does this beside the
others; without it (``is_background`` false) the work is done where it is needed, which simulations use.

No more space on the disk is a state, not an error (B12): it is tried again until there is some. So is a moment in which the
process or the machine has no file descriptor or no memory left.
"""

from __future__ import annotations

import errno
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from pairbus.errors import StoreFailed
from pairbus.storage.files import UNFINISHED_SUFFIX, recreate, write_all
from pairbus.storage.log.segment import SEGMENT_HEADER_BYTES, OpenSegment, pack_segment_header, segment_name

if TYPE_CHECKING:
    from pairbus.storage.files import FileSystem

READY_MIN: Final = 2
"""Segments made ready ahead, so that a burst never waits for the disk to be written through."""
READY_MAX: Final = 3
"""Used segments are kept up to this many ready ones; what is more goes back to the system."""
FILL_BYTES: Final = 1 << 20
"""Zeros are written and synced in pieces of this size, so that commits beside it wait little."""
RETRY_SECONDS: Final = 0.25
STALL_SECONDS_MAX: Final = 30.0
"""How long a commit waits for a segment on a full disk before the store gives up."""

_NO_SPACE: Final = (errno.ENOSPC, errno.EDQUOT)
_SCARCE: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN)
"""Says nothing about the disk: it passes as soon as others give something back."""
_ZEROS: Final = bytes(FILL_BYTES)


class SegmentPool:
    """Hands out segments by number, in order.

    Args:
        files: Where they live.
        segment_bytes: How long new ones are.
        next_number: The first one to be made.
        make_marker: Gives the salt for each use of a file.
        is_background: Whether a thread does the work.
    """

    def __init__(
        self,
        files: FileSystem,
        segment_bytes: int,
        next_number: int,
        make_marker: Callable[[], bytes],
        is_background: bool,
    ) -> None:
        self._files = files
        self._segment_bytes = segment_bytes
        self._next_number = next_number
        self._make_marker = make_marker
        self._changed = threading.Condition()
        self._ready: dict[int, OpenSegment] = {}
        self._released: deque[tuple[str, int]] = deque()
        """(name, length) of files that are no longer needed."""
        self._failure: OSError | None = None
        self._shortage: OSError | None = None
        """Why the last piece of work must be tried again."""
        self._is_stopped = False
        self.is_full = False
        self._worker: threading.Thread | None = None
        if is_background:
            self._worker = threading.Thread(target=self._run, name="pairbus-segments", daemon=True)

    def start(self) -> None:
        if self._worker is not None:
            self._worker.start()

    def stop(self) -> None:
        """End the work and close what is ready. Idempotent."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()
        if self._worker is not None and self._worker.ident is not None:
            self._worker.join()
        for segment in self._ready.values():
            self._files.close(segment.handle)
        self._ready.clear()

    # -- what owner and committer ask ----------------------------------------------------------------

    def adopt(self, segment: OpenSegment) -> None:
        """A segment found ready at the start."""
        with self._changed:
            self._ready[segment.number] = segment
            self._next_number = max(self._next_number, segment.number + 1)

    def release(self, name: str, length: int) -> None:
        """A file whose segment matters no more, which is durably known."""
        with self._changed:
            self._released.append((name, length))
            self._changed.notify_all()

    def capacity(self, number: int) -> int:
        """How long this segment is or will be."""
        with self._changed:
            segment = self._ready.get(number)
        return self._segment_bytes if segment is None else segment.capacity

    def ready_bytes(self, after: int) -> int:
        """What can be written into ready segments behind a number."""
        with self._changed:
            return sum(
                segment.capacity - SEGMENT_HEADER_BYTES
                for segment in self._ready.values()
                if segment.number > after
            )

    def unmade(self, number: int) -> int:
        """How many segments up to this number are still to be made."""
        with self._changed:
            return max(0, number - self._next_number + 1)

    def ready_count(self) -> int:
        with self._changed:
            return len(self._ready)

    def take(self, number: int) -> OpenSegment:
        """The segment of this number; waits until it is ready. StoreFailed if it will not come."""
        deadline = time.monotonic() + STALL_SECONDS_MAX
        with self._changed:
            while number not in self._ready:
                if self._failure is not None:
                    raise StoreFailed(f"no new segment could be made: {self._failure}") from self._failure
                if self._is_stopped:
                    raise StoreFailed("the store is closed")
                if self._worker is None:
                    self._make_now(number)
                elif not self._changed.wait(deadline - time.monotonic()) and time.monotonic() >= deadline:
                    raise StoreFailed(f"no new segment within {STALL_SECONDS_MAX:.0f} s{self._why_not()}")
            segment = self._ready.pop(number)
            self._changed.notify_all()
        return segment

    def lengthen(self, segment: OpenSegment, length: int) -> None:
        """Give a segment the space that a long frame needs, before a byte of it is written: as long as there is none the
        commit waits, as it would for a new segment. StoreFailed if it does not come; OSError for any other fault.
        """
        deadline = time.monotonic() + STALL_SECONDS_MAX
        while True:
            try:
                self._files.reserve(segment.handle, segment.capacity, length - segment.capacity)
            except OSError as error:
                if error.errno not in _NO_SPACE:
                    raise
                self.is_full = True
                if self._worker is None or self._is_stopped or time.monotonic() >= deadline:
                    raise StoreFailed(
                        f"no space for a message of {length} bytes: the disk is full; free some space"
                    ) from error
            else:
                return
            with self._changed:
                self._changed.wait(RETRY_SECONDS)

    def _make_now(self, number: int) -> None:
        if not self.step() and number not in self._ready and self._failure is None:
            raise StoreFailed(f"segment {number} cannot be made{self._why_not()}")

    def _why_not(self) -> str:
        if self._shortage is not None:
            return f": {self._shortage}"
        return ": the disk is full and the reserve is used up; free some space" if self.is_full else ""

    # -- the work ---------------------------------------------------------------------------------------

    def _run(self) -> None:
        while self._wait_for_work():
            self.step()

    def _wait_for_work(self) -> bool:
        """Wait; False once stopped. A full disk and any other shortage are asked again after a while."""
        with self._changed:
            while not self._is_stopped and not self._has_work():
                is_waiting = self.is_full or self._shortage is not None
                if not self._changed.wait(RETRY_SECONDS if is_waiting else None):
                    break
            return not self._is_stopped

    def _has_work(self) -> bool:
        if self._failure is not None or self._shortage is not None:
            return False
        return bool(self._released) or (len(self._ready) < READY_MIN and not self.is_full)

    def step(self) -> bool:
        """Do one piece of work. False if there was none, or no space for it."""
        with self._changed:
            if self._failure is not None:
                return False
            ready = len(self._ready)
            released = self._released.popleft() if self._released else None
            number = self._next_number
        try:
            if released is not None or ready < READY_MIN:
                self._files.check_lock()  # files of another owner must not be replaced or removed
            if released is not None:
                if ready < READY_MAX and released[1] == self._segment_bytes:
                    self._add(self._recycle(released[0], number))
                else:
                    self._remove(released[0])
                self._shortage = None
                return True
            if ready < READY_MIN or self.is_full:
                # The last bit is left to other users of the disk. Asked again also when old segments have made enough
                # ready meanwhile: space may have returned.
                left = self._segment_bytes // 4
                self.is_full = self._files.free_bytes() < self._segment_bytes + left
            if ready >= READY_MIN or self.is_full:
                return False
            segment = self._create(number)
            if segment is None:
                return False
            self._add(segment)
        except OSError as error:
            if error.errno in _NO_SPACE:
                self.is_full = True
                return False
            with self._changed:
                if error.errno in _SCARCE:
                    self._shortage = error
                    if released is not None:
                        self._released.appendleft(released)
                    return False
                self._failure = error
                self._changed.notify_all()
            return False
        self.is_full = False
        self._shortage = None
        return True

    def _remove(self, name: str) -> None:
        with suppress(FileNotFoundError):  # an unfinished file may have been finished since it was found
            self._files.unlink(name)

    def _add(self, segment: OpenSegment) -> None:
        with self._changed:
            self._ready[segment.number] = segment
            self._next_number = segment.number + 1
            self._changed.notify_all()

    def _create(self, number: int) -> OpenSegment | None:
        name = segment_name(number) + UNFINISHED_SUFFIX
        handle = recreate(self._files, name, self._segment_bytes)
        try:
            if not fill(self._files, handle, self._segment_bytes, self._should_stop):
                self._files.close(handle)
                self._files.unlink(name)
                return None
            marker = self._make_marker()
            name_segment(self._files, handle, name, number, marker, self._segment_bytes)
        except OSError as error:
            self._files.close(handle)
            if error.errno in _NO_SPACE:
                self._files.unlink(name)  # give back what there was; any other error ends the store
            raise
        return OpenSegment(number, marker, handle, self._segment_bytes)

    def _should_stop(self) -> bool:
        return self._is_stopped

    def _recycle(self, name: str, number: int) -> OpenSegment:
        # Until the rename is durable the file has its old name, which is not read any more.
        marker = self._make_marker()
        handle = self._files.open(name)
        name_segment(self._files, handle, name, number, marker, self._segment_bytes)
        return OpenSegment(number, marker, handle, self._segment_bytes)


def fill(files: FileSystem, handle: int, capacity: int, should_stop: Callable[[], bool]) -> bool:
    """Write a new file through with zeros. False if it was stopped before the end."""
    for offset in range(0, capacity, FILL_BYTES):
        if should_stop():
            return False
        length = min(FILL_BYTES, capacity - offset)
        write_all(files, handle, _ZEROS if length == FILL_BYTES else bytes(length), offset)
        files.sync(handle)
    return True


def name_segment(files: FileSystem, handle: int, name: str, number: int, marker: bytes, length: int) -> None:
    """Give a file of this length its header, then its name, both durably and in this order."""
    write_all(files, handle, pack_segment_header(number, marker, length), 0)
    files.sync(handle)
    files.rename(name, segment_name(number))
    files.sync_directory()
