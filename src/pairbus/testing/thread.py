"""A broker in a thread of the test's own process, on an event loop of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from pairbus.errors import BrokerNotReady
from pairbus.local.hosts import START_SECONDS_MAX, STOP_SECONDS_MAX, Setup
from pairbus.server.assemble import assemble
from pairbus.server.config.addresses import parse_address
from pairbus.server.config.options import Options, load_declarations
from pairbus.server.server import Server

if TYPE_CHECKING:
    from pairbus.server.ready import ReadyInfo
    from pairbus.testing.clock import VirtualClock

T = TypeVar("T")


class ThreadHost:
    """Runs ``pairbus.server.server.Server`` beside the test. Quick to start; cannot be paused."""

    def __init__(self, clock: VirtualClock | None) -> None:
        self._clock = clock
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._server: Server | None = None
        self._leave_clock: Callable[[], None] = _nothing

    def start(self, setup: Setup) -> ReadyInfo:
        """Start a loop and a server on it; return once it serves."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name=f"pairbus-{setup.namespace}", daemon=True
        )
        self._thread.start()
        try:
            return self._call(self._begin(setup), START_SECONDS_MAX)
        except BaseException:
            self._end_loop()
            raise

    def stop(self) -> None:
        """End the server in order, then its thread. Nothing happens when it is down."""
        if self._server is not None:
            self._end(self._server.stop())

    def kill(self) -> None:
        """End the server as if its process had died: what is not durable is forgotten."""
        if self._server is not None:
            self._end(self._server.kill())

    async def _begin(self, setup: Setup) -> ReadyInfo:
        options = Options(
            namespace=setup.namespace,
            data=setup.data,
            amqp=parse_address(setup.amqp, "amqp"),
            http=parse_address(setup.http, "http"),
            faults=setup.faults,
            audit=setup.audit,
            declarations=load_declarations(str(setup.config), {}),
        )
        server = Server(options, assemble=assemble, clock=self._clock)
        ready = await server.start()
        self._server = server
        if self._clock is not None:
            self._leave_clock = self._clock.subscribe(server.wake)
        return ready

    def _end(self, ending: Coroutine[Any, Any, None]) -> None:
        self._leave_clock()
        self._leave_clock = _nothing
        try:
            self._call(ending, STOP_SECONDS_MAX)
        finally:
            self._server = None
            self._end_loop()

    def _call(self, coroutine: Coroutine[Any, Any, T], seconds_max: float) -> T:
        assert self._loop is not None
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result(seconds_max)
        except TimeoutError:
            future.cancel()
            raise BrokerNotReady(f"the broker's thread did not answer within {seconds_max} s") from None

    def _end_loop(self) -> None:
        assert self._loop is not None
        assert self._thread is not None
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(STOP_SECONDS_MAX)
        if not self._thread.is_alive():
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()
        self._loop = self._thread = None


def _nothing() -> None:
    """Stands where there is no clock to leave."""
