"""What all queues of a namespace share: the journal, the outbox, lock tokens, timers, and who has work to do."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final

from pairbus.engine.rules.sql.nodes import RuleBudget
from pairbus.engine.tokens import TokenStream

if TYPE_CHECKING:
    from pairbus.engine.ports import Journal, Outbox, Watcher

DUE_BURST_MAX: Final = 1_000
"""Messages of one queue that expire, fall due or come back in one tick, and sessions that are lost; the rest follows in the
next, so that nobody waits long (B63)."""
_STALE_SLACK: Final = 256
"""Timers that may be out of date, beyond as many as are not, before they are swept."""


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

    __slots__ = ("_armed", "_timers", "budget", "dirty", "journal", "outbox", "tokens", "watcher")

    def __init__(self, journal: Journal, outbox: Outbox, token_seed: bytes) -> None:
        self.journal = journal
        self.outbox = outbox
        self.watcher: Watcher | None = None
        """Nobody while the journal is replayed: what is folded then was told in its time."""
        self.tokens = TokenStream(token_seed)
        self.budget = RuleBudget()
        self.dirty: dict[int, None] = {}
        """Ids of queues that may have something to deliver, in the order they were touched."""
        self._timers: list[tuple[int, int]] = []
        self._armed: dict[int, int] = {}
        """The one deadline of each queue that counts; what else is in the heap is out of date."""

    def arm(self, deadline: int, queue_id: int) -> None:
        """Ask that a queue be ticked at an instant, and no more at the one asked for before."""
        if self._armed.get(queue_id) == deadline:
            return
        self._armed[queue_id] = deadline
        heappush(self._timers, (deadline, queue_id))
        self._sweep()

    def disarm(self, queue_id: int) -> None:
        """Nothing is to be ticked any more: it is gone."""
        if self._armed.pop(queue_id, None) is not None:
            self._sweep()

    def _sweep(self) -> None:
        """Drop what is out of date once it outweighs the rest (B62)."""
        if len(self._timers) > 2 * len(self._armed) + _STALE_SLACK:
            self._timers = [(at, armed_id) for armed_id, at in self._armed.items()]
            heapify(self._timers)

    def next_deadline(self) -> int | None:
        """When ``due`` will have something to say next."""
        timers, armed = self._timers, self._armed
        while timers and armed.get(timers[0][1]) != timers[0][0]:
            heappop(timers)
        return timers[0][0] if timers else None

    def due(self, now: int) -> list[int]:
        """The queues whose deadline has come, each once, earliest first."""
        found: list[int] = []
        timers, armed = self._timers, self._armed
        while timers and timers[0][0] <= now:
            deadline, queue_id = heappop(timers)
            if armed.get(queue_id) == deadline:
                del armed[queue_id]
                found.append(queue_id)
        return found
