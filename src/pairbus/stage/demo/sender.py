"""The demo's senders: orders of random size, now and then several at once, at a steady pace."""

from __future__ import annotations

import json
import random
from typing import Any, Final

from azure.servicebus import ServiceBusMessage

from pairbus.pairing.client.sync import PairedServiceBusClient
from pairbus.pairing.clock import steady_ms
from pairbus.stage.actors import Actor, digest
from pairbus.stage.book import Book

SEND_SECONDS: Final = 30.0
SESSIONS: Final = ("ada", "grace", "edsger", "barbara")
ITEMS: Final = ("boots", "lantern", "compass", "rope", "tent")


class Sender(Actor):
    """Sends its share of the messages to one entity.

    Args:
        client: The paired client.
        entity: The queue or topic to send to.
        is_topic: Whether that is a topic.
        has_sessions: Whether messages need a session id.
        amount: How many messages.
        per_second: How many messages a second.
        book: Where it writes what it learned.
        seed: Sizes, batches and sessions come from it.
    """

    def __init__(
        self,
        client: PairedServiceBusClient,
        entity: str,
        *,
        is_topic: bool,
        has_sessions: bool,
        amount: int,
        per_second: float,
        book: Book,
        seed: str,
    ) -> None:
        super().__init__(f"send {entity}")
        self._client = client
        self._entity = entity
        self._is_topic = is_topic
        self._has_sessions = has_sessions
        self._amount = amount
        self._per_second = per_second
        self._book = book
        self._random = random.Random(seed)  # noqa: S311 - a run that can be repeated

    def run(self) -> None:
        make = self._client.get_topic_sender if self._is_topic else self._client.get_queue_sender
        number = 0
        with make(self._entity) as sender:
            while number < self._amount and not self._ending.is_set():
                size = min(self._random.choice((1, 1, 1, 2, 5)), self._amount - number)
                messages = [self._message(number + offset) for offset in range(size)]
                number += size
                for message in messages:
                    body = digest(b"".join(message.body))
                    self._book.begin(self._entity, str(message.message_id), steady_ms(), body)
                try:
                    sender.send_messages(messages if size > 1 else messages[0], timeout=SEND_SECONDS)
                except Exception:  # noqa: BLE001, S112 - whatever it was, the message does not count as accepted
                    continue
                for message in messages:
                    self._book.accepted(str(message.message_id), steady_ms())
                self._ending.wait(size / self._per_second)

    def _message(self, number: int) -> ServiceBusMessage:
        body = {
            "order": number,
            "item": self._random.choice(ITEMS),
            "note": "x" * self._random.randrange(20, 400),
        }
        details: dict[str, Any] = {"session_id": self._random.choice(SESSIONS)} if self._has_sessions else {}
        return ServiceBusMessage(
            json.dumps(body),
            message_id=f"{self._entity}-{number:06d}",
            subject="demo",
            content_type="application/json",
            **details,
        )
