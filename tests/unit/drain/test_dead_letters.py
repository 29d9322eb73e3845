"""Dead-lettered messages are taken once each, those that were there at the start, while others come and locks run out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from pairbus.drain import dead_letters
from pairbus.drain.dead_letters import Removal, remove_dead_letters
from tests.unit.drain.shell_kit import LockingInbox
from tests.unit.drain.virtual_loop import VirtualLoop

QUEUE = "p/x-servicebus-transfer/0"
SECONDS_MAX = 1_000


def remove(
    loop: VirtualLoop,
    inbox: LockingInbox,
    decide: Callable[[int], bool],
    *,
    seconds_each: float = 0.0,
    reason: str | None = None,
) -> tuple[Removal, list[int]]:
    """What became of the queue, and which messages were asked about, counted from 1 in the order of the questions."""
    asked: list[int] = []

    async def may_remove(_payload: bytes, _found: str | None) -> bool:
        await asyncio.sleep(seconds_each)
        asked.append(len(asked) + 1)
        return decide(asked[-1])

    async def main() -> Removal:
        async with asyncio.timeout(SECONDS_MAX):
            return await remove_dead_letters(inbox, reason, may_remove, loop.now_ms)

    return loop.run_until_complete(main()), asked


def filled(loop: VirtualLoop, count: int) -> LockingInbox:
    inbox = LockingInbox(QUEUE, loop)
    for number in range(1, count + 1):
        inbox.put_legacy(number)
    return inbox


def test_a_message_that_is_dead_lettered_again_at_once_is_not_taken_again(loop: VirtualLoop) -> None:
    inbox = filled(loop, 3)

    def again(_count: int) -> bool:
        inbox.put_legacy(max(inbox.stored) + 1)
        return True

    done, asked = remove(loop, inbox, again)

    assert asked == [1, 2, 3]
    assert inbox.completed == [1, 2, 3]
    assert (done.removed, done.has_later) == (3, True)
    assert sorted(inbox.stored) == [4, 5, 6]
    assert sorted(map(str, inbox.given_back)) == ["t4", "t5", "t6"]


def test_messages_that_stay_are_asked_about_once_and_given_back_however_long_it_takes(
    loop: VirtualLoop,
) -> None:
    inbox = filled(loop, 150)

    done, asked = remove(loop, inbox, lambda count: count % 10 == 0, seconds_each=2.0)

    assert asked == list(range(1, 151))
    assert inbox.completed == list(range(10, 151, 10))
    assert (done.removed, done.unconfirmed, done.has_later) == (15, 0, False)
    assert len(inbox.given_back) == 135
    assert inbox.renewals > 0


def test_a_message_whose_lock_was_lost_is_removed_when_it_comes_again_and_not_sent_again(
    loop: VirtualLoop,
) -> None:
    inbox = filled(loop, 2)
    inbox.renewed_until = lambda message: None  # type: ignore[method-assign]

    done, asked = remove(loop, inbox, lambda _count: True, seconds_each=61.0)

    assert asked == [1, 2]
    assert inbox.completed == [1, 2]
    assert (done.removed, done.unconfirmed) == (2, 0)


def test_messages_of_other_reasons_are_counted_and_stay(loop: VirtualLoop) -> None:
    inbox = filled(loop, 5)

    done, asked = remove(loop, inbox, lambda _count: True, reason="DestinationNotFound")

    assert (asked, inbox.completed) == ([], [])
    assert done.others == {"no reason": 5}
    assert len(inbox.given_back) == 5


def test_no_more_messages_are_held_than_can_be_kept_locked(
    loop: VirtualLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "HELD_MAX", 150)
    inbox = filled(loop, 500)

    done, asked = remove(loop, inbox, lambda _count: False)

    assert done.is_full
    assert len(asked) == len(inbox.given_back) == 200


def test_messages_are_given_back_when_the_work_fails(loop: VirtualLoop) -> None:
    inbox = filled(loop, 3)

    def fail(count: int) -> bool:
        if count == 2:
            raise OSError
        return False

    with pytest.raises(OSError):
        remove(loop, inbox, fail)

    assert sorted(map(str, inbox.given_back)) == ["t1", "t2", "t3"]
