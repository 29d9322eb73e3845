"""A sender that goes on when its primary does not: the shape of ``azure.servicebus.aio.ServiceBusSender``."""

from __future__ import annotations

import datetime
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus.aio import ServiceBusSender
from azure.servicebus.amqp import AmqpAnnotatedMessage

from pairbus.errors import PairbusError, PairingError, UsageError
from pairbus.pairing import wire
from pairbus.pairing._async import runtime
from pairbus.pairing.errors import ClientClosedError
from pairbus.pairing.factory import BACKLOG_LIMIT_BYTES, ENVELOPE_BYTES, SEND_TIMEOUT_MS_DEFAULT, check_size
from pairbus.pairing.flow import Choice, SendFlow, TryBacklog, TryPrimary, Wait, first_attempt_ms
from pairbus.pairing.outcome import mark
from pairbus.pairing.parcel import Doubt, Parcel, handle_of, prepared_for_sending, scheduled_for
from pairbus.pairing.scheduled import split_handles
from pairbus.pairing.trigger import IN_DOUBT, Failure, classify

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from pairbus.pairing._async.client import PairedServiceBusClient

BACKLOG_RETRIES: Final = 1
"""A connection that died while idle is opened anew once before its queue leaves the rotation."""

SDK_SHARE: Final = 0.9
"""What the SDK gets of an attempt's time, so that it may end in its own way before it is cut off."""

CLOSE_SECONDS: Final = 5.0
"""How long a sender's links are waited for when it is closed; they are closed beside each other."""

ASK_SECONDS: Final = 10.0
"""How long the primary is asked for the size of its batches before that of the standard tier is taken."""

Message = ServiceBusMessage | AmqpAnnotatedMessage | Mapping[str, Any]
Messages = Message | ServiceBusMessageBatch | Iterable[Message]


