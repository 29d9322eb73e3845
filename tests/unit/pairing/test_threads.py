"""The runtime on threads: changes, time limits, work side by side."""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import OperationTimeoutError, ServiceBusError

from pairbus.pairing.runtime import thread_link
from pairbus.pairing.runtime import thread_runtime as runtime
from pairbus.pairing.runtime.attempts import Attempts, LinkClosed, NotWanted, current_attempts
from pairbus.pairing.runtime.thread_link import NEVER, ThreadLink
from pairbus.pairing.runtime.turns import Turn
from pairbus.sdk.links import handlers

WAIT_SECONDS = 10.0


def link(limits: runtime.Limits, send_messages: Any = None, pause: Any = None) -> ThreadLink:
    sender = SimpleNamespace(
        send_messages=send_messages,
        _send=None,
        _handler=None,
        _running=True,
        _open=None,
        _backoff=pause,
        _close_handler=lambda: None,
        _handle_exception=lambda error: error,
    )
    return ThreadLink(sender, limits, lambda: True)


class GivenBack(Turn):
    """A turn that another thread has, and gives back when somebody begins to wait for it."""

    def __init__(self) -> None:
        super().__init__()
        self.lock.acquire()

    def take(self, seconds: float, is_of_use: Callable[[], bool]) -> bool:
        self.release()
        return super().take(seconds, lambda: True)


def test_a_coroutine_that_would_wait_for_an_event_loop_is_a_mistake() -> None:
    with pytest.raises(RuntimeError, match="event loop"):
        runtime.run(asyncio.sleep(1))


def test_a_change_between_looking_and_waiting_is_not_missed() -> None:
    subject = runtime.ThreadRuntime()
    token = subject.change_token()
    subject.notify()

    def wait() -> None:
        runtime.run(subject.wait_for_change(token, 3_600.0))

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    waiting.join(WAIT_SECONDS)

    assert not waiting.is_alive()


def test_the_watcher_outlives_senders_that_are_made_while_it_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "WATCH_SECONDS", 0.0)
    limits = runtime.Limits()
    kept: list[ThreadLink] = [link(limits) for _ in range(200)]
    busy = kept[0]
    busy.until = 1e18
    limits.start()
    watcher = limits.watcher
    assert watcher is not None

    def make() -> None:
        kept.extend(link(limits) for _ in range(3_000))

    makers = [threading.Thread(target=make) for _ in range(3)]
    for maker in makers:
        maker.start()
    for maker in makers:
        maker.join(WAIT_SECONDS)

    assert watcher.is_alive()
    busy.until = NEVER
    watcher.join(WAIT_SECONDS)
    assert not watcher.is_alive(), "and ends when there is nothing to watch"


def test_a_call_that_overruns_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "WATCH_SECONDS", 0.001)
    cut = threading.Event()
    monkeypatch.setattr("pairbus.sdk.links.handlers.cut_socket", lambda handler: cut.set())

    async def call() -> None:
        async with runtime.ThreadRuntime().limit(object(), 0.01):
            assert cut.wait(WAIT_SECONDS)

    runtime.run(call())


def test_a_plain_send_that_overruns_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "WATCH_SECONDS", 0.001)
    cut = threading.Event()
    monkeypatch.setattr("pairbus.sdk.links.handlers.cut_socket", lambda handler: cut.set())

    def send_messages(message: Any, **options: Any) -> None:
        assert cut.wait(WAIT_SECONDS)
        raise ConnectionError

    subject = link(runtime.Limits(), send_messages)
    with pytest.raises(ConnectionError):
        runtime.run(subject.send("message", 0.01, 0.01))


def test_who_waits_for_the_link_while_its_entity_fails_over_does_not_use_it() -> None:
    sent: list[str] = []
    subject = link(runtime.Limits(), lambda message, **options: sent.append(message))
    subject._is_wanted = lambda: False
    turn = subject.turn = GivenBack()
    failed = subject.try_to_send("message", WAIT_SECONDS, WAIT_SECONDS)

    assert failed is not None
    assert type(failed.error) is NotWanted
    assert sent == []
    assert not turn.lock.locked(), "the next one may have the turn"


