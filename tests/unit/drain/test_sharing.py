"""Drains that share a backlog queue: when one steps back, what its looks find, and what it says meanwhile."""

from __future__ import annotations

import asyncio

import pytest

from pairbus.drain.ports import Observer
from pairbus.drain.rules.order import TooManyElsewhere
from pairbus.drain.rules.problems import Problems
from pairbus.drain.rules.sharing import (
    FULL_MS,
    PAUSE_MS_MAX,
    PAUSE_MS_MIN,
    SAY_AFTER_MS,
    SAY_MS,
    STUCK_MS,
    SharedQueues,
)
from pairbus.pairing import parking
from pairbus.pairing.parking import Passport
from pairbus.sdk.failures import classify
from tests.simulation.pair.model import original
from tests.unit.drain.shell_kit import Kit, LockingInbox, run
from tests.unit.drain.virtual_loop import VirtualLoop

FOR_EVER = 10**9


def put(inbox: LockingInbox, number: int, session: str, *, locked_until_ms: int = 0) -> None:
    """A message in order; ``locked_until_ms``: another drain has it."""
    passport = Passport("f", 1, number, "r", order="session")
    payload = parking.park(
        original(number, session, has_alias_name=False, has_life=False), "orders", passport
    )
    inbox.stored[number] = (inbox.delivery(number, payload), locked_until_ms)


def sent(kit: Kit) -> list[int]:
    return [number for _, numbers in kit.outlet.sent for number in numbers]


def inbox_of(kit: Kit) -> LockingInbox:
    inbox = kit.inboxes[0]
    assert isinstance(inbox, LockingInbox)
    return inbox


# --- when to step back ----------------------------------------------------------------------------------


def test_the_pause_grows_while_others_move_and_begins_again_after_a_delivery() -> None:
    shared = SharedQueues()
    now, pauses = 0, []
    for oldest in range(1, 10):
        assert shared.steps_back("q", oldest, now)
        pauses.append(shared.pause_ends_ms("q") - now)
        now = shared.pause_ends_ms("q")

    assert pauses[:3] == [PAUSE_MS_MIN, 2 * PAUSE_MS_MIN, 4 * PAUSE_MS_MIN]
    assert pauses[-1] == PAUSE_MS_MAX
    assert shared.most("q", 100) == 1
    shared.received("q")
    assert shared.most("q", 100) == 100
    shared.delivered("q")
    shared.steps_back("q", 20, now)
    assert shared.pause_ends_ms("q") - now == PAUSE_MS_MIN


def test_nobody_steps_back_for_a_drain_that_does_not_move() -> None:
    shared = SharedQueues()

    assert shared.steps_back("q", 7, 0)
    assert shared.steps_back("q", 6, STUCK_MS - 1)
    assert not shared.steps_back("q", 7, STUCK_MS)
    assert shared.is_stuck("q")
    assert shared.steps_back("q", 8, STUCK_MS + 1)
    assert not shared.is_stuck("q")


def test_a_drain_whose_whole_window_waits_steps_back_all_the_same() -> None:
    shared = SharedQueues()
    shared.steps_back("q", 7, 0)

    assert not shared.steps_back("q", 7, STUCK_MS)
    assert shared.steps_back("q", 7, STUCK_MS + 1, is_full=True)
    assert shared.steps_back("q", 7, STUCK_MS + FULL_MS)
    assert not shared.steps_back("q", 7, STUCK_MS + FULL_MS + 1)


def test_what_a_queue_waits_for_is_said_at_a_bounded_rate() -> None:
    shared = SharedQueues()
    said = []
    for now in range(0, 3 * SAY_MS, 1_000):
        shared.steps_back("q", 7, now)
        if (sentence := shared.sentence("q", now)) is not None:
            said.append((now, sentence))

    assert [now for now, _ in said] == [SAY_AFTER_MS, SAY_AFTER_MS + SAY_MS, SAY_AFTER_MS + 2 * SAY_MS]
    assert all("q: " in sentence and "message 7" in sentence for _, sentence in said)


# --- the shell ------------------------------------------------------------------------------------------


@pytest.mark.promise("P14", "P41")
def test_a_drain_that_waits_for_another_one_gives_back_what_it_holds(loop: VirtualLoop) -> None:
    async def work(kit: Kit) -> None:
        inbox = inbox_of(kit)
        for number in range(1, 201):
            put(inbox, number, f"s{number % 4}", locked_until_ms=FOR_EVER if number <= 100 else 0)
        task = asyncio.ensure_future(kit.syphon.run())
        await asyncio.sleep(0.05)
        assert all(locked == 0 for number, (_, locked) in inbox.stored.items() if number > 100)
        for number in range(1, 101):
            del inbox.stored[number]  # the other drain delivers them, and ends
        await asyncio.sleep(1)
        assert sent(kit) == list(range(101, 201))
        kit.syphon.stop()
        await task

    run(loop, 1, work, locking=True)


@pytest.mark.promise("P41")
def test_sessions_that_wait_for_nothing_are_delivered_behind_those_of_a_dead_drain(loop: VirtualLoop) -> None:
    async def work(kit: Kit) -> None:
        inbox = inbox_of(kit)
        put(inbox, 1, "dead", locked_until_ms=FOR_EVER)
        for number in range(2, 301):
            put(inbox, number, "dead" if number <= 250 else "alive")
        task = asyncio.ensure_future(kit.syphon.run())
        await asyncio.sleep(2 * STUCK_MS / 1000)
        assert sent(kit) == list(range(251, 301))
        kit.syphon.stop()
        await task

    run(loop, 1, work, locking=True)


def test_one_look_passes_everything_that_another_drain_has_delivered(loop: VirtualLoop) -> None:
    async def work(kit: Kit) -> None:
        inbox = inbox_of(kit)
        put(inbox, 1, "dead", locked_until_ms=FOR_EVER)
        for number in range(2, 201):
            put(inbox, number, f"s{number % 4}", locked_until_ms=FOR_EVER if number <= 100 else 0)
        put(inbox, 201, "dead")
        task = asyncio.ensure_future(kit.syphon.run())
        await asyncio.sleep(30)  # nothing moves: all are held by now, and looks are rare
        assert sent(kit) == []
        for number in range(2, 101):
            del inbox.stored[number]
        looks = kit.counters.order_looks
        await asyncio.sleep(6)
        assert sent(kit) == list(range(101, 201))
        assert kit.counters.order_looks <= looks + 4
        kit.syphon.stop()
        await task

    run(loop, 1, work, locking=True)


def test_many_small_gaps_between_own_messages_cost_few_pages(loop: VirtualLoop) -> None:
    async def work(kit: Kit) -> None:
        inbox = inbox_of(kit)
        for number in range(1, 401):
            put(inbox, number, f"s{number}", locked_until_ms=FOR_EVER if number % 2 else 0)
        await kit.run_for(5)

    kit = run(loop, 1, work, locking=True)

    assert sent(kit) == list(range(2, 401, 2))
    assert kit.counters.order_looks <= 8
    assert kit.events == []


def test_too_many_messages_elsewhere_is_a_plain_sentence() -> None:
    said: list[str] = []

    class Says(Observer):
        def unavailable(self, subject: str, sentence: str) -> None:
            said.append(sentence)

    error = TooManyElsewhere("q")
    problems = Problems(Says())
    problems.failed("secondary", "q", classify(error), str(error), is_plain=True)

    assert said[0].startswith("q: more messages are locked by other drains")
    assert "internal" not in said[0]
    assert "internal" not in problems.of("secondary")[0].reason
