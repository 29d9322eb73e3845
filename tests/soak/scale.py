"""Large numbers on one broker: a million queued messages, a restart, thousands of idle connections.

    python tests/soak/scale.py [--messages 1000000] [--connections 5000]

Prints what it measured and ends with 1 when a bound of the promise is broken: under 600 MiB resident with a million
1 KB messages queued, first delivery within 30 s of a restart after SIGKILL (B18, B62, B68), every connection held.
"""

from __future__ import annotations

import argparse
import resource
import selectors
import socket
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from azure.servicebus import ServiceBusMessage

from bench.loadgen import Load, LoadGenerator
from bench.peer import Peer
from pairbus.testing import Namespace, Queue
from tests.simulation.wire import ClientConnection

RESIDENT_MIB_MAX = 600
RESTART_SECONDS_MAX = 30
HANDSHAKE_SECONDS_MAX = 120
BATCH = 100
"""Connections opened together."""


def resident_mib(pid: int) -> float:
    """Resident memory of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise AssertionError("no VmRSS")


def key_of(connection_string: str) -> str:
    """The shared access key in a connection string."""
    parts = dict(part.partition("=")[::2] for part in connection_string.split(";"))
    return parts["SharedAccessKey"]


def fill(namespace: Namespace, messages: int) -> None:
    """Send as fast as the broker takes them."""
    host, _, port = namespace.amqp_address.rpartition(":")
    with tempfile.TemporaryDirectory() as directory:
        peer = Peer(
            name="PairBus",
            host=host,
            port=int(port),
            user="RootManageSharedAccessKey",
            password=key_of(namespace.connection_string),
            address="orders",
            pid=namespace.pid,
        )
        LoadGenerator(Path(directory)).run(peer, Load(mode="send", window=1000, count=messages))


def first_delivery(namespace: Namespace) -> None:
    """Receive and complete one message through the official client."""
    with namespace.client() as client, client.get_queue_receiver("orders", max_wait_time=30) as receiver:
        receiver.complete_message(receiver.receive_messages(1)[0])


class Idle:
    """Connections that have opened and then keep quiet."""

    def __init__(self, namespace: Namespace) -> None:
        host, _, port = namespace.amqp_address.rpartition(":")
        self._address = (host, int(port))
        self._key = key_of(namespace.connection_string)
        self.sockets: list[socket.socket] = []

    def open(self, count: int) -> None:
        """Bring up ``count`` more, a batch at a time."""
        deadline = time.monotonic() + HANDSHAKE_SECONDS_MAX
        while count:
            batch = min(BATCH, count)
            self._open_batch(batch, deadline)
            count -= batch

    def _open_batch(self, count: int, deadline: float) -> None:
        selector = selectors.DefaultSelector()
        for _ in range(count):
            peer = socket.create_connection(self._address)
            client = ClientConnection(user="RootManageSharedAccessKey", password=self._key)
            client.session().sender("orders")
            peer.sendall(client.take_output())
            selector.register(peer, selectors.EVENT_READ, client)
            self.sockets.append(peer)
        pending = count
        while pending and time.monotonic() < deadline:
            for key, _ in selector.select(timeout=1):
                ready, client = key.fileobj, key.data
                assert isinstance(ready, socket.socket)
                client.receive(ready.recv(65536))
                output = client.take_output()
                if output:
                    ready.sendall(output)
                if client.remote_open is not None:
                    selector.unregister(ready)
                    pending -= 1
        if pending:
            raise SystemExit(f"{pending} connections did not open in time")

    def alive(self) -> int:
        """How many the broker still holds."""
        held = 0
        for peer in self.sockets:
            peer.setblocking(False)
            try:
                held += bool(peer.recv(65536))
            except BlockingIOError:
                held += 1
            except OSError:
                pass
        return held

    def close(self) -> None:
        for peer in self.sockets:
            peer.close()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--connections", type=int, default=5_000)
    options = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    broken: list[str] = []
    with Namespace("scale", queues=[Queue("orders", max_size_in_megabytes=5120)], process=True) as namespace:
        begun = time.monotonic()
        fill(namespace, options.messages)
        took = time.monotonic() - begun
        resident = resident_mib(namespace.pid)
        print(f"{options.messages:,} messages of 1 KB stored in {took:.1f} s; resident {resident:.0f} MiB")
        if resident > RESIDENT_MIB_MAX:
            broken.append(f"resident {resident:.0f} MiB")
        namespace.kill()
        begun = time.monotonic()
        namespace.restart()
        ready = time.monotonic() - begun
        first_delivery(namespace)
        took = time.monotonic() - begun
        resident = resident_mib(namespace.pid)
        print(
            f"after SIGKILL: ready in {ready:.1f} s, first delivery after {took:.1f} s; resident {resident:.0f} MiB"
        )
        if took > RESTART_SECONDS_MAX or resident > RESIDENT_MIB_MAX:
            broken.append(f"restart {took:.1f} s, resident {resident:.0f} MiB")
        idle = Idle(namespace)
        idle.open(options.connections)
        with namespace.client() as client, client.get_queue_sender("orders") as sender:
            begun = time.monotonic()
            sender.send_messages(ServiceBusMessage("still here"))
            answered = time.monotonic() - begun
        held = idle.alive()
        grown = resident_mib(namespace.pid) - resident
        print(
            f"{held:,} of {options.connections:,} idle connections held, {grown * 1024 / max(held, 1):.1f} KiB each; "
            f"a send meanwhile took {answered * 1000:.0f} ms (first send: link and token included)"
        )
        idle.close()
        if held != options.connections:
            broken.append(f"{options.connections - held} connections lost")
    print("broken: " + "; ".join(broken) if broken else "all bounds held")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
