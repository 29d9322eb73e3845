"""Cancels scheduled messages that are still in the backlog: find each by browsing, then take it out under a lock."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from azure.servicebus.exceptions import OperationTimeoutError, ServiceBusError

from pairbus.pairing.errors import ScheduledMessageGoneError, SendAvailabilityError
from pairbus.pairing.parking import ALIAS_PASSPORT, Passport
from pairbus.sdk.links import handlers, settling

if TYPE_CHECKING:
    from pairbus.pairing.runtime.ports import Runtime
    from pairbus.pairing.scheduled import ParkedSchedule

Withdraw = Callable[[], Awaitable[bool]]

BROWSE_COUNT: Final = 100
TIMEOUT_SECONDS_DEFAULT: Final = 60.0
WAIT_SECONDS: Final = 2.0
AGAIN_SECONDS: Final = 0.5
"""Seconds between two attempts while somebody else holds the message."""
HELD_MAX: Final = 5_000
"""Messages ahead of the wanted one that are locked meanwhile. One further back cannot be cancelled in the backlog."""


async def cancel_parked(
    runtime: Runtime, secondary: Any, handle: ParkedSchedule, timeout: float | None, withdraw: Withdraw
) -> None:
    """Remove a parked message.

    ``withdraw``: takes the message from the drain of this client, if that has locked it. True: done.

    Raises:
        ScheduledMessageGoneError: It is not in the backlog any more.
        OperationTimeoutError: Time is up. The message may still be in the backlog.
        SendAvailabilityError: It is too far back in its backlog queue.
    """
    until = time.monotonic() + (TIMEOUT_SECONDS_DEFAULT if timeout is None else timeout)
    receiver = secondary.get_queue_receiver(handle.queue)
    # The limit below is the only one that counts: each retry of the SDK would begin another wait.
    handlers.set_retries(receiver, 0)
    try:
        # The SDK opens a link without a limit.
        async with runtime.limit(receiver, max(0.001, until - time.monotonic())), runtime.entered(receiver):
            is_out = await _remove(runtime, receiver, handle, until, withdraw)
    except (TimeoutError, ServiceBusError) as error:
        if isinstance(error, SendAvailabilityError) or time.monotonic() < until:
            raise
        raise _time_is_up(handle) from error
    if not is_out:
        raise ScheduledMessageGoneError(
            f"the scheduled message {handle.message_id!r} is not in backlog queue {handle.queue!r} any more: it was "
            "cancelled before, or a drain has delivered it to the primary. There it can be cancelled by the sequence number that it "
            "has there"
        )


def _time_is_up(handle: ParkedSchedule) -> OperationTimeoutError:
    return OperationTimeoutError(
        message=f"the scheduled message {handle.message_id!r} could not be taken out of backlog queue {handle.queue!r} in "
        "time: the secondary does not answer, or a drain or another program has locked the message. Cancel it again with a "
        "longer timeout"
    )


async def _remove(
    runtime: Runtime, receiver: Any, handle: ParkedSchedule, until: float, withdraw: Withdraw
) -> bool:
    """True: the message was removed. False: it is not in the queue."""
    while (found := await _find(runtime, receiver, handle, until)) is not None:
        # Somebody else may hold its lock for a moment, so an attempt that does not meet the message proves nothing.
        if await _take_out(runtime, receiver, *found, handle, until) or await withdraw():
            return True
        # Not at once again: every attempt locks messages that others wait for.
        await runtime.wait_for_change(runtime.change_token(), AGAIN_SECONDS)
    return False


def is_meant(message: Any, handle: ParkedSchedule) -> bool:
    """Whether a backlog message is the one of a handle. Other messages may have the same message id."""
    if message.message_id != handle.message_id:
        return False
    properties = message.application_properties or {}
    text = properties.get(ALIAS_PASSPORT.encode(), properties.get(ALIAS_PASSPORT))
    try:
        passport = Passport.parse(text.decode() if isinstance(text, bytes) else str(text))
    except ValueError:
        return False
    return (passport.factory, passport.detour) == (handle.factory, handle.detour)


async def _find(
    runtime: Runtime, receiver: Any, handle: ParkedSchedule, until: float
) -> tuple[int, int] | None:
    """The sequence number of the message, and how many are ahead of it; None: it is not in the queue, locked or not."""
    position = 1
    ahead = 0
    while (left := until - time.monotonic()) > 0:
        page = await runtime.call(
            receiver.peek_messages, max_message_count=BROWSE_COUNT, sequence_number=position, timeout=left
        )
        if not page:
            return None
        for message in page:
            if is_meant(message, handle):
                return int(message.sequence_number), ahead
            ahead += 1
        position = int(page[-1].sequence_number or 0) + 1
    raise _time_is_up(handle)


async def _take_out(
    runtime: Runtime, receiver: Any, number: int, ahead: int, handle: ParkedSchedule, until: float
) -> bool:
    """Receive messages up to the wanted one, complete it, and abandon the others. False: it did not come."""
    others: list[Any] = []
    try:
        while (left := until - time.monotonic()) > 0:
            page = await runtime.call(
                receiver.receive_messages,
                # No more than are there: the SDK would wait for the rest.
                max_message_count=min(BROWSE_COUNT, max(1, ahead + 1 - len(others))),
                max_wait_time=max(0.1, min(WAIT_SECONDS, left)),
            )
            if not page:
                return False
            wanted = None
            for message in page:
                if message.sequence_number == number:
                    wanted = message
                else:
                    others.append(message)
            if wanted is not None:
                await settling.cancel(runtime.call, receiver, wanted)
                return True
            if all(int(message.sequence_number or 0) > number for message in page):
                return False
            if len(others) >= HELD_MAX:
                raise SendAvailabilityError(
                    f"the scheduled message {handle.message_id!r} is behind more than {HELD_MAX:,} others in backlog queue "
                    f"{handle.queue!r}: wait until the backlog is drained, and cancel it at the primary"
                )
        raise _time_is_up(handle)
    finally:
        for message in others:
            # A lock that has lapsed gives its message back too, and changes nothing about the cancelled one.
            with suppress(Exception):
                await runtime.call(receiver.abandon_message, message)
