"""Watches empty backlog queues from the driver: one long poll each, fifteen minutes, whatever else goes on.

A message that ends a poll is brought home by the driver itself, with the same pump as a task's; its queue is then
drained by tasks.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import replace
from typing import Final

from pairbus.drain.plan import POLL_SECONDS
from pairbus.spark.drain.rows import WAITING, LedgerRow
from pairbus.spark.drain.task import PumpSettings, TaskPump

CLOSE_SECONDS: Final = 10.0


class Watch:
    """Long polls on queues, in a thread of its own."""

    def __init__(self, settings: PumpSettings) -> None:
        self._settings = replace(
            settings, seconds=POLL_SECONDS, empty_seconds=POLL_SECONDS, page=1, window=1, messages_max=1
        )
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="pairbus-watch", daemon=True)
        self._thread.start()
        self._polls: dict[str, Future[list[LedgerRow]]] = {}
        self._woken = threading.Event()
        self.rows: list[LedgerRow] = []
        """What was brought home by the watch itself and is not yet in the ledger."""

    def cover(self, queues: Iterable[str]) -> None:
        """Watch these queues too; a poll that runs goes on."""
        for queue in queues:
            if queue not in self._polls:
                poll = asyncio.run_coroutine_threadsafe(TaskPump(self._settings, [queue]).run(), self._loop)
                poll.add_done_callback(lambda _: self._woken.set())
                self._polls[queue] = poll

    def wait(self, seconds: float) -> set[str]:
        """The queues whose polls ended; waits until there is one, at most so long."""
        self._woken.wait(seconds)
        self._woken.clear()
        ended = {queue for queue, poll in self._polls.items() if poll.done()}
        for queue in ended:
            poll = self._polls.pop(queue)
            if poll.exception() is None:
                self.rows += [row for row in poll.result() if row.outcome != WAITING]
        return ended

    def wake(self) -> None:
        """Let ``wait`` return."""
        self._woken.set()

    def close(self) -> None:
        """End every poll. Messages that are not yet accepted are given back."""
        for poll in self._polls.values():
            poll.cancel()
        try:
            asyncio.run_coroutine_threadsafe(_settled(self._loop), self._loop).result(CLOSE_SECONDS)
        except TimeoutError:
            pass
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CLOSE_SECONDS)


async def _settled(loop: asyncio.AbstractEventLoop) -> None:
    others = asyncio.all_tasks(loop) - {asyncio.current_task(loop)}
    await asyncio.gather(*others, return_exceptions=True)
