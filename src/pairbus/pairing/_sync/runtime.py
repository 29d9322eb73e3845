"""How the synchronous twin waits, wakes and runs things beside each other. ``_async/runtime.py`` is its partner."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar
from weakref import WeakSet

from azure.servicebus._base_handler import ServiceBusSharedKeyCredential

from pairbus.sdk import handlers

_Result = TypeVar("_Result")

NEVER: Final = float("inf")
WATCH_SECONDS: Final = 0.1
IDLE_TURNS: Final = 20


class Limits:
    """Bounds on calls of the SDK, which waits without a limit for the first words of a silent peer.

    One thread watches the calls in progress and cuts the socket of one that overruns; it ends when there are none.
    """

    def __init__(self) -> None:
        self._calls: dict[int, tuple[float, Any]] = {}
        self._lock = threading.Lock()
        self.watcher: threading.Thread | None = None
        self._ended = threading.Event()
        self._slots: WeakSet[Slot] = WeakSet()
        _everywhere.add(self)

    def limit(self, handler: Any, seconds: float) -> _Call:
        """Cut a call of ``handler`` off after ``seconds``: a context manager."""
        return _Call(self, handler, time.monotonic() + seconds)

    def slot(self) -> Slot:
        """What bounds the plain sends of one more link."""
        return Slot(self)

    def add(self, slot: Slot) -> None:
        """Watch the plain sends of one more sender."""
        # Under the lock: a set that grows while the watcher goes through it would end the watcher.
        with self._lock:
            self._slots.add(slot)

    def enter(self, call: _Call) -> None:
        """A call begins. Cheap: it stands on the way of every send."""
        self._calls[id(call)] = (call.until, call.handler)
        if self.watcher is None:
            self.start()

    def begin_anew(self) -> None:
        """In a forked process: the parent's watcher is not here, and nobody will give its lock back."""
        self._lock = threading.Lock()
        self._calls = {}
        self.watcher = None
        self._ended = threading.Event()
        for slot in list(self._slots):
            slot.turn, slot.until = threading.Lock(), NEVER

    def leave(self, call: _Call) -> None:
        self._calls.pop(id(call), None)

    def start(self) -> None:
        with self._lock:
            if self.watcher is None:
                self.watcher = threading.Thread(target=self._watch, name="pairbus-limits", daemon=True)
                self.watcher.start()

    def end(self, seconds: float) -> None:
        """The client is closed: the watcher ends with the last call in progress. Wait for that, at most ``seconds``."""
        watcher = self.watcher
        self._ended.set()
        if watcher is not None and watcher is not threading.current_thread():
            watcher.join(max(0.0, seconds))

    def _watch(self) -> None:
        idle = 0
        while idle <= IDLE_TURNS:
            if not self._ended.wait(WATCH_SECONDS):
                idle = 0 if self._look(time.monotonic()) else idle + 1
            elif self._look(time.monotonic()):
                time.sleep(WATCH_SECONDS)
            else:
                break
        with self._lock:
            # A send that begins in this moment finds no watcher and starts the next one.
            self.watcher = None
        if self._is_busy():
            self.start()

    def _look(self, now: float) -> bool:
        """Cut what overruns; whether there is anything to watch."""
        for key, (until, handler) in list(self._calls.items()):
            if until <= now:
                self._calls.pop(key, None)
                handlers.cut_socket(handler)
        for slot in self._watched():
            if slot.until <= now:
                slot.until = NEVER
                handlers.cut_socket(slot.sender)
        return self._is_busy()

    def _is_busy(self) -> bool:
        return bool(self._calls) or any(slot.until < NEVER for slot in self._watched())

    def _watched(self) -> list[Slot]:
        with self._lock:
            return list(self._slots)


_everywhere: WeakSet[Limits] = WeakSet()


def _forked() -> None:
    for limits in list(_everywhere):
        limits.begin_anew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


class Slot:
    """Bounds the plain sends of one sender; what it costs is paid by every send."""

    __slots__ = ("__weakref__", "_limits", "sender", "turn", "until")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.sender: Any = None
        self.until = NEVER
        self.turn = threading.Lock()
        """Held by the one thread that calls the sender."""
        limits.add(self)

    def send(
        self, sender: Any, message: Any, seconds: float, cut_seconds: float, options: dict[str, Any]
    ) -> None:
        """Send, and cut the connection after ``cut_seconds``: a little more than the SDK was given."""
        self.sender = sender
        self.until = time.monotonic() + cut_seconds
        if self._limits.watcher is None:
            self._limits.start()
        try:
            sender.send_messages(message, timeout=seconds, **options)
        finally:
            self.until = NEVER


class _Call:
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
    """Wakes everybody who asked before that moment."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def fire(self) -> None:
        event, self._event = self._event, threading.Event()
        event.set()

    def ticket(self) -> threading.Event:
        """To be taken before one looks at what may change: a ``fire`` between looking and waiting is not missed."""
        return self._event

    def wait(self, ticket: threading.Event, seconds: float | None) -> None:
        """Wait for the first ``fire`` since ``ticket`` was taken, at most ``seconds``."""
        ticket.wait(seconds)


def together(work: Callable[..., None], items: Iterable[object], seconds: float) -> None:
    """Do ``work(item)`` for all items beside each other; what is not done after ``seconds`` is left behind."""
    until = time.monotonic() + seconds
    threads = [
        threading.Thread(target=work, args=(item,), name="pairbus-closing", daemon=True) for item in items
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))


def shared_key(name: str, key: str) -> ServiceBusSharedKeyCredential:
    """A key as the administration client takes it."""
    return ServiceBusSharedKeyCredential(name, key)


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
        try:
            thread.start()
        except RuntimeError:
            with self._lock:
                self._running.discard(thread)
            raise

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
