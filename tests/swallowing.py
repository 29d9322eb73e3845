"""A way to a server that can go silent: connections stay up, new ones are accepted, and what is sent is taken and goes nowhere."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator


class SwallowingWay:
    """Listens on 127.0.0.1 and passes bytes to ``target`` and back, until it swallows.

    Args:
        target: Host and port, or the path of a Unix socket.
    """

    def __init__(self, target: tuple[str, int] | str) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._sockets: list[socket.socket] = []
        self._passes = threading.Event()
        self._passes.set()
        self._closes = False
        threading.Thread(target=self._accept, daemon=True).start()

    def swallow(self) -> None:
        """From now on nothing comes through, in either direction."""
        self._passes.clear()

    def close_each(self) -> None:
        """From now on each new connection is taken and closed, as by a balancer with nobody behind it."""
        self._closes = True

    def pass_on(self) -> None:
        """What was swallowed arrives now."""
        self._closes = False
        self._passes.set()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if self._closes:
                    client.close()
                    continue
                self._sockets.append(client)
                threading.Thread(target=self._connect, args=(client,), daemon=True).start()

    def _connect(self, client: socket.socket) -> None:
        self._passes.wait()
        server = socket.socket(socket.AF_UNIX if isinstance(self._target, str) else socket.AF_INET)
        self._sockets.append(server)
        with contextlib.suppress(OSError):
            server.connect(self._target)
            threading.Thread(target=self._pass, args=(server, client), daemon=True).start()
            self._pass(client, server)
            return
        client.close()

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self._passes.wait()
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._passes.set()
        for one in (self._listener, *self._sockets):
            one.close()


@contextlib.contextmanager
def swallowing_way(target: tuple[str, int] | str) -> Iterator[SwallowingWay]:
    way = SwallowingWay(target)
    try:
        yield way
    finally:
        way.close()
