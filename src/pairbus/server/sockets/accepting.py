"""Takes connections from one listening socket, and waits a little when the system has no means for more.

The event loop's own server tries again for every place in the backlog when there is no file descriptor left, and logs each try with
its traceback: more than a thousand records a second.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Final

from pairbus.server.config.addresses import format_address

logger = logging.getLogger(__name__)

ACCEPT_BACKLOG: Final = 1024
"""Connections that the system holds until they are accepted."""
ACCEPTS_MAX: Final = 8
"""Connections accepted in one round of the loop, about 0.2 ms each; clients have their turn in between."""
PAUSE_SECONDS: Final = 1.0
"""How long nothing is accepted after the system refused."""


class Acceptor:
    """Accepts on the running loop from the moment it is made until ``close``.

    Args:
        sock: Bound and non-blocking; it belongs to the acceptor from now on.
        make_protocol: Makes the protocol for one connection.
        pause_seconds: See ``PAUSE_SECONDS``; tests have less time.
    """

    def __init__(
        self,
        sock: socket.socket,
        make_protocol: Callable[[], asyncio.BaseProtocol],
        pause_seconds: float = PAUSE_SECONDS,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._socket = sock
        self._make_protocol = make_protocol
        self._pause_seconds = pause_seconds
        self._timer: asyncio.TimerHandle | None = None
        self._starting: set[asyncio.Task[object]] = set()
        """Held here, for the loop itself holds tasks weakly."""
        self.pauses = 0
        sock.listen(ACCEPT_BACKLOG)
        self._resume()

    def close(self) -> None:
        """Accept no more and give the address back. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket)
            self._socket.close()

    def _resume(self) -> None:
        self._timer = None
        self._loop.add_reader(self._socket, self._accept)

    def _accept(self) -> None:
        for _ in range(ACCEPTS_MAX):
            try:
                connection, _ = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._pause(error)
                return
            connection.setblocking(False)
            task = self._loop.create_task(self._start(connection))
            self._starting.add(task)
            task.add_done_callback(self._starting.discard)

    def _pause(self, error: OSError) -> None:
        # The connection waits in the backlog meanwhile. Without a pause the loop would come back here at once, for ever.
        self.pauses += 1
        self._loop.remove_reader(self._socket)
        self._timer = self._loop.call_later(self._pause_seconds, self._resume)
        logger.warning(
            "no connection can be accepted for a moment",
            extra={
                "event": "listener.paused",
                "address": format_address(*self._socket.getsockname()[:2]),
                "reason": error.strerror or str(error),
                "seconds": self._pause_seconds,
            },
        )

    async def _start(self, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._make_protocol, connection)
        except OSError as error:
            connection.close()
            logger.debug(
                "a connection ended as it began", extra={"event": "listener.lost", "reason": str(error)}
            )
