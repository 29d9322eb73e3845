"""Which backlog queue takes a send: one rotation for all senders of a client.

A sender picks once, at random, and stays. A queue that refuses leaves the rotation for everybody. Later a send tries it
first, and it comes back when it accepts. When none is left, each send tries all of them once, the longest untried first,
so that a secondary that comes back is used again (P31-P33).

When all were out, it was the secondary that was away, and not each queue on its own. So the first one that accepts brings back
the others that had not answered, and senders spread over all of them again. They are *unproven* until they accept: an attempt at
one is as short as a trial, and one that fails again comes back only by a trial of its own.

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
    has_answered: bool = True
    """Whether it has refused, rather than not answered at all."""


class Rotation:
    """The usable backlog queues of one client."""

    def __init__(self, queues: Sequence[str], retry_ms: int, chooser: Chooser) -> None:
        self.usable = list(queues)
        self.evicted: dict[str, Eviction] = {}
        self.unproven: set[str] = set()
        """Queues that came back with another one, and have not accepted anything since."""
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

    def refused(self, queue: str, now: int, why: str, *, has_answered: bool = True) -> bool:
        """A send to it failed. True when that took it out of the rotation. ``has_answered``: it said no itself."""
        is_new = queue in self.usable
        if is_new:
            self.usable.remove(queue)
            # Coming back with another one was its trial.
            failed_trials = 1 if queue in self.unproven else 0
            self.unproven.discard(queue)
            eviction = Eviction(queue, why, now, now, now, failed_trials, has_answered)
            eviction.next_try_ms += self._pause_ms(eviction)
            self.evicted[queue] = eviction
        elif queue in self.evicted:
            eviction = self.evicted[queue]
            if queue == self._trial:
                eviction.failed_trials = min(eviction.failed_trials + 1, TRIAL_INTERVALS_MAX)
            eviction.why = why
            eviction.has_answered = has_answered
            eviction.tried_ms = now
            eviction.next_try_ms = now + self._pause_ms(eviction)
        self._ended(queue)
        return is_new

    def accepted(self, queue: str) -> list[str]:
        """A send to it succeeded. Returns the queues that are back for it: itself, and those that were away with it."""
        self._ended(queue)
        self.unproven.discard(queue)
        if queue not in self.evicted:
            return []
        back = [queue]
        if not self.usable:
            away = [one for one in self.evicted.values() if not one.has_answered and not one.failed_trials]
            others = [one.queue for one in away if one.queue != queue]
            self.unproven.update(others)
            back += others
        for one in back:
            del self.evicted[one]
        self.usable += back
        return back

    def _ended(self, queue: str) -> None:
        if queue == self._trial:
            self._trial = None
