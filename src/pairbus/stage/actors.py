"""Threads that send and receive, and keep trying while the run lasts."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusClient

from pairbus.pairing.clock import steady_ms
from pairbus.sdk.links.receivers import read_in_one_thread
from pairbus.stage.book import Book, Delivery

RECEIVE_SECONDS: Final = 1.0
RECEIVE_MAX: Final = 100
AGAIN_SECONDS: Final = 0.25
"""Pause after an error before the next attempt."""
POLL_SECONDS: Final = 0.02
_SUBSCRIPTIONS: Final = "/Subscriptions/"


class Actor(threading.Thread):
    """A thread that can be asked to stop."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._ending = threading.Event()

    def ask_to_stop(self) -> None:
        """Stop when the operation under way has ended."""
        self._ending.set()


class Consumer(Actor):
    """Receives, writes down and completes everything that arrives at one place, through every outage.

    Args:
        connect: Makes a client of the primary.
        place: A queue, or ``topic/Subscriptions/name``.
        book: Where deliveries are written down.
        has_sessions: Whether the queue needs sessions.
    """

    def __init__(
        self, connect: Callable[[], ServiceBusClient], place: str, book: Book, *, has_sessions: bool = False
    ) -> None:
        super().__init__(f"receive {place}")
        self._connect = connect
        self._place = place
        self._book = book
        self._has_sessions = has_sessions

    def run(self) -> None:
        while not self._ending.is_set():
            try:
                with self._connect() as client:
                    self._consume(client)
            except Exception:  # noqa: BLE001 - the primary is away, or the session went elsewhere: try again
                self._ending.wait(AGAIN_SECONDS)

    def _consume(self, client: ServiceBusClient) -> None:
        while not self._ending.is_set():
            with read_in_one_thread(self._receiver(client)) as receiver:
                while not self._ending.is_set():
                    messages = receiver.receive_messages(
                        max_message_count=RECEIVE_MAX, max_wait_time=RECEIVE_SECONDS
                    )
                    self._book.polled(len(messages))
                    for message in messages:
                        # Written down before it is completed: a completion whose answer was lost may have been stored.
                        self._book.received(self._delivery(message))
                        receiver.complete_message(message)
                    if not messages and self._has_sessions:
                        break  # on to the next session

    def _receiver(self, client: ServiceBusClient) -> Any:
        topic, _, subscription = self._place.partition(_SUBSCRIPTIONS)
        if subscription:
            return client.get_subscription_receiver(topic, subscription)
        if self._has_sessions:
            return client.get_queue_receiver(self._place, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=2)
        return client.get_queue_receiver(self._place)

    def _delivery(self, message: Any) -> Delivery:
        return Delivery(
            self._place,
            str(message.message_id),
            digest(b"".join(message.body)),
            int(message.sequence_number or 0),
            steady_ms(),
        )


def digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def stop_all(actors: Sequence[Actor], seconds: float) -> None:
    """Ask all of them to stop, then wait at most this long for each."""
    for actor in actors:
        actor.ask_to_stop()
    for actor in actors:
        actor.join(seconds)


def wait_until(condition: Callable[[], bool], seconds: float, pause: float = POLL_SECONDS) -> bool:
    """Whether the condition became true in time."""
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= until:
            return False
        time.sleep(pause)
    return True
