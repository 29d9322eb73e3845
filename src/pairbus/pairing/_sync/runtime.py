"""How the synchronous twin waits, wakes and runs things beside each other. ``_async/runtime.py`` is its partner."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

_Result = TypeVar("_Result")


def steady_ms() -> int:
    """Milliseconds of a clock that never steps."""
    return time.monotonic_ns() // 1_000_000


def wall_ms() -> int:
    """The time of day, in milliseconds since the Unix epoch."""
    return time.time_ns() // 1_000_000


def bounded(work: _Result, _seconds: float) -> _Result:
    """The result itself: a call that blocks has ended when this is reached; its own timeout bounds it."""
    return work


class Pulse:
    """Wakes everybody who waits at that moment."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def fire(self) -> None:
        """Wake them."""
        event, self._event = self._event, threading.Event()
        event.set()

    def wait(self, seconds: float | None) -> None:
        """Wait for the next ``fire``, at most ``seconds``."""
        self._event.wait(seconds)


class Tasks:
    """Things that run in threads of their own until they end; each must notice by itself that it should."""

    def __init__(self) -> None:
        self._running: set[threading.Thread] = set()
        self._lock = threading.Lock()

    def spawn(self, work: Callable[..., None], *arguments: object) -> None:
        """Run ``work(*arguments)`` in the background."""
        thread = threading.Thread(target=self._run, args=(work, arguments), name="pairbus", daemon=True)
        with self._lock:
            self._running.add(thread)
        thread.start()

    def stop(self, seconds: float) -> None:
        """Wait for the end of what runs, at most ``seconds``."""
        until = time.monotonic() + seconds
        with self._lock:
            others = [thread for thread in self._running if thread is not threading.current_thread()]
        for thread in others:
            thread.join(max(0.0, until - time.monotonic()))

    def __len__(self) -> int:
        return len(self._running)

    def _run(self, work: Callable[..., None], arguments: tuple[object, ...]) -> None:
        try:
            work(*arguments)
        finally:
            with self._lock:
                self._running.discard(threading.current_thread())
