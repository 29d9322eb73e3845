"""How the asynchronous twin waits, wakes and runs things beside each other. ``_sync/runtime.py`` is its partner."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, Final, TypeVar

_Result = TypeVar("_Result")

GRACE_SECONDS: Final = 1.0
"""How much a plain send may overrun its timeout before it is cut off."""


def steady_ms() -> int:
    """Milliseconds of a clock that never steps."""
    return time.monotonic_ns() // 1_000_000


def wall_ms() -> int:
    """The time of day, in milliseconds since the Unix epoch."""
    return time.time_ns() // 1_000_000


class Limits:
    """Bounds on calls of the SDK, which does not keep every one of its own timeouts."""

    def limit(self, _handler: object, seconds: float) -> asyncio.Timeout:
        """Give a call of ``_handler`` up after ``seconds``: an asynchronous context manager."""
        return asyncio.timeout(seconds)


class Slot:
    """Bounds the plain sends of one sender; what it costs is paid by every send."""

    __slots__ = ()

    def __init__(self, limits: Limits) -> None:
        """The asynchronous twin needs nothing shared: each task carries its own timeout."""

    async def send(self, sender: Any, message: Any, seconds: float, options: dict[str, Any]) -> None:
        """Send, and give up a little after the timeout that the SDK was given."""
        async with asyncio.timeout(seconds + GRACE_SECONDS):
            await sender.send_messages(message, timeout=seconds, **options)


async def bounded(work: Awaitable[_Result], seconds: float) -> _Result:
    """Wait for ``work``, at most ``seconds``: the SDK does not keep every one of its own timeouts."""
    async with asyncio.timeout(seconds):
        return await work


class Pulse:
    """Wakes everybody who waits at that moment."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def fire(self) -> None:
        """Wake them."""
        event, self._event = self._event, asyncio.Event()
        event.set()

    async def wait(self, seconds: float | None) -> None:
        """Wait for the next ``fire``, at most ``seconds``."""
        event = self._event
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await event.wait()


class Tasks:
    """Things that run in the background until they end or are stopped."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()

    def spawn(self, work: Callable[..., Coroutine[Any, Any, None]], *arguments: object) -> None:
        """Run ``work(*arguments)`` in the background."""
        task = asyncio.get_running_loop().create_task(work(*arguments))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def stop(self, seconds: float) -> None:
        """Cancel what runs and wait for its end, at most ``seconds``."""
        others = {task for task in self._running if task is not asyncio.current_task()}
        for task in others:
            task.cancel()
        if others:
            await asyncio.wait(others, timeout=seconds)

    def __len__(self) -> int:
        return len(self._running)
