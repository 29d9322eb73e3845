"""B12: what is staged and not yet written counts, so that nothing is taken that the disk cannot hold afterwards."""

from __future__ import annotations

import errno
import random

import pytest

from pairbus.engine.records import MessageRemoved, MessageStored
from pairbus.errors import StoreFailed
from pairbus.model.message import Message
from pairbus.storage.log.store import LogStore
from pairbus.storage.ports import SMALL_MESSAGE_BYTES
from tests.simulation.disk import SimulatedDisk
from tests.unit.storage.helpers import QUEUE, commit, numbers, open_log, ready_log, remove, replay, send

RESERVE = 4000


def settle_all(store: LogStore, taken: list[Message]) -> None:
    for message in taken:
        assert store.read(message.location, message.size)
        remove(store, message)
        commit(store)


@pytest.mark.promise("B12")
@pytest.mark.parametrize("capacity_bytes", range(60_000, 160_000, 7_919))
def test_long_messages_of_one_burst_are_refused_before_the_disk_is_too_small(capacity_bytes: int) -> None:
    disk = SimulatedDisk(capacity_bytes=capacity_bytes)
    store = ready_log(disk, reserve_bytes=RESERVE)
    taken: list[Message] = []
    while store.has_room(20_000):
        taken.append(send(store, len(taken) + 1, 20_000))
        assert len(taken) < 100, "the disk is never full"

    commit(store)

    assert numbers(replay(open_log(disk.killed()))) == [message.sequence_number for message in taken]
    settle_all(store, taken)


@pytest.mark.promise("B12")
@pytest.mark.parametrize("size", [100, 500, 1_900, 3_300])
def test_a_burst_of_ordinary_messages_is_refused_before_the_disk_is_too_small(size: int) -> None:
    disk = SimulatedDisk(capacity_bytes=60_000)
    store = ready_log(disk, reserve_bytes=RESERVE)
    taken: list[Message] = []
    while store.has_room(size):
        taken.append(send(store, len(taken) + 1, size))
        assert len(taken) < 10_000, "the disk is never full"
    assert taken

    commit(store)

    settle_all(store, taken)
    assert store.has_room(size), "draining makes room"


@pytest.mark.promise("B12")
@pytest.mark.parametrize("seed", range(60))
def test_whatever_the_sizes_and_batches_room_that_was_promised_is_there(seed: int) -> None:
    chance = random.Random(seed)
    disk = SimulatedDisk(capacity_bytes=chance.randrange(50_000, 200_000))
    store = ready_log(disk, reserve_bytes=RESERVE)
    taken: list[Message] = []
    number = refused = 0
    while refused < 5:
        size = chance.choice((50, 500, 1_500, 3_000, 5_000, 15_000))
        copies = chance.choice((1, 1, 1, 3))
        if not store.has_room(size * copies):
            refused += 1
            commit(store)
            continue
        for _ in range(copies):
            number += 1
            taken.append(send(store, number, size))
        if chance.random() < 0.3:
            commit(store)
    commit(store)
    assert store.statistics().is_full or refused

    settle_all(store, taken)

    commit(store)
    assert store.has_room(500)


@pytest.mark.promise("B12")
def test_when_space_returns_long_messages_are_taken_again_without_a_restart() -> None:
    disk = SimulatedDisk(capacity_bytes=70_000)
    store = ready_log(disk, reserve_bytes=RESERVE)
    count = 0
    while store.has_room(20_000):
        count += 1
        send(store, count, 20_000)
        commit(store)

    disk.capacity_bytes = 300_000

    assert store.has_room(20_000)
    send(store, count + 1, 20_000)
    commit(store)
    assert numbers(replay(open_log(disk.killed()))) == list(range(1, count + 2))


@pytest.mark.promise("B12")
def test_space_that_somebody_else_took_meanwhile_leaves_no_partial_record() -> None:
    disk = SimulatedDisk(capacity_bytes=80_000)
    store = ready_log(disk, reserve_bytes=RESERVE)
    send(store, 1)
    commit(store)
    assert store.has_room(20_000)
    send(store, 2, 20_000)
    written = disk.contents("0000000002.segment")
    disk.capacity_bytes = 0

    with pytest.raises(StoreFailed, match="free some space"):
        commit(store)

    assert disk.contents("0000000002.segment") == written
    disk.capacity_bytes = None
    assert numbers(replay(open_log(disk.killed()))) == [1]


@pytest.mark.promise("B12")
def test_another_fault_while_a_long_message_gets_its_space_ends_the_store(disk: SimulatedDisk) -> None:
    store = ready_log(disk)
    send(store, 1, 20_000)
    disk.fail("reserve", errno.EIO)

    with pytest.raises(StoreFailed, match="injected into reserve"):
        commit(store)


