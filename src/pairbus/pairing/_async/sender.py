"""A sender that goes on when its primary does not: the shape of ``azure.servicebus.aio.ServiceBusSender``."""

from __future__ import annotations

import datetime
import warnings
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus.aio import ServiceBusSender
from azure.servicebus.amqp import AmqpAnnotatedMessage

from pairbus.errors import PairbusError, PairingError, UsageError
from pairbus.pairing._async import runtime
from pairbus.pairing._async.link import GRACE_SECONDS, Link
from pairbus.pairing.attempts import Attempts, NotWanted, current_attempts, notice
from pairbus.pairing.errors import ClientClosedError
from pairbus.pairing.outcome import mark
from pairbus.pairing.parcel import Parcel, handle_of, prepared_for_sending, scheduled_for
from pairbus.pairing.rules.flow import Choice, SendFlow, TryBacklog, TryPrimary, Wait, first_attempt_ms
from pairbus.pairing.scheduled import split_handles
from pairbus.pairing.state import (
    BACKLOG_LIMIT_BYTES,
    ENVELOPE_BYTES,
    SEND_TIMEOUT_MS_DEFAULT,
    check_header,
    check_size,
)
from pairbus.sdk import handlers, message_bytes
from pairbus.sdk.failures import Failure, classify, is_refusal

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from pairbus.pairing._async.client import PairedServiceBusClient

BACKLOG_RETRIES: Final = 1
"""A connection that died while idle is opened anew once before its queue leaves the rotation. An answer is final."""

PRIMARY_RETRIES_MAX: Final = 1
PRIMARY_BACKOFF_SECONDS_MAX: Final = 0.25
"""How often the SDK tries the primary again, and the factor of its pause, when a failed send is detoured or held anyway:
its own three retries take eleven seconds, which the message may spend in the backlog."""

ENTER_SECONDS: Final = 5.0
"""How long ``async with`` waits for a primary that is silent before it goes on without having opened the link."""

SDK_SHARE: Final = 0.9
"""What the SDK gets of an attempt's time, so that it may end in its own way before it is cut off."""

CLOSE_SECONDS: Final = 5.0
"""How long a sender's links are waited for when it is closed; they are closed beside each other."""

