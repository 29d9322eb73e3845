"""What the tests of topics do in one line each: publish, consume, look."""

from __future__ import annotations

from typing import Any

from tests.conformance.sdk import Bus, take, texts


def publish(bus: Bus, topic: str, *messages: Any) -> None:
    """Send one by one."""
    with bus.client().get_topic_sender(topic) as sender:
        for message in messages:
            sender.send_messages(message)


def consume(bus: Bus, topic: str, subscription: str, amount: int, **options: Any) -> list[Any]:
    """Receive and complete exactly so many."""
    with bus.client().get_subscription_receiver(topic, subscription, **options) as receiver:
        messages = take(receiver, amount)
        for message in messages:
            receiver.complete_message(message)
        return messages


def look(bus: Bus, topic: str, subscription: str, **options: Any) -> list[Any]:
    """Peek at everything."""
    with bus.client().get_subscription_receiver(topic, subscription, **options) as receiver:
        return list(receiver.peek_messages(100))


def peek(bus: Bus, topic: str, subscription: str, **options: Any) -> list[str]:
    """The bodies of everything."""
    return texts(look(bus, topic, subscription, **options))


def reasons(messages: list[Any]) -> list[tuple[str, str | None]]:
    """Body and dead-letter reason of each."""
    return [(str(message), message.dead_letter_reason) for message in messages]
