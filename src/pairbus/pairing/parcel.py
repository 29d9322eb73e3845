"""What one send carries: messages with their ids fixed, their encoded and parked forms, and where these are."""

from __future__ import annotations

import datetime
import struct
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch

from pairbus.pairing import parking
from pairbus.pairing.errors import BatchTooLargeError, InvalidMessageError
from pairbus.pairing.scheduled import ParkedSchedule
from pairbus.sdk import message_bytes

if TYPE_CHECKING:
    from azure.servicebus.amqp import AmqpAnnotatedMessage


class Parcel:
    """The encoded messages of one send, and which of their parked forms are still to be sent."""

    def __init__(self, message: Any, batch_limit: int | None = None) -> None:
        """``batch_limit``: the size up to which the SDK would send a list of messages; None: whatever it is."""
        self.message = message
        self._batch_limit = batch_limit
        self._originals: list[bytes] | None = None
        self.left: list[bytes] | None = None
        self.created_again: set[str] = set()
        """Backlog queues that were missing and were created for this send."""
        self.parked: list[tuple[str, bytes]] = []
        """What is in the backlog, and in which queue of it."""

    def originals(self) -> list[bytes]:
        """The bytes that the SDK would send, message by message. Raises what the SDK would raise."""
        if self._originals is None:
            try:
                self._originals = self._encoded()
            except (TypeError, ValueError, OverflowError, AttributeError, struct.error) as error:
                raise InvalidMessageError(f"the message cannot be encoded: {error}") from error
            if self._batch_limit is not None and isinstance(self.message, list):
                size = message_bytes.batch_size(self._originals)
                if size > self._batch_limit:
                    raise BatchTooLargeError(len(self.message), size, self._batch_limit)
        return self._originals

    def _encoded(self) -> list[bytes]:
        if isinstance(self.message, ServiceBusMessageBatch):
            return message_bytes.messages_of(self.message)
        if isinstance(self.message, list):
            return [message_bytes.encoded(item, is_traced=True) for item in self.message]
        return [message_bytes.encoded(self.message, is_traced=True)]

    def accepted(self, queue: str, count: int) -> None:
        """A backlog queue has taken the next messages."""
        assert self.left is not None
        self.parked += [(queue, payload) for payload in self.left[:count]]
        self.left = self.left[count:]


def handle_of(
    queue: str, payload: bytes, message: ServiceBusMessage | AmqpAnnotatedMessage
) -> ParkedSchedule:
    """The handle of a scheduled message that was parked."""
    passport = parking.passport_of(payload)
    assert passport is not None
    return ParkedSchedule.make(queue, message_bytes.message_id(message), passport.factory, passport.detour)


def prepared_for_sending(message: Any, *, is_scheduled: bool = False) -> tuple[Any, int]:
    """What to send at every attempt, its message ids fixed (P3), and how many messages that is. Raises TypeError."""
    if isinstance(message, ServiceBusMessageBatch) and not is_scheduled:
        return message, len(message)
    is_single = isinstance(message, str | bytes | Mapping) or not isinstance(message, Iterable)
    if is_single:
        # The SDK sends nothing for whatever is empty.
        is_nothing = isinstance(message, Mapping) and not message and not is_scheduled
        return (message, 0) if is_nothing else (message_bytes.with_message_id(message), 1)
    messages = [message_bytes.with_message_id(item) for item in message]
    return messages, len(messages)


def scheduled_for(
    message: ServiceBusMessage | AmqpAnnotatedMessage, when: datetime.datetime
) -> ServiceBusMessage | AmqpAnnotatedMessage:
    """A copy of a message that is due at a time of day; the caller's object is never changed."""
    changed = message_bytes.copy_of(message)
    if isinstance(changed, ServiceBusMessage):
        changed.scheduled_enqueue_time_utc = when
        return changed
    wrapped = message_bytes.as_service_bus_message(changed)
    wrapped.scheduled_enqueue_time_utc = when
    return wrapped
