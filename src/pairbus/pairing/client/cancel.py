"""Cancels scheduled messages that are still in the backlog: find each by browsing, then take it out under a lock."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from pairbus.pairing.errors import ScheduledMessageGoneError
from pairbus.pairing.parking import ALIAS_PASSPORT, Passport

if TYPE_CHECKING:
    from pairbus.pairing.runtime.ports import Runtime
    from pairbus.pairing.scheduled import ParkedSchedule

BROWSE_COUNT: Final = 100
TIMEOUT_SECONDS_DEFAULT: Final = 60.0
WAIT_SECONDS: Final = 2.0
HELD_MAX: Final = 5_000
"""Messages ahead of the wanted one that are locked meanwhile. One further back is left to the drain."""


async def cancel_parked(
    runtime: Runtime, secondary: Any, handle: ParkedSchedule, timeout: float | None
) -> None:
    """Remove a parked message. ScheduledMessageGoneError when it is not there, or a drain holds it."""
    until = time.monotonic() + (timeout or TIMEOUT_SECONDS_DEFAULT)
    receiver = secondary.get_queue_receiver(handle.queue)
    # The SDK opens a link without a limit.
    async with runtime.limit(receiver, max(0.001, until - time.monotonic())), runtime.entered(receiver):
        number = await _find(runtime, receiver, handle, until)
        is_out = number is not None and await _take_out(runtime, receiver, number, until)
    if not is_out:
        raise ScheduledMessageGoneError(
            f"the scheduled message {handle.message_id!r} has left backlog queue {handle.queue!r}, or a syphon "
            "is delivering it: cancel it at the primary, by the sequence number it gets there"
        )


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


async def _find(runtime: Runtime, receiver: Any, handle: ParkedSchedule, until: float) -> int | None:
    position = 1
    while (left := until - time.monotonic()) > 0:
        page = await runtime.call(
            receiver.peek_messages, max_message_count=BROWSE_COUNT, sequence_number=position, timeout=left
        )
        if not page:
            return None
        for message in page:
            if is_meant(message, handle):
                return int(message.sequence_number)
        position = int(page[-1].sequence_number or 0) + 1
    return None


async def _take_out(runtime: Runtime, receiver: Any, number: int, until: float) -> bool:
    """Receive messages up to the wanted one, complete it, and abandon the others."""
    others: list[Any] = []
    try:
        while time.monotonic() < until and len(others) < HELD_MAX:
            page = await runtime.call(
                receiver.receive_messages, max_message_count=BROWSE_COUNT, max_wait_time=WAIT_SECONDS
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
                await runtime.call(receiver.complete_message, wanted)
                return True
            if all(int(message.sequence_number or 0) > number for message in page):
                return False
        return False
    finally:
        for message in others:
            # A lock that has lapsed gives its message back too, and changes nothing about the cancelled one.
            with suppress(Exception):
                await runtime.call(receiver.abandon_message, message)
