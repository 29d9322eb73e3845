"""The simulated database of a cluster is as bad as it says, and no worse."""

from __future__ import annotations

import random

import pytest

from pairbus.engine.records import MessageStored
from pairbus.errors import StoreFenced
from pairbus.model.message import Message
from pairbus.storage.table.ports import (
    Acquired,
    FrameMark,
    LogShortened,
    OutcomeUnknown,
    SequenceTaken,
    TableFull,
)
from pairbus.storage.table.store import TableStore
from tests.simulation.cluster.database import ROW_BYTES, Database, Faults
from tests.simulation.cluster.table import SimulatedTable
from tests.simulation.virtual_time import Machine, VirtualTime

MINE = FrameMark(1, 77)
LEASE_MS = 1_000


class Bench:
    """One database, and machines that use it."""

    def __init__(self, **faults: float) -> None:
        self.time = VirtualTime()
        self.database = Database(self.time, random.Random(1), Faults(**faults))  # type: ignore[arg-type]
        self.outcomes: list[str] = []

    def table(self) -> SimulatedTable:
        return SimulatedTable(self.database, Machine(self.time))

    def insert(self, sequence: int, mark: FrameMark = MINE) -> None:
        """Insert a frame on a thread of its own, and note what came of it."""
        machine = Machine(self.time)
        writer = SimulatedTable(self.database, machine).writer()

        def run() -> None:
            try:
                writer.insert(sequence, mark, b"head", [b"body"])
            except (SequenceTaken, OutcomeUnknown) as error:
                self.outcomes.append(type(error).__name__)
            else:
                self.outcomes.append("ok")

        machine.start(run, "insert")
        self.time.run_until(self.time.now + 10)


def test_a_commit_waits_for_the_standby_and_is_not_visible_meanwhile() -> None:
    bench = Bench()
    bench.database.lose_standby()
    bench.insert(1)
    reader = bench.table().writer()

    assert (bench.outcomes, reader.mark_of(1)) == ([], None)

    bench.database.regain_standby()
    bench.time.run_until(100)
    assert (bench.outcomes, reader.mark_of(1)) == (["ok"], MINE)


def test_who_needs_the_same_number_waits_for_the_one_before() -> None:
    bench = Bench()
    bench.database.lose_standby()
    bench.insert(1)
    bench.insert(1, FrameMark(2, 5))
    assert bench.outcomes == []

    bench.database.regain_standby()
    bench.time.run_until(100)
    assert bench.outcomes == ["ok", "SequenceTaken"]


def test_a_restart_reveals_what_the_standby_does_not_have_and_a_failover_loses_it() -> None:
    bench = Bench()
    bench.database.lose_standby()
    bench.insert(1)
    bench.database.restart(0)
    bench.time.run_until(100)
    writer = bench.table().writer()

    assert (bench.outcomes, writer.mark_of(1)) == (["OutcomeUnknown"], MINE)

    bench.database.fail_over()
    bench.time.run_until(200)
    assert bench.table().writer().mark_of(1) is None


def test_what_is_visible_before_a_barrier_survives_a_failover_after_it() -> None:
    bench = Bench(replication_ms=50)
    bench.insert(1)
    bench.database.terminate()
    writer = bench.table().writer()
    assert writer.mark_of(1) == MINE
    writer.barrier()

    bench.database.fail_over()
    bench.time.run_until(1_000)
    assert bench.table().writer().mark_of(1) == MINE


def test_a_primary_that_was_replaced_answers_reads_and_no_write() -> None:
    bench = Bench()
    writer = bench.table().writer()
    writer.insert(1, MINE, b"", [])
    bench.database.fail_over(is_cut_off=True, lingers_ms=500)
    machine = writer.client.machine
    outcomes = []

    def run() -> None:
        outcomes.append(writer.mark_of(1))
        with pytest.raises(OutcomeUnknown):
            writer.insert(2, MINE, b"", [])
        outcomes.append(None)

    machine.start(run, "former")
    bench.time.run_until(499)
    assert outcomes == [MINE]
    bench.time.run_until(600)
    assert outcomes == [MINE, None]
    assert bench.table().writer().mark_of(2) is None


@pytest.mark.parametrize(("kind", "is_there"), [("lost_before", False), ("lost_after", True)])
def test_a_lost_connection_says_nothing(kind: str, is_there: bool) -> None:
    bench = Bench(**{kind: 1.0})
    with pytest.raises(OutcomeUnknown):
        bench.table().writer().insert(1, MINE, b"", [])
    bench.database.calm()

    assert (bench.table().writer().mark_of(1) is not None) is is_there


