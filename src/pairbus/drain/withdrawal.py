"""A message that its sender cancels while a drain holds it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from pairbus.drain.message import BacklogMessage


@dataclass(frozen=True, slots=True)
class Withdrawal:
    """A message whose sender cancelled it: it is completed and sent nowhere."""

    message: BacklogMessage
    done: asyncio.Future[bool]

    def answer(self, *, is_done: bool) -> None:
        """Answer the caller, unless it was cancelled meanwhile."""
        if not self.done.done():
            self.done.set_result(is_done)
