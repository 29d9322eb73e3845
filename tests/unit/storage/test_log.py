"""The log: rolling, recycling, giving space back, large records, what it tells."""

from __future__ import annotations

from contextlib import suppress

import pytest

from pairbus.engine.records import (
    AuditMarked,
    EntityDeleted,
    EntityPut,
    EntityUsed,
    MessageRemoved,
    MessageStored,
    NamespacePut,
    Record,
    SequenceAdvanced,
    SessionStateSet,
)
from pairbus.errors import StoreCorrupt, StoreFailed, StoreUnavailable, UsageError
from pairbus.model.message import Message
from pairbus.storage.files import replace_file
from pairbus.storage.identity import FORMAT_FILE, FORMAT_VERSION, read_identity, write_identity
from pairbus.storage.log.mark import MARK_BYTES, MARK_FILE
from pairbus.storage.log.pool import READY_MAX, READY_MIN
from pairbus.storage.log.store import RESTATE_BYTES_MAX, LogStore
from pairbus.storage.memory import MemoryBatch, MemoryStore
from pairbus.storage.tools.inspect import check
from tests.simulation.disk import SimulatedDisk
from tests.unit.storage.helpers import (
    QUEUE,
    commit,
    fill_segments,
    numbers,
    open_log,
    ready_log,
    remove,
    replay,
    send,
)


def restate_all(store: LogStore, alive: dict[int, Message]) -> int:
    """Do what an owner does, to the end; how many records were looked at."""
    count = 0
    while old := store.restate(7):
        count += len(old)
        for record in old:
            if isinstance(record, MessageStored) and record.message.sequence_number in alive:
                message = alive[record.message.sequence_number]
                blob = store.read(message.location, message.size)
                store.append(MessageStored(record.queue_id, message, blob, record.duplicate_key))
            elif isinstance(record, EntityPut | NamespacePut):
                store.append(record)
        commit(store)
    commit(store)  # the last segment goes with the next batch, even an empty one
    return count


@pytest.mark.promise("B68")
def test_segments_roll_and_dead_ones_are_used_again(disk: SimulatedDisk, store: LogStore) -> None:
    for number in range(1, 400):
        message = send(store, number)
        commit(store)
        remove(store, message)
        commit(store)
    assert store.statistics().segments <= 2
    assert READY_MIN <= store.statistics().spare_segments <= READY_MAX
    assert len([name for name in disk.names() if name.endswith(".segment")]) <= 2 + READY_MAX
    store.close()
    records = replay(open_log(disk))
    assert len(records) < 40


@pytest.mark.promise("B19")
def test_the_last_number_survives_when_its_segment_goes(disk: SimulatedDisk, store: LogStore) -> None:
    remove(store, send(store, 77, queue_id=8), queue_id=8)
    commit(store)
    fill_segments(store)
    store.close()
    found = [record for record in replay(open_log(disk)) if isinstance(record, SequenceAdvanced)]
    assert [(record.queue_id, record.next_sequence_number) for record in found if record.queue_id == 8] == [
        (8, 78)
    ]
    assert all(record.enqueued_at >= 1077 for record in found)


def test_the_number_of_the_last_audited_batch_survives_when_its_segment_goes(disk: SimulatedDisk) -> None:
    store = ready_log(disk)
    store.append(AuditMarked(5))
    commit(store)
    fill_segments(store)
    store.close()
    found = [record for record in replay(open_log(disk)) if isinstance(record, AuditMarked)]
    assert [record.number for record in found] == [5]


def test_the_last_use_of_an_entity_survives_when_its_segment_goes(disk: SimulatedDisk) -> None:
    store = ready_log(disk)
    for entity_id, at in ((1, 5_000), (2, 6_000), (1, 4_000)):
        store.append(EntityUsed(entity_id, at))
    commit(store)
    fill_segments(store)
    store.close()
    found = [record for record in replay(open_log(disk)) if isinstance(record, EntityUsed)]
    assert {(record.entity_id, record.at) for record in found} == {(1, 5_000), (2, 6_000)}


