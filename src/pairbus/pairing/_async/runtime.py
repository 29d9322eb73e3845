"""How the asynchronous twin waits, wakes and runs things beside each other. ``_sync/runtime.py`` is its partner."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import suppress
from typing import Any, TypeVar

from azure.servicebus.aio._base_handler_async import ServiceBusSharedKeyCredential

_Result = TypeVar("_Result")


class Limits:
    """Bounds on calls of the SDK, which does not keep every one of its own timeouts."""

    def limit(self, _handler: object, seconds: float) -> asyncio.Timeout:
        """Give a call of ``_handler`` up after ``seconds``: an asynchronous context manager."""
        return asyncio.timeout(seconds)

    async def end(self, _seconds: float) -> None:
        """The client is closed. Nothing here outlives a call."""


async def bounded(work: Awaitable[_Result], seconds: float) -> _Result:
    """Wait for ``work``, at most ``seconds``: the SDK does not keep every one of its own timeouts."""
    async with asyncio.timeout(seconds):
        return await work


class Pulse:
    """Wakes everybody who asked before that moment."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def fire(self) -> None:
        event, self._event = self._event, asyncio.Event()
        event.set()

    def ticket(self) -> asyncio.Event:
        """To be taken before one looks at what may change: a ``fire`` between looking and waiting is not missed."""
        return self._event

    async def wait(self, ticket: asyncio.Event, seconds: float | None) -> None:
        """Wait for the first ``fire`` since ``ticket`` was taken, at most ``seconds``."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await ticket.wait()


async def together(
    work: Callable[..., Coroutine[Any, Any, None]], items: Iterable[object], seconds: float
) -> None:
    """Do ``work(item)`` for all items beside each other; what is not done after ``seconds`` is given up."""
    tasks = [asyncio.ensure_future(work(item)) for item in items]
    if not tasks:
        return
    try:
        await asyncio.wait(tasks, timeout=max(0.0, seconds))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def shared_key(name: str, key: str) -> ServiceBusSharedKeyCredential:
    """A key as the administration client takes it."""
    return ServiceBusSharedKeyCredential(name, key)


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
