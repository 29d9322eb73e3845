"""The event loop of a simulated machine: as much of asyncio's as ``server.loop.Driver`` uses, on virtual time.

The driver that ships runs on it unchanged, and so does its rule of when this node may speak.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import cast

from pairbus.server import committer
from pairbus.server.cluster.ownership import keeper, reporter
from pairbus.storage.table import bodies
from tests.simulation.virtual_time import Machine, Queues, Threading


class Handle:
    """A call that is going to happen."""

    __slots__ = ("_action", "_arguments", "_is_cancelled")

    def __init__(self, action: Callable[..., object], arguments: tuple[object, ...]) -> None:
        self._action = action
        self._arguments = arguments
        self._is_cancelled = False

    def cancel(self) -> None:
        self._is_cancelled = True

    def cancelled(self) -> bool:
        return self._is_cancelled

    def run(self) -> None:
        if not self._is_cancelled:
            self._action(*self._arguments)


class MachineLoop:
    """Calls happen on the machine, by its clock: later while it is paused, never once it is dead."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def time(self) -> float:
        return self._machine.clock_ms() / 1000

    def call_soon(self, action: Callable[..., object], *arguments: object) -> Handle:
        return self.call_later(0, action, *arguments)

    def call_soon_threadsafe(self, action: Callable[..., object], *arguments: object) -> Handle:
        return self.call_later(0, action, *arguments)

    def call_at(self, when: float, action: Callable[..., object], *arguments: object) -> Handle:
        return self.call_later(when - self.time(), action, *arguments)

    def call_later(self, seconds: float, action: Callable[..., object], *arguments: object) -> Handle:
        handle = Handle(action, arguments)
        self._machine.after(max(seconds, 0) * 1000, self._machine.post, handle.run)
        return handle

    def as_running(self) -> RunningLoop:
        """While this lasts, ``asyncio.get_running_loop`` gives this loop."""
        return RunningLoop(self)


class RunningLoop:
    """See ``MachineLoop.as_running``."""

    def __init__(self, loop: MachineLoop) -> None:
        self._loop = loop

    def __enter__(self) -> None:
        asyncio._set_running_loop(cast("asyncio.AbstractEventLoop", self._loop))

    def __exit__(self, *_: object) -> None:
        asyncio._set_running_loop(None)


@contextmanager
def virtual_threads() -> Iterator[None]:
    """While this lasts, the threads that the broker starts are virtual ones, of the machine that starts them."""
    threading, queues = Threading(), Queues()
    modules: list[tuple[ModuleType, str, object]] = [
        (committer, "threading", threading),
        (committer, "queue", queues),
        (keeper, "threading", threading),
        (reporter, "threading", threading),
        (bodies, "threading", threading),
    ]
    originals = [getattr(module, name) for module, name, _ in modules]
    for module, name, stand_in in modules:
        setattr(module, name, stand_in)
    try:
        yield
    finally:
        for (module, name, _), original in zip(modules, originals, strict=True):
            setattr(module, name, original)
