"""Bodies of frames in memory, and the thread that brings them. Bounded (B62).

The event loop never waits for the database: it asks for the frames it will need (``ask``), goes on with something else, and is called
(``on_arrival``) when they are here. ``wait`` is for the rare caller that cannot come back later.
"""

from __future__ import annotations

import logging
import threading
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final
from zlib import crc32

from pairbus.errors import ServerBusy, StorageError, StoreCorrupt, StoreFailed
from pairbus.storage.table import replay
from pairbus.storage.table.frame import damaged
from pairbus.storage.table.patience import next_pause
from pairbus.storage.table.ports import OutcomeUnknown

if TYPE_CHECKING:
    from pairbus.storage.table.ports import FrameHead, FrameReader

logger = logging.getLogger(__name__)

READ_BYTES_MAX: Final = 4 << 20
"""Bodies that one query brings, but for a single larger one."""
KEPT_MIN: Final = 4
"""Bodies that are kept however large they are."""
JOIN_SECONDS_MAX: Final = 10.0
WAIT_SECONDS_MAX: Final = 3.0
"""How long a caller waits on the spot: everybody waits with it."""
_SIZE_BITS: Final = 32
_SIZE_MASK: Final = (1 << _SIZE_BITS) - 1


class BodyTable:
    """Length and checksum of every body that matters: 8 bytes for each frame, in pieces that are dropped together.

    Args:
        unit_bits: A frame's number without these bits is the number of its piece.
    """

    def __init__(self, unit_bits: int) -> None:
        self._bits = unit_bits
        self._mask = (1 << unit_bits) - 1
        self._pieces: dict[int, array[int]] = {}

    def set(self, sequence: int, size: int, checksum: int) -> None:
        piece = self._pieces.get(sequence >> self._bits)
        if piece is None:
            piece = self._pieces[sequence >> self._bits] = array("Q", bytes(8 << self._bits))
        piece[sequence & self._mask] = checksum << _SIZE_BITS | size

    def size(self, sequence: int) -> int:
        piece = self._pieces.get(sequence >> self._bits)
        return 0 if piece is None else piece[sequence & self._mask] & _SIZE_MASK

    def verify(self, sequence: int, body: bytes) -> None:
        """Raises StoreCorrupt."""
        piece = self._pieces.get(sequence >> self._bits)
        if piece is not None and piece[sequence & self._mask] != crc32(body) << _SIZE_BITS | len(body):
            raise damaged(sequence, f"its body of {len(body)} bytes has another length or checksum")

    def drop(self, unit: int) -> None:
        self._pieces.pop(unit, None)


