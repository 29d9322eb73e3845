# Written by tools/unasync.py from _async/sender.py: edit that file.
"""A sender that goes on when its primary does not: the shape of ``azure.servicebus.ServiceBusSender``."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus.amqp import AmqpAnnotatedMessage

from pairbus.errors import ClientClosedError, PairingError, UsageError
from pairbus.pairing import wire
from pairbus.pairing._sync import runtime
from pairbus.pairing.factory import BACKLOG_LIMIT_BYTES, SEND_TIMEOUT_MS_DEFAULT, check_size
from pairbus.pairing.flow import Choice, Fail, SendFlow, TryBacklog, TryPrimary, Wait
from pairbus.pairing.outcome import mark
from pairbus.pairing.scheduled import ParkedSchedule, split_handles
from pairbus.pairing.trigger import IN_DOUBT, classify

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from azure.servicebus import ServiceBusSender

    from pairbus.pairing._sync.client import PairedServiceBusClient

BACKLOG_RETRIES: Final = 1
"""A connection that died while idle is opened anew once before its queue leaves the rotation."""

SDK_SHARE: Final = 0.9
"""What the SDK gets of an attempt's time, so that it may end in its own way before it is cut off."""

Message = ServiceBusMessage | AmqpAnnotatedMessage | Mapping[str, Any]
Messages = Message | ServiceBusMessageBatch | Iterable[Message]


