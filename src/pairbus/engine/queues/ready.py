"""The messages of one queue or session that could be delivered now, first in, first out.

New messages come in order of their number and wait in a deque; the few that come back (abandoned,
lock lost, released) wait in a heap. The next one is the smaller of the two fronts, so a message that
returns goes to its old place (B21, B23). Entries of messages that left meanwhile are passed over; one of them may
have the number of a live one (recovery reads a message that compaction restated), so entries are counted too.
"""

from __future__ import annotations

from collections import deque
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import Final

from pairbus.model.message import ACTIVE, Message

GONE: Final = 3
"""The state of a Message object that no longer stands for a stored message."""

_STALE_SLACK: Final = 1_024


class Ready:
    """An ordered bag of deliverable messages."""

    __slots__ = ("_fresh", "_pushes", "_returned")

    def __init__(self) -> None:
        self._fresh: deque[Message] = deque()
        self._returned: list[tuple[int, int, Message]] = []
        self._pushes = 0

    def add(self, message: Message) -> None:
        """Put a message at the place of its number."""
        fresh = self._fresh
        if fresh and fresh[-1].sequence_number > message.sequence_number:
            self.put_back(message)
        else:
            fresh.append(message)

    def put_back(self, message: Message) -> None:
        """Return a message that had been taken."""
        self._pushes += 1
        heappush(self._returned, (message.sequence_number, self._pushes, message))

    def first(self) -> Message | None:
        """The next message, left where it is."""
        fresh = self._fresh
        while fresh and (fresh[0].state != ACTIVE or fresh[0].is_locked):
            fresh.popleft()
        returned = self._returned
        if not returned:
            return fresh[0] if fresh else None
        while returned and (returned[0][2].state != ACTIVE or returned[0][2].is_locked):
            heappop(returned)
        if returned and (not fresh or returned[0][0] < fresh[0].sequence_number):
            return returned[0][2]
        return fresh[0] if fresh else None

    def upcoming(self, count: int) -> list[Message]:
        """About so many messages that come next, in no exact order."""
        found = [m for m in islice(self._fresh, count) if m.state == ACTIVE and not m.is_locked]
        found += [e[2] for e in self._returned[:count] if e[2].state == ACTIVE and not e[2].is_locked]
        return found

    def take(self, message: Message) -> None:
        """Take out what ``first`` has just shown."""
        if self._fresh and self._fresh[0] is message:
            self._fresh.popleft()
        else:
            heappop(self._returned)

    def trim(self, live: int) -> None:
        """Forget entries of messages that left, once they outnumber the ``live`` ones (B62)."""
        if len(self._fresh) + len(self._returned) <= 2 * live + _STALE_SLACK:
            return
        self.first()  # what left in order stands at the front: that is cheap to drop, however much stands behind it
        if len(self._fresh) + len(self._returned) > 2 * live + _STALE_SLACK:
            self._fresh = deque(m for m in self._fresh if m.state == ACTIVE and not m.is_locked)
            self._returned = [e for e in self._returned if e[2].state == ACTIVE and not e[2].is_locked]
            heapify(self._returned)

    def drop(self, count: int) -> bool:
        """Free so many entries of a place that is gone; whether there are more."""
        for _ in range(min(count, len(self._fresh))):
            self._fresh.pop()
        del self._returned[-count:]
        return bool(self._fresh or self._returned)
