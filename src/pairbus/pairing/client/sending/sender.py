"""The send path of a paired sender, written once for asyncio, for threads and for the simulation.

What a send goes through, and why, is explained at the head of ``pairing.rules.flow``, which decides every step. This module
performs the steps: it tries the primary, waits, or sends the parked form to a backlog queue, and reports the result.
"""

from __future__ import annotations

import datetime
import time
import warnings
import weakref
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus.amqp import AmqpAnnotatedMessage

from pairbus.errors import PairingError, SpoolError, SpoolNotStored, UsageError
from pairbus.pairing.client.sending import limits, ordering
from pairbus.pairing.client.sending.send import (
    TIMEOUT_MS_DEFAULT,
    Send,
    handle_of,
    prepared_for_sending,
    scheduled_for,
)
from pairbus.pairing.errors import (
    CancelInDoubtError,
    ClientClosedError,
    MessageTooLargeForBacklogError,
    SpoolRefusedError,
)
from pairbus.pairing.naming import entity_key
from pairbus.pairing.outcome import mark
from pairbus.pairing.rules.flow import (
    Choice,
    SendFlow,
    TryBacklog,
    TryPrimary,
    UseSpool,
    Wait,
    first_attempt_ms,
)
from pairbus.pairing.rules.health import HEALTHY, Health
from pairbus.pairing.runtime.attempts import Failed, LinkClosed, NotWanted, current_attempts
from pairbus.pairing.scheduled import split_handles, tell_cancelled
from pairbus.sdk.failures import Failure, classify, is_refusal, shown
from pairbus.sdk.links import handlers
from pairbus.sdk.messages import message_bytes

if TYPE_CHECKING:
    from pairbus.pairing.client.client import PairedClient
    from pairbus.pairing.runtime.ports import Link, Runtime

BACKLOG_RETRIES: Final = 1
"""A connection that died while idle is opened once more before its queue leaves the rotation. An answer is final."""
PRIMARY_RETRIES_MAX: Final = 1
PRIMARY_BACKOFF_SECONDS_MAX: Final = 0.05
"""Bounds on the SDK's own retries when a failed send is detoured or held anyway: its three retries take eleven seconds."""
ENTER_SECONDS: Final = 5.0
"""Seconds that entering a sender waits for a silent primary before it goes on without an open link."""
GRACE_SECONDS: Final = 1.0
"""Seconds by which a plain send may overrun its timeout before it is cut off."""
SDK_SHARE: Final = 0.9
"""Part of an attempt's time that the SDK gets, so that it can end in its own way before it is cut off."""
CLOSE_SECONDS: Final = 5.0
"""Seconds to wait for a sender's links when it is closed; they are closed side by side."""
LINK_CLOSE_SECONDS: Final = 3.0
ASK_SECONDS: Final = 10.0
"""Seconds to ask the primary for the size of its batches before that of the standard tier is taken."""

Message = ServiceBusMessage | AmqpAnnotatedMessage | Mapping[str, Any]
Messages = Message | ServiceBusMessageBatch | Iterable[Message]


