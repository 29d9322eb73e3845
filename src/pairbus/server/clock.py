"""The broker's clock: the only place that asks what time it is.

Rule 1: it never goes back, and it follows the wall clock forward at once (B20, B65).
Rule 2: after the wall clock was set back it goes on one hundredth slower than real time until the wall has caught up. So no
        timer stops, and none is late by more than a hundredth of its own length: a lock, a life or a duplicate window that
        begins meanwhile is as long as ever, for all that a client can tell (0144). The same hundredth is how much slower than the
        monotonic clock the wall clock may run. Where it runs slower still, a lock ends before the date that its holder was told
        (B26). Linux counts and slews both clocks alike, so they part only when the wall clock is set.
Rule 3: dates that clients give or get are dates of the wall clock (``lead_ms``): the expiry of a token, the time of a scheduled
        message, the end of a lock. They are compared with another machine's clock; a clock that once was two hours ahead for a
        moment must not refuse every token, nor deliver early what is scheduled, for the next twenty.
Rule 4: how long a peer was silent is measured in real time (``steady_ms``): setting the machine's clock closes no connection.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final, TypeAlias

from pairbus.engine.ports import WallClock

Clock: TypeAlias = Callable[[], int]
"""Gives milliseconds since the Unix epoch, never fewer than it gave before."""

NANOSECONDS_PER_MS: Final = 1_000_000
SLEW_NUMERATOR: Final = 99
SLEW_DENOMINATOR: Final = 100


class BrokerClock(WallClock):
    """Wall time made monotone. Call it for the present instant in milliseconds.

    Args:
        wall_ns: Nanoseconds since the Unix epoch; may be stepped when the machine's clock is set.
        monotonic_ns: Nanoseconds of real time since some moment.
    """

    __slots__ = ("_at_ns", "_lead_ms", "_monotonic_at_ns", "_monotonic_ns", "_wall_ns")

    def __init__(
        self,
        wall_ns: Callable[[], int] = time.time_ns,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._wall_ns = wall_ns
        self._monotonic_ns = monotonic_ns
        self._at_ns = wall_ns()
        self._monotonic_at_ns = monotonic_ns()
        self._lead_ms = 0

    def __call__(self) -> int:
        monotonic = self._monotonic_ns()
        elapsed = monotonic - self._monotonic_at_ns
        slewed = self._at_ns + elapsed * SLEW_NUMERATOR // SLEW_DENOMINATOR
        wall = self._wall_ns()
        # One rule for every case: an undisturbed wall is always ahead of the slewed time, a forward step even
        # more so, and after a backward step the slewed time leads until the wall overtakes it.
        self._at_ns = wall if wall > slewed else slewed
        self._monotonic_at_ns = monotonic
        now = self._at_ns // NANOSECONDS_PER_MS
        # Of whole milliseconds, so that this clock less its lead is never later than the wall clock.
        self._lead_ms = now - wall // NANOSECONDS_PER_MS
        return now

    def lead_ms(self) -> int:
        """How far this clock was ahead of the wall clock when it was last read; never below 0."""
        return self._lead_ms

    def instant_of(self, date: int) -> int:
        """The instant of this clock at which the wall clock will show a date, if nobody sets it before; never one before the date."""
        now = self._at_ns // NANOSECONDS_PER_MS
        wait = date - (now - self._lead_ms)
        return max(date, now - (-wait * SLEW_NUMERATOR // SLEW_DENOMINATOR))

    def steady_ms(self) -> int:
        """Milliseconds of real time, since some moment, when this clock was last read."""
        return self._monotonic_at_ns // NANOSECONDS_PER_MS


def elapsed_ns() -> int:
    """Real time for measuring durations inside the process; not related to any date."""
    return time.monotonic_ns()


def elapsed_ms() -> int:
    """As ``elapsed_ns``, in milliseconds."""
    return time.monotonic_ns() // NANOSECONDS_PER_MS


def utc(instant: int) -> datetime:
    """An instant of the broker's clock as a date."""
    return datetime.fromtimestamp(instant / 1000, tz=UTC)
