"""While a node may not speak nothing is delivered, sealed or written; afterwards everything goes on in its order."""

from __future__ import annotations

import asyncio

import pytest

from pairbus.server.committer import PendingOutput
from pairbus.server.loop import Driver
from tests.unit.server.fakes import FakeBroker, FakeStore, any_record
from tests.waiting import until


class Ear:
    """A client; ``closes_after``: the lease ends with so many of its writes."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.heard: list[bytes] = []
        self.closes_after = -1

    def write(self, chunks: list[bytes], closes: bool) -> None:
        self.heard += chunks
        if len(self.heard) == self.closes_after:
            self._node.may_write = False


class PumpingBroker(FakeBroker):
    """Counts the times that it could deliver."""

    def __init__(self, store: FakeStore) -> None:
        super().__init__(store)
        self.pumps = 0

    def pump(self, now: int) -> None:
        self.pumps += 1


class Node:
    def __init__(self) -> None:
        self.may_write = True
        self.asked = 0
        self.store = FakeStore()
        self.broker = PumpingBroker(self.store)
        self.ear = Ear(self)
        self.output: list[bytes] = []
        self.driver = Driver(
            self.broker,
            self.store,
            lambda: 5_000,
            outputs=self._take,
            set_reading=lambda _: None,
            failed=lambda error: pytest.fail(str(error)),
            may_write=self._may_write,
        )
        self.driver.start()

    def _may_write(self) -> bool:
        self.asked += 1
        return self.may_write

    def _take(self) -> list[PendingOutput]:
        taken, self.output = self.output, []
        return [PendingOutput(self.ear, [chunk], closes=False) for chunk in taken]

    def say(self, *words: str) -> None:
        for word in words:
            self.store.stage(word)
            self.output.append(word.encode())
        self.driver.received(1)

    async def rounds(self) -> None:
        """Long enough for a turn."""
        for _ in range(10):
            await asyncio.sleep(0)


@pytest.mark.promise("S4")
async def test_nothing_is_delivered_sealed_or_written_in_silence_and_then_it_goes_on() -> None:
    node = Node()
    node.say("a")
    await until(lambda: node.ear.heard == [b"a"])
    await node.driver.wait_durable(10)
    node.may_write = False
    pumps = node.broker.pumps
    node.broker.deadline = 1
    node.say("b")
    await node.rounds()
    assert node.ear.heard == [b"a"]
    assert node.store.synced == ["a"]
    assert node.store.staged == ["b"]
    assert node.broker.pumps == pumps
    assert node.broker.ticks == []
    assert not await node.driver.wait_durable(0)

    node.may_write = True
    node.driver.wake()
    await until(lambda: node.ear.heard == [b"a", b"b"])
    assert node.store.synced == ["a", "b"]
    assert node.broker.pumps > pumps
    assert node.broker.ticks == [5_000]
    node.driver.stop()


@pytest.mark.promise("S4")
async def test_answers_whose_commit_ends_in_silence_wait_and_keep_their_order() -> None:
    node = Node()
    node.store.gate.clear()
    node.say("a")
    await until(lambda: not node.store.staged)
    node.say("b")
    await node.rounds()
    node.may_write = False
    node.store.gate.set()
    await until(lambda: node.store.synced == ["a"])
    await until(lambda: node.driver.statistics().commits == 1)
    assert node.ear.heard == []
    assert node.store.staged == ["b"]
    assert not await node.driver.wait_durable(0)

    node.may_write = True
    node.driver.wake()
    await until(lambda: node.ear.heard == [b"a", b"b"])
    assert await node.driver.wait_durable(10)
    node.driver.stop()


@pytest.mark.promise("S4")
async def test_a_lease_that_ends_between_two_sockets_stops_before_the_second() -> None:
    node = Node()
    node.ear.closes_after = 2
    node.say("a", "b", "c", "d")
    await until(lambda: len(node.ear.heard) == 2)
    await node.rounds()
    assert node.ear.heard == [b"a", b"b"]
    node.say("e")
    await node.rounds()
    node.may_write = True
    node.driver.wake()
    await until(lambda: node.ear.heard == [b"a", b"b", b"c", b"d", b"e"])
    node.driver.stop()


async def test_old_records_are_not_restated_in_silence() -> None:
    node = Node()
    await node.driver.wait_durable(10)
    node.may_write = False
    node.store.to_restate.append(any_record())
    node.driver._housekeep()
    assert node.broker.namespace.restated == []
    node.may_write = True
    node.driver._housekeep()
    assert len(node.broker.namespace.restated) == 1
    node.driver.stop()


async def test_the_clock_is_read_once_for_each_write_and_turn() -> None:
    node = Node()
    await node.driver.wait_durable(10)
    before = node.asked
    node.say("a", "b", "c")
    await until(lambda: len(node.ear.heard) == 3)
    assert node.asked - before <= 3 + 2  # the writes, the turn and the end of the commit
    node.driver.stop()


async def test_a_store_behind_a_network_is_never_committed_in_the_event_loop() -> None:
    for commits_inline in (False, True):
        node = Node()
        node.driver._commits_inline = commits_inline
        node.driver._inline_policy._quick = node.driver._inline_policy._small = 1_000
        node.say("a")
        await until(lambda: node.ear.heard == [b"a"])  # noqa: B023 - it is awaited here
        assert (node.store.committers == ["pairbus-commit"]) is not commits_inline
        node.driver.stop()