@pytest.mark.promise("B12")
def test_housekeeping_moves_nothing_that_a_full_disk_has_no_place_for() -> None:
    """Messages that stay lie at the front, garbage behind them outweighs them: the front cannot be moved."""
    disk = SimulatedDisk(capacity_bytes=90_000)
    store = ready_log(disk, reserve_bytes=RESERVE)
    kept = send(store, 1, 30_000)
    commit(store)
    messages = {1: kept}
    number = 1
    for _ in range(400):
        if store.has_room(1_000):
            number += 1
            messages[number] = send(store, number, 1_000)
        commit(store)
        for record in store.restate(100):
            if isinstance(record, MessageStored) and record.message.sequence_number in messages:
                message = messages[record.message.sequence_number]
                blob = store.read(message.location, message.size)
                store.append(MessageStored(QUEUE, message, blob, b""))
        commit(store)
        if number > 1 and number in messages:
            gone = messages.pop(number)
            store.append(MessageRemoved(QUEUE, gone.sequence_number, gone.location, gone.size))
            commit(store)

    assert store.read(kept.location, kept.size) == bytes([1]) * 30_000
    assert set(numbers(replay(open_log(disk.killed())))) >= {1}


@pytest.mark.promise("B12")
def test_disk_is_not_called_full_for_ever_when_old_segments_are_used_again() -> None:
    disk = SimulatedDisk(capacity_bytes=60_000)
    store = ready_log(disk, reserve_bytes=4_000)
    taken: list[Message] = []
    while store.has_room(500):
        taken.append(send(store, len(taken) + 1))
        commit(store)
    assert store.statistics().is_full
    for message in taken:
        store.append(MessageRemoved(QUEUE, message.sequence_number, message.location, message.size))
        commit(store)

    disk.capacity_bytes = 1_000_000

    assert store.has_room(20_000), "a message longer than a segment has room again"
    commit(store)
    assert not store.statistics().is_full
    store.close()


@pytest.mark.promise("B12")
def test_the_store_is_full_while_sends_are_refused_and_not_before() -> None:
    disk = SimulatedDisk(capacity_bytes=60_000)
    store = ready_log(disk, reserve_bytes=RESERVE)
    number = 0
    while True:
        has_room = store.has_room(SMALL_MESSAGE_BYTES)
        assert store.statistics().is_full is not has_room
        if not has_room:
            break
        number += 1
        send(store, number, SMALL_MESSAGE_BYTES)
        commit(store)
    assert number
    store.close()


@pytest.mark.promise("B12")
def test_a_full_disk_is_logged_once_and_so_is_its_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "pairbus.storage")
    disk = SimulatedDisk(capacity_bytes=60_000)
    store = ready_log(disk, reserve_bytes=RESERVE)
    number = 0
    while store.has_room(SMALL_MESSAGE_BYTES):
        number += 1
        send(store, number, SMALL_MESSAGE_BYTES)
        commit(store)
    for _ in range(3):
        assert store.restate(100) == []
    disk.capacity_bytes = 1_000_000
    assert store.has_room(SMALL_MESSAGE_BYTES)
    for _ in range(3):
        store.restate(100)

    assert [vars(record)["event"] for record in caplog.records] == ["store.full", "store.space"]
    store.close()


@pytest.mark.promise("B12")
def test_a_message_longer_than_a_segment_is_not_moved_on_a_full_disk() -> None:
    """It would need space of the disk, which there is not: the commit would fail."""
    disk = SimulatedDisk(capacity_bytes=90_000)
    store = ready_log(disk, reserve_bytes=RESERVE)
    kept = send(store, 1, 5_000)
    commit(store)
    taken: list[Message] = []
    while store.has_room(1_000):
        taken.append(send(store, len(taken) + 2, 1_000))
        commit(store)
    for message in taken[::2]:
        remove(store, message)
    commit(store)

    assert store.restate(100) == []
    assert store.read(kept.location, kept.size) == bytes([1]) * 5_000
    store.close()


@pytest.mark.promise("B12")
def test_names_of_sessions_are_not_taken_for_garbage_for_ever() -> None:
    """Session ids are no part of what lives by the accounts. Moved once, they must not make the same messages move again."""
    disk = SimulatedDisk(capacity_bytes=120_000)
    store = ready_log(disk, reserve_bytes=RESERVE)
    messages: dict[int, Message] = {}
    while store.has_room(40):
        message = Message(len(messages) + 1, 1_000, 0, 40, "s" * 128)
        store.append(MessageStored(QUEUE, message, bytes(40), b""))
        messages[message.sequence_number] = message
        commit(store)
    for number in [number for number in messages if number % 3 == 0]:
        remove(store, messages.pop(number))
    commit(store)
    moved = 0
    while records := store.restate(50):
        for record in records:
            if not isinstance(record, MessageStored):
                continue
            kept = messages.get(record.message.sequence_number)
            if kept is not None and kept.location == record.message.location:
                store.append(MessageStored(QUEUE, kept, store.read(kept.location, kept.size), b""))
                moved += 1
        commit(store)
        assert moved <= 2 * len(messages), "the same messages are moved again and again"

    assert moved
    assert store.has_room(40)
    store.close()
