"""The messages that a drain holds for one destination, and the destinations it knows of. No clock, no I/O."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Final

from pairbus.drain.rules.batch_limit import BatchLimit
from pairbus.drain.rules.message import BacklogMessage

BATCH_BYTES: Final = 200_000
"""Well below the standard tier's 256 KB, so that envelopes and estimates never matter."""
RECENT_MS: Final = 60_000
"""How long after its last delivery, or after being seen further back in the queue, a destination counts as waiting."""
DESTINATIONS_MAX: Final = 1_000
"""Destinations that are remembered, per backlog queue and in all."""


@dataclass(slots=True, eq=False)
class DestinationQueue:
    """The messages for one destination, oldest first."""

    path: str
    waiting: list[BacklogMessage] = field(default_factory=list)
    in_flight: list[BacklogMessage] = field(default_factory=list)
    in_flight_since_ms: int = 0
    limit: BatchLimit = field(default_factory=BatchLimit)
    is_unavailable: bool = False
    """Whether the last send failed for a temporary reason."""
    retry_ms: int = 0
    attempts: int = 0
    was_skipped: bool = False
    """Whether messages for it were skipped since it last accepted one."""

    def __iter__(self) -> Iterator[BacklogMessage]:
        return chain(self.waiting, self.in_flight)

    def take(self, waits: Callable[[BacklogMessage], bool], now: int) -> list[BacklogMessage]:
        """Put the next batch in flight. A message that waits stays, and with it the younger ones of its session."""
        most = 1 if self.is_unavailable else self.limit.messages
        batch: list[BacklogMessage] = []
        passed: list[BacklogMessage] = []
        stopped: set[tuple[str, str | None]] = set()
        size = 0
        for message in self.waiting:
            if message.is_ordered and (message.session in stopped or waits(message)):
                stopped.add(message.session)
                passed.append(message)
                continue
            if batch and (len(batch) >= most or size + len(message.payload) > BATCH_BYTES):
                break
            batch.append(message)
            size += len(message.payload)
        self.waiting[: len(batch) + len(passed)] = passed
        if batch:
            self.in_flight, self.in_flight_since_ms = batch, now
        for message in batch:
            message.is_in_flight = True
        return list(batch)

    def put_back(self) -> None:
        """The batch in flight goes back to the front."""
        for message in self.in_flight:
            message.is_in_flight = False
        self.waiting[:0] = self.in_flight
        self.in_flight = []

    def is_slow(self, now: int, slow_ms: int) -> bool:
        """Whether its answer takes long, or its messages wait long while it refuses some of them."""
        if not self.in_flight:
            return False
        if now - self.in_flight_since_ms >= slow_ms:
            return True
        return self.limit.is_reduced and now - self.in_flight[0].held_since_ms >= slow_ms

    def blocked(self, waits: Callable[[BacklogMessage], bool]) -> Iterator[BacklogMessage]:
        """The messages that cannot be sent for their order: those that wait, and the younger ones of their sessions."""
        stopped: set[tuple[str, str | None]] = set()
        for message in self.waiting:
            if message.is_ordered and ((stopped and message.session in stopped) or waits(message)):
                stopped.add(message.session)
                yield message


class SeenDestinations:
    """Which destinations a backlog queue has messages for, as far as the drain has seen, and when each last took one."""

    def __init__(self) -> None:
        self._by_queue: dict[str, set[str]] = {}
        self._reached_ms: dict[str, int] = {}

    def note(self, queue: str, key: str) -> None:
        """A message for a destination is in a queue."""
        seen = self._by_queue.setdefault(queue, set())
        if len(seen) < DESTINATIONS_MAX:
            seen.add(key)

    def reached(self, key: str, now: int) -> None:
        """A destination accepted a message, or has one further back in a queue."""
        self._reached_ms.pop(key, None)
        self._reached_ms[key] = now
        while len(self._reached_ms) > DESTINATIONS_MAX:
            del self._reached_ms[next(iter(self._reached_ms))]

    def by(self, queue: str) -> Collection[str]:
        """The destinations that a queue has had messages for."""
        return self._by_queue.get(queue, ())

    def is_recent(self, key: str, now: int) -> bool:
        """Whether a destination was reached not long ago."""
        return now - self._reached_ms.get(key, -RECENT_MS) < RECENT_MS
