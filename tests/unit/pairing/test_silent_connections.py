"""A connection that goes silent for ever while new ones work, as when a firewall has forgotten it: one suite for both runtimes.

The links, the SDK's senders and their addresses are those that ship. The network below is false, and so is the time.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, Protocol

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport
from azure.servicebus.aio import ServiceBusClient as AsyncServiceBusClient

from pairbus.pairing.runtime import thread_link
from pairbus.pairing.runtime.asyncio_link import AsyncioLink
from pairbus.pairing.runtime.thread_link import ThreadLink
from pairbus.pairing.runtime.thread_runtime import Limits, run
from pairbus.pairing.runtime.turns import Turn
from pairbus.sdk.addresses import _Spread, connect
from tests.simulation.false_network import FalseSendClient, false_network
from tests.unit.drain.virtual_loop import VirtualLoop

ATTEMPT_SECONDS = 10.0
GUARD_SECONDS = 30.0
"""After which a test that hangs ends."""
FIRST, SECOND = "p.servicebus.windows.net", "q.servicebus.windows.net"
TEXTS = {
    1: f"Endpoint=sb://{FIRST}/;SharedAccessKeyName=k;SharedAccessKey=c2VjcmV0",
    2: f"Endpoint=sb://{FIRST},{SECOND}/;SharedAccessKeyName=k;SharedAccessKey=c2VjcmV0",
}
LATER = datetime(2100, 1, 1, tzinfo=UTC)
NUMBERS = SimpleNamespace(value={b"sequence-numbers": [1]}, application_properties={})


class Network(Protocol):
    """One link to a namespace, on threads or on asyncio."""

    link: Any
    opened: list[str]
    """The address of each connection."""

    def go_silent(self) -> None:
        """Nothing more comes over the connections that there are."""

    def send(self, seconds: Sequence[float]) -> list[str]:
        """The outcome of sends that begin at the same time, one for each number of seconds."""

    def schedule(self) -> str:
        """The outcome of scheduling one message."""

    def now(self) -> float:
        """Seconds on the false clock."""


def outcome(error: BaseException | None) -> str:
    return "accepted" if error is None else type(error).__name__


# --- threads ------------------------------------------------------------------------------------------


class FalseThreadClient:
    """As much of the SDK's synchronous protocol client as its sender uses."""

    _link = SimpleNamespace(remote_max_message_size=262_144, remote_properties=None)
    _external_connection = False

    def __init__(self, network: ThreadNetwork) -> None:
        self._network = network
        self._hostname = ""
        self._custom_endpoint_address: str | None = None
        self._connection = SimpleNamespace()
        self.is_silent = False

    def open(self, connection: object = None) -> None:
        if self not in self._network.clients:
            self._network.clients.append(self)
            self._network.opened.append(self._hostname)

    def auth_complete(self) -> bool:
        return True

    def client_ready(self) -> bool:
        return True

    def send_message(self, message: object, timeout: float) -> None:
        self._network.answer(self, timeout)

    def mgmt_request(self, message: object, *, timeout: float, **options: Any) -> tuple[int, bytes, Any]:
        self._network.answer(self, timeout)
        return 200, b"", NUMBERS

    def close(self) -> None:
        """Nothing is open."""


class ObservedTurn(Turn):
    """The turn of a link. It tells when a thread begins to wait for it, and the false time does not end the wait."""

    def __init__(self) -> None:
        super().__init__()
        self.waits = threading.Semaphore(0)

    def take(self, seconds: float, is_of_use: Callable[[], bool]) -> bool:
        self.waits.release()
        return super().take(GUARD_SECONDS, is_of_use)


