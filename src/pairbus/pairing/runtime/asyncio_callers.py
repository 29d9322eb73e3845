"""The callers that wait for a link on asyncio."""

from __future__ import annotations

import asyncio
from typing import Any

from pairbus.pairing.runtime.asyncio_limits import Call
from pairbus.pairing.runtime.attempts import Attempts

OPEN, SEND, HOLD = range(3)
"""What a caller waits for: an open link, the answer to its message, or the link to itself."""


class Caller:
    """One caller that waits."""

    __slots__ = (
        "attempts",
        "call",
        "delivery",
        "future",
        "given",
        "had",
        "is_overdue",
        "kind",
        "message",
        "seconds",
    )

    def __init__(self, kind: int, message: Any = None, attempts: Attempts | None = None) -> None:
        self.kind = kind
        self.message = message
        self.attempts = attempts
        self.call: Call | None = attempts if isinstance(attempts, Call) else getattr(attempts, "call", None)
        self.seconds: float | None = None
        """How long the attempt was to last; None: without a limit."""
        self.had = 0.0
        """What its caller had in all when it began to wait."""
        self.given: float | None = None
        """How long the attempt in progress may last; None: it waits for its turn."""
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.delivery: Any = None
        self.is_overdue = False

    @property
    def is_waiting(self) -> bool:
        """Whether the caller still waits. Who has an answer or has given up needs no turn and has no time limit any more."""
        return not self.future.done()

    @property
    def has_turn(self) -> bool:
        """Whether the caller got what it waited for."""
        future = self.future
        return future.done() and not (self.is_overdue or future.cancelled() or future.exception())

    def overdue(self) -> bool:
        """Wake the caller: its time is over."""
        if self.is_waiting:
            self.is_overdue = True
            self.future.set_result(None)
        return False

    def done(self, error: BaseException | None = None) -> None:
        """Wake the caller, unless it has given up."""
        if self.is_waiting and not self.future.get_loop().is_closed():
            if error is None:
                self.future.set_result(None)
            else:
                self.future.set_exception(error)
