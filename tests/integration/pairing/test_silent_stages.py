"""A peer that falls silent while a connection is made: whoever waits for it ends, or goes on at the next address."""

from __future__ import annotations

import asyncio
import inspect
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusClient, ServiceBusMessage, TransportType
from azure.servicebus._pyamqp.client import AMQPClient
from azure.servicebus.aio import ServiceBusClient as AsyncServiceBusClient
from azure.servicebus.exceptions import ServiceBusError

from pairbus import PairedServiceBusClient
from pairbus.cli.root import _run
from pairbus.sdk import addresses
from pairbus.sdk.addresses import connect
from pairbus.sdk.links import opening
from pairbus.sdk.links.browsing import Browser, open_without_link
from pairbus.sdk.management import admin
from pairbus.testing import Namespace
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(120)

STAGES = {
    "no byte": 0,
    "after the SASL header": 8,
    "after the SASL mechanisms": 59,
    "after the SASL outcome": 85,
    "after open": 143,
    "before the token is accepted": 444,
    "before the link is attached": 588,
}
"""How many bytes a broker sends up to each stage."""
ENDED_SECONDS = 60.0


class Silent:
    """A relay to a namespace that passes on so many bytes of its answers to each client, and then nothing more."""

    def __init__(self, namespace: Namespace | None, answered: int) -> None:
        self._target = None if namespace is None else address_of(namespace)
        self._answered = answered
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.accepted: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client = self._listener.accept()[0]
            except OSError:
                return
            self.accepted.append(client)
            if self._target is not None:
                host, port = self._target.rsplit(":", 1)
                server = socket.create_connection((host, int(port)))
                self.accepted.append(server)
                threading.Thread(target=self._pass, args=(client, server, None), daemon=True).start()
                threading.Thread(
                    target=self._pass, args=(server, client, self._answered), daemon=True
                ).start()

    @staticmethod
    def _pass(source: socket.socket, to: socket.socket, most: int | None) -> None:
        try:
            while data := source.recv(65536):
                part = data if most is None else data[:most]
                most = None if most is None else most - len(part)
                to.sendall(part)
        except OSError:
            return

    def close(self) -> None:
        self._listener.close()
        for one in self.accepted:
            one.close()


def address_of(namespace: Namespace) -> str:
    return namespace.connection_string.split("sb://", 1)[1].split("/", 1)[0].split(";", 1)[0]


@pytest.fixture(scope="module")
def namespace() -> Iterator[Namespace]:
    with Namespace("contoso", queues=["orders"]) as started:
        yield started


@pytest.fixture(params=list(STAGES.values()), ids=list(STAGES))
def silent(namespace: Namespace, request: pytest.FixtureRequest) -> Iterator[Silent]:
    peer = Silent(namespace, request.param)
    yield peer
    peer.close()


@pytest.fixture
def mute() -> Iterator[Silent]:
    peer = Silent(None, 0)
    yield peer
    peer.close()


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "ANSWER_SECONDS", 1.0)
    monkeypatch.setattr(addresses, "OPEN_SECONDS", 1.0)


def at(namespace: Namespace, *places: str) -> str:
    """The connection string of a namespace, with other addresses in it."""
    return namespace.connection_string.replace(address_of(namespace), ",".join(places))


def ended(call: Callable[[], Any]) -> Any:
    """What a call returned or raised. Fails when it has hung."""
    outcome: list[Any] = []

    def work() -> None:
        try:
            outcome.append(call())
        except Exception as error:  # noqa: BLE001 - the outcome
            outcome.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(ENDED_SECONDS)
    assert not thread.is_alive(), "it has hung"
    return outcome[0]


def send(text: str) -> None:
    with (
        connect(ServiceBusClient, text, retry_total=0) as client,
        client.get_queue_sender("orders") as sender,
    ):
        sender.send_messages(ServiceBusMessage("one"))


def browse(text: str) -> None:
    with connect(ServiceBusClient, text, retry_total=0) as client:
        browser = Browser(open_without_link(client.get_queue_receiver("orders")))
        browser.first()
        browser.close()


def receive(text: str, **options: Any) -> None:
    with (
        connect(ServiceBusClient, text, retry_total=0) as client,
        client.get_queue_receiver("orders", **options),
    ):
        pass


def receive_in_next_session(text: str) -> None:
    receive(text, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=1)


def send_later(text: str) -> None:
    async def work() -> None:
        async with (
            connect(AsyncServiceBusClient, text, retry_total=0) as client,
            client.get_queue_sender("orders") as sender,
        ):
            await sender.send_messages(ServiceBusMessage("one"))

    asyncio.run(work())


CALLS = [send, receive, receive_in_next_session, send_later]


