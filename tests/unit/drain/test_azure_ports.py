"""A syphon's inbox and outlet on false official clients."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.exceptions import (
    MessageLockLostError,
    MessagingEntityNotFoundError,
    ServiceBusConnectionError,
    ServiceBusError,
)

from pairbus.drain import azure_ports
from pairbus.drain.azure_ports import LINKS_MAX, NOT_ASKED_MAX, AzureInbox, AzureOutlet
from pairbus.drain.ports import CannotAsk, NotSent
from pairbus.drain.rules.message import BacklogMessage
from pairbus.drain.senders import MAIN_THREAD_ENDED, one_line
from pairbus.sdk.links import receivers, silence
from tests.simulation.pair.model import original
from tests.unit.pairing.fake_sdk import FakeClient, FakeSender, refuse

WALL_MS = 1_700_000_000_000
WAIT_SECONDS = 10.0


@pytest.mark.parametrize(
    ("skew_ms", "left_ms"),
    [(0, 60_000), (-30_000, 30_000), (-600_000, 5_000), (600_000, 60_000)],
    ids=["same clock", "30 s of the lock left", "our clock runs ahead", "our clock runs behind"],
)
def test_locks_are_believed_within_what_they_can_be(skew_ms: int, left_ms: int) -> None:
    client: Any = FakeClient("s")
    inbox = AzureInbox(client, "q", lambda: 1_000, lambda: WALL_MS)
    until = datetime.fromtimestamp((WALL_MS + 60_000 + skew_ms) / 1000, UTC)

    assert inbox._steady(until) == 1_000 + left_ms
    assert inbox._steady(None) == 61_000


class SlowReceiver:
    """Takes a moment to open, and then has nothing."""

    def __init__(self) -> None:
        self._running = False
        self._config: Any = type("Config", (), {})()
        self.polls = 0

    async def __aenter__(self) -> SlowReceiver:  # noqa: PYI034 - nobody inherits from it
        await asyncio.sleep(0)
        self._running = True
        return self

    async def receive_messages(self, **options: Any) -> list[Any]:
        self.polls += 1
        return []

    async def close(self) -> None:
        return


async def test_an_interrupt_while_the_link_is_opened_ends_the_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receivers, "keep_payloads", lambda receiver: None)
    monkeypatch.setattr(receivers, "interruptible", lambda receiver: lambda **options: None)
    monkeypatch.setattr(silence, "ask_for_signs_of_life", lambda receiver: None)
    monkeypatch.setattr(silence, "leave_when_silent", lambda receiver: None)
    receiver = SlowReceiver()
    client: Any = type("Client", (), {"get_queue_receiver": lambda self, queue: receiver})()
    inbox = AzureInbox(client, "q", lambda: 0, lambda: 0)
    inbox.interrupt()  # before the poll: it does not concern it
    poll = asyncio.ensure_future(inbox.receive(1, 900))
    await asyncio.sleep(0)
    inbox.interrupt()

    assert await poll == []
    assert receiver.polls == 0
    assert await inbox.receive(1, 900) == []
    assert receiver.polls == 1


async def test_links_to_destinations_are_bounded() -> None:
    fake = FakeClient("p")
    client: Any = fake
    outlet = AzureOutlet(client)
    payload = original(1, None, has_alias_name=False, has_life=False)
    for number in range(LINKS_MAX + 20):
        path = f"q{number}"
        await outlet.send(path, [BacklogMessage("b", number, path, payload, "m1", None, None, 0)])

    still_open = [sender.path for sender in fake.senders if not sender.is_closed]
    assert still_open == [f"q{number}" for number in range(20, LINKS_MAX + 20)]
    await outlet.close()
    assert all(sender.is_closed for sender in fake.senders)


async def test_a_link_in_use_is_not_closed_for_another() -> None:
    fake = FakeClient("p")
    client: Any = fake
    outlet = AzureOutlet(client)
    payload = original(1, None, has_alias_name=False, has_life=False)
    release = asyncio.Event()

    async def wait(sender: FakeSender) -> None:
        await release.wait()

    fake.answers["slow"] = wait
    slow = asyncio.ensure_future(
        outlet.send("slow", [BacklogMessage("b", 1, "slow", payload, "m1", None, None, 0)])
    )
    await asyncio.sleep(0)
    for number in range(LINKS_MAX + 5):
        path = f"q{number}"
        await outlet.send(path, [BacklogMessage("b", number, path, payload, "m1", None, None, 0)])
    assert not fake.senders[0].is_closed
    release.set()
    await slow

    assert fake.stored["slow"] == [payload]
    await outlet.close()


async def test_a_link_that_is_asked_for_its_largest_message_is_not_closed_meanwhile() -> None:
    fake = FakeClient("p")
    client: Any = fake
    outlet = AzureOutlet(client)
    payload = original(1, None, has_alias_name=False, has_life=False)
    release = asyncio.Event()

    async def wait(sender: FakeSender) -> None:
        await release.wait()

    fake.answers["slow"] = wait
    asked = asyncio.ensure_future(outlet.largest("slow"))
    await asyncio.sleep(0)
    for number in range(LINKS_MAX + 5):
        path = f"q{number}"
        await outlet.send(path, [BacklogMessage("b", number, path, payload, "m1", None, None, 0)])
    assert not fake.senders[0].is_closed
    release.set()
    await asked

    assert sum(not sender.is_closed for sender in fake.senders) == LINKS_MAX
    await outlet.close()


async def test_destinations_that_do_not_show_their_messages_are_remembered_in_bounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client: Any = FakeClient("p")
    outlet = AzureOutlet(client, lambda: 1_000)
    looked: list[str] = []

    async def refuse_to_show(index: object, path: str, ids: object, now: int) -> None:
        looked.append(path)
        raise MessagingEntityNotFoundError

    monkeypatch.setattr(outlet, "_look", refuse_to_show)

    async def ask(number: int) -> None:
        doubtful = BacklogMessage("b", number, f"q{number}", b"", f"m{number}", None, None, 0)
        with pytest.raises(CannotAsk):
            await outlet.already_delivered(f"q{number}", [doubtful], frozenset({f"m{number}"}))

    for number in range(NOT_ASKED_MAX + 20):
        await ask(number)
    await ask(NOT_ASKED_MAX + 19)

    assert len(looked) == NOT_ASKED_MAX + 20, "the last one is not asked again"
    assert len(outlet._not_asked_until) == NOT_ASKED_MAX


def test_a_drain_that_outlives_the_main_thread_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    error = RuntimeError("cannot schedule new futures after interpreter shutdown")
    assert one_line(error) == f"RuntimeError: {error}"

    monkeypatch.setattr("threading.main_thread", lambda: SimpleNamespace(is_alive=lambda: False))

    assert one_line(error) == MAIN_THREAD_ENDED
    assert one_line(OSError("no route")) == "OSError: no route"


async def test_a_send_whose_link_does_not_open_is_known_not_to_have_left() -> None:
    fake = FakeClient("p")
    client: Any = fake
    outlet = AzureOutlet(client)
    payload = original(1, None, has_alias_name=False, has_life=False)
    message = BacklogMessage("b", 1, "q", payload, "m1", None, None, 0)
    fake.answers["q"] = refuse(ServiceBusConnectionError())

    with pytest.raises(NotSent) as caught:
        await outlet.send("q", [message])
    assert isinstance(caught.value.__cause__, ServiceBusConnectionError)
    assert fake.attempts == [], "nothing was handed to the link"

    del fake.answers["q"]
    await outlet.send("q", [message])
    fake.answers["q"] = refuse(ServiceBusConnectionError())
    with pytest.raises(ServiceBusConnectionError):
        await outlet.send("q", [message])
    await outlet.close()


class BrowsedReceiver(SlowReceiver):
    """It is open."""

    is_closed = False

    async def close(self) -> None:
        self.is_closed = True


@pytest.mark.parametrize("queue", ["q", "another"])
async def test_a_look_without_an_answer_is_given_up_with_its_connection(
    queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = BrowsedReceiver(), BrowsedReceiver()
    opened = iter([first, second])
    looked: list[Any] = []

    async def page_of(receiver: Any, number: int, count: int) -> list[Any]:
        looked.append(receiver)
        if receiver is first:
            await asyncio.Event().wait()
        return []

    async def open_next() -> Any:
        if inbox._receiver is None:
            inbox._receiver = next(opened)  # type: ignore[assignment]
        return inbox._receiver

    async def browser(path: str) -> Any:
        return inbox._browsers.setdefault(path, next(opened))

    monkeypatch.setattr(azure_ports, "OPEN_SECONDS", 0.01)
    monkeypatch.setattr(azure_ports, "page_of", page_of)
    client: Any = FakeClient("s")
    inbox = AzureInbox(client, "q", lambda: 0, lambda: 0)
    monkeypatch.setattr(inbox, "_open", open_next)
    monkeypatch.setattr(inbox, "_browser", browser)

    with pytest.raises(TimeoutError, match="its connection is left"):
        await inbox.browse(1, 10, queue)

    assert first.is_closed
    assert await inbox.browse(1, 10, queue) == []
    assert looked == [first, second]


async def test_a_queue_whose_link_is_opened_again_keeps_its_views_of_other_queues(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(receivers, "keep_payloads", lambda receiver: None)
    monkeypatch.setattr(receivers, "interruptible", lambda receiver: lambda **options: None)
    monkeypatch.setattr(silence, "ask_for_signs_of_life", lambda receiver: None)
    monkeypatch.setattr(silence, "leave_when_silent", lambda receiver: None)
    client: Any = type("Client", (), {"get_queue_receiver": lambda self, queue: BrowsedReceiver()})()
    inbox = AzureInbox(client, "q", lambda: 0, lambda: 0)
    own, other = await inbox._open(), BrowsedReceiver()
    inbox._browsers["another"] = other
    own._running = False  # its connection has ended

    assert await inbox._open() is not own

    assert own.is_closed  # type: ignore[attr-defined]
    assert not other.is_closed
    await inbox.close()
    assert other.is_closed


class RenewingReceiver:
    """Renews all locks of a request or none."""

    def __init__(self, lost: set[str]) -> None:
        self.lost = lost
        self.requests: list[list[str]] = []

    async def _renew_locks(self, *tokens: str, timeout: float) -> dict[bytes, list[int]]:  # noqa: ASYNC109 - the SDK's shape
        self.requests.append(list(tokens))
        if self.lost.intersection(tokens):
            raise MessageLockLostError
        return {b"expirations": [WALL_MS + 60_000] * len(tokens)}


async def test_locks_are_renewed_with_one_request_and_halves_tell_which_is_lost() -> None:
    client: Any = FakeClient("s")
    inbox = AzureInbox(client, "q", lambda: 1_000, lambda: WALL_MS)
    messages = [
        BacklogMessage(
            "q", number, "o", b"", "", None, None, 0, token=SimpleNamespace(lock_token=f"t{number}")
        )
        for number in range(100)
    ]
    assert await inbox.renew(messages[:2]) == [None, None], "without a link no lock is held"
    receiver: Any = RenewingReceiver(set())
    inbox._receiver = receiver
    assert await inbox.renew(messages) == [61_000] * 100
    assert len(receiver.requests) == 1

    receiver.lost = {"t7"}
    ends = await inbox.renew(messages)
    assert [number for number, end in enumerate(ends) if end is None] == [7]
    assert len(receiver.requests) < 1 + 2 * 8


@pytest.mark.promise("P44")
@pytest.mark.parametrize("is_silent", [False, True], ids=["ends the connection", "says nothing"])
@pytest.mark.parametrize("port", ["inbox", "browser", "outlet"])
async def test_a_port_closes_the_sockets_of_connections_that_did_not_work(
    port: str, is_silent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The SDK alone leaves them to the garbage collector."""
    monkeypatch.setattr(azure_ports, "OPEN_SECONDS", 0.5)
    accepted: list[asyncio.StreamWriter] = []
    ports: set[int] = set()

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.append(writer)
        ports.add(writer.get_extra_info("peername")[1])
        if not is_silent:
            writer.close()

    gc.disable()
    try:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        client = ServiceBusClient.from_connection_string(
            f"Endpoint=sb://{address};SharedAccessKeyName=k;SharedAccessKey=a2V5;UseDevelopmentEmulator=true",
            retry_total=0,
        )
        inbox, outlet = AzureInbox(client, "q", lambda: 0, lambda: WALL_MS), AzureOutlet(client)
        parked = BacklogMessage(
            "b", 1, "orders", original(1, None, has_alias_name=False, has_life=False), "m1", None, None, 0
        )
        calls: dict[str, Callable[[], Awaitable[object]]] = {
            "inbox": inbox._open,
            "browser": lambda: inbox._browser("other"),
            "outlet": lambda: outlet.send("orders", [parked]),
        }
        with pytest.raises((ServiceBusError, TimeoutError, NotSent)):
            async with asyncio.timeout(1 if is_silent else WAIT_SECONDS):
                await calls[port]()
        await inbox.close()
        await outlet.close()
        await client.close()
        await asyncio.sleep(0)

        assert ports
        assert [one for one in gc.get_objects() if _is_from(one, ports)] == []
    finally:
        gc.enable()
        server.close()
        for writer in accepted:
            writer.transport.abort()


def _is_from(found: object, ports: set[int]) -> bool:
    is_open = isinstance(found, socket.socket) and found.family == socket.AF_INET and found.fileno() >= 0
    return is_open and found.getsockname()[1] in ports  # type: ignore[attr-defined]
