"""Backlogs for Spark tests: filled quickly with parked messages, and destinations read to the last one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusClient, ServiceBusMessage, ServiceBusReceiver
from azure.servicebus.exceptions import OperationTimeoutError

from pairbus.pairing import wire
from pairbus.pairing.parking import Passport, park

PASSPORT = Passport("factory", 1, 1, "connection refused or lost")
BATCH_BYTES = 200_000


def parked(path: str, message_id: str, body: bytes, session_id: str | None = None) -> bytes:
    """A message for ``path`` in its parked form."""
    message = ServiceBusMessage(body, message_id=message_id, session_id=session_id)
    return park(wire.encoded(message), path, PASSPORT)


def send_payloads(client: ServiceBusClient, queue: str, payloads: Sequence[bytes]) -> None:
    """Send encoded messages as they are."""
    with client.get_queue_sender(queue) as sender:
        rest = list(payloads)
        while rest:
            batch = wire.batch_of(sender.create_message_batch(max_size_in_bytes=BATCH_BYTES), rest)
            sender.send_messages(batch)
            rest = rest[len(batch) :]


def read_all(receiver: ServiceBusReceiver, expected: int, wait: float = 1.0) -> list[tuple[str, str | None, bytes]]:
    """Receive and delete until nothing comes: message ids, sessions and bodies."""
    found: list[tuple[str, str | None, bytes]] = []
    while True:
        messages = receiver.receive_messages(max_message_count=1000, max_wait_time=wait if len(found) >= expected else 5)
        if not messages:
            return found
        for message in messages:
            found.append((str(message.message_id), message.session_id, b"".join(message.body)))


def read_queue(client: ServiceBusClient, queue: str, expected: int = 0) -> list[tuple[str, str | None, bytes]]:
    """Everything in a queue."""
    with client.get_queue_receiver(queue, receive_mode="receiveanddelete", prefetch_count=500) as receiver:
        return read_all(receiver, expected)


def read_subscription(
    client: ServiceBusClient, topic: str, subscription: str, expected: int = 0
) -> list[tuple[str, str | None, bytes]]:
    """Everything in a subscription."""
    with client.get_subscription_receiver(
        topic, subscription, receive_mode="receiveanddelete", prefetch_count=500
    ) as receiver:
        return read_all(receiver, expected)


def read_sessions(client: ServiceBusClient, queue: str) -> list[tuple[str, str | None, bytes]]:
    """Everything in a queue with sessions, session by session."""
    found: list[tuple[str, str | None, bytes]] = []
    while True:
        try:
            with client.get_queue_receiver(
                queue, session_id=NEXT_AVAILABLE_SESSION, receive_mode="receiveanddelete", max_wait_time=1
            ) as receiver:
                found += read_all(receiver, 0, wait=0.3)
        except OperationTimeoutError:
            return found


def copies(found: Iterable[tuple[str, str | None, bytes]]) -> Counter[str]:
    """How often each message id came."""
    return Counter(message_id for message_id, _, _ in found)
