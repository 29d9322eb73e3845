"""What all queues of a namespace share: the journal, the outbox, lock tokens, timers, and who has work to do."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pairbus.engine.ports import Journal, Outbox


class Numbers:
    """Sequence numbers and times of one entity, shared by its main and dead-letter queues."""

    __slots__ = ("accessed_at", "last_enqueued_at", "next_sequence_number")

    def __init__(self) -> None:
        self.next_sequence_number = 1
        self.last_enqueued_at = 0
        self.accessed_at = 0


class Space:
    """Bytes held against one size quota: a queue's, or a topic's with all its subscriptions."""

    __slots__ = ("stored_bytes",)

    def __init__(self) -> None:
        self.stored_bytes = 0


class Context:
    """The engine's surroundings. Timers are a question (``next_deadline``), never a thread."""

    __slots__ = ("_timers", "dirty", "journal", "last_token", "outbox")

    def __init__(self, journal: Journal, outbox: Outbox) -> None:
        self.journal = journal
        self.outbox = outbox
        self.last_token = 0
        self.dirty: dict[int, None] = {}
        """Ids of queues that may have something to deliver, in the order they were touched."""
        self._timers: list[tuple[int, int]] = []

    def arm(self, deadline: int, queue_id: int) -> None:
        """Ask that a queue be ticked at an instant."""
        heappush(self._timers, (deadline, queue_id))

    def next_deadline(self) -> int | None:
        """When ``due`` will have something to say next."""
        return self._timers[0][0] if self._timers else None

    def due(self, now: int) -> list[int]:
        """The queues whose deadline has come, each once, earliest first."""
        found: dict[int, None] = {}
        while self._timers and self._timers[0][0] <= now:
            found[heappop(self._timers)[1]] = None
        return list(found)
