"""A drain delivers messages that somebody deferred, and names those that it cannot have."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from pairbus.drain.lookups.deferred import AGAIN_MS, LOCKED_MS, PAGE
from pairbus.errors import DrainStalledError
from pairbus.pairing import parking
from pairbus.pairing.parking import Passport
from tests.simulation.pair.model import original
from tests.unit.drain.shell_kit import Kit, LockingInbox, run
from tests.unit.drain.virtual_loop import VirtualLoop

FOR_EVER = 10**9


def _defer(inbox: LockingInbox, number: int, *, locked_until_ms: int = 0) -> None:
    """Somebody deferred a message, and another receiver may have it locked."""
    inbox.put(number)
    inbox.stored[number] = (inbox.stored[number][0], locked_until_ms)
    inbox.deferred.add(number)


def _inbox(kit: Kit) -> LockingInbox:
    inbox = kit.inboxes[0]
    assert isinstance(inbox, LockingInbox)
    return inbox


@pytest.mark.promise("P41")
def test_a_drain_that_should_end_delivers_deferred_messages(loop: VirtualLoop) -> None:
    async def work(kit: Kit) -> None:
        inbox = _inbox(kit)
        _defer(inbox, 1)
        inbox.put(2)
        for number in range(3, 3 + 2 * PAGE):
            _defer(inbox, number)
        async with asyncio.timeout(60):
            await kit.syphon.run(once=True)

    kit = run(loop, 1, work, locking=True)
    assert sorted(kit.inboxes[0].completed) == list(range(1, 3 + 2 * PAGE))
    assert kit.counters.restored == 2 + 2 * PAGE


@pytest.mark.promise("P41")
def test_a_deferred_message_that_stays_locked_is_named_when_everything_else_is_delivered(
    loop: VirtualLoop,
) -> None:
    async def work(kit: Kit) -> None:
        inbox = _inbox(kit)
        _defer(inbox, 1, locked_until_ms=FOR_EVER)
        inbox.put(2)
        _defer(inbox, 3, locked_until_ms=FOR_EVER)
        _defer(inbox, 4, locked_until_ms=30_000)
        async with asyncio.timeout(200):
            with pytest.raises(DrainStalledError, match=r"transfer/0: 2 \(1, 3\)\. .*locked"):
                await kit.syphon.run(once=True)
        assert loop.now_ms() >= LOCKED_MS

    assert run(loop, 1, work, locking=True).inboxes[0].completed == [2, 4]


@pytest.mark.promise("P41")
def test_a_message_that_another_drain_has_is_waited_for_although_others_are_deferred(
    loop: VirtualLoop,
) -> None:
    async def work(kit: Kit) -> None:
        inbox = _inbox(kit)
        _defer(inbox, 1, locked_until_ms=FOR_EVER)
        inbox.put(2)
        inbox.stored[2] = (inbox.stored[2][0], 150_000)
        with pytest.raises(DrainStalledError, match=r"1 \(1\)"):
            await kit.syphon.run(once=True)
        assert loop.now_ms() >= 150_000

    assert run(loop, 1, work, locking=True).inboxes[0].completed == [2]


@pytest.mark.promise("P41")
def test_nothing_is_left_unseen_behind_more_deferred_messages_than_one_look_takes(
    loop: VirtualLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pairbus.drain.lookups.deferred.PAGES_MAX", 2)
    last = 3 * PAGE + 2

    async def work(kit: Kit) -> None:
        inbox = _inbox(kit)
        _defer(inbox, 1, locked_until_ms=FOR_EVER)
        for number in range(2, last):
            inbox.stored[number] = (replace(inbox.stored[1][0], sequence_number=number), FOR_EVER)
        inbox.deferred.update(range(1, last))
        inbox.put(last)
        inbox.stored[last] = (inbox.stored[last][0], 400_000)  # another drain has it
        with pytest.raises(DrainStalledError, match=f"transfer/0: {last - 1} "):
            await kit.syphon.run(once=True)
        assert loop.now_ms() >= 400_000, "the message behind them was waited for"

    assert run(loop, 1, work, locking=True).inboxes[0].completed == [last]


@pytest.mark.promise("P41")
def test_a_drain_that_goes_on_delivers_deferred_messages_and_tries_again(loop: VirtualLoop) -> None:
    async def work(kit: Kit) -> None:
        inbox = _inbox(kit)
        _defer(inbox, 1, locked_until_ms=1_000_000)
        _defer(inbox, 2)
        task = asyncio.ensure_future(kit.syphon.run())
        await asyncio.sleep(901)
        assert inbox.completed == [2], "after the first poll that brings nothing"
        await asyncio.sleep((1_000_000 + 2 * AGAIN_MS - loop.now_ms()) / 1000)
        assert inbox.completed == [2, 1], "as soon as it is free"
        kit.syphon.stop()
        await task

    run(loop, 1, work, locking=True)


def test_missing_numbers_are_a_reason_to_look_soon(loop: VirtualLoop) -> None:
    async def work(kit: Kit) -> None:
        inbox = _inbox(kit)
        inbox.put(1)
        _defer(inbox, 2)
        inbox.put(3)
        await kit.run_for(5)

    assert sorted(run(loop, 1, work, locking=True).inboxes[0].completed) == [1, 2, 3]


def _put_in_session(inbox: LockingInbox, number: int) -> None:
    payload = parking.park(
        original(number, "s", has_alias_name=False, has_life=False),
        "orders",
        Passport("f", 0, number, "r", order="session"),
    )
    inbox.stored[number] = (inbox.delivery(number, payload), 0)


@pytest.mark.promise("P14")
@pytest.mark.parametrize("is_locked_first", [False, True])
def test_a_deferred_message_goes_before_the_younger_ones_of_its_session(
    loop: VirtualLoop, is_locked_first: bool
) -> None:
    async def work(kit: Kit) -> None:
        inbox = _inbox(kit)
        for number in (1, 2, 3):
            _put_in_session(inbox, number)
        task = None
        if is_locked_first:
            inbox.stored[1] = (inbox.stored[1][0], FOR_EVER)
            task = asyncio.ensure_future(kit.run_for(60))
            await asyncio.sleep(10)
            assert kit.outlet.sent == [], "they wait for a message that somebody has locked"
            inbox.stored[1] = (inbox.stored[1][0], 0)
        inbox.deferred.add(1)
        await (task or kit.run_for(60))

    kit = run(loop, 1, work, locking=True)
    assert [number for _, numbers in kit.outlet.sent for number in numbers] == [1, 2, 3]
    assert kit.inboxes[0].completed == [1, 2, 3]


def test_a_drain_that_is_stopped_says_nothing_of_deferred_messages(loop: VirtualLoop) -> None:
    async def work(kit: Kit) -> None:
        inbox = _inbox(kit)
        _defer(inbox, 1, locked_until_ms=FOR_EVER)
        task = asyncio.ensure_future(kit.syphon.run())
        await asyncio.sleep(5)
        kit.syphon.stop()
        await task

    run(loop, 1, work, locking=True)
