"""Closing ends the requests over HTTP that set up the backlog queues, also when the secondary accepts connections and says nothing."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from pairbus import PairedServiceBusClient, SendAvailabilityOptions, aio
from pairbus.pairing.client.backlog.management import Management
from pairbus.pairing.runtime import thread_runtime as runtime
from tests.waiting import wait_until

pytestmark = pytest.mark.promise("P44")

WAIT_SECONDS = 10.0
CLOSED_SECONDS = 5
"""Less than the time that a request waits for a silent secondary."""


@pytest.fixture
def peer() -> Iterator[socket.socket]:
    """A silent peer: its connections are made, and nobody reads from them."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listening:
        listening.settimeout(WAIT_SECONDS)
        yield listening


def connection_string(peer: socket.socket, *, has_tls: bool) -> str:
    tail = "" if has_tls else ";UseDevelopmentEmulator=true"
    return f"Endpoint=sb://127.0.0.1:{peer.getsockname()[1]};SharedAccessKeyName=k;SharedAccessKey=a2V5{tail}"


def read_to_the_end(connected: socket.socket) -> None:
    """Return when the other end is closed."""
    with connected:
        connected.settimeout(WAIT_SECONDS)
        while connected.recv(1_000):
            pass


@pytest.mark.parametrize("has_tls", [False, True])
def test_closing_ends_a_request_that_waits_for_a_silent_secondary(peer: socket.socket, has_tls: bool) -> None:
    from azure.servicebus import ServiceBusClient

    client = ServiceBusClient.from_connection_string(connection_string(peer, has_tls=has_tls))
    address = f"127.0.0.1:{peer.getsockname()[1]}"
    subject = runtime.ThreadRuntime()
    options = {"read_timeout": 600, "connection_timeout": 600, "connection_verify": False}
    management = Management(subject, client, options, address)
    errors: list[BaseException] = []

    async def set_up() -> None:
        try:
            await management.backlog_queues("p")
        except Exception as error:  # noqa: BLE001 - the test looks at it
            errors.append(error)

    subject.spawn(set_up)
    connected, _ = peer.accept()
    assert connected.recv(1), "the request, or the beginning of TLS"
    runtime.run(subject.stop_tasks(WAIT_SECONDS))

    assert [type(error) for error in errors] == [ConnectionAbortedError]
    read_to_the_end(connected)
    peer.settimeout(0)
    with pytest.raises(BlockingIOError):
        peer.accept()
    runtime.run(subject.end(WAIT_SECONDS))


def sockets() -> int:
    """How many sockets of this process are open."""
    found = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            found += os.readlink(f"/proc/self/fd/{name}").startswith("socket")
        except OSError:
            continue
    return found


def given(peer: socket.socket, directory: Path) -> dict[str, Any]:
    return {
        "primary": "Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=k;SharedAccessKey=a2V5;UseDevelopmentEmulator=true",
        "secondary": connection_string(peer, has_tls=False),
        "options": SendAvailabilityOptions(
            spool=str(directory),
            failover_interval=timedelta(0),
            ping_primary_interval=timedelta(seconds=1),
        ),
        "management": {"read_timeout": 1, "connection_timeout": 1},
        "primary_namespace": "p",
        "retry_total": 0,
    }


def slow(client: Any) -> None:
    """From here on a request waits for an answer for as long as the test lasts."""
    client._setup._management._arguments[1].update(read_timeout=600, timeout=600)


def test_closing_a_client_in_the_middle_of_its_set_up_leaves_no_thread_and_no_socket(
    peer: socket.socket, tmp_path: Path
) -> None:
    threads, opened = set(threading.enumerate()), sockets()
    client = PairedServiceBusClient.from_connection_strings(**given(peer, tmp_path))
    slow(client)
    client.pair()
    asked = _next_request(peer)

    client.close(timeout=CLOSED_SECONDS)

    wait_until(lambda: set(threading.enumerate()) <= threads, "no thread is left", 1)
    asked.close()
    wait_until(lambda: sockets() <= opened, "no socket is left", 1)


async def test_closing_an_asynchronous_client_leaves_no_task_and_no_socket(
    peer: socket.socket, tmp_path: Path
) -> None:
    tasks, opened = asyncio.all_tasks(), sockets()
    client = aio.PairedServiceBusClient.from_connection_strings(**given(peer, tmp_path))
    slow(client)
    await client.pair()
    asked = await asyncio.to_thread(_next_request, peer)

    await client.close(timeout=CLOSED_SECONDS)

    assert asyncio.all_tasks() <= tasks
    asked.close()
    await asyncio.to_thread(wait_until, lambda: sockets() <= opened, "no socket is left", 1)


def _next_request(peer: socket.socket) -> socket.socket:
    """The connection of a request that was made after pairing: those before it have ended."""
    while True:
        connected, _ = peer.accept()
        connected.settimeout(WAIT_SECONDS)
        if connected.recv(1) and not _has_ended(connected):
            return connected
        connected.close()


def _has_ended(connected: socket.socket) -> bool:
    connected.settimeout(0.2)
    try:
        while connected.recv(10_000):
            pass
    except TimeoutError:
        return False
    return True
