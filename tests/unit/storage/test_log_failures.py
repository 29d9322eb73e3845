"""B11, B12: failed writes and syncs end the store; a full disk does not."""

from __future__ import annotations

import errno

import pytest

from pairbus.errors import StoreFailed, StoreUnavailable
from pairbus.storage.log.mark import MARK_BYTES
from pairbus.storage.log.store import LogStore
from tests.simulation.disk import SimulatedDisk
from tests.unit.storage.helpers import QUEUE, commit, numbers, open_log, ready_log, remove, replay, send


@pytest.mark.promise("B11")
@pytest.mark.parametrize(
    ("operation", "number"),
    [
        ("sync", errno.EIO),
        ("write", errno.EIO),
        ("write", errno.ENOSPC),
        ("write", 0),
        ("sync", errno.ENOSPC),
    ],
)
def test_after_a_failed_write_or_sync_nothing_is_acknowledged_any_more(operation: str, number: int) -> None:
    disk = SimulatedDisk()
    store = ready_log(disk)
    send(store, 1)
    commit(store)
    send(store, 2)
    disk.fail(operation, number)
    with pytest.raises(StoreFailed, match=r"0000000001\.segment"):
        commit(store)
    send(store, 3)
    with pytest.raises(StoreFailed, match="failed before"):
        commit(store)
    after = disk.killed()
    store = open_log(after)
    assert numbers(replay(store)) in ([1], [1, 2])
    send(store, 4)
    commit(store)


@pytest.mark.promise("B9", "B11")
def test_what_a_failed_sync_left_in_memory_is_made_certain_before_it_is_served() -> None:
    """After a failed sync Linux may call lost pages clean: they can be read until the power goes."""
    import random

    disk = SimulatedDisk()
    store = ready_log(disk)
    send(store, 1)
    disk.fail("sync", errno.EIO)
    with pytest.raises(StoreFailed):
        commit(store)
    again = disk.killed()
    store = open_log(again)
    assert numbers(replay(store)) == [1]
    for seed in range(20):
        after = again.crashed(random.Random(seed))
        assert numbers(replay(open_log(after))) == [1]


@pytest.mark.promise("B11")
def test_a_mark_that_cannot_be_written_ends_the_store_at_the_next_commit() -> None:
    for number in (errno.EIO, 0):
        disk = SimulatedDisk()
        store = ready_log(disk)
        send(store, 1)
        disk.fail("write", number, after=1)
        commit(store)  # it is durable: the mark comes after the sync
        send(store, 2)
        with pytest.raises(StoreFailed, match="failed before"):
            commit(store)
        assert numbers(replay(open_log(disk.killed()))) == [1]


@pytest.mark.promise("B11")
def test_no_new_segment_no_acknowledgement(disk: SimulatedDisk, store: LogStore) -> None:
    disk.fail("create", errno.EIO)
    with pytest.raises(StoreFailed, match="no new segment could be made"):
        for number in range(1, 100):
            send(store, number)
            commit(store)


def fill(store: LogStore) -> list[tuple[int, int, int]]:
    """Send until there is no room. (number, location, size) of what was taken."""
    taken: list[tuple[int, int, int]] = []
    number = 1
    while store.has_room(500):
        message = send(store, number)
        taken.append((number, message.location, message.size))
        commit(store)
        number += 1
        assert number < 10_000, "the disk is never full"
    return taken


def full_store(capacity_bytes: int = 60_000) -> tuple[SimulatedDisk, LogStore, list[tuple[int, int, int]]]:
    disk = SimulatedDisk(capacity_bytes=capacity_bytes)
    store = ready_log(disk, reserve_bytes=4000)
    return disk, store, fill(store)


@pytest.mark.promise("B12")
def test_a_full_disk_refuses_sends_and_takes_settlements() -> None:
    disk, store, taken = full_store()
    assert len(taken) > 30
    assert store.statistics().is_full
    from pairbus.engine.records import MessageRemoved

    for number, location, size in taken:
        assert store.read(location, size) == bytes([number % 251]) * size
        store.append(MessageRemoved(QUEUE, number, location, size))
        commit(store)
    assert store.has_room(500), "draining makes room"
    store.close()
    store = open_log(disk, reserve_bytes=4000)
    records = replay(store)
    assert store.statistics().live_bytes == 0
    assert len(records) < len(taken) * 2


@pytest.mark.promise("B12")
def test_when_space_returns_sends_work_again_without_a_restart() -> None:
    disk, store, taken = full_store()
    assert not store.has_room(500)
    disk.capacity_bytes = 200_000
    assert store.has_room(500)
    for number in range(1000, 1050):
        assert store.has_room(500)
        send(store, number)
        commit(store)
    store.close()
    assert len(numbers(replay(open_log(disk)))) == len(taken) + 50


@pytest.mark.promise("B12")
def test_a_message_longer_than_the_room_is_refused() -> None:
    disk = SimulatedDisk(capacity_bytes=60_000 + MARK_BYTES)
    store = ready_log(disk, reserve_bytes=1000)
    assert not store.has_room(58_000)
    assert store.has_room(20_000)
    send(store, 1, 20_000)
    commit(store)
    assert numbers(replay(open_log(disk.killed()))) == [1]


@pytest.mark.promise("B12")
def test_on_a_full_disk_a_sparse_oldest_segment_is_restated_for_its_space() -> None:
    from pairbus.engine.records import MessageRemoved, MessageStored

    _, store, taken = full_store()
    kept = taken[0]
    for number, location, size in taken[1:8]:
        store.append(MessageRemoved(QUEUE, number, location, size))
    commit(store)
    records = store.restate(100)
    assert next(r.message.sequence_number for r in records if isinstance(r, MessageStored)) == kept[0]


@pytest.mark.promise("B12")
def test_a_reserve_that_is_used_up_ends_the_store_in_words() -> None:
    _, store, _ = full_store()
    with pytest.raises(StoreFailed, match="disk is full and the reserve is used up"):
        for number in range(5000, 6000):
            send(store, number)  # nobody asked for room
            commit(store)


def test_a_first_start_on_a_full_disk_is_refused_in_words() -> None:
    with pytest.raises(StoreUnavailable, match="No space|ENOSPC|cannot be used"):
        open_log(SimulatedDisk(capacity_bytes=1000))


def test_an_unreadable_disk_is_said(disk: SimulatedDisk, store: LogStore) -> None:
    message = send(store, 1)
    commit(store)
    store.close()
    disk.fail("read", errno.EIO)
    with pytest.raises(StoreUnavailable, match="cannot be used"):
        open_log(disk)
    store = open_log(disk)
    disk.fail("read", errno.EIO)
    with pytest.raises(StoreUnavailable, match="cannot be read"):
        list(store.replay())
    store.close()
    store = open_log(disk)
    replay(store)
    disk.fail("read", errno.EIO)
    with pytest.raises(StoreFailed, match="cannot be read"):
        store.read(message.location, message.size)
    remove(store, message)
