"""A backlog that is larger than any buffer between broker and client is received to its end."""

from __future__ import annotations

import selectors
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusReceiveMode

from tests.conformance.sdk import Bus, Endpoint, connection_part, spec

BODY_BYTES = 200_000
SLICE_BYTES = 16_384
SLICE_SECONDS = 0.002
"""About 8 MB/s."""


def _receive_all(receiver: Any, count: int, batch: int) -> list[str]:
    """The ids of what comes, until all have come or a receive comes back empty."""
    found: list[str] = []
    while len(found) < count:
        messages = receiver.receive_messages(max_message_count=batch, max_wait_time=20)
        if not messages:
            break
        found += [message.message_id for message in messages]
    return found


@spec("credit is used up as long as there are messages, whatever the socket takes")
def test_a_backlog_of_large_messages_is_received_in_batches(bus: Bus, queue: str) -> None:
    count = 300
    with bus.sender(queue) as sender:
        for number in range(count):
            sender.send_messages(ServiceBusMessage(bytes(BODY_BYTES), message_id=str(number)))

    with bus.receiver(queue, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE) as receiver:
        found = _receive_all(receiver, count, 100)
    assert found == [str(number) for number in range(count)]


@pytest.mark.slow
@spec("prefetch through a slow network brings every message")
def test_a_backlog_is_prefetched_through_a_slow_network(namespace: Any, queue: str) -> None:
    count = 6_000
    bus = Bus("sync", Endpoint(namespace.connection_string, {}))
    with bus.sender(queue) as sender:
        for start in range(0, count, 100):
            sender.send_messages(
                [ServiceBusMessage(bytes(2_000), message_id=str(start + n)) for n in range(100)]
            )
    bus.close()

    with _slow_proxy(namespace.connection_string) as endpoint:
        slow = Bus("sync", endpoint)
        with slow.receiver(
            queue, prefetch_count=2_000, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE
        ) as receiver:
            found = _receive_all(receiver, count, 500)
        slow.close()
    assert found == [str(number) for number in range(count)]


@contextmanager
def _slow_proxy(connection_string: str) -> Iterator[Endpoint]:
    """A way to the broker that lets about 8 MB/s through and buffers little."""
    address = connection_part(connection_string, "Endpoint").removeprefix("sb://").rstrip("/")
    host, _, port = address.rpartition(":")
    listener = socket.create_server(("127.0.0.1", 0))
    is_over = threading.Event()

    def carry(client: socket.socket) -> None:
        with (
            client,
            socket.create_connection((host, int(port))) as server,
            selectors.DefaultSelector() as ready,
        ):
            server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SLICE_BYTES)
            ready.register(client, selectors.EVENT_READ, server)
            ready.register(server, selectors.EVENT_READ, client)
            while not is_over.wait(SLICE_SECONDS):
                for key, _ in ready.select(0.05):
                    data = key.fileobj.recv(SLICE_BYTES)  # type: ignore[union-attr]
                    if not data:
                        return
                    key.data.sendall(data)

    def accept() -> None:
        while not is_over.is_set():
            try:
                client, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=carry, args=(client,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    own = f"127.0.0.1:{listener.getsockname()[1]}"
    try:
        yield Endpoint(connection_string.replace(address, own), {})
    finally:
        is_over.set()
        listener.close()
