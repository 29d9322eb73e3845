"""Watches empty backlog queues from the driver: one long poll each, fifteen minutes, whatever else goes on.

A message that ends a poll is drained by the driver itself, as a task would; its queue is then drained by tasks.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from typing import Final

from pairbus.drain.lookups.waits import POLL_SECONDS
from pairbus.spark.drain.rows import WAITING, LedgerRow
from pairbus.spark.drain.task import Task, TaskSettings

CLOSE_SECONDS: Final = 10.0


class Watch:
    """Long polls on queues, in a thread of its own."""

    def __init__(self, settings: TaskSettings) -> None:
        self._settings = replace(
            settings, seconds=POLL_SECONDS, idle_seconds=POLL_SECONDS, window=1, messages_max=1
        )
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="pairbus-watch", daemon=True)
        self._thread.start()
        self._polls: dict[str, Future[list[LedgerRow]]] = {}
        self._tasks: dict[str, Task] = {}
        self._woken = threading.Event()
        self.rows: list[LedgerRow] = []
        """What the watch itself drained and is not yet in the ledger."""

    def cover(self, queues: Iterable[str]) -> None:
        """Watch these queues too; a poll that runs goes on."""
        for queue in queues:
            if queue not in self._polls:
                poll = asyncio.run_coroutine_threadsafe(self._drain(queue), self._loop)
                poll.add_done_callback(lambda _: self._woken.set())
                self._polls[queue] = poll

    async def _drain(self, queue: str) -> list[LedgerRow]:
        task = self._tasks[queue] = Task(self._settings, [queue])
        return await task.run()

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

    def close(self) -> None:
        """End every poll. Messages that are not yet accepted are released."""

        async def end() -> None:
            for task in self._tasks.values():
                task.stop()
            others = asyncio.all_tasks() - {asyncio.current_task()}
            await asyncio.gather(*others, return_exceptions=True)

        if self._polls:
            with suppress(TimeoutError):
                asyncio.run_coroutine_threadsafe(end(), self._loop).result(CLOSE_SECONDS)
            self.wait(0)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CLOSE_SECONDS)
