"""Those who send and those who receive: threads with the official client's own words, who never give up while on stage."""

from __future__ import annotations

import hashlib
import json
import random
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from azure.servicebus import (
    NEXT_AVAILABLE_SESSION,
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusReceivedMessage,
)

from pairbus.drain.client import PairedServiceBusClient
from pairbus.pairing.clock import wall_ms
from pairbus.stage.demo.book import Book, Got, Sent

SEND_SECONDS: Final = 30.0
RECEIVE_SECONDS: Final = 1.0
RECEIVE_MAX: Final = 50
PAUSE_SECONDS: Final = 0.25
SESSIONS: Final = ("ada", "grace", "edsger", "barbara")
ITEMS: Final = ("boots", "lantern", "compass", "rope", "tent")


class Actor:
    """A thread that can be asked to leave."""

    def __init__(self, name: str) -> None:
        self._leave = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def ask_to_leave(self) -> None:
        """Leave when what is under way is done."""
        self._leave.set()

    def join(self, seconds: float) -> None:
        """Wait until it has left."""
        self._thread.join(seconds)

    @property
    def is_on_stage(self) -> bool:
        return self._thread.is_alive()

    def _run(self) -> None:
        raise NotImplementedError


class Sender(Actor):
    """Sends its share of messages to one entity, steadily, now and then several at once.

    Args:
        client: The paired client.
        entity: Where to.
        is_topic: Whether that is a topic.
        amount: How many messages.
        pace: Messages per second; asked before every send.
        book: Where it writes what it was told.
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
        pace: Callable[[], float],
        book: Book,
        seed: str,
    ) -> None:
        super().__init__(f"send {entity}")
        self._client = client
        self._entity = entity
        self._is_topic = is_topic
        self._has_sessions = has_sessions
        self._amount = amount
        self._pace = pace
        self._book = book
        self._random = random.Random(seed)  # noqa: S311 - a story that can be told again
        self.failed = 0

    def _run(self) -> None:
        make = self._client.get_topic_sender if self._is_topic else self._client.get_queue_sender
        number = 0
        with make(self._entity) as sender:
            while number < self._amount and not self._leave.is_set():
                size = min(self._random.choice((1, 1, 1, 2, 5)), self._amount - number)
                messages = [self._message(number + offset) for offset in range(size)]
                number += size
                written = [_sent(self._entity, message) for message in messages]
                self._book.handed(written)
                try:
                    sender.send_messages(messages if size > 1 else messages[0], timeout=SEND_SECONDS)
                except Exception:  # noqa: BLE001 - whatever it was, the sender was not told "accepted"
                    self.failed += size
                    continue
                self._book.accepted(written)
                self._leave.wait(size / self._pace())

    def _message(self, number: int) -> ServiceBusMessage:
        body = json.dumps(
            {
                "order": number,
                "item": self._random.choice(ITEMS),
                "note": "x" * self._random.randrange(20, 400),
            }
        )
        details: dict[str, Any] = {"session_id": self._random.choice(SESSIONS)} if self._has_sessions else {}
        return ServiceBusMessage(
            body,
            message_id=f"{self._entity}-{number:06d}",
            subject="demo",
            content_type="application/json",
            **details,
        )


def _sent(entity: str, message: ServiceBusMessage) -> Sent:
    return Sent(entity, str(message.message_id), _digest(b"".join(message.body)), wall_ms())


def _digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


class Consumer(Actor):
    """Receives, writes down and completes everything of one place, through every outage."""

    def __init__(self, connection_string: str, place: str, *, has_sessions: bool, book: Book) -> None:
        super().__init__(f"receive {place}")
        self._connection_string = connection_string
        self._place = place
        self._has_sessions = has_sessions
        self._book = book

    def _run(self) -> None:
        while not self._leave.is_set():
            try:
                with ServiceBusClient.from_connection_string(
                    self._connection_string, retry_total=0
                ) as client:
                    self._consume(client)
            except Exception:  # noqa: BLE001 - the primary is away, or the session went elsewhere: come again
                self._leave.wait(PAUSE_SECONDS)

    def _consume(self, client: ServiceBusClient) -> None:
        while not self._leave.is_set():
            with self._receiver(client) as receiver:
                while not self._leave.is_set():
                    messages = receiver.receive_messages(
                        max_message_count=RECEIVE_MAX, max_wait_time=RECEIVE_SECONDS
                    )
                    for message in messages:
                        # First the work, then the word: a completion whose answer died with the broker may have been stored.
                        self._book.got(self._got(message))
                        receiver.complete_message(message)
                    if not messages and self._has_sessions:
                        break  # on to the next session

    def _receiver(self, client: ServiceBusClient) -> Any:
        topic, _, subscription = self._place.partition("/Subscriptions/")
        if subscription:
            return client.get_subscription_receiver(topic, subscription)
        if self._has_sessions:
            return client.get_queue_receiver(self._place, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=2)
        return client.get_queue_receiver(self._place)

    def _got(self, message: ServiceBusReceivedMessage) -> Got:
        body = b"".join(message.body)
        return Got(
            self._place, str(message.message_id), _digest(body), int(message.sequence_number or 0), wall_ms()
        )


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Whether it came true in time."""
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= until:
            return False
        time.sleep(0.02)
    return True
