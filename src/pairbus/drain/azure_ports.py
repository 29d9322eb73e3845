"""A drain's inbox and outlet on the asynchronous client of the SDK."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from azure.servicebus import ServiceBusSubQueue
from azure.servicebus.exceptions import (
    MessageAlreadySettled,
    MessageLockLostError,
    MessageNotFoundError,
)

from pairbus.drain.lookups.destination_index import DestinationIndex
from pairbus.drain.ports import CannotAsk, Delivery, LockLost, NotSent
from pairbus.drain.rules.destination_queue import BATCH_BYTES
from pairbus.drain.rules.message import LOCK_MS_DEFAULT, BacklogMessage
from pairbus.drain.rules.order import Seen
from pairbus.pairing.clock import steady_ms
from pairbus.pairing.naming import entity_key
from pairbus.pairing.parking import ALIAS_PARTITION, ALIAS_PASSPORT, ALIAS_PATH, ALIAS_SESSION
from pairbus.sdk.failures import Failure, classify
from pairbus.sdk.links import deferred, handlers, receivers, settling, silence
from pairbus.sdk.links.browsing import Browsed, open_without_link_async, page_of
from pairbus.sdk.messages import message_bytes

if TYPE_CHECKING:
    from datetime import datetime

    from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver, ServiceBusSender

SEND_SECONDS: Final = 30.0
OPEN_SECONDS: Final = 15.0
CLOSE_SECONDS: Final = 5.0
ASK_SECONDS: Final = 60.0
"""How long one look through a destination may take."""
NOT_ASKED_MS: Final = 300_000
"""How long a destination that does not show its messages is not asked again."""
NOT_ASKED_MAX: Final = 1_000
"""How many such destinations are remembered. Beyond that the first of them is asked again."""
INDEXES_MAX: Final = 100
LINKS_MAX: Final = 100
"""How many links, each with a connection of its own, are kept open to destinations."""
ENVELOPE_ROOM: Final = 20_000
LOCK_MS_MIN: Final = 5_000
"""No queue has shorter locks."""
DESCRIPTION_CHARACTERS_MAX: Final = 1_000
_LOCK_LOST: Final = (MessageLockLostError, MessageNotFoundError, MessageAlreadySettled)
_CANNOT_SHOW: Final = (Failure.UNAUTHORIZED, Failure.NOT_FOUND, Failure.INVALID, Failure.DISABLED)
_LINK_IS_FINE: Final = (Failure.TOO_LARGE, Failure.INVALID, Failure.QUOTA, Failure.BUSY)


class AzureInbox:
    """One backlog queue of the secondary, or its dead-letter queue."""

    def __init__(
        self,
        client: ServiceBusClient,
        queue: str,
        clock: Callable[[], int],
        wall_clock: Callable[[], int],
        *,
        is_dead: bool = False,
    ) -> None:
        self.queue = queue
        self._which: dict[str, Any] = {"sub_queue": ServiceBusSubQueue.DEAD_LETTER} if is_dead else {}
        self._client = client
        self._clock = clock
        self._wall_clock = wall_clock
        self._receiver: ServiceBusReceiver | None = None
        self._interrupt: Any = None
        self._is_interrupted = False
        self._browsers: dict[str, Any] = {}
        """Receivers without links for other backlog queues."""

    async def receive(self, count: int, seconds: float) -> Sequence[Delivery]:
        # Interrupts from here on count, also those that come while the link is opened.
        self._is_interrupted = False
        receiver = await self._open()
        if self._is_interrupted:
            return []
        self._interrupt(is_wanted=False)
        messages = await receiver.receive_messages(max_message_count=count, max_wait_time=seconds)
        return [self._delivery(message) for message in messages]

    async def receive_deferred(self, numbers: Sequence[int]) -> Sequence[Delivery]:
        messages = await deferred.receive(await self._open(), numbers, OPEN_SECONDS)
        return [self._delivery(message) for message in messages]

    def _delivery(self, message: Any) -> Delivery:
        return Delivery(
            int(message.sequence_number or 0),
            receivers.take_payload(message),
            self._steady(message.locked_until_utc),
            _milliseconds(message.enqueued_time_utc),
            message,
            int(message.delivery_count or 0) + 1,
        )

    def interrupt(self) -> None:
        self._is_interrupted = True
        if self._interrupt is not None:
            self._interrupt()

    async def complete(self, messages: Sequence[BacklogMessage]) -> Sequence[BacklogMessage]:
        """Remove messages with as few frames as their numbers allow. Returns those that are gone."""
        receiver = self._receiver
        # A lock belongs to the link it came on; after a reconnect the message is received again.
        held = [message for message in messages if settling.is_received_by(message.token, receiver)]
        if receiver is None or not held:
            return []
        done = await self._settle(receiver, [message.token for message in held])
        return [message for message, is_done in zip(held, done, strict=True) if is_done]

    async def _settle(self, receiver: Any, tokens: Sequence[Any], *, released: bool = False) -> list[bool]:
        """Settle messages: what came on the link there, and deferred ones by request. Whether each is settled."""
        by_request = [token for token in tokens if deferred.is_deferred(token)]
        if not by_request:
            return await settling.settle_all(receiver, tokens, released=released)
        on_link = [token for token in tokens if not deferred.is_deferred(token)]
        done = dict(
            zip(
                map(id, on_link), await settling.settle_all(receiver, on_link, released=released), strict=True
            )
        )
        done |= zip(
            map(id, by_request), await deferred.settle(receiver, by_request, released=released), strict=True
        )
        return [done[id(token)] for token in tokens]

    async def cancel(self, message: BacklogMessage) -> bool:
        receiver = self._receiver
        token: Any = message.token
        if receiver is None or not settling.is_received_by(token, receiver):
            return False
        try:
            await settling.cancel(_called, receiver, token)
        except _LOCK_LOST:
            return False
        return True

    async def dead_letter(self, token: Any, reason: str, description: str) -> None:
        details = {"reason": reason, "error_description": description[:DESCRIPTION_CHARACTERS_MAX]}
        receiver = self._receiver
        # The lock belongs to the link it came on; after a reconnect the message is received again.
        if receiver is None or not settling.is_received_by(token, receiver):
            raise LockLost
        try:
            await receiver.dead_letter_message(token, **details)
        except _LOCK_LOST as error:
            raise LockLost from error

    async def release(self, tokens: Sequence[Any]) -> None:
        receiver = self._receiver
        if receiver is not None:
            held = [token for token in tokens if settling.is_received_by(token, receiver)]
            await self._settle(receiver, held, released=True)

    async def renew(self, messages: Sequence[BacklogMessage]) -> Sequence[int | None]:
        receiver = self._receiver
        if receiver is None:
            return [None] * len(messages)
        try:
            ends = await receivers.renew_locks(
                receiver, [message.token for message in messages], OPEN_SECONDS
            )
        except _LOCK_LOST:
            # All or none: one of them is lost, and only halves tell which.
            if len(messages) == 1:
                return [None]
            half = len(messages) // 2
            return [*await self.renew(messages[:half]), *await self.renew(messages[half:])]
        return [self._steady(until) for until in ends]

    async def browse(self, number: int, count: int, queue: str | None = None) -> Sequence[Seen]:
        is_own = queue in (None, self.queue)
        receiver = await (self._open() if is_own else self._browser(str(queue)))
        try:
            async with asyncio.timeout(OPEN_SECONDS):
                return [_seen(browsed) for browsed in await page_of(receiver, number, count)]
        except TimeoutError as error:
            # The connection may be dead without an error, and the next request would wait for it too.
            if is_own:
                await self._close_receiver()
            elif self._browsers.get(str(queue)) is receiver:
                await _close(self._browsers.pop(str(queue)))
            raise TimeoutError(f"no answer for {OPEN_SECONDS:.0f} s, and its connection is left") from error

    async def _browser(self, queue: str) -> Any:
        browser = self._browsers.get(queue)
        if browser is None:
            browser = open_without_link_async(self._client.get_queue_receiver(queue))
            handlers.set_retries(browser, 0)
            handlers.free_sockets(browser)
            try:
                async with asyncio.timeout(OPEN_SECONDS):
                    await browser.__aenter__()
            except BaseException:
                await _close(browser)
                raise
            self._browsers[queue] = browser
        return browser

    async def close(self) -> None:
        await self._close_receiver()
        browsers, self._browsers = list(self._browsers.values()), {}
        for browser in browsers:
            await _close(browser)

    async def _close_receiver(self) -> None:
        receiver, self._receiver, self._interrupt = self._receiver, None, None
        if receiver is not None:
            await _close(receiver)

    async def _open(self) -> ServiceBusReceiver:
        if self._receiver is None or not receivers.is_open(self._receiver):
            await self._close_receiver()
            receiver = self._client.get_queue_receiver(self.queue, **self._which)
            # Reopening is ours to do: the hooks below belong to one link.
            handlers.for_one_try(receiver)
            silence.ask_for_signs_of_life(receiver)
            try:
                async with asyncio.timeout(OPEN_SECONDS):
                    await receiver.__aenter__()
            except BaseException:
                await _close(receiver)
                raise
            receivers.keep_payloads(receiver)
            silence.leave_when_silent(receiver)
            self._interrupt = receivers.interruptible(receiver)
            self._receiver = receiver
        return self._receiver

    def _steady(self, until: datetime | None) -> int:
        """When a lock ends, on the steady clock.

        The broker's clock and ours may differ by minutes. The shortest lock of Service Bus and the lock of our backlog
        queues bound the result, so that a lock is renewed in time and not over and over.
        """
        ms = _milliseconds(until)
        left = LOCK_MS_DEFAULT if ms is None else ms - self._wall_clock()
        return self._clock() + min(max(left, LOCK_MS_MIN), LOCK_MS_DEFAULT)


class AzureOutlet:
    """Sends batches to entities of the primary over one link per destination, at most ``LINKS_MAX`` at a time."""

    def __init__(self, client: ServiceBusClient, clock: Callable[[], int] = steady_ms) -> None:
        self._client = client
        self._clock = clock
        self._indexes: dict[str, DestinationIndex] = {}
        self._not_asked_until: dict[str, int] = {}
        self._senders: dict[str, ServiceBusSender] = {}
        self._busy: dict[str, int] = {}

    async def send(self, path: str, messages: Sequence[BacklogMessage]) -> None:
        key = entity_key(path)
        async with self._in_use(key, path) as sender:
            await self._send(key, sender, messages)

    @asynccontextmanager
    async def _in_use(self, key: str, path: str) -> AsyncIterator[ServiceBusSender]:
        """The link to a destination, which no other send closes before the end of the block."""
        self._busy[key] = self._busy.get(key, 0) + 1
        try:
            yield self._link(key, path)
        finally:
            self._busy[key] -= 1
            if not self._busy[key]:
                del self._busy[key]
            await self._close_idle()

    async def _send(self, key: str, sender: ServiceBusSender, messages: Sequence[BacklogMessage]) -> None:
        size = sum(len(message.payload) for message in messages)
        limit = message_bytes.batch_limit(sender) or max(BATCH_BYTES + ENVELOPE_ROOM, size + ENVELOPE_ROOM)
        empty = message_bytes.new_batch(max(limit, size + ENVELOPE_ROOM), sender)
        batch = message_bytes.batch_of(empty, [message.payload for message in messages])
        assert len(batch) == len(messages)
        first = messages[0]
        message_bytes.address_envelope(batch, first.message_id or None, first.session_id, first.partition_key)
        is_sent = False
        try:
            async with asyncio.timeout(SEND_SECONDS + 1):
                if not handlers.is_open(sender):
                    await handlers.open_with_retries(sender)
                is_sent = True
                await sender.send_messages(batch, timeout=SEND_SECONDS)
        except BaseException as error:
            # After any other error the state of the link is not known.
            if not _leaves_link(error):
                if self._senders.get(key) is sender:
                    del self._senders[key]
                await _close(sender)
            if not is_sent and isinstance(error, Exception):
                raise NotSent from error
            raise

    def _link(self, key: str, path: str) -> ServiceBusSender:
        sender = self._senders.pop(key, None)
        if sender is None:
            sender = self._client.get_queue_sender(path)
            # A link that died while idle is opened again once; the plan decides what happens when that fails.
            handlers.set_retries(sender, 1)
            handlers.keep_link_after_refusals(sender, _leaves_link)
            handlers.free_sockets(sender)
            handlers.open_quickly(sender)
        self._senders[key] = sender  # at the end: the first is the least recently used
        return sender

    async def _close_idle(self) -> None:
        while len(self._senders) > LINKS_MAX:
            key = next((key for key in self._senders if key not in self._busy), None)
            if key is None:
                return
            await _close(self._senders.pop(key))

    async def largest(self, path: str) -> int:
        """The largest message, in bytes, that a destination takes; 0 when it does not say. Opens the link."""
        async with self._in_use(entity_key(path), path) as sender:
            async with asyncio.timeout(OPEN_SECONDS):
                await handlers.open_with_retries(sender)
            return handlers.largest_message(sender)

    async def already_delivered(
        self, path: str, messages: Sequence[BacklogMessage], ids: frozenset[str]
    ) -> Sequence[BacklogMessage]:
        """See Outlet. The destination is browsed once for all messages in doubt by now."""
        key = entity_key(path)
        now = self._clock()
        if now < self._not_asked_until.get(key, 0):
            raise CannotAsk
        index = self._indexes.pop(key, None) or DestinationIndex()
        self._indexes[key] = index
        while len(self._indexes) > INDEXES_MAX:
            del self._indexes[next(iter(self._indexes))]
        if index.must_look(messages):
            try:
                await self._look(index, path, ids, now)
            except Exception as error:
                if classify(error) not in _CANNOT_SHOW:
                    raise
                self._not_asked_until.pop(key, None)
                self._not_asked_until[key] = now + NOT_ASKED_MS  # at the end: the first is the oldest
                while len(self._not_asked_until) > NOT_ASKED_MAX:
                    del self._not_asked_until[next(iter(self._not_asked_until))]
                raise CannotAsk from error
        return index.take(messages)

    async def _look(self, index: DestinationIndex, path: str, ids: frozenset[str], now: int) -> None:
        receiver = open_without_link_async(self._client.get_queue_receiver(path))
        handlers.for_one_try(receiver)
        try:
            async with asyncio.timeout(ASK_SECONDS):
                async with asyncio.timeout(OPEN_SECONDS):
                    await receiver.__aenter__()
                await index.look(receiver, ids, now)
        finally:
            await _close(receiver)

    async def close(self) -> None:
        senders, self._senders = list(self._senders.values()), {}
        await asyncio.gather(*(_close(sender) for sender in senders))


def _leaves_link(error: BaseException) -> bool:
    """Whether an error is an answer to a message, which leaves the link as it was."""
    return classify(error) in _LINK_IS_FINE


async def _close(handler: Any) -> None:
    with suppress(Exception):
        async with asyncio.timeout(CLOSE_SECONDS):
            await handler.close()


def _seen(browsed: Browsed) -> Seen:
    key = browsed.text_property(ALIAS_SESSION)
    if key is None:
        key = browsed.text_property(ALIAS_PARTITION)
    return Seen(
        browsed.sequence_number,
        browsed.text_property(ALIAS_PATH) or "",
        key if browsed.is_active or browsed.is_deferred else None,
        browsed.enqueued_ms,
        browsed.text_property(ALIAS_PASSPORT) or "",
        browsed.is_active,
        browsed.is_deferred,
    )


def _milliseconds(when: datetime | None) -> int | None:
    return None if when is None else int(when.timestamp() * 1000)


async def _called(work: Callable[..., Awaitable[object]], *given: object) -> object:
    return await work(*given)
