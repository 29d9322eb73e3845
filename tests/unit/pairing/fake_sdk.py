"""Official clients that answer as they are told, and a paired client around two of them on a false clock."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus.aio._transport._pyamqp_transport_async import PyamqpTransportAsync

from pairbus import SendAvailabilityOptions
from pairbus.pairing.client.aio import PairedServiceBusClient
from pairbus.pairing.naming import TRANSFER_SEGMENT
from pairbus.sdk.messages import message_bytes
from tests.unit.drain.virtual_loop import VirtualLoop

QUEUES = [f"p/{TRANSFER_SEGMENT}/{index}" for index in range(3)]

Answer = Callable[["FakeSender"], Awaitable[None]]


async def accept(sender: FakeSender) -> None:
    """Say yes."""


async def silence(sender: FakeSender) -> None:
    """Never answer."""
    await asyncio.Event().wait()


def refuse(error: Exception) -> Answer:
    """Say no, always with the same words."""

    async def answer(sender: FakeSender) -> None:
        raise error

    return answer


class FakeSender:
    """As much of the official sender as the paired one uses."""

    def __init__(self, client: FakeClient, path: str) -> None:
        self.client = client
        self.path = path
        self.is_closed = False
        self._amqp_transport = PyamqpTransportAsync
        self._max_batch_size_on_link = 0
        self._max_message_size_on_link = 0
        self._config = SimpleNamespace(retry_total=3, retry_backoff_factor=0.8)

        self._handler: Any = None
        self._running = False
        self.opened = 0

    async def _handle_exception(self, exception: Exception) -> Exception:
        return exception

    async def _open(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 - the SDK's shape
        self.opened += 1
        self._running = True

    async def _open_with_retry(self) -> None:
        await self._attempt()
        await self._open()

    async def _close_handler(self) -> None:
        self._running = False

    async def _send(
        self,
        message: Any,
        timeout: float | None = None,  # noqa: ASYNC109 - the SDK's shape
        last_exception: Exception | None = None,
    ) -> None:
        await self._attempt()
        if isinstance(message, ServiceBusMessageBatch):
            bodies = message_bytes.messages_of(message)
        elif isinstance(message, list):
            bodies = [message_bytes.encoded(item) for item in message]
        else:
            bodies = [message_bytes.encoded(message)]
        self.client.stored.setdefault(self.path, []).extend(bodies)

    async def _attempt(self) -> None:
        if self.is_closed:
            raise ValueError("The handler has already been shutdown.")
        await self.client.answers.get(self.path, self.client.answer)(self)
        self._max_batch_size_on_link = self.client.limit

    async def send_messages(self, message: Any, *, timeout: float | None = None) -> None:  # noqa: ASYNC109
        self.client.attempts.append((self.path, timeout))
        await self._send(message, timeout=timeout)

    async def schedule_messages(self, messages: Any, when: Any, **options: Any) -> list[int]:
        await self.send_messages(messages, **options)
        return list(range(1, len(messages) + 1))

    async def create_message_batch(self, max_size_in_bytes: int | None = None) -> ServiceBusMessageBatch:
        await self._attempt()
        return message_bytes.new_batch(max_size_in_bytes or self.client.limit, self)

    async def close(self) -> None:
        await asyncio.sleep(self.client.closing_s)
        self.is_closed = True


class FakeClient:
    """As much of the official client as the paired one uses."""

    def __init__(self, host: str) -> None:
        self.fully_qualified_namespace = host
        self._config = SimpleNamespace(use_tls=True)
        self._credential = SimpleNamespace()
        self.answer: Answer = accept
        self.answers: dict[str, Answer] = {}
        self.stored: dict[str, list[bytes]] = {}
        self.attempts: list[tuple[str, float | None]] = []
        self.senders: list[FakeSender] = []
        self.limit = 262_144
        self.closing_s = 0.0
        self.closed = 0

    def get_queue_sender(self, path: str, **options: Any) -> FakeSender:
        self.senders.append(FakeSender(self, path))
        return self.senders[-1]

    get_topic_sender = get_queue_sender

    async def close(self) -> None:
        self.closed += 1
        for sender in self.senders:
            if not sender.is_closed:
                await sender.close()


class Bench:
    """A paired client around two false ones."""

    def __init__(self, kind: type[PairedServiceBusClient] = PairedServiceBusClient, **options: Any) -> None:
        self.primary = FakeClient("p.servicebus.windows.net")
        self.secondary = FakeClient("s.servicebus.windows.net")
        values: dict[str, Any] = {
            "failover_interval": timedelta(0),
            "ping_primary_interval": timedelta(seconds=10),
        }
        primary: Any = self.primary
        secondary: Any = self.secondary
        self.client = kind(
            primary, secondary, options=SendAvailabilityOptions(**{**values, **options}), seed=1
        )

    def paired(self) -> PairedServiceBusClient:
        """The client, its backlog queues taken for granted."""
        self.client._state.paired_with(QUEUES)
        return self.client

    def parked(self) -> int:
        """How many messages are in the backlog."""
        return sum(len(self.secondary.stored.get(queue, [])) for queue in QUEUES)


class Stage:
    """A false clock for a paired client and everything it waits for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.loop = VirtualLoop()
        monkeypatch.setattr("pairbus.pairing.clock.steady_ms", self.loop.now_ms)

    def play(self, act: Callable[[], Awaitable[None]]) -> None:
        """Run a test; what it leaves behind is an error."""

        async def whole() -> None:
            await act()
            nothing_left()

        try:
            self.loop.run_until_complete(whole())
        finally:
            self.loop.close()


def nothing_left() -> None:
    """No task runs but this one."""
    left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    assert not left, f"left behind: {left}"


def text(number: object, **details: Any) -> ServiceBusMessage:
    """A message that can be told from others."""
    return ServiceBusMessage(str(number), **details)
