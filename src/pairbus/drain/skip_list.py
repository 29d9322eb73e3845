"""Messages that a syphon leaves where they are, so that one destination that stands still does not hold up the others.

A backlog queue gives its messages in their order, so whoever wants the ones behind must lock the ones before. Of a
destination that stands still only so many are held; the lock of a further one is left to lapse, and meanwhile the
queue shows what is behind it. When the same message comes round again, the queue has nothing new: it is left alone for
a while, longer each time, so that waiting costs no spinning receives (P38).

Rule 1: a message is never taken while an older one of its destination and queue is still to come back (P14).
Rule 2: what is remembered is bounded by ``SKIPPED_MAX`` per queue.
"""

from __future__ import annotations

from typing import Final

SKIPPED_MAX: Final = 2_000
"""How many messages of one backlog queue are passed over at a time."""
LAPSE_MARGIN_MS: Final = 5_000
"""A message whose lock has lapsed for longer would have come back before any younger one: somebody else has it."""
REST_MS_MIN: Final = 60_000
REST_MS_MAX: Final = 300_000


class _Round:
    """One backlog queue: what was passed over, and how long it is left alone."""

    __slots__ = ("found", "passed", "rest_ms", "rest_until_ms")

    def __init__(self) -> None:
        self.passed: dict[int, tuple[str, int]] = {}
        self.rest_ms = REST_MS_MIN
        self.rest_until_ms = 0
        self.found = False
        """Whether anything could be taken since the last rest."""


class SkipList:
    """What one syphon has passed over."""

    def __init__(self) -> None:
        self._rounds: dict[str, _Round] = {}

    def must_wait(self, queue: str, key: str, number: int, now: int) -> bool:
        """Whether an older message for the same destination is still to come back."""
        found = self._rounds.get(queue)
        if found is None:
            return False
        return any(
            older < number and where == key and now < lapse_ms + LAPSE_MARGIN_MS
            for older, (where, lapse_ms) in found.passed.items()
        )

    def skip(self, queue: str, key: str, number: int, lapse_ms: int, now: int) -> None:
        """A message is left where it is; its lock lapses at ``lapse_ms``."""
        found = self._rounds.setdefault(queue, _Round())
        came_round = number in found.passed
        found.passed.pop(number, None)
        found.passed[number] = (key, lapse_ms)
        if came_round or len(found.passed) >= SKIPPED_MAX:
            self._rest(found, now)
        while len(found.passed) > SKIPPED_MAX:
            del found.passed[next(iter(found.passed))]

    def taken(self, queue: str, number: int) -> None:
        """A message was taken after all: the queue has something for us."""
        found = self._rounds.get(queue)
        if found is None:
            return
        found.passed.pop(number, None)
        found.found = True

    def is_resting(self, queue: str, now: int) -> bool:
        """Whether a queue is left alone for now."""
        found = self._rounds.get(queue)
        return found is not None and now < found.rest_until_ms

    def passed(self, queue: str) -> int:
        """How many messages of a queue were passed over."""
        found = self._rounds.get(queue)
        return len(found.passed) if found is not None else 0

    def moved(self) -> None:
        """A destination that stood still moves again: no queue is left alone any longer."""
        for found in self._rounds.values():
            found.rest_until_ms, found.rest_ms = 0, REST_MS_MIN

    def _rest(self, found: _Round, now: int) -> None:
        if now < found.rest_until_ms:
            return
        found.rest_ms = REST_MS_MIN if found.found else min(found.rest_ms * 2, REST_MS_MAX)
        found.rest_until_ms = now + found.rest_ms
        found.found = False