class ThreadNetwork:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
        self.clients: list[FalseThreadClient] = []
        self.opened: list[str] = []
        self._offset = 0.0
        self._waiting = 0
        self._begun = threading.Event()
        monkeypatch.setattr(thread_link, "time", SimpleNamespace(monotonic=self.now))

        def create(config: Any, **options: Any) -> FalseThreadClient:
            client = FalseThreadClient(self)
            client._hostname = config.hostname
            return client

        monkeypatch.setattr(PyamqpTransport, "create_send_client", staticmethod(create))
        sender = connect(ServiceBusClient, text, retry_total=0).get_queue_sender("orders")
        self.link = ThreadLink(sender, Limits(), lambda: True)
        self.link.turn = self.turn = ObservedTurn()

    def now(self) -> float:
        return time.monotonic() + self._offset

    def go_silent(self) -> None:
        for client in self.clients:
            client.is_silent = True

    def answer(self, client: FalseThreadClient, seconds: float) -> None:
        """The peer answers, or all of a caller's time passes, once everybody else waits."""
        self._begun.set()
        if client.is_silent:
            while self._waiting:
                assert self.turn.waits.acquire(timeout=GUARD_SECONDS)
                self._waiting -= 1
            self._offset += seconds
            raise TimeoutError

    def send(self, seconds: Sequence[float]) -> list[str]:
        outcomes = [""] * len(seconds)

        def call(place: int) -> None:
            failed = self.link.try_to_send(ServiceBusMessage("x"), seconds[place], seconds[place] + 1)
            outcomes[place] = outcome(None if failed is None else failed.error)

        self._waiting, self._begun, self.turn.waits = (
            len(seconds) - 1,
            threading.Event(),
            threading.Semaphore(0),
        )
        threads = [threading.Thread(target=call, args=(place,)) for place in range(len(seconds))]
        threads[0].start()
        assert self._begun.wait(GUARD_SECONDS), "the first one has the turn before the others come"
        for thread in threads[1:]:
            thread.start()
        for thread in threads:
            thread.join(GUARD_SECONDS)
        return outcomes

    def schedule(self) -> str:
        work = self.link.sender.schedule_messages
        try:
            run(
                self.link.call(
                    work, ATTEMPT_SECONDS + 1, ServiceBusMessage("x"), LATER, timeout=ATTEMPT_SECONDS
                )
            )
        except Exception as error:  # noqa: BLE001 - the test looks at it
            return outcome(error)
        return outcome(None)


# --- asyncio ------------------------------------------------------------------------------------------


class AsyncioNetwork:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, text: str, loop: VirtualLoop) -> None:
        self._loop = loop
        self.opened: list[str] = []
        with_network = FalseSendClient.open_async

        async def open_async(client: Any, connection: Any = None) -> None:
            if not client._session:
                self.opened.append(client._hostname)
            await with_network(client, connection)

        async def request(client: Any, message: object, *, timeout: float, **options: Any) -> Any:  # noqa: ASYNC109 - the SDK's
            if client._connection.is_lost:
                await asyncio.sleep(timeout)
                raise TimeoutError
            return 200, b"", NUMBERS

        async def reach(spread: Any) -> None:
            """Every address accepts connections."""

        monkeypatch.setattr(FalseSendClient, "open_async", open_async)
        monkeypatch.setattr(FalseSendClient, "mgmt_request_async", request)
        monkeypatch.setattr(_Spread, "_reach", reach)
        self.sender = connect(AsyncServiceBusClient, text, retry_total=0).get_queue_sender("orders")

    async def begin(self, primary: Any) -> None:
        self.primary = primary
        self.link = AsyncioLink(self.sender, lambda: True)

    def now(self) -> float:
        return self._loop.time()

    def go_silent(self) -> None:
        self.primary.get_lost()
        self.primary.recover()

    def send(self, seconds: Sequence[float]) -> list[str]:
        async def one(given: float) -> str:
            failed = await self.link.try_to_send(ServiceBusMessage("x"), given, given + 1)
            return outcome(None if failed is None else failed.error)

        async def work() -> list[str]:
            return await asyncio.gather(*(one(given) for given in seconds))

        return self._loop.run_until_complete(work())

    def schedule(self) -> str:
        async def work() -> str:
            request = self.link.sender.schedule_messages
            try:
                await self.link.call(
                    request, ATTEMPT_SECONDS + 1, ServiceBusMessage("x"), LATER, timeout=ATTEMPT_SECONDS
                )
            except Exception as error:  # noqa: BLE001 - the test looks at it
                return outcome(error)
            return outcome(None)

        return self._loop.run_until_complete(work())


