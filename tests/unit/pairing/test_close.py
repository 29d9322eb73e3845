"""Closing a paired client: callers that give up, and callers that share it."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from azure.servicebus.exceptions import ServiceBusConnectionError

from pairbus.drain.hosting import DrainThread
from pairbus.pairing.client.client import PairedClient
from pairbus.pairing.client.registry import pairings
from pairbus.pairing.client.sync import PairedServiceBusClient
from pairbus.pairing.events import Kind
from pairbus.spool.reading import listed
from tests.unit.drain.virtual_loop import VirtualLoop
from tests.unit.pairing.fake_sdk import Bench, FakeClient, FakeSender, refuse, silence, text

REFUSED = ServiceBusConnectionError(message="refused")
WAIT_SECONDS = 10.0
ADDRESSES = ("p.servicebus.windows.net:5671", "s.servicebus.windows.net:5671")


def closed(client: PairedClient[Any, Any]) -> int:
    """How often the client has told that it is closed."""
    return [event.kind for event in client.events()].count(Kind.CLOSED)


# --- on asyncio -----------------------------------------------------------------------------------


async def give_up_after(client: Any, seconds: float) -> None:
    """Close a client and cancel that."""
    caller = asyncio.ensure_future(client.close())
    await asyncio.sleep(seconds)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller


def slow_bench(**options: Any) -> Bench:
    """A client whose sides take a second to close."""
    bench = Bench(**options)
    bench.primary.closing_s = bench.secondary.closing_s = 1.0
    return bench


@pytest.mark.promise("P44")
async def test_closing_goes_on_when_its_caller_is_cancelled(loop: VirtualLoop) -> None:
    bench = slow_bench()
    client = bench.paired()
    client._enter_registry()
    await client.get_queue_sender("orders").send_messages(text(1))
    await give_up_after(client, 0.5)
    assert closed(client) == 0

    await asyncio.sleep(5)

    assert closed(client) == 1
    assert (bench.primary.closed, bench.secondary.closed) == (1, 1)
    pairings.enter(*reversed(ADDRESSES))
    pairings.leave(*reversed(ADDRESSES))


@pytest.mark.promise("P44")
async def test_a_second_close_returns_when_the_first_has_ended(loop: VirtualLoop) -> None:
    bench = slow_bench()
    client = bench.paired()
    await client.get_queue_sender("orders").send_messages(text(1))
    await give_up_after(client, 0.5)

    await asyncio.gather(client.close(), client.close())

    assert closed(client) == 1
    assert (bench.primary.closed, bench.secondary.closed) == (1, 1)
    begun = loop.now_ms()
    await client.close()
    assert loop.now_ms() == begun


@pytest.mark.promise("P44")
async def test_a_second_close_waits_no_longer_than_it_is_told(loop: VirtualLoop) -> None:
    client = slow_bench().paired()
    await client.get_queue_sender("orders").send_messages(text(1))
    first = asyncio.ensure_future(client.close())
    await asyncio.sleep(0.1)
    begun = loop.now_ms()

    await client.close(timeout=0.2)

    assert loop.now_ms() - begun == 200
    assert closed(client) == 0
    await first
    assert closed(client) == 1


@pytest.mark.promise("P44")
async def test_closing_that_was_cancelled_itself_is_begun_again(loop: VirtualLoop) -> None:
    bench = slow_bench()
    client = bench.paired()
    await client.get_queue_sender("orders").send_messages(text(1))
    first = asyncio.ensure_future(client.close())
    await asyncio.sleep(0.5)
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()  # as the end of asyncio.run does
    await asyncio.gather(first, return_exceptions=True)

    await client.close()

    assert closed(client) == 1
    assert bench.secondary.closed == 1


@pytest.mark.promise("P44")
async def test_the_spool_is_free_after_a_close_whose_first_caller_was_cancelled(
    loop: VirtualLoop, tmp_path: Path
) -> None:
    bench = slow_bench(spool=tmp_path)
    bench.primary.answer = bench.secondary.answer = refuse(REFUSED)
    client = bench.paired()
    assert client._spooling is not None
    client._spooling.open()
    await client.get_queue_sender("orders").send_messages(text(1))
    assert listed(tmp_path)[0][0].is_in_use
    await give_up_after(client, 0.001)

    await client.close()

    assert not listed(tmp_path)[0][0].is_in_use


@pytest.mark.promise("P44")
async def test_the_link_of_a_sender_that_nobody_has_is_closed_while_it_opens(
    loop: VirtualLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(sender: FakeSender, timeout: float | None = None) -> None:  # noqa: ASYNC109 - the SDK's shape
        await silence(sender)

    client = Bench().paired()
    monkeypatch.setattr(FakeSender, "_open", never)
    sender = client.get_queue_sender("orders")
    link = sender._primary_link()
    opening = asyncio.ensure_future(link.open(60))
    await asyncio.sleep(1)
    opening.cancel()
    await asyncio.gather(opening, return_exceptions=True)
    del sender, link, opening
    gc.collect()
    assert not client._senders

    await client.close()


# --- on threads -----------------------------------------------------------------------------------


class Side:
    """An official client that closes when it is told."""

    def __init__(self, host: str) -> None:
        self.fully_qualified_namespace = host
        self._config = SimpleNamespace(use_tls=True)
        self._credential = SimpleNamespace()
        self.is_closing = threading.Event()
        self.may_close = threading.Event()
        self.closed = 0

    def close(self) -> None:
        self.is_closing.set()
        assert self.may_close.wait(WAIT_SECONDS)
        self.closed += 1


class Blocking:
    """A paired client of the synchronous kind whose primary closes when it is told."""

    def __init__(self) -> None:
        self.primary, self.secondary = Side("p.servicebus.windows.net"), Side("s.servicebus.windows.net")
        self.secondary.may_close.set()
        self.on_event: Callable[[Any], None] = lambda event: None
        sides: Any = (self.primary, self.secondary)
        self.client = PairedServiceBusClient(*sides, on_event=self._told)

    def _told(self, event: Any) -> None:
        self.on_event(event)


@pytest.fixture
def blocking() -> Iterator[Blocking]:
    subject = Blocking()
    yield subject
    subject.primary.may_close.set()
    subject.client.close()


def started(work: Callable[[], Any]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


@pytest.mark.promise("P44")
def test_a_second_thread_waits_for_the_one_that_closes(blocking: Blocking) -> None:
    client = blocking.client
    seen: list[int] = []

    def second() -> None:
        client.close()
        seen.append(closed(client))

    first = started(client.close)
    assert blocking.primary.is_closing.wait(WAIT_SECONDS)
    client.close(timeout=0.01)
    assert closed(client) == 0, "returned because its time was over"
    threads = [started(second) for _ in range(2)]
    blocking.primary.may_close.set()
    for thread in (first, *threads):
        thread.join(WAIT_SECONDS)

    assert seen == [1, 1]
    assert (blocking.primary.closed, blocking.secondary.closed) == (1, 1)


@pytest.mark.promise("P44")
def test_a_callback_does_not_wait_for_the_thread_that_closes(blocking: Blocking) -> None:
    client = blocking.client
    first = started(client.close)
    assert blocking.primary.is_closing.wait(WAIT_SECONDS)
    returned = threading.Event()

    def call_back(event: Any) -> None:
        client.close()
        returned.set()

    blocking.on_event = call_back
    # Under the lock, as most events are told: the thread that closes the client may need it.
    with client._state.lock:
        client._state.emit(Kind.PING_SENT, "orders", "asking")

    assert returned.is_set()
    assert closed(client) == 0
    blocking.primary.may_close.set()
    first.join(WAIT_SECONDS)
    assert closed(client) == 1


@pytest.mark.promise("P44")
def test_a_signal_handler_does_not_wait_for_its_own_thread(blocking: Blocking) -> None:
    client = blocking.client
    steps: list[str] = []

    def close_primary() -> None:
        client.close()  # what a handler does that interrupts this thread
        steps.append("inner")

    blocking.primary.may_close.set()
    stop = client._stop_drain

    async def interrupted(seconds: float) -> None:
        close_primary()
        await stop(seconds)

    client._stop_drain = interrupted  # type: ignore[method-assign]
    client.close()

    assert steps == ["inner"]
    assert closed(client) == 1


@pytest.mark.promise("P44")
def test_closing_that_was_interrupted_is_ended_by_the_next_close(blocking: Blocking) -> None:
    client = blocking.client
    blocking.primary.may_close.set()
    stop, interrupts = client._stop_drain, [KeyboardInterrupt()]

    async def interrupted(seconds: float) -> None:
        if interrupts:
            raise interrupts.pop()
        await stop(seconds)

    client._stop_drain = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        client.close()
    assert closed(client) == 0

    client.close()

    assert closed(client) == 1
    assert (blocking.primary.closed, blocking.secondary.closed) == (1, 1)


@pytest.mark.promise("P44")
def test_a_drain_can_be_stopped_from_within_its_own_thread() -> None:
    thread: DrainThread
    stopped = threading.Event()

    class Stopping:
        async def run(self) -> None:
            thread.stop(WAIT_SECONDS)
            stopped.set()

        def stop(self, seconds: float) -> None: ...

    parts: Any = (Stopping(), SimpleNamespace(close=lambda: None), [FakeClient("p.servicebus.windows.net")])
    failed: list[Exception] = []
    thread = DrainThread(lambda: parts, failed.append)
    thread.start()

    assert stopped.wait(WAIT_SECONDS)
    thread.stop(WAIT_SECONDS)
    assert not thread.is_running
    assert not failed


async def test_a_client_that_is_dropped_keeps_nobody_from_pairing_its_namespaces(loop: VirtualLoop) -> None:
    client = Bench().paired()
    client._enter_registry()
    registration = client._registration
    assert registration is not None
    registration()  # as the garbage collector does
    client._leave_registry()

    pairings.enter(*reversed(ADDRESSES))
    pairings.leave(*reversed(ADDRESSES))
