"""The pump inside one Spark task: lock a page, restore it, send it home, wait for acceptance, complete.

What to send, when to try again and what to set aside is decided by ``pairbus.drain.plan``, restoring is
``pairbus.pairing.parking``: the same code as the in-process syphon's. This shell only acts.

Guarantees: a message is completed only after the primary accepted it (P34); killed at any point, nothing is lost
and at most the window comes twice (P35, P36); nothing that is temporarily wrong sets a message aside (P38).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from azure.servicebus import ServiceBusReceivedMessage
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.exceptions import ServiceBusError

from pairbus.drain.azure_ports import AzureOutlet
from pairbus.drain.plan import BacklogMessage, DeadLetter, DrainPlan, NotFoundPolicy
from pairbus.drain.restoring import Life, restore_to_send
from pairbus.errors import InvalidParkedPropertyError
from pairbus.pairing.naming import PrimaryIdentity
from pairbus.sdk import browsing, handlers, receivers, settling
from pairbus.sdk.failures import classify
from pairbus.sdk.trust import reaching, trusting
from pairbus.spark.drain.order import in_order
from pairbus.spark.drain.report import TIME_IS_UP
from pairbus.spark.drain.rows import LOCK_LOST, MOVED, SET_ASIDE, WAITING, LedgerRow

if TYPE_CHECKING:
    from azure.servicebus.aio import ServiceBusReceiver

PAGE: Final = 100
WINDOW: Final = 300
"""Messages one task may have locked, over all its queues: times the tasks, the bound of repeats after a kill."""
MESSAGES_MAX: Final = 50_000
"""What one task moves in a slice at the most: its ledger rows are held in memory until it ends."""
SEND_SECONDS: Final = 15.0
"""A quarter of a backlog queue's lock: a send that takes longer is in doubt, and the lock still holds."""
EMPTY_SECONDS: Final = 1.0
"""How long a queue must show nothing to be called empty."""
BUSY_SECONDS: Final = 0.1
"""How long to look for more while sends are under way."""
CALM_SECONDS: Final = 0.5
"""How often to look whether a destination has gone away."""
PAUSE_SECONDS: Final = 2.0
"""How long a queue that shows nothing new is left alone while messages for an absent destination are held."""
REASON_CHARACTERS_MAX: Final = 300
DESCRIPTION_CHARACTERS_MAX: Final = 1_000
CLOSE_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PumpSettings:
    """What every task of a syphon is told."""

    primary: str = field(repr=False)
    secondary: str = field(repr=False)
    seconds: float = 10.0
    page: int = PAGE
    window: int = WINDOW
    messages_max: int = MESSAGES_MAX
    not_found: NotFoundPolicy = "dead-letter"
    deducts_life: bool = False
    identity: PrimaryIdentity | None = None
    """The primary; messages parked for another one are dead-lettered. None: do not compare."""
    is_ordered: bool = False
    empty_seconds: float = EMPTY_SECONDS
    authorities: str = field(default="", repr=False)
    """Certificate authorities to trust besides the public ones, as text: an executor has no file of ours."""


class _Lane:
    """One backlog queue in this task: its receiver, and what waits to be settled on it."""

    def __init__(self, queue: str, receiver: ServiceBusReceiver) -> None:
        self.queue = queue
        self.receiver = receiver
        self.accepted: list[BacklogMessage] = []
        self.aside: list[DeadLetter] = []
        self.quiet_until = 0.0
        self.lock_ms = 0
        """How long locks of this queue last, as seen."""