def test_numbers_of_deleted_entities_are_not_carried_on(disk: SimulatedDisk, store: LogStore) -> None:
    store.append(EntityUsed(2, 5_000))
    send(store, 77, queue_id=8)
    store.append(EntityDeleted(2))
    commit(store)
    assert store.statistics().live_bytes == 0
    fill_segments(store)
    store.close()
    found = replay(open_log(disk))
    assert not any(isinstance(record, SequenceAdvanced) and record.queue_id == 8 for record in found)
    assert not any(isinstance(record, EntityUsed) for record in found)


def test_a_drain_gives_space_back(disk: SimulatedDisk, store: LogStore) -> None:
    messages = [send(store, number) for number in range(1, 300)]
    commit(store)
    assert store.statistics().disk_bytes > 150_000
    for message in messages:
        remove(store, message)
    commit(store)
    assert store.statistics().live_bytes == 0
    assert store.statistics().disk_bytes <= (2 + READY_MAX) * 4096
    assert sum(disk.size(name) for name in disk.names()) <= (2 + READY_MAX) * 4096 + MARK_BYTES + 200


@pytest.mark.promise("B68")
def test_live_messages_in_old_segments_are_restated_when_garbage_prevails(disk: SimulatedDisk) -> None:
    store = ready_log(disk)
    alive: dict[int, Message] = {}
    for number in range(1, 400):
        message = send(store, number)
        if number % 50:
            remove(store, message)
        else:
            alive[number] = message
        commit(store)
        restate_all(store, alive)
    statistics = store.statistics()
    assert statistics.used_bytes < 20_000
    assert statistics.live_bytes == sum(message.size + 48 for message in alive.values())
    for number, message in alive.items():
        assert store.read(message.location, message.size) == bytes([number % 251]) * message.size
    store.close()
    store = open_log(disk)
    assert set(numbers(replay(store))) >= set(alive)
    assert store.statistics().live_bytes == statistics.live_bytes


def test_nothing_is_given_back_before_the_owner_has_said_what_lives(disk: SimulatedDisk) -> None:
    store = ready_log(disk)
    for number in range(1, 60):
        send(store, number)
        commit(store)
    store.close()
    store = open_log(disk)
    found = list(store.replay())
    for number in range(100, 160):
        remove(store, send(store, number))
        commit(store)
    assert store.restate(100) == []
    store.close()
    assert numbers(list(open_log(disk).replay()))[:59] == numbers(found)


@pytest.mark.promise("B68")
def test_facts_hold_a_segment_until_they_are_restated(disk: SimulatedDisk, store: LogStore) -> None:
    store.append(NamespacePut(2, "{}"))
    store.append(EntityPut(1, 0, "q", "{}"))
    for number in range(1, 100):
        remove(store, send(store, number))
        commit(store)
    assert store.statistics().segments > 5
    assert restate_all(store, {}) >= 2
    assert store.statistics().segments <= 2
    store.close()
    found = replay(open_log(disk))
    assert [type(record) for record in found if isinstance(record, EntityPut | NamespacePut)] == [
        NamespacePut,
        EntityPut,
    ]


def test_facts_that_stay_true_do_not_make_it_restate_for_ever(store: LogStore) -> None:
    for entity_id in range(1, 200):
        store.append(EntityPut(entity_id, 0, f"q{entity_id}", "x" * 100))
        commit(store)
    looked_at = restate_all(store, {})
    assert 0 < looked_at < 600
    assert store.restate(10) == []
    assert store.statistics().garbage_bytes < store.statistics().used_bytes


def test_session_states_that_were_replaced_go(store: LogStore) -> None:
    for at in range(400):
        store.append(SessionStateSet(QUEUE, "s", b"x" * 100, at))
        commit(store)
        newest: list[Record] = []
        while old := store.restate(50):
            newest = [SessionStateSet(QUEUE, "s", b"x" * 100, at)] if old else []
            for record in newest:
                store.append(record)
            commit(store)
    assert store.statistics().used_bytes < 40_000


