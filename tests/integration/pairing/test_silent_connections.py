"""Connections that go silent for ever while new ones work, as when a firewall has lost its state: clients and commands go on."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from pairbus import PairedServiceBusClient
from pairbus.aio import PairedServiceBusClient as AsyncClient
from pairbus.cli.entities import messages
from pairbus.cli.root import _run
from pairbus.sdk.links import silence
from pairbus.testing import Namespace, Queue
from tests.integration.pairing.kit import bodies, operations, options, text
from tests.integration.pairing.syphon_process import backlog_queue, fill, waiting
from tests.waiting import until, wait_until

pytestmark = pytest.mark.timeout(300)

TIMEOUT = 10
"""Seconds that a send has. A silent primary gets half of them, and a new connection the rest."""
CALLERS = 4
EMPTY_FRAME = b"\x00\x00\x00\x08\x02\x00\x00\x00"


class Relay:
    """Passes bytes between clients and a namespace, until it forgets a connection: then it says nothing more to either side."""

    def __init__(self, namespace: Namespace, forgets: bytes = b"", *, stays_silent: bool = False) -> None:
        self._target = address_of(namespace)
        self._forgets = forgets
        """The first connection on which a client sends these bytes is forgotten, and they are not passed on."""
        self._stays_silent = stays_silent
        """Whether nothing is passed on any more after that, on new connections either."""
        self._open: list[tuple[socket.socket, socket.socket]] = []
        self._forgotten: set[socket.socket] = set()
        self._is_silent = False
        self.opened = 0
        """Connections so far."""
        self.signs_of_life = 0
        """Empty frames that the namespace has sent."""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def forget(self) -> None:
        """Forget every connection."""
        self._is_silent = self._stays_silent
        self._forgotten.update(client for client, _ in self._open)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client = self._listener.accept()[0]
                self.opened += 1
                host, port = self._target.rsplit(":", 1)
                server = socket.create_connection((host, int(port)))
                self._open.append((client, server))
                for source, target in ((client, server), (server, client)):
                    threading.Thread(target=self._pass, args=(client, source, target), daemon=True).start()

    def _pass(self, client: socket.socket, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if self._forgets and source is client and self._forgets in data:
                    self._forgets = b""
                    self.forget()
                if not self._is_silent and client not in self._forgotten:
                    self.signs_of_life += source is not client and data.count(EMPTY_FRAME)
                    target.sendall(data)
        if not self._is_silent and client not in self._forgotten:
            target.close()

    def close(self) -> None:
        self._listener.close()
        for pair in self._open:
            for one in pair:
                one.close()


def address_of(namespace: Namespace) -> str:
    return namespace.connection_string.split("sb://", 1)[1].split("/", 1)[0]


@pytest.fixture(scope="module")
def primary() -> Iterator[Namespace]:
    with Namespace("contoso", queues=["orders"], process=True) as started:
        yield started


@pytest.fixture
def secondary() -> Iterator[Namespace]:
    """A new one for each relay: a backlog belongs to the address of its primary."""
    with Namespace("fabrikam", process=True) as started:
        yield started


@pytest.fixture(params=["one address", "two addresses"])
def has_second(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "two addresses")


def through(relay: Relay, primary: Namespace, has_second: bool) -> str:
    """A connection string with the relay, and then the namespace itself."""
    places = [relay.address, *([address_of(primary)] if has_second else [])]
    return primary.connection_string.replace(address_of(primary), ",".join(places))


def send_all(sender: Any, numbers: Sequence[int]) -> None:
    with ThreadPoolExecutor(len(numbers)) as threads:
        list(threads.map(lambda number: sender.send_messages(text(number), timeout=TIMEOUT), numbers))


async def send_all_later(sender: Any, numbers: Sequence[int]) -> None:
    await asyncio.gather(*(sender.send_messages(text(number), timeout=TIMEOUT) for number in numbers))


def on_threads(conn_strs: tuple[str, str], relay: Relay, changed: Any) -> Any:
    with (
        PairedServiceBusClient.from_connection_strings(*conn_strs, options=changed) as client,
        client.get_queue_sender("orders") as sender,
    ):
        send_all(sender, range(CALLERS))
        relay.forget()
        send_all(sender, range(CALLERS, 2 * CALLERS))
        return client.statistics()


def on_asyncio(conn_strs: tuple[str, str], relay: Relay, changed: Any) -> Any:
    async def work() -> Any:
        async with (
            AsyncClient.from_connection_strings(*conn_strs, options=changed) as client,
            client.get_queue_sender("orders") as sender,
        ):
            await send_all_later(sender, range(CALLERS))
            relay.forget()
            await send_all_later(sender, range(CALLERS, 2 * CALLERS))
            return client.statistics()

    return asyncio.run(work())


@pytest.mark.promise("P18")
@pytest.mark.parametrize("play", [on_threads, on_asyncio])
def test_a_client_whose_connection_fell_silent_goes_on_over_a_new_one(
    primary: Namespace, secondary: Namespace, play: Any, has_second: bool
) -> None:
    relay = Relay(primary, stays_silent=has_second)
    changed = options(failover_interval=timedelta(seconds=TIMEOUT - 1), backlog_queue_count=1)

    counted = play(
        (through(relay, primary, has_second), secondary.connection_string), relay=relay, changed=changed
    )
    relay.close()

    assert (counted.to_primary, counted.to_backlog, counted.failovers) == (2 * CALLERS, 0, 0)
    assert set(bodies(primary, "orders", 2 * CALLERS)) == {str(number) for number in range(2 * CALLERS)}


@pytest.mark.parametrize(
    ("words", "asks"), [(["send", "orders", "the-one"], b"the-one"), (["peek", "orders"], b"peek-message")]
)
def test_a_command_whose_connection_fell_silent_tries_again_over_a_new_one(
    primary: Namespace, words: list[str], asks: bytes, has_second: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "ATTEMPT_SECONDS", 3.0)
    with primary.client() as client, client.get_queue_sender("orders") as sender:
        sender.send_messages(text("there"))
    relay = Relay(primary, asks, stays_silent=has_second)
    monkeypatch.setenv("PAIRBUS_PRIMARY", through(relay, primary, has_second))

    code = _run(words)
    relay.close()

    assert code == 0
    bodies(primary, "orders", 1)


def drain_on_threads(conn_strs: tuple[str, str], changed: Any, steps: Iterator[Any]) -> Any:
    with PairedServiceBusClient.from_connection_strings(*conn_strs, options=changed) as client:
        for condition in steps:
            wait_until(lambda: condition(client))  # noqa: B023 - called at once
        return client.statistics()


def drain_on_asyncio(conn_strs: tuple[str, str], changed: Any, steps: Iterator[Any]) -> Any:
    async def work() -> Any:
        async with AsyncClient.from_connection_strings(*conn_strs, options=changed) as client:
            for condition in steps:
                await until(lambda: condition(client), pause=0.1)  # noqa: B023 - called at once
            return client.statistics()

    return asyncio.run(work())


@pytest.mark.promise("P41")
@pytest.mark.parametrize("play", [drain_on_threads, drain_on_asyncio])
def test_a_drain_whose_connection_fell_silent_goes_on_over_a_new_one(
    primary: Namespace, play: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(silence, "SILENT_SECONDS", 1)
    # The dead link gets the messages first, and they come back when their locks have ended.
    queue = Queue(backlog_queue(0), lock_duration=timedelta(seconds=5))
    with Namespace("fabrikam", queues=[queue], process=True) as secondary:
        relay = Relay(secondary)

        def steps() -> Iterator[Any]:
            fill(secondary, 1, 2)
            yield lambda client: client.statistics().restored == 2
            yield lambda _: relay.signs_of_life > 3
            seen = relay.signs_of_life, relay.opened, operations(secondary)
            yield lambda _: relay.signs_of_life > seen[0] + 3
            assert (relay.opened, operations(secondary)) == seen[1:], "an idle drain costs what it did"
            relay.forget()
            fill(secondary, 1, 3, factory="g")
            yield lambda client: client.statistics().restored == 5

        changed = options(backlog_queue_count=1, enable_syphon=True)
        there = waiting(primary, "orders")
        counted = play(
            (primary.connection_string, through(relay, secondary, False)), changed=changed, steps=steps()
        )
        relay.close()

    assert counted.possible_duplicates == 0
    assert f"backlog queue {backlog_queue(0)}: " in caplog.text
    assert "the connection fell silent: nothing came for 1 s" in caplog.text
    bodies(primary, "orders", there + 5)