@pytest.mark.parametrize("call", CALLS)
def test_opening_ends_with_an_error_at_a_peer_that_falls_silent(
    silent: Silent, namespace: Namespace, call: Callable[[str], None]
) -> None:
    assert isinstance(ended(lambda: call(at(namespace, silent.address))), ServiceBusError)


@pytest.mark.parametrize("call", [send, receive, send_later])
def test_opening_goes_on_at_the_next_address(
    silent: Silent, namespace: Namespace, call: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        opening, "ANSWER_SECONDS", ENDED_SECONDS
    )  # the last one answers, on a busy machine slowly
    outcome = ended(lambda: call(at(namespace, silent.address, address_of(namespace))))
    assert outcome is None, outcome


@contextmanager
def opened_long_ago(namespace: Namespace) -> Iterator[Any]:
    """A sender that is open, and whose time to open is over."""
    with (
        connect(ServiceBusClient, namespace.connection_string, retry_total=0) as client,
        client.get_queue_sender("orders") as sender,
    ):
        opened: Any = sender
        opened._pairbus_opening._until = 0.0
        yield opened


def test_a_token_is_renewed_long_after_a_sender_was_opened(namespace: Namespace) -> None:
    with opened_long_ago(namespace) as sender:
        sender._handler._cbs_authenticator._refresh_window = 1e9
        sender.send_messages(ServiceBusMessage("one"))


def test_a_connection_is_made_again_long_after_a_sender_was_opened(namespace: Namespace) -> None:
    with opened_long_ago(namespace) as sender:
        client = sender._handler
        # As the SDK's retries below its sender do.
        client.close()
        client.open()
        wait_until(client.client_ready, "the link is open")
        sender.send_messages(ServiceBusMessage("one"))


def test_browsing_ends_at_a_peer_that_never_answers(mute: Silent, namespace: Namespace) -> None:
    assert isinstance(ended(lambda: browse(at(namespace, mute.address))), ServiceBusError)


@pytest.mark.parametrize("transport", [TransportType.Amqp, TransportType.AmqpOverWebsocket])
def test_a_handshake_that_is_not_answered_ends(mute: Silent, transport: TransportType) -> None:
    text = f"Endpoint=sb://{mute.address};SharedAccessKeyName=k;SharedAccessKey=a2V5;Namespace=n"

    def call() -> None:
        options = {"transport_type": transport, "custom_endpoint_address": f"sb://{mute.address}"}
        with connect(ServiceBusClient, text, retry_total=0, **options) as client:
            client.get_queue_sender("orders").send_messages(ServiceBusMessage("one"))

    assert isinstance(ended(call), ServiceBusError)


@pytest.mark.parametrize("is_paired", [True, False])
def test_a_paired_client_ends_at_a_primary_that_is_silent_in_the_tls_handshake(
    mute: Silent, namespace: Namespace, is_paired: bool
) -> None:
    text = f"Endpoint=sb://{mute.address};SharedAccessKeyName=k;SharedAccessKey=a2V5;Namespace=n"
    client = PairedServiceBusClient.from_connection_strings(text, namespace.connection_string)
    if is_paired:
        ended(client.pair)
    sender = client.get_queue_sender("orders")
    ended(lambda: sender.send_messages(ServiceBusMessage("one"), timeout=3))
    assert isinstance(ended(client.get_queue_receiver("orders", max_wait_time=1).__enter__), ServiceBusError)
    ended(client.close)


def test_the_connection_is_made_as_the_sdk_makes_it() -> None:
    def given(source: str) -> list[str]:
        call = source.split(" Connection(", 1)[1].split(
            "\n            )" if "self." in source else "\n    )", 1
        )[0]
        lines = (line.strip().replace("self.", "client.") for line in call.splitlines())
        return [line for line in lines if line]

    assert given(inspect.getsource(opening._new_connection)) == given(inspect.getsource(AMQPClient.open))


COMMANDS = [
    ["send", "orders", "one"],
    ["receive", "orders"],
    ["receive", "orders", "--session", "*", "--wait", "1"],
    ["peek", "orders"],
    ["entity", "list"],
    ["entity", "create", "queue", "fresh"],
]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_command_ends_with_a_sentence_at_a_silent_namespace(
    mute: Silent,
    namespace: Namespace,
    words: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(admin, "ANSWER_SECONDS", 1)
    monkeypatch.setenv("PAIRBUS_PRIMARY", at(namespace, mute.address))

    code = ended(lambda: _run(words))

    assert code == 3
    assert "the namespace could not be reached" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["entity", "create", "queue", "other"], ["entity", "list"]], ids=" ".join)
def test_a_request_goes_on_at_the_next_address(
    mute: Silent, namespace: Namespace, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin, "ANSWER_SECONDS", 1)
    monkeypatch.setenv("PAIRBUS_PRIMARY", at(namespace, mute.address, address_of(namespace)))

    assert ended(lambda: _run(words)) == 0