class PairedSender:
    """Sends to one entity. Made by ``get_queue_sender`` and ``get_topic_sender`` of the paired client."""

    def __init__(
        self, client: PairedServiceBusClient, path: str, options: dict[str, Any], *, is_topic: bool
    ) -> None:
        self.entity_name = path
        self._client = client
        self._factory = client._factory
        self._limits = client._limits
        self._slot = runtime.Slot(client._limits)
        self._tally = self._factory.new_tally()
        self._parked_in = ""
        self._record = self._factory.record(path)
        self._options = options
        self._is_topic = is_topic
        self._choice = Choice()
        self._primary: ServiceBusSender | None = None
        self._backlog: dict[str, ServiceBusSender] = {}
        self._is_closed = False
        self._in_flight = 0

    # --- the SDK's shape --------------------------------------------------------------------------

    def __enter__(self) -> Self:
        # The link is opened by the first send: a primary that is down must not stop a program from starting.
        self._check_live()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def fully_qualified_namespace(self) -> str:
        """The primary's host name."""
        return self._client.fully_qualified_namespace

    @property
    def client_identifier(self) -> str:
        """The identifier that the primary sees."""
        return self._primary_sender().client_identifier

    def send_messages(self, message: Messages, *, timeout: float | None = None, **options: Any) -> None:
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
        client = self._client
        if self._is_closed or client._is_closed or client._fault is not None:
            self._check_live()
        # The usual message is seen first: a healthy send should cost what it costs without us.
        if type(message) is ServiceBusMessage and wire.has_message_id(message):
            prepared: Any = message
            count = 1
        else:
            prepared, count = _prepared(message)
            if count == 0:
                return
        record = self._record
        if timeout is not None and timeout <= 0:
            raise UsageError(f"timeout is {timeout}: give more than 0 seconds")
        tally = self._tally
        tally.sends += count
        if not record.is_healthy or not self._factory.failover_interval_ms:
            self._run(self._flow(self._factory.clock(), timeout), prepared, count, options, None)
            return
        begun_ms = self._factory.clock()
        seconds = timeout if timeout is not None else SEND_TIMEOUT_MS_DEFAULT / 1000
        failure: Exception | None = None
        self._in_flight += 1
        try:
            self._slot.send(self._primary or self._primary_sender(), prepared, seconds, options)
        except Exception as error:  # noqa: BLE001 - every error is judged by the flow
            failure = error
        except BaseException:
            tally.unknown += count
            raise
        finally:
            self._in_flight -= 1
        if failure is not None:
            self._run(self._flow(begun_ms, timeout), prepared, count, options, failure)
            return
        tally.to_primary += count
        self._accepted_by_primary()

    def schedule_messages(
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
        prepared, count = _prepared(messages)
        if count == 0:
            return []
        singles = (
            [prepared] if isinstance(prepared, ServiceBusMessage | AmqpAnnotatedMessage) else list(prepared)
        )
        copies = [_scheduled(single, schedule_time_utc) for single in singles]
        handles: list[int] = []
        self._tally.sends += count
        flow = self._flow(self._factory.clock(), timeout)
        given = {**options, "_schedule": schedule_time_utc, "_handles": handles}
        self._run(flow, copies, count, given, None)
        if not handles:
            ids = [wire.message_id(single) for single in copies]
            handles = [ParkedSchedule.make(self._parked_in, message_id) for message_id in ids]
        return handles

    def cancel_scheduled_messages(
        self, sequence_numbers: int | Sequence[int], *, timeout: float | None = None, **options: Any
    ) -> None:
        """Cancel scheduled messages by the handles that ``schedule_messages`` returned.

        Raises:
            ScheduledMessageGoneError: A parked one has left the backlog already.
        """
        self._check_live()
        plain, parked = split_handles(sequence_numbers)
        if parked:
            self._client._cancel_parked(parked, timeout)
        if plain:
            self._primary_sender().cancel_scheduled_messages(plain, timeout=timeout, **options)

    def create_message_batch(self, max_size_in_bytes: int | None = None) -> ServiceBusMessageBatch:
        """An empty batch. When the primary cannot be asked for its limit, that of the standard tier is taken."""
        self._check_live()
        limit = wire.batch_limit(self._primary) if self._primary is not None else 0
        if not limit and self._record.is_healthy:
            try:
                batch = self._primary_sender().create_message_batch(max_size_in_bytes)
                return wire.identifying_batch(batch.max_size_in_bytes, self._primary_sender())
            except Exception as error:
                flow = self._flow(self._factory.clock(), None)
                with self._factory.lock:
                    self._factory.apply(self._record, flow.primary_failed(self._factory.clock(), error))
                    step = flow.next_step(self._factory.clock())
                if isinstance(step, Fail) and not self._factory.is_paired:
                    raise
        limit = limit or BACKLOG_LIMIT_BYTES
        if max_size_in_bytes is not None and max_size_in_bytes > limit:
            raise UsageError(
                f"max_size_in_bytes is {max_size_in_bytes}: the entity takes batches of {limit} bytes"
            )
        return wire.identifying_batch(max_size_in_bytes or limit, self._primary_sender())

    def close(self) -> None:
        """Close the links. Idempotent."""
        self._is_closed = True
        senders = [*self._backlog.values(), *([self._primary] if self._primary is not None else [])]
        self._backlog.clear()
        self._primary = None
        for sender in senders:
            self._let_go(sender)
        self._client._forget(self)
        self._factory.fold(self._tally)

    def __str__(self) -> str:
        return f"Paired sender: {self.entity_name}"

    # --- the detour -------------------------------------------------------------------------------

    def _flow(self, begun_ms: int, timeout: float | None) -> SendFlow:
        time_ms = SEND_TIMEOUT_MS_DEFAULT if timeout is None else max(1, int(timeout * 1000))
        return self._factory.flow(self._record, self._choice, begun_ms + time_ms)

    def _run(
        self, flow: SendFlow, message: Any, count: int, options: dict[str, Any], failure: Exception | None
    ) -> None:
        """Bring one send to its end, and count what became of its messages (P45)."""
        parcel = Parcel(message)
        try:
            if failure is not None:
                self._judge(flow, failure)
            self._take_steps(flow, parcel, count, options)
        except BaseException as error:
            left = count if parcel.left is None else len(parcel.left)
            was_interrupted = not isinstance(error, Exception) or isinstance(error, ClientClosedError)
            is_in_doubt = flow.is_in_doubt or left < count or was_interrupted or classify(error) in IN_DOUBT
            if is_in_doubt:
                self._tally.unknown += left
            else:
                self._tally.failed += left
            mark(error, is_in_doubt=is_in_doubt)
            raise

    def _take_steps(self, flow: SendFlow, parcel: Parcel, count: int, options: dict[str, Any]) -> None:
        """Ask what to do, do it, report, until the message is somewhere or nowhere."""
        while True:
            self._check_live()
            with self._factory.lock:
                step = flow.next_step(self._factory.clock())
            if isinstance(step, TryPrimary):
                if self._try_primary(flow, parcel.message, count, options, step.timeout_ms / 1000):
                    return
            elif isinstance(step, TryBacklog):
                if self._try_backlog(flow, parcel, step):
                    return
            elif isinstance(step, Wait):
                self._client._pulse.wait(step.timeout_ms / 1000)
            else:
                raise step.error from step.cause

    def _judge(self, flow: SendFlow, error: Exception) -> None:
        """The primary said no, or nothing. Raises the error when it concerns no pairing."""
        self._raise_if_closed(error)
        with self._factory.lock:
            self._factory.note(self._record, f"send failed: {type(error).__name__}: {error}"[:200])
            if not self._factory.is_paired:
                raise error
            self._factory.apply(self._record, flow.primary_failed(self._factory.clock(), error))

    def _try_primary(
        self, flow: SendFlow, message: Any, count: int, options: dict[str, Any], seconds: float
    ) -> bool:
        self._in_flight += 1
        try:
            self._send_or_schedule(message, options, seconds)
        except Exception as error:  # noqa: BLE001 - every error is judged by the flow
            failure = error
        else:
            self._tally.to_primary += count
            self._accepted_by_primary()
            return True
        finally:
            self._in_flight -= 1
        self._judge(flow, failure)
        return False

    def _send_or_schedule(self, message: Any, options: dict[str, Any], seconds: float) -> None:
        sender = self._primary_sender()
        with self._limits.limit(sender, seconds):
            self._send_within(sender, message, options, seconds * SDK_SHARE)

    def _send_within(
        self, sender: ServiceBusSender, message: Any, options: dict[str, Any], seconds: float
    ) -> None:
        if "_schedule" in options:
            further = {key: value for key, value in options.items() if not key.startswith("_")}
            numbers = sender.schedule_messages(message, options["_schedule"], timeout=seconds, **further)
            options["_handles"].extend(numbers)
        else:
            sender.send_messages(message, timeout=seconds, **options)

    def _try_backlog(self, flow: SendFlow, parcel: Parcel, step: TryBacklog) -> bool:
        if parcel.left is None:
            reason = classify(flow.primary_error).value if flow.primary_error is not None else "failed over"
            parcel.left = self._factory.park(parcel.originals(), self._record.path, reason)
        self._discard_primary()
        sender = self._backlog_sender(step.queue)
        limit = wire.batch_limit(sender) or BACKLOG_LIMIT_BYTES
        check_size(parcel.left, parcel.originals()[-len(parcel.left) :], limit)
        try:
            until_ms = self._factory.clock() + step.timeout_ms
            while parcel.left:
                batch = wire.batch_of(wire.new_batch(limit, sender), parcel.left)
                seconds = max(0.001, (until_ms - self._factory.clock()) / 1000)
                with self._limits.limit(sender, seconds):
                    sender.send_messages(batch, timeout=seconds * SDK_SHARE)
                sent = len(batch)
                parcel.left = parcel.left[sent:]
                self._tally.to_backlog += sent
                self._parked_in = step.queue
                with self._factory.lock:
                    if flow.backlog_accepted(step.queue, sent):
                        self._factory.readmitted(step.queue)
        except Exception as error:  # noqa: BLE001 - every error is judged by the flow
            self._raise_if_closed(error)
            with self._factory.lock:
                if flow.backlog_failed(step.queue, self._factory.clock(), error):
                    self._factory.evicted(step.queue, f"{type(error).__name__}: {error}"[:200])
            self._let_go_meanwhile(self._backlog.pop(step.queue, None))
            return False
        return True

    def _accepted_by_primary(self) -> None:
        record = self._record
        if record.is_healthy:
            record.has_accepted = True
            return
        with self._factory.lock:
            self._factory.apply(record, record.send_succeeded(self._factory.clock()))

    # --- links ------------------------------------------------------------------------------------

    def _primary_sender(self) -> ServiceBusSender:
        if self._primary is None:
            make = (
                self._client.primary.get_topic_sender
                if self._is_topic
                else self._client.primary.get_queue_sender
            )
            self._primary = make(self.entity_name, **self._options)
        return self._primary

    def _backlog_sender(self, queue: str) -> ServiceBusSender:
        sender = self._backlog.get(queue)
        if sender is None:
            sender = self._client.secondary.get_queue_sender(queue)
            wire.set_retries(sender, BACKLOG_RETRIES)
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

    def _let_go(self, sender: Any) -> None:
        if sender is not None:
            self._client._close_handler(sender)

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


class Parcel:
    """The encoded messages of one send, and which of their parked forms are still to be sent."""

    def __init__(self, message: Any) -> None:
        self.message = message
        self._originals: list[bytes] | None = None
        self.left: list[bytes] | None = None

    def originals(self) -> list[bytes]:
        """The bytes that the SDK would send, message by message."""
        if self._originals is None:
            if isinstance(self.message, ServiceBusMessageBatch):
                self._originals = wire.messages_of(self.message)
            elif isinstance(self.message, list):
                self._originals = [wire.encoded(item) for item in self.message]
            else:
                self._originals = [wire.encoded(self.message)]
        return self._originals


def _prepared(message: Any) -> tuple[Any, int]:
    """What to send at every attempt, its message ids fixed (P3), and how many messages that is."""
    if isinstance(message, ServiceBusMessage | AmqpAnnotatedMessage | Mapping):
        return wire.with_message_id(message), 1
    if isinstance(message, ServiceBusMessageBatch):
        return message, len(message)
    if isinstance(message, str | bytes) or not isinstance(message, Iterable):
        raise TypeError(
            "Only AmqpAnnotatedMessage, ServiceBusMessage instances or Mappings representing messages are supported. "
            f"Received instead: {type(message).__name__}"
        )
    messages = [wire.with_message_id(item) for item in message]
    return messages, len(messages)


def _scheduled(
    message: ServiceBusMessage | AmqpAnnotatedMessage, when: datetime.datetime
) -> ServiceBusMessage | AmqpAnnotatedMessage:
    changed = wire.copy_of(message)
    if isinstance(changed, ServiceBusMessage):
        changed.scheduled_enqueue_time_utc = when
        return changed
    wrapped = wire.as_service_bus_message(changed)
    wrapped.scheduled_enqueue_time_utc = when
    return wrapped
