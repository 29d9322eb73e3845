"""The store over a table: what an answer means, what replay refuses, when space is given back. No database, no threads."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from zlib import crc32

import pytest

from pairbus.engine.records import EntityPut, MessageRemoved, MessageStored, Record
from pairbus.errors import (
    ServerBusy,
    StorageError,
    StoreCorrupt,
    StoreFailed,
    StoreFenced,
    StoreUnavailable,
    UsageError,
)
from pairbus.model.message import Message
from pairbus.storage.table import bodies as bodies_module
from pairbus.storage.table.bodies import Bodies, BodyTable, HeadRequest
from pairbus.storage.table.frame import BODY_BYTES_MAX, CHECKSUM_BITS, body_checksum
from pairbus.storage.table.patience import STALL_SECONDS_MAX, StoreUnreachable
from pairbus.storage.table.ports import (
    FrameHead,
    FrameMark,
    LogShortened,
    OutcomeUnknown,
    SequenceTaken,
    TableFailed,
    TableFull,
)
from pairbus.storage.table.replay import FRAMES_AT_ONCE, LogEnd
from pairbus.storage.table.store import TableStore

QUEUE = 4
ROW_BYTES = 20
"""What a row takes beside its contents."""


@dataclass
class Row:
    mark: FrameMark
    head: bytes
    body: bytes


@dataclass
class FakeTable:
    """A table in memory. ``script`` has what the next calls of the writer do instead: an error before, or after, the effect."""

    rows: dict[int, Row] = field(default_factory=dict)
    script: list[Exception | str] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    dropped_below: int = 0
    reserve: int = 0
    capacity: int = 1 << 40
    range_frames: int = 4

    def fence(self, epoch: int) -> int:
        sequence = max(self.rows, default=self.dropped_below) + 1
        self.rows[sequence] = Row(FrameMark(epoch, 0), b"", b"")
        return sequence

    # FrameWriter

    def _scripted(self, call: str) -> str:
        self.calls.append(call)
        if not self.script:
            return ""
        step = self.script.pop(0)
        if isinstance(step, Exception):
            raise step
        return step

    def insert(
        self, sequence: int, mark: FrameMark, head: bytes, body: Sequence[bytes], after: int | None = None
    ) -> None:
        step = self._scripted("insert")
        if sequence in self.rows or sequence < self.dropped_below:
            raise SequenceTaken(str(sequence))
        self._check_before(sequence, FrameMark(mark.epoch, after or 0))
        if step == "full" or self.used() + len(head) + len(b"".join(body)) + ROW_BYTES > self.capacity:
            raise TableFull("full")
        if step != "lost":
            self.rows[sequence] = Row(mark, head, b"".join(body))
        if step in ("lost", "unanswered"):
            raise OutcomeUnknown(step)

    def _check_before(self, sequence: int, expected: FrameMark) -> None:
        before = self.rows.get(sequence - 1)
        if before is None:
            raise LogShortened(max(self.rows, default=0))
        if before.mark != expected:
            raise SequenceTaken(str(sequence))

    def fill(self, first: int, end: int, epoch: int, after: int | None = None) -> None:
        step = self._scripted(f"fill {first} {end}")
        if any(one in self.rows or one < self.dropped_below for one in range(first, end)):
            raise SequenceTaken(str(first))
        self._check_before(first, FrameMark(epoch, after or 0))
        if self.used() + (end - first) * ROW_BYTES > self.capacity:
            raise TableFull("full")
        if step != "lost":
            self.rows.update({one: Row(FrameMark(epoch, 0), b"", b"") for one in range(first, end)})
        if step in ("lost", "unanswered"):
            raise OutcomeUnknown(step)

    def range_end(self, sequence: int) -> int:
        return (sequence // self.range_frames + 1) * self.range_frames

    def used(self) -> int:
        return self.reserve + sum(len(row.head) + len(row.body) + ROW_BYTES for row in self.rows.values())

    def mark_of(self, sequence: int) -> FrameMark | None:
        self._scripted("mark_of")
        row = self.rows.get(sequence)
        return None if row is None else row.mark

    def barrier(self) -> None:
        self._scripted("barrier")

    def drop_below(self, sequence: int) -> bool:
        self.calls.append(f"drop {sequence}")
        self.dropped_below = sequence // self.range_frames * self.range_frames
        for gone in [one for one in self.rows if one < self.dropped_below]:
            del self.rows[gone]
        return True

    def hold_reserve(self, size: int) -> int:
        """In four steps."""
        self.calls.append(f"reserve {size}")
        held = min(size, self.reserve + -(-size // 4))
        if size and self.used() - self.reserve + held > self.capacity:
            raise TableFull("full")
        self.reserve = held
        return held

    # FrameReader

    def oldest(self) -> int:
        return min(self.rows, default=1)

    def heads(self, first: int, end: int) -> Iterator[FrameHead]:
        for sequence in sorted(self.rows):
            if first <= sequence < end:
                row = self.rows[sequence]
                yield FrameHead(sequence, row.mark, row.head, len(row.body))

    def bodies(self, sequences: Sequence[int]) -> dict[int, bytes]:
        self.calls.append("bodies")
        return {one: self.rows[one].body for one in sequences if one in self.rows}

    def reconnect(self) -> None:
        self.calls.append("reconnect")

    def close(self) -> None:
        pass


@pytest.fixture
def table() -> FakeTable:
    return FakeTable()


def opened(
    table: FakeTable,
    epoch: int = 1,
    *,
    may_retry: Callable[[], bool] | None = None,
    reserve_bytes: int = 0,
    bytes_max: int | None = None,
    cache_bytes: int = 64 << 20,
    range_bytes_max: int | None = None,
    body_bytes_max: int = BODY_BYTES_MAX,
) -> tuple[TableStore, list[Record]]:
    fence = table.fence(epoch)
    store = TableStore(
        table, table, epoch=epoch, fence=fence, may_retry=may_retry, pause=lambda _: None, reserve_bytes=reserve_bytes,
        bytes_max=bytes_max, range_bytes_max=range_bytes_max, body_bytes_max=body_bytes_max, garbage_bytes_min=100,
        cache_bytes=cache_bytes, is_background=False,
    )  # fmt: skip
    return store, list(store.replay())


def stored(number: int, blob: bytes) -> MessageStored:
    return MessageStored(QUEUE, Message(number, 1000, 0, len(blob), None), blob, b"")


def commit(store: TableStore) -> None:
    batch = store.seal()
    assert batch is not None
    store.commit(batch)


def send(store: TableStore, number: int, blob: bytes = b"x" * 50) -> Message:
    record = stored(number, blob)
    store.append(record)
    commit(store)
    return record.message


def numbers(records: list[Record]) -> list[int]:
    return [record.message.sequence_number for record in records if isinstance(record, MessageStored)]


# -- what an answer means ----------------------------------------------------------------------------------------


@pytest.mark.promise("S5")
@pytest.mark.parametrize("outcome", ["lost", "unanswered"])
def test_an_unknown_commit_is_repeated_under_its_number(outcome: str, table: FakeTable) -> None:
    store, _ = opened(table)
    table.script = [outcome]
    send(store, 1)
    send(store, 2)
    assert sorted(table.rows) == [1, 2, 3]
    assert numbers(opened(table, 2)[1]) == [1, 2]


@pytest.mark.promise("S7")
def test_a_commit_that_is_found_done_is_told_behind_a_barrier(table: FakeTable) -> None:
    store, _ = opened(table)
    table.script = ["unanswered"]
    send(store, 1)
    assert table.calls == ["insert", "insert", "mark_of", "barrier"]


@pytest.mark.promise("S7")
def test_a_barrier_without_an_answer_proves_nothing(table: FakeTable) -> None:
    """A failover may have taken back what was seen: all is asked again."""
    store, _ = opened(table)
    table.script = ["unanswered", "", "", OutcomeUnknown("barrier"), "", "", ""]
    send(store, 1)
    assert table.calls == ["insert", "insert", "mark_of", "barrier", "insert", "mark_of", "barrier"]


@pytest.mark.promise("S5")
def test_a_commit_that_a_failover_took_back_is_written_again(table: FakeTable) -> None:
    store, _ = opened(table)

    table.script = ["unanswered", OutcomeUnknown("the primary is gone")]
    original = table.insert

    def insert(
        sequence: int, mark: FrameMark, head: bytes, body: Sequence[bytes], after: int | None = None
    ) -> None:
        if table.calls.count("insert") == 2:
            table.rows.pop(sequence, None)
        original(sequence, mark, head, body, after)

    table.insert = insert  # type: ignore[method-assign]
    send(store, 1)
    assert sorted(table.rows) == [1, 2]


@pytest.mark.promise("S2")
def test_a_number_that_another_owner_took_fences_the_store_for_good(table: FakeTable) -> None:
    store, _ = opened(table, 1)
    send(store, 1)
    table.fence(2)
    with pytest.raises(StoreFenced, match="epoch 2, ours is 1"):
        send(store, 2)
    del table.rows[max(table.rows)]
    with pytest.raises(StoreFailed, match="failed before"):
        send(store, 3)


@pytest.mark.promise("S1")
@pytest.mark.parametrize(("lost", "told"), [(1, "the last 1 frame "), (3, "the last 3 frames ")])
def test_nothing_is_written_behind_a_hole(lost: int, told: str, table: FakeTable) -> None:
    """A standby without the last commits was promoted: the owner ends, and the next one serves what is there."""
    store, _ = opened(table, 1)
    for number in range(1, 6):
        send(store, number)
    newest = max(table.rows)
    for sequence in range(newest - lost + 1, newest + 1):
        del table.rows[sequence]
    with pytest.raises(StoreFenced, match=f"lacks {told}.*frame {newest} was acknowledged") as caught:
        send(store, 6)
    assert "a standby without them was promoted" in str(caught.value)
    assert max(table.rows) == newest - lost
    _, records = opened(table, 2)
    found = [one.message.sequence_number for one in records if isinstance(one, MessageStored)]
    assert found == list(range(1, 6 - lost))


@pytest.mark.promise("S1", "S2")
def test_a_frame_of_another_history_in_the_place_of_our_last_one_fences_the_store(table: FakeTable) -> None:
    """A failover lost an acquisition, and the next owner got the same epoch: the checksum tells whose the frame before is."""
    store, _ = opened(table, 1)
    send(store, 1)
    last = max(table.rows)
    table.rows[last] = Row(FrameMark(1, 12345), b"", b"")
    with pytest.raises(StoreFenced):
        send(store, 2)
    assert max(table.rows) == last


@pytest.mark.promise("S2")
def test_a_number_that_was_dropped_long_ago_fences_the_store(table: FakeTable) -> None:
    store, _ = opened(table, 1)
    table.rows.clear()
    table.dropped_below = 100
    with pytest.raises(StoreFenced):
        send(store, 1)


@pytest.mark.promise("S8")
def test_without_its_database_a_store_repeats_until_its_lease_is_over(table: FakeTable) -> None:
    left = iter([True])
    store, _ = opened(table, may_retry=lambda: next(left, False))
    left = iter([True] * 7)
    table.script = ["lost"] * 100
    with pytest.raises(StoreFailed, match="lost the shard"):
        send(store, 1)
    assert table.calls.count("insert") == 8
    assert sorted(table.rows) == [1]


def test_a_refusal_that_repeating_does_not_mend_is_not_repeated(table: FakeTable) -> None:
    store, _ = opened(table)
    table.script = [TableFailed("no rights")]
    with pytest.raises(StoreFailed, match="no rights"):
        send(store, 1)
    assert table.calls.count("insert") == 1


# -- a full database ---------------------------------------------------------------------------------------------


@pytest.mark.promise("B12")
def test_on_a_full_database_the_reserve_serves_settlements_until_there_is_space_again() -> None:
    table = FakeTable(capacity=20_000)
    store, _ = opened(table, reserve_bytes=8_000)
    number = 0
    while store.has_room(100):
        number += 1
        assert number < 200, "the database never became full"
        message = send(store, number, b"x" * 500)
    assert "reserve 8000" in table.calls
    assert table.reserve == 0
    assert store.statistics().is_full
    for _ in range(30):  # settlements go on
        store.append(MessageRemoved(QUEUE, number, message.location, message.size))
        commit(store)
    table.capacity = 1 << 30
    for _ in range(64):
        assert not store.has_room(1) or table.reserve
        store.append(MessageRemoved(QUEUE, number, 0, 0))
        commit(store)
    assert store.has_room(100)
    assert table.reserve == 8_000
    assert numbers(opened(table, 2)[1]) == list(range(1, number + 1))


@pytest.mark.promise("B12", "S8")
def test_a_database_without_any_space_is_asked_until_it_has_some() -> None:
    table = FakeTable(capacity=10)
    waits = 0

    def may_retry() -> bool:
        nonlocal waits
        waits += 1
        if waits == 5:
            table.capacity = 1 << 20
        return True

    store, _ = opened(table, may_retry=may_retry)
    send(store, 1)
    assert sorted(table.rows) == [1, 2]


@pytest.mark.promise("B12")
def test_a_quota_leaves_the_reserve_to_settlements(table: FakeTable) -> None:
    store, _ = opened(table, bytes_max=10_000, reserve_bytes=2_000)
    assert store.has_room(7_000)
    assert not store.has_room(9_000)
    assert not store.statistics().is_full
    send(store, 1, bytes(7_900))
    assert not store.has_room(500)
    assert store.statistics().is_full
    store.append(MessageRemoved(QUEUE, 1, 0, 0))
    commit(store)


# -- replay ------------------------------------------------------------------------------------------------------


def filled(count: int = 12) -> FakeTable:
    table = FakeTable()
    store, _ = opened(table)
    for number in range(1, count + 1):
        send(store, number)
    return table


@pytest.mark.promise("S1")
def test_a_gap_is_refused_with_its_place() -> None:
    table = filled()
    del table.rows[7]
    with pytest.raises(StoreCorrupt, match="frame 7 .* missing"):
        opened(table, 2)


@pytest.mark.promise("S2")
def test_an_epoch_that_falls_is_refused_with_its_place() -> None:
    table = filled()
    table.rows[7].mark = replace(table.rows[7].mark, epoch=3)
    with pytest.raises(StoreCorrupt, match="frame 8 .* epoch 1, behind one of epoch 3"):
        opened(table, 4)


@pytest.mark.promise("S1")
def test_a_log_that_lost_its_beginning_is_refused() -> None:
    table = filled()
    for sequence in range(1, 5):
        del table.rows[sequence]
    with pytest.raises(StoreCorrupt, match="frame 1 .*: frame 5 follows"):
        opened(table, 2)


def test_a_database_that_does_not_show_our_fence_is_refused() -> None:
    """A reader may have reached a primary that was cut off before the lease was given."""
    table = filled()
    store = TableStore(
        table, table, epoch=2, fence=13, pause=lambda _: None, is_background=False, reserve_bytes=0
    )
    with pytest.raises(StoreCorrupt, match="fence"):
        list(store.replay())


@pytest.mark.promise("B10")
def test_damage_of_a_head_is_found_by_replay_and_damage_of_a_body_when_it_is_read() -> None:
    table = filled()
    good = table.rows[7].head
    table.rows[7].head = good[:-1] + b"\xff"
    with pytest.raises(StoreCorrupt, match="frame 7"):
        opened(table, 2)
    table.rows[7].head = good
    del table.rows[max(table.rows)]
    table.rows[7].body = b"y" + table.rows[7].body[1:]
    store, records = opened(table, 2)
    messages = [record.message for record in records if isinstance(record, MessageStored)]
    assert store.read(messages[0].location, messages[0].size) == b"x" * 50
    with pytest.raises(StoreCorrupt, match="frame 7"):
        store.read(messages[5].location, messages[5].size)


def test_a_connection_lost_during_replay_is_taken_up_where_it_was() -> None:
    table = filled()
    original = table.heads
    lost = iter([3, 5])

    def heads(first: int, end: int) -> Iterator[FrameHead]:
        left = next(lost, 1_000)
        for frame in original(first, end):
            if not left:
                raise OutcomeUnknown("lost")
            left -= 1
            yield frame

    table.heads = heads  # type: ignore[method-assign]
    assert numbers(opened(table, 2)[1]) == list(range(1, 13))


@pytest.mark.promise("B13")
def test_a_batch_of_several_frames_counts_as_a_whole_or_not_at_all() -> None:
    table = FakeTable()
    store, _ = opened(table, body_bytes_max=1_000)
    send(store, 1)
    for number in range(2, 12):
        store.append(stored(number, bytes(400)))
    batch = store.seal()
    assert batch is not None
    assert len(batch.frames) == 5
    whole = batch.frames
    batch.frames = whole[:3]
    store.commit(batch)  # the owner is killed in the middle of its commit
    store, records = opened(table, 2)
    assert numbers(records) == [1]
    send(store, 20)
    for number in range(30, 40):
        store.append(stored(number, bytes(400)))
    commit(store)
    assert numbers(opened(table, 3)[1]) == [1, 20, *range(30, 40)]


def test_a_form_of_a_newer_version_is_refused(table: FakeTable) -> None:
    store, _ = opened(table)
    send(store, 1)
    row = table.rows[max(table.rows)]
    row.head = b"\x09" + row.head[1:]
    row.mark = FrameMark(row.mark.epoch, crc32(row.head) << CHECKSUM_BITS | body_checksum(row.mark))
    with pytest.raises(StoreCorrupt, match="form 9"):
        opened(table, 2)


def test_a_log_that_cannot_be_read_is_not_waited_for_after_the_lease() -> None:
    table = filled()

    def heads(first: int, end: int) -> Iterator[FrameHead]:
        raise OutcomeUnknown("no database")

    table.heads = heads  # type: ignore[method-assign]
    with pytest.raises(StoreUnavailable, match="lost the shard"):
        opened(table, 2, may_retry=lambda: False)


@pytest.mark.parametrize("part", ["heads", "hold_reserve"])
def test_a_replay_ends_between_two_steps_when_the_node_stops(part: str) -> None:
    """However long the log is, the lease is given back soon."""
    table = filled()
    steps = 0
    goes_on = True

    def stop_after_one() -> None:
        nonlocal goes_on, steps
        steps += 1
        goes_on = steps < 2

    heads, hold_reserve = table.heads, table.hold_reserve

    def slow_heads(first: int, end: int) -> Iterator[FrameHead]:
        for frame in heads(first, end):
            if end - first > FRAMES_AT_ONCE:  # not the look for the last frame
                stop_after_one()
            yield frame

    def slow_reserve(size: int) -> int:
        stop_after_one()
        hold_reserve(size)
        return 0

    if part == "heads":
        table.heads = slow_heads  # type: ignore[method-assign]
    else:
        table.hold_reserve = slow_reserve  # type: ignore[method-assign]
    with pytest.raises(StoreUnavailable, match="not read to its end"):
        opened(table, 2, may_retry=lambda: goes_on, reserve_bytes=100)
    assert steps == 2


@pytest.mark.promise("S8")
@pytest.mark.parametrize("part", ["heads", "hold_reserve"])
def test_a_replay_that_cannot_go_on_is_given_up_and_told_of(
    part: str, caplog: pytest.LogCaptureFixture
) -> None:
    """As when the database gives this node no further connection: another node may be given one."""
    table = filled()
    seconds = 0.0

    def fails(*_: object) -> None:
        raise OutcomeUnknown("too many connections")

    def pause(wanted: float) -> None:
        nonlocal seconds
        seconds += wanted

    setattr(table, part, fails)
    store = TableStore(
        table, table, epoch=2, fence=table.fence(2), pause=pause, clock=lambda: seconds, reserve_bytes=100, is_background=False
    )  # fmt: skip
    with pytest.raises(StoreUnreachable, match="too many connections"):
        list(store.replay())
    assert STALL_SECONDS_MAX <= seconds < STALL_SECONDS_MAX + 1
    told = [one for one in caplog.records if getattr(one, "event", "") == "cluster.database_failed"]
    assert [one.__dict__["error"] for one in told] == ["too many connections"], "once for each reason"


def test_a_replay_that_goes_on_between_lost_connections_is_not_given_up() -> None:
    table = filled(40)
    seconds = 0.0
    original = table.heads

    def heads(first: int, end: int) -> Iterator[FrameHead]:
        for count, frame in enumerate(original(first, end)):
            if end - first > 8 and count == 2:
                raise OutcomeUnknown("lost")
            yield frame

    def pause(_: float) -> None:
        nonlocal seconds
        seconds += STALL_SECONDS_MAX / 2

    table.heads = heads  # type: ignore[method-assign]
    store = TableStore(
        table, table, epoch=2, fence=table.fence(2), pause=pause, clock=lambda: seconds, reserve_bytes=0, is_background=False
    )  # fmt: skip
    assert numbers(list(store.replay()))[-1] == 40
    assert seconds > 4 * STALL_SECONDS_MAX


# -- space -------------------------------------------------------------------------------------------------------


@pytest.mark.promise("B1")
def test_old_frames_are_dropped_only_after_the_commit_that_makes_them_superfluous(table: FakeTable) -> None:
    store, _ = opened(table)
    messages = [send(store, number) for number in range(1, 20)]
    for message in messages:
        store.append(MessageRemoved(QUEUE, message.sequence_number, message.location, message.size))
    batch = store.seal()
    assert batch is not None
    assert not any(call.startswith("drop") for call in table.calls)
    table.script = ["lost", TableFailed("gone")]
    with pytest.raises(StorageError):
        store.commit(batch)
    assert not any(call.startswith("drop") for call in table.calls)
    store, records = opened(table, 2)
    assert numbers(records) == list(range(1, 20))
    store.live([])
    store.append(EntityPut(1, 0, "q", "{}"))
    commit(store)
    assert min(table.rows) >= 16


@pytest.mark.promise("B1", "S6")
def test_a_range_with_a_live_message_stays_until_the_message_was_moved(table: FakeTable) -> None:
    store, _ = opened(table)
    survivor = send(store, 1, b"s" * 40)
    for number in range(2, 80):
        message = send(store, number)
        store.append(MessageRemoved(QUEUE, number, message.location, message.size))
        commit(store)
        assert min(table.rows) == 1
    moved = 0
    for _ in range(100):
        for record in store.restate(10):
            if isinstance(record, MessageStored) and record.message.sequence_number == 1:
                blob = store.read(survivor.location, survivor.size)
                store.append(MessageStored(QUEUE, survivor, blob, b""))
                moved += 1
        batch = store.seal()
        if batch is not None:
            store.commit(batch)
    assert moved
    assert min(table.rows) > 100
    store, records = opened(table, 2)
    found = [r.message for r in records if isinstance(r, MessageStored) and r.message.sequence_number == 1]
    assert store.read(found[-1].location, found[-1].size) == b"s" * 40


# -- reading -----------------------------------------------------------------------------------------------------


def test_bytes_that_are_not_here_are_fetched_and_then_read_at_once() -> None:
    table = filled()
    store, records = opened(table, 2)
    ahead = store.read_ahead
    messages = [record.message for record in records if isinstance(record, MessageStored)]
    assert not ahead.is_at_hand(messages[0].location)
    assert ahead.take_fetched() == set()
    ahead.fetch([message.location for message in messages[:5]], 17)
    assert ahead.take_fetched() == {17}
    assert ahead.take_fetched() == set()
    assert [ahead.is_at_hand(message.location) for message in messages] == [True] * 5 + [False] * 7
    calls = len(table.calls)
    assert all(store.read(message.location, message.size) == b"x" * 50 for message in messages[:5])
    assert len(table.calls) == calls
    assert store.read(messages[9].location, 50) == b"x" * 50
    assert len(table.calls) == calls + 1
    ahead.fetch([messages[9].location], 18)
    assert ahead.take_fetched() == {18}


@pytest.mark.promise("B62")
def test_bytes_in_memory_are_bounded(table: FakeTable) -> None:
    store, _ = opened(table, cache_bytes=200_000)
    chance = random.Random(3)
    blobs = [chance.randbytes(10_000) for _ in range(60)]
    messages = [send(store, number, blob) for number, blob in enumerate(blobs, 1)]
    for message, blob in zip(messages, blobs, strict=True):
        assert store.read(message.location, message.size) == blob
    assert store.statistics().cached_bytes <= 200_000
    assert store.statistics().cache_misses > 0


def test_a_frame_that_is_gone_from_the_database_is_damage() -> None:
    table = filled()
    store, records = opened(table, 2)
    message = next(record.message for record in records if isinstance(record, MessageStored))
    del table.rows[message.location >> 28]
    with pytest.raises(StoreCorrupt, match="gone"):
        store.read(message.location, message.size)


def test_a_closed_store_commits_nothing(table: FakeTable) -> None:
    store, _ = opened(table)
    store.append(stored(1, b"x"))
    batch = store.seal()
    assert batch is not None
    store.close()
    with pytest.raises(StoreFailed, match="closed"):
        store.commit(batch)
    with pytest.raises(UsageError):
        store.commit(object())


class DroppedMeanwhile(FakeTable):
    """Frames are dropped while a read of them is on its way."""

    def __init__(self) -> None:
        super().__init__()
        self.while_reading: Callable[[], None] | None = None

    def _read(self) -> None:
        call, self.while_reading = self.while_reading, None
        if call is not None:
            call()
            self.drop_below(8)

    def heads(self, first: int, end: int) -> Iterator[FrameHead]:
        self._read()
        return super().heads(first, end)

    def bodies(self, sequences: Sequence[int]) -> dict[int, bytes]:
        self._read()
        return super().bodies(sequences)


@pytest.mark.parametrize("what", ["bodies", "heads"])
def test_frames_that_were_dropped_while_they_were_read_are_no_damage(what: str) -> None:
    table = DroppedMeanwhile()
    for sequence in range(1, 12):
        table.rows[sequence] = Row(FrameMark(1, 0), b"", b"b")
    bodies = Bodies(
        table, BodyTable(2), LogEnd(1, 11), 1 << 20, pause=lambda _: None, is_background=False, name="test"
    )
    table.while_reading = lambda: bodies.drop_below(8)
    request = HeadRequest(4, 7)
    if what == "bodies":
        bodies.ask([5], tag=77)
        assert bodies.take_arrived() == {77}  # whoever asked looks again, and finds that the message is gone
    else:
        bodies.ask_heads(request)
        assert request.frames == []
    bodies.raise_if_failed()
    with pytest.raises(StoreCorrupt, match="frame 5"):
        bodies.wait(5)


class DroppedLate(FakeTable):
    """What a former owner drops is dropped while its successor reads, or later."""

    def __init__(self) -> None:
        super().__init__()
        self.late = 0

    def drop_below(self, sequence: int) -> bool:
        self.late = max(self.late, sequence)
        return True

    def heads(self, first: int, end: int) -> Iterator[FrameHead]:
        found = list(super().heads(first, end))
        if self.is_dropping:
            super().drop_below(self.late)
        yield from found[:3]  # an answer brings a few frames; the next one is read later
        if len(found) > 3:
            yield from self.heads(found[2].sequence + 1, end)

    is_dropping = False


@pytest.mark.promise("S3")
@pytest.mark.parametrize("is_during_replay", [True, False])
def test_a_former_owner_that_drops_late_disturbs_nobody(is_during_replay: bool) -> None:
    table = DroppedLate()
    store, _ = opened(table)
    store.append(EntityPut(1, 0, "q", "{}"))
    commit(store)
    for number in range(1, 40):
        message = send(store, number)
        store.append(MessageRemoved(QUEUE, number, message.location, message.size))
        commit(store)
    for _ in range(40):
        for record in store.restate(10):
            store.append(record)
        if (batch := store.seal()) is not None:
            store.commit(batch)
    assert (min(table.rows), table.late > 8) == (1, True)
    table.is_dropping = is_during_replay
    store, records = opened(table, 2)
    assert any(isinstance(record, EntityPut) for record in records)
    table.is_dropping = True
    store.live([])
    for _ in range(40):
        store.restate(10)
        if (batch := store.seal()) is not None:
            store.commit(batch)
    assert min(table.rows) > 8


def test_a_read_on_the_spot_ends_when_the_database_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop waits with it: what needs it is told to come again."""
    monkeypatch.setattr(bodies_module, "WAIT_SECONDS_MAX", 0.01)
    table = FakeTable()
    table.rows[1] = Row(FrameMark(1, 0), b"", b"b")
    is_down = True

    def read(sequences: Sequence[int]) -> dict[int, bytes]:
        if is_down:
            raise OutcomeUnknown("no database")
        return {1: b"b"}

    table.bodies = read  # type: ignore[method-assign]
    bodies = Bodies(
        table, BodyTable(2), LogEnd(1, 1), 1 << 20, pause=time.sleep, is_background=True, name="test"
    )
    bodies.start()
    with pytest.raises(ServerBusy):
        bodies.wait(1)
    is_down = False
    monkeypatch.setattr(bodies_module, "WAIT_SECONDS_MAX", 60)
    assert bodies.wait(1) == b"b"
    bodies.stop()