class PairedSender(ServiceBusSender):
    """Sends to one entity. Made by ``get_queue_sender`` and ``get_topic_sender`` of the paired client.

    It is a ``ServiceBusSender`` to type checkers and to ``isinstance``, and offers all that one does. It uses official
    senders and is none itself: the official constructor is not run.
    """

    def __init__(
        self, client: PairedServiceBusClient, path: str, options: dict[str, Any], *, is_topic: bool
    ) -> None:
        self.entity_name = path
        self.fully_qualified_namespace = client.fully_qualified_namespace
        self._client = client
        self._factory = client._factory
        self._limits = client._limits
        self._slot = runtime.Slot(client._limits)
        self._tally = self._factory.new_tally()
        weakref.finalize(self, self._factory.retire, self._tally).atexit = False
        self._doubt = Doubt(self._factory.clock)
        self._holds = self._factory.options.while_suspect == "wait"
        self._record = self._factory.record(path)
        self._options = options
        self._is_topic = is_topic
        self._choice = Choice()
        self._primary: ServiceBusSender | None = None
        self._backlog: dict[str, ServiceBusSender] = {}
        self._stale: list[ServiceBusSender] = []
        self._is_closed = False
        self._in_flight = 0
        self._is_torn = False
        """Whether a call on the link to the primary was cut off in its midst: nobody knows what is left on it."""

    # --- the SDK's shape --------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        # The link is opened by the first send: a primary that is down must not stop a program from starting.
        self._check_live()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def client_identifier(self) -> str:
        """The identifier that the primary sees."""
        return self._primary_sender().client_identifier

    async def send_messages(self, message: Messages, *, timeout: float | None = None, **options: Any) -> None:
        """Send a message, an iterable of messages or a batch. Returns once the primary or the backlog has it.

        Args:
            message: What to send; never changed.
            timeout: Seconds in all, retries and detour included; 60 unless given.
            options: Passed on to the SDK.

        Raises:
            ClientClosedError: The sender or the client is closed.
            EntityGoneError: The entity does not exist any more.
            MessageTooLargeForBacklogError: Failed over, and the parked form is too large.
            azure.servicebus.exceptions.ServiceBusError: As with the SDK; from both sides when both refused.
        """
        if self._is_closed or self._client._is_ended:
            self._check_live()
        # The usual message is seen first: a healthy send should cost what it costs without us.
        if type(message) is ServiceBusMessage and wire.has_message_id(message):
            prepared: Any = message
            count = 1
        else:
            prepared, count = prepared_for_sending(message)
            if count == 0:
                return
        record = self._record
        if timeout is not None:
            _check_timeout(timeout)
        tally = self._tally
        tally.sends += count
        if not record.is_healthy or not self._factory.failover_interval_ms:
            await self._run(self._flow(self._factory.clock(), timeout), prepared, count, options, None)
            return
        begun_ms = self._factory.clock()
        time_ms = SEND_TIMEOUT_MS_DEFAULT if timeout is None else max(1, int(timeout * 1000))
        if self._factory.failover_interval_ms < time_ms and self._factory.is_paired:
            time_ms = first_attempt_ms(
                time_ms, self._factory.failover_interval_ms, holds_while_suspect=self._holds
            )
        failure: Exception | None = None
        self._in_flight += 1
        try:
            link = self._primary
            if link is None or self._is_torn:
                link = self._primary_sender()
            await self._slot.send(link, prepared, time_ms / 1000, options)
        except Exception as error:  # noqa: BLE001 - every error is judged by the flow
            failure = error
        except BaseException:
            tally.unknown += count
            self._is_torn = True
            raise
        finally:
            self._in_flight -= 1
        if failure is not None:
            await self._run(self._flow(begun_ms, timeout), prepared, count, options, failure, begun_ms)
            return
        tally.to_primary += count
        self._accepted_by_primary()

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
        """
        self._check_live()
        _check_timeout(timeout)
        prepared, count = prepared_for_sending(messages)
        if count == 0:
            return []
        singles = (
            [prepared] if isinstance(prepared, ServiceBusMessage | AmqpAnnotatedMessage) else list(prepared)
        )
        copies = [scheduled_for(single, schedule_time_utc) for single in singles]
        handles: list[int] = []
        self._tally.sends += count
        flow = self._flow(self._factory.clock(), timeout)
        given = {**options, "_schedule": schedule_time_utc, "_handles": handles}
        parcel = await self._run(flow, copies, count, given, None)
        return handles or [
            handle_of(queue, payload, single)
            for single, (queue, payload) in zip(copies, parcel.parked, strict=True)
        ]

    async def cancel_scheduled_messages(
        self, sequence_numbers: int | Sequence[int], *, timeout: float | None = None, **options: Any
    ) -> None:
        """Cancel scheduled messages by the handles that ``schedule_messages`` returned.

        Raises:
            ScheduledMessageGoneError: A parked one has left the backlog already.
        """
        self._check_live()
        plain, parked = split_handles(sequence_numbers)
        if parked:
            await self._client._cancel_parked(parked, timeout)
        if plain:
            await self._primary_sender().cancel_scheduled_messages(plain, timeout=timeout, **options)

    async def create_message_batch(self, max_size_in_bytes: int | None = None) -> ServiceBusMessageBatch:
        """An empty batch. When the primary cannot be asked for its limit, that of the standard tier is taken."""
        self._check_live()
        limit = wire.batch_limit(self._primary) if self._primary is not None else 0
        if not limit and self._record.is_healthy:
            sender = self._primary_sender()
            try:
                # The SDK has no timeout for this, and a silent primary would hold it for ever.
                async with self._limits.limit(sender, ASK_SECONDS):
                    batch = await sender.create_message_batch(max_size_in_bytes)
                return wire.identifying_batch(batch.max_size_in_bytes, sender)
            except Exception as error:
                if not self._factory.is_paired or classify(error) is Failure.INVALID:
                    raise
                flow = self._flow(self._factory.clock(), None)
                with self._factory.lock:
                    self._factory.apply(self._record, flow.primary_failed(self._factory.clock(), error))
        limit = limit or BACKLOG_LIMIT_BYTES
        if max_size_in_bytes is not None and max_size_in_bytes > limit:
            raise UsageError(
                f"max_size_in_bytes is {max_size_in_bytes}: the entity takes batches of {limit} bytes"
            )
        return wire.identifying_batch(max_size_in_bytes or limit, self._primary_sender())

    async def close(self) -> None:
        """Close the links. Idempotent."""
        self._is_closed = True
        senders = [*self._backlog.values(), *self._stale]
        if self._primary is not None:
            senders.append(self._primary)
        self._backlog.clear()
        self._stale.clear()
        self._primary = None
        self._client._forget(self)
        self._factory.fold(self._tally)
        await runtime.together(self._client._close_handler, senders, CLOSE_SECONDS)

    def __str__(self) -> str:
        return f"Paired sender: {self.entity_name}"

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else self._record.state.value
        kind = "topic" if self._is_topic else "queue"
        return f"<{type(self).__name__} of {kind} {self.entity_name} in {self._factory.primary}: {state}>"

    # --- the detour -------------------------------------------------------------------------------

    def _flow(self, begun_ms: int, timeout: float | None) -> SendFlow:
        time_ms = SEND_TIMEOUT_MS_DEFAULT if timeout is None else max(1, int(timeout * 1000))
        return self._factory.flow(self._record, self._choice, begun_ms + time_ms)

    async def _run(
        self,
        flow: SendFlow,
        message: Any,
        count: int,
        options: dict[str, Any],
        failure: Exception | None,
        begun_ms: int = 0,
    ) -> Parcel:
        """Bring one send to its end, and count what became of its messages (P45)."""
        parcel = Parcel(message)
        try:
            if failure is not None:
                self._judge(flow, failure, begun_ms)
            await self._take_steps(flow, parcel, count, options)
            return parcel
        except BaseException as error:
            left = count if parcel.left is None else len(parcel.left)
            was_interrupted = not isinstance(error, Exception) or isinstance(error, ClientClosedError)
            # Of an error that is neither an answer nor ours nobody knows where it came from.
            is_known = isinstance(error, PairbusError) or flow.knows(error)
            is_in_doubt = flow.is_in_doubt or left < count or was_interrupted or not is_known
            if is_in_doubt:
                self._tally.unknown += left
            else:
                self._tally.failed += left
            mark(error, is_in_doubt=is_in_doubt)
            raise

    async def _take_steps(self, flow: SendFlow, parcel: Parcel, count: int, options: dict[str, Any]) -> None:
        """Ask what to do, do it, report, until the message is somewhere or nowhere."""
        while True:
            self._check_live()
            with self._factory.lock:
                ticket = self._client._pulse.ticket()
                step = flow.next_step(self._factory.clock())
            if isinstance(step, TryPrimary):
                if await self._try_primary(flow, parcel.message, count, options, step.timeout_ms / 1000):
                    return
            elif isinstance(step, TryBacklog):
                if await self._try_backlog(flow, parcel, step):
                    return
            elif isinstance(step, Wait):
                await self._client._pulse.wait(ticket, step.timeout_ms / 1000)
            else:
                raise step.error from step.cause

    def _judge(self, flow: SendFlow, error: Exception, begun_ms: int) -> None:
        """The primary said no, or nothing. Raises the error when it concerns no pairing."""
        if isinstance(error, TimeoutError):
            self._is_torn = True  # cut off by us: the SDK has an error of its own for its own timeouts
        self._raise_if_closed(error)
        # The SDK tells of its last attempt only; one before may have stored the message (P5).
        was_in_doubt = self._doubt.at_ms >= begun_ms
        with self._factory.lock:
            self._factory.note(self._record, f"send failed: {type(error).__name__}: {error}"[:200])
            if not self._factory.is_paired:
                flow.is_in_doubt = was_in_doubt or classify(error) in IN_DOUBT
                flow.primary_error = error
                raise error
            now = self._factory.clock()
            self._factory.apply(self._record, flow.primary_failed(now, error, was_in_doubt=was_in_doubt))

    async def _try_primary(
        self, flow: SendFlow, message: Any, count: int, options: dict[str, Any], seconds: float
    ) -> bool:
        begun_ms = self._factory.clock()
        self._in_flight += 1
        try:
            await self._send_or_schedule(message, options, seconds)
        except Exception as error:  # noqa: BLE001 - every error is judged by the flow
            failure = error
        except BaseException:
            self._is_torn = True
            raise
        else:
            self._tally.to_primary += count
            self._accepted_by_primary()
            return True
        finally:
            self._in_flight -= 1
        self._judge(flow, failure, begun_ms)
        return False

    async def _send_or_schedule(self, message: Any, options: dict[str, Any], seconds: float) -> None:
        sender = self._primary_sender()
        async with self._limits.limit(sender, seconds):
            await self._send_within(sender, message, options, seconds * SDK_SHARE)

    async def _send_within(
        self, sender: ServiceBusSender, message: Any, options: dict[str, Any], seconds: float
    ) -> None:
        if "_schedule" in options:
            further = {key: value for key, value in options.items() if not key.startswith("_")}
            numbers = await sender.schedule_messages(
                message, options["_schedule"], timeout=seconds, **further
            )
            options["_handles"].extend(numbers)
        else:
            await sender.send_messages(message, timeout=seconds, **options)

    async def _try_backlog(self, flow: SendFlow, parcel: Parcel, step: TryBacklog) -> bool:
        if parcel.left is None:
            reason = classify(flow.primary_error).value if flow.primary_error is not None else "failed over"
            parcel.left = self._factory.park(parcel.originals(), self._record.path, reason)
        self._discard_primary()
        sender = self._backlog_sender(step.queue)
        begun_ms = self._factory.clock()
        until_ms = begun_ms + step.timeout_ms
        try:
            limit = await self._backlog_limit(sender, parcel.left, step.timeout_ms / 1000)
            check_size(parcel.left, parcel.originals()[-len(parcel.left) :], limit)
            while parcel.left:
                batch = wire.batch_of(wire.new_batch(limit, sender), parcel.left)
                seconds = max(0.001, (until_ms - self._factory.clock()) / 1000)
                async with self._limits.limit(sender, seconds):
                    await sender.send_messages(batch, timeout=seconds * SDK_SHARE)
                self._tally.to_backlog += len(batch)
                parcel.accepted(step.queue, len(batch))
                with self._factory.lock:
                    if flow.backlog_accepted(step.queue, len(batch)):
                        self._factory.readmitted(step.queue)
        except Exception as error:  # noqa: BLE001 - every error is judged by the flow
            self._raise_if_closed(error)
            with self._factory.lock:
                flow.is_in_doubt = flow.is_in_doubt or self._doubt.at_ms >= begun_ms
                if flow.backlog_failed(step.queue, self._factory.clock(), error):
                    self._factory.evicted(step.queue, f"{type(error).__name__}: {error}"[:200])
            self._let_go_meanwhile(self._backlog.pop(step.queue, None))
            return False
        except BaseException:
            # Cut off in its midst: the next send gets another link. Closed then, for this may be the end of the loop.
            self._stale.append(self._backlog.pop(step.queue))
            raise
        return True

    async def _backlog_limit(self, sender: ServiceBusSender, parked: Sequence[bytes], seconds: float) -> int:
        """The largest batch that a backlog queue takes. Only its link knows whether that is more than usual."""
        limit = wire.batch_limit(sender)
        if not limit and max(len(payload) for payload in parked) + ENVELOPE_BYTES > BACKLOG_LIMIT_BYTES:
            async with self._limits.limit(sender, seconds):
                await sender.create_message_batch()
            limit = wire.batch_limit(sender)
        return limit or BACKLOG_LIMIT_BYTES

    def _accepted_by_primary(self) -> None:
        record = self._record
        if record.is_healthy:
            record.has_accepted = True
            return
        with self._factory.lock:
            self._factory.apply(record, record.send_succeeded(self._factory.clock()))

    # --- links ------------------------------------------------------------------------------------

    def _primary_sender(self) -> ServiceBusSender:
        if self._is_torn and self._in_flight <= 1:
            self._is_torn = False
            self._let_go_meanwhile(self._primary)
            self._primary = None
        if self._primary is None:
            make = (
                self._client.primary.get_topic_sender
                if self._is_topic
                else self._client.primary.get_queue_sender
            )
            self._primary = make(self.entity_name, **self._options)
            wire.watch_attempts(self._primary, self._doubt.note)
        return self._primary

    def _backlog_sender(self, queue: str) -> ServiceBusSender:
        while self._stale:
            self._let_go_meanwhile(self._stale.pop())
        sender = self._backlog.get(queue)
        if sender is None:
            sender = self._client.secondary.get_queue_sender(queue)
            wire.set_retries(sender, BACKLOG_RETRIES)
            wire.watch_attempts(sender, self._doubt.note)
            self._backlog[queue] = sender
        return sender

    def _discard_primary(self) -> None:
        """Let go of a link to a primary that is away, so that the first send after failback finds a fresh one."""
        if self._primary is not None and self._in_flight == 0:
            sender, self._primary = self._primary, None
            self._let_go_meanwhile(sender)

    def _let_go_meanwhile(self, sender: Any) -> None:
        """Closing a link whose peer is gone takes a second or more, which the send in hand does not have."""
        if sender is not None:
            self._client._tasks.spawn(self._client._close_handler, sender)

    def _check_live(self) -> None:
        self._client._check_live()
        if self._is_closed:
            raise ClientClosedError(
                f"the sender of {self.entity_name!r} is closed: get a new one from the client"
            )

    def _raise_if_closed(self, error: BaseException) -> None:
        """A send that races with close fails because of it, and is never detoured (P44)."""
        if isinstance(error, PairingError):
            raise error
        if self._is_closed or self._client.is_closed:
            raise ClientClosedError(
                f"the sender of {self.entity_name!r} was closed while it was sending"
            ) from error


def _check_timeout(timeout: float | None) -> None:
    if timeout is not None and timeout <= 0:
        raise UsageError(f"timeout is {timeout}: give more than 0 seconds")