class SenderCore:
    """Sends to one entity. The public classes of ``pairing.client.aio`` and ``.sync`` give it the SDK's shape.

    They are the SDK's senders to type checkers and to ``isinstance``, and offer all that those do. They use official
    senders and are none themselves: the official constructor is not run.
    """

    _may_spool = True

    def __init__(
        self, client: PairedClient[Any, Any], path: str, options: dict[str, Any], *, is_topic: bool
    ) -> None:
        self.entity_name = path
        self.fully_qualified_namespace = client.fully_qualified_namespace
        self._client = client
        self._runtime = client._runtime
        self._state = client._state
        self._tally = self._state.new_tally()
        weakref.finalize(self, self._state.retire, self._tally).atexit = False
        self._holds = self._state.options.while_suspect == "wait"
        self._health = self._state.health_of(path)
        self._options = options
        self._is_topic = is_topic
        self._choice = Choice()
        self._order = self._state.order
        self._direct_seconds = 0.0
        """Time of the first attempt of a send that came without a timeout; 0: not known yet, or the flow must be asked."""
        self._primary: Link | None = None
        self._backlog: dict[str, Link] = {}
        self._is_closed = False

    @property
    def client_identifier(self) -> str:
        """The name of this sender that the primary sees, as ``client_identifier`` gave it."""
        return str(self._primary_link().sender.client_identifier)

    def __str__(self) -> str:
        return f"Paired sender: {self.entity_name}"

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else self._health.state.value
        kind = "topic" if self._is_topic else "queue"
        return f"<{type(self).__name__} of {kind} {self.entity_name} in {self._state.primary}: {state}>"

    # --- what the public methods do ---------------------------------------------------------------

    def _direct(self, message: Messages, timeout: float | None) -> Any:
        """The link for a send that nothing keeps from going straight to the primary; None: leave it to ``_do_send``.

        The public methods make this attempt themselves: each function, coroutine and object between them and the SDK costs every
        healthy send. After a send the caches of the processor are cold, and it costs several times what it costs in a loop.
        """
        health = self._health
        is_direct = (
            timeout is None
            and health.state is HEALTHY
            and not health.is_spooling
            and not self._order.is_busy
            and not self._is_closed
            and not self._client._is_ended
            and self._direct_seconds
            and type(message) is ServiceBusMessage
            and message_bytes.has_message_id(message)
        )
        return self._primary if is_direct else None

    async def _do_send(self, message: Messages, timeout: float | None, failed: Failed | None = None) -> None:
        """Bring a message to its end. ``failed``: the attempt that its caller has made (``_direct``)."""
        if failed is None:
            self._check_live()
        prepared, count = prepared_for_sending(message)
        if count == 0:
            return
        _check_timeout(timeout)
        send = Send(prepared, count, self._state.clock(), timeout)
        if failed is not None:
            send.has_had(failed.attempts, failed.seconds)
        await self._deliver(send, failed)

    async def _do_schedule(
        self, messages: Message | Iterable[Message], due: datetime.datetime, timeout: float | None
    ) -> list[int]:
        self._check_live()
        _check_timeout(timeout)
        prepared, count = prepared_for_sending(messages, is_scheduled=True)
        if count == 0:
            return []
        is_single = isinstance(prepared, ServiceBusMessage | AmqpAnnotatedMessage)
        copies = [scheduled_for(single, due) for single in ([prepared] if is_single else prepared)]
        send = Send(copies, count, self._state.clock(), timeout)
        send.is_scheduled, send.due = True, due
        await self._deliver(send)
        if send.handles is not None:
            return send.handles
        handles: list[int] = [
            handle_of(queue, payload, copy, has_other_copy=send.is_in_doubt)
            for copy, (queue, payload) in zip(copies, send.parked, strict=False)
        ]
        for copy, handle in zip(copies[len(handles) :], send.spooled, strict=True):
            handle.message_id = message_bytes.message_id(copy)
            handle.has_other_copy = send.is_in_doubt
            handles.append(handle)
        return handles

    async def _do_cancel(self, sequence_numbers: int | Sequence[int], timeout: float | None) -> None:
        self._check_live()
        _check_timeout(timeout)
        plain, parked = split_handles(sequence_numbers)
        seconds = TIMEOUT_MS_DEFAULT / 1000 if timeout is None else timeout
        until = time.monotonic() + seconds
        if plain:
            # First: when the primary does not answer, nothing has changed.
            link = self._primary_link()
            left = max(0.001, until - time.monotonic())
            cancel = link.sender.cancel_scheduled_messages
            try:
                await link.call(
                    cancel, left + GRACE_SECONDS, plain, timeout=None if timeout is None else left
                )
            except Exception as error:
                if isinstance(error, LinkClosed | ValueError):
                    self._raise_if_closed(error)
                if parked:
                    tell_cancelled(error, [], parked)
                raise
        for place, handle in enumerate(parked):
            try:
                await self._client._cancel_parked(handle, self.entity_name, until)
            except Exception as error:
                tell_cancelled(error, [*plain, *parked[:place]], parked[place + 1 :])
                raise
        in_doubt = [handle for handle in parked if handle.has_other_copy]
        if in_doubt:
            places = {"the spool" if handle.is_spooled else "the backlog" for handle in in_doubt}
            raise CancelInDoubtError(
                self.entity_name, [handle.message_id for handle in in_doubt], " and ".join(sorted(places))
            )

    async def _do_new_batch(self, max_size_in_bytes: int | None) -> ServiceBusMessageBatch:
        self._check_live()
        link = self._primary_link()
        limit = message_bytes.batch_limit(link.sender)
        if not limit and self._health.is_healthy:
            begun_ms = self._state.clock()
            try:
                # The SDK has no timeout for this, and a silent primary would hold it for ever.
                await link.open(ASK_SECONDS)
                limit = message_bytes.batch_limit(link.sender)
            except Exception as error:
                self._raise_if_closed(error)
                if not self._state.is_paired or classify(error) is Failure.INVALID:
                    raise
                flow = self._state.flow(self._health, self._choice, begun_ms + TIMEOUT_MS_DEFAULT)
                with self._state.lock:
                    changes = flow.primary_failed(self._state.clock(), error, begun_ms=begun_ms)
                    self._state.apply(self._health, changes)
        limit = limit or limits.BACKLOG_LIMIT_BYTES
        if max_size_in_bytes is not None and max_size_in_bytes > limit:
            raise UsageError(
                f"max_size_in_bytes is {max_size_in_bytes}: the entity takes batches of {limit} bytes"
            )
        return message_bytes.identifying_batch(max_size_in_bytes or limit, link.sender)

    async def _do_enter(self) -> None:
        """Prove key and name as the SDK does, if the primary answers. If it does not, the program starts all the same."""
        self._check_live()
        if not self._health.is_healthy:
            return
        try:
            await self._primary_link().open(ENTER_SECONDS)
        except Exception as error:
            self._raise_if_closed(error)
            if not self._state.is_paired or not self._state.counts(error, self._health):
                raise
            with self._state.lock:
                self._state.note(self._health, f"could not be opened: {shown(error)}")

    async def _do_close(self) -> None:
        self._is_closed = True
        with self._state.lock:
            links = [*self._backlog.values()]
            if self._primary is not None:
                links.append(self._primary)
        await self._runtime.together(partial(close_link, self._runtime), links, CLOSE_SECONDS)
        with self._state.lock:
            # Only now: a close that is cancelled before can be repeated.
            self._backlog.clear()
            self._primary = None
            self._client._senders.discard(self)

    # --- one send ---------------------------------------------------------------------------------

    async def _deliver(self, send: Send, failed: Failed | None = None) -> None:
        """Bring one send to its end, and count what became of its messages (P45). ``failed``: the attempt it has had."""
        if self._state.is_pairing:
            await self._client._wait_for_pairing(send.deadline_ms)
            self._check_live()
        self._tally.sends += send.count
        current_attempts.set(send)
        health = self._health
        was_healthy = health.is_healthy
        try:
            if failed is not None:
                self._primary_failed(send, failed.error)
            else:
                if health.is_spooling and self._may_spool and await self._joins_spool(send):
                    return
                if was_healthy and not send.is_scheduled and not self._order.is_busy:
                    seconds = self._first_attempt_seconds(send.timeout_ms)
                    if seconds and await self._try_primary(send, seconds, seconds + GRACE_SECONDS):
                        return
            await self._take_steps(send)
        except BaseException as error:
            left = send.count if send.left is None else len(send.left)
            is_in_doubt = left < send.count or send.may_be_stored(error)
            if is_in_doubt:
                self._tally.unknown += left
            else:
                self._tally.failed += left
            mark(error, is_in_doubt=is_in_doubt)
            raise
        finally:
            current_attempts.set(
                None
            )  # else it keeps the errors of the send, with their frames, and so the client

    def _first_attempt_seconds(self, timeout_ms: int) -> float:
        """Time of the first attempt when it can be made without asking the flow, which costs a lock; 0: ask the flow."""
        interval_ms = self._state.failover_interval_ms
        if not interval_ms:
            return 0.0
        if interval_ms >= timeout_ms or not self._state.is_paired:
            return timeout_ms / 1000
        seconds = first_attempt_ms(timeout_ms, interval_ms, holds_while_suspect=self._holds) / 1000
        if timeout_ms == TIMEOUT_MS_DEFAULT:
            self._direct_seconds = seconds
        return seconds

    def _accepted(self, count: int) -> None:
        """The primary has accepted so many messages."""
        self._tally.to_primary += count
        health = self._health
        if health.state is Health.HEALTHY:
            health.has_accepted = True
        else:
            with self._state.lock:
                self._state.apply(health, health.send_succeeded(self._state.clock()))

    async def _take_steps(self, send: Send) -> None:
        """Ask the flow what to do, do it, report, until a namespace has the messages or the flow gives up."""
        flow = self._flow_of(send)
        while True:
            self._check_live()
            with self._state.lock:
                token = self._runtime.change_token()
                step = flow.next_step(self._state.clock())
            if isinstance(step, TryPrimary):
                seconds = step.timeout_ms / 1000
                if await self._try_primary(send, seconds * SDK_SHARE, seconds):
                    return
            elif isinstance(step, TryBacklog):
                if await self._try_backlog(send, flow, step):
                    return
            elif isinstance(step, Wait):
                await self._runtime.wait_for_change(token, step.timeout_ms / 1000)
            elif isinstance(step, UseSpool):
                await self._spool(send, step.error, step.cause)
                return
            else:
                raise step.error from step.cause

    def _flow_of(self, send: Send) -> SendFlow:
        if send.flow is None:
            has_spool = self._may_spool and self._state.spools is not None
            order = ordering.order_of(self._state, self._health, send) if self._state.keeps_order else None
            send.flow = self._state.flow(
                self._health, self._choice, send.deadline_ms, has_spool=has_spool, order=order
            )
        return send.flow

    async def _try_primary(self, send: Send, seconds: float, cut_seconds: float) -> bool:
        """Send the original to the primary. True: accepted."""
        try:
            link = self._primary or self._primary_link()
            patience = send.attempt_begins(self._state.clock())
            if not send.is_scheduled:
                await link.send(send.message, seconds, cut_seconds, patience)
            else:
                work = partial(link.sender.schedule_messages, send.message, send.due)
                send.handles = await link.call(work, cut_seconds, patience=patience, timeout=seconds)
        except Exception as error:  # noqa: BLE001 - every error is judged by the flow
            failure = error
        else:
            if send.flow is not None and send.flow.order is not None:
                with self._state.lock:
                    send.flow.order.went_direct()
            self._accepted(send.count)
            return True
        self._primary_failed(send, failure)
        return False

    def _primary_failed(self, send: Send, error: BaseException) -> None:
        """The primary refused, or did not answer. Raises the error when it does not concern the pairing."""
        if isinstance(error, NotWanted):
            return
        if not isinstance(error, Exception):
            raise error
        # The SDK raises the error of its last attempt only; one before may have stored the message (P5).
        is_in_doubt = send.failed(error)
        self._raise_if_closed(error)
        flow = self._flow_of(send)
        with self._state.lock:
            self._state.note(self._health, f"send failed: {shown(error)}")
            if not self._state.is_paired:
                self._state.warn_not_paired(self._health.path)
                flow.is_in_doubt = is_in_doubt
                flow.primary_error = error
                raise error
            now, begun = self._state.clock(), send.attempt_ms
            changes = flow.primary_failed(now, error, begun_ms=begun, is_in_doubt=is_in_doubt)
            self._state.apply(self._health, changes)

    async def _try_backlog(self, send: Send, flow: SendFlow, step: TryBacklog) -> bool:
        """Send the parked forms to a backlog queue. True: all of them are accepted."""
        originals = send.originals(self._batch_limit())
        path = self._health.path
        if send.left is None:
            reason = classify(flow.primary_error).value if flow.primary_error is not None else "failed over"
            stamp = self._state.stamp(len(originals), reason)
            forms = [self._state.parked_form(one, path, stamp, place) for place, one in enumerate(originals)]
            send.park(stamp, forms)
        assert send.left is not None
        chosen = ordering.chosen(self._state, self._health, send, flow, step.queue, originals)
        if not chosen:
            return False  # another send of the session has moved it to another queue in this moment
        if self._primary is not None and self._health.state is Health.FAILED_OVER:
            # The first send after failback finds a fresh connection.
            self._primary.rest()
        link = self._backlog_link(step.queue)
        send.begin()
        begun_ms = self._state.clock()
        until_ms = begun_ms + step.timeout_ms
        try:
            await self._client._checks.before_send(step.queue, until_ms)
            left = [send.forms[place] for place in send.left]
            limit = await self._backlog_limit(link, left, step.timeout_ms / 1000)
            limits.check_size(left, [originals[place] for place in send.left], limit)
            while chosen:
                forms = [send.forms[one.index] for one in chosen]
                batch = message_bytes.batch_of(message_bytes.new_batch(limit, link.sender), forms)
                seconds = max(0.001, (until_ms - self._state.clock()) / 1000)
                await link.send(batch, seconds * SDK_SHARE, seconds)
                await self._client._checks.after_send(send, link, step.queue, until_ms)
                accepted, chosen = chosen[: len(batch)], chosen[len(batch) :]
                self._tally.to_backlog += len(accepted)
                send.accepted(step.queue, [one.index for one in accepted])
                with self._state.lock:
                    for queue in flow.backlog_accepted(step.queue, len(accepted), self._state.clock()):
                        self._state.readmitted(queue, step.queue)
                    if flow.order is not None:
                        ordering.accepted(self._state, send, flow.order, step.queue, accepted, originals)
                        self._client._fences.watch()
        except Exception as error:  # noqa: BLE001 - every error is judged by the flow
            is_in_doubt = send.failed(error)
            self._raise_if_closed(error)
            failure = classify(error)
            if failure is Failure.NOT_FOUND and step.queue not in send.created_again:
                send.created_again.add(step.queue)
                seconds = max(0.0, (until_ms - self._state.clock()) / 1000)
                if await self._client._setup.create_again(step.queue, begun_ms, seconds):
                    return False  # and the flow offers the same queue again
            if failure in (Failure.INVALID, Failure.INTERNAL):
                # The message's fault then, and no reason to give up the queue.
                forms = [send.forms[place] for place in send.left]
                limits.check_header(forms, [originals[place] for place in send.left])
            with self._state.lock:
                now = self._state.clock()
                if flow.backlog_failed(step.queue, now, error, is_in_doubt=is_in_doubt):
                    self._state.evicted(step.queue, shown(error))
            return False
        return not send.left

    # --- the spool --------------------------------------------------------------------------------

    async def _joins_spool(self, send: Send) -> bool:
        """The spool holds messages of the entity: this one goes behind them. False: they have left it meanwhile."""
        health = self._health
        while health.state is not Health.REFUSING:
            token = self._runtime.change_token()
            if not health.is_spooling or self._may_pass_spool(send):
                return False
            left_ms = send.deadline_ms - self._state.clock()
            if not health.is_spool_ending or left_ms <= 0:
                try:
                    await self._spool(send, health.last_error, None)
                except SpoolRefusedError as error:
                    # While a namespace takes what the spool holds, there will be room, or no need of it.
                    is_hopeless = health.is_replay_failing or left_ms <= 0
                    if is_hopeless or not error.is_not_stored:
                        raise
                    send.begin()
                else:
                    return True
            await self._runtime.wait_for_change(token, max(0.001, left_ms / 1000))
            self._check_live()
        return False

    def _may_pass_spool(self, send: Send) -> bool:
        """Whether only other sessions must join the spool, behind messages that another client has in its own."""
        spooling = self._client._spooling
        assert spooling is not None
        if not spooling.following.is_behind(entity_key(self._health.path)):
            return False
        order = self._flow_of(send).order
        with self._state.lock:
            return spooling.following.may_pass(self._health, order)

    async def _spool(self, send: Send, error: BaseException | None, cause: BaseException | None) -> None:
        """Keep the messages in the spool. ``error``, ``cause``: why no namespace has them."""
        spooling = self._client._spooling
        assert spooling is not None
        limit = self._batch_limit()
        payloads = send.originals(limit)
        if send.left is not None:
            payloads = [payloads[place] for place in send.left]
        for payload in payloads:
            size = len(payload) + limits.ENVELOPE_BYTES
            if size > limit:
                raise MessageTooLargeForBacklogError(size, limits.ENVELOPE_BYTES, limit, "message has")
        send.sending()
        try:
            send.spooled = await spooling.take(
                self._health,
                payloads,
                "" if self._health.is_spooling or error is None else shown(error),
                needs_handles=send.is_scheduled,
            )
        except SpoolError as refused:
            flow = self._flow_of(send)
            is_not_stored = isinstance(refused, SpoolNotStored)
            flow.is_in_doubt = flow.is_in_doubt or not is_not_stored
            text = f"{refused}{send.elsewhere(flow.is_in_doubt)}"
            raise SpoolRefusedError(text, is_not_stored) from (cause or error or refused)
        self._tally.spooled += len(payloads)

    async def _backlog_limit(self, link: Link, parked: Sequence[bytes], seconds: float) -> int:
        """The largest batch that a backlog queue takes. Only its link knows whether that is more than usual."""
        limit = message_bytes.batch_limit(link.sender)
        largest = max(len(payload) for payload in parked) + limits.ENVELOPE_BYTES
        if not limit and largest > limits.BACKLOG_LIMIT_BYTES:
            await link.open(seconds)
            limit = message_bytes.batch_limit(link.sender)
        return limit or limits.BACKLOG_LIMIT_BYTES

    def _batch_limit(self) -> int:
        """The largest batch that the entity takes: that of the standard tier unless its link was open once."""
        known = message_bytes.batch_limit(self._primary.sender) if self._primary is not None else 0
        return known or limits.BACKLOG_LIMIT_BYTES

    # --- links ------------------------------------------------------------------------------------

    def _primary_link(self) -> Link:
        with self._state.lock:
            if self._primary is None:
                self._check_live()
                client = self._client.primary
                make = client.get_topic_sender if self._is_topic else client.get_queue_sender
                sender = make(self.entity_name, **self._options)
                if self._state.is_paired and (self._holds or not self._state.failover_interval_ms):
                    handlers.bound_retries(sender, PRIMARY_RETRIES_MAX, PRIMARY_BACKOFF_SECONDS_MAX)
                self._primary = self._runtime.link(sender, self._health.may_send)
                self._client._links.add(self._primary)
            return self._primary

    def _backlog_link(self, queue: str) -> Link:
        with self._state.lock:
            link = self._backlog.get(queue)
            if link is None:
                self._check_live()
                sender = self._client.secondary.get_queue_sender(queue)
                handlers.set_retries(sender, BACKLOG_RETRIES)
                link = self._backlog[queue] = self._runtime.link(sender, lambda: True, is_refusal)
                self._client._links.add(link)
            return link

    def _check_live(self) -> None:
        self._client._check_live()
        if self._is_closed:
            error = ClientClosedError(
                f"the sender of {self.entity_name!r} is closed: get a new one from the client"
            )
            # A send in progress marks the error again, by what is known of its attempts.
            raise mark(error, is_in_doubt=False)

    def _raise_if_closed(self, error: BaseException) -> None:
        """A send that races with close fails because of it, and is never detoured (P44)."""
        if isinstance(error, PairingError):
            raise error
        if self._is_closed or self._client.is_closed or isinstance(error, LinkClosed):
            raise ClientClosedError(
                f"the sender of {self.entity_name!r} was closed while it was sending"
            ) from error


async def close_link(runtime: Runtime, link: Link) -> None:
    """Close a link within a few seconds, whatever its peer does."""
    try:
        async with runtime.limit(link.sender, LINK_CLOSE_SECONDS):
            await link.close()
    except Exception:  # noqa: BLE001 - its peer may be gone, and it is given up either way
        return


def warn_unsupported(options: dict[str, Any]) -> None:
    """Warn of keyword arguments that are not supported, as the SDK does. Called by a public method."""
    warnings.warn(f"Unsupported keyword args: {options}", stacklevel=3)


def _check_timeout(timeout: object) -> None:
    if timeout is not None and (not isinstance(timeout, int | float) or not timeout > 0):
        raise UsageError(f"timeout is {timeout!r}: give a number of seconds above 0")