LINK_CLOSE_SECONDS: Final = 3.0
"""How long one link is waited for."""

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
        self._state = client._state
        self._limits = client._limits
        self._tally = self._state.new_tally()
        weakref.finalize(self, self._state.retire, self._tally).atexit = False
        self._holds = self._state.options.while_suspect == "wait"
        self._record = self._state.health_of(path)
        self._options = options
        self._is_topic = is_topic
        self._choice = Choice()
        self._primary: Link | None = None
        self._backlog: dict[str, Link] = {}
        self._is_closed = False

    # --- the SDK's shape --------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        self._check_live()
        await self._open_on_enter()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def client_identifier(self) -> str:
        """The identifier that the primary sees."""
        return str(self._primary_link().sender.client_identifier)

    async def send_messages(self, message: Messages, *, timeout: float | None = None, **options: Any) -> None:
        """Send a message, an iterable of messages or a batch. Returns once the primary or the backlog has it.

        Args:
            message: What to send; never changed.
            timeout: Seconds in all, retries and detour included; 60 unless given.
            options: None are supported; the SDK warns of them, and so does this.

        Raises:
            ClientClosedError: The sender or the client is closed.
            EntityGoneError: The entity does not exist any more.
            MessageTooLargeForBacklogError: Failed over, and the parked form is too large.
            InvalidMessageError, BatchTooLargeError: Failed over, and the primary would refuse the message, too.
            azure.servicebus.exceptions.ServiceBusError: As with the SDK; from both sides when both refused.
        """
        if self._is_closed or self._client._is_ended:
            self._check_live()
        if options:
            options = _without_unsupported(options)
        # The usual message is seen first: a healthy send should cost what it costs without us.
        if type(message) is ServiceBusMessage and message_bytes.has_message_id(message):
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
        if not record.is_healthy or not self._state.failover_interval_ms:
            await self._run(self._flow(self._state.clock(), timeout), prepared, count, options, None)
            return
        begun_ms = self._state.clock()
        time_ms = SEND_TIMEOUT_MS_DEFAULT if timeout is None else max(1, int(timeout * 1000))
        if self._state.failover_interval_ms < time_ms and self._state.is_paired:
            time_ms = first_attempt_ms(
                time_ms, self._state.failover_interval_ms, holds_while_suspect=self._holds
            )
        failure: Exception | None = None
        attempts = Attempts()
        current_attempts.set(attempts)
        seconds = time_ms / 1000
        try:
            link = self._primary
            if link is None:
                link = self._primary_link()
            await link.send(prepared, seconds, seconds + GRACE_SECONDS, options)
        except Exception as error:  # noqa: BLE001 - every error is judged by the flow
            failure = error
        except BaseException as error:
            is_in_doubt = attempts.failed(error)
            if is_in_doubt:
                tally.unknown += count
            else:
                tally.failed += count
            mark(error, is_in_doubt=is_in_doubt)
            raise
        if failure is not None:
            await self._run(self._flow(begun_ms, timeout), prepared, count, options, failure, attempts)
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
        options = _without_unsupported(options)
        prepared, count = prepared_for_sending(messages, is_scheduled=True)
        if count == 0:
            return []
        singles = (
            [prepared] if isinstance(prepared, ServiceBusMessage | AmqpAnnotatedMessage) else list(prepared)
        )
        copies = [scheduled_for(single, schedule_time_utc) for single in singles]
        handles: list[int] = []
        self._tally.sends += count
        flow = self._flow(self._state.clock(), timeout)
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
        _check_timeout(timeout)
        options = _without_unsupported(options)
        plain, parked = split_handles(sequence_numbers)
        if parked:
            await self._client._cancel_parked(parked, timeout)
        if plain:
            link = self._primary_link()
            seconds = SEND_TIMEOUT_MS_DEFAULT / 1000 if timeout is None else timeout + GRACE_SECONDS
            cancel = link.sender.cancel_scheduled_messages
            await link.call(cancel, seconds, plain, timeout=timeout, **options)

    async def create_message_batch(self, max_size_in_bytes: int | None = None) -> ServiceBusMessageBatch:
        """An empty batch. When the primary cannot be asked for its limit, that of the standard tier is taken."""
        self._check_live()
        link = self._primary_link()
        limit = message_bytes.batch_limit(link.sender)
        if not limit and self._record.is_healthy:
            try:
                # The SDK has no timeout for this, and a silent primary would hold it for ever.
                await link.open(ASK_SECONDS)
                limit = message_bytes.batch_limit(link.sender)
            except Exception as error:
                if not self._state.is_paired or classify(error) is Failure.INVALID:
                    raise
                flow = self._flow(self._state.clock(), None)
                with self._state.lock:
                    self._state.apply(self._record, flow.primary_failed(self._state.clock(), error))
        limit = limit or BACKLOG_LIMIT_BYTES
        if max_size_in_bytes is not None and max_size_in_bytes > limit:
            raise UsageError(
                f"max_size_in_bytes is {max_size_in_bytes}: the entity takes batches of {limit} bytes"
            )
        return message_bytes.identifying_batch(max_size_in_bytes or limit, link.sender)

    async def close(self) -> None:
        """Close the links. Idempotent."""
        self._is_closed = True
        with self._state.lock:
            links = [*self._backlog.values()]
            if self._primary is not None:
                links.append(self._primary)
            self._backlog.clear()
            self._primary = None
        self._client._forget(self)
        await runtime.together(self._close_link, links, CLOSE_SECONDS)

    async def _close_link(self, link: Link) -> None:
        try:
            async with self._limits.limit(link.sender, LINK_CLOSE_SECONDS):
                await link.close()
        except Exception:  # noqa: BLE001 - its peer may be gone, and it is given up either way
            return

    def __str__(self) -> str:
        return f"Paired sender: {self.entity_name}"

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else self._record.state.value
        kind = "topic" if self._is_topic else "queue"
        return f"<{type(self).__name__} of {kind} {self.entity_name} in {self._state.primary}: {state}>"

    # --- the detour -------------------------------------------------------------------------------

    def _flow(self, begun_ms: int, timeout: float | None) -> SendFlow:
        time_ms = SEND_TIMEOUT_MS_DEFAULT if timeout is None else max(1, int(timeout * 1000))
        return self._state.flow(self._record, self._choice, begun_ms + time_ms)

    async def _run(
        self,
        flow: SendFlow,
        message: Any,
        count: int,
        options: dict[str, Any],
        failure: Exception | None,
        attempts: Attempts | None = None,
    ) -> Parcel:
        """Bring one send to its end, and count what became of its messages (P45)."""
        parcel = Parcel(message, None if "_schedule" in options else self._batch_limit())
        attempts = attempts or Attempts()
        current_attempts.set(attempts)
        try:
            if failure is not None:
                self._judge(flow, failure, attempts)
            await self._take_steps(flow, parcel, count, options, attempts)
            return parcel
        except BaseException as error:
            left = count if parcel.left is None else len(parcel.left)
            was_interrupted = not isinstance(error, Exception) or isinstance(error, ClientClosedError)
            # Of an error that is neither an answer nor ours nobody knows where it came from.
            is_known = isinstance(error, PairbusError) or flow.knows(error)
            was_sent = attempts.is_sent or attempts.is_in_doubt
            is_in_doubt = flow.is_in_doubt or left < count or (was_sent if was_interrupted else not is_known)
            if is_in_doubt:
                self._tally.unknown += left
            else:
                self._tally.failed += left
            mark(error, is_in_doubt=is_in_doubt)
            raise

    async def _take_steps(
        self, flow: SendFlow, parcel: Parcel, count: int, options: dict[str, Any], attempts: Attempts
    ) -> None:
        """Ask what to do, do it, report, until the message is somewhere or nowhere."""
        while True:
            self._check_live()
            with self._state.lock:
                ticket = self._client._pulse.ticket()
                step = flow.next_step(self._state.clock())
            if isinstance(step, TryPrimary):
                seconds = step.timeout_ms / 1000
                if await self._try_primary(flow, parcel.message, count, options, seconds, attempts):
                    return
            elif isinstance(step, TryBacklog):
                if await self._try_backlog(flow, parcel, step, attempts):
                    return
            elif isinstance(step, Wait):
                await self._client._pulse.wait(ticket, step.timeout_ms / 1000)
            else:
                raise step.error from step.cause

    def _judge(self, flow: SendFlow, error: Exception, attempts: Attempts) -> None:
        """The primary said no, or nothing. Raises the error when it concerns no pairing."""
        if isinstance(error, NotWanted):
            return
        # The SDK tells of its last attempt only; one before may have stored the message (P5).
        is_in_doubt = attempts.failed(error)
        self._raise_if_closed(error)
        with self._state.lock:
            self._state.note(self._record, f"send failed: {type(error).__name__}: {error}"[:200])
            if not self._state.is_paired:
                self._state.warn_not_paired(self._record.path)
                flow.is_in_doubt = is_in_doubt
                flow.primary_error = error
                raise error
            now = self._state.clock()
            self._state.apply(self._record, flow.primary_failed(now, error, is_in_doubt=is_in_doubt))

    async def _try_primary(
        self,
        flow: SendFlow,
        message: Any,
        count: int,
        options: dict[str, Any],
        seconds: float,
        attempts: Attempts,
    ) -> bool:
        try:
            await self._send_or_schedule(message, options, seconds)
        except Exception as error:  # noqa: BLE001 - every error is judged by the flow
            failure = error
        else:
            self._tally.to_primary += count
            self._accepted_by_primary()
            return True
        self._judge(flow, failure, attempts)
        return False

    async def _send_or_schedule(self, message: Any, options: dict[str, Any], seconds: float) -> None:
        link = self._primary_link()
        if "_schedule" not in options:
            await link.send(message, seconds * SDK_SHARE, seconds, options)
            return
        further = {key: value for key, value in options.items() if not key.startswith("_")}
        further["timeout"] = seconds * SDK_SHARE
        schedule = link.sender.schedule_messages
        options["_handles"].extend(
            await link.call(schedule, seconds, message, options["_schedule"], **further)
        )

    async def _try_backlog(
        self, flow: SendFlow, parcel: Parcel, step: TryBacklog, attempts: Attempts
    ) -> bool:
        if parcel.left is None:
            reason = classify(flow.primary_error).value if flow.primary_error is not None else "failed over"
            parcel.left = self._state.park(parcel.originals(), self._record.path, reason)
        if self._primary is not None:
            # The first send after failback finds a fresh connection.
            self._primary.rest()
        link = self._backlog_link(step.queue)
        attempts.begin()
        begun_ms = self._state.clock()
        until_ms = begun_ms + step.timeout_ms
        try:
            limit = await self._backlog_limit(link, parcel.left, step.timeout_ms / 1000)
            check_size(parcel.left, parcel.originals()[-len(parcel.left) :], limit)
            while parcel.left:
                batch = message_bytes.batch_of(message_bytes.new_batch(limit, link.sender), parcel.left)
                seconds = max(0.001, (until_ms - self._state.clock()) / 1000)
                await link.send(batch, seconds * SDK_SHARE, seconds, {})
                accepted = len(batch)
                self._tally.to_backlog += accepted
                parcel.accepted(step.queue, accepted)
                with self._state.lock:
                    if flow.backlog_accepted(step.queue, accepted):
                        self._state.readmitted(step.queue)
        except Exception as error:  # noqa: BLE001 - every error is judged by the flow
            is_in_doubt = attempts.failed(error)
            self._raise_if_closed(error)
            failure = classify(error)
            if failure is Failure.NOT_FOUND and step.queue not in parcel.created_again:
                parcel.created_again.add(step.queue)
                seconds = max(0.0, (until_ms - self._state.clock()) / 1000)
                if await self._client._create_again(step.queue, begun_ms, seconds):
                    return False  # and the flow offers the same queue again
            if failure in (Failure.INVALID, Failure.INTERNAL):
                # The message's fault then, and no reason to give up the queue.
                check_header(parcel.left, parcel.originals()[-len(parcel.left) :])
            with self._state.lock:
                now = self._state.clock()
                if flow.backlog_failed(step.queue, now, error, is_in_doubt=is_in_doubt):
                    self._state.evicted(step.queue, f"{type(error).__name__}: {error}"[:200])
            return False
        return True

    async def _backlog_limit(self, link: Link, parked: Sequence[bytes], seconds: float) -> int:
        """The largest batch that a backlog queue takes. Only its link knows whether that is more than usual."""
        limit = message_bytes.batch_limit(link.sender)
        if not limit and max(len(payload) for payload in parked) + ENVELOPE_BYTES > BACKLOG_LIMIT_BYTES:
            await link.open(seconds)
            limit = message_bytes.batch_limit(link.sender)
        return limit or BACKLOG_LIMIT_BYTES

    def _batch_limit(self) -> int:
        """The largest batch that the entity takes: that of the standard tier unless its link was open once."""
        known = message_bytes.batch_limit(self._primary.sender) if self._primary is not None else 0
        return known or BACKLOG_LIMIT_BYTES

    def _accepted_by_primary(self) -> None:
        record = self._record
        if record.is_healthy:
            record.has_accepted = True
            return
        with self._state.lock:
            self._state.apply(record, record.send_succeeded(self._state.clock()))

    # --- links ------------------------------------------------------------------------------------

    async def _open_on_enter(self) -> None:
        """Prove key and name as the SDK does, if the primary is there. If it is not, the program starts all the same."""
        if not self._record.is_healthy:
            return
        try:
            await self._primary_link().open(ENTER_SECONDS)
        except Exception as error:
            self._raise_if_closed(error)
            if not self._state.is_paired or not self._state.counts(error, self._record):
                raise
            with self._state.lock:
                self._state.note(self._record, f"could not be opened: {type(error).__name__}: {error}"[:200])

    def _primary_link(self) -> Link:
        with self._state.lock:
            if self._primary is None:
                self._check_live()
                client = self._client.primary
                make = client.get_topic_sender if self._is_topic else client.get_queue_sender
                sender = make(self.entity_name, **self._options)
                if self._state.is_paired and (self._holds or not self._state.failover_interval_ms):
                    handlers.bound_retries(sender, PRIMARY_RETRIES_MAX, PRIMARY_BACKOFF_SECONDS_MAX)
                handlers.watch_attempts(sender, notice)
                self._primary = Link(sender, self._limits, self._record.may_send)
            return self._primary

    def _backlog_link(self, queue: str) -> Link:
        with self._state.lock:
            link = self._backlog.get(queue)
            if link is None:
                self._check_live()
                sender = self._client.secondary.get_queue_sender(queue)
                handlers.set_retries(sender, BACKLOG_RETRIES)
                handlers.watch_attempts(sender, notice, is_refusal)
                link = self._backlog[queue] = Link(sender, self._limits)
            return link

    def _check_live(self) -> None:
        self._client._check_live()
        if self._is_closed:
            error = ClientClosedError(
                f"the sender of {self.entity_name!r} is closed: get a new one from the client"
            )
            # The caller who was sending meanwhile marks it anew.
            raise mark(error, is_in_doubt=False)

    def _raise_if_closed(self, error: BaseException) -> None:
        """A send that races with close fails because of it, and is never detoured (P44)."""
        if isinstance(error, PairingError):
            raise error
        if self._is_closed or self._client.is_closed:
            raise ClientClosedError(
                f"the sender of {self.entity_name!r} was closed while it was sending"
            ) from error


def _without_unsupported(options: dict[str, Any]) -> dict[str, Any]:
    if options:
        warnings.warn(f"Unsupported keyword args: {options}", stacklevel=3)
    return {}


def _check_timeout(timeout: object) -> None:
    if timeout is not None and (not isinstance(timeout, int | float) or not timeout > 0):
        raise UsageError(f"timeout is {timeout!r}: give a number of seconds above 0")
