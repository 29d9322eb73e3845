# Written by tools/unasync.py from _async/cancel.py: edit that file.
"""Cancel scheduled messages that are still in the backlog: find by browsing, then take out under a lock."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from pairbus.pairing.errors import ScheduledMessageGoneError
from pairbus.pairing.parking import ALIAS_PASSPORT, Passport

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusClient, ServiceBusReceivedMessage, ServiceBusReceiver

    from pairbus.pairing._sync.runtime import Limits
    from pairbus.pairing.scheduled import ParkedSchedule

BROWSE_COUNT: Final = 100
TIMEOUT_SECONDS_DEFAULT: Final = 60.0
WAIT_SECONDS: Final = 2.0
HELD_MAX: Final = 5_000
"""How many messages before the one are locked meanwhile. One that stands further back is left to the syphon."""


def cancel_parked(
    client: ServiceBusClient, limits: Limits, handles: Sequence[ParkedSchedule], timeout: float | None
) -> None:
    """Remove parked messages. ScheduledMessageGoneError when one is not there, or a syphon holds it."""
    until = time.monotonic() + (timeout or TIMEOUT_SECONDS_DEFAULT)
    for handle in handles:
        receiver = client.get_queue_receiver(handle.queue)
        # The SDK opens a link without a limit.
        with limits.limit(receiver, max(0.001, until - time.monotonic())), receiver:
            number = _find(receiver, handle, until)
            is_out = number is not None and _take_out(receiver, number, until)
        if not is_out:
            raise ScheduledMessageGoneError(
                f"the scheduled message {handle.message_id!r} has left backlog queue {handle.queue!r}, or a syphon "
                "is taking it home: cancel it at the primary, by the sequence number it gets there"
            )


def is_meant(message: Any, handle: ParkedSchedule) -> bool:
    """Whether a backlog message is the one of a handle. Its message id may be that of others too."""
    if message.message_id != handle.message_id:
        return False
    properties = message.application_properties or {}
    text = properties.get(ALIAS_PASSPORT.encode(), properties.get(ALIAS_PASSPORT))
    try:
        passport = Passport.parse(text.decode() if isinstance(text, bytes) else str(text))
    except ValueError:
        return False
    return (passport.factory, passport.detour) == (handle.factory, handle.detour)


def _find(receiver: ServiceBusReceiver, handle: ParkedSchedule, until: float) -> int | None:
    position = 1
    while (left := until - time.monotonic()) > 0:
        page = receiver.peek_messages(max_message_count=BROWSE_COUNT, sequence_number=position, timeout=left)
        if not page:
            return None
        for message in page:
            if is_meant(message, handle):
                return message.sequence_number
        position = int(page[-1].sequence_number or 0) + 1
    return None


def _take_out(receiver: ServiceBusReceiver, number: int, until: float) -> bool:
    """Messages come in their order: receive up to the one, complete it, give the others back."""
    others: list[ServiceBusReceivedMessage] = []
    try:
        while time.monotonic() < until and len(others) < HELD_MAX:
            page = receiver.receive_messages(max_message_count=BROWSE_COUNT, max_wait_time=WAIT_SECONDS)
            if not page:
                return False
            wanted = None
            for message in page:
                if message.sequence_number == number:
                    wanted = message
                else:
                    others.append(message)
            if wanted is not None:
                receiver.complete_message(wanted)
                return True
            if all(int(message.sequence_number or 0) > number for message in page):
                return False
        return False
    finally:
        for message in others:
            # A lock that has lapsed gives its message back too, and changes nothing about what was cancelled.
            with suppress(Exception):
                receiver.abandon_message(message)
