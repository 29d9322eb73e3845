"""Cancel scheduled messages that are still in the backlog: find by browsing, then take out under a lock."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from pairbus.errors import ScheduledMessageGoneError

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusReceivedMessage
    from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver

    from pairbus.pairing.scheduled import ParkedSchedule

BROWSE_COUNT: Final = 100
TIMEOUT_SECONDS_DEFAULT: Final = 60.0
WAIT_SECONDS: Final = 2.0


async def cancel_parked(
    client: ServiceBusClient, handles: Sequence[ParkedSchedule], timeout: float | None
) -> None:
    """Remove parked messages. ScheduledMessageGoneError when one is not there, or a syphon holds it."""
    until = time.monotonic() + (timeout or TIMEOUT_SECONDS_DEFAULT)
    for handle in handles:
        async with client.get_queue_receiver(handle.queue) as receiver:
            number = await _find(receiver, handle.message_id)
            if number is None or not await _take_out(receiver, number, until):
                raise ScheduledMessageGoneError(
                    f"the scheduled message {handle.message_id!r} has left backlog queue {handle.queue!r}, or a syphon "
                    "is taking it home: cancel it at the primary, by the sequence number it gets there"
                )


async def _find(receiver: ServiceBusReceiver, message_id: str) -> int | None:
    position = 1
    while True:
        page = await receiver.peek_messages(max_message_count=BROWSE_COUNT, sequence_number=position)
        if not page:
            return None
        for message in page:
            if message.message_id == message_id:
                return message.sequence_number
        position = int(page[-1].sequence_number or 0) + 1


async def _take_out(receiver: ServiceBusReceiver, number: int, until: float) -> bool:
    """Messages come in their order: receive up to the one, complete it, give the others back."""
    others: list[ServiceBusReceivedMessage] = []
    try:
        while time.monotonic() < until:
            page = await receiver.receive_messages(max_message_count=BROWSE_COUNT, max_wait_time=WAIT_SECONDS)
            if not page:
                return False
            wanted = None
            for message in page:
                if message.sequence_number == number:
                    wanted = message
                else:
                    others.append(message)
            if wanted is not None:
                await receiver.complete_message(wanted)
                return True
            if all(int(message.sequence_number or 0) > number for message in page):
                return False
        return False
    finally:
        for message in others:
            await receiver.abandon_message(message)
