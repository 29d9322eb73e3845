"""Every public method of the paired client and its senders ends while a namespace accepts connections and never answers."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import pkgutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus.exceptions import ServiceBusError

from pairbus import ClientClosedError, PairedServiceBusClient, aio
from pairbus.pairing.client.sync import PairedSender
from pairbus.pairing.errors import NoBacklogQueuesError
from pairbus.testing import Namespace, Pair
from tests.integration.pairing.kit import options, text
from tests.waiting import until, wait_until

pytestmark = pytest.mark.timeout(300)

TIMEOUT = 2
"""Seconds that each method has."""
ENDED_SECONDS = 60.0
"""Seconds after which a method counts as hung; a busy machine must not."""
LATER = datetime.now(UTC) + timedelta(hours=1)
ENTITIES = ["open", "parked", "other", *(f"fresh-{number}" for number in range(8))]
SILENT = [
    "primary",
    # Pairing gives a silent secondary a quarter of a minute.
    pytest.param("secondary", marks=pytest.mark.slow),
    pytest.param("both", marks=pytest.mark.slow),
]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ENTER_SECONDS", "ASK_SECONDS"):
        monkeypatch.setattr(f"pairbus.pairing.client.sending.sender.{name}", float(TIMEOUT))
    monkeypatch.setattr("pairbus.pairing.client.backlog.setup.PROBE_SECONDS", float(TIMEOUT))
    logging.getLogger("pairbus").setLevel(logging.CRITICAL)


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    with Pair(queues=ENTITIES) as started:
        yield started


def namespaces(pair: Pair, silent: str) -> list[Namespace]:
    return {"primary": [pair.primary], "secondary": [pair.secondary], "both": [pair.primary, pair.secondary]}[
        silent
    ]


def new_client(kind: Any, pair: Pair) -> Any:
    return kind.from_connection_strings(
        pair.primary.connection_string,
        pair.secondary.connection_string,
        options=options(failover_interval=timedelta(seconds=1), backlog_queue_count=1),
    )


Call = Callable[[], Any]


def sender_calls(client: Any, opened: Any, parked: Any, numbers: list[int], handle: int) -> dict[str, Call]:
    """Each method of a sender: on one that was open before, and on a fresh one that nobody else uses."""
    fresh = [client.get_queue_sender(f"fresh-{number}") for number in range(8)]
    enter = "__aenter__" if hasattr(fresh[0], "__aenter__") else "__enter__"
    return {
        "send_messages": lambda: fresh[0].send_messages(text(1), timeout=TIMEOUT),
        "schedule_messages": lambda: fresh[1].schedule_messages(text(1), LATER, timeout=TIMEOUT),
        "cancel_scheduled_messages": lambda: fresh[2].cancel_scheduled_messages(7, timeout=TIMEOUT),
        "create_message_batch": fresh[3].create_message_batch,
        enter: getattr(fresh[4], enter),
        "close": fresh[5].close,
        "send_messages, open": lambda: opened.send_messages(text(1), timeout=TIMEOUT),
        "schedule_messages, open": lambda: opened.schedule_messages(text(1), LATER, timeout=TIMEOUT),
        "cancel_scheduled_messages, open": lambda: opened.cancel_scheduled_messages(numbers, timeout=TIMEOUT),
        "cancel_scheduled_messages, parked": lambda: parked.cancel_scheduled_messages(
            handle, timeout=TIMEOUT
        ),
        "schedule_messages, failed over": lambda: parked.schedule_messages(text(1), LATER, timeout=TIMEOUT),
        "send_messages, failed over": lambda: parked.send_messages(text(1), timeout=TIMEOUT),
    }


def client_calls(client: Any) -> dict[str, Call]:
    """Each method of a client that is not the official one's. ``pair`` and ``close`` have tests of their own."""
    return {
        "get_queue_sender": lambda: client.get_queue_sender("other"),
        "get_topic_sender": lambda: client.get_topic_sender("other"),
        "fail_over": lambda: client.fail_over("other"),
        "mark_healthy": lambda: client.mark_healthy("other"),
        "health": client.health,
        "explain": lambda: client.explain("other"),
        "events": client.events,
        "statistics": client.statistics,
        "headroom": lambda: client.headroom(text(1)),
    }


OF_THE_OFFICIAL_CLIENT = {
    "from_connection_string",
    "from_connection_strings",
    "get_queue_receiver",
    "get_subscription_receiver",
    "list_queue_sessions",
    "list_subscription_sessions",
}


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_") and callable(getattr(kind, name))}