@pytest.mark.parametrize("happens", ["failed over", "closed"])
def test_the_sdk_does_not_try_again_what_became_of_no_use_in_its_pause(happens: str) -> None:
    attempts: list[str] = []

    def send_messages(message: str, **options: Any) -> None:
        while True:
            attempts.append(message)
            subject.sender._handle_exception(ConnectionError())
            subject.sender._backoff(retried_times=1)

    def pause(**details: Any) -> None:
        if len(attempts) == 2 and happens == "failed over":
            subject._is_wanted = lambda: False
        elif len(attempts) == 2:
            subject.is_closed = True

    subject = link(runtime.Limits(), send_messages, pause)
    subject.sender.close = lambda: None
    failed = subject.try_to_send("message", WAIT_SECONDS, WAIT_SECONDS)

    assert failed is not None
    assert type(failed.error) is (NotWanted if happens == "failed over" else LinkClosed)
    assert attempts == ["message"] * 2


@pytest.mark.promise("P5")
@pytest.mark.parametrize("opens", [False, True])
def test_a_message_has_left_only_when_its_link_was_open(opens: bool) -> None:
    def open_(timeout: float | None) -> None:
        subject.sender._running = opens
        if not opens:
            raise ConnectionRefusedError

    def send_messages(message: str, **options: Any) -> None:
        subject.sender._open(1.0)
        raise ConnectionResetError

    subject = link(runtime.Limits(), send_messages)
    subject._sdk_open = open_
    subject.sender._running = False
    failed = subject.try_to_send("message", WAIT_SECONDS, WAIT_SECONDS)

    assert failed is not None
    assert failed.attempts.is_sent is opens


@pytest.mark.promise("P5")
def test_a_request_that_has_left_stays_so_when_the_sdk_opens_its_link_again() -> None:
    attempts = Attempts()

    def request() -> None:
        subject.sender._running = False
        subject.sender._open(1.0)
        raise ConnectionResetError

    subject = link(runtime.Limits())
    subject.sender._open_with_retry = lambda: None
    subject._sdk_open = lambda timeout: None
    current_attempts.set(attempts)
    with pytest.raises(ConnectionResetError):
        runtime.run(subject.call(request, WAIT_SECONDS))

    assert attempts.is_sent


def test_a_send_that_fails_does_not_wait_for_the_end_of_its_connection() -> None:
    is_over = threading.Event()
    handler = SimpleNamespace(close=lambda: is_over.wait(WAIT_SECONDS))

    def send_messages(message: Any, **options: Any) -> None:
        # What the SDK does with a connection that is lost. Its close waits for a thread that sleeps for half a second.
        subject.sender._close_handler()
        raise ConnectionError

    subject = link(runtime.Limits(), send_messages)
    subject.sender._handler = handler
    with pytest.raises(ConnectionError):
        runtime.run(subject.send("message", 1.0, 1.0))

    assert not is_over.is_set()
    assert subject.sender._handler is None
    is_over.set()