class Bodies:
    """Brings and keeps bodies. ``ask``, ``take_arrived``, ``get`` and ``wait`` belong to the owner's thread.

    Args:
        reader: The table; used by the thread from ``start`` on.
        table: Lengths and checksums.
        log_end: What the owner knows of the end of the log.
        cache_bytes: Bound of what is kept.
        pause: Waits for so many seconds before a lost connection is tried again.
        is_background: Whether there is a thread; without it the caller reads.
    """

    def __init__(
        self,
        reader: FrameReader,
        table: BodyTable,
        log_end: replay.LogEnd,
        cache_bytes: int,
        *,
        pause: Callable[[float], None],
        is_background: bool,
        name: str,
    ) -> None:
        self._reader = reader
        self._table = table
        self._log_end = log_end
        self.cache_bytes = cache_bytes
        self._pause = pause
        self._changed = threading.Condition()
        self._kept: OrderedDict[int, bytes] = OrderedDict()
        self.kept_bytes = 0
        self._wanted: dict[int, set[int]] = {}
        """Frame to the tags of those who asked."""
        self._awaited: dict[int, bytes | None] = {}
        self._arrived: set[int] = set()
        self._arrived_bytes = 0
        self._heads: HeadRequest | None = None
        self._error: StorageError | None = None
        self._is_stopped = False
        self._dropped_below = 0
        """Frames below this number may be gone from the database by now."""
        self._worker = (
            threading.Thread(target=self._run, name=f"{name}-read", daemon=True) if is_background else None
        )
        self.on_arrival: Callable[[], None] | None = None
        """Called by the thread when something has arrived."""

    def start(self) -> None:
        if self._worker is not None:
            self._worker.start()

    # -- the owner's thread ------------------------------------------------------------------------------------

    def get(self, sequence: int) -> bytes | None:
        """A body that is here."""
        with self._changed:
            body = self._kept.get(sequence)
            if body is not None:
                self._kept.move_to_end(sequence)
            return body

    def has(self, sequence: int) -> bool:
        """Whether ``get`` or ``wait`` will answer at once: with the body, or with the error that ended reading. Marks the body as used."""
        with self._changed:
            if sequence in self._kept:
                self._kept.move_to_end(sequence)
                return True
            return self._error is not None

    def ask(self, sequences: Iterable[int], tag: int) -> None:
        """Have bodies brought; ``take_arrived`` will name the tag, unless it is 0."""
        is_under_way = False
        with self._changed:
            for sequence in sequences:
                if sequence not in self._kept:
                    is_under_way = True
                    tags = self._wanted.setdefault(sequence, set())
                    if tag:
                        tags.add(tag)
            if tag and not is_under_way:
                self._arrived.add(tag)  # it came between the caller's look and now
            self._changed.notify_all()
        if self._worker is None:
            self._step()
        elif tag and not is_under_way and self.on_arrival is not None:
            self.on_arrival()

    def ask_heads(self, request: HeadRequest) -> None:
        """Have heads brought: ``request.frames`` is set then."""
        with self._changed:
            self._heads = request
            self._changed.notify_all()
        if self._worker is None:
            self._step()

    def take_arrived(self) -> set[int]:
        """The tags whose bodies have come since last asked."""
        if not self._arrived:
            return set()
        with self._changed:
            arrived, self._arrived, self._arrived_bytes = self._arrived, set(), 0
            self._changed.notify_all()
        return arrived

    def wait(self, sequence: int) -> bytes:
        """A body, waited for on the spot. Raises StoreCorrupt or StoreFailed, and ServerBusy if the database does not answer."""
        with self._changed:
            body = self._kept.get(sequence)
            if body is not None:
                return body
            self._awaited[sequence] = None
            self._wanted.setdefault(sequence, set())
            self._changed.notify_all()
        try:
            if self._worker is None or not self._worker.is_alive():
                self._step()
            with self._changed:
                if not self._changed.wait_for(lambda: self._is_settled(sequence), WAIT_SECONDS_MAX):
                    raise ServerBusy(
                        "The database does not answer. Nothing has changed; try again in a moment."
                    )
                body = self._awaited[sequence]
                if body is not None:
                    return body
                self.raise_if_failed()
                raise StoreFailed(f"frame {sequence} could not be read")
        finally:
            with self._changed:  # the thread may be looking at it
                self._awaited.pop(sequence, None)

    def _is_settled(self, sequence: int) -> bool:
        return self._awaited[sequence] is not None or self._error is not None or self._is_stopped

    def raise_if_failed(self) -> None:
        """Raises what ended the reading."""
        if self._error is not None:
            raise self._error
        if self._is_stopped:
            raise StoreFailed("the store is closed")

    def drop_below(self, sequence: int) -> None:
        """Forget bodies that no longer matter. A read of them that is under way may find them or not."""
        with self._changed:
            self._dropped_below = sequence
            for gone in [one for one in self._kept if one < sequence]:
                self.kept_bytes -= len(self._kept.pop(gone))

    def stop(self) -> None:
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()
        if self._worker is not None and self._worker.ident is not None:
            self._worker.join(JOIN_SECONDS_MAX)
        self._reader.close()

    # -- the thread --------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._is_stopped and not self._may_work():
                    self._changed.wait()
                if self._is_stopped:
                    return
            self._step()
            if self._arrived and self.on_arrival is not None:
                self.on_arrival()

    def _may_work(self) -> bool:
        if self._heads is not None or self._awaited:
            return bool(self._heads is not None or self._wanted)
        # What has come must be taken before more comes, or it would be evicted unseen.
        return bool(self._wanted) and self._arrived_bytes <= self.cache_bytes // 2

    def _step(self) -> None:
        """Read what is wanted, a part at a time. Without a thread: all of it."""
        while True:
            with self._changed:
                request, self._heads = self._heads, None
                chosen = self._choose()
            if request is None and not chosen:
                return
            try:
                if request is not None:
                    request.frames = self._read_heads(request)
                if chosen:
                    self._bring(chosen)
            except StorageError as error:
                self._failed(error, chosen)
                return
            except Exception as error:  # noqa: BLE001 - a thread that ends without a word would leave callers waiting for ever
                unforeseen = StoreFailed(f"the log could not be read, in an unforeseen way: {error!r}")
                unforeseen.__cause__ = error
                self._failed(unforeseen, chosen)
                return
            if self._worker is not None:
                return

    def _read_heads(self, request: HeadRequest) -> list[FrameHead]:
        try:
            return list(
                replay.heads(self._reader, request.first, request.end, self._log_end, self._lost_again())
            )
        except StoreCorrupt:
            if request.first < self._dropped_below:
                return []  # dropped while they were read: nobody needs them any more
            raise

    def _choose(self) -> dict[int, set[int]]:
        chosen: dict[int, set[int]] = {}
        size = 0
        # Who waits on the spot comes first.
        for sequence in (*(one for one in self._awaited if one in self._wanted), *self._wanted):
            size += self._table.size(sequence)
            # The first must still be there when the last has come.
            if chosen and size > min(READ_BYTES_MAX, self.cache_bytes // 2):
                break
            chosen[sequence] = self._wanted[sequence]
        for sequence in chosen:
            del self._wanted[sequence]
        return chosen

    def _bring(self, chosen: dict[int, set[int]]) -> None:
        retry = self._lost_again()
        while True:
            try:
                found = self._reader.bodies(list(chosen))
                for sequence in chosen:
                    if sequence not in found and not self._is_dropped(sequence):
                        raise replay.why_missing(self._reader, sequence, self._log_end, "it is gone")
                break
            except OutcomeUnknown as error:
                retry(error)
        for sequence, tags in chosen.items():
            body = found.get(sequence)
            if body is None:
                # Dropped while it was read: nothing in it matters. Who asked looks again.
                with self._changed:
                    self._arrived |= tags
                continue
            self._table.verify(sequence, body)
            with self._changed:
                self._keep(sequence, body)
                if sequence in self._awaited:
                    self._awaited[sequence] = body
                if tags:
                    self._arrived |= tags
                    self._arrived_bytes += len(body)
        with self._changed:
            self._changed.notify_all()

    def _is_dropped(self, sequence: int) -> bool:
        return sequence < self._dropped_below and sequence not in self._awaited

    def _keep(self, sequence: int, body: bytes) -> None:
        former = self._kept.pop(sequence, b"")
        self._kept[sequence] = body
        self.kept_bytes += len(body) - len(former)
        while self.kept_bytes > self.cache_bytes and len(self._kept) > KEPT_MIN:
            self.kept_bytes -= len(self._kept.popitem(last=False)[1])

    def _lost_again(self) -> Callable[[OutcomeUnknown], None]:
        seconds = 0.0

        def retry(error: OutcomeUnknown) -> None:
            nonlocal seconds
            if self._is_stopped:
                raise StoreFailed("the store is closed") from error
            if seconds:
                self._pause(seconds)
            seconds = next_pause(seconds)

        return retry

    def _failed(self, error: StorageError, chosen: dict[int, set[int]]) -> None:
        """Nothing is read any more. Who waits for something looks again, and meets the error."""
        if not self._is_stopped:
            logger.error("the log cannot be read", extra={"event": "store.unreadable", "error": str(error)})
        with self._changed:
            self._error = error
            for tags in (*chosen.values(), *self._wanted.values()):
                self._arrived |= tags
            self._wanted.clear()
            self._changed.notify_all()
        if self._arrived and self.on_arrival is not None and self._worker is not None:
            self.on_arrival()


class HeadRequest:
    """Heads that are to be brought."""

    __slots__ = ("end", "first", "frames")

    def __init__(self, first: int, end: int) -> None:
        self.first = first
        self.end = end
        self.frames: list[FrameHead] | None = None
