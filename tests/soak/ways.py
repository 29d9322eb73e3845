"""Ways of the cluster soak that can be cut: a port that leads to another one, or a network namespace whose link goes down.

In the first case nothing passes and nobody is told; in the second packets are lost as they are between machines, which needs root.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
from typing import Final

CHUNK_BYTES: Final = 65_536
CONNECT_SECONDS_MAX: Final = 1.0
NETWORK: Final = "10.231"
LOOPBACK: Final = "127.0.0.1"


class Way:
    """A port that leads to another one, until it is cut."""

    def __init__(self, host: str = LOOPBACK, target_host: str = LOOPBACK, target: int = 0) -> None:
        self._listener = socket.create_server((host, 0))
        self.host = host
        self.port: int = self._listener.getsockname()[1]
        self._target_host = target_host
        self.target = target
        """The port it leads to; 0: connections are refused."""
        self._is_open = threading.Event()
        self._is_open.set()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        self._is_open.clear()

    def mend(self) -> None:
        self._is_open.set()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        self._is_open.wait()
        try:
            server = socket.create_connection((self._target_host, self.target), CONNECT_SECONDS_MAX)
        except OSError:
            client.close()
            return
        server.settimeout(None)
        for one in (client, server):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=self._pass, args=(client, server), daemon=True).start()
        self._pass(server, client)

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(CHUNK_BYTES):
                self._is_open.wait()
                target.sendall(data)
        self._is_open.wait()
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


class NodeWays:
    """How one node reaches the two places at which a database server may be."""

    def __init__(self) -> None:
        self.ways = (Way(), Way())

    def hosts(self) -> str:
        """For the address of the database."""
        return ",".join(f"{way.host}:{way.port}" for way in self.ways)

    def lead(self, *ports: int) -> None:
        for way, port in zip(self.ways, ports, strict=True):
            way.target = port

    def cut(self) -> None:
        for way in self.ways:
            way.cut()

    def mend(self) -> None:
        for way in self.ways:
            way.mend()

    def close(self) -> None:
        """Give back what it has of the system."""


class NamespaceWays(NodeWays):
    """The same through a network namespace: the node talks to an address there, and its link can go down."""

    def __init__(self, number: int) -> None:
        self._name = f"pairbus-{os.getpid()}-{number}"
        self._inner = f"pb{os.getpid() % 10_000}i{number}"
        outer = f"pb{os.getpid() % 10_000}o{number}"
        here, there = f"{NETWORK}.{number}.1", f"{NETWORK}.{number}.2"
        _ip("netns", "add", self._name)
        try:
            _ip("link", "add", outer, "type", "veth", "peer", "name", self._inner, "netns", self._name)
            _ip("address", "add", f"{here}/30", "dev", outer)
            _ip("link", "set", outer, "up")
            self._inside("ip", "address", "add", f"{there}/30", "dev", self._inner)
            self._inside("ip", "link", "set", self._inner, "up")
            self.ways = (Way(here), Way(here))
            command = ["ip", "netns", "exec", self._name, sys.executable, __file__, there, here]
            command += [str(way.port) for way in self.ways]
            self._forwarder = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            assert self._forwarder.stdout is not None, "it is a pipe"
            ports = self._forwarder.stdout.readline().split()
            self._hosts = ",".join(f"{there}:{port}" for port in ports)
        except BaseException:
            _ip("netns", "delete", self._name)
            raise

    def _inside(self, *command: str) -> None:
        _ip("netns", "exec", self._name, *command)

    def hosts(self) -> str:
        """See NodeWays."""
        return self._hosts

    def cut(self) -> None:
        self._inside("ip", "link", "set", self._inner, "down")

    def mend(self) -> None:
        self._inside("ip", "link", "set", self._inner, "up")

    def close(self) -> None:
        """See NodeWays."""
        self._forwarder.kill()
        self._forwarder.wait()
        _ip("netns", "delete", self._name)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


def can_use_namespaces() -> bool:
    """Whether this machine lets us make network namespaces."""
    name = f"pairbus-{os.getpid()}-try"
    try:
        _ip("netns", "add", name)
        _ip("netns", "delete", name)
    except (OSError, subprocess.CalledProcessError):
        return False
    return True


def main() -> None:
    """Forward inside a namespace: HOST TARGET_HOST PORT PORT. Prints the ports it listens on."""
    host, target_host, *targets = sys.argv[1:]
    ways = [Way(host, target_host, int(target)) for target in targets]
    print(*(way.port for way in ways), flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
