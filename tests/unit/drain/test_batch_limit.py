"""What refused messages cost: sends until the messages at fault are known, and what waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence

import pytest
from azure.servicebus import exceptions as sdk
from hypothesis import given
from hypothesis import strategies as st

from pairbus.drain.rules.message import BacklogMessage
from pairbus.drain.rules.plan import SLOW_MS, DrainPlan
from pairbus.sdk.failures import Failure
from tests.unit.drain.shell_kit import Kit, run
from tests.unit.drain.virtual_loop import VirtualLoop

LOG2_100 = 7


def sends_of(count: int, bad: Collection[int]) -> int:
    """Send ``count`` messages of which some are refused. Returns how many sends that took."""
    plan = DrainPlan()
    for number in range(count):
        plan.add(BacklogMessage("q0", number, "orders", b"x", f"m{number}", None, None, 60_000))
    sends = 0
    accepted: list[int] = []
    dead: list[int] = []
    while plan.held("q0"):
        batch = plan.next_batch("orders", 0)
        assert batch, "refused messages must not stop their destination"
        sends += 1
        if any(message.sequence_number in bad for message in batch):
            found = plan.send_failed("orders", Failure.INVALID, "refused", 0)
            dead += [item.message.sequence_number for item in found]
        else:
            accepted += [message.sequence_number for message in plan.send_accepted("orders")]
    assert dead == sorted(bad), "each message at fault is dead-lettered, and no other"
    assert accepted == [number for number in range(count) if number not in bad]
    return sends


@pytest.mark.promise("P39")
@given(st.integers(1, 300).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1)))))
def test_messages_at_fault_are_found_wherever_they_are_at_two_sends_a_message(
    drawn: tuple[int, set[int]],
) -> None:
    count, bad = drawn

    assert sends_of(count, bad) <= 2 * count + LOG2_100


def test_one_message_at_fault_costs_about_the_logarithm_of_its_batch() -> None:
    assert max(sends_of(100, {number}) for number in range(100)) <= 2 * LOG2_100 + 2


def test_a_batch_of_nothing_but_messages_at_fault_costs_about_a_send_for_each() -> None:
    assert sends_of(100, range(100)) <= 100 + LOG2_100


def test_a_destination_that_refuses_counts_as_stalled_while_its_messages_wait_long() -> None:
    plan = DrainPlan(window=10, ready_max=4)
    for number in range(4):
        plan.add(BacklogMessage("q0", number, "orders", b"x", f"m{number}", None, None, 60_000))
    plan.next_batch("orders", 0)
    plan.send_failed("orders", Failure.INVALID, "refused", 0)

    plan.next_batch("orders", SLOW_MS - 1)
    assert plan.capacity("q0", SLOW_MS - 1) == 0, "the next answer may free them all"
    assert plan.capacity("q0", SLOW_MS) == 4, "messages for others may lie behind those that wait"


@pytest.mark.promise("P39", "P41")
def test_600_refused_messages_in_front_do_not_hold_up_other_destinations(loop: VirtualLoop) -> None:
    """Each answer takes 0.2 s, as over a long way: the refused messages alone take two minutes."""

    async def work(kit: Kit) -> None:
        def answer(path: str, messages: Sequence[BacklogMessage]) -> BaseException | None:
            bad = path == "orders" and any(message.sequence_number <= 600 for message in messages)
            return sdk.MessageSizeExceededError() if bad else None

        kit.outlet.answer, kit.outlet.slow_s = answer, 0.2
        for number in range(1, 601):
            kit.inboxes[0].put(number)
        for number in range(601, 701):
            kit.inboxes[0].put(number, "events" if number % 2 else "orders")
        task = asyncio.ensure_future(kit.syphon.run())
        await asyncio.sleep(30)
        home = [number for path, numbers in kit.outlet.sent if path == "events" for number in numbers]
        assert home == list(range(601, 701, 2))
        await asyncio.sleep(270)
        kit.syphon.stop()
        await task

    kit = run(loop, 1, work, locking=True)

    assert len(kit.inboxes[0].aside) == kit.counters.set_aside == 600
    assert sorted(kit.inboxes[0].completed) == list(range(601, 701))
    assert kit.events == [], "a destination that refuses messages is not unavailable"
