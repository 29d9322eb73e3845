"""One queue or subscription as the source sees it: browsed by number, settled by number."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from azure.servicebus.aio import ServiceBusClient as AsyncServiceBusClient
from azure.servicebus.exceptions import ServiceBusError

from pairbus.amqp.message.whole import decode_message
from pairbus.amqp.types import Symbol, Timestamp, Uuid
from pairbus.errors import UsageError
from pairbus.model.message import ACTIVE, DEFERRED
from pairbus.sdk.addresses import connect
from pairbus.sdk.failures import Failure, classify
from pairbus.sdk.links import browsing, handlers, quick
from pairbus.sdk.links import settling as sdk_settling
from pairbus.spark.connector.access import lasting_refusal
from pairbus.spark.connector.entity_kind import refuse_topic
from pairbus.spark.connector.offsets import Run, mark_of, numbers_of, runs_of

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusClient, ServiceBusReceivedMessage, ServiceBusReceiver

    from pairbus.errors import PairbusError
    from pairbus.spark.connector.options import SourceOptions

PAGE: Final = 250
RETRIES: Final = 5
RETRY_BACKOFF_SECONDS: Final = 0.8
"""As the official client waits between its attempts: with these, it outlasts most of a minute."""
SETTLE_PAGE: Final = 500
SETTLE_WAIT_SECONDS: Final = 1.0
SETTLE_EMPTY_MAX: Final = 2
"""After this many receives without a message the rest stays unsettled: another consumer holds it."""
SETTLE_SECONDS_MAX: Final = 600.0
OTHERS_MAX: Final = 5_000
"""Messages in front of the wanted ones that are held back meanwhile, so that the queue's head moves on."""


@dataclass(frozen=True, slots=True)
class Browsed:
    """A message that was looked at."""

    number: int
    is_active: bool
    session_id: str | None
    payload: bytes
    expires_ms: int | None = None
    """When its life ends, if it ends."""
    enqueued_ms: int = 0
    mark: int = 0
    """Tells it from a message of another entity with the same number (``offsets.mark_of``)."""
    is_deferred: bool = False


@dataclass(frozen=True, slots=True)
class Settlement:
    """What became of numbers that were to be settled."""

    owed: tuple[Run, ...] = ()
    """There, but locked by another consumer."""
    missing: tuple[Run, ...] = ()
    """No longer there: settled before, expired, or taken by another consumer."""
    foreign: tuple[int, ...] = ()
    """Numbers whose messages are not the ones that the batch read. They were not completed."""


