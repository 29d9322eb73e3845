"""The senders of a drain: one task per destination, which asks about messages in doubt and sends the others.

A message in doubt was sent by an earlier run, or before its lock was lost, and it is not known whether it arrived. Before
it is sent again its destination is asked, with one question for a whole batch, so that a drain after a crash stays fast.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from pairbus.drain.in_doubt import DoubtfulSends
from pairbus.drain.ports import CannotAsk, NotSent, Outlet
from pairbus.drain.rules.message import BacklogMessage, DeadLetter
from pairbus.drain.rules.plan import DrainPlan
from pairbus.drain.rules.problems import Problems
from pairbus.errors import InvalidParkedPropertyError
from pairbus.pairing.naming import entity_key
from pairbus.pairing.parking import Restored
from pairbus.pairing.statistics import Counters
from pairbus.sdk.failures import IN_DOUBT, OF_THE_MESSAGE, Failure, classify, shown

IDLE_SECONDS: Final = 30.0
"""How often a sender looks again without being woken."""
ASKS_FAILED_MAX: Final = 3
"""After so many questions without an answer a destination is not asked again: messages in doubt are sent."""
RESTORE_AGAIN_MS: Final = 1_000
"""A limited time to live is calculated again when a message has waited here for longer."""

LINE_CHARACTERS_MAX: Final = 300

logger = logging.getLogger("pairbus.syphon")

MAIN_THREAD_ENDED: Final = (
    "the program's main thread has ended, and Python opens no connections after that. Close the paired client before the end; "
    "the messages stay in the backlog, for the next drain"
)


@dataclass(slots=True, eq=False, kw_only=True)
class Senders:
    """Sends what a plan holds to its destinations."""

    outlet: Outlet
    plan: DrainPlan
    doubts: DoubtfulSends
    counters: Counters
    clock: Callable[[], int]
    """A steady clock in milliseconds."""
    restored: Callable[[bytes, int | None], Restored]
    """Restores a backlog message, given its bytes and the time it was stored in the backlog."""
    problems: Problems
    acknowledged: Callable[[BacklogMessage], None]
    """Called with each message that the primary has."""
    settle: Callable[[str, DeadLetter], None]
    """Called with a backlog queue and a message of it to dead-letter."""
    wake_queue: Callable[[str], None]
    """Called with a backlog queue whose task should look again."""
    ended: Callable[[asyncio.Future[None]], None]
    """Called with each task that has ended."""
    _is_stopping: bool = False
    _tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    _events: dict[str, asyncio.Event] = field(default_factory=dict)
    _asking: dict[str, asyncio.Future[Sequence[BacklogMessage]]] = field(default_factory=dict)
    _asks_failed: dict[str, int] = field(default_factory=dict)

    def ensure(self, path: str) -> None:
        """Start or wake the task of a destination that messages wait for."""
        key = entity_key(path)
        event = self._events.setdefault(key, asyncio.Event())
        event.set()
        if key not in self._tasks or self._tasks[key].done():
            task = self._tasks[key] = asyncio.ensure_future(self._send_all(key, event))
            task.add_done_callback(self.ended)

    def wake(self) -> None:
        """Look again now: a destination may be available again."""
        for event in self._events.values():
            event.set()

    def tasks(self) -> list[asyncio.Task[None]]:
        return list(self._tasks.values())

    def stop(self) -> None:
        """Begin no new send and end every question; sends under way go on until they are answered or cancelled."""
        self._is_stopping = True
        for asked in self._asking.values():
            asked.cancel()
        self.wake()

    async def _send_all(self, key: str, event: asyncio.Event) -> None:
        """Send to one destination until nothing waits for it."""
        while self.plan.is_waited_for(key) and not self._is_stopping:
            event.clear()
            batch = self.plan.next_batch(key, self.clock())
            if not batch:
                retry_ms = self.plan.next_retry_ms(key)
                seconds = IDLE_SECONDS if retry_ms is None else max(0.01, (retry_ms - self.clock()) / 1000)
                with suppress(TimeoutError):
                    async with asyncio.timeout(seconds):
                        await event.wait()
                continue
            await self._send_batch(key, batch)
        # A destination that messages wait for again gets a new task.
        if self._tasks.get(key) is asyncio.current_task():
            del self._tasks[key]
            self._events.pop(key, None)

    async def _send_batch(self, key: str, batch: Sequence[BacklogMessage]) -> None:
        before = {message.key for message in batch if message.key in self.doubts}
        try:
            batch = self._still_alive(key, batch)
            if any(message.in_doubt_since_ms is not None for message in batch):
                batch = await self._without_delivered(key, batch)
            if not batch:
                return
            now = self.clock()
            self.doubts.begin(
                [(one.queue, one.sequence_number, one.message_id, one.enqueued_ms) for one in batch], now
            )
            if self.doubts.is_durable:
                # A disk takes its time, and this may be the application's own event loop.
                await asyncio.to_thread(self.doubts.sync)
            await self.outlet.send(batch[0].path, batch)
        except Exception as error:  # noqa: BLE001 - every error is an answer to judge
            self._send_failed(key, batch, error, before)
            return
        except BaseException:
            self.plan.send_cancelled(key)
            raise
        self.counters.resent += len(batch)
        # First of all: whatever fails after the answer, these messages are delivered and their destination is free.
        for message in self.plan.send_accepted(key):
            self.acknowledged(message)
        self.problems.works("primary", batch[0].path.strip("/"))

    async def _without_delivered(self, key: str, batch: Sequence[BacklogMessage]) -> Sequence[BacklogMessage]:
        """The messages of a batch that must be sent: one question to the destination for all that are in doubt.

        Empty when the drain stops meanwhile, or the question failed and the destination is asked again later.
        """
        doubtful = [message for message in batch if message.in_doubt_since_ms is not None]
        asked = asyncio.ensure_future(
            self.outlet.already_delivered(batch[0].path, doubtful, self.doubts.ids())
        )
        self._asking[key] = asked
        found: Sequence[BacklogMessage] = ()
        try:
            found = await asked
        except CannotAsk:
            logger.info(
                "%s does not show its messages: %s in doubt are sent again", batch[0].path, len(doubtful)
            )
        except asyncio.CancelledError:
            asked.cancel()
            self.plan.send_cancelled(key)
            if not self._is_stopping:
                raise
            return []
        except Exception as error:  # noqa: BLE001 - every error is an answer to judge
            failure = classify(error)
            self._asks_failed[key] = self._asks_failed.get(key, 0) + (failure is not Failure.CONNECTION)
            if self._asks_failed[key] < ASKS_FAILED_MAX:
                self._failed(key, batch, failure, one_line(error))
                return []
        finally:
            del self._asking[key]
        self._asks_failed.pop(key, None)
        for message in doubtful:
            message.in_doubt_since_ms = None
        self.plan.found_delivered(key, found)
        for message in found:
            self.acknowledged(message)
        return [message for message in batch if message not in found]

    def _send_failed(
        self, key: str, batch: Sequence[BacklogMessage], error: Exception, before: Collection[tuple[str, int]]
    ) -> None:
        """A send had no answer, or a refusal. ``before``: in doubt already; this send says nothing about the one before."""
        is_sent = not isinstance(error, NotSent)
        if isinstance(error, NotSent) and isinstance(error.__cause__, Exception):
            error = error.__cause__
        failure = classify(error)
        if failure in IN_DOUBT and is_sent:
            self.counters.in_doubt += len(batch)
        else:
            self.doubts.end([message.key for message in batch if message.key not in before])
        self._failed(key, batch, failure, one_line(error))

    def _failed(self, key: str, batch: Sequence[BacklogMessage], failure: Failure, text: str) -> None:
        """A destination did not accept messages, or did not show them."""
        # An error that the SDK does not know may be a bug here: it is tried again, and must be visible.
        level = logging.WARNING if failure in (Failure.INTERNAL, Failure.CLIENT) else logging.INFO
        logger.log(
            level, "sending to %s failed: %s", batch[0].path, text, extra={"event": "syphon.send_failed"}
        )
        dead = self.plan.send_failed(key, failure, text, self.clock())
        for item in dead:
            self.settle(item.message.queue, item)
        if failure in OF_THE_MESSAGE:
            # The destination answered. The smaller batches, or the next message, follow at once.
            self.problems.works("primary", batch[0].path.strip("/"))
            return
        if not dead:
            self.problems.failed("primary", batch[0].path.strip("/"), failure, text)
        for queue in {message.queue for message in batch}:
            self.wake_queue(queue)  # an unavailable destination leaves capacity for others

    def _still_alive(self, key: str, batch: Sequence[BacklogMessage]) -> Sequence[BacklogMessage]:
        """Calculate limited times to live at the moment of sending: a message may have waited here for hours (P11)."""
        now = self.clock()
        expired: list[BacklogMessage] = []
        for message in batch:
            if message.parked is not None and now - message.restored_ms > RESTORE_AGAIN_MS:
                try:
                    message.payload = self.restored(message.parked, message.enqueued_ms).payload
                except InvalidParkedPropertyError:
                    expired.append(message)
                message.restored_ms = now
        if not expired:
            return batch
        for item in self.plan.expired(key, expired):
            self.settle(item.message.queue, item)
        return [message for message in batch if message not in expired]


def one_line(error: BaseException) -> str:
    """The kind of an error and the first line of its text."""
    if isinstance(error, RuntimeError) and not threading.main_thread().is_alive():
        return MAIN_THREAD_ENDED
    return shown(error, LINE_CHARACTERS_MAX).splitlines()[0].strip()
