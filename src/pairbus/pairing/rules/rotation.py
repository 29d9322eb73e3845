"""Which backlog queue takes a send: one rotation for all senders of a client.

A sender picks once, at random, and stays. A queue that refuses leaves the rotation for everybody. Later a send tries it
first, and it comes back when it accepts. When none is left, each send tries all of them once, the longest untried first,
so that a secondary that comes back is used again (P31-P33).

A trial takes time of a caller, so trials are few: one at a time and one per retry interval for all queues together, and
a queue waits twice as long after each trial that failed.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

TRIAL_INTERVALS_MAX: Final = 16
"""How many retry intervals a queue waits for its next trial at most, however many have failed."""


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
    tried_ms: int
    failed_trials: int = 0


class Rotation:
    """The usable backlog queues of one client."""

    def __init__(self, queues: Sequence[str], retry_ms: int, chooser: Chooser) -> None:
        self.usable = list(queues)
        self.evicted: dict[str, Eviction] = {}
        self.retry_ms = retry_ms
        self._chooser = chooser
        self._trial: str | None = None
        self._trial_until_ms = 0
        self._next_trial_ms = 0

    def pick(self, tried: Container[str]) -> str | None:
        """A queue at random from the rotation that this send has not tried, or None."""
        left = [queue for queue in self.usable if queue not in tried]
        return left[self._chooser.randrange(len(left))] if left else None

    def take_trial(self, now: int, attempt_ms: int, tried: Container[str]) -> str | None:
        """An evicted queue whose time has come; the send that gets it tries it first. None: nothing is due.

        A send that ends without telling how its trial went holds up the next trial for ``attempt_ms`` at most.
        """
        if not self.evicted or not self.usable or now < self._next_trial_ms:
            return None
        if self._trial is not None and now < self._trial_until_ms:
            return None
        due = [e for e in self.evicted.values() if e.next_try_ms <= now and e.queue not in tried]
        if not due:
            return None
        eviction = min(due, key=lambda e: e.next_try_ms)
        eviction.tried_ms = now
        eviction.next_try_ms = now + self._pause_ms(eviction)
        self._trial = eviction.queue
        self._trial_until_ms = now + attempt_ms
        self._next_trial_ms = now + self.retry_ms
        return eviction.queue

    def _pause_ms(self, eviction: Eviction) -> int:
        return int(self.retry_ms * min(2**eviction.failed_trials, TRIAL_INTERVALS_MAX))

    def last_resort(self, tried: Container[str]) -> str | None:
        """With an empty rotation: the evicted queue that was not tried for longest."""
        if self.usable:
            return None
        left = [eviction for eviction in self.evicted.values() if eviction.queue not in tried]
        return min(left, key=lambda eviction: eviction.tried_ms).queue if left else None

    def refused(self, queue: str, now: int, why: str) -> bool:
        """A send to it failed. True when that took it out of the rotation."""
        is_new = queue in self.usable
        if is_new:
            self.usable.remove(queue)
            self.evicted[queue] = Eviction(queue, why, now, now + self.retry_ms, now)
        elif queue in self.evicted:
            eviction = self.evicted[queue]
            if queue == self._trial:
                eviction.failed_trials = min(eviction.failed_trials + 1, TRIAL_INTERVALS_MAX)
            eviction.why = why
            eviction.tried_ms = now
            eviction.next_try_ms = now + self._pause_ms(eviction)
        self._ended(queue)
        return is_new

    def accepted(self, queue: str) -> bool:
        """A send to it succeeded. True when that brought it back."""
        self._ended(queue)
        if queue not in self.evicted:
            return False
        del self.evicted[queue]
        self.usable.append(queue)
        return True

    def _ended(self, queue: str) -> None:
        if queue == self._trial:
            self._trial = None