def test_a_statement_may_take_effect_after_its_error() -> None:
    bench = Bench(late=1.0, late_ms=500)
    with pytest.raises(OutcomeUnknown):
        bench.table().writer().insert(1, MINE, b"", [])
    bench.database.calm()
    writer = bench.table().writer()
    assert writer.mark_of(1) is None

    bench.time.run_until(1_000)
    assert writer.mark_of(1) == MINE


def test_the_fence_comes_after_every_frame_and_waits_for_one_under_way() -> None:
    bench = Bench()
    lease = bench.table().lease()
    first = lease.acquire("a", "a:1", LEASE_MS)
    assert first is not None
    assert (first.epoch, first.fence) == (1, 1)
    assert lease.acquire("b", "b:1", LEASE_MS) is None

    bench.time.run_until(LEASE_MS + 1)
    bench.database.lose_standby()
    bench.insert(2)
    bench.time.after(100, bench.database.regain_standby)
    with pytest.raises(SequenceTaken):
        lease.acquire("b", "b:1", LEASE_MS)
    second = lease.acquire("b", "b:1", LEASE_MS)

    assert second is not None
    assert (second.epoch, second.fence) == (2, 3)
    assert not lease.renew(1, "a:1", LEASE_MS)
    assert lease.renew(2, "b:1", LEASE_MS)


def test_space_is_given_back_by_whole_ranges_and_its_numbers_stay_taken() -> None:
    bench = Bench(range_frames=4, capacity_bytes=100 + 9 * ROW_BYTES)
    writer, reader = bench.table().writer(), bench.table().reader()
    for sequence in range(1, 10):
        writer.insert(sequence, MINE, b"0123456789", [])
    with pytest.raises(TableFull):
        writer.insert(10, MINE, b"0123456789", [b"x"])

    writer.drop_below(7)
    assert reader.oldest() == 4
    assert [head.sequence for head in reader.heads(4, 9)] == [4, 5, 6, 7, 8]
    with pytest.raises(SequenceTaken):
        writer.insert(2, MINE, b"", [])
    writer.insert(10, MINE, b"0123456789", [b"x"])
    assert reader.bodies([10, 99]) == {10: b"x"}


@pytest.mark.promise("S1", "S3")
@pytest.mark.parametrize("lacks", [1, 2, 5, 9])
@pytest.mark.parametrize("found_by", ["send", "renewal", "takeover"])
def test_a_standby_without_the_last_commits_ends_the_owner_and_the_next_one_serves_what_is_there(
    lacks: int, found_by: str
) -> None:
    """Whether the owner sends again, only renews its lease, or comes after the next one: nothing is written behind the hole."""
    bench = Bench(range_frames=4)
    table = bench.table()
    lease = table.lease()
    held = lease.acquire("a", "a:1", LEASE_MS)
    assert held is not None
    store = opened(table, held)
    for number in range(1, 13):
        send(store, number)

    bench.database.fail_over(lacks=lacks)
    if found_by == "send":
        with pytest.raises(StoreFenced, match=f"lacks the last {lacks} frame"):
            send(store, 13)
    elif found_by == "renewal":
        with pytest.raises(OutcomeUnknown):
            lease.renew(held.epoch, "a:1", LEASE_MS, store.last.sequence)  # the connection was lost
        with pytest.raises(LogShortened):
            lease.renew(held.epoch, "a:1", LEASE_MS, store.last.sequence)

    again = bench.table()
    again.lease().release(held.epoch)
    taken = again.lease().acquire("b", "b:1", LEASE_MS)
    assert taken is not None
    found: list[int] = []
    opened(again, taken, found)
    assert found == list(range(1, 13 - lacks))
    if found_by == "takeover":
        with pytest.raises(StoreFenced):
            send(store, 13)
        with pytest.raises(OutcomeUnknown):
            lease.last_kept(store.last)  # the connection was lost
        assert lease.last_kept(store.last) == store.last.sequence - lacks


def opened(table: SimulatedTable, held: Acquired, found: list[int] | None = None) -> TableStore:
    """The store of an owner. ``found`` gets the numbers of its messages."""
    store = TableStore(
        table.writer(), table.reader(), epoch=held.epoch, fence=held.fence, pause=lambda _: None, reserve_bytes=0, is_background=False
    )  # fmt: skip
    for record in store.replay():
        if found is not None and isinstance(record, MessageStored):
            found.append(record.message.sequence_number)
    return store


def send(store: TableStore, number: int) -> None:
    store.append(MessageStored(4, Message(number, 1000, 0, 3, None), b"abc", b""))
    batch = store.seal()
    assert batch is not None
    store.commit(batch)
