"""The store on disk: one log, cut into segments, in which every commit is one frame.

What is in the directory

    0000000007.segment   header | frame | frame | frame | (space that is written through already)
    0000000008.segment   header | frame | ...
    0000000009.segment   header | (ready for use)
    mark                 how far the log was acknowledged    (``mark``)
    format               whose data this is, and in which format    (``identity``)
    lock                 held by the process that has the data open

A frame (``frame``) holds the records of one commit. Records are facts: a message was stored, a message was removed, an entity was
created. Reading all of them in order rebuilds the namespace; nothing is ever changed in place.

How a record gets there

1. The engine calls ``append``. The record is encoded and staged (``staging``). There is one writer and it writes without gaps, so the
   record's location, segment number and offset, is known now, before anything is written. The engine keeps the location instead of
   the message's bytes.
2. The event loop calls ``seal``, which closes the frame and gives it away as a batch.
3. The commit thread calls ``commit``. The writer (``writer``) writes the frame, syncs it, and only then writes the mark. If a write or
   a sync fails the store is dead: what the disk holds is unknown until the log is read again.

Segments are made ready ahead of use by a third thread (``pool``): written through with zeros, so that a commit changes no metadata of
the file and costs one plain sync. A used segment whose records no longer matter becomes a ready one again.

How space comes back

Segments go strictly oldest first (``storage.accounts``). The store counts what lives in each. When the log holds mostly garbage, the
records of the oldest segment are read back in small steps (``restate``), and the engine appends those that are still true again. Then nothing in the segment
matters, and the next frame says so in its header: it names the oldest segment that still does. On a full disk an eighth of garbage
is enough, and a reserve has room for what is moved (``free_space``).

How a restart finds the end

The newest segment with an intact frame is the tail, and its last intact frame is the end of the log (``recovery``). A damaged frame with
nothing valid behind it is a write that was interrupted and never acknowledged: it is dropped. Any other damage, and an end that lies
before the mark, means that acknowledged data is lost: the store refuses to open.

Which thread does what: ``append``, ``seal``, ``read`` and ``restate`` belong to the thread of the event loop, ``commit`` to the commit
thread, making segments ready to the pool's. They meet in the batch, in ``LogWriter.durable``, and in the pool, which has a lock.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pairbus.engine.records import MessageRemoved, MessageStored, Record
from pairbus.errors import StoreUnavailable, UsageError
from pairbus.storage.accounts import ENTITY_SHIFT, SegmentAccount, SegmentAccounts
from pairbus.storage.codec import (
    REMOVED_HEAD_BYTES,
    REMOVED_NUMBER_BYTES,
    STORED_HEAD_BYTES,
    encode_stored,
)
from pairbus.storage.codec_rare import encode_rare
from pairbus.storage.files import UNFINISHED_SUFFIX, FileSystem, RealFileSystem, write_all
from pairbus.storage.identity import LOCK_FILE
from pairbus.storage.log import recovery
from pairbus.storage.log.cache import BlobCache
from pairbus.storage.log.frame import HEADER_BYTES, MARKER_BYTES, MORE
from pairbus.storage.log.free_space import FreeSpace
from pairbus.storage.log.opening import confirm_end, find_or_begin
from pairbus.storage.log.pool import SegmentPool
from pairbus.storage.log.restating import restatable
from pairbus.storage.log.segment import (
    OFFSET_BITS,
    OFFSET_MASK,
    SEGMENT_HEADER_BYTES,
    OpenSegment,
    segment_name,
)
from pairbus.storage.log.staging import Staging
from pairbus.storage.log.writer import LogBatch, LogWriter
from pairbus.storage.ports import SMALL_MESSAGE_BYTES, Store, StoreStatistics

if TYPE_CHECKING:
    from pairbus.model.message import Message
    from pairbus.storage.ports import Batch

logger = logging.getLogger(__name__)

SEGMENT_BYTES: Final = 16 << 20
SEGMENT_BYTES_MIN: Final = 4096
SEGMENT_BYTES_MAX: Final = 1 << 30
FIRST_SEGMENT_BYTES: Final = 4 << 20
"""The very first segment is small, so that a first start is quick."""
CACHE_BYTES: Final = 64 << 20
RESTATE_BYTES_MAX: Final = 1 << 20
"""Bytes of messages that are moved in one step of housekeeping, but for a single longer one: clients wait meanwhile (B63)."""
RESERVE_BYTES: Final = 8 << 20
"""Room that sends leave to settlements: about a million of them (B12)."""
FULL_DISK_GARBAGE_SHARE: Final = 8
"""On a full disk old messages are moved when one byte in so many is garbage: at most 7 bytes are then written to win one."""


class LogStore(Store):
    """See ``ports.Store``. Made by ``open``."""

    def __init__(
        self,
        files: FileSystem,
        found: recovery.Found,
        *,
        segment_bytes: int,
        cache_bytes: int,
        reserve_bytes: int,
        make_marker: Callable[[], bytes],
        is_background: bool,
    ) -> None:
        self._files = files
        self._found: recovery.Found | None = found
        self._segment_bytes = segment_bytes
        self._is_background = is_background
        self._is_closed = False
        self._pool = SegmentPool(files, segment_bytes, found.tail.number + 1, make_marker, is_background)
        self._free_space = FreeSpace(files, self._pool, segment_bytes, reserve_bytes)
        self._cache = BlobCache(files, cache_bytes)
        self._accounts = SegmentAccounts(OFFSET_BITS)
        self._is_accounted = False
        self._writer: LogWriter | None = None
        self._staging = Staging()
        self._account = SegmentAccount(0)
        """The account of the segment in use."""
        self._admit_until = 0
        """Up to this offset of the segment a send has room without further questions."""
        self._oldest = found.oldest
        self._sealed_oldest = found.oldest
        self._released: list[tuple[str, int]] = []
        # Housekeeping.
        self._round: Iterator[Record] | None = None
        self._void: set[tuple[int, int]] = set()
        self._is_restating = False
        self._rewrite_below = 0
        self._is_known_full = False

    @classmethod
    def open(
        cls,
        directory: str | Path,
        *,
        namespace: str | None = None,
        segment_bytes: int = SEGMENT_BYTES,
        cache_bytes: int = CACHE_BYTES,
        reserve_bytes: int = RESERVE_BYTES,
        file_system: FileSystem | None = None,
        make_marker: Callable[[], bytes] | None = None,
        is_background: bool = True,
    ) -> LogStore:
        """Open a data directory, or begin a new one.

        Args:
            directory: Where the files are.
            namespace: The namespace that the data must belong to; None: any.
            segment_bytes: Length of new segments.
            cache_bytes: Bound of the cache of message bytes.
            reserve_bytes: Room kept for settlements when the disk is full.
            file_system: Stands in for the directory, in tests.
            make_marker: Gives the salts, in tests.
            is_background: Whether segments are made ready by a thread.

        Raises:
            StoreUnavailable: In use by another process, of another namespace, of a newer format, or unreadable.
            StoreCorrupt: Acknowledged data is damaged.
        """
        if not SEGMENT_BYTES_MIN <= segment_bytes <= SEGMENT_BYTES_MAX:
            raise UsageError(
                f"segment_bytes is {segment_bytes}: it must lie between {SEGMENT_BYTES_MIN} and {SEGMENT_BYTES_MAX}"
            )
        make_marker = make_marker or _random_marker
        try:
            files = RealFileSystem(Path(directory)) if file_system is None else file_system
            files.lock(LOCK_FILE)
        except OSError as error:
            raise StoreUnavailable(f"the data directory {directory} cannot be used: {error}") from error
        try:
            found = find_or_begin(files, namespace, min(segment_bytes, FIRST_SEGMENT_BYTES), make_marker)
        except OSError as error:
            files.unlock()
            raise StoreUnavailable(f"the data in {directory} cannot be used: {error}") from error
        except BaseException:
            files.unlock()
            raise
        return cls(
            files,
            found,
            segment_bytes=segment_bytes,
            cache_bytes=cache_bytes,
            reserve_bytes=reserve_bytes,
            make_marker=make_marker,
            is_background=is_background,
        )

    # -- recovery ----------------------------------------------------------------------------------------------

    def replay(self) -> Iterator[Record]:
        found = self._found
        if found is None:
            raise UsageError("a store is replayed once; open it again")
        accounts = self._accounts
        account = accounts.begin(found.oldest)
        is_empty = True
        try:
            for image, records in recovery.decoded(self._files, found, reads_ahead=self._is_background):
                while account.number < image.number:
                    account = self._replayed(found, account)
                for record in records:
                    if not isinstance(record, MessageRemoved):
                        accounts.note(account, record)
                        is_empty = False
                    yield record
            while account.number < found.tail.number:
                account = self._replayed(found, account)
            self._begin(found, account)
        except OSError as error:
            raise StoreUnavailable(f"the data cannot be read: {error}") from error
        # No segment is given back before the owner has called ``live``; an empty log holds nothing that lives.
        self._is_accounted = is_empty

    def _replayed(self, found: recovery.Found, account: SegmentAccount) -> SegmentAccount:
        account.file_bytes = self._files.size(segment_name(account.number))
        self._accounts.end(account, found.ends[account.number])
        return self._accounts.begin(account.number + 1)

    def _begin(self, found: recovery.Found, account: SegmentAccount) -> None:
        """Make the tail certain, then go on behind it."""
        tail = found.tail
        handle = self._files.open(segment_name(tail.number))
        if found.last_frame:
            # What was read may never have reached the disk: the process was killed before its sync, or the sync failed, after
            # which the system may take lost pages for written ones. Written again and synced, it is certain (B9).
            write_all(self._files, handle, tail.buffer[found.last_frame : found.end], found.last_frame)
            self._files.sync(handle)
        self._files.sync_directory()
        self._found = None
        self._void = found.void
        capacity = len(tail.buffer)
        account.file_bytes = capacity
        self._account = account
        self._staging = Staging(tail.number, found.end, capacity, found.frame_number)
        segment = OpenSegment(tail.number, tail.marker, handle, capacity)
        mark = confirm_end(self._files, found)
        self._writer = LogWriter(
            self._files, self._pool, segment, mark, found.frame_number, self._staging.end
        )
        for number, marker, length in found.spares:
            self._pool.adopt(OpenSegment(number, marker, self._files.open(segment_name(number)), length))
        for name in found.leftovers:
            self._pool.release(name, 0 if name.endswith(UNFINISHED_SUFFIX) else self._files.size(name))
        self._pool.start()

    def live(self, messages: Iterable[tuple[int, int, int]]) -> None:
        # Those of one entity mostly lie one after the other in a segment, so most of them are added up here.
        accounts = self._accounts
        in_queue, in_segment, together = 0, -1, 0
        for queue_id, location, size in messages:
            if queue_id != in_queue or location >> OFFSET_BITS != in_segment:
                accounts.add_live_bytes(in_queue, in_segment, together)
                in_queue, in_segment, together = queue_id, location >> OFFSET_BITS, 0
            together += size + STORED_HEAD_BYTES
        accounts.add_live_bytes(in_queue, in_segment, together)
        self._is_accounted = True

    # -- staging -----------------------------------------------------------------------------------------------

    def append(self, record: Record) -> None:
        if isinstance(record, MessageStored):
            self._append_stored(record)
        elif isinstance(record, MessageRemoved):
            self._append_removed(record)
        else:
            data = encode_rare(record)
            self._staging.close_run()
            self._make_place(len(data))
            self._staging.add(data)
            self._note_fact(record, len(data))

    def _append_stored(self, record: MessageStored) -> None:
        message = record.message
        blob = record.blob
        writer = self._writer
        if writer is None:
            raise UsageError("the store must be replayed to its end before anything is appended")
        if blob is None:
            raise UsageError(f"message {message.sequence_number} comes without its blob; read it first")
        size = len(blob)
        head = encode_stored(record, size)
        head_bytes = len(head)
        staging = self._staging
        if staging.run_queue_id >= 0:
            staging.close_run()
        position = staging.position
        if position + head_bytes + size > staging.limit:
            self._make_place(head_bytes + size)
            position = staging.position
        pieces = staging.pieces
        pieces.append(head)
        pieces.append(blob)
        queue_id = record.queue_id
        accounts = self._accounts
        if message.location:
            self._cache.forget(message.location)
            accounts.end_live(queue_id, message.location, size)
            # A session id and the like do not count as live; moved, they are no garbage to win.
            self._account.proven_bytes += head_bytes - STORED_HEAD_BYTES
            accounts.proven_bytes += head_bytes - STORED_HEAD_BYTES
        location = staging.base + position + head_bytes
        message.location = location
        staging.position = position + head_bytes + size
        account = self._account
        live = account.live
        entity_id = queue_id >> ENTITY_SHIFT
        live[entity_id] = live.get(entity_id, 0) + size + STORED_HEAD_BYTES
        accounts.live_bytes += size + STORED_HEAD_BYTES
        if message.sequence_number > account.high.get(queue_id, -1):
            account.high[queue_id] = message.sequence_number
        if message.enqueued_at > account.latest:
            account.latest = message.enqueued_at
        if record.duplicate_key:
            account.add_fact(staging.frame_start)
        self._cache.add(location, blob, writer.durable)

    def _append_removed(self, record: MessageRemoved) -> None:
        queue_id = record.queue_id
        staging = self._staging
        if queue_id != staging.run_queue_id or staging.position + REMOVED_NUMBER_BYTES > staging.limit:
            staging.close_run()
            self._make_place(REMOVED_HEAD_BYTES + REMOVED_NUMBER_BYTES)
            staging.begin_run(queue_id)
        staging.add_removal(record.sequence_number)
        location = record.location
        self._accounts.add_live_bytes(queue_id, location >> OFFSET_BITS, -record.size - STORED_HEAD_BYTES)
        self._cache.forget(location)

    def append_removals(self, queue_id: int, messages: list[Message]) -> None:
        staging = self._staging
        size = REMOVED_NUMBER_BYTES * len(messages)
        is_new_run = queue_id != staging.run_queue_id
        if is_new_run:
            size += REMOVED_HEAD_BYTES
        if staging.position + size > staging.limit:
            super().append_removals(queue_id, messages)  # some of them belong into the next segment
            return
        if is_new_run:
            staging.close_run()
            staging.begin_run(queue_id)
        staging.add_removals([message.sequence_number for message in messages])
        self._accounts.end_live_many(queue_id, messages)
        cache = self._cache
        for message in messages:
            cache.forget(message.location)

    def _note_fact(self, record: Record, size: int) -> None:
        account = self._account
        if self._accounts.note(account, record):
            account.add_fact(self._staging.frame_start)
        if self._is_restating:
            account.proven_bytes += size
            self._accounts.proven_bytes += size

    def _make_place(self, size: int) -> None:
        """See to it that so many bytes fit behind the position."""
        if self._writer is None:
            raise UsageError("the store must be replayed to its end before anything is appended")
        staging = self._staging
        if staging.position + size <= staging.limit:
            return
        if not staging.has_segment_to_itself:
            self._next_segment()
        if staging.position + size > staging.limit:
            # Longer than a segment: it gets one of its own, which grows.
            self._free_space.will_grow(staging.segment, staging.position + size - staging.limit)
            staging.limit = staging.position + size
            if staging.limit > OFFSET_MASK:
                raise UsageError(f"a record of {size} bytes is too long for any segment")
            self._account.file_bytes = staging.limit

    def _next_segment(self) -> None:
        staging = self._staging
        if staging.pieces:
            # Only the last frame of a batch may release old segments.
            staging.close_frame(MORE, self._sealed_oldest)
        self._accounts.end(self._account, staging.frame_start)
        number = staging.segment + 1
        staging.begin_segment(self._pool.capacity(number))
        self._account = self._accounts.begin(number)
        self._account.file_bytes = staging.limit
        self._account.fact_frames = []
        self._admit_until = 0

    def staged_bytes(self) -> int:
        return self._staging.staged_bytes()

    def seal(self) -> LogBatch | None:
        staging = self._staging
        if staging.has_records:
            self._retire_dead()
        elif self._oldest == self._sealed_oldest:
            return None
        # Else the frame only records that old segments may go.
        staging.close_run()
        staging.close_frame(0, self._oldest)
        self._sealed_oldest = self._oldest
        released, self._released = self._released, []
        self._is_restating = False
        return LogBatch(staging.take_frames(), staging.end, released)

    def commit(self, batch: Batch) -> None:
        if self._writer is None or not isinstance(batch, LogBatch):
            raise UsageError("this batch is not of this store")
        self._writer.commit(batch)
        if not self._is_background:
            while self._pool.step():
                pass

    # -- room --------------------------------------------------------------------------------------------------

    def has_room(self, size: int) -> bool:
        return self._staging.position + size + STORED_HEAD_BYTES <= self._admit_until or self._finds_room(
            size
        )

    def _finds_room(self, size: int) -> bool:
        if not self._is_background and self._pool.is_full:
            self._pool.step()
        staging = self._staging
        short = self._free_space.admitted(staging.segment)
        self._admit_until = staging.limit - short if short >= 0 else 0
        size += STORED_HEAD_BYTES + HEADER_BYTES
        durable = 0 if self._writer is None else self._writer.durable
        return self._free_space.has(size, self._rest(), staging.segment, durable >> OFFSET_BITS)

    # -- reading -----------------------------------------------------------------------------------------------

    def read(self, location: int, size: int) -> bytes:
        writer = self._writer
        return self._cache.read(location, size, self._staging.end if writer is None else writer.durable)

    # -- housekeeping ------------------------------------------------------------------------------------------

    def restate(self, limit: int) -> list[Record]:
        if not self._is_accounted:
            return []
        self._tell_space()
        while True:
            if self._round is not None:
                if not self._may_go_on():
                    self._round = None  # what is left of the reserve is for settlements
                    return []
                records = _take(self._round, limit)
                if records:
                    self._is_restating = True
                    return records
                self._round = None
                self._retire()
            self._retire_dead()
            if not self._should_restate():
                return []
            self._round = restatable(self._files, self._accounts.oldest(), self._void)

    def rewrite(self) -> None:
        """Have the rounds that follow go through every full segment once, whatever they would gain.

        For an operator's compaction: by itself the store moves messages only where garbage outweighs them.
        """
        self._rewrite_below = self._staging.segment

    def _should_restate(self) -> bool:
        oldest = self._accounts.oldest()
        # What is not durable yet cannot be read back.
        if self._writer is None or oldest.number >= self._writer.durable >> OFFSET_BITS:
            return False
        if oldest.number < self._rewrite_below:
            return True
        used = self._accounts.used_bytes + self._staging.position
        garbage = self._garbage_bytes()
        if not self._is_short():
            return garbage > self._segment_bytes and 2 * garbage > used and self._can_move(oldest)
        is_worth_it = garbage > self._segment_bytes and (
            FULL_DISK_GARBAGE_SHARE * garbage > used
            or self._free_space.is_reserve_used(self._rest(), self._staging.segment)
        )
        if not is_worth_it:
            is_worth_it = 2 * (oldest.live_bytes() + oldest.proven_bytes) < oldest.used_bytes
        return is_worth_it and self._can_move(oldest)

    def _tell_space(self) -> None:
        """Log when sends begin to be refused, and when the disk is no longer full: not each change between the two."""
        if not self._is_known_full and not self.has_room(SMALL_MESSAGE_BYTES):
            self._is_known_full = True
            logger.warning(
                "the disk is full: sends are refused, settlements go on; old messages are moved where that gives space back",
                extra={"event": "store.full", "garbage_bytes": self._garbage_bytes()},
            )
        elif self._is_known_full and not self._is_short():
            self._is_known_full = False
            logger.info("the disk has space again: sends are accepted", extra={"event": "store.space"})

    def _is_short(self) -> bool:
        """Whether the disk is full, or sends are refused already."""
        return self._pool.is_full or not self.has_room(SMALL_MESSAGE_BYTES)

    def _may_go_on(self) -> bool:
        """Whether a round that has begun still has room; clients write beside it."""
        oldest = self._accounts.oldest()
        return oldest.number < self._rewrite_below or not self._is_short() or self._can_move(oldest)

    def _can_move(self, oldest: SegmentAccount) -> bool:
        """What must be moved comes without asking for room, so it must fit into what is left (B12)."""
        kept = oldest.live_bytes() + oldest.proven_bytes
        if self.has_room(kept):
            return True
        if oldest.file_bytes > self._segment_bytes:
            return False  # a message longer than a segment needs space of the disk
        return self._free_space.can_move(kept, self._rest(), self._staging.segment)

    def _garbage_bytes(self) -> int:
        """What could be won at most, were all that lives moved together."""
        accounts = self._accounts
        used = accounts.used_bytes + self._staging.position
        headers = SEGMENT_HEADER_BYTES * len(accounts.by_number)
        return max(0, used - headers - accounts.live_bytes - accounts.proven_bytes)

    def _rest(self) -> int:
        return self._staging.limit - self._staging.position

    def _retire_dead(self) -> None:
        while (
            self._is_accounted
            and (oldest := self._accounts.oldest()) is not self._account
            and oldest.is_dead()
        ):
            self._round = None
            self._retire()

    def _retire(self) -> None:
        """The oldest segment goes, once the batch being staged is durable."""
        account = self._accounts.oldest()
        self._is_restating = True
        for record in self._accounts.drop(account):
            self.append(record)
        self._cache.drop_segment(account.number)
        self._oldest = account.number + 1
        self._released.append((segment_name(account.number), account.file_bytes))

    # -- the rest ----------------------------------------------------------------------------------------------

    def statistics(self) -> StoreStatistics:
        accounts = self._accounts
        used = accounts.used_bytes + self._staging.position
        writer = self._writer
        spare_bytes = self._pool.ready_bytes(0)
        return StoreStatistics(
            commits=0 if writer is None else writer.commits,
            segments=len(accounts.by_number),
            spare_segments=self._pool.ready_count(),
            disk_bytes=sum(account.file_bytes for account in accounts.by_number.values()) + spare_bytes,
            used_bytes=used,
            live_bytes=accounts.live_bytes,
            garbage_bytes=self._garbage_bytes(),
            cached_bytes=self._cache.cached_bytes,
            cache_hits=self._cache.hits,
            cache_misses=self._cache.misses,
            last_sync_ms=0.0 if writer is None else writer.last_sync_ms,
            is_full=not self.has_room(SMALL_MESSAGE_BYTES),
        )

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._pool.stop()
        self._cache.close()
        if self._writer is not None:
            self._writer.close()
            self._writer.failure = self._writer.failure or "it is closed"
        self._files.unlock()


def _random_marker() -> bytes:
    return os.urandom(MARKER_BYTES)


def _take(records: Iterator[Record], limit: int) -> list[Record]:
    taken: list[Record] = []
    size = 0
    for record in records:
        taken.append(record)
        if isinstance(record, MessageStored):
            size += record.message.size
        if len(taken) >= limit or size >= RESTATE_BYTES_MAX:
            break
    return taken
