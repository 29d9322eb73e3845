"""What one send carries: messages with their ids fixed, their encoded and parked forms, and where these are."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from typing import Any

from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus.amqp import AmqpAnnotatedMessage

from pairbus.pairing import parking, wire
from pairbus.pairing.scheduled import ParkedSchedule


class Parcel:
    """The encoded messages of one send, and which of their parked forms are still to be sent."""

    def __init__(self, message: Any) -> None:
        self.message = message
        self._originals: list[bytes] | None = None
        self.left: list[bytes] | None = None
        self.parked: list[tuple[str, bytes]] = []
        """What is in the backlog, and in which queue of it."""

    def originals(self) -> list[bytes]:
        """The bytes that the SDK would send, message by message."""
        if self._originals is None:
            if isinstance(self.message, ServiceBusMessageBatch):
                self._originals = wire.messages_of(self.message)
            elif isinstance(self.message, list):
                self._originals = [wire.encoded(item, is_traced=True) for item in self.message]
            else:
                self._originals = [wire.encoded(self.message, is_traced=True)]
        return self._originals

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
    return ParkedSchedule.make(queue, wire.message_id(message), passport.factory, passport.detour)


def prepared_for_sending(message: Any) -> tuple[Any, int]:
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


def scheduled_for(
    message: ServiceBusMessage | AmqpAnnotatedMessage, when: datetime.datetime
) -> ServiceBusMessage | AmqpAnnotatedMessage:
    """A copy of a message that is due at a time of day; the caller's object is never changed."""
    changed = wire.copy_of(message)
    if isinstance(changed, ServiceBusMessage):
        changed.scheduled_enqueue_time_utc = when
        return changed
    wrapped = wire.as_service_bus_message(changed)
    wrapped.scheduled_enqueue_time_utc = when
    return wrapped