class Behind(FakeTable):
    """A reader that is connected to a database which was replaced, until it connects again."""

    shows_up_to = 1 << 40

    def reconnect(self) -> None:
        super().reconnect()
        self.shows_up_to = 1 << 40

    def heads(self, first: int, end: int) -> Iterator[FrameHead]:
        return (head for head in super().heads(first, end) if head.sequence <= self.shows_up_to)

    def bodies(self, sequences: Sequence[int]) -> dict[int, bytes]:
        return {one: body for one, body in super().bodies(sequences).items() if one <= self.shows_up_to}


@pytest.mark.promise("S3")
def test_a_database_that_is_behind_is_left_for_another_connection() -> None:
    table = Behind()
    store, _ = opened(table)
    messages = [send(store, number) for number in range(1, 9)]
    table.shows_up_to = 5
    store, records = opened(table, 2, cache_bytes=0)
    assert numbers(records) == list(range(1, 9))
    table.shows_up_to = 5
    assert store.read(messages[-1].location, 50) == b"x" * 50
    assert table.calls.count("reconnect") == 2


@pytest.mark.promise("S2")
@pytest.mark.parametrize("is_dropped", [True, False])
def test_a_node_that_slept_in_replay_while_others_dropped_is_fenced(is_dropped: bool) -> None:
    table = FakeTable()
    store, _ = opened(table)
    messages = [send(store, number) for number in range(1, 6)]
    sleeper = TableStore(
        table, table, epoch=2, fence=table.fence(2), pause=lambda _: None, is_background=False
    )
    store, _ = opened(table, 3)
    for message in messages:
        store.append(MessageRemoved(QUEUE, message.sequence_number, message.location, message.size))
    commit(store)
    for number in range(6, 12):
        send(store, number)
    table.drop_below(12 if is_dropped else 4)
    with pytest.raises(StoreFenced, match="another node"):
        list(sleeper.replay())


