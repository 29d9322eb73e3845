"""How long the task of a backlog queue may wait: for messages, or until the plan has capacity for more. No clock, no I/O."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pairbus.drain.ports import Budget
from pairbus.drain.rules.plan import SLOW_MS, DrainPlan
from pairbus.drain.rules.sharing import SharedQueues

POLL_SECONDS: Final = 900
"""The long poll of an idle backlog queue: four an hour."""
RELEASED_SECONDS: Final = 0.2
"""How long a drain waits for messages that another one may just release, before it releases its own."""
ONCE_SECONDS: Final = 1.0
"""How long a drain that should end waits for more."""
WAIT_SECONDS_MIN: Final = 0.05


Look = Callable[[str], float | None]
"""Seconds until the next look into a backlog queue is due; None when none is."""


class Waits:
    """Answers for one drain.

    Args:
        plan: What it holds.
        shared: What it knows of other drains.
        older: The next look for older messages that others wait for.
        deferred: The next look for deferred messages.
        clock: A steady clock in milliseconds.
        budget: Bounds of a drain that ends by itself.
    """

    def __init__(
        self,
        plan: DrainPlan,
        shared: SharedQueues,
        older: Look,
        deferred: Look,
        clock: Callable[[], int],
        budget: Budget | None,
    ) -> None:
        self._plan = plan
        self._shared = shared
        self._seconds_to_older = older
        self._seconds_to_deferred = deferred
        self._clock = clock
        self._budget = budget
        self.is_once = False
        """Whether the drain ends when all that was there at its start is delivered."""

    def poll_seconds(self, queue: str) -> float:
        """How long one receive may wait for messages."""
        if self.is_once:
            return self._within(queue, ONCE_SECONDS)
        if self._budget is not None and not self._plan.held(queue):
            return self._budget.idle_seconds
        if self._plan.waits_for_others(queue) is not None and not self._shared.is_stuck(queue):
            return self._within(queue, RELEASED_SECONDS)
        # A poll may wait long only when nothing of this queue needs the link meanwhile.
        look = None if self._plan.held(queue) else self._seconds_to_deferred(queue)
        return self._within(
            queue, POLL_SECONDS if look is None else min(POLL_SECONDS, max(WAIT_SECONDS_MIN, look))
        )

    def seconds_without_capacity(self, queue: str) -> float:
        """Till the next look: a destination may count as stalled by then, and free capacity, without an event."""
        return self._within(queue, SLOW_MS / 1000)

    def _within(self, queue: str, seconds: float) -> float:
        """At most ``seconds``, and not beyond the next renewal of a lock or the next look for older messages."""
        renewal_ms = self._plan.next_renewal_ms(queue)
        look = self._seconds_to_older(queue)
        if renewal_ms is not None:
            seconds = min(seconds, max(WAIT_SECONDS_MIN, (renewal_ms - self._clock()) / 1000))
        return seconds if look is None else min(seconds, max(WAIT_SECONDS_MIN, look))
