"""A drain that should end does not wait for messages that somebody deferred, and says that they are left."""

from __future__ import annotations

import asyncio

import pytest

from pairbus.errors import DrainStalledError
from tests.unit.drain.shell_kit import Kit, LockingInbox, run
from tests.unit.drain.virtual_loop import VirtualLoop

FOR_EVER = 10**9


def _defer(inbox: LockingInbox, number: int) -> None:
    inbox.put(number)
    inbox.stored[number] = (inbox.stored[number][0], FOR_EVER)
    inbox.deferred.add(number)


def _inbox(kit: Kit) -> LockingInbox:
    inbox = kit.inboxes[0]
    assert isinstance(inbox, LockingInbox)
    return inbox


@pytest.mark.promise("P41")
def test_a_drain_that_should_end_delivers_the_rest_and_names_deferred_messages(loop: VirtualLoop) -> None:
    async def work(kit: Kit) -> None:
        inbox = _inbox(kit)
        _defer(inbox, 1)
        inbox.put(2)
        _defer(inbox, 3)
        async with asyncio.timeout(40):
            with pytest.raises(DrainStalledError, match=r"transfer/0: 2 \(1, 3\)\. .*backlog redrive"):
                await kit.syphon.run(once=True)

    assert run(loop, 1, work, locking=True).inboxes[0].completed == [2]


@pytest.mark.promise("P41")
def test_a_message_that_another_drain_has_is_waited_for_although_others_are_deferred(
    loop: VirtualLoop,
) -> None:
    async def work(kit: Kit) -> None:
        inbox = _inbox(kit)
        _defer(inbox, 1)
        inbox.put(2)
        inbox.stored[2] = (inbox.stored[2][0], 50_000)
        with pytest.raises(DrainStalledError, match=r"1 \(1\)"):
            await kit.syphon.run(once=True)
        assert loop.now_ms() >= 50_000

    assert run(loop, 1, work, locking=True).inboxes[0].completed == [2]


def test_a_drain_that_is_stopped_says_nothing_of_deferred_messages(loop: VirtualLoop) -> None:
    async def work(kit: Kit) -> None:
        inbox = _inbox(kit)
        _defer(inbox, 1)
        task = asyncio.ensure_future(kit.syphon.run())
        await asyncio.sleep(5)
        kit.syphon.stop()
        await task

    run(loop, 1, work, locking=True)
