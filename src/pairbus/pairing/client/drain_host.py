"""Runs the drain inside the process of a paired client: as a task of its event loop, or in a thread with its own loop.

The drain is built on this room, so it is imported only when a client asks for it (``enable_drain``).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol

from pairbus.pairing.events import Kind
from pairbus.pairing.naming import backlog_queue
from pairbus.pairing.options import milliseconds
from pairbus.sdk.async_client import asynchronous

if TYPE_CHECKING:
    from pairbus.drain.hosting import DrainThread
    from pairbus.drain.in_doubt import DoubtfulSends
    from pairbus.drain.shell import Drain
    from pairbus.pairing.client.client import PairedClient
    from pairbus.pairing.scheduled import ParkedSchedule


class DrainHost(Protocol):
    """A drain that a paired client hosts."""

    async def start(self, client: PairedClient[Any, Any]) -> None:
        """Start it; returns once it runs."""

    async def stop(self, seconds: float) -> None:
        """Stop it, within ``seconds``. Does nothing the second time."""

    async def quiet(self, seconds: float) -> bool:
        """After ``stop``: whether it has ended. Waits for that, at most ``seconds``."""

    def wake(self) -> None:
        """A destination is healthy again: send to it at once."""

    async def withdraw(self, handle: ParkedSchedule, seconds: float) -> bool:
        """Remove a message that the drain holds. False when it does not hold it, has ended, or takes too long."""

    def progress(self) -> tuple[int | None, float]:
        """The age in milliseconds of the oldest message that is not drained, and messages drained per second."""


class _Host:
    """What both kinds of host have in common."""

    _client: PairedClient[Any, Any]
    _drain: Drain

    def progress(self) -> tuple[int | None, float]:
        return self._drain.progress()

    def _build(self, primary: Any, secondary: Any) -> tuple[Drain, DoubtfulSends]:
        from pairbus.drain.hosting import EventObserver, build, those_that_open

        client, state = self._client, self._client._state
        # Some could not be created when the client was paired: another client may do that later.
        names = [backlog_queue(state.primary, index) for index in range(client.options.backlog_queue_count)]
        return build(
            primary,
            secondary,
            state.drained_queues,
            name=state.primary,
            identity=client._identity,
            counters=state.counters,
            ledger=client.ledger,
            not_found=client.not_found,
            time_to_live=client.options.time_to_live,
            is_blocked=state.is_failed_over,
            observer=EventObserver(state.emit, client._setup.read_in_vain, client._checks.found_unfit),
            order=client.options.order,
            follow_ms=milliseconds(client.options.fence_timeout),
            find=those_that_open(secondary, names),
        )

    def _started(self) -> None:
        state = self._client._state
        state.emit(
            Kind.SYPHON_STARTED, state.primary, f"{len(state.drained_queues)} backlog queues are drained"
        )

    def _stopped(self) -> None:
        state = self._client._state
        state.emit(Kind.SYPHON_STOPPED, state.primary, "the drain has ended")

    def _failed(self, error: Exception) -> None:
        text = f"the drain has failed: {error!r}; close the client and make a new one"
        state = self._client._state
        state.emit(Kind.SYPHON_STOPPED, state.primary, text, is_loud=True)


class TaskDrainHost(_Host):
    """A drain as a task of the client's event loop, on the client's own connections."""

    _running: asyncio.Task[None] | None = None
    _doubts: DoubtfulSends

    async def start(self, client: PairedClient[Any, Any]) -> None:
        self._client = client
        self._drain, self._doubts = self._build(client.primary, client.secondary)
        self._running = asyncio.get_running_loop().create_task(self._run(self._doubts))
        self._started()

    async def stop(self, seconds: float) -> None:
        from pairbus.drain.hosting import STOP_SHARE
        from pairbus.drain.shell import STOP_SECONDS

        running = self._running
        if running is None:
            return
        if running.get_loop().is_closed():
            # It has ended with its loop, perhaps in the middle.
            self._doubts.close()
        else:
            self._drain.stop(min(STOP_SECONDS, seconds * STOP_SHARE))
            _, late = await asyncio.wait([running], timeout=seconds)
            for task in late:
                task.cancel()
            await asyncio.wait([running], timeout=1.0)
        # Only now: a stop that is cancelled before can be repeated.
        if self._running is not None:
            self._running = None
            self._stopped()

    async def quiet(self, seconds: float) -> bool:  # noqa: ARG002 - it was cancelled
        running = self._running
        return running is None or running.done() or running.get_loop().is_closed()

    def wake(self) -> None:
        if self._running is not None and not self._running.get_loop().is_closed():
            self._drain.wake()

    async def withdraw(self, handle: ParkedSchedule, seconds: float) -> bool:
        detour = (handle.factory, handle.detour)
        try:
            async with asyncio.timeout(seconds):
                return await self._drain.withdraw(handle.queue, handle.message_id, detour)
        except TimeoutError:
            return False

    async def _run(self, doubts: DoubtfulSends) -> None:
        try:
            await self._drain.run()
        except Exception as error:  # noqa: BLE001 - reported: without a drain the backlog only grows
            self._failed(error)
        finally:
            doubts.close()


class ThreadDrainHost(_Host):
    """A drain in a thread and an event loop of its own, on connections of its own."""

    _thread: DrainThread | None = None
    _stopping: DrainThread | None = None

    async def start(self, client: PairedClient[Any, Any]) -> None:
        from pairbus.drain.hosting import DrainThread

        self._client = client
        thread = DrainThread(self._make, self._failed)
        self._drain = thread.start()
        self._thread = thread
        self._started()

    def _make(self) -> tuple[Drain, DoubtfulSends, list[Any]]:
        clients = [asynchronous(self._client.primary), asynchronous(self._client.secondary)]
        return *self._build(*clients), clients

    async def stop(self, seconds: float) -> None:
        thread = self._thread
        if thread is None:
            return
        self._stopping = thread
        thread.stop(seconds)
        # Only now: a stop that is interrupted before can be repeated.
        if self._thread is not None:
            self._thread = None
            self._stopped()

    async def quiet(self, seconds: float) -> bool:
        return self._stopping is None or self._stopping.wait(seconds)

    def wake(self) -> None:
        if self._thread is not None:
            self._thread.call(lambda drain: drain.wake())

    async def withdraw(self, handle: ParkedSchedule, seconds: float) -> bool:
        return self._thread is not None and self._thread.withdraw(handle, seconds)
