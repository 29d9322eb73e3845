"""What every store promises, whichever it is."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from pairbus.engine.records import (
    AuditMarked,
    DeliveryFailed,
    DuplicateSeen,
    EntityPut,
    EntityUsed,
    MessageMoved,
    MessageRemoved,
    MessageStored,
    NamespacePut,
    Record,
    SequenceAdvanced,
    SessionStateSet,
)
from pairbus.errors import UsageError
from pairbus.model.message import DEFERRED, Extra, Message
from pairbus.storage.codec import encode
from pairbus.storage.ports import Batch, Store
from tests.contract.store_kinds import LogKind, MemoryKind, SimulatedKind, StoreKind, TableKind
from tests.contract.table_kinds import TABLE_KINDS

QUEUE = 4


@pytest.fixture(params=["memory", "log", "simulated", *(f"{name}-table" for name in sorted(TABLE_KINDS))])
def kind(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StoreKind]:
    makers: dict[str, Callable[[], StoreKind]] = {
        "memory": MemoryKind,
        "log": lambda: LogKind(tmp_path),
        "simulated": SimulatedKind,
        **{f"{name}-table": partial(_over, name) for name in TABLE_KINDS},
    }
    made = makers[request.param]()
    yield made
    made.tear_down()


def _over(name: str) -> StoreKind:
    # Simulated tables know no threads.
    return TableKind(TABLE_KINDS[name](), is_background=name == "postgres")


def ready(kind: StoreKind) -> Store:
    """A store that has been replayed."""
    store = kind.open()
    for _ in store.replay():
        pass
    return store


def replayed(kind: StoreKind) -> tuple[Store, list[Record]]:
    store = kind.open()
    return store, list(store.replay())


def stored(number: int, blob: bytes, queue_id: int = QUEUE) -> MessageStored:
    return MessageStored(queue_id, Message(number, 1000 + number, 0, len(blob), None), blob, b"")


def commit(store: Store) -> None:
    batch = store.seal()
    if batch is not None:
        store.commit(batch)


def facts(store: Store, records: list[Record]) -> list[bytes]:
    """Records as their bytes, so that they can be compared."""
    whole: list[bytes] = []
    for record in records:
        if isinstance(record, MessageStored) and record.blob is None:
            blob = store.read(record.message.location, record.message.size)
            whole.append(encode(MessageStored(record.queue_id, record.message, blob, record.duplicate_key)))
        else:
            whole.append(encode(record))
    return whole


def test_a_new_store_is_empty(kind: StoreKind) -> None:
    _, records = replayed(kind)
    assert records == []


@pytest.mark.promise("B1")
def test_committed_records_come_back_in_order_and_byte_for_byte(kind: StoreKind) -> None:
    store = ready(kind)
    special = Message(9, 1009, 99, 3, "s")
    special.state = DEFERRED
    special.delivery_count = 3
    special.extra = Extra()
    special.extra.dead_letter_reason = "because"
    written: list[Record] = [
        NamespacePut(2, "{}"),
        EntityPut(1, 0, "q", "{}"),
        stored(1, b"one"),
        stored(2, b""),
        MessageStored(QUEUE, special, b"abc", b"key"),
        DeliveryFailed(QUEUE, 1, 1, b"\xc1\x01\x00"),
        MessageMoved(QUEUE, 1, QUEUE + 1, Extra()),
        MessageRemoved(QUEUE, 2, 0, 0),
        MessageRemoved(QUEUE, 3, 0, 0),
        SessionStateSet(QUEUE, "s", b"state", 5),
        DuplicateSeen(QUEUE, b"old", 7),
        SequenceAdvanced(8, 3, 9),
        AuditMarked(4),
        EntityUsed(1, 11),
    ]
    expected = [encode(record) for record in written]
    for record in written:
        store.append(record)
        if isinstance(record, EntityPut):
            commit(store)
    commit(store)
    kind.kill(store)
    store, records = replayed(kind)
    assert facts(store, records) == expected


@pytest.mark.promise("B13")
def test_what_was_not_committed_is_gone(kind: StoreKind) -> None:
    store = ready(kind)
    store.append(stored(1, b"kept"))
    commit(store)
    store.append(stored(2, b"staged"))
    store.append(stored(3, b"sealed"))
    assert store.seal() is not None
    store.append(stored(4, b"staged too"))
    kind.kill(store)
    store, records = replayed(kind)
    assert facts(store, records) == [encode(stored(1, b"kept"))]


def test_seal_gives_nothing_when_nothing_is_staged(kind: StoreKind) -> None:
    store = ready(kind)
    assert store.seal() is None
    store.append(stored(1, b"x"))
    assert store.seal() is not None
    assert store.seal() is None


def test_several_batches_may_be_sealed_before_they_are_committed(kind: StoreKind) -> None:
    store = ready(kind)
    batches: list[Batch] = []
    for number in range(1, 6):
        store.append(stored(number, b"x" * 700))
        batch = store.seal()
        assert batch is not None
        batches.append(batch)
    for batch in batches[:3]:
        store.commit(batch)
    kind.kill(store)
    _, records = replayed(kind)
    assert [record.message.sequence_number for record in records if isinstance(record, MessageStored)] == [
        1,
        2,
        3,
    ]


def test_blobs_can_be_read_staged_sealed_committed_and_after_a_restart(kind: StoreKind) -> None:
    store = ready(kind)
    chance = random.Random(5)
    messages: list[tuple[Message, bytes]] = []
    for number in range(1, 60):
        blob = chance.randbytes(chance.choice((0, 1, 100, 3000, 9000)))
        record = stored(number, blob)
        store.append(record)
        messages.append((record.message, blob))
        assert store.read(record.message.location, len(blob)) == blob
        if number % 7 == 0:
            batch = store.seal()
            assert batch is not None
            assert all(store.read(message.location, message.size) == blob for message, blob in messages)
            store.commit(batch)
    commit(store)
    assert all(store.read(message.location, message.size) == blob for message, blob in messages)
    kind.kill(store)
    store, records = replayed(kind)
    found = [record.message for record in records if isinstance(record, MessageStored)]
    assert [store.read(message.location, message.size) for message in found] == [blob for _, blob in messages]


def test_locations_are_never_zero_and_never_the_same(kind: StoreKind) -> None:
    store = ready(kind)
    locations = []
    for number in range(1, 30):
        record = stored(number, b"x" * 400)
        store.append(record)
        locations.append(record.message.location)
        commit(store)
    assert 0 not in locations
    assert len(set(locations)) == len(locations)


@pytest.mark.promise("B13")
def test_a_batch_larger_than_anything_is_still_one_batch(kind: StoreKind) -> None:
    store = ready(kind)
    blobs = [bytes([number]) * 50_000 for number in range(1, 8)]
    for number, blob in enumerate(blobs, 1):
        store.append(stored(number, blob))
    commit(store)
    kind.kill(store)
    store, records = replayed(kind)
    assert facts(store, records) == [encode(stored(number, blob)) for number, blob in enumerate(blobs, 1)]


@pytest.mark.promise("B1", "B19")
def test_restating_keeps_what_the_owner_says_is_true(kind: StoreKind) -> None:
    """A long life: most messages go, some stay. The owner restates on request; nothing is lost, no number forgotten."""
    store = ready(kind)
    chance = random.Random(7)
    alive: dict[int, tuple[Message, bytes]] = {}
    for number in range(1, 1500):
        blob = chance.randbytes(200)
        record = stored(number, blob)
        store.append(record)
        alive[number] = (record.message, blob)
        if number % 100:
            message, _ = alive.pop(number)
            store.append(MessageRemoved(QUEUE, number, message.location, message.size))
        if number % 5 == 0:
            commit(store)
            while records := store.restate(10):
                for old in records:
                    if isinstance(old, MessageStored) and old.message.sequence_number in alive:
                        message, blob = alive[old.message.sequence_number]
                        assert store.read(message.location, message.size) == blob
                        store.append(MessageStored(QUEUE, message, blob, b""))
                commit(store)
    commit(store)
    kind.kill(store)
    store, records = replayed(kind)
    found: dict[int, bytes] = {}
    highest = 0
    for told in records:
        if isinstance(told, MessageStored):
            number = told.message.sequence_number
            found[number] = store.read(told.message.location, told.message.size)
            highest = max(highest, number)
        elif isinstance(told, MessageRemoved):
            found.pop(told.sequence_number, None)
        elif isinstance(told, SequenceAdvanced):
            highest = max(highest, told.next_sequence_number - 1)
    assert found == {number: blob for number, (_, blob) in alive.items()}
    assert highest == 1499


@pytest.mark.promise("B9")
def test_opening_twice_gives_the_same(kind: StoreKind) -> None:
    store = ready(kind)
    for number in range(1, 40):
        store.append(stored(number, b"x" * 300))
        commit(store)
    kind.kill(store)
    store, first = replayed(kind)
    once = facts(store, first)
    kind.kill(store)
    store, second = replayed(kind)
    assert facts(store, second) == once


def test_life_goes_on_after_a_restart(kind: StoreKind) -> None:
    expected: list[bytes] = []
    for life in range(5):
        store, records = replayed(kind)
        assert facts(store, records) == expected
        store.live(
            (QUEUE, r.message.location, r.message.size) for r in records if isinstance(r, MessageStored)
        )
        record = stored(life + 1, bytes([life]) * 1500)
        expected.append(encode(record))
        store.append(record)
        commit(store)
        kind.kill(store)


def test_statistics_tell_what_lives(kind: StoreKind) -> None:
    store = ready(kind)
    record = stored(1, b"x" * 1000)
    store.append(record)
    commit(store)
    assert store.statistics().commits == 1
    assert store.statistics().live_bytes >= 1000
    store.append(MessageRemoved(QUEUE, 1, record.message.location, 1000))
    commit(store)
    assert store.statistics().live_bytes == 0
    assert store.statistics().commits == 2


def test_removals_of_a_queue_can_be_appended_together(kind: StoreKind) -> None:
    store = ready(kind)
    sent = [stored(number, b"x" * 100) for number in range(1, 101)]
    for record in sent:
        store.append(record)
    store.append(stored(7, b"y" * 100, QUEUE + 4))
    commit(store)
    one = store.statistics().live_bytes // 101

    store.append_removals(QUEUE, [record.message for record in sent[:-1]])
    store.append_removals(QUEUE, [sent[-1].message])
    commit(store)

    assert store.statistics().live_bytes == one
    store.close()
    _, records = replayed(kind)
    removed = [record for record in records if isinstance(record, MessageRemoved)]
    assert [(record.queue_id, record.sequence_number) for record in removed] == [
        (QUEUE, number) for number in range(1, 101)
    ]


def test_a_store_must_be_replayed_once_and_first(kind: StoreKind) -> None:
    store = kind.open()
    for record in (stored(1, b"x"), MessageRemoved(QUEUE, 1, 0, 0), NamespacePut(1, "{}")):
        with pytest.raises(UsageError, match="replayed"):
            store.append(record)
    list(store.replay())
    with pytest.raises(UsageError, match="once"):
        list(store.replay())


def test_a_message_without_bytes_is_refused(kind: StoreKind) -> None:
    store = ready(kind)
    with pytest.raises(UsageError, match="without its blob"):
        store.append(MessageStored(QUEUE, Message(1, 1, 0, 5, None), None, b""))


def test_close_is_idempotent(kind: StoreKind) -> None:
    store = ready(kind)
    store.close()
    store.close()


@pytest.mark.promise("B62")
def test_a_store_tells_how_much_waits_for_its_batch(kind: StoreKind) -> None:
    store = ready(kind)
    assert store.staged_bytes() == 0
    for number in range(1, 40):
        store.append(stored(number, bytes(1_000)))
    assert 39_000 < store.staged_bytes() < 50_000

    batch = store.seal()
    assert batch is not None
    assert store.staged_bytes() == 0
    store.commit(batch)


def test_there_is_room_in_an_ordinary_store(kind: StoreKind) -> None:
    store = ready(kind)
    assert store.has_room(1024)
    assert store.has_room(300_000)