def test_a_record_longer_than_a_segment_gets_its_own(disk: SimulatedDisk, store: LogStore) -> None:
    sizes = [100, 50_000, 100, 4096, 4000, 3500, 200_000]
    messages = [send(store, number, size) for number, size in enumerate(sizes, 1)]
    commit(store)
    for number, message in enumerate(messages, 1):
        assert store.read(message.location, message.size) == bytes([number]) * message.size
    store.close()
    store = open_log(disk)
    assert numbers(replay(store)) == [1, 2, 3, 4, 5, 6, 7]
    for message in messages:
        remove(store, message)
    commit(store)
    assert sum(disk.size(name) for name in disk.names()) <= (2 + READY_MAX) * 4096 + MARK_BYTES + 200


@pytest.mark.promise("B13")
def test_a_batch_over_several_segments_counts_only_when_its_last_part_is_there(disk: SimulatedDisk) -> None:
    store = ready_log(disk)
    send(store, 1)
    commit(store)
    for number in range(2, 30):
        send(store, number)
    batch = store.seal()
    assert batch is not None
    assert len(batch.frames) > 3
    states: list[SimulatedDisk] = []
    disk.watch = lambda operation: states.append(disk.killed()) if operation in {"write", "sync"} else None
    store.commit(batch)
    counts = [len(numbers(replay(open_log(state.killed())))) for state in states]
    assert set(counts) == {1, 29}
    # Life goes on after a batch that never ended, and its parts stay void.
    half = next(state for state, count in zip(states[6:], counts[6:], strict=True) if count == 1)
    store = ready_log(half)
    for number in range(100, 110):
        send(store, number)
        commit(store)
    store.close()
    store = open_log(half)
    assert numbers(replay(store)) == [1, *range(100, 110)]
    looked_at = [record for record in store.restate(1000) if isinstance(record, MessageStored)]
    assert {record.message.sequence_number for record in looked_at} <= {1, *range(100, 110)}


def test_the_parts_of_a_batch_that_never_ended_are_not_restated(disk: SimulatedDisk, store: LogStore) -> None:
    for number in range(1, 4):
        send(store, number)
    batch = store.seal()
    assert batch is not None
    store.commit(batch)
    for number in range(50, 70):
        send(store, number)
    batch = store.seal()
    assert batch is not None
    store._writer._write(batch.frames[0])  # type: ignore[union-attr]  # the first part only
    after = disk.killed()
    store = ready_log(after)
    messages = [send(store, number) for number in range(100, 140)]
    commit(store)
    for message in messages:
        remove(store, message)
    commit(store)
    looked_at = numbers(store.restate(1000))
    assert looked_at[:3] == [1, 2, 3]
    assert not set(looked_at) & set(range(50, 70))


def test_a_run_of_removals_is_packed_together(disk: SimulatedDisk) -> None:
    store = ready_log(disk, segment_bytes=1 << 20)
    for number in range(1000):
        store.append(MessageRemoved(QUEUE, number, 0, 0))
    batch = store.seal()
    assert batch is not None
    assert sum(map(len, batch.frames[0].pieces)) == 16 + 8 * 1000
    store.commit(batch)
    for number in range(10):
        store.append(MessageRemoved(QUEUE + number % 2, number, 0, 0))
    commit(store)
    store.close()
    found = [r for r in replay(open_log(disk, segment_bytes=1 << 20)) if isinstance(r, MessageRemoved)]
    assert [r.sequence_number for r in found] == [*range(1000), *range(10)]
    assert [r.queue_id for r in found[1000:]] == [QUEUE, QUEUE + 1] * 5


def test_a_run_of_removals_goes_on_in_the_next_segment(disk: SimulatedDisk, store: LogStore) -> None:
    messages = [send(store, number, size=20) for number in range(1, 901)]
    commit(store)

    store.append_removals(QUEUE, messages[1:])
    assert store.statistics().live_bytes == messages[0].size + 48
    commit(store)

    store.close()
    found = [r.sequence_number for r in open_log(disk).replay() if isinstance(r, MessageRemoved)]
    assert found == list(range(2, 901))


@pytest.mark.promise("B18", "B62")
def test_the_cache_is_bounded_and_old_messages_are_read_by_blocks(disk: SimulatedDisk) -> None:
    store = ready_log(disk, segment_bytes=1 << 20, cache_bytes=600_000)
    messages = [send(store, number, 1000) for number in range(3000)]
    commit(store)
    send(store, 3000, 1000)
    commit(store)
    assert store.statistics().cached_bytes <= 600_000
    for number, message in enumerate(messages):
        assert store.read(message.location, message.size) == bytes([number % 251]) * 1000
    statistics = store.statistics()
    assert statistics.cached_bytes <= 600_000 + 2 * (1 << 17)
    assert statistics.cache_misses < 3000 / 50
    assert statistics.cache_hits >= 2900


