"""How the synchronous twin waits, wakes and runs things beside each other. ``_async/runtime.py`` is its partner."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

from pairbus.pairing import wire

_Result = TypeVar("_Result")

WATCH_SECONDS: Final = 0.1
IDLE_TURNS: Final = 20


def steady_ms() -> int:
    """Milliseconds of a clock that never steps."""
    return time.monotonic_ns() // 1_000_000


def wall_ms() -> int:
    """The time of day, in milliseconds since the Unix epoch."""
    return time.time_ns() // 1_000_000


class Limits:
    """Bounds on calls of the SDK, which waits without a limit for the first words of a silent peer.

    One thread watches the calls in progress and cuts the socket of one that overruns; it ends when there are none.
    """

    def __init__(self) -> None:
        self._calls: dict[int, tuple[float, Any]] = {}
        self._lock = threading.Lock()
        self._watcher: threading.Thread | None = None

    def limit(self, handler: Any, seconds: float) -> _Call:
        """Cut a call of ``handler`` off after ``seconds``: a context manager."""
        return _Call(self, handler, time.monotonic() + seconds)

    def enter(self, call: _Call) -> None:
        """A call begins. Cheap: it stands on the way of every send."""
        self._calls[id(call)] = (call.until, call.handler)
        if self._watcher is None:
            with self._lock:
                if self._watcher is None:
                    self._watcher = threading.Thread(target=self._watch, name="pairbus-limits", daemon=True)
                    self._watcher.start()

    def leave(self, call: _Call) -> None:
        """A call has ended."""
        self._calls.pop(id(call), None)

    def _watch(self) -> None:
        idle = 0
        while True:
            time.sleep(WATCH_SECONDS)
            now = time.monotonic()
            for key, (until, handler) in list(self._calls.items()):
                if until <= now:
                    self._calls.pop(key, None)
                    wire.cut_socket(handler)
            idle = 0 if self._calls else idle + 1
            if idle > IDLE_TURNS:
                with self._lock:
                    if not self._calls:
                        self._watcher = None
                        return


class _Call:
    """One call in progress."""

    __slots__ = ("_limits", "handler", "until")

    def __init__(self, limits: Limits, handler: Any, until: float) -> None:
        self._limits = limits
        self.handler = handler
        self.until = until

    def __enter__(self) -> None:
        self._limits.enter(self)

    def __exit__(self, *details: object) -> None:
        self._limits.leave(self)


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
