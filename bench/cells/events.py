"""A discrete-event simulation's parts: the clock, processors that jobs queue for, and a disk that flushes for everybody who waits.

Nothing here reads the time or draws lots; the same calls give the same run.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bench.cells.costs import Line

Action = Callable[[], None]


class Simulation:
    """The clock and what is due."""

    __slots__ = ("_due", "_number", "events", "now")

    def __init__(self) -> None:
        self.now = 0.0
        self.events = 0
        self._due: list[tuple[float, int, Action]] = []
        self._number = 0

    def after(self, seconds: float, action: Action) -> None:
        self._number += 1
        heapq.heappush(self._due, (self.now + seconds, self._number, action))

    def run(self, until: float) -> None:
        due, pop = self._due, heapq.heappop
        while due and due[0][0] <= until:
            self.now, _, action = pop(due)
            self.events += 1
            action()
        self.now = until


class Processors:
    """A machine's processors. Jobs that find none free wait in the order in which they came."""

    __slots__ = ("_free", "_is_stopped", "_simulation", "_waiting", "busy_s", "count")

    def __init__(self, simulation: Simulation, count: int) -> None:
        self._simulation = simulation
        self.count = self._free = count
        self.busy_s = 0.0
        self._waiting: deque[tuple[float, Action]] = deque()
        self._is_stopped = False

    def run(self, seconds: float, done: Action) -> None:
        if self._free and not self._is_stopped:
            self._begin(seconds, done)
        else:
            self._waiting.append((seconds, done))

    def _begin(self, seconds: float, done: Action) -> None:
        self._free -= 1
        self.busy_s += seconds

        def ended() -> None:
            self._free += 1
            if self._waiting and not self._is_stopped:
                self._begin(*self._waiting.popleft())
            done()

        self._simulation.after(seconds, ended)

    def stop(self) -> None:
        """The machine is gone: jobs wait until ``resume``."""
        self._is_stopped = True

    def resume(self) -> None:
        self._is_stopped = False
        while self._waiting and self._free:
            self._begin(*self._waiting.popleft())


class GroupFlush:
    """One disk: everything that waits when a flush begins shares it. Bytes that come later wait for the next one."""

    __slots__ = (
        "_cost",
        "_is_flushing",
        "_simulation",
        "_waiting",
        "_waiting_bytes",
        "busy_s",
        "flushes",
        "written_bytes",
    )

    def __init__(self, simulation: Simulation, cost: Line) -> None:
        self._simulation = simulation
        self._cost = cost
        self._is_flushing = False
        self._waiting: list[Action] = []
        self._waiting_bytes = 0.0
        self.flushes = 0
        self.busy_s = 0.0
        self.written_bytes = 0.0

    def write(self, count: float, done: Action) -> None:
        """Let ``done`` be called once ``count`` bytes are flushed."""
        self._waiting.append(done)
        self._waiting_bytes += count
        if not self._is_flushing:
            self._begin()

    def _begin(self) -> None:
        group, count = self._waiting, self._waiting_bytes
        self._waiting, self._waiting_bytes, self._is_flushing = [], 0.0, True
        self.flushes += 1
        self.written_bytes += count
        seconds = self._cost.at(count)
        self.busy_s += seconds

        def ended() -> None:
            self._is_flushing = False
            if self._waiting:
                self._begin()
            for done in group:
                done()

        self._simulation.after(seconds, ended)
