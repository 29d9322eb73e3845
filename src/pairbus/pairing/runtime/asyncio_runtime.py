"""The runtime on asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager, suppress
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from pairbus.pairing.runtime.asyncio_link import AsyncioLink
from pairbus.pairing.runtime.asyncio_writes import Writes
from pairbus.sdk.management.admin import aio_admin_client

if TYPE_CHECKING:
    from pairbus.pairing.runtime.ports import Work
    from pairbus.spool.store import Append, Spool


class AsyncioRuntime:
    """See ``Runtime``. Nothing here outlives a call, except the tasks that were spawned and the work that is shared."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()
        self._running: set[asyncio.Task[None]] = set()
        self._writes: dict[Spool, Writes] = {}
        self._shared: asyncio.Task[None] | None = None
        self._links: WeakSet[AsyncioLink] = WeakSet()
        self._loop: asyncio.AbstractEventLoop | None = None

    def link(
        self,
        sender: Any,
        is_wanted: Callable[[], bool],
        is_final: Callable[[BaseException], bool] | None = None,
    ) -> AsyncioLink:
        link = AsyncioLink(sender, is_wanted, is_final)
        self._links.add(link)
        return link

    def notify(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        with suppress(RuntimeError):  # those who waited belong to a loop that is closed
            changed.set()
        for link in list(self._links):
            with suppress(RuntimeError):
                link.look_again()

    def change_token(self) -> asyncio.Event:
        return self._changed

    async def wait_for_change(self, token: asyncio.Event, seconds: float | None) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await token.wait()

    def limit(self, _handler: Any, seconds: float) -> asyncio.Timeout:
        return asyncio.timeout(seconds)

    async def call(self, work: Callable[..., Any], *given: Any, **options: Any) -> Any:
        return await work(*given, **options)

    async def blocking(self, work: Callable[..., Any], *given: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(None, work, *given)

    async def commit(self, spool: Spool, append: Append) -> None:
        if not append.is_done:
            loop = asyncio.get_running_loop()
            writes = self._writes.get(spool)
            if writes is None or writes.loop is not loop:
                writes = self._writes[spool] = Writes(spool, loop)
            await writes.join(append)
        if append.error is not None:
            raise append.error

    async def collect(self, pages: Any) -> list[Any]:
        return [item async for item in pages]

    def entered(self, resource: Any) -> AbstractAsyncContextManager[Any]:
        return resource  # type: ignore[no-any-return]  # the SDK's own

    def admin_client(self, client: Any, options: dict[str, Any], host: str | None) -> Any:
        return aio_admin_client(client, options, host)

    async def together(self, work: Work, items: Iterable[object], seconds: float) -> None:
        tasks = [asyncio.ensure_future(work(item)) for item in items]
        if not tasks:
            return
        try:
            await asyncio.wait(tasks, timeout=max(0.0, seconds))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def shared(self, work: Work, seconds: float) -> bool:
        loop, task = asyncio.get_running_loop(), self._shared
        limit: float | None = seconds
        if task is None or task.done() or task.get_loop() is not loop:
            task = self._shared = loop.create_task(work(seconds))
            limit = None  # the work has its own bound, and goes on when this caller is cancelled
        await asyncio.wait([task], timeout=limit)
        if not task.done():
            return False
        if not task.cancelled():
            task.result()
        return True

    def spawn(self, work: Work, *arguments: object) -> None:
        task = asyncio.get_running_loop().create_task(work(*arguments))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def stop_tasks(self, seconds: float) -> None:
        others = {task for task in self._left() if task is not asyncio.current_task()}
        for task in others:
            task.cancel()
        if others:
            await asyncio.wait(others, timeout=seconds)

    async def quiet(self, seconds: float) -> bool:
        left = self._left()
        if left and asyncio.current_task() not in left:
            await asyncio.wait(left, timeout=seconds)
        return all(task.done() for task in left)

    def _left(self) -> set[asyncio.Task[None]]:
        # What belongs to a loop that is closed never goes on: a program may enter its client once per ``asyncio.run``.
        return {task for task in self._running if not task.get_loop().is_closed()}

    def begin(self) -> None:
        self._loop = asyncio.get_running_loop()

    def is_over(self) -> bool:
        return self._loop is not None and self._loop.is_closed()

    def caller(self) -> object:
        return asyncio.current_task()

    async def end(self, _seconds: float) -> None:
        """Nothing watches over the calls."""

    def drain_host(self) -> Any:
        from pairbus.pairing.client.drain_host import TaskDrainHost  # noqa: PLC0415 - it imports this room

        return TaskDrainHost()
