"""Space that comes back: a quota that was reached, a database that was full, and the owners that come after. No database, no threads."""

from __future__ import annotations

import pytest

from pairbus.engine.records import EntityPut, MessageRemoved
from pairbus.errors import StoreFailed
from pairbus.storage.table.appender import FULL_TRIES_MAX
from pairbus.storage.table.ports import TableFull
from pairbus.storage.table.store import TableStore
from tests.contract.owner_kit import Owner
from tests.unit.storage.test_table_store import QUEUE, FakeTable, numbers, opened, stored


def owner_of(table: FakeTable, epoch: int = 1, **options: int) -> Owner:
    return Owner(*opened(table, epoch, **options))  # type: ignore[arg-type]


QUOTA = {"bytes_max": 60_000, "reserve_bytes": 20_000}


@pytest.mark.promise("B12")
@pytest.mark.parametrize("size", [100, 2_000, 8_000, 30_000])
def test_a_quota_that_was_reached_within_one_range_lets_sends_in_again(size: int) -> None:
    table = FakeTable(range_frames=64)
    owner = owner_of(table, **QUOTA)
    owner.store.append(EntityPut(1, 0, "orders", "{}"))
    sent = owner.send_until_refused(size)
    assert 0 < sent < 1000
    owner.settle(sent)
    owner.rounds_until_room(size)
    assert owner.send_until_refused(size) >= sent // 2


