"""A message that its sender cancels while a drain holds it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

from pairbus.drain.ports import Inbox, Observer
from pairbus.drain.rules.message import BacklogMessage, DeadLetter
from pairbus.pairing.statistics import Counters


@dataclass(frozen=True, slots=True)
class Withdrawal:
    """A message whose sender cancelled it: it is completed and sent nowhere."""

    message: BacklogMessage
    done: asyncio.Future[bool]

    async def settle(self, inbox: Inbox, counters: Counters) -> None:
        """Remove the message from its backlog queue, and answer the caller whether that worked."""
        is_done = False
        try:
            is_done = await inbox.cancel(self.message)
            counters.cancelled += is_done
        finally:
            self.answer(is_done=is_done)

    def answer(self, *, is_done: bool) -> None:
        """Answer the caller, unless it was cancelled meanwhile."""
        if not self.done.done():
            self.done.set_result(is_done)


def answer_unsettled(items: Iterable[BacklogMessage | DeadLetter | Withdrawal], observer: Observer) -> None:
    """Answer for what a drain leaves behind at its end: it was not settled, and comes again."""
    for item in items:
        if isinstance(item, Withdrawal):
            item.answer(is_done=False)
        elif isinstance(item, BacklogMessage):
            observer.completed(item, is_lock_lost=True)