class TaskPump:
    """Pumps some backlog queues for a while. One per task; the rows tell what became of each message."""

    def __init__(self, settings: PumpSettings, queues: Sequence[str]) -> None:
        self._settings = settings
        self._queues = list(queues)
        # The plan counts per queue; the promise is per task.
        window = max(1, settings.window // max(1, len(self._queues)))
        self._plan = DrainPlan(not_found=settings.not_found, window=window, ready_max=window)
        self._rows: list[LedgerRow] = []
        self._received = 0
        self._reasons: dict[str, str] = {}
        self._sending: dict[str, asyncio.Task[None]] = {}
        self._lanes: dict[str, _Lane] = {}
        self._news = asyncio.Event()
        self._give_up = 0.0

    async def run(self) -> list[LedgerRow]:
        """Pump until every queue shows nothing, the time is spent, or the task's share is moved."""
        self._give_up = time.monotonic() + self._settings.seconds
        async with AsyncExitStack() as stack:
            primary = self._client(self._settings.primary, retry_total=0)
            self._outlet = AzureOutlet(primary)
            secondary = self._client(self._settings.secondary, retry_total=1)
            stack.push_async_callback(self._closed, secondary)
            stack.push_async_callback(self._closed, primary)
            stack.push_async_callback(self._close_outlet)
            retrying = asyncio.create_task(self._retry_absent())
            try:
                ends = await asyncio.gather(
                    *(self._drain(secondary, queue) for queue in self._queues), return_exceptions=True
                )
            finally:
                retrying.cancel()
                await asyncio.gather(retrying, *self._sending.values(), return_exceptions=True)
        for queue, end in zip(self._queues, ends, strict=True):
            if isinstance(end, BaseException):
                # One bad queue must not stop the others; the driver hears of it and plans it again.
                self._note(queue, 0, "", "", WAITING, f"{queue}: {_first_line(end)}", 0, 0)
        return self._rows

    def _client(self, connection_string: str, retry_total: int) -> ServiceBusClient:
        options: dict[str, Any] = {"ssl_context": trusting(self._settings.authorities)}
        options |= reaching(connection_string)
        return ServiceBusClient.from_connection_string(
            connection_string, retry_total=retry_total, logging_enable=False, **options
        )

    async def _closed(self, client: ServiceBusClient) -> None:
        with suppress(Exception):
            await asyncio.wait_for(client.close(), CLOSE_SECONDS)

    async def _close_outlet(self) -> None:
        """Close all links at once: one after the other, many destinations would take a slice's time."""
        senders = list(self._outlet._senders.values())
        self._outlet._senders.clear()
        with suppress(asyncio.TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await asyncio.gather(*(sender.close() for sender in senders), return_exceptions=True)

    # --- one backlog queue ------------------------------------------------------------------------

    async def _drain(self, secondary: ServiceBusClient, queue: str) -> None:
        async with AsyncExitStack() as stack:
            receiver = secondary.get_queue_receiver(queue)
            # Reopening is ours to do, in the next slice: the hook belongs to one link.
            handlers.set_retries(receiver, 0)
            stack.push_async_callback(self._close_receiver, receiver)
            await receiver.__aenter__()
            receivers.keep_payloads(receiver)
            lane = self._lanes[queue] = _Lane(queue, receiver)
            try:
                await self._pump(lane)
            finally:
                await self._let_go(lane)

    async def _pump(self, lane: _Lane) -> None:
        while True:
            self._news.clear()
            await self._settle(lane)
            if self._is_over() or not await self._receive(lane):
                break
            self._send_what_may_go()
            await self._renew(lane)

    def _is_over(self) -> bool:
        return time.monotonic() >= self._give_up or self._received >= self._settings.messages_max

    async def _receive(self, lane: _Lane) -> bool:
        """Lock some more messages. False when the queue is empty."""
        held = self._plan.held(lane.queue)
        room = min(self._plan.room(lane.queue), self._settings.page)
        if room == 0 or (held and time.monotonic() < lane.quiet_until):
            await self._wait_for_news()
            return True
        wait = BUSY_SECONDS if held or lane.accepted else self._settings.empty_seconds
        messages = await lane.receiver.receive_messages(max_message_count=room, max_wait_time=wait)
        if not messages:
            lane.quiet_until = time.monotonic() + PAUSE_SECONDS
            return bool(held or lane.accepted or lane.aside or self._plan.held(lane.queue))
        lane.quiet_until = 0.0
        if self._settings.is_ordered:
            messages = await self._in_order(lane, messages)
        self._received += len(messages)
        for message in messages:
            self._take(lane, message)
        return True

    async def _in_order(
        self, lane: _Lane, messages: list[ServiceBusReceivedMessage]
    ) -> list[ServiceBusReceivedMessage]:
        """Give back what came before its turn: an older message is locked by somebody else, a dead task perhaps."""
        mine = set(self._plan_numbers(lane))
        numbers = [int(message.sequence_number or 0) for message in messages]
        browsed = await browsing.browse_async(lane.receiver, 1, len(mine) + len(numbers) + 1)
        turn = in_order(browsed, mine, numbers)
        early = messages[turn:]
        if early:
            await settling.settle_all(lane.receiver, early, released=True)
            lane.quiet_until = time.monotonic() + PAUSE_SECONDS
            await asyncio.sleep(BUSY_SECONDS)
        return messages[:turn]

    def _plan_numbers(self, lane: _Lane) -> list[int]:
        letters = [*self._plan._of(lane.queue), *lane.accepted]
        return [letter.sequence_number for letter in letters] + [
            item.message.sequence_number for item in lane.aside
        ]

    def _take(self, lane: _Lane, message: ServiceBusReceivedMessage) -> None:
        now = _now_ms()
        enqueued = _milliseconds(message.enqueued_time_utc)
        letter = BacklogMessage(
            queue=lane.queue,
            sequence_number=int(message.sequence_number or 0),
            path="",
            payload=b"",
            message_id="",
            session_id=None,
            partition_key=None,
            locked_until_ms=_milliseconds(message.locked_until_utc),
            enqueued_ms=enqueued or None,
            token=message,
        )
        lane.lock_ms = max(lane.lock_ms, letter.locked_until_ms - now)
        payload = receivers.payload_of(message)
        assert payload is not None, "transfers are joined before a message is built"
        try:
            life: Life = "deduct" if self._settings.deducts_life else "freeze"
            restored = restore_to_send(
                payload,
                now_ms=now,
                enqueued_ms=enqueued or None,
                life=life,
                primary=self._settings.identity,
            )
        except InvalidParkedPropertyError as error:
            lane.aside.append(DeadLetter(letter, error.reason, str(error)))
            return
        letter.path, letter.payload = restored.path, restored.payload
        letter.message_id = restored.message_id_text
        letter.session_id, letter.partition_key = restored.session_id, restored.partition_key
        refused = self._plan.received(letter)
        if refused is not None:
            lane.aside.append(refused)

    async def _settle(self, lane: _Lane) -> None:
        """Complete what the primary accepted, and set aside what can never go."""
        accepted, lane.accepted = lane.accepted, []
        if accepted:
            try:
                confirmed = await settling.settle_all(
                    lane.receiver, [_message(letter) for letter in accepted]
                )
            except Exception:  # noqa: BLE001 - whatever the transport raises, nothing was confirmed
                confirmed = [False] * len(accepted)
            for letter, is_done in zip(accepted, confirmed, strict=True):
                self._note_letter(letter, MOVED if is_done else LOCK_LOST, "")
        aside, lane.aside = lane.aside, []
        for item in aside:
            with suppress(ServiceBusError):  # its lock was lost: it comes again and is judged again
                await lane.receiver.dead_letter_message(
                    _message(item.message),
                    reason=item.reason,
                    error_description=item.description[:DESCRIPTION_CHARACTERS_MAX],
                )
                self._note_letter(item.message, SET_ASIDE, f"{item.reason}: {item.description}")

    async def _renew(self, lane: _Lane) -> None:
        now = _now_ms()
        for letter in self._plan.renewals(lane.queue, now):
            # The plan knows locks of a minute; a queue may have shorter ones, and each renewal is a round trip.
            if letter.locked_until_ms - now > lane.lock_ms // 2:
                continue
            try:
                until = await lane.receiver.renew_message_lock(_message(letter))
                letter.locked_until_ms = _milliseconds(until)
            except (ServiceBusError, ValueError):
                self._plan.lock_lost(letter)

    async def _let_go(self, lane: _Lane) -> None:
        """Wait for sends under way, settle what they brought, and give the rest back."""
        wanted = [task for key, task in self._sending.items() if not task.done()]
        if wanted:
            await asyncio.wait(wanted, timeout=SEND_SECONDS + 1)
        with suppress(Exception):  # a broken link: what could not be settled or given back comes by itself
            await self._settle(lane)
        rest = self._plan.drop_queue(lane.queue)
        with suppress(Exception):
            if rest:
                await settling.settle_all(lane.receiver, [_message(letter) for letter in rest], released=True)
            for letter in rest:
                self._note_letter(
                    letter, WAITING, self._reasons.get(letter.path.strip("/").lower(), TIME_IS_UP)
                )

    async def _close_receiver(self, receiver: ServiceBusReceiver) -> None:
        with suppress(Exception):
            await asyncio.wait_for(receiver.close(), CLOSE_SECONDS)

    # --- destinations -----------------------------------------------------------------------------

    def _send_what_may_go(self) -> None:
        if time.monotonic() >= self._give_up:
            return
        for key in self._plan.lines():
            if key not in self._sending:
                batch = self._plan.next_batch(key, _now_ms())
                if batch:
                    self._sending[key] = asyncio.create_task(self._send(key, batch))

    async def _retry_absent(self) -> None:
        """Ask destinations that are away again when their pause is over."""
        while True:
            times = [at for key in self._plan.lines() if (at := self._plan.next_deadline(key)) is not None]
            pause = (min(times) - _now_ms()) / 1000 if times else CALM_SECONDS
            await asyncio.sleep(max(BUSY_SECONDS, pause))
            self._send_what_may_go()

    async def _send(self, key: str, batch: list[BacklogMessage]) -> None:
        try:
            while batch:
                await self._send_batch(key, batch)
                batch = [] if self._is_over() else self._plan.next_batch(key, _now_ms())
        finally:
            self._sending.pop(key, None)
            self._news.set()

    async def _send_batch(self, key: str, batch: list[BacklogMessage]) -> None:
        try:
            await asyncio.wait_for(self._outlet.send(batch[0].path.strip("/"), batch), SEND_SECONDS)
        except Exception as error:  # noqa: BLE001 - whatever the SDK raises is sorted by the one table
            failure = classify(error)
            self._reasons[key] = f"{failure.value}: {_first_line(error)}"
            for item in self._plan.send_failed(key, failure, _first_line(error), _now_ms()):
                self._lanes[item.message.queue].aside.append(item)
        except asyncio.CancelledError:
            self._plan.interrupted(key)
            raise
        else:
            self._reasons.pop(key, None)
            for letter in self._plan.sent(key):
                self._lanes[letter.queue].accepted.append(letter)
        self._news.set()

    async def _wait_for_news(self) -> None:
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._news.wait(), BUSY_SECONDS)

    # --- rows -------------------------------------------------------------------------------------

    def _note_letter(self, letter: BacklogMessage, outcome: str, reason: str) -> None:
        message = _message(letter)
        self._note(
            letter.queue,
            letter.sequence_number,
            letter.message_id,
            letter.path.strip("/"),
            outcome,
            reason,
            _milliseconds(message.enqueued_time_utc),
            int(message.delivery_count or 0) + 1,
        )

    def _note(
        self,
        queue: str,
        number: int,
        message_id: str,
        path: str,
        outcome: str,
        reason: str,
        enqueued: int,
        attempt: int,
    ) -> None:
        reason = reason[:REASON_CHARACTERS_MAX]
        row = LedgerRow(queue, number, message_id, path, outcome, reason, enqueued, _now_ms(), attempt)
        self._rows.append(row)


def _message(letter: BacklogMessage) -> ServiceBusReceivedMessage:
    assert isinstance(letter.token, ServiceBusReceivedMessage), letter.token
    return letter.token


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _milliseconds(moment: datetime | None) -> int:
    return 0 if moment is None else int(moment.timestamp() * 1000)


def pump(settings: PumpSettings, queues: Sequence[str]) -> list[LedgerRow]:
    """Pump in this process until done; for a Spark task."""
    return asyncio.run(TaskPump(settings, queues).run())