@pytest.mark.promise("B18")
def test_what_is_staged_stays_readable_however_small_the_cache() -> None:
    store = ready_log(SimulatedDisk(), segment_bytes=1 << 20, cache_bytes=1000)
    messages = [send(store, number, 900) for number in range(1, 200)]
    assert all(store.read(m.location, m.size) == bytes([m.sequence_number]) * 900 for m in messages)


@pytest.mark.promise("B17")
def test_closing_writes_nothing_but_the_mark(disk: SimulatedDisk, store: LogStore) -> None:
    for number in range(1, 30):
        send(store, number)
        commit(store)
    before = {name: disk.contents(name) for name in disk.names() if name != MARK_FILE}
    operations = disk.operations
    store.close()
    assert {name: disk.contents(name) for name in disk.names() if name != MARK_FILE} == before
    assert disk.operations == operations + 2  # one write, one sync


@pytest.mark.promise("B69")
def test_a_second_owner_is_refused_until_the_first_is_gone(disk: SimulatedDisk) -> None:
    store = open_log(disk)
    with pytest.raises(StoreUnavailable, match="in use"):
        open_log(disk)
    store.close()
    open_log(disk)


@pytest.mark.promise("B69")
def test_who_lost_the_lock_writes_nothing_more(disk: SimulatedDisk, store: LogStore) -> None:
    send(store, 1)
    commit(store)
    before = {name: disk.contents(name) for name in disk.names()}
    disk.is_taken = True
    send(store, 2)
    with pytest.raises(StoreFailed, match="start one broker on it. Nothing is acknowledged any more"):
        commit(store)
    store.close()
    assert {name: disk.contents(name) for name in disk.names()} == before


def test_data_of_another_namespace_or_a_newer_format_is_refused(disk: SimulatedDisk) -> None:
    ready_log(disk).close()
    with pytest.raises(StoreUnavailable, match="belongs to namespace 'ns', not 'other'"):
        LogStore.open("simulated", namespace="other", file_system=disk)
    LogStore.open("simulated", file_system=disk).close()
    handle = disk.open("format")
    disk.write(handle, (b'{"format": 3, "namespace": "ns"}'.ljust(100),), 0)
    with pytest.raises(StoreUnavailable, match="start the newer PairBus"):
        open_log(disk)
    disk.write(handle, (b"?",), 0)
    with pytest.raises(StoreUnavailable, match="restore it from a copy"):
        open_log(disk)


def test_any_flipped_bit_of_the_format_file_is_noticed(disk: SimulatedDisk) -> None:
    write_identity(disk, "contoso")
    content = disk.contents(FORMAT_FILE)
    assert read_identity(disk) == (FORMAT_VERSION, "contoso")
    handle = disk.open(FORMAT_FILE)
    for at in range(len(content)):
        for bit in range(8):
            flipped = bytearray(content)
            flipped[at] ^= 1 << bit
            disk.write(handle, (bytes(flipped),), 0)
            # White space may become other white space.
            with suppress(StoreUnavailable):
                assert read_identity(disk) == (FORMAT_VERSION, "contoso"), flipped


def test_a_format_file_without_a_checksum_opens_and_gets_one(disk: SimulatedDisk) -> None:
    ready_log(disk).close()
    checked = disk.contents(FORMAT_FILE)
    replace_file(disk, FORMAT_FILE, b'{"format": 2, "namespace": "ns"}\n')

    ready_log(disk).close()

    assert disk.contents(FORMAT_FILE) == checked
    assert b"check" in checked


def test_a_missing_format_file_beside_data_is_refused(disk: SimulatedDisk, store: LogStore) -> None:
    send(store, 1)
    commit(store)
    store.close()
    disk.unlink("format")
    with pytest.raises(StoreUnavailable, match="format is missing"):
        open_log(disk)


