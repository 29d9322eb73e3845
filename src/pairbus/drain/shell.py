"""The drain's shell: one task per backlog queue that receives and settles. ``senders`` has one task per destination.

Only these two modules wait. ``plan`` decides what to do, and ``in_doubt`` keeps what may have been sent. The same shell
drains in the process of a paired client, in ``pairbus syphon``, in a Spark task (with a budget) and in the simulation;
they differ only in the ports they pass in.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from pairbus.drain.closing import close_all
from pairbus.drain.in_doubt import DoubtfulSends
from pairbus.drain.lookups.deferred import DeferredMessages
from pairbus.drain.lookups.older import FOLLOW_MS, OlderMessages
from pairbus.drain.lookups.search import FindQueues, QueueSearch
from pairbus.drain.lookups.waits import Waits
from pairbus.drain.ports import Budget, Delivery, Inbox, LockLost, Observer, Outlet
from pairbus.drain.progress import Progress
from pairbus.drain.renewing import renew_due
from pairbus.drain.rules.delivered import Delivered
from pairbus.drain.rules.left_locked import LeftLocked
from pairbus.drain.rules.message import BacklogMessage, DeadLetter
from pairbus.drain.rules.order import OrderPolicy, TooManyElsewhere
from pairbus.drain.rules.plan import DrainPlan
from pairbus.drain.rules.problems import Problem, Problems, pause_seconds, refuses_receivers
from pairbus.drain.rules.restoring import TimeToLivePolicy, fill, received, restore_to_send
from pairbus.drain.rules.sharing import SharedQueues
from pairbus.drain.senders import Senders, one_line
from pairbus.drain.withdrawal import Withdrawal, answer_unsettled
from pairbus.errors import DrainStalledError, InvalidParkedPropertyError
from pairbus.pairing.naming import PrimaryIdentity, entity_key
from pairbus.pairing.parking import Restored
from pairbus.pairing.statistics import Counters
from pairbus.sdk.failures import classify

RECEIVE_MAX: Final = 100
SETTLE_MAX: Final = 300
"""How many messages are completed with one request."""
QUEUE_FAILURES_MAX: Final = 3
"""A drain with a budget gives a backlog queue up after so many failures in a row; its driver plans the queue again."""
STOP_SECONDS: Final = 4.0
"""How long a drain that is asked to stop may take."""
BUDGET_STOP_SECONDS: Final = 25.0
"""The same for a drain whose time is spent: nobody waits at a terminal, and an answer that is awaited saves a repeat."""
ANSWERS_SHARE: Final = 0.6
"""The part of it that is spent on waiting for answers, so that nothing is delivered twice; the rest is for closing links."""
STALL_CHECK_SECONDS: Final = 1.0

logger = logging.getLogger("pairbus.syphon")


class Drain:
    """Drains backlog queues into their primary until stopped.

    Args:
        inboxes: The backlog queues.
        outlet: The way to the primary.
        plan: The decisions.
        doubts: The sends in doubt.
        counters: Where to count.
        clock: A steady clock in milliseconds.
        wall_clock: The time of day in milliseconds.
        time_to_live: Whether time in the backlog counts towards a message's time to live.
        observer: Called with what happens.
        identity: The primary; messages parked for another one are dead-lettered. None: do not compare.
        budget: Bounds after which the drain ends by itself. None: it goes on until stopped.
        order: ``session``: keep the order of every message with a session. ``relaxed``: of those whose client keeps it.
        follow_ms: How long a message waits for the one of another backlog queue that it follows.
        find: Finds backlog queues that appear later. None, or a drain that ends by itself: those given are all.
    """

    def __init__(
        self,
        inboxes: Sequence[Inbox],
        outlet: Outlet,
        *,
        plan: DrainPlan,
        doubts: DoubtfulSends,
        counters: Counters,
        clock: Callable[[], int],
        wall_clock: Callable[[], int],
        time_to_live: TimeToLivePolicy = "freeze",
        observer: Observer | None = None,
        identity: PrimaryIdentity | None = None,
        budget: Budget | None = None,
        order: OrderPolicy = "relaxed",
        follow_ms: int = FOLLOW_MS,
        find: FindQueues | None = None,
    ) -> None:
        self._inboxes: dict[str, Inbox] = {}
        self._outlet = outlet
        self._plan = plan
        self._doubts = doubts
        self._counters = counters
        self._clock = clock
        self._wall_clock = wall_clock
        self._time_to_live = time_to_live
        self._observer = observer or Observer()
        self._primary = identity
        self._budget = budget
        self._order = order
        self._shared = SharedQueues()
        self._work: dict[str, deque[BacklogMessage | DeadLetter | Withdrawal]] = {}
        self._wake: dict[str, asyncio.Event] = {}
        self._tasks: list[asyncio.Future[None]] = []
        self._problems = Problems(self._observer)
        self._search = QueueSearch(find, self._start, clock, self._problems)
        self._older = OlderMessages(plan, counters, clock, self._observer, follow_ms, self._search.misses)
        for inbox in inboxes:
            self._have(inbox)
        self._senders = Senders(
            outlet=outlet,
            plan=plan,
            doubts=doubts,
            counters=counters,
            clock=clock,
            restored=self._restored,
            problems=self._problems,
            acknowledged=self._acknowledged,
            settle=self._hand_back,
            wake_queue=lambda queue: self._wake[queue].set(),
            ended=self._task_ended,
        )
        self._stopped = asyncio.Event()
        self._fault: BaseException | None = None
        """The error that ended one of the tasks."""
        self._stop_by_ms = 0
        self._close_seconds = STOP_SECONDS * (1 - ANSWERS_SHARE)
        self._received = 0
        self._left = LeftLocked()
        """Messages left locked in their queues: released when the drain ends."""
        self._delivered = Delivered()
        self._cut_short: set[str] = set()
        self._ends_when_empty_ms: int | None = None
        self._progress = Progress()
        self._deferred = DeferredMessages(counters, clock)
        looks = self._older.seconds_to_look, self._deferred.seconds_to_look
        self._waits = Waits(plan, self._shared, *looks, clock, budget)

    # --- life -------------------------------------------------------------------------------------

    async def run(self, *, once: bool = False) -> None:
        """Drain until stopped or the budget is spent; with ``once`` until all that was there at the start is delivered.

        Raises:
            DrainStalledError: With ``once``: nothing has moved for a while, and only problems or deferred messages are left.
        """
        if once:
            self._ends_when_empty_ms = self._wall_clock()
            self._waits.is_once = True
        self._problems.moved(self._clock())
        for inbox in self._inboxes.values():
            self._watch_task(asyncio.ensure_future(self._drain_queue(inbox)))
        if not once and self._budget is None:
            self._watch_task(self._search.start())
        watch = asyncio.ensure_future(self._watch())
        all_queues = asyncio.ensure_future(self._wait_for_queues())
        try:
            ends: list[asyncio.Future[Any]] = [all_queues, watch]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if not all_queues.done():
                # Whatever a task waits for, it has until then to settle and to release.
                await asyncio.wait([all_queues], timeout=max(0, self._stop_by_ms - self._clock()) / 1000)
            if self._fault is not None:
                raise self._fault
            if watch.done():
                watch.result()
            if not self._stopped.is_set():
                self._deferred.check()
        finally:
            self.stop()
            all_queues.cancel()
            tasks = [*self._tasks, watch, *self._senders.tasks()]
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=self._close_seconds)
            answer_unsettled((item for work in self._work.values() for item in work), self._observer)
            await close_all([*self._inboxes.values(), self._outlet], self._close_seconds)

    def _have(self, inbox: Inbox) -> None:
        self._inboxes[inbox.queue] = inbox
        self._work[inbox.queue] = deque()
        self._wake[inbox.queue] = asyncio.Event()
        self._search.has(inbox.queue)

    def _start(self, inbox: Inbox) -> None:
        """Drain a backlog queue that has appeared."""
        self._have(inbox)
        self._observer.found(inbox.queue)
        self._watch_task(asyncio.ensure_future(self._drain_queue(inbox)))

    def _watch_task(self, task: asyncio.Future[None]) -> None:
        self._tasks.append(task)
        task.add_done_callback(self._task_ended)

    def _task_ended(self, task: asyncio.Future[None]) -> None:
        """No task may fail, because no other would do its work: an error in one ends the drain."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fault = self._fault or error
            self.stop()

    async def _wait_for_queues(self) -> None:
        while running := [task for task in self._tasks if not task.done()]:
            await asyncio.wait(running)

    async def _watch(self) -> None:
        """Return when the drain was stopped or its time is spent; raise when a drain that should end cannot."""
        seconds = STALL_CHECK_SECONDS if self._ends_when_empty_ms is not None else None
        if self._budget is not None:
            seconds = self._budget.seconds
        while not self._stopped.is_set():
            try:
                async with asyncio.timeout(seconds):
                    await self._stopped.wait()
            except TimeoutError:
                if self._budget is not None:
                    self.stop(BUDGET_STOP_SECONDS)
                    return
                reason = self._problems.reason_to_give_up(self._clock())
                if reason is not None:
                    self.stop()
                    raise DrainStalledError(reason) from None

    def stop(self, seconds: float = STOP_SECONDS) -> None:
        """Let ``run`` end within ``seconds``: polls are cut short, nothing new is received or sent."""
        if not self._stopped.is_set():
            self._stop_by_ms = self._clock() + int(seconds * ANSWERS_SHARE * 1000)
            self._close_seconds = seconds * (1 - ANSWERS_SHARE)
        self._stopped.set()
        self._search.stop()
        self._senders.stop()
        for queue, inbox in self._inboxes.items():
            inbox.interrupt()
            self._wake[queue].set()

    def wake(self) -> None:
        """Look again now: a destination may be available again."""
        self._senders.wake()
        for event in self._wake.values():
            event.set()

    def problems(self) -> list[Problem]:
        """Backlog queues that do not work at present."""
        return self._problems.of("secondary")

    def progress(self) -> tuple[int | None, float]:
        """The age in ms of the oldest message that is held, and messages delivered per second."""
        return self._progress.oldest_age_ms(self._wall_clock()), self._progress.rate_per_s(self._clock())

    # --- one backlog queue: receive and settle -----------------------------------------------------

    async def _drain_queue(self, inbox: Inbox) -> None:
        failures = 0
        while True:
            try:
                if await self._step(inbox):
                    return
                failures = 0
                self._problems.works("secondary", inbox.queue)
            except Exception as error:  # noqa: BLE001 - one failed step must not end the drain; it is reported and tried again
                is_plain = isinstance(error, TooManyElsewhere)
                failure, text = classify(error), str(error) if is_plain else one_line(error)
                pause = pause_seconds(failure, failures)
                failures = min(failures + 1, 10)
                logger.warning(
                    "backlog queue %s: %s; trying again in %s s",
                    inbox.queue,
                    text,
                    pause,
                    extra={"event": "syphon.pump_failed", "queue": inbox.queue},
                )
                details = {"is_plain": is_plain, "is_refused": refuses_receivers(error)}
                self._problems.failed("secondary", inbox.queue, failure, text, **details)
                self._plan.drop_queue(inbox.queue)
                self._shared.forget(inbox.queue)
                self._deferred.lost(inbox.queue)
                await inbox.close()
                is_given_up = self._budget is not None and failures >= QUEUE_FAILURES_MAX
                if self._stopped.is_set() or is_given_up:
                    return
                await self._sleep(inbox.queue, pause)

    async def _step(self, inbox: Inbox) -> bool:
        """Settle what is due, renew what is due, and receive if there is capacity. True: the queue is done."""
        queue = inbox.queue
        await self._settle(inbox)
        await self._renew(inbox)
        self._progress.note_oldest(queue, self._plan.oldest_ms(queue))
        if self._stopped.is_set():
            return await self._wind_up(inbox)
        for path in await self._older.look_again(inbox):
            self._senders.ensure(path)
        await self._take(inbox, ())
        if self._work[queue]:
            return False  # handed back while locks were renewed: a poll would not notice
        if self._budget is not None and self._received >= self._budget.messages:
            return await self._finish(inbox)
        if not self._plan.held(queue) and (pause_ms := self._shared.pause_ends_ms(queue) - self._clock()) > 0:
            await self._sleep(queue, pause_ms / 1000)
            return False
        capacity = self._plan.capacity(queue, self._clock())
        if not capacity:
            if await self._step_back(inbox, is_full=True):
                return False
            await self._older.browse_behind(inbox)
            if not self._plan.capacity(queue, self._clock()):
                await self._sleep(queue, self._waits.seconds_without_capacity(queue))
            return False
        return await self._receive(inbox, capacity)

    async def _receive(self, inbox: Inbox, capacity: int) -> bool:
        """Receive what there is capacity for, and look for deferred messages when nothing comes. True: the queue is done."""
        queue = inbox.queue
        held = self._plan.held(queue)
        most = self._shared.most(queue, min(capacity, RECEIVE_MAX))
        deliveries = await self._poll(inbox, most, self._waits.poll_seconds(queue))
        await self._take(inbox, deliveries)
        if await self._step_back(inbox) or deliveries or self._work[queue]:
            return False
        if not self._is_quiet(queue, held):
            return False
        numbers = self._plan.numbers(queue)
        deferred = await self._deferred.receive(inbox, self._ends_when_empty_ms, numbers)
        await self._take(inbox, deferred)
        if deferred or numbers:
            return False
        if self._ends_when_empty_ms is not None:
            return self._deferred.is_all(queue)
        return self._budget is not None

    def _is_quiet(self, queue: str, held: int) -> bool:
        """Whether a poll without messages means that nothing moves here. ``held``: how many messages were held before it."""
        is_waiting = not self._plan.is_in_flight(queue) and bool(self._plan.note_held_up(queue))
        if (held or self._plan.held(queue)) and not is_waiting:
            return False
        return (
            queue not in self._cut_short
        )  # such a poll ended to settle something, and says nothing about the queue

    async def _finish(self, inbox: Inbox) -> bool:
        """Receive nothing more; end when everything that can be sent is delivered."""
        queue = inbox.queue
        is_stalled = self._plan.held(queue) == self._plan.stalled(queue, self._clock())
        if is_stalled and not self._plan.is_in_flight(queue):
            await self._release_all(inbox)
            return True
        await self._sleep(queue, self._waits.seconds_without_capacity(queue))
        return False

    async def _step_back(self, inbox: Inbox, *, is_full: bool = False) -> bool:
        """Leave a queue to other drains for a while, when everything that is held of it waits for what they have."""
        queue = inbox.queue
        oldest = self._plan.waits_for_others(queue)
        if oldest is not None and not self._shared.is_stuck(queue):
            for path in await self._older.look_again(inbox, at_once=True):
                self._senders.ensure(path)
            oldest = self._plan.waits_for_others(queue)
        if oldest is None:
            if self._plan.held(queue):
                self._shared.received(queue)
            return False
        is_back = self._shared.steps_back(queue, oldest, self._clock(), is_full=is_full)
        if (sentence := self._shared.sentence(queue, self._clock())) is not None:
            more = await self._older.what_follows(inbox, oldest) if self._shared.is_stuck(queue) else ""
            self._observer.waits(queue, sentence + more)
        if is_back:
            messages, numbers = self._plan.drop_waiting(queue)
            messages += self._left.take(queue, numbers)
            await inbox.release([message.token for message in messages])
        return is_back

    async def _wind_up(self, inbox: Inbox) -> bool:
        """Release what was not sent, and wait for the answers to what was."""
        await self._release_all(inbox)
        if self._work[inbox.queue]:
            return False
        if not self._plan.is_in_flight(inbox.queue) or self._clock() >= self._stop_by_ms:
            return True
        await self._sleep(inbox.queue, max(0.01, (self._stop_by_ms - self._clock()) / 1000))
        return False

    async def _poll(self, inbox: Inbox, count: int, seconds: float) -> Sequence[Delivery]:
        """One receive, counted as it is billed. One that is taken up again after it was cut short to settle something is the same."""
        if inbox.queue not in self._cut_short:
            self._counters.receives += 1
            self._counters.receive_operations += 1
        self._cut_short.discard(inbox.queue)
        begun_ms = self._clock()
        if self._budget is not None:
            count = min(count, self._budget.messages - self._received)
        deliveries = await inbox.receive(count, seconds)
        self._counters.received += len(deliveries)
        self._counters.receive_operations += max(0, len(deliveries) - 1)
        if not deliveries and self._clock() - begun_ms < seconds * 900:
            self._cut_short.add(inbox.queue)
        return deliveries

    async def _sleep(self, queue: str, seconds: float) -> None:
        event = self._wake[queue]
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await event.wait()
        event.clear()

    async def _take(self, inbox: Inbox, deliveries: Sequence[Delivery]) -> None:
        """Restore messages and hold them, skip them, or dead-letter them."""
        self._deferred.received(inbox.queue, [given.sequence_number for given in deliveries])
        messages = await self._read_all(inbox, deliveries)
        deferred = await self._deferred.lock(inbox, self._older.take_deferred(inbox.queue))
        older = await self._read_all(inbox, deferred)
        self._received += len(deliveries) + len(deferred)
        if deliveries:
            self._search.received()
        for message in (*older, *messages):
            await self._hold(inbox, message)

    async def _read_all(self, inbox: Inbox, deliveries: Sequence[Delivery]) -> list[BacklogMessage]:
        """The restored forms of messages, to be held: what is before them in their queue is accounted for."""
        messages = [one for given in deliveries if (one := await self._read(inbox, given)) is not None]
        await self._older.account_for(inbox, messages)
        return messages

    async def _read(self, inbox: Inbox, delivery: Delivery) -> BacklogMessage | None:
        """The restored form of a message; None when it is not to be sent."""
        if delivery.payload is None:
            await inbox.release([delivery.token])
            return None
        message = received(inbox.queue, delivery, self._clock())
        self._left.take(inbox.queue, [message.sequence_number])
        try:
            restored = self._restored(delivery.payload, delivery.enqueued_ms)
        except InvalidParkedPropertyError as error:
            await self._dead_letter(inbox, DeadLetter(message, error.reason, str(error)))
            return None
        fill(message, restored, delivery.payload, self._order)
        return message

    async def _hold(self, inbox: Inbox, message: BacklogMessage) -> None:
        copy = self._plan.copy_to_leave(message)
        younger = None if copy is message else self._plan.youngest_to_leave(message, self._clock())
        for one in (copy, younger):
            if one is not None:
                self._left.add(one)
        if copy is message or self._plan.should_skip(message, self._clock()):
            self._counters.passed_over += 1
            self._left.add(message)
            return
        if message.identity in self._delivered:
            # The primary has acknowledged it. Either the lock was lost after the send, or a backlog queue that did not
            # answer its sender had stored a copy.
            self._plan.order.received(*message.key)
            self._work[inbox.queue].append(message)
            return
        entry = self._doubts.doubt(message.key, message.message_id, message.enqueued_ms)
        message.in_doubt_since_ms = None if entry is None else entry.since_ms
        refusal = self._plan.add(message)
        if refusal is not None:
            await self._dead_letter(inbox, refusal)
            return
        self._senders.ensure(message.path)

    def _restored(self, payload: bytes, enqueued_ms: int | None) -> Restored:
        return restore_to_send(
            payload,
            now_ms=self._wall_clock(),
            enqueued_ms=enqueued_ms,
            time_to_live=self._time_to_live,
            primary=self._primary,
        )

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
                await self._dead_letter(inbox, item)
                self._doubts.end([item.message.key])
            elif isinstance(item, Withdrawal):
                await item.settle(inbox, self._counters)

    async def withdraw(self, queue: str, message_id: str, detour: tuple[str, int]) -> bool:
        """Remove a message that this drain holds and has not sent. False when it does not hold it."""
        message = None if self._stopped.is_set() else self._plan.withdraw(queue, message_id, detour)
        if message is None:
            return False
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._hand_back(queue, Withdrawal(message, done))
        return await done

    async def _complete(self, inbox: Inbox, messages: Sequence[BacklogMessage]) -> None:
        """Remove messages that the primary has from their backlog queue."""
        try:
            done = await inbox.complete(messages)
        except Exception:
            for message in messages:
                self._observer.completed(message, is_lock_lost=True)
            raise
        gone = {message.sequence_number for message in done}
        # The destination has the others too, and they are delivered again: they stay in doubt, also
        # for the next run.
        self._counters.possible_duplicates += len(messages) - len(done)
        if len(done) < len(messages):
            self._deferred.lost(inbox.queue)
        for message in messages:
            self._observer.completed(message, is_lock_lost=message.sequence_number not in gone)
        if not done:
            return
        now = self._clock()
        self._plan.order.settled(inbox.queue, gone)
        self._wake_followers(inbox.queue, gone)
        self._doubts.end([message.key for message in done])
        self._problems.moved(now)
        self._shared.delivered(inbox.queue)
        for message in done:
            if self._delivered.is_repeat(message.identity):
                self._counters.repeats_dropped += 1
            else:
                self._counters.restored += 1
                self._progress.delivered(now)
        if not self._plan.held(inbox.queue) and not self._work[inbox.queue]:
            self._observer.drained(inbox.queue)

    def _wake_followers(self, queue: str, numbers: set[int]) -> None:
        """Messages of a queue are done: others may have waited for them."""
        for follower in self._older.completed(queue, numbers).intersection(self._inboxes):
            self._inboxes[follower].interrupt()
            self._wake[follower].set()

    async def _dead_letter(self, inbox: Inbox, item: DeadLetter) -> None:
        message = item.message
        try:
            await inbox.dead_letter(message.token, item.reason, item.description)
        except LockLost:
            self._plan.note_elsewhere(message)
            return  # it is delivered again and dead-lettered then
        self._plan.order.received(*message.key)
        self._wake_followers(inbox.queue, {message.sequence_number})
        self._counters.set_aside += 1
        self._problems.moved(self._clock())
        goes_on = f"; session {message.order_key!r} goes on without it" if message.is_ordered else ""
        self._observer.dead_lettered(message, item.reason, item.description + goes_on)

    async def _renew(self, inbox: Inbox) -> None:
        """Release what is not worth its lock, and renew the locks of the others that are due."""
        returned = self._plan.take_to_release(inbox.queue, self._clock())
        if not self._stopped.is_set():
            returned += self._left.take(
                inbox.queue, self._plan.take_to_receive_again(inbox.queue, self._clock())
            )
            if returned:
                await inbox.release([message.token for message in returned])
        await renew_due(inbox, self._plan, self._counters, self._clock, self._stopped.is_set)

    async def _release_all(self, inbox: Inbox) -> None:
        """Release every message of a queue that is not in flight, skipped ones included."""
        now = self._clock()
        locked = [message for message in self._left.take(inbox.queue) if message.locked_until_ms > now]
        messages = [*self._plan.drop_queue(inbox.queue), *locked]
        if not messages:
            return
        with suppress(Exception):  # their locks lapse by themselves
            await inbox.release([message.token for message in messages])
        reasons = {entity_key(problem.subject): problem.reason for problem in self._problems.of("primary")}
        for message in messages:
            self._observer.released(message, reasons.get(entity_key(message.path), ""))

    # --- between queues and senders ---------------------------------------------------------------

    def _acknowledged(self, message: BacklogMessage) -> None:
        """The primary has a message: it may be completed (P34), and is recognised when it comes again (P36)."""
        self._delivered.add(message.identity)
        # A copy of the same place is the same message, delivered once more: it has the lock.
        for one in {copy.key: copy for copy in (message, *self._left.take_copies(message))}.values():
            self._plan.order.received(*one.key)
            self._plan.order.at_home(*one.key)
            if one is message or one.locked_until_ms > self._clock():
                self._hand_back(one.queue, one)

    def _hand_back(self, queue: str, item: BacklogMessage | DeadLetter | Withdrawal) -> None:
        """Give a message back to its queue's task, which alone may settle it."""
        self._work[queue].append(item)
        self._inboxes[queue].interrupt()
        self._wake[queue].set()