@pytest.fixture(params=[1, 2], ids=["one address", "two addresses"])
def addresses(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(params=["threads", "asyncio"])
def network(
    request: pytest.FixtureRequest, addresses: int, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Network]:
    logging.disable(logging.CRITICAL)
    if request.param == "threads":
        threads = ThreadNetwork(monkeypatch, TEXTS[addresses])
        yield threads
        run(threads.link.close())
    else:
        loop = VirtualLoop()
        with false_network(monkeypatch, loop, 1) as (primary, _):
            network = AsyncioNetwork(monkeypatch, TEXTS[addresses], loop)
            loop.run_until_complete(network.begin(primary))
            yield network
            loop.run_until_complete(network.link.close())
        loop.close()
    logging.disable(logging.NOTSET)


@pytest.fixture
def expected(addresses: int) -> list[str]:
    """Where the second connection must be."""
    return [FIRST, FIRST if addresses == 1 else SECOND]


# --- the suite ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("callers", [1, 6])
@pytest.mark.promise("P18")
def test_a_connection_without_an_answer_costs_one_attempt(
    network: Network, expected: list[str], callers: int
) -> None:
    assert network.send([ATTEMPT_SECONDS] * callers) == ["accepted"] * callers
    network.go_silent()
    begun = network.now()
    assert network.send([ATTEMPT_SECONDS] * callers) == ["OperationTimeoutError"] * callers

    assert network.send([ATTEMPT_SECONDS] * callers) == ["accepted"] * callers

    assert network.opened == expected
    assert network.now() - begun < ATTEMPT_SECONDS + 5


@pytest.mark.promise("P18")
def test_who_waits_behind_a_silent_connection_and_has_time_goes_to_a_new_one_at_once(
    network: Network, expected: list[str]
) -> None:
    assert network.send([ATTEMPT_SECONDS]) == ["accepted"]
    network.go_silent()
    begun = network.now()

    assert network.send([ATTEMPT_SECONDS, 60, 60, 60]) == ["OperationTimeoutError", *["accepted"] * 3]

    assert network.opened == expected
    assert network.now() - begun < ATTEMPT_SECONDS + 5


def test_attempts_that_are_too_short_for_an_answer_give_up_a_silent_connection_together(
    network: Network, expected: list[str]
) -> None:
    assert network.send([ATTEMPT_SECONDS]) == ["accepted"]
    network.go_silent()
    outcomes = [network.send([0.1])[0] for _ in range(5)]

    assert outcomes[0] == "OperationTimeoutError"
    assert network.send([ATTEMPT_SECONDS]) == ["accepted"]
    assert network.opened[:2] == expected


def test_a_request_without_an_answer_gives_up_its_connection(network: Network, expected: list[str]) -> None:
    assert network.schedule() == "accepted"
    network.go_silent()
    assert network.schedule() == "OperationTimeoutError"

    assert network.schedule() == "accepted"
    assert network.send([ATTEMPT_SECONDS]) == ["accepted"]

    assert network.opened == expected


def test_an_address_that_fell_silent_is_tried_again_when_the_next_one_does_too(network: Network) -> None:
    for _ in range(2):
        assert network.send([ATTEMPT_SECONDS]) == ["accepted"]
        network.go_silent()
        assert network.send([ATTEMPT_SECONDS]) == ["OperationTimeoutError"]
    assert network.send([ATTEMPT_SECONDS]) == ["accepted"]

    assert network.opened[0] == network.opened[2]