def test_the_table_is_complete(pair: Pair) -> None:
    client = new_client(PairedServiceBusClient, pair)
    opened = client.get_queue_sender("open")
    assert public(PairedSender) <= set(sender_calls(client, opened, opened, [], 1))
    assert public(PairedServiceBusClient) - OF_THE_OFFICIAL_CLIENT == {*client_calls(client), "pair", "close"}
    client.close()


def sockets() -> int:
    links = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
    return sum(os.readlink(link).startswith("socket") for link in links if os.path.islink(link))


@pytest.mark.promise("P44")
@pytest.mark.parametrize("silent", SILENT)
def test_every_method_ends_and_closing_leaves_nothing(pair: Pair, silent: str) -> None:
    threads_before, sockets_before = set(threading.enumerate()), sockets()
    client = new_client(PairedServiceBusClient, pair)
    client.pair()
    opened, parked = client.get_queue_sender("open"), client.get_queue_sender("parked")
    numbers = opened.schedule_messages(text(0), LATER)
    client.fail_over("parked")
    (handle,) = parked.schedule_messages(text(0), LATER)
    calls = {**sender_calls(client, opened, parked, numbers, handle), **client_calls(client)}
    calls["pair"] = lambda: _pair_and_close(new_client(PairedServiceBusClient, pair))
    running: dict[str, threading.Thread] = {}
    racing: list[threading.Thread] = []
    for namespace in namespaces(pair, silent):
        namespace.pause()
    try:
        for name, call in calls.items():
            running[name] = threading.Thread(target=_quietly, args=(call,), name=name, daemon=True)
            running[name].start()
        until = time.monotonic() + ENDED_SECONDS
        for thread in running.values():
            thread.join(max(0.0, until - time.monotonic()))
        assert [name for name, thread in running.items() if thread.is_alive()] == []

        for sender in (opened, parked, client.get_queue_sender("fresh-6")):
            racing += [threading.Thread(target=_send_on, args=(sender,), daemon=True) for _ in range(3)]
        for thread in racing:
            thread.start()
        wait_until(lambda: client.statistics().sends > 20, "they send")
        begun = time.monotonic()
        client.close()
        assert time.monotonic() - begun < ENDED_SECONDS
        for thread in racing:
            thread.join(ENDED_SECONDS)
        assert not any(thread.is_alive() for thread in racing)
        wait_until(lambda: set(threading.enumerate()) <= threads_before, "no thread is left", 5)
        wait_until(lambda: sockets() <= sockets_before, "no socket is left", 5)
    finally:
        for namespace in namespaces(pair, silent):
            namespace.resume()


def _quietly(call: Call) -> None:
    try:
        call()
    except Exception:  # noqa: BLE001 - how it ends is tested elsewhere
        return


def _send_on(sender: Any) -> None:
    while True:
        try:
            sender.send_messages([text(1), text(2), text(3)])
        except ClientClosedError:
            return
        except Exception:  # noqa: BLE001 - both namespaces may be silent
            continue


def _pair_and_close(client: Any) -> None:
    try:
        client.pair()
    finally:
        client.close()


@pytest.mark.parametrize("silent", SILENT)
async def test_every_method_of_the_asynchronous_client_ends(pair: Pair, silent: str) -> None:
    client = new_client(aio.PairedServiceBusClient, pair)
    await client.pair()
    opened, parked = client.get_queue_sender("open"), client.get_queue_sender("parked")
    numbers = await opened.schedule_messages(text(0), LATER)
    client.fail_over("parked")
    (handle,) = await parked.schedule_messages(text(0), LATER)
    calls = sender_calls(client, opened, parked, numbers, handle)

    async def pair_and_close() -> None:
        other = new_client(aio.PairedServiceBusClient, pair)
        try:
            await other.pair()
        finally:
            await other.close()

    calls["pair"] = pair_and_close
    for namespace in namespaces(pair, silent):
        namespace.pause()
    try:
        running = {name: asyncio.ensure_future(call()) for name, call in calls.items()}
        _, hung = await asyncio.wait(running.values(), timeout=ENDED_SECONDS)
        assert [name for name, task in running.items() if task in hung] == []
        assert [task for task in running.values() if isinstance(task.exception(), TypeError)] == []
        await asyncio.wait_for(client.close(), ENDED_SECONDS)
    finally:
        for namespace in namespaces(pair, silent):
            namespace.resume()


# --- against a peer that never says a word ---------------------------------------------------------

ABSENT = "Endpoint=sb://127.0.0.1:9;SharedAccessKeyName=k;SharedAccessKey=a2V5;UseDevelopmentEmulator=true;Namespace=a"