@pytest.mark.parametrize("has_answer", [True, False])
def test_short_attempts_without_an_answer_end_a_connection_that_did_not_answer_between_them(
    has_answer: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(thread_link, "time", SimpleNamespace(monotonic=lambda: now))

    def send_messages(message: str, timeout: float) -> None:
        nonlocal now
        if message == "answered":
            return
        now += timeout
        raise subject.sender._handle_exception(OperationTimeoutError())

    subject = link(runtime.Limits(), send_messages)
    subject.sender._handler = SimpleNamespace(close=lambda: None)
    short = thread_link.ANSWER_SECONDS_MIN * 0.6
    subject.try_to_send("silent", short, WAIT_SECONDS)
    if has_answer:
        assert subject.try_to_send("answered", short, WAIT_SECONDS) is None
    subject.try_to_send("silent", short, WAIT_SECONDS)

    assert (subject.sender._handler is not None) is has_answer


def test_who_got_the_turn_with_little_time_left_opens_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(thread_link, "time", SimpleNamespace(monotonic=lambda: now))
    sent: list[str] = []
    subject = link(runtime.Limits(), lambda message, **options: sent.append(message))
    subject.sender._running = False

    class SlowTurn(GivenBack):
        def take(self, seconds: float, is_of_use: Callable[[], bool]) -> bool:
            nonlocal now
            now += seconds - thread_link.OPEN_SECONDS_MIN / 2
            return super().take(seconds, is_of_use)

    turn = subject.turn = SlowTurn()
    failed = subject.try_to_send("message", WAIT_SECONDS, WAIT_SECONDS)

    assert failed is not None
    assert type(failed.error) is OperationTimeoutError
    assert not failed.attempts.is_sent
    assert sent == []
    assert not turn.lock.locked(), "the next one may have the turn"


def test_a_forked_process_has_a_watcher_of_its_own() -> None:
    limits = runtime.Limits()
    slot = link(limits)
    slot.until = 1e18
    limits.start()
    parents = limits.watcher
    runtime._forked()

    assert limits.watcher is None
    limits.start()
    assert limits.watcher is not parents
    slot.until = NEVER


def test_together_waits_no_longer_than_told() -> None:
    release = threading.Event()
    done: list[object] = []

    async def work(item: object) -> None:
        if item == "slow":
            release.wait(WAIT_SECONDS)
        done.append(item)

    runtime.run(runtime.ThreadRuntime().together(work, ["slow", "quick"], 0.2))

    assert done == ["quick"]
    release.set()


def test_the_watcher_ends_with_the_client_not_after_its_idle_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "IDLE_TURNS", 10**9)
    subject = runtime.ThreadRuntime()
    limits = subject.limits

    async def call() -> None:
        async with subject.limit(object(), 3_600.0):
            assert limits.watcher is not None
            limits.end(0.0)
            assert limits.watcher.is_alive(), "a call in progress is watched to its end"

    runtime.run(call())
    watcher = limits.watcher
    limits.end(WAIT_SECONDS)

    assert watcher is None or not watcher.is_alive()
    assert limits.watcher is None


# --- a peer that accepts connections and never answers ------------------------------------------------


