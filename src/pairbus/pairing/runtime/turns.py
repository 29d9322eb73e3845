"""Whose turn it is to use what threads share: one at a time, in the order in which they came.

A lock of Python gives way to anybody: a thread that asks at the right moment passes those that have waited for a minute. Here a thread
that has to wait gets a ticket, and the turn goes to the first ticket.

Rule 1: nobody takes the lock while a ticket waits; ``pass_on`` takes it for the first one.
Rule 2: a thread that has given the lock back, and one that has made a ticket, calls ``pass_on`` afterwards, so that no ticket is forgotten.
Rule 3: a ticket that was given the turn has it until its thread gives it back, also if that thread wanted to leave in this moment.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable


class _Ticket:
    __slots__ = ("is_given", "look")

    def __init__(self) -> None:
        self.is_given = False
        self.look = threading.Event()


class Turn:
    """The turn. A send that nobody keeps waiting uses ``waiting`` and ``lock`` itself: each call costs every healthy send."""

    __slots__ = ("lock", "waiting")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        """Held by the one thread that has the turn."""
        self.waiting: deque[_Ticket] = deque()

    def try_to_take(self) -> bool:
        """Take the turn, if nobody has it or waits for it."""
        return not self.waiting and self.lock.acquire(blocking=False)

    def take(self, seconds: float, is_of_use: Callable[[], bool]) -> bool:
        """Wait for the turn. False: the time is over, or the turn is of no use any more (``look_again``)."""
        until = time.monotonic() + seconds
        ticket = _Ticket()
        try:
            self.waiting.append(ticket)
            self.pass_on()
            while not ticket.is_given and is_of_use() and (left := until - time.monotonic()) > 0:
                ticket.look.wait(left)
                ticket.look.clear()
        except BaseException:
            self._leave(ticket)
            raise
        if not ticket.is_given:
            return self._leave(ticket)
        return True

    def release(self) -> None:
        """Give the turn back."""
        self.lock.release()
        if self.waiting:
            self.pass_on()

    def pass_on(self) -> None:
        """Give the turn to the first that waits, if nobody has it."""
        while self.waiting and self.lock.acquire(blocking=False):
            try:
                ticket = self.waiting.popleft()
            except IndexError:  # it has left in this moment
                self.lock.release()
                continue
            ticket.is_given = True
            ticket.look.set()
            return

    def look_again(self) -> None:
        """Let everybody who waits look whether the turn is still of use."""
        for ticket in list(self.waiting):
            ticket.look.set()

    def _leave(self, ticket: _Ticket) -> bool:
        """Wait no longer. Returns False."""
        try:
            self.waiting.remove(ticket)
        except ValueError:  # the turn was given to it in this moment
            self.release()
        return False
