"""One queue or subscription as the source sees it: browsed by number, settled by number."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from azure.servicebus.aio import ServiceBusClient as AsyncServiceBusClient
from azure.servicebus.exceptions import ServiceBusError

from pairbus.amqp.message import decode_message
from pairbus.amqp.types import Symbol, Timestamp
from pairbus.spark import sdk
from pairbus.spark.census import Browser
from pairbus.spark.offsets import Run, numbers_of, runs_of

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusClient, ServiceBusReceivedMessage, ServiceBusReceiver

    from pairbus.spark.options import SourceOptions

PAGE: Final = 250
SETTLE_PAGE: Final = 500
SETTLE_WAIT_SECONDS: Final = 1.0
SETTLE_EMPTY_MAX: Final = 2
"""After so many looks that bring nothing, the rest is owed: somebody else holds it."""
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


@dataclass(frozen=True, slots=True)
class Settlement:
    """What became of numbers that were to be settled."""

    owed: tuple[Run, ...] = ()
    """There, but held by somebody else."""
    missing: tuple[Run, ...] = ()
    """No longer there: settled before, expired, or taken by somebody else."""


class Entity:
    """A lazily opened way to one entity. Never pickled: each process opens its own."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._client: ServiceBusClient | None = None
        self._receiver: ServiceBusReceiver | None = None

    def close(self) -> None:
        """Let go."""
        for thing in (self._receiver, self._client):
            if thing is not None:
                with suppress(Exception):
                    thing.close()
        self._receiver = self._client = None

    def highest(self) -> int | None:
        """The highest sequence number now; None when the entity is empty."""
        return Browser(self._open()).highest()

    def browse(self, first: int, last: int | None = None) -> Iterator[Browsed]:
        """Messages with numbers from ``first`` to ``last``, in order."""
        number = first
        while last is None or number <= last:
            page = sdk.browse(self._open(), number, PAGE)
            if not page:
                return
            for payload in page:
                found = _browsed(payload)
                if last is not None and found.number > last:
                    return
                yield found
            number = found.number + 1

    def browse_runs(self, runs: Sequence[Run]) -> Iterator[Browsed]:
        """Active messages with exactly these numbers; gaps are messages that expired."""
        if not runs:
            return
        wanted = set(numbers_of(runs))
        for found in self.browse(runs[0][0], runs[-1][1]):
            if found.is_active and found.number in wanted:
                yield found

    def settle(self, runs: Sequence[Run]) -> Settlement:
        """Complete exactly these numbers, as far as they are there and can be locked."""
        present = {found.number: found.session_id for found in self.browse_runs(runs)}
        missing = runs_of(number for number in numbers_of(runs) if number not in present)
        left = asyncio.run(_settle(self._options, present)) if present else set()
        return Settlement(runs_of(sorted(left)), missing)

    def _open(self) -> Any:
        if self._receiver is None:
            self._client = sdk.client_of(**self._options.access.connection(), retry_total=5)
            self._receiver = receiver_of(self._client, self._options)
            # Browsing needs no receiving link; without one, entities with sessions can be looked at as a whole.
            sdk.open_without_link(self._receiver)
        return self._receiver


def receiver_of(client: Any, options: SourceOptions, **settings: Any) -> Any:
    """A receiver of the entity that the options name."""
    if options.sub_queue:
        settings["sub_queue"] = sdk.SUB_QUEUES[options.sub_queue]
    if options.queue:
        return client.get_queue_receiver(options.queue, **settings)
    return client.get_subscription_receiver(options.topic, options.subscription, **settings)


def _browsed(payload: bytes) -> Browsed:
    message = decode_message(payload)
    annotations = message.message_annotations
    number = annotations.get(Symbol("x-opt-sequence-number"))
    assert isinstance(number, int), "a browsed message has a sequence number"
    is_active = annotations.get(Symbol("x-opt-message-state"), 0) == 0
    enqueued = annotations.get(Symbol("x-opt-enqueued-time"))
    life = message.header[2] if len(message.header) > 2 else None
    expires_ms = enqueued.ms + life if isinstance(enqueued, Timestamp) and isinstance(life, int) else None
    return Browsed(number, is_active, message.properties.group_id, payload, expires_ms)


async def _settle(options: SourceOptions, present: dict[int, str | None]) -> set[int]:
    left = set(present)
    async with AsyncServiceBusClient.from_connection_string(
        **options.access.connection(), retry_total=2
    ) as client:
        try:
            async with sdk.at_once(receiver_of(client, options)) as receiver:
                await _complete(receiver, left, len(left))
            return left
        except ServiceBusError as error:
            if not any(present.values()) or "session" not in str(error).lower():
                raise
        by_session: dict[str, int] = {}
        for session in present.values():
            if session is not None:
                by_session[session] = by_session.get(session, 0) + 1
        for session, count in by_session.items():
            with suppress(ServiceBusError):  # somebody holds the session: its messages stay owed
                async with sdk.at_once(receiver_of(client, options, session_id=session)) as receiver:
                    await _complete(receiver, left, count)
    return left


async def _complete(receiver: Any, left: set[int], wanted: int) -> None:
    """Lock messages from the head on, complete those that are wanted, and give the others back at the end."""
    empty = 0
    others: list[ServiceBusReceivedMessage] = []
    deadline = time.monotonic() + SETTLE_SECONDS_MAX
    while (
        wanted > 0 and empty < SETTLE_EMPTY_MAX and time.monotonic() < deadline and len(others) < OTHERS_MAX
    ):
        messages: list[ServiceBusReceivedMessage] = await receiver.receive_messages(
            max_message_count=min(wanted, SETTLE_PAGE), max_wait_time=SETTLE_WAIT_SECONDS
        )
        mine = [message for message in messages if message.sequence_number in left]
        passed = [message for message in messages if message.sequence_number not in left]
        others += passed
        done = await sdk.settle_all(receiver, mine) if mine else []
        settled = {int(message.sequence_number or 0) for message, ok in zip(mine, done, strict=True) if ok}
        left -= settled
        wanted -= len(settled)
        empty = 0 if settled or passed else empty + 1
    if others:
        await sdk.settle_all(receiver, others, released=True)
