"""The store over a log table: one log, one row for every commit.

What is in the table

    frame 41   epoch 6   head | body
    frame 42   epoch 7   (the fence of a new owner)
    frame 43   epoch 7   head | body

A frame holds the records of one commit (``frame``): the head all of them without the bytes of messages, the body those bytes. The number
of a frame can be given once. That is the whole protection against a second owner: the node that takes the shard puts a fence at the next
number, and a former owner that still writes finds its number taken.

How a record gets there

1. The engine calls ``append``. The record is encoded and staged (``staging``). Its location, the frame's number and the offset in its
   body, is known now, for nobody else writes.
2. The event loop calls ``seal``, which closes the frame and gives it away as a batch. The next one is filled while that is committed.
3. The commit thread calls ``commit``. The appender (``appender``) inserts the frame and decides what an answer, or none, means.

How a message's bytes come back: what is staged or was stored lately is in memory (``storage.recent``); the rest comes by the reading
thread (``bodies``), which the engine asks ahead of need (``is_at_hand``, ``fetch``).

How space comes back: as in the log on disk (``storage.accounts``), by units of frames instead of segments, oldest first. The frame that
makes old ones superfluous names the oldest that still matters; they are dropped after its commit. The database gives back whole ranges of
numbers, and a range that is being written cannot be given back. So a range ends early (``_cut``) when it holds much, or when space is short and
most of it is dead: the rest of its numbers is given to empty frames, and what still lives is moved to the next range.

How a new owner learns what there is: it reads all heads up to its fence (``replay``) and verifies each.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final

from pairbus.engine.records import MessageRemoved, MessageStored, Record
from pairbus.errors import StoreFailed, StoreFenced, StoreUnavailable, UsageError
from pairbus.native import mypyc_attr
from pairbus.storage.accounts import ENTITY_SHIFT, SegmentAccount, SegmentAccounts
from pairbus.storage.codec import STORED_HEAD_BYTES, decode, encode_stored
from pairbus.storage.codec_rare import encode_rare
from pairbus.storage.ports import SMALL_MESSAGE_BYTES, Store, StoreStatistics
from pairbus.storage.recent import RecentBlobs
from pairbus.storage.table import ranges
from pairbus.storage.table.appender import Appender
from pairbus.storage.table.bodies import Bodies, BodyTable
from pairbus.storage.table.frame import (
    BODY_BYTES_MAX,
    EMPTY_FRAME_BYTES,
    MORE,
    OFFSET_BITS,
    OFFSET_MASK,
    PREAMBLE,
    body_checksum,
    damaged,
)
from pairbus.storage.table.patience import Patience
from pairbus.storage.table.ports import FrameMark, LastFrame, TableFailed
from pairbus.storage.table.ranges import RangeAccount
from pairbus.storage.table.replay import LogEnd, complete
from pairbus.storage.table.restating import Round
from pairbus.storage.table.staging import TableBatch, TableStaging

if TYPE_CHECKING:
    from pairbus.storage.ports import Batch, ReadAhead
    from pairbus.storage.table.ports import FrameReader, FrameWriter

UNIT_BITS: Final = 20
"""Frames are accounted for in units of so many, or by ranges if those are smaller: a part of a range cannot be given back."""
CACHE_BYTES: Final = 64 << 20
RESERVE_BYTES: Final = 32 << 20
"""Room that sends leave to settlements (B12). What is staged when the database turns out to be full must fit too."""
GARBAGE_BYTES_MIN: Final = 16 << 20
"""Less garbage than this is not worth the work."""
TEND_ROUNDS: Final = 20
"""After so many rounds of housekeeping without a commit a full database is asked whether it has space again."""
RESTATE_BYTES_MAX: Final = 1 << 20
"""Bytes of messages that are moved in one step of housekeeping, but for a single longer one: clients wait meanwhile (B63)."""


@mypyc_attr(allow_interpreted_subclasses=True)
class TableStore(Store):
    """See ``storage.ports.Store``. Made by the node that has just acquired the shard.

    Args:
        writer: Appends frames; used by the commit thread.
        reader: Reads frames; used during replay, then by the reading thread.
        epoch: Of this owner.
        fence: The frame that begins this owner's epoch: what lies before is replayed, our frames begin behind.
        may_retry: Whether to read on in replay, and whether a commit whose outcome is unknown may still be repeated: False once this
            node stops or another owns the shard.
        pause: Waits for so many seconds; of the commit thread and the reading thread.
        clock: Seconds of a monotonic clock: a replay that cannot go on is given up (``patience``).
        cache_bytes: Bound of the message bytes in memory.
        reserve_bytes: Space held in the database for settlements.
        bytes_max: Quota of the shard; None: as much as the database has.
        unit_bits: Frames in a unit of accounting, as a power of two.
        garbage_bytes_min: Less garbage is left alone.
        range_bytes_max: A range that holds more ends early; None: as the quota demands.
        body_bytes_max: A frame that would have a larger body ends before.
        is_background: Whether a thread reads; without it the caller reads, for tests and tools.
        name: For the thread.
    """

    def __init__(
        self,
        writer: FrameWriter,
        reader: FrameReader,
        *,
        epoch: int,
        fence: int,
        may_retry: Callable[[], bool] | None = None,
        pause: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
        cache_bytes: int = CACHE_BYTES,
        reserve_bytes: int = RESERVE_BYTES,
        bytes_max: int | None = None,
        unit_bits: int = UNIT_BITS,
        garbage_bytes_min: int = GARBAGE_BYTES_MIN,
        range_bytes_max: int | None = None,
        body_bytes_max: int = BODY_BYTES_MAX,
        is_background: bool = True,
        name: str = "pairbus",
    ) -> None:
        self._epoch = epoch
        self._fence = fence
        may_retry = may_retry or _always
        self._patience = Patience(may_retry, pause, clock=clock)
        self._range_frames = frames = writer.range_end(0)
        # A unit lies in one range, and is all of it but in tests.
        self._unit_bits = unit_bits = min(unit_bits, (frames & -frames).bit_length() - 1)
        self._range_bytes_max = (
            ranges.range_bytes_max(bytes_max, reserve_bytes) if range_bytes_max is None else range_bytes_max
        )
        self._body_bytes_max = body_bytes_max
        self._range_bytes = 0
        """What the range in use holds."""
        self._ends: dict[int, int] = {}
        """Unit to the number behind its last frame with records, if empty ones may follow: those need not be read."""
        self._is_cut_due = False
        self._was_refused = False
        """The quota refused something since space was last given back."""
        self._idle_rounds = 0
        self._reserve_bytes = reserve_bytes
        self._bytes_max = bytes_max
        self._garbage_bytes_min = garbage_bytes_min
        self._reader = reader
        self._appender = Appender(
            writer, epoch, may_retry=may_retry, pause=pause, reserve_bytes=reserve_bytes
        )
        self._log_end = LogEnd(epoch, fence)
        self._recent = RecentBlobs(cache_bytes // 2)
        self._table = BodyTable(unit_bits)
        self._bodies = Bodies(
            reader,
            self._table,
            self._log_end,
            cache_bytes // 2,
            pause=pause,
            is_background=is_background,
            name=name,
        )
        self._accounts = SegmentAccounts(OFFSET_BITS + unit_bits)
        self._account = SegmentAccount(0)
        """The account of the unit in use."""
        self._staging = TableStaging(fence + 1)
        self._durable = (fence + 1) << OFFSET_BITS
        """The location up to which all is durable; written by the commit thread."""
        self._oldest = 1
        self._sealed_oldest = 1
        self._void: set[int] = set()
        self._round: Round | None = None
        self._is_replayed = False
        self._is_restating = False
        self._is_accounted = False
        self._is_closed = False
        self._commits = 0
        self._commit_ms = 0.0
        self._hits = self._misses = 0

    @property
    def last(self) -> LastFrame:
        """The last frame that is durable; may be asked by any thread."""
        return self._log_end.last

    @property
    def read_ahead(self) -> ReadAhead:
        return self

    # -- recovery ----------------------------------------------------------------------------------------------

    def replay(self) -> Iterator[Record]:
        if self._is_replayed:
            raise UsageError("a store is replayed once; open it again")
        self._is_replayed = True
        accounts = self._accounts
        account: SegmentAccount | None = None
        is_empty = True
        first = 0
        try:
            for frame in complete(self._reader, self._log_end, self._patience.lost, self._void):
                self._patience.since = None
                self._patience.check()
                unit = frame.sequence >> self._unit_bits
                first = first or frame.sequence
                if account is None or account.number < unit:
                    account = self._begin_unit(account, unit)
                if not frame.head:
                    account.file_bytes += EMPTY_FRAME_BYTES
                    continue
                account.file_bytes += len(frame.head) + frame.body_bytes
                self._ends[unit] = frame.sequence + 1
                self._table.set(frame.sequence, frame.body_bytes, body_checksum(frame.mark))
                base = frame.sequence << OFFSET_BITS
                for record in decode(frame.head, PREAMBLE.size, len(frame.head), base, 0):
                    if not isinstance(record, MessageRemoved):
                        accounts.note(account, record)
                        is_empty = False
                    yield record
        except TableFailed as error:
            raise StoreUnavailable(f"the log cannot be read: {error}") from error
        assert account is not None, "the log ends with a fence"
        following = (self._fence + 1) >> self._unit_bits
        self._account = account if account.number == following else self._begin_unit(account, following)
        self._ends.pop(following, None)
        self._oldest = self._sealed_oldest = first
        self._range_bytes = self._held_from((self._fence + 1) // self._range_frames * self._range_frames)
        try:
            self._patience.since = None
            self._appender.begin(first, self._patience)
        except StoreFenced:
            raise
        except StoreFailed as error:
            raise StoreUnavailable(f"the store cannot begin: {error}") from error
        self._bodies.start()
        # Nothing is given back before the owner has called ``live``; an empty log holds nothing that lives.
        self._is_accounted = is_empty

    def _held_from(self, sequence: int) -> int:
        """What the frames from this number on take."""
        first = sequence >> self._unit_bits
        return sum(one.file_bytes for one in self._accounts.by_number.values() if one.number >= first)

    def _begin_unit(self, former: SegmentAccount | None, unit: int) -> SegmentAccount:
        if former is not None:
            self._accounts.end(former, former.file_bytes)
        return self._accounts.begin(unit)

    def live(self, messages: Iterable[tuple[int, int, int]]) -> None:
        add = self._accounts.add_live
        for queue_id, location, size in messages:
            add(queue_id, location, size)
        self._is_accounted = True

    # -- staging -----------------------------------------------------------------------------------------------

    def append(self, record: Record) -> None:
        if not self._is_replayed:
            raise UsageError("the store must be replayed to its end before anything is appended")
        if isinstance(record, MessageStored):
            self._append_stored(record)
        elif isinstance(record, MessageRemoved):
            self._append_removed(record)
        else:
            data = encode_rare(record)
            staging = self._staging
            staging.close_run()
            staging.add(data)
            self._accounts.note(self._account, record)
            if self._is_restating:
                self._account.proven_bytes += len(data)
                self._accounts.proven_bytes += len(data)

    def _append_stored(self, record: MessageStored) -> None:
        message = record.message
        blob = record.blob
        if blob is None:
            raise UsageError(f"message {message.sequence_number} comes without its blob; read it first")
        size = len(blob)
        head = encode_stored(record, size)
        staging = self._staging
        if staging.run_queue_id >= 0:
            staging.close_run()
        if staging.body_bytes + size > self._body_bytes_max and staging.has_records:
            if size > OFFSET_MASK:
                raise UsageError(f"a message of {size} bytes is too long for any frame")
            self._next_frame(MORE, self._sealed_oldest)
        queue_id = record.queue_id
        accounts = self._accounts
        if message.location:
            self._recent.forget(message.location)
            accounts.end_live(queue_id, message.location, size)
        location = staging.base + staging.body_bytes
        staging.records.append(head)
        staging.head_bytes += len(head)
        # No two messages have the same location, so an empty one takes a byte.
        staging.blobs.append(blob or b"\x00")
        staging.body_bytes += size or 1
        message.location = location
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
            account.has_facts = True
        self._recent.add(location, blob, self._durable)

    def _append_removed(self, record: MessageRemoved) -> None:
        queue_id = record.queue_id
        self._staging.add_removal(queue_id, record.sequence_number)
        location = record.location
        if not location:
            return
        accounts = self._accounts
        account = accounts.by_number.get(location >> (OFFSET_BITS + self._unit_bits))
        if account is not None:
            size = record.size + STORED_HEAD_BYTES
            entity_id = queue_id >> ENTITY_SHIFT
            left = account.live.get(entity_id, 0) - size
            if left:
                account.live[entity_id] = left
            else:
                account.live.pop(entity_id, None)
            accounts.live_bytes -= size
        self._recent.forget(location)

    def _next_frame(self, flags: int, oldest: int) -> None:
        """Close the open frame and account for it."""
        staging = self._staging
        unit = staging.sequence >> self._unit_bits
        account = self._account
        staging.close_run()
        size = staging.head_bytes + staging.body_bytes + PREAMBLE.size
        account.file_bytes += size
        self._range_bytes += size
        staging.close_frame(flags, oldest)
        if staging.sequence >> self._unit_bits != unit:
            self._account = self._begin_unit(account, unit + 1)
            if staging.sequence % self._range_frames == 0:
                self._range_bytes = 0

    def _cut(self) -> int:
        """End the range in use: the next frame begins the next one. Returns its number; at the end of a batch, or it would not count."""
        staging = self._staging
        end = self._range_end(staging.sequence - 1)
        self._is_cut_due = False
        if staging.sequence < end:
            account = self._account
            self._ends[account.number] = staging.sequence
            account.file_bytes += (end - staging.sequence) * EMPTY_FRAME_BYTES
            staging.skip_to(end)
            self._account = self._begin_unit(account, end >> self._unit_bits)
            self._range_bytes = 0
        return end

    def _range_end(self, sequence: int) -> int:
        """The first number behind the range of this one."""
        return (sequence // self._range_frames + 1) * self._range_frames

    def staged_bytes(self) -> int:
        return self._staging.staged_bytes()

    def seal(self) -> TableBatch | None:
        staging = self._staging
        if staging.has_records:
            self._retire_dead()
        elif self._oldest == self._sealed_oldest and not self._is_cut_due:
            if self._idle_rounds < TEND_ROUNDS:
                return None
            self._idle_rounds = 0
            return TableBatch([], self._sealed_oldest)
        # Else the frame only says that old ones may go.
        self._next_frame(0, self._oldest)
        self._sealed_oldest = self._oldest
        self._is_restating = False
        frames = staging.take_frames()
        if not self._is_cut_due and self._range_bytes < self._range_bytes_max:
            return TableBatch(frames, self._sealed_oldest)
        following = staging.sequence
        return TableBatch(frames, self._sealed_oldest, following, self._cut())

    def seal_part(self) -> TableBatch | None:
        """Take what is staged as a part of a batch that goes on: it counts once ``seal`` has ended it. For tools that write much."""
        if not self._staging.has_records:
            return None
        self._next_frame(MORE, self._sealed_oldest)
        return TableBatch(self._staging.take_frames(), self._sealed_oldest)

    # -- commit thread -----------------------------------------------------------------------------------------

    def commit(self, batch: Batch) -> None:
        if not isinstance(batch, TableBatch):
            raise UsageError("this batch is not of this store")
        started = time.perf_counter()
        for frame in batch.frames:
            mark = frame.marked(self._epoch)
            self._table.set(frame.sequence, frame.body_bytes, body_checksum(mark))
            self._appender.append(frame)
            self._durable = (frame.sequence + 1) << OFFSET_BITS
            self._log_end.committed(LastFrame(frame.sequence, mark))
        if batch.fill_first < batch.fill_end:
            self._appender.fill(batch.fill_first, batch.fill_end)
            self._durable = batch.fill_end << OFFSET_BITS
            self._log_end.committed(LastFrame(batch.fill_end - 1, FrameMark(self._epoch, 0)))
        if not batch.frames:
            self._appender.tend()
            return
        self._commits += 1
        self._commit_ms = (time.perf_counter() - started) * 1000
        self._appender.drop_below(batch.drop_below)

    # -- room --------------------------------------------------------------------------------------------------

    def has_room(self, size: int) -> bool:
        if self._appender.is_full:
            return False
        limit = self._bytes_max
        if limit is None or self._used_bytes() + size + self._reserve_bytes <= limit:
            return True
        self._was_refused = self._was_refused or size + self._reserve_bytes <= limit
        return False

    def _is_short(self) -> bool:
        """Whether sends are refused, or nearly."""
        return self._appender.is_full or self._was_refused or not self.has_room(0)

    def _used_bytes(self) -> int:
        staging = self._staging
        return self._accounts.used_bytes + self._account.file_bytes + staging.head_bytes + staging.body_bytes

    # -- reading -----------------------------------------------------------------------------------------------

    def read(self, location: int, size: int) -> bytes:
        blob = self._recent.get(location)
        if blob is not None:
            self._hits += 1
            return blob
        sequence = location >> OFFSET_BITS
        body = self._bodies.get(sequence)
        if body is None:
            self._misses += 1
            body = self._bodies.wait(sequence)
        else:
            self._hits += 1
        offset = location & OFFSET_MASK
        blob = body[offset : offset + size]
        if len(blob) != size:
            raise damaged(sequence, f"its body has no {size} bytes at offset {offset}")
        return blob

    def is_at_hand(self, location: int) -> bool:
        return self._recent.get(location) is not None or self._bodies.has(location >> OFFSET_BITS)

    def fetch(self, locations: Iterable[int], tag: int) -> None:
        # What is not durable yet is in memory and nowhere else.
        wanted = {one >> OFFSET_BITS: None for one in locations if self._recent.get(one) is None}
        self._bodies.ask(wanted, tag)

    def take_fetched(self) -> set[int]:
        return self._bodies.take_arrived()

    def on_fetched(self, call: Callable[[], None]) -> None:
        self._bodies.on_arrival = call

    # -- housekeeping ------------------------------------------------------------------------------------------

    def restate(self, limit: int) -> list[Record]:
        if not self._is_accounted:
            return []
        records = self._restated(limit)
        # Nobody may commit anything while sends are refused, so a full database is asked from here.
        self._idle_rounds = self._idle_rounds + 1 if self._appender.is_full and not records else 0
        return records

    def _restated(self, limit: int) -> list[Record]:
        while True:
            if self._round is not None:
                if self._appender.is_full and not self._oldest_range().fits(self._spare_bytes()):
                    self._round = None  # what is left of the reserve is for settlements
                    return []
                records = self._round.take(limit, RESTATE_BYTES_MAX)
                if records or not self._round.is_over:
                    self._is_restating = self._is_restating or bool(records)
                    return records
                self._round = None
                self._retire()
            self._retire_dead()
            if not self._should_restate():
                return []
            oldest = self._accounts.oldest()
            first = max(self._oldest, oldest.number << self._unit_bits)
            end = self._ends.get(oldest.number, (oldest.number + 1) << self._unit_bits)
            self._round = Round(self._bodies, oldest, first, end, self._void)

    def _should_restate(self) -> bool:
        accounts = self._accounts
        oldest = accounts.oldest()
        # What is not durable yet cannot be read back.
        is_over = oldest.number < self._durable >> (OFFSET_BITS + self._unit_bits)
        used = self._used_bytes()
        garbage = used - accounts.live_bytes - accounts.proven_bytes
        is_worth_it = garbage > self._garbage_bytes_min and 2 * garbage > used
        if self._is_short():
            return self._should_restate_short(oldest, is_over, is_worth_it)
        return is_over and is_worth_it

    def _should_restate_short(self, oldest: SegmentAccount, is_over: bool, is_worth_it: bool) -> bool:
        """Where sends are refused any gain counts; what is moved must fit into the reserve, and leave as much of it to settlements."""
        kept = 2 * (oldest.live_bytes() + oldest.proven_bytes)
        if is_over and not self._appender.is_full and kept < self._reserve_bytes:
            if is_worth_it or kept < oldest.used_bytes:
                return True
        spare = self._spare_bytes()
        held = self._oldest_range()
        if not (is_worth_it or held.is_mostly_dead()) or not held.fits(spare):
            return False
        following = self._staging.sequence
        if held.end <= following:
            return is_over
        # The range in use cannot go before it has ended.
        cost = (held.end - following) * EMPTY_FRAME_BYTES
        if held.used_bytes - held.kept_bytes > 2 * cost and held.fits(spare - cost):
            self._is_cut_due = True
        return False

    def _spare_bytes(self) -> int:
        return self._appender.spare_bytes if self._appender.is_full else self._reserve_bytes

    def _oldest_range(self) -> RangeAccount:
        end = self._range_end(self._accounts.oldest().number << self._unit_bits)
        used = kept = 0
        for account in self._accounts.by_number.values():
            if account.number << self._unit_bits >= end:
                break
            used += account.file_bytes
            kept += account.live_bytes() + account.proven_bytes
        return RangeAccount(end, used, kept)

    def _retire_dead(self) -> None:
        while (
            self._is_accounted
            and (oldest := self._accounts.oldest()) is not self._account
            and oldest.is_dead()
        ):
            self._round = None
            self._retire()

    def _retire(self) -> None:
        """The oldest unit goes, once the batch being staged is durable."""
        account = self._accounts.oldest()
        self._is_restating = True
        self._was_refused = False
        for record in self._accounts.drop(account):
            self.append(record)
        self._oldest = (account.number + 1) << self._unit_bits
        self._table.drop(account.number)
        self._ends.pop(account.number, None)
        self._bodies.drop_below(self._oldest)

    # -- the rest ----------------------------------------------------------------------------------------------

    def statistics(self) -> StoreStatistics:
        accounts = self._accounts
        used = self._used_bytes()
        return StoreStatistics(
            commits=self._commits,
            segments=len(accounts.by_number),
            disk_bytes=used,
            used_bytes=used,
            live_bytes=accounts.live_bytes,
            garbage_bytes=max(0, used - accounts.live_bytes - accounts.proven_bytes),
            cached_bytes=self._recent.recent_bytes + self._bodies.kept_bytes,
            cache_hits=self._hits,
            cache_misses=self._misses,
            last_sync_ms=self._commit_ms,
            is_full=not self.has_room(SMALL_MESSAGE_BYTES),
        )

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._bodies.stop()
        self._appender.close()


def _always() -> bool:
    return True