class Entity:
    """One entity, connected to at the first use. Never pickled: each process opens its own."""

    def __init__(self, options: SourceOptions, *, is_task: bool = False) -> None:
        self._options = options
        self._is_task = is_task
        """In a task the driver has planned, and so knows that the entity can be read."""
        self._client: ServiceBusClient | None = None
        self._receiver: ServiceBusReceiver | None = None

    def close(self) -> None:
        for thing in (self._receiver, self._client):
            if thing is not None:
                with suppress(Exception):
                    thing.close()
        self._receiver = self._client = None

    def highest(self, known: int = 0) -> int | None:
        """The highest sequence number now, from ``known`` on; None when there is none."""
        return browsing.Browser(self._open()).highest(known)

    def browse(self, first: int, last: int | None = None) -> Iterator[Browsed]:
        """Messages with numbers from ``first`` to ``last``, in order."""
        number = first
        while last is None or number <= last:
            page = browsing.browse(self._open(), number, PAGE)
            if not page:
                return
            for payload in page:
                found = _browsed(payload)
                if last is not None and found.number > last:
                    return
                yield found
            number = found.number + 1

    def deferred(self) -> int:
        """How many messages are deferred. All messages of the entity are looked at."""
        return sum(message.is_deferred for message in self.browse(1))

    def browse_runs(self, runs: Sequence[Run]) -> Iterator[Browsed]:
        """Active messages with exactly these numbers; gaps are messages that expired."""
        if not runs:
            return
        wanted = set(numbers_of(runs))
        for found in self.browse(runs[0][0], runs[-1][1]):
            if found.is_active and found.number in wanted:
                yield found

    def settle(self, due: Mapping[int, int], last_ms: int) -> Settlement:
        """Complete the messages with these numbers and marks, as far as they are there and can be locked.

        When one of them is another message than its mark says, nothing is completed: the numbers then belong to another
        entity.

        Args:
            due: The mark of each number.
            last_ms: The latest enqueued time that any of these messages can have.
        """
        runs = runs_of(sorted(due))
        found = {message.number: message for message in self.browse_runs(runs)}
        foreign = [number for number, message in found.items() if not is_same(message, due[number], last_ms)]
        if foreign:
            return Settlement(foreign=tuple(foreign))
        missing = runs_of(number for number in numbers_of(runs) if number not in found)
        if not found:
            return Settlement(missing=missing)
        settling = _Settling({number: due[number] for number in found}, last_ms)
        asyncio.run(_settle(self._options, settling, [message.session_id for message in found.values()]))
        return Settlement(runs_of(sorted(settling.left)), missing, tuple(settling.foreign))

    def _open(self) -> Any:
        if self._receiver is None:
            self._client = quick.client_of(**self._options.access.connection(), retry_total=RETRIES)
            self._receiver = receiver_of(self._client, self._options)
            # Browsing needs no receiving link; without one, entities with sessions can be looked at as a whole.
            browsing.open_without_link(self._receiver)
            self._check_access(self._receiver)
        return self._receiver

    def _check_access(self, receiver: Any) -> None:
        """Look once without the client's own retries: a wrong key or name shows at once.

        Raises:
            PairbusError: The key was refused, there is no such entity, or it is a topic and given as a queue.
        """
        handlers.set_retries(receiver, 0)
        try:
            first = browsing.browse(receiver, 1, 1)
            # A topic holds no active message: only what looks like one is asked what it is.
            if not self._is_task and not (first and _browsed(first[0]).is_active):
                refuse_topic(self._options)
        except UsageError:
            self.close()
            raise
        except ServiceBusError as error:
            refusal = self.refusal(error)
            if refusal is not None:
                self.close()
                raise refusal from error
            # Anything else may pass: the caller's own request is retried.
        finally:
            handlers.set_retries(receiver, RETRIES, RETRY_BACKOFF_SECONDS)

    def refusal(self, error: BaseException) -> PairbusError | None:
        """One sentence for a wrong key or a missing entity; None for any other error."""
        return lasting_refusal(error, self._options.access.host(), self._options.entity, "listen")


def receiver_of(client: Any, options: SourceOptions, **settings: Any) -> Any:
    """A receiver of the entity that the options name."""
    if options.sub_queue:
        settings["sub_queue"] = quick.SUB_QUEUES[options.sub_queue]
    if options.queue:
        return client.get_queue_receiver(options.queue, **settings)
    return client.get_subscription_receiver(options.topic, options.subscription, **settings)


def is_same(message: Browsed, mark: int, last_ms: int) -> bool:
    """Whether a message is the one that a batch saw under its number."""
    return message.mark == mark and message.enqueued_ms <= last_ms


def _browsed(payload: bytes) -> Browsed:
    message = decode_message(payload)
    annotations = message.message_annotations
    number = annotations.get(Symbol("x-opt-sequence-number"))
    assert isinstance(number, int), "a browsed message has a sequence number"
    state = annotations.get(Symbol("x-opt-message-state"), ACTIVE)
    enqueued = annotations.get(Symbol("x-opt-enqueued-time"))
    enqueued_ms = enqueued.ms if isinstance(enqueued, Timestamp) else 0
    life = message.header[2] if len(message.header) > 2 else None
    expires_ms = enqueued_ms + life if enqueued_ms and isinstance(life, int) else None
    mark = mark_of(enqueued_ms, _id_bytes(message.properties.message_id))
    return Browsed(
        number,
        state == ACTIVE,
        message.properties.group_id,
        payload,
        expires_ms,
        enqueued_ms=enqueued_ms,
        mark=mark,
        is_deferred=state == DEFERRED,
    )


