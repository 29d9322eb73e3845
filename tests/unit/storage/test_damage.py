"""B10: damage to acknowledged data is noticed wherever it is; a torn last frame is dropped."""

from __future__ import annotations

import pytest

from pairbus.errors import StoreCorrupt
from pairbus.storage.log.frame import HEADER_BYTES
from pairbus.storage.log.segment import OFFSET_MASK, SEGMENT_HEADER_BYTES, segment_name
from pairbus.storage.log.store import LogStore
from tests.simulation.disk import SimulatedDisk
from tests.unit.storage.helpers import commit, numbers, open_log, ready_log, replay, send, store_frames


def written(frames: int = 12, size: int = 500) -> tuple[SimulatedDisk, list[tuple[str, int, int]]]:
    """A disk with so many acknowledged frames, and (file, start, end) of each."""
    disk = SimulatedDisk()
    store = ready_log(disk)
    places = store_frames(store, frames, size)
    store.close()
    return disk, places


def read_all(disk: SimulatedDisk) -> list[int]:
    store = open_log(disk)
    try:
        return numbers(replay(store))
    finally:
        store.close()


@pytest.mark.promise("B10")
def test_every_flipped_bit_of_an_acknowledged_frame_is_noticed() -> None:
    disk, places = written(frames=8, size=120)
    assert len({name for name, _, _ in places}) == 1
    for name, start, end in places:
        for bit in range(start * 8, end * 8, 7):  # 7: every bit position of a byte comes up
            damaged = disk.killed()
            damaged.flip(name, bit)
            with pytest.raises(StoreCorrupt, match="damage at offset"):
                read_all(damaged)


@pytest.mark.promise("B10")
def test_flipped_bits_are_noticed_in_every_segment() -> None:
    disk, places = written(frames=40)
    assert len({name for name, _, _ in places}) > 3
    for name, start, end in places:
        for byte in (start, start + 9, start + HEADER_BYTES, (start + end) // 2, end - 1):
            damaged = disk.killed()
            damaged.flip(name, byte * 8 + 3)
            with pytest.raises(StoreCorrupt, match=name):
                read_all(damaged)


@pytest.mark.promise("B10")
def test_a_flipped_bit_in_a_segment_header_is_noticed() -> None:
    disk, places = written()
    for name in sorted({name for name, _, _ in places}):
        for bit in range(0, SEGMENT_HEADER_BYTES * 8, 13):
            damaged = disk.killed()
            damaged.flip(name, bit)
            with pytest.raises(StoreCorrupt, match=name):
                read_all(damaged)


@pytest.mark.promise("B10")
def test_a_missing_segment_is_noticed() -> None:
    disk, places = written(frames=40)
    for name in sorted({name for name, _, _ in places}):
        damaged = disk.killed()
        damaged.unlink(name)
        with pytest.raises(StoreCorrupt, match="the file is missing"):
            read_all(damaged)


@pytest.mark.promise("B10")
def test_losing_all_segments_is_noticed() -> None:
    disk, _ = written()
    for name in disk.names():
        if name.endswith(".segment"):
            disk.unlink(name)
    with pytest.raises(StoreCorrupt, match="lost all its segments"):
        open_log(disk)


@pytest.mark.promise("B10")
def test_a_segment_under_anothers_name_is_noticed() -> None:
    disk, places = written(frames=40)
    names = sorted({name for name, _, _ in places})
    disk.rename(names[0], names[1])
    with pytest.raises(StoreCorrupt):
        read_all(disk)


@pytest.mark.promise("B10")
def test_a_segment_of_another_log_is_noticed() -> None:
    """It is intact in itself and as long as the lost one, and its log's first two messages take the place of one: only the numbers
    of its frames tell.
    """
    disk, places = written(frames=40)
    names = sorted({name for name, _, _ in places})
    other = SimulatedDisk()
    store = ready_log(other)
    for number, size in enumerate([206, 206, *[500] * 40], 1):
        send(store, number, size)
        commit(store)
    store.close()
    contents = other.contents(names[1])
    assert contents != disk.contents(names[1])
    disk.unlink(names[1])
    disk.write(disk.create(names[1], 0), (contents,), 0)
    with pytest.raises(StoreCorrupt, match="follows frame"):
        read_all(disk)


@pytest.mark.promise("B10")
def test_a_shortened_segment_is_noticed() -> None:
    disk, places = written(frames=40)
    name, start, _ = places[2]
    for length in (0, 100, SEGMENT_HEADER_BYTES, start + 10):
        damaged = disk.killed()
        contents = damaged.contents(name)[:length]
        damaged.unlink(name)
        handle = damaged.create(name, 0)
        damaged.write(handle, (contents,), 0)
        with pytest.raises(StoreCorrupt):
            read_all(damaged)


@pytest.mark.promise("B10")
def test_damage_changes_nothing_on_disk() -> None:
    disk, places = written()
    disk.flip(places[3][0], places[3][1] * 8 + 80)
    before = {name: disk.contents(name) for name in disk.names()}
    with pytest.raises(StoreCorrupt):
        read_all(disk)
    assert {name: disk.contents(name) for name in disk.names()} == before


@pytest.mark.promise("B10")
def test_a_torn_last_frame_is_dropped_whatever_is_missing_of_it(disk: SimulatedDisk, store: LogStore) -> None:
    for number in range(1, 4):
        send(store, number)
        commit(store)
    before = disk.killed()
    send(store, 4)
    batch = store.seal()
    assert batch is not None
    store.commit(batch)
    name = segment_name(batch.frames[0].segment)
    start = batch.frames[0].offset
    end = batch.end & OFFSET_MASK
    whole = disk.contents(name)
    for cut in range(start, end):
        torn = before.killed()
        handle = torn.open(name)
        torn.write(handle, (whole[start:cut],), start)
        torn.close(handle)
        assert read_all(torn) == [1, 2, 3], cut


@pytest.mark.promise("B10")
def test_a_torn_frame_is_overwritten_and_never_comes_back(disk: SimulatedDisk, store: LogStore) -> None:
    send(store, 1)
    commit(store)
    before = disk.killed()
    send(store, 2, 2000)
    batch = store.seal()
    assert batch is not None
    store.commit(batch)
    frame = batch.frames[0]
    name = segment_name(frame.segment)
    whole = disk.contents(name)
    handle = before.open(name)
    # Its second half reached the disk, its first did not.
    before.write(handle, (whole[frame.offset + 800 : batch.end & OFFSET_MASK],), frame.offset + 800)
    store = open_log(before)
    assert numbers(replay(store)) == [1]
    for number in (20, 21, 22, 23, 24, 25):
        send(store, number, 100)
        commit(store)
    store.close()
    assert read_all(before) == [1, 20, 21, 22, 23, 24, 25]


def test_a_message_that_looks_like_a_frame_is_no_frame() -> None:
    """Bytes of a body are never taken for the log's own, unless somebody knows the segment's salt."""
    disk, places = written(frames=3)
    name, start, end = places[1]
    forged = disk.contents(name)[start:end]
    other = SimulatedDisk()
    store = ready_log(other, segment_bytes=8192)
    store.close()
    store = open_log(other, segment_bytes=8192)
    replay(store)
    message = send(store, 1)
    commit(store)
    from pairbus.engine.records import MessageStored

    message.sequence_number = 2
    message.location = 0
    message.size = len(forged)
    # The salt of this file differs from that of the other.
    forged = forged.replace(forged[:8], b"Mxxxyyyy")
    store.append(MessageStored(4, message, forged, b""))
    commit(store)
    store.close()
    assert read_all(other) == [1, 2]
