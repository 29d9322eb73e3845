"""Backlog queues that appear while a drain runs: when they are looked for, and what is said of those that nobody drains."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence

import pytest

from pairbus.drain.in_doubt import DoubtfulSends
from pairbus.drain.lookups.search import ACTIVE_MS, FOLLOWED_MS, IDLE_MS, no_queues
from pairbus.drain.ports import Inbox, Observer
from pairbus.drain.rules.plan import DrainPlan
from pairbus.drain.rules.sharing import SAY_AFTER_MS, SAY_MS
from pairbus.drain.shell import Drain
from pairbus.pairing import parking
from pairbus.pairing.naming import primaries_of
from pairbus.pairing.parking import Follows, Passport
from pairbus.pairing.statistics import Counters
from tests.simulation.pair.model import original
from tests.unit.drain.shell_kit import FakeOutlet, LockingInbox
from tests.unit.drain.virtual_loop import VirtualLoop

FOR_EVER = 10**9
DAY_S = 86_400


class Heard(Observer):
    """Notes what is said."""

    def __init__(self) -> None:
        self.sentences: list[str] = []
        self.new: list[str] = []

    def waits(self, queue: str, sentence: str) -> None:
        self.sentences.append(sentence)

    def found(self, queue: str) -> None:
        self.new.append(queue)

    def unavailable(self, subject: str, sentence: str) -> None:
        self.sentences.append(sentence)


class World:
    """A drain, the queues that exist, and those that a look shows."""

    def __init__(self, loop: VirtualLoop, known: int) -> None:
        self.loop = loop
        self.outlet = FakeOutlet()
        self.counters = Counters()
        self.heard = Heard()
        self.looks: list[int] = []
        self.shown = known
        self.error: Exception | None = None
        self.queues = [LockingInbox(f"p/x-servicebus-transfer/{index}", loop) for index in range(3)]
        for one in self.queues:
            one.others = {other.queue: other for other in self.queues}
        self.drain = Drain(
            self.queues[:known],
            self.outlet,
            plan=DrainPlan(),
            doubts=DoubtfulSends(),
            counters=self.counters,
            clock=loop.now_ms,
            wall_clock=loop.now_ms,
            observer=self.heard,
            find=self._find,
        )

    async def _find(self, known: Collection[str]) -> Sequence[Inbox]:
        self.looks.append(self.loop.now_ms())
        if self.error is not None:
            raise self.error
        return [one for one in self.queues[: self.shown] if one.queue not in known]

    def put(self, index: int, number: int, *, follows: int | None = None, locked_until_ms: int = 0) -> None:
        after = () if follows is None else (Follows(self.queues[follows].queue),)
        passport = Passport("f", 1, number, "r", follows=after, order="session")
        sent = original(number, "s", has_alias_name=False, has_life=False)
        inbox = self.queues[index]
        inbox.stored[number] = (
            inbox.delivery(number, parking.park(sent, "orders", passport)),
            locked_until_ms,
        )
        inbox.interrupt()

    @property
    def sent(self) -> list[int]:
        return [number for _, numbers in self.outlet.sent for number in numbers]

    def run(self, seconds: float, then: Sequence[tuple[float, object]] = ()) -> None:
        async def main() -> None:
            task = asyncio.ensure_future(self.drain.run())
            for at, work in then:
                await asyncio.sleep(at - self.loop.now_ms() / 1000)
                work()  # type: ignore[operator]
            await asyncio.sleep(seconds - self.loop.now_ms() / 1000)
            self.drain.stop()
            await task

        self.loop.run_until_complete(main())


def test_a_quiet_drain_lists_the_queues_each_five_minutes_and_receives_as_often_as_without(
    loop: VirtualLoop,
) -> None:
    world = World(loop, known=3)
    world.run(DAY_S - 1)

    assert len(world.looks) == DAY_S * 1000 // IDLE_MS - 1
    assert world.counters.receives == 3 * 96


@pytest.mark.promise("P41")
def test_a_queue_that_appears_is_drained_when_messages_come_elsewhere(loop: VirtualLoop) -> None:
    world = World(loop, known=1)

    def happen() -> None:
        world.shown = 2
        world.put(1, 1)
        world.put(0, 2)

    world.run(ACTIVE_MS / 1000 + 5, [(2, happen)])

    assert sorted(world.sent) == [1, 2]
    assert world.heard.new == [world.queues[1].queue]


@pytest.mark.promise("P41")
def test_a_queue_that_a_message_waits_for_is_looked_for_soon(loop: VirtualLoop) -> None:
    world = World(loop, known=1)

    def happen() -> None:
        world.shown = 2
        world.put(1, 1)
        world.put(0, 2, follows=1)

    world.run(30, [(10, happen)])

    assert world.looks[0] <= 10_000 + FOLLOWED_MS
    assert world.sent == [1, 2]


@pytest.mark.promise("P41")
def test_a_drain_without_queues_goes_on_until_some_appear(loop: VirtualLoop) -> None:
    world = World(loop, known=0)

    def happen() -> None:
        world.shown = 1
        world.put(0, 1)

    world.run(3_600 + ACTIVE_MS / 1000 + 1, [(3_600, happen)])

    assert world.sent == [1]
    assert len(world.looks) < 70


def test_a_look_that_fails_is_reported_once_and_tried_again(loop: VirtualLoop) -> None:
    world = World(loop, known=1)
    world.error = OSError("no route")

    def heal() -> None:
        world.error, world.shown = None, 2

    world.run(4 * IDLE_MS / 1000, [(2.5 * IDLE_MS / 1000, heal)])

    assert [one for one in world.heard.sentences if "no route" in one] == world.heard.sentences
    assert len(world.heard.sentences) == 1
    assert world.heard.new == [world.queues[1].queue]


def test_the_wait_for_a_queue_that_this_drain_does_not_drain_is_said_at_a_bounded_rate(
    loop: VirtualLoop,
) -> None:
    world = World(loop, known=1)
    world.put(2, 7)
    world.put(0, 8, follows=2)
    world.run((SAY_AFTER_MS + 1.5 * SAY_MS) / 1000 + 10)

    assert len(world.heard.sentences) == 2
    for sentence in world.heard.sentences:
        assert "message 8 has waited" in sentence
        assert (
            f"for message 7 of its session in {world.queues[2].queue}, and this drain does not drain"
            in sentence
        )


def test_of_a_message_that_another_drain_has_it_is_said_what_that_one_follows(loop: VirtualLoop) -> None:
    world = World(loop, known=1)
    world.put(2, 7)
    world.put(0, 8, follows=2, locked_until_ms=FOR_EVER)
    world.put(0, 9)
    world.run(30)

    (sentence,) = world.heard.sentences
    other = world.queues[2].queue
    assert "the first is message 8" in sentence
    assert sentence.endswith(
        f"Message 8 itself follows messages in {other}; this drain does not drain {other}"
    )


def test_a_wrong_name_is_told_from_a_secondary_that_was_never_paired() -> None:
    names = [
        "orders",
        "Contoso/x-servicebus-transfer/0",
        "contoso/x-servicebus-transfer/1",
        "a/x-servicebus-transfer/b",
    ]

    assert primaries_of(names) == ["contoso"]
    assert "but of 'contoso'" in no_queues("contosoo", primaries_of(names))
    assert "when it pairs" in no_queues("contoso", [])
