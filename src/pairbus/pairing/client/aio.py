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
from pairbus.pairing.rules.health import HEALTHY
from pairbus.pairing.runtime.asyncio_runtime import AsyncioRuntime
from pairbus.pairing.runtime.attempts import SEND_SECONDS

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from azure.servicebus import ServiceBusMessageBatch


class PairedSender(SenderCore, ServiceBusSender):  # type: ignore[misc]  # the official classes disagree among themselves
    """Sends to one entity of the primary, and to the backlog while the entity is failed over.

    Made by ``get_queue_sender`` and ``get_topic_sender`` of the paired client. It is a ``ServiceBusSender``, may be used without
    ``with``, and may be shared by any number of threads or coroutines.
    """

    async def __aenter__(self) -> Self:
        await self._do_enter()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._do_close()

    async def send_messages(self, message: Messages, *, timeout: float | None = None, **options: Any) -> None:
        """Send a message, an iterable of messages or a batch. Returns once the primary, a backlog queue or the spool has it.

        After an error, ``outcome_of`` says whether the message may have been stored all the same.

        Args:
            message: What to send; never changed.
            timeout: Seconds in all, retries and detour included; 60 unless given.
            options: None are supported; the SDK warns of them, and so does this.

        Raises:
            ClientClosedError: The sender or the client is closed.
            PartnerClosedError: The other side of the pair was closed alone.
            EntityGoneError: The entity does not exist any more.
            MessageTooLargeForBacklogError: Failed over, and the parked form is too large.
            InvalidMessageError, BatchTooLargeError: Failed over, and the primary would refuse the message, too.
            SessionFencedError: With an order: older messages of the session are in the backlog for too long.
            SpoolRefusedError: With a spool: it must take the message, and cannot.
            ServiceBusError: As with the SDK; from both sides when both refused.
        """
        if options:
            warn_unsupported(options)
        failed = None
        link = self._direct(message, timeout)
        if link is not None:
            seconds = self._direct_seconds
            failed = await link.try_to_send(message, seconds, seconds + GRACE_SECONDS, None, SEND_SECONDS)
            if failed is None:
                tally, health = self._tally, self._health
                tally.sends += 1
                tally.to_primary += 1
                if health.state is not HEALTHY or not health.has_accepted:
                    self._accepted(0)  # the health must be told, too
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
        """Schedule messages. Returns handles for ``cancel_scheduled_messages``.

        While failed over the messages are parked with their time, and the handles are ``ParkedSchedule``.

        Args:
            messages: One message or several; never changed.
            schedule_time_utc: When they become available. A time that has passed means at once.
            timeout: Seconds in all, retries and detour included; 60 unless given.
            options: None are supported; the SDK warns of them, and so does this.

        Returns:
            One handle for each message, in their order.

        Raises:
            ClientClosedError: The sender or the client is closed.
            ServiceBusError: As ``send_messages`` raises it.
        """
        if options:
            warn_unsupported(options)
        return await self._do_schedule(messages, schedule_time_utc, timeout)

    async def cancel_scheduled_messages(
        self, sequence_numbers: int | Sequence[int], *, timeout: float | None = None, **options: Any
    ) -> None:
        """Cancel scheduled messages by the handles that ``schedule_messages`` returned.

        Those of the primary come first, so that nothing has changed when it does not answer. When a parked one then fails, the text of
        the error names those that were cancelled before it and those that were not tried. Its attributes ``cancelled`` and
        ``not_tried`` are lists of their handles.

        Args:
            sequence_numbers: One handle or several. Of a parked message the object is needed, not its number alone.
            timeout: Seconds in all; 60 unless given.
            options: None are supported; the SDK warns of them, and so does this.

        Raises:
            ScheduledMessageGoneError: A parked one has left the backlog already.
            SendAvailabilityError: One is in the spool of another client, which the text names.
            WrongTypeError: A handle is no number.
            UsageError: A number is that of a parked message, without its object.
            CancelInDoubtError: All were cancelled, but there may be another copy of a parked one: an attempt to schedule it had
                no answer.
            ServiceBusError: The primary refused, or did not answer.
        """
        if options:
            warn_unsupported(options)
        await self._do_cancel(sequence_numbers, timeout)

    async def create_message_batch(self, max_size_in_bytes: int | None = None) -> ServiceBusMessageBatch:
        """Return an empty batch. When the primary cannot be asked for its limit, that of the standard tier is taken, 256 KB.

        Args:
            max_size_in_bytes: A smaller limit; that of the entity unless given.

        Raises:
            UsageError: The limit is larger than the entity's.
            ClientClosedError: The sender or the client is closed.
        """
        return await self._do_new_batch(max_size_in_bytes)

    async def close(self) -> None:
        """Close the sender and its links to both namespaces. May be called again. The client stays open."""
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
        """Find or create the backlog queues in the secondary. The primary may be down meanwhile. ``with client`` calls it.

        A secondary that takes connections and does not answer is given up after 15 seconds; after 5 when there is a spool, which takes
        messages until the secondary answers. ``management`` of the client changes both (``read_timeout``, ``timeout``).

        A client that was closed begins another life: it is as a new one with the same arguments. A call beside another one waits for its end.

        Raises:
            AlreadyPairedError: This client is paired already, or it would make a chain of pairs.
            NoBacklogQueuesError: Not one backlog queue can be used; the client can be paired again later.
            OtherPrimaryError: The backlog queues belong to another primary of the same name.
            NoListenRightError: With an order: the key may not listen to the backlog queues.
            SpoolError: The spool cannot be opened.
            ClientClosedError: The client was closed, and something that it was doing then has not ended.
        """
        await self._do_pair()

    async def close(self, timeout: float = CLOSE_SECONDS_DEFAULT) -> None:
        """Stop pings and the drain and close both sides. Returns within ``timeout`` seconds.

        Senders of the client stay closed. The client itself can be entered again, or paired.

        May be called again, and by several tasks, which wait for the same end. Closing goes on when a caller is cancelled.

        Args:
            timeout: Seconds for all of it.
        """
        await self._do_close(timeout)

    get_queue_receiver = on_primary(
        ServiceBusClient.get_queue_receiver,
        "Return an official receiver, with the official arguments. It reads from the primary only.",
    )
    get_subscription_receiver = on_primary(
        ServiceBusClient.get_subscription_receiver,
        "Return an official receiver, with the official arguments. It reads from the primary only.",
    )
    list_queue_sessions = on_primary(
        ServiceBusClient.list_queue_sessions,
        "List the sessions of a queue of the primary, with the official arguments.",
    )
    list_subscription_sessions = on_primary(
        ServiceBusClient.list_subscription_sessions,
        "List the sessions of a subscription of the primary, with the official arguments.",
    )
