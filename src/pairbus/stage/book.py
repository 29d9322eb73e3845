"""A book of every message that a demo or drill sends: what its sender learned and where it arrived. Safe for many threads.

All times are milliseconds of the steady clock.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

from pairbus.pairing.rules.health import Health


@dataclass(slots=True)
class SentMessage:
    """One message, from the first attempt of its sender to its copies at the destinations."""

    entity: str
    message_id: str
    begun_ms: int
    sha256: str = ""
    longest_ms: int = 0
    """The longest that its sender waited for one attempt."""
    accepted_ms: int | None = None
    is_parked: bool = False
    doubts: int = 0
    """Attempts after which nobody knows whether the message was stored (P36)."""
    arrived_ms: int | None = None
    copies: set[tuple[str, int]] = field(default_factory=set)
    """Destination and sequence number of each stored copy."""
    waits_in: str = ""
    """The backlog queue in which it was seen at the end."""
    is_dead_lettered: bool = False


@dataclass(frozen=True, slots=True)
class Delivery:
    """One delivery to a consumer. ``place`` is a queue or ``topic/Subscriptions/name``."""

    place: str
    message_id: str
    sha256: str
    sequence_number: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class Refusal:
    """A send that raised an error."""

    entity: str
    at_ms: int
    state: Health
    text: str


class Book:
    """All messages of one run. ``destinations``: where the messages of each entity must arrive."""

    def __init__(self, destinations: Mapping[str, tuple[str, ...]] | None = None) -> None:
        self.destinations: dict[str, tuple[str, ...]] = dict(destinations or {})
        self.receive_operations = 0
        """What receiving cost: each message of a receive counts, and a receive without messages counts as one."""
        self._lock = threading.Lock()
        self._messages: dict[str, SentMessage] = {}
        self._deliveries: list[Delivery] = []
        self._refusals: list[Refusal] = []
        self._accepted = 0
        self._missing: dict[tuple[str, str], None] = {}

    def begin(self, entity: str, message_id: str, now: int, sha256: str = "") -> None:
        """A sender is about to send this message for the first time."""
        with self._lock:
            self._messages[message_id] = SentMessage(entity, message_id, now, sha256)

    def accepted(self, message_id: str, now: int, *, is_parked: bool = False) -> None:
        with self._lock:
            message = self._messages[message_id]
            message.accepted_ms, message.is_parked = now, is_parked
            self._accepted += 1
            arrived = {place for place, _ in message.copies}
            for place in self.destinations.get(message.entity, ()):
                if place not in arrived:
                    self._missing[place, message_id] = None

    def waited(self, message_id: str, milliseconds: int) -> None:
        """One attempt to send it ended, well or not."""
        with self._lock:
            message = self._messages[message_id]
            message.longest_ms = max(message.longest_ms, milliseconds)

    def refused(self, refusal: Refusal) -> None:
        with self._lock:
            self._refusals.append(refusal)

    def doubt(self, message_id: str) -> None:
        """An attempt to send it ended without an answer."""
        with self._lock:
            self._messages[message_id].doubts += 1

    def doubts(self, message_id: str) -> int:
        """How many attempts to send it ended without an answer."""
        with self._lock:
            return self._messages[message_id].doubts

    def received(self, delivery: Delivery) -> None:
        """A consumer got a message. A message that nobody here sent is kept among the deliveries only."""
        with self._lock:
            self._deliveries.append(delivery)
            self._missing.pop((delivery.place, delivery.message_id), None)
            message = self._messages.get(delivery.message_id)
            if message is not None:
                message.copies.add((delivery.place, delivery.sequence_number))
                if message.arrived_ms is None:
                    message.arrived_ms = delivery.at_ms

    def polled(self, messages: int) -> None:
        """A receive ended with this many messages."""
        with self._lock:
            self.receive_operations += max(1, messages)

    def found(self, message_id: str, queue: str, *, is_dead_lettered: bool) -> None:
        """At the end the message is still in a backlog queue, or in its dead-letter queue."""
        with self._lock:
            message = self._messages.get(message_id)
            if message is not None:
                message.waits_in, message.is_dead_lettered = queue, is_dead_lettered

    @property
    def sent_count(self) -> int:
        """Messages that a sender began to send."""
        return len(self._messages)

    @property
    def accepted_count(self) -> int:
        return self._accepted

    @property
    def missing_count(self) -> int:
        """Deliveries of accepted messages that are still awaited."""
        return len(self._missing)

    @property
    def delivery_count(self) -> int:
        """Deliveries so far, repeated ones included."""
        return len(self._deliveries)

    @property
    def refusal_count(self) -> int:
        return len(self._refusals)

    def messages(self) -> list[SentMessage]:
        with self._lock:
            return list(self._messages.values())

    def deliveries(self) -> list[Delivery]:
        with self._lock:
            return list(self._deliveries)

    def refusals(self) -> list[Refusal]:
        """All sends that raised an error, oldest first."""
        with self._lock:
            return list(self._refusals)