@pytest.mark.promise("B12")
def test_a_quota_comes_back_when_most_of_the_messages_were_taken() -> None:
    table = FakeTable(range_frames=64)
    owner = owner_of(table, **QUOTA)
    sent = owner.send_until_refused(1_000)
    owner.settle(sent * 4 // 5)
    owner.rounds_until_room(5_000)
    assert numbers(opened(table, 2)[1])[-len(owner.messages) :] == sorted(owner.messages)


@pytest.mark.promise("B12")
def test_a_quota_that_an_earlier_owner_reached_lets_sends_in_again() -> None:
    table = FakeTable(range_frames=64)
    owner = owner_of(table, **QUOTA)
    owner.settle(owner.send_until_refused(8_000))
    later = owner_of(table, 2, **QUOTA)
    assert not later.store.has_room(8_000)
    later.rounds_until_room(8_000)


@pytest.mark.promise("B12", "S1")
def test_a_range_ends_when_it_holds_much() -> None:
    table = FakeTable(range_frames=64)
    owner = owner_of(table, range_bytes_max=10_000)
    for _ in range(30):
        owner.send_until_refused(1_000, 1)
    assert sorted(table.rows) == list(range(1, max(table.rows) + 1))
    assert max(table.rows) >= 128
    filled = [call for call in table.calls if call.startswith("fill")]
    assert filled[0].endswith(" 64")
    assert filled[1].endswith(" 128")
    assert numbers(opened(table, 2)[1]) == list(range(1, 31))
    owner = owner_of(table, 3)
    owner.settle(12)
    assert min(table.rows) == 64, "the first range went though the last one is in use"


@pytest.mark.promise("S5", "S7")
@pytest.mark.parametrize("outcome", ["lost", "unanswered"])
def test_the_filling_of_a_range_is_repeated_until_it_is_certain(outcome: str) -> None:
    table = FakeTable(range_frames=64)
    owner = owner_of(table, range_bytes_max=10)
    table.script = ["", outcome]
    owner.send_until_refused(100, 1)
    assert sorted(table.rows) == list(range(1, 64))
    assert ("barrier" in table.calls) == (outcome == "unanswered")
    owner.send_until_refused(100, 1)
    assert numbers(opened(table, 2)[1]) == [1, 2]


FULL = {"reserve_bytes": 16_000}


def full_table() -> tuple[FakeTable, Owner]:
    table = FakeTable(range_frames=64, capacity=60_000)
    owner = owner_of(table, **FULL)
    assert owner.send_until_refused(1_000) > 20
    return table, owner


@pytest.mark.promise("B12")
@pytest.mark.parametrize("is_taken_over", [False, True])
def test_a_full_database_lets_sends_in_again_once_messages_were_taken(is_taken_over: bool) -> None:
    table, owner = full_table()
    owner.settle(len(owner.messages) * 9 // 10)
    if is_taken_over:
        owner = owner_of(table, 2, **FULL)
    owner.rounds_until_room(1_000)
    assert table.reserve == FULL["reserve_bytes"]
    assert owner.send_until_refused(1_000) > 10


@pytest.mark.promise("B12")
def test_an_owner_of_a_full_database_refuses_sends_from_the_start_and_settles() -> None:
    """Also where the former one has used the reserve, and what lives does not fit into what is left."""
    table, owner = full_table()
    half = len(owner.messages) // 2
    owner.settle(half // 2)
    for epoch in range(2, 8):
        owner = owner_of(table, epoch, **FULL)
        assert not owner.store.has_room(1), "it has no reserve"
        owner.keep_house(30)  # which must not use up what settlements need
        owner.settle(half // 6)
    assert table.used() <= table.capacity


@pytest.mark.promise("B12")
def test_an_owner_makes_its_reserve_before_it_takes_sends() -> None:
    table = FakeTable(range_frames=64, capacity=60_000)
    owner = owner_of(table, **FULL)
    assert table.reserve == FULL["reserve_bytes"]
    assert owner.store.has_room(1_000)


@pytest.mark.promise("B12")
def test_space_that_others_freed_is_found_though_nothing_is_committed() -> None:
    table, owner = full_table()
    table.capacity = 1 << 30
    owner.rounds_until_room(1_000)


@pytest.mark.promise("B12", "S8")
def test_a_frame_that_never_fits_fails_instead_of_being_tried_for_ever(
    caplog: pytest.LogCaptureFixture,
) -> None:
    table = FakeTable(capacity=500)
    store, _ = opened(table)
    store.append(stored(1, b"x" * 1_000))
    batch = store.seal()
    assert batch is not None
    with pytest.raises(StoreFailed, match="no space"):
        store.commit(batch)
    assert table.calls.count("insert") < 20
    assert "a commit waits for space" in caplog.text
    assert max(table.rows) == 1


class Clinging(FakeTable):
    """It has no space even to give up the reserve, so many times."""

    refusals = 0

    def hold_reserve(self, size: int) -> int:
        if size == 0 and self.reserve and self.refusals:
            self.refusals -= 1
            raise TableFull("full")
        return super().hold_reserve(size)


@pytest.mark.promise("B12")
def test_a_reserve_that_cannot_be_given_up_at_once_is_not_lost() -> None:
    table = Clinging(range_frames=64, capacity=60_000)
    stores: list[TableStore] = []
    spare: list[int] = []

    def may_retry() -> bool:
        spare.extend(one._appender.spare_bytes for one in stores)
        return True

    store, records = opened(table, may_retry=may_retry, **FULL)
    stores.append(store)
    owner = Owner(store, records)
    table.refusals = 3 * FULL_TRIES_MAX
    assert owner.send_until_refused(1_000) > 20
    assert not table.reserve
    assert spare == [0] * 3 * FULL_TRIES_MAX, "what is still held is no space for anybody"
    owner.settle(len(owner.messages))
    owner.rounds_until_room(1_000)


@pytest.mark.promise("B12", "S8")
def test_a_reserve_that_can_never_be_given_up_fails_instead_of_being_tried_for_ever() -> None:
    table = Clinging(range_frames=64, capacity=60_000)
    table.refusals = 1_000
    with pytest.raises(StoreFailed, match="cannot give up the reserve for settlements"):
        owner_of(table, **FULL).send_until_refused(1_000)
    assert table.refusals > 900


@pytest.mark.promise("B12")
def test_what_is_moved_stops_when_the_database_becomes_full() -> None:
    """The rest of the reserve is for settlements."""
    table = FakeTable(range_frames=4)
    owner = owner_of(table, **FULL)
    owner.send_until_refused(1_000, 60)
    for number in [one for one in owner.messages if one % 20 >= 8]:
        message = owner.messages.pop(number)
        owner.store.append(MessageRemoved(QUEUE, number, message.location, message.size))
    owner.commit()
    table.capacity = table.used() + 1_500
    owner.keep_house(50)
    owner.settle(len(owner.messages))
    assert not owner_of(table, 2).messages


def test_ranges_that_somebody_reads_are_dropped_later() -> None:
    class Read(FakeTable):
        is_read = True

        def drop_below(self, sequence: int) -> bool:
            return not self.is_read and super().drop_below(sequence)

    table = Read(capacity=60_000)
    owner = owner_of(table, **FULL)
    owner.settle(owner.send_until_refused(1_000))
    owner.keep_house(50)
    assert not owner.store.has_room(1_000)
    table.is_read = False
    owner.rounds_until_room(1_000)


def test_units_lie_within_ranges() -> None:
    table = FakeTable(range_frames=2)
    store: TableStore = opened(table)[0]
    assert store._unit_bits == 1
