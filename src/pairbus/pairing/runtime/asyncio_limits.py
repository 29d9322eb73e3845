"""Time limits of the calls of one link on asyncio, with one timer for all of them.

``asyncio.timeout`` arms a timer of the loop for each call, and that costs more than everything else that a healthy send costs here.
Nearly every call ends long before its limit. So the timer of a link stays armed when the call that armed it has ended: when it goes
off, it looks at the calls that are in progress then, and is armed again for the first of them, if there is one.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import current_task, get_running_loop
from typing import Any, Final, Protocol

from azure.servicebus.exceptions import OperationTimeoutError

from pairbus.pairing.runtime.attempts import Attempts

logger = logging.getLogger("pairbus.pairing")

NEVER: Final = float("inf")
AGAIN_SECONDS: Final = 0.5
"""Seconds after which a call that was to end and goes on is to end again."""


class Limited(Protocol):
    """Something in progress."""

    def overdue(self) -> bool:
        """Its time is over. Returns whether it may go on nevertheless, and must be told again."""


class Limits:
    """The calls in progress of one link, and when the time of each is over."""

    def __init__(self) -> None:
        self.until: dict[Limited, float] = {}
        """By call. Who has begun one takes it out when it ends."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._due = NEVER

    def begin(self, call: Limited, seconds: float) -> float:
        """A call begins, and is overdue after ``seconds``. Returns when it began, on the clock of the loop."""
        loop = get_running_loop()
        now = loop.time()
        self.until[call] = until = now + seconds
        if until < self._due or loop is not self._loop:
            self._arm(loop, until)
        return now

    def call(self, seconds: float) -> Call:
        """A send of the current task begins, and is overdue after ``seconds``. One function: each one is paid by every send."""
        loop = get_running_loop()
        call = Call()
        call.task = task = current_task(loop)
        call.cancels = task.cancelling()  # type: ignore[union-attr]  # only tasks send
        call.begun = now = loop.time()
        self.until[call] = until = now + seconds
        if until < self._due or loop is not self._loop:
            self._arm(loop, until)
        return call

    def stop(self) -> None:
        """No call begins any more: one that is in progress keeps its limit, and without one there is no timer."""
        if not self.until:
            self._disarm()

    def _arm(self, loop: asyncio.AbstractEventLoop, until: float) -> None:
        self._disarm()
        self._loop, self._due = loop, until
        self._timer = loop.call_at(until, self._look)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._due = None, NEVER

    def _look(self) -> None:
        assert self._loop is not None
        now = self._loop.time()
        self._disarm()
        for call in [call for call, until in self.until.items() if until <= now]:
            if _goes_on(call):
                self.until[call] = now + AGAIN_SECONDS
            else:
                self.until.pop(call, None)
        if self.until:
            self._arm(self._loop, min(self.until.values()))


def _goes_on(call: Limited) -> bool:
    """End a call whose time is over. Returns whether it goes on nevertheless; one that fails must not end the limits of the others."""
    try:
        return call.overdue()
    except Exception:
        logger.exception("a time limit could not end its call", extra={"event": "pairing.limit_failed"})
        return False


class Call(Attempts):
    """A send of a task, which is cancelled when its time is over. ``Limits.call`` makes it.

    Once is not enough: up to Python 3.11 ``asyncio.wait_for``, through which the SDK reads, drops a cancellation that comes together
    with a frame, and the send would go on without a limit.
    """

    task: Any
    cancels: int
    """How often somebody else had cancelled the task when the send began."""
    begun: float
    """When that was, on the clock of the loop."""
    cancelled = 0
    """How often this has cancelled the task."""
    until = 0.0
    """When all the time of its caller is over, on the clock of the loop."""
    grace = 0.0
    """Seconds by which an attempt may overrun before the call is ended."""

    def overdue(self) -> bool:
        """End the call."""
        is_running: bool = self.task.cancel()
        self.cancelled += is_running
        return is_running

    def end(self) -> None:
        """The call has ended: its cancellations are over."""
        while self.cancelled:
            self.cancelled -= 1
            self.task.uncancel()

    def judged(self, error: BaseException) -> BaseException:
        """The error that ends the call: the SDK's own one for a time limit, unless somebody else has cancelled the task, too."""
        if not self.cancelled:
            return error
        self.end()
        if self.task.cancelling() > self.cancels or not isinstance(error, asyncio.CancelledError):
            return error
        late = OperationTimeoutError(message="The send did not end in time.")
        late.__cause__ = TimeoutError()
        return late