def _received_mark(message: ServiceBusReceivedMessage) -> tuple[int, int]:
    """The enqueued time and the mark of a message that the official client received."""
    raw = message.raw_amqp_message
    enqueued = (raw.annotations or {}).get(b"x-opt-enqueued-time")
    enqueued_ms = enqueued if isinstance(enqueued, int) else 0
    return enqueued_ms, mark_of(enqueued_ms, _id_bytes(raw.properties.message_id if raw.properties else None))


def _id_bytes(message_id: object) -> bytes:
    """A message id of any AMQP type as bytes: both decoders, ours and the official client's, give the same."""
    if isinstance(message_id, bytes):
        return message_id
    if isinstance(message_id, Uuid | uuid.UUID):
        return bytes(message_id.bytes)
    return b"" if message_id is None else str(message_id).encode()


class _Settling:
    """The messages that are still to be completed."""

    def __init__(self, due: dict[int, int], last_ms: int) -> None:
        self._due = due
        self._last_ms = last_ms
        self.left = set(due)
        self.foreign: list[int] = []

    def wants(self, message: ServiceBusReceivedMessage) -> bool:
        """Whether a locked message is one to complete. It may be a new one under an old number."""
        number = int(message.sequence_number or 0)
        if number not in self.left:
            return False
        enqueued_ms, mark = _received_mark(message)
        if mark == self._due[number] and enqueued_ms <= self._last_ms:
            return True
        self.foreign.append(number)
        return False


async def _settle(options: SourceOptions, settling: _Settling, sessions: Sequence[str | None]) -> None:
    async with connect(AsyncServiceBusClient, **options.access.connection(), retry_total=2) as client:
        try:
            async with quick.at_once(receiver_of(client, options)) as receiver:
                await _complete(receiver, settling, len(sessions))
            return
        except ServiceBusError as error:
            # An entity that requires sessions does not allow a receiver without one.
            if not any(sessions) or classify(error) is not Failure.INVALID:
                raise
        by_session: dict[str, int] = {}
        for session in sessions:
            if session is not None:
                by_session[session] = by_session.get(session, 0) + 1
        for session, count in by_session.items():
            with suppress(ServiceBusError):  # another consumer holds the session: its messages stay unsettled
                async with quick.at_once(receiver_of(client, options, session_id=session)) as receiver:
                    await _complete(receiver, settling, count)


async def _complete(receiver: Any, settling: _Settling, wanted: int) -> None:
    """Lock messages from the head on, complete those that are wanted, and give the others back at the end."""
    empty = 0
    others: list[ServiceBusReceivedMessage] = []
    deadline = time.monotonic() + SETTLE_SECONDS_MAX
    while (
        wanted > 0
        and empty < SETTLE_EMPTY_MAX
        and time.monotonic() < deadline
        and len(others) < OTHERS_MAX
        and not settling.foreign
    ):
        messages: list[ServiceBusReceivedMessage] = await receiver.receive_messages(
            max_message_count=min(wanted, SETTLE_PAGE), max_wait_time=SETTLE_WAIT_SECONDS
        )
        mine: list[ServiceBusReceivedMessage] = []
        passed: list[ServiceBusReceivedMessage] = []
        for message in messages:
            (mine if settling.wants(message) else passed).append(message)
        others += passed
        # One foreign message means that the entity was replaced: none of its messages is known.
        done = await sdk_settling.settle_all(receiver, mine) if mine and not settling.foreign else []
        if settling.foreign:
            others += mine
            break
        settled = {int(message.sequence_number or 0) for message, ok in zip(mine, done, strict=True) if ok}
        settling.left -= settled
        wanted -= len(settled)
        empty = 0 if settled or passed else empty + 1
    if others:
        await sdk_settling.settle_all(receiver, others, released=True)