@pytest.fixture
def peer() -> Iterator[socket.socket]:
    """A silent peer: its connections are made, and nobody reads from them."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listening:
        listening.settimeout(WAIT_SECONDS)
        yield listening


@pytest.fixture
def client(peer: socket.socket) -> ServiceBusClient:
    """The official client of the silent peer."""
    conn_str = (
        f"Endpoint=sb://127.0.0.1:{peer.getsockname()[1]};SharedAccessKeyName=k;SharedAccessKey=a2V5;"
        "UseDevelopmentEmulator=true"
    )
    # It is not closed: a call that hangs would hold that, too.
    return ServiceBusClient.from_connection_string(conn_str, retry_backoff_factor=0.01)


@pytest.fixture
def silent(client: ServiceBusClient) -> ThreadLink:
    """A link to the silent peer."""
    return ThreadLink(client.get_queue_sender("orders"), runtime.Limits(), lambda: True)


def in_thread(work: Callable[[], Any]) -> tuple[threading.Thread, list[BaseException]]:
    """Run ``work`` in a thread that a failed test leaves behind."""
    errors: list[BaseException] = []

    def call() -> None:
        try:
            runtime.run(work())
        except Exception as error:  # noqa: BLE001 - the test looks at it
            errors.append(error)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    return thread, errors


def schedule(link: ThreadLink, seconds: float) -> Any:
    return link.call(link.sender.schedule_messages, seconds, ServiceBusMessage("x"), None)


CALLS: dict[str, Callable[[ThreadLink, float], Any]] = {
    "open": lambda link, seconds: link.open(seconds),
    "call": schedule,
    "send": lambda link, seconds: link.send(ServiceBusMessage("x"), seconds, seconds),
}


@pytest.mark.parametrize("name", ["open", "call"])
def test_a_call_ends_though_each_connection_that_the_sdk_opens_is_silent(
    silent: ThreadLink, name: str
) -> None:
    thread, errors = in_thread(lambda: CALLS[name](silent, 0.2))
    thread.join(WAIT_SECONDS)

    assert not thread.is_alive()
    assert [type(error) for error in errors] == [OperationTimeoutError]
    assert "did not end in time" in str(errors[0])


@pytest.mark.promise("P44")
@pytest.mark.parametrize("name", CALLS)
def test_closing_a_link_ends_the_call_that_waits_for_a_silent_peer(
    peer: socket.socket, silent: ThreadLink, name: str
) -> None:
    running = [in_thread(lambda: CALLS[name](silent, 3_600.0)) for _ in range(3)]
    connected, _ = peer.accept()
    with connected:
        closing, problems = in_thread(silent.close)
        closing.join(WAIT_SECONDS)
        connected.settimeout(WAIT_SECONDS)
        while connected.recv(1_000):
            pass  # until the end of the stream: no socket is left

    assert not closing.is_alive()
    assert not problems
    for thread, errors in running:
        thread.join(WAIT_SECONDS)
        assert not thread.is_alive()
        assert errors
    assert [one for one in threading.enumerate() if one.name == "pairbus-closing"] == []
    with pytest.raises((LinkClosed, ValueError)):
        runtime.run(CALLS[name](silent, 3_600.0))


def test_a_call_that_goes_on_after_it_was_cut_off_is_cut_off_again(monkeypatch: pytest.MonkeyPatch) -> None:
    cuts: list[object] = []
    monkeypatch.setattr("pairbus.sdk.links.handlers.cut_socket", cuts.append)
    limits = runtime.Limits()
    subject = link(limits)
    subject.until = 10.0
    for now in (9.9, 10.0, 10.0 + runtime.CUT_AGAIN_SECONDS / 2, 10.0 + runtime.CUT_AGAIN_SECONDS):
        limits._look(now)
    assert cuts == [subject.sender] * 2

    subject.until = NEVER
    assert not limits._look(1e9), "and a link without a call is left alone"
    assert len(cuts) == 2


def test_a_call_that_outlasts_the_closing_of_its_link_is_cut_off_by_the_watcher(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cuts: list[Any] = []
    monkeypatch.setattr("pairbus.sdk.links.handlers.cut_socket", cuts.append)
    monkeypatch.setattr("pairbus.pairing.runtime.thread_link.CLOSE_SECONDS", 0.01)
    monkeypatch.setattr("pairbus.pairing.runtime.thread_link.CUT_SECONDS", 0.01)
    limits = runtime.Limits()
    handler = SimpleNamespace(close=lambda: None)
    subject = link(limits)
    subject.sender._handler, subject.sender.close = handler, lambda: None
    subject.until = 1e18
    with subject.turn.lock:
        runtime.run(subject.close())
        assert subject.sender._handler is handler, "it stays with its thread, or nobody could cut it"
        assert limits._look(10.0)
        assert cuts[-1] is subject.sender
    subject.until = NEVER

    subject._end_if_free()
    assert subject.sender._handler is None


def test_a_receiver_whose_opening_was_cut_off_leaves_no_socket(
    peer: socket.socket, client: ServiceBusClient
) -> None:
    subject = runtime.ThreadRuntime()
    receiver = client.get_queue_receiver("orders")
    handlers.set_retries(receiver, 0)

    async def enter() -> None:
        async with subject.limit(receiver, 0.1), subject.entered(receiver):
            pass

    gc.disable()
    try:
        thread, errors = in_thread(enter)
        connected, _ = peer.accept()
        thread.join(WAIT_SECONDS)
        assert errors
        port = connected.getpeername()[1]
        assert [one for one in gc.get_objects() if _is_from(one, port)] == []
    finally:
        gc.enable()
        connected.close()


@pytest.mark.promise("P44")
def test_closing_ends_a_ping_that_waits_for_a_silent_primary(
    peer: socket.socket, client: ServiceBusClient
) -> None:
    subject = runtime.ThreadRuntime()
    sender = client.get_queue_sender("orders")
    handlers.set_retries(sender, 0)
    handlers.free_sockets(sender)
    ended = threading.Event()

    async def ping() -> None:
        try:
            async with subject.limit(sender, 60.0):
                sender.send_messages(ServiceBusMessage("x"), timeout=60)
        except ServiceBusError:
            ended.set()

    gc.disable()
    try:
        subject.spawn(ping)
        connected, _ = peer.accept()
        runtime.run(subject.stop_tasks(WAIT_SECONDS))
        assert ended.is_set(), "it waits for the peer, and closing the client would take its connection away"
        client.close()
        port = connected.getpeername()[1]
        assert [one for one in gc.get_objects() if _is_from(one, port)] == []
    finally:
        gc.enable()
        connected.close()
        runtime.run(subject.end(WAIT_SECONDS))


def _is_from(found: object, port: int) -> bool:
    if not isinstance(found, socket.socket) or found.fileno() < 0:
        return False
    return bool(found.getsockname()[1] == port)
