"""Copies of a parked message in two backlog queues: one of them is sent, and the others do not hold up what follows them."""

from __future__ import annotations

import asyncio

import pytest
from azure.servicebus import exceptions as sdk

from pairbus.pairing import parking
from pairbus.pairing.parking import Follows, Passport
from tests.simulation.pair.model import original
from tests.unit.drain.shell_kit import Kit, LockingInbox, run
from tests.unit.drain.virtual_loop import VirtualLoop

FOREVER_MS = 10**9


def inboxes_of(kit: Kit) -> tuple[LockingInbox, LockingInbox]:
    first, second = kit.inboxes
    assert isinstance(first, LockingInbox)
    assert isinstance(second, LockingInbox)
    return first, second


def put(
    inbox: LockingInbox,
    number: int,
    detour: int,
    *,
    client: str = "f",
    follows: tuple[Follows, ...] = (),
    locked_to_ms: int = 0,
) -> None:
    """Store the message ``detour`` of a client, all of one session, with a number of its queue."""
    passport = Passport(client, 1, detour, "r", order="session", follows=follows)
    sent = original(detour, "s", has_alias_name=False, has_life=False)
    inbox.stored[number] = (inbox.delivery(number, parking.park(sent, "orders", passport)), locked_to_ms)


@pytest.mark.promise("P36")
def test_a_second_copy_is_completed_as_soon_as_the_first_is_accepted(loop: VirtualLoop) -> None:
    async def work(kit: Kit) -> None:
        kit.outlet.slow_s = 1.0
        for inbox in inboxes_of(kit):
            put(inbox, 7, 5)
        await kit.run_for(5)

    kit = run(loop, 2, work, locking=True)

    assert kit.outlet.sent == [("orders", [7])]
    assert [inbox.completed for inbox in kit.inboxes] == [[7], [7]]
    assert (kit.counters.restored, kit.counters.repeats_dropped) == (1, 1)


@pytest.mark.promise("P15")
def test_messages_that_follow_copies_do_not_wait_for_a_lock_to_end_each(loop: VirtualLoop) -> None:
    """A queue that did not answer had stored a replay, and another queue took it too."""
    count = 30

    async def work(kit: Kit) -> None:
        first, second = inboxes_of(kit)
        for number in range(1, count + 1):
            # A drain that was killed has locked the first ones.
            put(first, number, number, locked_to_ms=50_000 if number <= count // 3 else 0)
            put(second, number, number, follows=(Follows(first.queue),))
        await kit.run_for(100)

    kit = run(loop, 2, work, locking=True)

    assert [number for _, numbers in kit.outlet.sent for number in numbers] == list(range(1, count + 1))
    assert [len(inbox.completed) for inbox in kit.inboxes] == [count, count]


@pytest.mark.promise("P14")
def test_no_message_overtakes_a_copy_that_was_left_in_its_queue(loop: VirtualLoop) -> None:
    async def work(kit: Kit) -> None:
        first, second = inboxes_of(kit)
        kit.outlet.answer = lambda path, messages: (
            sdk.ServiceBusServerBusyError() if loop.now_ms() < 45_000 else None
        )
        put(second, 1, 20)
        task = asyncio.ensure_future(kit.syphon.run())
        await asyncio.sleep(1)
        put(first, 1, 20)
        put(first, 2, 41)
        first.interrupt()
        await asyncio.sleep(19)
        # The copy that is held goes to another drain, which does not deliver it.
        second.stored[1] = (second.stored[1][0], FOREVER_MS)
        second.renewed_until = lambda message: None  # type: ignore[method-assign]
        await asyncio.sleep(100)
        kit.syphon.stop()
        await task

    kit = run(loop, 2, work, locking=True)

    assert [number for _, numbers in kit.outlet.sent for number in numbers] == [1, 2]


@pytest.mark.promise("P15")
def test_a_copy_that_need_not_wait_takes_the_place_of_one_that_waits(loop: VirtualLoop) -> None:
    """The copy that is held waits for a message, and that one for the other copy."""

    async def work(kit: Kit) -> None:
        first, second = inboxes_of(kit)
        put(second, 1, 1, client="g", follows=(Follows(first.queue),))
        put(second, 2, 20)
        put(first, 1, 20, locked_to_ms=3_000)
        await kit.run_for(100)

    kit = run(loop, 2, work, locking=True)

    assert [numbers for _, numbers in kit.outlet.sent] == [[1], [1]]
    assert [inbox.completed for inbox in kit.inboxes] == [[1], [2, 1]]