def test_what_is_staged_is_not_asked_of_the_database(table: FakeTable) -> None:
    """A caller names what comes next, and some of it may have been stored a moment ago."""
    store, _ = opened(table, cache_bytes=0)
    old = send(store, 1)
    send(store, 2)
    record = stored(3, b"new")
    store.append(record)
    assert (store.is_at_hand(old.location), store.is_at_hand(record.message.location)) == (False, True)
    store.fetch([old.location, record.message.location], tag=QUEUE)
    assert store.take_fetched() == {QUEUE}
    assert store.is_at_hand(old.location)
    commit(store)


def test_who_asks_for_what_has_just_come_is_told(table: FakeTable) -> None:
    """Between a look and the question the reading thread may have been quicker: nobody must wait for an arrival that was before."""
    table.rows[1] = Row(FrameMark(1, 0), b"", b"b")
    bodies = Bodies(
        table, BodyTable(2), LogEnd(1, 1), 1 << 20, pause=time.sleep, is_background=True, name="test"
    )
    told: list[str] = []
    bodies.on_arrival = lambda: told.append("arrived")
    bodies.start()
    assert bodies.wait(1) == b"b"
    told.clear()
    bodies.ask([1], 17)
    assert told == ["arrived"]
    assert bodies.take_arrived() == {17}
    bodies.ask([], 18)
    assert bodies.take_arrived() == {18}
    bodies.stop()
