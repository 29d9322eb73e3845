"""A clock that only a test moves."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from pairbus.errors import UsageError


class VirtualClock:
    """Milliseconds since the Unix epoch that pass only by ``advance``. Safe to use from any thread.

    A broker that runs on it does its timed work (expired locks, due schedules) when the clock is moved.
    It starts at the real time unless another time is given, because the official SDK compares the ends of locks
    with its own clock; tokens made by the SDK expire after an hour on either.
    """

    def __init__(self, now: int | None = None) -> None:
        self._now = int(time.time() * 1000) if now is None else now
        self._lock = threading.Lock()
        self._listeners: list[Callable[[], None]] = []

    def __call__(self) -> int:
        """The instant, in milliseconds: the form in which a broker asks."""
        return self._now

    def now(self) -> int:
        """The instant, in milliseconds."""
        return self._now

    def advance(self, ms: int) -> int:
        """Let time pass. Returns the new instant once all listeners have run."""
        if ms < 0:
            raise UsageError(f"a clock does not run backwards: advance({ms}); give 0 or more milliseconds")
        with self._lock:
            self._now += ms
            listeners = list(self._listeners)
        for listener in listeners:
            listener()
        return self._now

    def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call ``listener`` after every ``advance``, in the thread that advances. Returns what undoes it."""
        with self._lock:
            self._listeners.append(listener)
        return lambda: self._unsubscribe(listener)

    def _unsubscribe(self, listener: Callable[[], None]) -> None:
        with self._lock:
            if listener in self._listeners:
                self._listeners.remove(listener)
