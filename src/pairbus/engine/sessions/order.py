"""The messages of a place by their session, in order: so that looking at one session does not pass by all others (B63)."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pairbus.engine.queues.table import MessageTable

_STALE_SLACK: Final = 64
"""Numbers of messages that left, beyond as many as are there, before they are swept."""


class _Run:
    """One session's numbers in ascending order, those of messages that left among them."""

    __slots__ = ("live", "numbers")

    def __init__(self, number: int) -> None:
        self.numbers = [number]
        self.live = 1


class SessionOrder:
    """Kept where sessions are required, for the dead letters of such an entity too."""

    __slots__ = ("_runs",)

    def __init__(self) -> None:
        self._runs: dict[str, _Run] = {}

    def __len__(self) -> int:
        return len(self._runs)

    def add(self, session_id: str, number: int) -> None:
        run = self._runs.get(session_id)
        if run is None:
            self._runs[session_id] = _Run(number)
            return
        run.live += 1
        numbers = run.numbers
        if numbers[-1] < number:
            numbers.append(number)
            return
        index = bisect_left(numbers, number)
        if numbers[index] != number:
            numbers.insert(index, number)

    def remove(self, session_id: str, messages: MessageTable) -> None:
        """A message has left; ``messages`` are those that are still there."""
        run = self._runs[session_id]
        run.live -= 1
        if not run.live:
            del self._runs[session_id]
        elif len(run.numbers) > 2 * run.live + _STALE_SLACK:
            run.numbers = [number for number in run.numbers if number in messages]

    def numbers(self, session_id: str) -> list[int]:
        """A session's numbers in ascending order, some of messages that left; not to be changed."""
        run = self._runs.get(session_id)
        return [] if run is None else run.numbers

    def drop(self, count: int) -> bool:
        """Free so many sessions of a place that is gone; whether there are more."""
        for _ in range(min(count, len(self._runs))):
            self._runs.popitem()
        return bool(self._runs)
