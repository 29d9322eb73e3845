"""A clock that only a test moves."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from pairbus.testing.checks import check_whole

NOW_MAX_MS: Final = 253_370_764_800_000
"""The year 9999, the last that dates of Service Bus have."""


class VirtualClock:
    """Milliseconds since the Unix epoch that pass only by ``advance``. Safe to use from any thread.

    A broker that runs on it does its timed work (expired locks, due schedules) when the clock is moved.
    It starts at the real time unless another time is given, because the official SDK compares the ends of locks
    with its own clock; tokens made by the SDK expire after an hour on either.

    Args:
        now: Where it begins, in milliseconds since 1970.
    """

    def __init__(self, now: int | None = None) -> None:
        if now is not None:
            check_whole("now", now, 0, NOW_MAX_MS, ", in milliseconds since 1970")
        self._now = int(time.time() * 1000) if now is None else now
        self._lock = threading.Lock()
        self._listeners: list[Callable[[], None]] = []

    def __call__(self) -> int:
        """The instant, in milliseconds: the form in which a broker asks."""
        return self._now

    def now(self) -> int:
        """Return the time of the clock, in milliseconds since 1970."""
        return self._now

    def advance(self, ms: int) -> int:
        """Let time pass. Returns the new time, once the broker has noticed it.

        Args:
            ms: How much, in milliseconds.

        Raises:
            UsageError: ``ms`` is negative, or leads beyond the year 9999.
        """
        with self._lock:
            hint = " of milliseconds: a clock does not run backwards, nor beyond the year 9999"
            check_whole("ms", ms, 0, NOW_MAX_MS - self._now, hint)
            self._now += ms
            listeners = list(self._listeners)
        for listener in listeners:
            listener()
        return self._now

    def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call a function after every ``advance``, in the thread that advances. Brokers do so.

        Args:
            listener: The function, without arguments.

        Returns:
            A function that ends it.
        """
        with self._lock:
            self._listeners.append(listener)
        return lambda: self._unsubscribe(listener)

    def _unsubscribe(self, listener: Callable[[], None]) -> None:
        with self._lock:
            if listener in self._listeners:
                self._listeners.remove(listener)
