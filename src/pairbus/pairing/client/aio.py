"""The paired client and sender in the shape of ``azure.servicebus.aio``."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from azure.servicebus.aio import ServiceBusClient, ServiceBusSender

from pairbus.pairing.client.client import CLOSE_SECONDS_DEFAULT, PairedClient, on_primary
from pairbus.pairing.client.sending.sender import (
    GRACE_SECONDS,
    Message,
    Messages,
    SenderCore,
    warn_unsupported,
)
from pairbus.pairing.runtime.asyncio_runtime import AsyncioRuntime

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from azure.servicebus import ServiceBusMessageBatch


class PairedSender(SenderCore, ServiceBusSender):  # type: ignore[misc]  # the official classes disagree among themselves
    """Sends to one entity. Made by ``get_queue_sender`` and ``get_topic_sender`` of the paired client."""

    async def __aenter__(self) -> Self:
        await self._do_enter()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._do_close()

    async def send_messages(self, message: Messages, *, timeout: float | None = None, **options: Any) -> None:
        """Send a message, an iterable of messages or a batch. See ``pairbus.PairedSender.send_messages``."""
        if options:
            warn_unsupported(options)
        failed = None
        link = self._direct(message, timeout)
        if link is not None:
            seconds = self._direct_seconds
            failed = await link.try_to_send(message, seconds, seconds + GRACE_SECONDS)
            if failed is None:
                self._tally.sends += 1
                self._accepted(1)
                return
        await self._do_send(message, timeout, failed)

    async def schedule_messages(
        self,
        messages: Message | Iterable[Message],
        schedule_time_utc: datetime.datetime,
        *,
        timeout: float | None = None,
        **options: Any,
    ) -> list[int]:
        """Schedule messages. See ``pairbus.PairedSender.schedule_messages``."""
        if options:
            warn_unsupported(options)
        return await self._do_schedule(messages, schedule_time_utc, timeout)

    async def cancel_scheduled_messages(
        self, sequence_numbers: int | Sequence[int], *, timeout: float | None = None, **options: Any
    ) -> None:
        """Cancel scheduled messages. See ``pairbus.PairedSender.cancel_scheduled_messages``."""
        if options:
            warn_unsupported(options)
        await self._do_cancel(sequence_numbers, timeout)

    async def create_message_batch(self, max_size_in_bytes: int | None = None) -> ServiceBusMessageBatch:
        """An empty batch. When the primary cannot be asked for its limit, that of the standard tier is taken."""
        return await self._do_new_batch(max_size_in_bytes)

    async def close(self) -> None:
        """Close the links. Idempotent."""
        await self._do_close()


class PairedServiceBusClient(PairedClient[ServiceBusClient, PairedSender], ServiceBusClient):
    """See ``PairedClient``."""

    __doc__ = PairedClient.__doc__
    _official = ServiceBusClient
    _sender_class = PairedSender
    _runtime_class = AsyncioRuntime
    primary: ServiceBusClient
    secondary: ServiceBusClient

    async def __aenter__(self) -> Self:
        await self._do_enter()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def pair(self) -> None:
        """Find or create the backlog queues in the secondary. See ``pairbus.PairedServiceBusClient.pair``."""
        await self._do_pair()

    async def close(self, timeout: float = CLOSE_SECONDS_DEFAULT) -> None:
        """Stop pings and the drain and close both sides. Returns within ``timeout`` seconds.

        May be called again, and by several tasks, which wait for the same end. Closing goes on when a caller is cancelled.
        """
        await self._do_close(timeout)

    get_queue_receiver = on_primary(
        ServiceBusClient.get_queue_receiver, "The official receiver. It reads from the primary only."
    )
    get_subscription_receiver = on_primary(
        ServiceBusClient.get_subscription_receiver, "The official receiver. It reads from the primary only."
    )
    list_queue_sessions = on_primary(
        ServiceBusClient.list_queue_sessions, "The sessions of a queue of the primary."
    )
    list_subscription_sessions = on_primary(
        ServiceBusClient.list_subscription_sessions, "The sessions of a subscription of the primary."
    )
