"""Which backlog queue takes a send: one rotation for all senders of a factory.

A sender picks once, at random, and stays. A queue that refuses leaves the rotation for everybody; after each retry
interval one send tries it first, and it comes back when it accepts. When none is left, each send tries all of them
once, the longest untried first, so that a secondary that comes back is used again (P31-P33).
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Protocol


class Chooser(Protocol):
    """Randomness from outside: ``random.Random`` fits."""

    def randrange(self, stop: int, /) -> int:
        """A number from 0 up to, not including, ``stop``."""


@dataclass(slots=True)
class Eviction:
    """A queue that is out, why, and when it is tried again."""

    queue: str
    why: str
    since_ms: int
    next_try_ms: int


class Rotation:
    """The usable backlog queues of one factory."""

    def __init__(self, queues: Sequence[str], retry_ms: int, chooser: Chooser) -> None:
        self.usable = list(queues)
        self.evicted: dict[str, Eviction] = {}
        self.retry_ms = retry_ms
        self._chooser = chooser

    def pick(self, tried: Container[str]) -> str | None:
        """A queue at random from the rotation that this send has not tried, or None."""
        left = [queue for queue in self.usable if queue not in tried]
        return left[self._chooser.randrange(len(left))] if left else None

    def take_trial(self, now: int, tried: Container[str]) -> str | None:
        """An evicted queue whose time has come; the send that gets it tries it first. None: nothing is due."""
        if not self.evicted or not self.usable:
            return None
        for eviction in self.evicted.values():
            if eviction.next_try_ms <= now and eviction.queue not in tried:
                eviction.next_try_ms = now + self.retry_ms
                return eviction.queue
        return None

    def last_resort(self, tried: Container[str]) -> str | None:
        """With an empty rotation: the evicted queue that was not tried for longest."""
        if self.usable:
            return None
        left = [eviction for eviction in self.evicted.values() if eviction.queue not in tried]
        return min(left, key=lambda eviction: eviction.next_try_ms).queue if left else None

    def refused(self, queue: str, now: int, why: str) -> bool:
        """A send to it failed. True when that took it out of the rotation."""
        is_new = queue in self.usable
        if is_new:
            self.usable.remove(queue)
            self.evicted[queue] = Eviction(queue, why, now, now + self.retry_ms)
        elif queue in self.evicted:
            self.evicted[queue].why = why
            self.evicted[queue].next_try_ms = now + self.retry_ms
        return is_new

    def accepted(self, queue: str) -> bool:
        """A send to it succeeded. True when that brought it back."""
        if queue not in self.evicted:
            return False
        del self.evicted[queue]
        self.usable.append(queue)
        return True
