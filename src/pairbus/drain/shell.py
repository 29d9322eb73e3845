"""The pumps: one task per backlog queue that receives and settles. ``senders`` has one task per destination.

Only these two modules wait. What to do is decided by ``plan``; what has been done is kept in the ledger.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from pairbus.drain.ledger import Ledger
from pairbus.drain.plan import POLL_SECONDS, SLOW_MS, BacklogMessage, DeadLetter, DrainPlan
from pairbus.drain.ports import Delivery, Inbox, LockLost, Outlet
from pairbus.drain.problems import Problems
from pairbus.drain.restoring import Life, restore_to_send
from pairbus.drain.senders import Senders, one_line
from pairbus.drain.skip_list import SKIPPED_MAX
from pairbus.errors import DrainStalledError, InvalidParkedPropertyError
from pairbus.pairing.naming import PrimaryIdentity
from pairbus.pairing.parking import Restored
from pairbus.pairing.statistics import Counters
from pairbus.sdk.failures import classify

RECEIVE_MAX: Final = 100
SETTLE_MAX: Final = 300
"""How many messages are completed with one request."""
ONCE_SECONDS: Final = 1.0
"""How long a drain that should end waits for more."""
ERROR_PAUSE_S_MIN: Final = 0.25
ERROR_PAUSE_S_MAX: Final = 5.0
RATE_WINDOW_MS: Final = 10_000
BUSY_POLL_SECONDS: Final = 30.0
STOP_SECONDS: Final = 4.0
"""How long a syphon that was told to stop may take."""
ANSWERS_SHARE: Final = 0.6
"""The part of it that is spent on waiting for answers to what was sent, so that nothing is delivered twice; the rest is
for closing links."""
STALL_CHECK_SECONDS: Final = 1.0
DELIVERED_MAX: Final = 50_000
"""How many messages that went home are remembered, to know a second copy of one when it comes."""

logger = logging.getLogger("pairbus.syphon")

Told = Callable[[str, str, str], None]
"""Called with the kind of an event (``drained``, ``set_aside``, ``away``, ``back``), its subject and a sentence."""


@dataclass(frozen=True, slots=True)
class Withdrawal:
    """A message whose sender cancelled it: it is completed and goes nowhere."""

    message: BacklogMessage
    done: asyncio.Future[bool]

    def answer(self, *, is_done: bool) -> None:
        """Tell whoever asked, if they still want to know."""
        if not self.done.done():
            self.done.set_result(is_done)


class Syphon:
    """Drains backlog queues into their primary until stopped.

    Args:
        inboxes: The backlog queues.
        outlet: The way to the primary.
        plan: The decisions.
        ledger: What is in doubt.
        counters: Where to count.
        clock: A steady clock in milliseconds.
        wall_clock: The time of day in milliseconds.
        life: Whether time in the backlog counts towards a message's time to live.
        tell: Called with what people should know.
        identity: The primary; messages parked for another one are dead-lettered. None: do not compare.
    """

    def __init__(
        self,
        inboxes: Sequence[Inbox],
        outlet: Outlet,
        *,
        plan: DrainPlan,
        ledger: Ledger,
        counters: Counters,
        clock: Callable[[], int],
        wall_clock: Callable[[], int],
        life: Life = "freeze",
        tell: Told = lambda kind, subject, text: None,  # noqa: ARG005 - nobody listens unless told to
        identity: PrimaryIdentity | None = None,
    ) -> None:
        self._inboxes = {inbox.queue: inbox for inbox in inboxes}
        self._outlet = outlet
        self._plan = plan
        self._ledger = ledger
        self._counters = counters
        self._clock = clock
        self._wall_clock = wall_clock
        self._life = life
        self._tell = tell
        self._primary = identity
        self._work = {queue: deque[BacklogMessage | DeadLetter | Withdrawal]() for queue in self._inboxes}
        self._wake = {queue: asyncio.Event() for queue in self._inboxes}
        self._problems = Problems(tell)
        self._senders = Senders(
            outlet,
            plan=plan,
            ledger=ledger,
            counters=counters,
            clock=clock,
            restored=self._restored,
            problems=self._problems,
            acknowledged=self._acknowledged,
            hand=self._hand,
            wake=lambda queue: self._wake[queue].set(),
        )
        self._is_stopping = False
        self._stopped = asyncio.Event()
        self._stop_by_ms = 0
        self._close_seconds = STOP_SECONDS * (1 - ANSWERS_SHARE)
        self._delivered: dict[tuple[str, int, int, str], bool] = {}
        """What the primary has acknowledged, and whether a copy of it was completed already."""
        self._cut_short: set[str] = set()
        self._ends_when_empty_ms: int | None = None
        self._restored_at: deque[int] = deque(maxlen=10_000)
        self._oldest: dict[str, int] = {}

    # --- life -------------------------------------------------------------------------------------

    async def run(self, *, once: bool = False) -> None:
        """Drain until stopped; with ``once`` until all that was there at the start is home.

        Raises:
            DrainStalledError: With ``once``: nothing has moved for a while, and only problems are left.
        """
        if once:
            self._ends_when_empty_ms = self._wall_clock()
        self._problems.begin(self._clock())
        pumps = [asyncio.ensure_future(self._pump(inbox)) for inbox in self._inboxes.values()]
        watch = asyncio.ensure_future(self._watch(is_bounded=once))
        all_pumps = asyncio.ensure_future(asyncio.wait(pumps))
        try:
            ends: list[asyncio.Future[Any]] = [all_pumps, watch]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if not all_pumps.done():
                # Whatever a pump waits for, it has until then to settle and to give back.
                await asyncio.wait(pumps, timeout=max(0, self._stop_by_ms - self._clock()) / 1000)
            for task in (*pumps, watch):
                if task.done():
                    task.result()
        finally:
            self.stop()
            all_pumps.cancel()
            await self._end([*pumps, watch, *self._senders.tasks()])
            self._refuse_withdrawals()
            await self._close_links()

    async def _watch(self, *, is_bounded: bool) -> None:
        """Return when the syphon was told to stop; raise when a drain that should end cannot."""
        while not self._stopped.is_set():
            try:
                async with asyncio.timeout(STALL_CHECK_SECONDS if is_bounded else None):
                    await self._stopped.wait()
            except TimeoutError:
                reason = self._problems.reason_to_give_up(self._clock())
                if reason is not None:
                    self.stop()
                    raise DrainStalledError(reason) from None

    def stop(self, seconds: float = STOP_SECONDS) -> None:
        """Let ``run`` come to its end within ``seconds``: polls are cut short, nothing new is received or sent."""
        if not self._is_stopping:
            self._stop_by_ms = self._clock() + int(seconds * ANSWERS_SHARE * 1000)
            self._close_seconds = seconds * (1 - ANSWERS_SHARE)
        self._is_stopping = True
        self._stopped.set()
        self._senders.stop()
        for queue, inbox in self._inboxes.items():
            inbox.interrupt()
            self._wake[queue].set()

    async def _close_links(self) -> None:
        ports: list[Inbox | Outlet] = [*self._inboxes.values(), self._outlet]
        closing = [asyncio.ensure_future(port.close()) for port in ports]
        _, late = await asyncio.wait(closing, timeout=self._close_seconds)
        for task in late:
            task.cancel()
        await asyncio.gather(*closing, return_exceptions=True)

    def wake(self) -> None:
        """A destination may be back: look again now."""
        self._senders.wake()
        for queue in self._inboxes:
            self._wake[queue].set()

    async def _end(self, tasks: Sequence[asyncio.Task[None]]) -> None:
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=self._close_seconds)

    def drain_rate_per_s(self) -> float:
        """Messages brought home per second, over the last ten seconds."""
        since = self._clock() - RATE_WINDOW_MS
        # Copied first: another thread may ask while this one counts.
        return sum(1 for at in list(self._restored_at) if at >= since) * 1000 / RATE_WINDOW_MS

    def oldest_age_ms(self) -> int | None:
        """How long the oldest message that is held or was just seen has been in the backlog."""
        times = list(self._oldest.values())
        return max(0, self._wall_clock() - min(times)) if times else None

    # --- a pump: receive and settle -----------------------------------------------------------------

    async def _pump(self, inbox: Inbox) -> None:
        pause = ERROR_PAUSE_S_MIN
        while True:
            try:
                if await self._turn(inbox):
                    return
                pause = ERROR_PAUSE_S_MIN
                self._problems.works("secondary", inbox.queue)
            except Exception as error:  # noqa: BLE001 - one bad turn must not end the pump; it is told and tried again
                logger.warning(
                    "backlog queue %s: %r; trying again in %s s",
                    inbox.queue,
                    error,
                    pause,
                    extra={"event": "syphon.pump_failed", "queue": inbox.queue},
                )
                self._problems.failed("secondary", inbox.queue, classify(error), one_line(error))
                self._plan.drop_queue(inbox.queue)
                await inbox.close()
                if self._is_stopping:
                    return
                await self._sleep(inbox.queue, pause)
                pause = min(pause * 2, ERROR_PAUSE_S_MAX)

    async def _turn(self, inbox: Inbox) -> bool:
        """Settle what is due, renew what is due, receive what there is room for. True: the pump has ended."""
        await self._settle(inbox)
        await self._renew(inbox)
        self._note_oldest(inbox.queue)
        if self._is_stopping:
            return await self._wind_up(inbox)
        if self._work[inbox.queue]:
            return False  # handed over while locks were renewed: a poll would not notice
        room = self._plan.room(inbox.queue, self._clock())
        if not room:
            await self._look_behind(inbox)
            if not self._plan.room(inbox.queue, self._clock()):
                await self._sleep(inbox.queue, self._seconds_without_room(inbox.queue))
            return False
        held = self._plan.held(inbox.queue)
        seconds = self._poll_seconds(inbox.queue)
        deliveries = await self._poll(inbox, min(room, RECEIVE_MAX), seconds)
        for delivery in deliveries:
            await self._take(inbox, delivery)
        if deliveries:
            return False
        return not held and not self._work[inbox.queue] and await self._is_done(inbox)

    async def _look_behind(self, inbox: Inbox) -> None:
        """Whether messages that could go are held up by those that stand still: looked at before anything more is locked."""
        after = self._plan.look_after(inbox.queue, self._clock())
        if after is not None:
            self._counters.receive_operations += 1
            self._plan.saw(inbox.queue, await inbox.paths_behind(after, SKIPPED_MAX), self._clock())

    async def _wind_up(self, inbox: Inbox) -> bool:
        """Give back what was not sent, and wait for the answers to what was."""
        await self._release_all(inbox)
        if self._work[inbox.queue]:
            return False
        if not self._plan.is_in_flight(inbox.queue) or self._clock() >= self._stop_by_ms:
            return True
        await self._sleep(inbox.queue, max(0.01, (self._stop_by_ms - self._clock()) / 1000))
        return False

    def _note_oldest(self, queue: str) -> None:
        oldest = self._plan.oldest_ms(queue)
        if oldest is not None:
            self._oldest[queue] = oldest
        else:
            self._oldest.pop(queue, None)

    async def _poll(self, inbox: Inbox, count: int, seconds: float) -> Sequence[Delivery]:
        """One receive, counted as it is billed: one that brings messages as those, one that brings none as itself.

        A poll that was cut short to settle something and is taken up again is the same poll.
        """
        if inbox.queue not in self._cut_short:
            self._counters.receives += 1
            self._counters.receive_operations += 1
        self._cut_short.discard(inbox.queue)
        begun_ms = self._clock()
        deliveries = await inbox.receive(count, seconds)
        self._counters.received += len(deliveries)
        self._counters.receive_operations += max(0, len(deliveries) - 1)
        if not deliveries and self._clock() - begun_ms < seconds * 900:
            self._cut_short.add(inbox.queue)
        return deliveries

    async def _is_done(self, inbox: Inbox) -> bool:
        if self._ends_when_empty_ms is None or self._plan.held(inbox.queue):
            return False
        return await inbox.is_empty(self._ends_when_empty_ms)

    def _poll_seconds(self, queue: str) -> float:
        if self._ends_when_empty_ms is not None:
            return ONCE_SECONDS
        # A poll may wait long only when nothing of this queue needs the link meanwhile.
        until = self._seconds_to_renewal(queue)
        return POLL_SECONDS if until is None else min(POLL_SECONDS, until)

    def _seconds_without_room(self, queue: str) -> float:
        """Till the next look: a destination may turn out to stand still, and make room, without anybody telling."""
        renewal = self._seconds_to_renewal(queue)
        return SLOW_MS / 1000 if renewal is None else min(SLOW_MS / 1000, renewal)

    def _seconds_to_renewal(self, queue: str) -> float | None:
        at = self._plan.next_renewal(queue)
        return None if at is None else max(0.05, (at - self._clock()) / 1000)

    async def _sleep(self, queue: str, seconds: float | None) -> None:
        event = self._wake[queue]
        try:
            async with asyncio.timeout(seconds if seconds is not None else BUSY_POLL_SECONDS):
                await event.wait()
        except TimeoutError:
            return
        finally:
            event.clear()

    async def _take(self, inbox: Inbox, delivery: Delivery) -> None:
        """Restore a message and put it in line, or set it aside."""
        if delivery.payload is None:
            await inbox.release([delivery.token])
            return
        try:
            restored = self._restored(delivery.payload, delivery.enqueued_ms)
        except InvalidParkedPropertyError as error:
            await self._dead_letter(inbox, delivery.token, delivery.sequence_number, error.reason, str(error))
            return
        message = BacklogMessage(
            inbox.queue,
            delivery.sequence_number,
            restored.path,
            restored.payload,
            restored.message_id_text,
            restored.session_id,
            restored.partition_key,
            delivery.locked_until_ms,
            token=delivery.token,
            lock_ms=max(1_000, delivery.locked_until_ms - self._clock()),
            enqueued_ms=delivery.enqueued_ms,
            detour=_detour(restored),
            parked=delivery.payload if restored.time_to_live_ms is not None else None,
            restored_ms=self._clock(),
        )
        if self._plan.holds_copy(message) or self._plan.should_skip(message, self._clock()):
            self._counters.passed_over += 1
            return
        if message.identity in self._delivered:
            # The primary has acknowledged it. Either the lock was lost after the send, or a backlog queue that did not
            # answer its sender had stored a copy.
            self._work[inbox.queue].append(message)
            return
        message.in_doubt_since_ms = self._in_doubt_since_ms(message)
        refusal = self._plan.received(message)
        if refusal is not None:
            await self._dead_letter(
                inbox, delivery.token, delivery.sequence_number, refusal.reason, refusal.description
            )
            return
        self._senders.ensure(message.path)

    def _restored(self, payload: bytes, enqueued_ms: int | None) -> Restored:
        return restore_to_send(
            payload,
            now_ms=self._wall_clock(),
            enqueued_ms=enqueued_ms,
            life=self._life,
            primary=self._primary,
        )

    def _in_doubt_since_ms(self, message: BacklogMessage) -> int | None:
        key = (message.queue, message.sequence_number)
        entry = self._ledger.doubt(key, message.message_id, message.enqueued_ms)
        return None if entry is None else entry.since_ms

    # --- settling -----------------------------------------------------------------------------------

    async def _settle(self, inbox: Inbox) -> None:
        work = self._work[inbox.queue]
        while work:
            messages: list[BacklogMessage] = []
            while work and len(messages) < SETTLE_MAX and isinstance(work[0], BacklogMessage):
                messages.append(work.popleft())  # type: ignore[arg-type]  # just looked at
            if messages:
                await self._complete(inbox, messages)
                continue
            item = work.popleft()
            if isinstance(item, DeadLetter):
                message = item.message
                await self._dead_letter(
                    inbox, message.token, message.sequence_number, item.reason, item.description
                )
                self._ledger.end([(message.queue, message.sequence_number)])
            elif isinstance(item, Withdrawal):
                await self._withdraw(inbox, item)

    async def withdraw(self, queue: str, message_id: str, detour: tuple[str, int]) -> bool:
        """Remove a message that this syphon holds and has not sent. False when it does not hold it."""
        message = None if self._is_stopping else self._plan.withdraw(queue, message_id, detour)
        if message is None:
            return False
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._hand(queue, Withdrawal(message, done))
        return await done

    async def _withdraw(self, inbox: Inbox, item: Withdrawal) -> None:
        is_done = False
        try:
            is_done = bool(await inbox.complete([item.message]))
        finally:
            item.answer(is_done=is_done)

    def _refuse_withdrawals(self) -> None:
        """Whoever still waits for one waits in vain: the pumps have ended."""
        for work in self._work.values():
            for item in work:
                if isinstance(item, Withdrawal):
                    item.answer(is_done=False)

    async def _complete(self, inbox: Inbox, messages: Sequence[BacklogMessage]) -> None:
        """Remove messages that the primary has from their backlog queue."""
        done = await inbox.complete(messages)
        # The destination has the others too, and they come again: their entries in the ledger stay open, also for the
        # next run.
        self._counters.possible_duplicates += len(messages) - len(done)
        if not done:
            return
        now = self._clock()
        self._ledger.end([(message.queue, message.sequence_number) for message in done])
        self._problems.moved(now)
        for message in done:
            if self._delivered.get(message.identity):
                self._counters.repeats_dropped += 1
            else:
                self._counters.restored += 1
                self._restored_at.append(now)
            if message.identity in self._delivered:
                self._delivered[message.identity] = True
        if not self._plan.held(inbox.queue) and not self._work[inbox.queue]:
            self._tell("drained", inbox.queue, "every message received so far is home")

    async def _dead_letter(self, inbox: Inbox, token: object, number: int, reason: str, text: str) -> None:
        try:
            await inbox.dead_letter(token, reason, text)
        except LockLost:
            return  # it comes again and is set aside then
        self._counters.set_aside += 1
        self._problems.moved(self._clock())
        self._tell("set_aside", inbox.queue, f"message {number}: {reason}: {text}")

    async def _renew(self, inbox: Inbox) -> None:
        for message in self._plan.renewals(inbox.queue, self._clock()):
            if self._is_stopping:
                return
            try:
                message.locked_until_ms = await inbox.renew(message)
                self._counters.lock_renewals += 1
            except LockLost:
                self._plan.lock_lost(message)
                # One in flight is completed in vain later, and counted there.
                message.locked_until_ms = self._clock() + 60_000

    async def _release_all(self, inbox: Inbox) -> None:
        messages = self._plan.drop_queue(inbox.queue)
        if messages:
            with suppress(Exception):  # their locks lapse by themselves
                await inbox.release([message.token for message in messages])

    # --- between pumps and senders ---------------------------------------------------------------

    def _acknowledged(self, message: BacklogMessage) -> None:
        """The primary has a message: it may be completed (P34), and is known when it comes again (P36)."""
        self._delivered[message.identity] = False
        while len(self._delivered) > DELIVERED_MAX:
            del self._delivered[next(iter(self._delivered))]
        self._hand(message.queue, message)

    def _hand(self, queue: str, item: BacklogMessage | DeadLetter | Withdrawal) -> None:
        """Give a message back to its pump, which alone may settle it."""
        self._work[queue].append(item)
        self._inboxes[queue].interrupt()
        self._wake[queue].set()


def _detour(restored: Restored) -> tuple[str, int, int] | None:
    passport = restored.passport
    return (passport.factory, passport.detour, passport.first_send_ms) if passport is not None else None
