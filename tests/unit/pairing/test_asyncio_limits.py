"""Time limits on asyncio: one timer for all calls of a link."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from azure.servicebus.exceptions import OperationTimeoutError

from pairbus.pairing.runtime.asyncio_limits import Limits
from tests.unit.drain.virtual_loop import VirtualLoop


class Timed:
    """A call that notes when its time was over."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self.at: float | None = None

    def overdue(self) -> bool:
        assert self.at is None, "once"
        self.at = self._loop.time()
        return False


def timers(loop: VirtualLoop) -> int:
    """Timers of the loop that are still to go off."""
    return sum(not timer.cancelled() for timer in loop._scheduled)  # type: ignore[attr-defined]


async def test_each_call_is_overdue_at_its_own_time_however_they_begin(loop: VirtualLoop) -> None:
    limits, begun = Limits(), loop.time()
    calls = {seconds: Timed(loop) for seconds in (5.0, 1.0, 3.0, 2.0)}
    for seconds, call in calls.items():
        assert limits.begin(call, seconds) == begun
    assert timers(loop) == 1
    ended = calls.pop(3.0)
    del limits.until[ended]
    await asyncio.sleep(6)

    assert {seconds: call.at for seconds, call in calls.items()} == {
        seconds: pytest.approx(begun + seconds) for seconds in calls
    }
    assert ended.at is None
    assert not limits.until
    assert timers(loop) == 0


async def test_calls_that_end_in_time_need_no_timer_of_their_own(loop: VirtualLoop) -> None:
    limits = Limits()
    for _ in range(100):
        call = Timed(loop)
        limits.begin(call, 60.0)
        await asyncio.sleep(0.1)
        del limits.until[call]
        assert timers(loop) == 1
    limits.stop()

    assert timers(loop) == 0, "and none is left"


async def test_a_call_that_cannot_be_ended_is_told_once_and_the_others_are_ended(
    loop: VirtualLoop, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Timed):
        def overdue(self) -> bool:
            raise AttributeError("'NoneType' object has no attribute 'cancel'")

    limits, broken, same, later = Limits(), Broken(loop), Timed(loop), Timed(loop)
    for call, seconds in ((broken, 1.0), (same, 1.0), (later, 2.0)):
        limits.begin(call, seconds)
    await asyncio.sleep(5)

    assert [same.at, later.at] == pytest.approx([1.0, 2.0])
    assert not limits.until
    assert [record.getMessage() for record in caplog.records] == ["a time limit could not end its call"]


async def test_a_call_in_progress_keeps_its_limit_when_the_link_is_closed(loop: VirtualLoop) -> None:
    limits, call = Limits(), Timed(loop)
    limits.begin(call, 1.0)
    limits.stop()
    await asyncio.sleep(2)

    assert call.at is not None


def test_a_link_that_another_event_loop_used_before_has_limits_too() -> None:
    limits = Limits()

    async def late() -> float | None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        call = Timed(loop)
        limits.begin(call, 1.0)
        await asyncio.sleep(2)
        return call.at

    async def in_time() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        call = Timed(loop)
        limits.begin(call, 0.5)
        del limits.until[call]

    for work in (in_time, late):
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            found = runner.run(work())
    assert found is not None


@pytest.mark.parametrize("is_cancelled_too", [False, True])
async def test_a_time_limit_is_not_taken_for_a_cancellation_nor_a_cancellation_for_it(
    loop: VirtualLoop, is_cancelled_too: bool
) -> None:
    limits, ended = Limits(), []

    async def act() -> None:
        call = limits.call(1.0)
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError as error:
            ended.append(call.judged(error))
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == is_cancelled_too, "nothing of the time limit is left"

    task = asyncio.ensure_future(act())
    if is_cancelled_too:
        loop.call_later(1.0, task.cancel)
    await task

    assert [type(error) for error in ended] == [
        asyncio.CancelledError if is_cancelled_too else OperationTimeoutError
    ]


@pytest.mark.usefixtures("loop")
async def test_a_call_that_drops_a_cancellation_is_cancelled_again() -> None:
    limits = Limits()
    call = limits.call(1.0)
    ended: BaseException | None = None
    try:
        with suppress(asyncio.CancelledError):
            # As ``wait_for`` does up to Python 3.11 when what it waits for comes in the same moment.
            await asyncio.sleep(1000)
        await asyncio.sleep(1000)
    except asyncio.CancelledError as error:
        ended = call.judged(error)
    finally:
        del limits.until[call]

    assert isinstance(ended, OperationTimeoutError)
    assert call.task.cancelling() == 0


@pytest.mark.usefixtures("loop")
async def test_a_call_that_succeeds_although_it_was_cancelled_leaves_nothing_behind() -> None:
    limits = Limits()
    call = limits.call(1.0)
    with suppress(asyncio.CancelledError):
        await asyncio.sleep(1000)
    del limits.until[call]
    call.end()
    await asyncio.sleep(1000)

    assert call.task.cancelling() == 0
