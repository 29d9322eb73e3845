"""Time limits of the calls of one link on asyncio, with one timer for all of them.

``asyncio.timeout`` arms a timer of the loop for each call, and that costs more than everything else that a healthy send costs here.
Nearly every call ends long before its limit. So the timer of a link stays armed when the call that armed it has ended: when it goes
off, it looks at the calls that are in progress then, and is armed again for the first of them, if there is one.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, Protocol

from azure.servicebus.exceptions import OperationTimeoutError

from pairbus.pairing.runtime.attempts import Attempts

NEVER: Final = float("inf")


class Limited(Protocol):
    """Something in progress."""

    def overdue(self) -> None:
        """Its time is over."""


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
        loop = asyncio.get_running_loop()
        now = loop.time()
        self.until[call] = until = now + seconds
        if until < self._due or loop is not self._loop:
            self._arm(loop, until)
        return now

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
            del self.until[call]
            call.overdue()
        if self.until:
            self._arm(self._loop, min(self.until.values()))


class Call(Attempts):
    """A send of the task that makes this; the task is cancelled when its time is over."""

    task: Any
    _is_overdue = False

    def __init__(self) -> None:
        self.task = asyncio.current_task()
        self._cancels = self.task.cancelling()

    def overdue(self) -> None:
        """End the call."""
        self._is_overdue = True
        self.task.cancel()

    def judged(self, error: BaseException) -> BaseException:
        """The error that ends the call: the SDK's own one for a time limit, unless somebody else has cancelled the task, too."""
        if not self._is_overdue or self.task.uncancel() > self._cancels:
            return error
        if not isinstance(error, asyncio.CancelledError):
            return error
        late = OperationTimeoutError(message="The send did not end in time.")
        late.__cause__ = TimeoutError()
        return late