def test_options_out_of_range_are_refused() -> None:
    for segment_bytes in (0, 4095, 1 << 31):
        with pytest.raises(UsageError, match=str(segment_bytes)):
            LogStore.open("nowhere", segment_bytes=segment_bytes, file_system=SimulatedDisk())


def test_a_batch_of_another_store_is_refused() -> None:
    store = ready_log(SimulatedDisk())
    with pytest.raises(UsageError, match="not of this store"):
        store.commit(MemoryBatch([], 0))
    memory = MemoryStore()
    list(memory.replay())
    send(store, 1)
    batch = store.seal()
    assert batch is not None
    with pytest.raises(UsageError, match="not of this store"):
        memory.commit(batch)


def test_check_reads_everything_and_changes_nothing(disk: SimulatedDisk, store: LogStore) -> None:
    for number in range(1, 30):
        remove(store, send(store, number))
        send(store, 100 + number)
        commit(store)
    with pytest.raises(StoreUnavailable, match="in use"):
        check("simulated", file_system=disk)
    store.close()
    operations = {name: disk.contents(name) for name in disk.names()}
    report = check("simulated", file_system=disk)
    assert report.namespace == "ns"
    assert report.batches == report.last_frame == 29
    assert report.records == {"MessageStored": 58, "MessageRemoved": 29}
    assert not report.is_torn
    assert {name: disk.contents(name) for name in disk.names()} == operations
    disk.flip("0000000002.segment", 8 * 600)
    with pytest.raises(StoreCorrupt, match="0000000002"):
        check("simulated", file_system=disk)
    with pytest.raises(StoreUnavailable, match="holds no data"):
        check("simulated", file_system=SimulatedDisk())


def test_check_tells_of_a_torn_write(disk: SimulatedDisk, store: LogStore) -> None:
    send(store, 1)
    disk.fail("write", 0)
    with pytest.raises(Exception, match="short write"):
        commit(store)
    assert check("simulated", file_system=disk.killed()).is_torn


@pytest.mark.promise("B63")
def test_housekeeping_moves_long_messages_a_few_at_a_time(disk: SimulatedDisk) -> None:
    store = ready_log(disk, segment_bytes=4 << 20)
    kept = [send(store, number, 300_000) for number in range(1, 12)]
    commit(store)
    for number in range(12, 60):
        remove(store, send(store, number, 300_000))
        commit(store)

    slices = []
    while found := store.restate(1_000):
        stored = [record for record in found if isinstance(record, MessageStored)]
        slices.append(len(stored))
        for record in stored:
            message = next((m for m in kept if m.location == record.message.location), None)
            if message is not None:
                blob = store.read(message.location, message.size)
                store.append(MessageStored(QUEUE, message, blob, b""))
        commit(store)

    assert max(slices) <= RESTATE_BYTES_MAX // 300_000 + 1
    assert len(slices) > 2
    assert [store.read(m.location, m.size)[0] for m in kept] == [m.sequence_number for m in kept]


@pytest.mark.promise("B62")
def test_a_segment_without_live_messages_is_read_only_where_its_facts_are(disk: SimulatedDisk) -> None:
    store = ready_log(disk, segment_bytes=64 << 10)
    entity = EntityPut(1, 0, "q", "{}")
    store.append(entity)
    commit(store)
    seen: list[Record] = []
    numbers_sent = 0
    for _ in range(40):  # the fact moves on from segment to segment, messages are received at once
        for _ in range(30):
            numbers_sent += 1
            message = send(store, numbers_sent, 1_000)
            commit(store)
            remove(store, message)
        commit(store)
        while old := store.restate(200):
            seen += old
            for record in old:
                if isinstance(record, EntityPut):
                    store.append(record)
        commit(store)

    facts = [record for record in seen if isinstance(record, EntityPut)]
    assert len(facts) >= 3
    # But for the first segment, of which nothing is known after the start, no message was read back.
    assert max(numbers(seen), default=0) <= 70
    assert store.statistics().disk_bytes <= 10 * (64 << 10)
    again = [
        record
        for record in replay(open_log(disk.killed(), segment_bytes=64 << 10))
        if isinstance(record, EntityPut)
    ]
    assert again
    assert {record.path for record in again} == {"q"}
