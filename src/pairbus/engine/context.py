"""What all queues of a namespace share: the log, the outbox, lock tokens, timers, and which of them have work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final

from pairbus.engine.ports import WallClock
from pairbus.engine.rules.sql.nodes import RuleBudget
from pairbus.engine.tokens import TokenStream
from pairbus.errors import QuotaExceeded

if TYPE_CHECKING:
    from pairbus.engine.ports import Outbox, ReadAhead, RecordLog, Watcher
    from pairbus.engine.queues.queue import Queue

DUE_BURST_MAX: Final = 1_000
"""Messages that expire, fall due or come back in one tick, and sessions that are lost: of one queue, and about as many of all queues
together. The rest follows in the next tick, so that no client waits long (B63)."""
FETCH_MESSAGES_MAX: Final = 512
"""Messages whose blobs are asked for at once, where blobs are not on this machine."""
FETCH_BYTES_MAX: Final = 2_097_152
_STALE_SLACK: Final = 256
"""Timers that may be out of date, beyond as many as are not, before they are swept."""


@dataclass(slots=True, eq=False)
class Numbers:
    """Sequence numbers and times of one entity, shared by its main and dead-letter queues."""

    next_sequence_number: int = 1
    last_enqueued_at: int = 0
    accessed_at: int = 0
    """When a client last used the entity; 0: never."""
    use_recorded_at: int = 0
    """The latest use that the log knows of."""


class Space:
    """Bytes held against one size quota: a queue's, or a topic's with all its subscriptions."""

    __slots__ = ("stored_bytes",)

    def __init__(self) -> None:
        self.stored_bytes = 0


class Timers:
    """One deadline for each id. A question (``next_deadline``), never a thread."""

    __slots__ = ("_armed", "_heap")

    def __init__(self) -> None:
        self._armed: dict[int, int] = {}
        """The deadline of each id; what else is in the heap is out of date."""
        self._heap: list[tuple[int, int]] = []

    def arm(self, deadline: int, timer_id: int) -> None:
        """Set the deadline of an id, in place of the one it had."""
        if self._armed.get(timer_id) == deadline:
            return
        self._armed[timer_id] = deadline
        heappush(self._heap, (deadline, timer_id))
        self._sweep()

    def disarm(self, timer_id: int) -> None:
        if self._armed.pop(timer_id, None) is not None:
            self._sweep()

    def _sweep(self) -> None:
        """Drop what is out of date once it outweighs the rest (B62)."""
        if len(self._heap) > 2 * len(self._armed) + _STALE_SLACK:
            self._heap = [(at, armed_id) for armed_id, at in self._armed.items()]
            heapify(self._heap)

    def next_deadline(self) -> int | None:
        """When ``due`` will return something next."""
        heap, armed = self._heap, self._armed
        while heap and armed.get(heap[0][1]) != heap[0][0]:
            heappop(heap)
        return heap[0][0] if heap else None

    def pop_due(self, now: int) -> int | None:
        """The id whose deadline came first, if any has come; it is armed no more."""
        deadline = self.next_deadline()
        if deadline is None or deadline > now:
            return None
        timer_id = heappop(self._heap)[1]
        del self._armed[timer_id]
        return timer_id

    def due(self, now: int) -> list[int]:
        """The ids whose deadline has come, each once, earliest first; they are armed no more."""
        found: list[int] = []
        heap, armed = self._heap, self._armed
        while heap and heap[0][0] <= now:
            deadline, timer_id = heappop(heap)
            if armed.get(timer_id) == deadline:
                del armed[timer_id]
                found.append(timer_id)
        return found


class Context:
    """What the queues of a namespace have in common."""

    __slots__ = (
        "budget",
        "dirty",
        "log",
        "outbox",
        "queues",
        "read_ahead",
        "room_limit",
        "timers",
        "tokens",
        "wall_clock",
        "watcher",
    )

    def __init__(self, log: RecordLog, outbox: Outbox, token_seed: bytes) -> None:
        self.log = log
        self.outbox = outbox
        self.read_ahead: ReadAhead | None = None
        """None: every blob can be read at once."""
        self.room_limit: Callable[[], str] | None = None
        """Names the limit that the log has reached when it has no room; empty or None: the disk is full."""
        self.watcher: Watcher | None = None
        """None while the log is replayed: what is folded then was reported in its time."""
        self.wall_clock = WallClock()
        """Judges the dates that clients give: when a scheduled message is due."""
        self.tokens = TokenStream(token_seed)
        self.budget = RuleBudget()
        self.queues: dict[int, Queue] = {}
        self.dirty: dict[int, None] = {}
        """Ids of queues that may have something to deliver, in the order they were touched."""
        self.timers = Timers()
        """When each queue must be ticked, by its id."""

    def is_ahead(self, date: int, now: int) -> bool:
        """Whether a date that a client gave is still to come."""
        return date > now - self.wall_clock.lead_ms()

    def no_room(self, what: str) -> QuotaExceeded:
        """The refusal of what the log has no room for (B12)."""
        limit = self.room_limit() if self.room_limit is not None else ""
        if limit:
            return QuotaExceeded(
                f"The namespace has no room for {what}: it has reached its limit, {limit}. Receive messages, or raise the limit."
            )
        return QuotaExceeded(f"The disk has no room for {what}. Free some space; receiving goes on.")
