"""What every log table promises, the real one and the simulated one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from zlib import crc32

import pytest

from pairbus.storage.table.ports import (
    Acquired,
    FrameMark,
    FrameReader,
    FrameWriter,
    LastFrame,
    LeaseTable,
    LogShortened,
    SequenceTaken,
    ShardMoved,
)
from tests.contract.table_kinds import RANGE_FRAMES, TABLE_KINDS, LogTable

LEASE_MS = 60_000
SHORT_LEASE_MS = 40
TRIES_MAX = 50


class Parts:
    """The parts of a table that a test asked for; all are closed at the end."""

    def __init__(self, table: LogTable) -> None:
        self._table = table
        self._made: list[FrameWriter | FrameReader | LeaseTable] = []
        self.writer = self.another_writer()
        self.reader = table.reader()
        self.lease = self.another_lease()
        self._made.append(self.reader)

    def another_writer(self) -> FrameWriter:
        made = self._table.writer()
        self._made.append(made)
        return made

    def another_lease(self) -> LeaseTable:
        made = self._table.lease()
        self._made.append(made)
        return made

    def close(self) -> None:
        for part in self._made:
            part.close()


@pytest.fixture(params=sorted(TABLE_KINDS))
def parts(request: pytest.FixtureRequest) -> Iterator[Parts]:
    made = Parts(TABLE_KINDS[request.param]())
    yield made
    made.close()


def acquired(lease: LeaseTable, owner: str = "a", lease_ms: int = LEASE_MS) -> Acquired:
    """Take the shard, again if the owner was quicker or a range had to be made."""
    for _ in range(TRIES_MAX):
        try:
            found = lease.acquire(owner, f"{owner}:5672", lease_ms)
        except SequenceTaken:
            continue
        assert found is not None
        return found
    raise AssertionError("the shard could not be taken")


def insert(
    writer: FrameWriter, sequence: int, epoch: int = 1, head: bytes = b"h", body: bytes = b"b"
) -> FrameMark:
    mark = FrameMark(epoch, crc32(head) << 32 | crc32(body))
    writer.insert(sequence, mark, head, [body])
    return mark


def numbers(reader: FrameReader, first: int, end: int) -> list[int]:
    return [frame.sequence for frame in reader.heads(first, end)]


def test_a_frame_comes_back_as_it_was_written(parts: Parts) -> None:
    found = acquired(parts.lease)
    mark = FrameMark(found.epoch, 0xFFFF_FFFF_8000_0001)
    parts.writer.insert(2, mark, b"\x00head\xff", [b"one", b"", b"two"])
    assert parts.writer.mark_of(2) == mark
    (frame,) = parts.reader.heads(2, 3)
    assert (frame.sequence, frame.mark, frame.head, frame.body_bytes) == (2, mark, b"\x00head\xff", 6)
    assert parts.reader.bodies([2]) == {2: b"onetwo"}


def test_head_and_body_may_be_empty_or_large(parts: Parts) -> None:
    acquired(parts.lease)
    head, body = bytes(range(256)) * 400, bytes(range(255, -1, -1)) * 3000
    mark = FrameMark(1, 7)
    parts.writer.insert(2, mark, b"", [])
    parts.writer.insert(3, mark, head, [body[:5], body[5:]])
    frames = list(parts.reader.heads(2, 4))
    assert [(frame.head, frame.body_bytes) for frame in frames] == [(b"", 0), (head, len(body))]
    assert parts.reader.bodies([2, 3]) == {2: b"", 3: body}


@pytest.mark.promise("S1")
def test_a_number_is_given_to_one_frame(parts: Parts) -> None:
    acquired(parts.lease)
    mark = insert(parts.writer, 2)
    with pytest.raises(SequenceTaken):
        parts.another_writer().insert(2, FrameMark(2, 9), b"other", [b"other"])
    with pytest.raises(SequenceTaken):
        insert(parts.writer, 2)
    assert parts.writer.mark_of(2) == mark
    assert parts.reader.bodies([2]) == {2: b"b"}
    insert(parts.writer, 3)  # the connection is as good as before


def test_a_frame_that_is_not_there_has_no_mark_and_no_body(parts: Parts) -> None:
    acquired(parts.lease)
    assert parts.writer.mark_of(2) is None
    assert parts.writer.mark_of(10_000) is None
    assert parts.reader.bodies([2, 10_000]) == {}
    assert numbers(parts.reader, 2, 10_000) == []


def test_heads_come_in_order_and_within_their_bounds(parts: Parts) -> None:
    acquired(parts.lease)
    last = 8 * RANGE_FRAMES + 3
    for sequence in range(2, last + 1):
        insert(parts.writer, sequence, head=b"%d" % sequence)
    assert numbers(parts.reader, 1, last + 100) == list(range(1, last + 1))
    assert numbers(parts.reader, 7, 19) == list(range(7, 19))
    assert [frame.head for frame in parts.reader.heads(9, 12)] == [b"9", b"10", b"11"]
    wanted = [3, RANGE_FRAMES, RANGE_FRAMES + 1, last]
    assert sorted(parts.reader.bodies(wanted)) == wanted


def test_a_barrier_returns(parts: Parts) -> None:
    acquired(parts.lease)
    parts.writer.barrier()
    insert(parts.writer, 2)
    parts.writer.barrier()


@pytest.mark.promise("S1")
def test_only_whole_ranges_below_a_number_are_dropped(parts: Parts) -> None:
    acquired(parts.lease)
    last = 4 * RANGE_FRAMES
    for sequence in range(2, last + 1):
        insert(parts.writer, sequence)
    assert parts.reader.oldest() == 1
    parts.writer.drop_below(3)
    assert numbers(parts.reader, 1, last + 1) == list(range(1, last + 1))
    parts.writer.drop_below(2 * RANGE_FRAMES + 3)
    oldest = parts.reader.oldest()
    assert RANGE_FRAMES < oldest <= 2 * RANGE_FRAMES + 3
    assert numbers(parts.reader, 1, last + 1) == list(range(oldest, last + 1))
    parts.writer.drop_below(2 * RANGE_FRAMES + 3)
    assert parts.reader.oldest() == oldest


@pytest.mark.promise("S1", "S2")
def test_numbers_are_filled_up_to_the_end_of_a_range_all_or_none(parts: Parts) -> None:
    acquired(parts.lease)
    insert(parts.writer, 2)
    assert parts.writer.range_end(2) == RANGE_FRAMES
    assert parts.writer.range_end(RANGE_FRAMES) == 2 * RANGE_FRAMES
    parts.writer.fill(3, RANGE_FRAMES, 1)
    insert(parts.writer, RANGE_FRAMES)
    for sequence in range(RANGE_FRAMES + 1, RANGE_FRAMES + 4):
        insert(parts.writer, sequence)
    with pytest.raises(SequenceTaken):
        parts.writer.fill(RANGE_FRAMES + 1, 2 * RANGE_FRAMES, 1)
    frames = list(parts.reader.heads(3, 3 * RANGE_FRAMES))
    assert [frame.sequence for frame in frames] == list(range(3, RANGE_FRAMES + 4))
    assert all(not frame.head and not frame.body_bytes for frame in frames[:-4])
    assert parts.writer.mark_of(3) == FrameMark(1, 0)
    parts.writer.drop_below(RANGE_FRAMES)
    assert parts.reader.oldest() == RANGE_FRAMES
    with pytest.raises(SequenceTaken):
        parts.writer.fill(3, RANGE_FRAMES, 1)


@pytest.mark.promise("S2")
def test_a_number_that_was_dropped_is_still_taken(parts: Parts) -> None:
    """An owner that slept while others wrote and dropped must not find room where its number was."""
    acquired(parts.lease)
    sleeper = parts.another_writer()
    insert(sleeper, 2)
    fresh = parts.another_writer()
    parts.lease.release(1)
    assert acquired(parts.lease).fence == 3
    for sequence in range(4, 4 * RANGE_FRAMES):
        insert(parts.writer, sequence, epoch=2)
    parts.writer.drop_below(3 * RANGE_FRAMES)
    for writer in (sleeper, fresh):
        for sequence in (3, RANGE_FRAMES, 2 * RANGE_FRAMES - 1):
            with pytest.raises(SequenceTaken):
                insert(writer, sequence)
    assert parts.reader.oldest() >= 2 * RANGE_FRAMES


def test_the_first_owner_begins_with_a_fence(parts: Parts) -> None:
    assert parts.reader.oldest() == 1
    assert parts.lease.look().owner == ""
    found = acquired(parts.lease, "a")
    assert found == Acquired(epoch=1, fence=1)
    (fence,) = parts.reader.heads(1, 100)
    assert (fence.sequence, fence.mark, fence.head, fence.body_bytes) == (1, FrameMark(1, 0), b"", 0)
    insert(parts.writer, 2)


@pytest.mark.promise("S4")
def test_a_shard_has_one_owner_at_a_time(parts: Parts) -> None:
    acquired(parts.lease, "a")
    other = parts.another_lease()
    assert other.acquire("b", "b:1", LEASE_MS) is None
    assert parts.lease.acquire("a", "a:1", LEASE_MS) is None  # the same name may be another process
    look = other.look()
    assert (look.epoch, look.owner, look.address) == (1, "a", "a:5672")
    assert LEASE_MS // 2 < look.remaining_ms <= LEASE_MS


@pytest.mark.promise("S1", "S2")
def test_an_owner_that_lost_its_shard_finds_its_next_number_taken(parts: Parts) -> None:
    acquired(parts.lease, "a")
    insert(parts.writer, 2)
    insert(parts.writer, 3)
    parts.lease.release(1)
    found = acquired(parts.another_lease(), "b")
    assert found == Acquired(epoch=2, fence=4)
    with pytest.raises(SequenceTaken):
        insert(parts.writer, 4, epoch=1)
    assert parts.writer.mark_of(4) == FrameMark(2, 0)
    insert(parts.another_writer(), 5, epoch=2)
    assert [frame.mark.epoch for frame in parts.reader.heads(1, 9)] == [1, 1, 1, 2, 2]


def test_a_lease_that_has_ended_can_be_taken(parts: Parts) -> None:
    acquired(parts.lease, "a", SHORT_LEASE_MS)
    other = parts.another_lease()
    for _ in range(10_000):  # each call takes some time
        if other.look().remaining_ms <= 0:
            break
    assert acquired(other, "b").epoch == 2
    assert not parts.lease.renew(1, "a:1", LEASE_MS)
    assert other.look().owner == "b"


def test_renewing_lengthens_the_lease_and_tells_the_address(parts: Parts) -> None:
    acquired(parts.lease, "a", LEASE_MS)
    assert parts.lease.renew(1, "elsewhere:1", 4 * LEASE_MS)
    look = parts.lease.look()
    assert look.address == "elsewhere:1"
    assert look.remaining_ms > 2 * LEASE_MS
    assert not parts.lease.renew(2, "x:1", LEASE_MS)
    assert parts.lease.look().address == "elsewhere:1"


def test_a_lease_that_was_given_back_is_free_and_is_not_renewed(parts: Parts) -> None:
    acquired(parts.lease, "a")
    parts.lease.release(7)  # of another epoch: nothing happens
    assert parts.lease.look().owner == "a"
    parts.lease.release(1)
    look = parts.lease.look()
    assert (look.epoch, look.owner) == (1, "")
    assert look.remaining_ms <= 0
    assert not parts.lease.renew(1, "a:1", LEASE_MS)
    assert acquired(parts.another_lease(), "b").epoch == 2
    parts.lease.release(1)
    assert parts.lease.look().owner == "b"


@pytest.mark.promise("S3", "S6")
def test_a_shard_that_was_moved_away_is_never_taken_again(parts: Parts) -> None:
    acquired(parts.lease, "a")
    parts.lease.release(1)
    mover = parts.another_lease()
    held = acquired(mover, "mover", SHORT_LEASE_MS)
    assert not mover.move_away(held.epoch - 1, "elsewhere")  # of another epoch: nothing happens
    assert mover.look().owner == "mover"
    assert mover.move_away(held.epoch, "elsewhere")
    mover.release(held.epoch)  # as whoever holds a lease does at last
    for lease in (parts.lease, mover):
        for _ in range(20):  # the mover's own lease ends meanwhile
            assert lease.acquire("a", "a:5672", LEASE_MS) is None
        assert not lease.renew(held.epoch, "a:1", LEASE_MS)
        with pytest.raises(ShardMoved, match="elsewhere"):
            lease.look()
    assert not mover.move_away(held.epoch, "again")


def test_a_shard_that_another_node_has_taken_or_that_was_given_back_is_not_moved_away(parts: Parts) -> None:
    held = acquired(parts.lease, "mover")
    parts.lease.release(held.epoch)
    assert not parts.lease.move_away(held.epoch, "elsewhere")
    another = parts.another_lease()
    other = acquired(another, "b")
    assert not parts.lease.move_away(held.epoch, "elsewhere")
    assert another.renew(other.epoch, "b:1", LEASE_MS)
    assert parts.lease.look().owner == "b"


@pytest.mark.promise("S1")
@pytest.mark.parametrize("last", [2, RANGE_FRAMES - 1, RANGE_FRAMES + 1])
def test_a_frame_is_added_only_directly_behind_one_of_its_owner(parts: Parts, last: int) -> None:
    acquired(parts.lease)
    mark = FrameMark(1, 0)
    for sequence in range(2, last + 1):
        mark = insert(parts.writer, sequence)
    for sequence in (last + 2, last + RANGE_FRAMES, last + 5 * RANGE_FRAMES):
        for writer in (parts.writer, parts.another_writer()):
            with pytest.raises(LogShortened) as shortened:
                insert(writer, sequence)
            assert shortened.value.last == last
            with pytest.raises(LogShortened):
                writer.fill(sequence, sequence + 1, 1)
    wrong = mark.checksum ^ 1
    for epoch, after in ((2, None), (1, wrong)):
        with pytest.raises(SequenceTaken):
            parts.writer.insert(last + 1, FrameMark(epoch, 9), b"h", [b"b"], after)
        with pytest.raises(SequenceTaken):
            parts.writer.fill(last + 1, last + 2, epoch, after)
    assert numbers(parts.reader, 1, 100) == list(range(1, last + 1)), "nothing was changed"
    parts.writer.insert(last + 1, FrameMark(1, (1 << 64) - 1), b"h", [b"b"], mark.checksum)
    parts.writer.fill(last + 2, last + 3, 1, (1 << 64) - 1)
    assert numbers(parts.reader, 1, 100) == list(range(1, last + 3))


@pytest.mark.promise("S1", "S3")
def test_a_renewal_looks_for_the_newest_frame(parts: Parts) -> None:
    acquired(parts.lease)
    insert(parts.writer, 2)
    assert parts.lease.renew(1, "a:1", SHORT_LEASE_MS, 2)
    with pytest.raises(LogShortened) as shortened:
        parts.lease.renew(1, "a:1", 100 * LEASE_MS, 5)
    assert shortened.value.last == 2
    assert parts.lease.look().remaining_ms <= SHORT_LEASE_MS
    parts.lease.release(1)
    assert not parts.lease.renew(1, "a:1", LEASE_MS, 5), "another may own it: that counts first"


@pytest.mark.promise("S4")
def test_a_renewal_that_was_so_long_on_its_way_that_its_frame_was_dropped_is_one(parts: Parts) -> None:
    acquired(parts.lease)
    for number in range(2, 3 * RANGE_FRAMES):
        insert(parts.writer, number)
    parts.writer.drop_below(2 * RANGE_FRAMES)
    assert parts.lease.renew(1, "a:1", LEASE_MS, 3)
    with pytest.raises(LogShortened):
        parts.lease.renew(1, "a:1", LEASE_MS, 3 * RANGE_FRAMES)


@pytest.mark.promise("S1", "S3")
def test_a_former_owner_learns_how_much_of_its_log_is_there(parts: Parts) -> None:
    acquired(parts.lease)
    marks = {sequence: insert(parts.writer, sequence) for sequence in range(2, 6)}
    parts.lease.release(1)
    assert acquired(parts.another_lease(), "b") == Acquired(2, 6)
    writer = parts.another_writer()
    for sequence in range(7, 2 * RANGE_FRAMES + 2):
        insert(writer, sequence, 2)

    def kept(sequence: int, mark: FrameMark) -> int | None:
        return parts.lease.last_kept(LastFrame(sequence, mark))

    assert [kept(sequence, mark) for sequence, mark in marks.items()] == [None] * 4
    assert kept(1, FrameMark(1, 0)) is None, "the fence"
    for sequence in (6, 7, 9, 2 * RANGE_FRAMES, 100 * RANGE_FRAMES):
        assert kept(sequence, FrameMark(1, 9)) == 5, "another owner gave the number again, or it is free"
    assert kept(8, FrameMark(2, 9)) == 5, "another owner got the same epoch"
    assert kept(100 * RANGE_FRAMES, FrameMark(2, 9)) == 2 * RANGE_FRAMES + 1
    assert writer.drop_below(RANGE_FRAMES)
    assert kept(5, FrameMark(1, 9)) is None, "it was dropped: nobody can tell"
    assert kept(RANGE_FRAMES + 1, FrameMark(1, 9)) == RANGE_FRAMES - 1


@pytest.mark.promise("S2")
def test_a_renewal_needs_the_name_of_the_owner_beside_the_epoch(parts: Parts) -> None:
    """A failover may lose an acquisition, and the next owner then gets the same epoch."""
    acquired(parts.lease, "a")
    parts.lease.release(1)
    former = parts.another_lease()
    assert acquired(former, "a").epoch == 2
    former.release(2)
    now = parts.another_lease()
    epoch = acquired(now, "b").epoch
    assert not former.renew(epoch, "a:1", LEASE_MS)
    assert now.renew(epoch, "b:1", LEASE_MS)


@pytest.mark.promise("S1", "S6")
def test_a_takeover_at_the_edge_of_a_range_leaves_no_gap(parts: Parts) -> None:
    acquired(parts.lease, "a")
    sequence = 1
    for epoch in range(1, 2 * RANGE_FRAMES + 3):
        parts.lease.release(epoch)
        found = acquired(parts.lease, "a")
        assert found == Acquired(epoch + 1, sequence + 1)
        sequence = found.fence
    assert numbers(parts.reader, 1, sequence + 1) == list(range(1, sequence + 1))


def test_closing_twice_is_closing_once(parts: Parts) -> None:
    acquired(parts.lease)
    close: Callable[[], None]
    for close in (parts.writer.close, parts.reader.close, parts.lease.close):
        close()
        close()