class Mute:
    """Accepts connections and never answers."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.accepted: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()
        address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.connection_string = f"Endpoint=sb://{address};SharedAccessKeyName=k;SharedAccessKey=a2V5;UseDevelopmentEmulator=true;Namespace=n"

    def _accept(self) -> None:
        while True:
            try:
                self.accepted.append(self._listener.accept()[0])
            except OSError:
                return

    def has_hung_up(self) -> bool:
        """Whether the client has closed its end of every connection."""
        return all(self._is_over(one) for one in self.accepted)

    @staticmethod
    def _is_over(one: socket.socket) -> bool:
        one.settimeout(0.01)
        try:
            while one.recv(4096):
                pass
        except TimeoutError:
            return False
        except OSError:
            return True
        return True

    def close(self) -> None:
        self._listener.close()
        for one in self.accepted:
            one.close()


@pytest.fixture
def mute() -> Iterator[Mute]:
    peer = Mute()
    yield peer
    peer.close()


@pytest.fixture
def no_garbage_collection() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_garbage_collection")
def test_closing_ends_a_receiver_that_waits_for_a_mute_primary(mute: Mute) -> None:
    client = PairedServiceBusClient.from_connection_strings(mute.connection_string, ABSENT)
    receiver = client.get_queue_receiver("orders")
    waiting = threading.Thread(target=_quietly, args=(receiver.receive_messages,), daemon=True)
    waiting.start()
    wait_until(lambda: bool(mute.accepted), "it is connected")

    client.close()

    waiting.join(ENDED_SECONDS)
    assert not waiting.is_alive()
    wait_until(mute.has_hung_up, "no socket is left")


@pytest.mark.usefixtures("no_garbage_collection")
async def test_closing_ends_an_asynchronous_receiver_whose_socket_is_just_being_made(mute: Mute) -> None:
    client = aio.PairedServiceBusClient.from_connection_strings(mute.connection_string, ABSENT)
    receiver = client.get_queue_receiver("orders")
    waiting = asyncio.ensure_future(receiver.receive_messages())
    async with asyncio.timeout(ENDED_SECONDS):
        while getattr(receiver._handler, "_connection", None) is None:  # noqa: ASYNC110 - the SDK has no event for it
            await asyncio.sleep(0)
        connection: Any = receiver._handler._connection
        assert connection._transport.writer is None

        await client.close()

        await asyncio.wait([waiting])
    assert waiting.exception() is not None


@pytest.mark.usefixtures("no_garbage_collection")
async def test_closing_ends_an_asynchronous_receiver_that_waits_for_a_mute_primary(mute: Mute) -> None:
    client = aio.PairedServiceBusClient.from_connection_strings(mute.connection_string, ABSENT)
    receiver = client.get_queue_receiver("orders")
    waiting = asyncio.ensure_future(receiver.receive_messages())
    async with asyncio.timeout(ENDED_SECONDS):
        await asyncio.to_thread(wait_until, lambda: bool(mute.accepted), "it is connected")

        await client.close()

        await asyncio.wait([waiting])
        await asyncio.to_thread(wait_until, mute.has_hung_up, "no socket is left")
    waiting.exception()


HELD = {
    "before the token": "azure.servicebus._servicebus_receiver.create_authentication",
    "before the connection": "pairbus.sdk.links.opening._new_connection",
    "before the socket is known": "azure.servicebus._pyamqp._transport.socket.create_connection",
}
"""Functions that a receiver calls while it opens, one after the other."""


@pytest.mark.usefixtures("no_garbage_collection")
@pytest.mark.parametrize("place", HELD.values(), ids=list(HELD))
def test_closing_ends_a_receiver_wherever_its_opening_is(
    mute: Mute, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pairbus.sdk.links.opening.ANSWER_SECONDS", 1000.0)
    client = PairedServiceBusClient.from_connection_strings(mute.connection_string, ABSENT)
    receiver = client.get_queue_receiver("orders")
    is_there, is_closed = threading.Event(), threading.Event()
    original: Any = pkgutil.resolve_name(place)

    def held(*given: Any, **options: Any) -> Any:
        made = original(*given, **options)
        if threading.current_thread() is waiting:
            is_there.set()
            assert is_closed.wait(ENDED_SECONDS)
        return made

    monkeypatch.setattr(place, held)
    waiting = threading.Thread(target=_quietly, args=(receiver.receive_messages,), daemon=True)
    waiting.start()
    assert is_there.wait(ENDED_SECONDS)

    client.close()
    is_closed.set()

    waiting.join(ENDED_SECONDS / 2)
    assert not waiting.is_alive()
    assert not receiver._running
    wait_until(mute.has_hung_up, "no socket is left")


@pytest.mark.usefixtures("no_garbage_collection")
async def test_closing_ends_an_asynchronous_receiver_that_has_no_token_yet(
    mute: Mute, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pairbus.sdk.links.opening.ANSWER_SECONDS", 1000.0)
    client = aio.PairedServiceBusClient.from_connection_strings(mute.connection_string, ABSENT)
    receiver = client.get_queue_receiver("orders")
    place = "azure.servicebus.aio._servicebus_receiver_async.create_authentication"
    is_there, is_closed, original = asyncio.Event(), asyncio.Event(), pkgutil.resolve_name(place)

    async def held(*given: Any) -> Any:
        is_there.set()
        await is_closed.wait()
        return await original(*given)

    monkeypatch.setattr(place, held)
    waiting = asyncio.ensure_future(receiver.receive_messages())
    async with asyncio.timeout(ENDED_SECONDS / 2):
        await is_there.wait()

        await client.close()
        is_closed.set()

        await asyncio.wait([waiting])
    assert waiting.exception() is not None
    await until(mute.has_hung_up, "no socket is left")


@pytest.mark.usefixtures("no_garbage_collection")
async def test_closing_ends_an_asynchronous_receiver_that_has_no_connection_yet(
    mute: Mute, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pairbus.sdk.links.opening.ANSWER_SECONDS", 1000.0)
    client = aio.PairedServiceBusClient.from_connection_strings(mute.connection_string, ABSENT)
    receiver: Any = client.get_queue_receiver("orders")
    create, closing = receiver._create_handler, []

    def create_and_close(auth: Any) -> None:
        create(auth)
        closing.append(asyncio.ensure_future(receiver.close()))

    receiver._create_handler = create_and_close
    waiting = asyncio.ensure_future(receiver.receive_messages())
    async with asyncio.timeout(ENDED_SECONDS / 2):
        await asyncio.wait([waiting])
        await closing[0]
    assert waiting.exception() is not None
    await until(mute.has_hung_up, "no socket is left")
    await client.close()


def beside(mute: Mute, pair: Pair) -> str:
    """The connection string of a primary whose first address is mute."""
    text_, place = pair.primary.connection_string, mute.connection_string.split("//", 1)[1].split(";", 1)[0]
    return text_.replace("sb://", f"sb://{place},", 1)


def test_a_receiver_that_is_closed_does_not_go_on_at_the_next_address(mute: Mute, pair: Pair) -> None:
    client = PairedServiceBusClient.from_connection_strings(beside(mute, pair), ABSENT)
    receiver = client.get_queue_receiver("open")
    waiting = threading.Thread(target=_quietly, args=(receiver.receive_messages,), daemon=True)
    waiting.start()
    wait_until(lambda: bool(mute.accepted), "it is connected")

    client.close()

    waiting.join(ENDED_SECONDS / 2)
    assert not waiting.is_alive()
    assert not receiver._running


async def test_an_asynchronous_receiver_that_is_closed_does_not_go_on_at_the_next_address(
    mute: Mute, pair: Pair
) -> None:
    client = aio.PairedServiceBusClient.from_connection_strings(beside(mute, pair), ABSENT)
    receiver = client.get_queue_receiver("open")
    waiting = asyncio.ensure_future(receiver.receive_messages())
    async with asyncio.timeout(ENDED_SECONDS / 2):
        await until(lambda: len(mute.accepted) > 1, "it is connected")

        await client.close()

        await asyncio.wait([waiting])
    assert waiting.exception() is not None
    assert not receiver._running


@pytest.mark.usefixtures("no_garbage_collection")
async def test_an_asynchronous_receiver_leaves_no_socket_at_a_mute_peer(
    mute: Mute, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pairbus.sdk.links.opening.ANSWER_SECONDS", 0.2)
    client = aio.PairedServiceBusClient.from_connection_strings(mute.connection_string, ABSENT)
    receiver = client.get_queue_receiver("orders")

    with pytest.raises(ServiceBusError):
        await receiver.__aenter__()

    assert mute.accepted
    await until(mute.has_hung_up, "no socket is left", 10)
    await client.close()


@pytest.mark.parametrize("has_spool", [False, True])
def test_a_mute_secondary_is_asked_once_when_a_client_is_paired(
    mute: Mute, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_spool: bool
) -> None:
    monkeypatch.setattr("pairbus.sdk.management.admin.ANSWER_SECONDS", ENDED_SECONDS if has_spool else 1)
    monkeypatch.setattr("pairbus.pairing.client.backlog.setup.QUICK_SECONDS", 1)
    client = PairedServiceBusClient.from_connection_strings(
        ABSENT, mute.connection_string, options=options(spool=tmp_path / "spool" if has_spool else None)
    )
    begun = time.monotonic()

    with nullcontext() if has_spool else pytest.raises(NoBacklogQueuesError, match="cannot be asked"):
        client.pair()

    assert time.monotonic() - begun < ENDED_SECONDS
    assert len(mute.accepted) == 1
    client.close()
