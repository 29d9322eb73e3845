"""A TCP proxy that makes loopback far away: every byte arrives a fixed time later, in order, as many as you like in flight.

Distance only: nothing is slowed down beyond the delay, so what is pipelined stays pipelined.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

READ_BYTES: Final = 1 << 16
IN_FLIGHT_BYTES_MAX: Final = 64 << 20


class DelayLine:
    """One direction: what is read now is written ``delay_s`` later."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_s: float) -> None:
        self._reader = reader
        self._writer = writer
        self._delay_s = delay_s
        self._in_flight: deque[tuple[float, bytes]] = deque()  # (due, bytes); empty bytes mark the end
        self._bytes = 0
        self._changed = asyncio.Condition()

    async def run(self) -> None:
        """Carry until the reader's end."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._take_in())
            tasks.create_task(self._give_out())

    async def _take_in(self) -> None:
        loop = asyncio.get_running_loop()
        data = b"more"
        while data:
            try:
                data = await self._reader.read(READ_BYTES)
            except ConnectionError:
                data = b""
            async with self._changed:
                await self._changed.wait_for(lambda: self._bytes < IN_FLIGHT_BYTES_MAX)
                self._in_flight.append((loop.time() + self._delay_s, data))
                self._bytes += len(data)
                self._changed.notify_all()

    async def _give_out(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            async with self._changed:
                await self._changed.wait_for(lambda: bool(self._in_flight))
                due, data = self._in_flight.popleft()
                self._bytes -= len(data)
                self._changed.notify_all()
            await asyncio.sleep(max(0.0, due - loop.time()))
            with contextlib.suppress(ConnectionError):
                if not data:
                    self._writer.close()
                    return
                self._writer.write(data)
                await self._writer.drain()


class LatencyProxy:
    """Listens on a loopback port and forwards to ``host:port``, ``there_s`` towards it and ``back_s`` on the way back."""

    def __init__(self, host: str, port: int, *, there_s: float, back_s: float) -> None:
        self._target = (host, port)
        self._there_s = there_s
        self._back_s = back_s
        self._server: asyncio.Server | None = None

    async def start(self) -> int:
        """Begin to listen; the port."""
        self._server = await asyncio.start_server(self._forward, "127.0.0.1", 0)
        return int(self._server.sockets[0].getsockname()[1])

    def stop(self) -> None:
        """Listen no more."""
        if self._server is not None:
            self._server.close()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.close()
            return
        # Nobody awaits this task but the streams' own callback, which reports a cancellation as an error.
        with contextlib.suppress(asyncio.CancelledError):
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(DelayLine(reader, far_writer, self._there_s).run())
                tasks.create_task(DelayLine(far_reader, writer, self._back_s).run())
        writer.close()
        far_writer.close()


@contextlib.contextmanager
def far_away(host: str, port: int, *, there_s: float, back_s: float) -> Iterator[int]:
    """The proxy in a thread of its own, for callers that block; yields its port."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="latency", daemon=True)
    thread.start()
    proxy = LatencyProxy(host, port, there_s=there_s, back_s=back_s)
    try:
        yield asyncio.run_coroutine_threadsafe(proxy.start(), loop).result()
    finally:
        asyncio.run_coroutine_threadsafe(_shut_down(proxy), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _shut_down(proxy: LatencyProxy) -> None:
    proxy.stop()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
