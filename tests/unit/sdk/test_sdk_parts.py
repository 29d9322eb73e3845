"""The place that reaches under the official SDK's surface, held to the SDK that is installed."""

from __future__ import annotations

import asyncio
import gc
import inspect
import socket
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace, TracebackType
from typing import Any, Self

import pytest
from azure.core.settings import settings
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus import exceptions as sdk
from azure.servicebus.aio import ServiceBusClient as AsyncClient

from pairbus.pairing import parking
from pairbus.pairing.parking import Passport
from pairbus.sdk import client_settings
from pairbus.sdk.async_client import asynchronous
from pairbus.sdk.failures import is_refusal
from pairbus.sdk.links import handlers
from pairbus.sdk.messages import message_bytes, sections

TEXT = "Endpoint=sb://p.servicebus.windows.net/;SharedAccessKeyName=k;SharedAccessKey=c2VjcmV0"


@pytest.mark.parametrize("kind", [ServiceBusClient, AsyncClient])
def test_what_is_used_of_the_sdk_is_there(kind: Any) -> None:
    client = kind.from_connection_string(TEXT)
    sender, receiver = client.get_queue_sender("orders"), client.get_queue_receiver("orders")

    assert client_settings.uses_tls(client)
    assert client_settings.credential_of(client) is not None
    assert message_bytes.batch_limit(sender) == 0
    handlers.set_retries(sender, 0)
    assert (sender._config.retry_total, client._config.retry_total) == (0, 3), (
        "the client's own setting stays"
    )
    assert callable(receiver._build_received_message)
    batch = message_bytes.batch_of(
        message_bytes.new_batch(1_000, sender), [message_bytes.encoded(ServiceBusMessage("x"))]
    )
    assert (len(batch), len(message_bytes.messages_of(batch))) == (1, 1)
    assert inspect.iscoroutinefunction(sender._handle_exception) == (kind is AsyncClient)


def test_a_client_reaches_its_namespace_as_the_one_it_was_made_after() -> None:
    client: Any = ServiceBusClient.from_connection_string(
        TEXT, retry_total=7, retry_mode="fixed", user_agent="mine", connection_verify="/ca.pem"
    )

    other = asynchronous(client)

    assert isinstance(other, AsyncClient)
    assert client_settings.settings_of(other) == client_settings.settings_of(client)
    assert other.fully_qualified_namespace == client.fully_qualified_namespace


@pytest.mark.parametrize("kind", [ServiceBusClient, AsyncClient])
def test_a_link_is_opened_without_a_pause_between_its_frames(
    kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sender: Any = kind.from_connection_string(TEXT).get_queue_sender("orders")
    frames = 9
    read: list[int] = []

    def is_ready() -> bool:
        read.append(len(read))
        return len(read) > frames

    async def is_ready_later() -> bool:
        return is_ready()

    handler = SimpleNamespace(client_ready=is_ready, client_ready_async=is_ready_later)
    monkeypatch.setattr(sender, "_create_handler", lambda auth: setattr(sender, "_handler", handler))

    handlers.open_quickly(sender)
    sender._create_handler(None)

    answer = handler.client_ready() if kind is ServiceBusClient else asyncio.run(handler.client_ready_async())
    assert answer is True, (
        "one question of the SDK reads every frame; it sleeps for 50 ms before it asks again"
    )
    assert len(read) == frames + 1


async def test_an_opening_that_breaks_as_its_caller_is_cancelled_leaves_no_error_that_nobody_looks_at() -> (
    None
):
    begun, gate = asyncio.Event(), asyncio.Event()
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: reported.append(context))

    async def is_ready() -> bool:
        begun.set()
        try:
            await gate.wait()
        finally:
            raise ConnectionResetError

    handler = SimpleNamespace(client_ready_async=is_ready)
    sender: Any = SimpleNamespace(_create_handler=lambda auth: setattr(sender, "_handler", handler))
    handlers.open_quickly(sender)
    sender._create_handler(None)
    opening = asyncio.ensure_future(asyncio.wait_for(handler.client_ready_async(), 60))
    await begun.wait()
    opening.cancel()
    with pytest.raises((asyncio.CancelledError, ConnectionResetError)):
        await opening
    del opening
    gc.collect()
    await asyncio.sleep(0)
    assert reported == []


def test_a_link_that_does_not_open_leaves_the_deadline_to_the_sdk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handlers, "READ_SECONDS", 0.0)
    handler = SimpleNamespace(client_ready=lambda: False)
    sender: Any = SimpleNamespace(_create_handler=lambda auth: setattr(sender, "_handler", handler))

    handlers.open_quickly(sender)
    sender._create_handler(None)

    assert handler.client_ready() is False


@pytest.mark.promise("P16")
def test_server_busy_ends_the_sdks_own_attempts_and_others_are_told() -> None:
    sender: Any = ServiceBusClient.from_connection_string(TEXT).get_queue_sender("orders")
    noticed: list[BaseException] = []
    handlers.watch_attempts(sender, noticed.append)
    attempts: list[int] = []

    def busy(**options: Any) -> None:
        attempts.append(1)
        raise sdk.ServiceBusServerBusyError

    with pytest.raises(sdk.ServiceBusServerBusyError):
        sender._do_retryable_operation(busy)
    assert (len(attempts), noticed) == (1, [])

    handlers.set_retries(sender, 1, backoff_s=0.0)

    def lost(**options: Any) -> None:
        raise sdk.ServiceBusConnectionError

    with pytest.raises(sdk.ServiceBusConnectionError):
        sender._do_retryable_operation(lost)
    assert len(noticed) == 2


@pytest.mark.promise("P32")
def test_a_definite_answer_of_a_backlog_queue_is_not_asked_for_again() -> None:
    sender: Any = ServiceBusClient.from_connection_string(TEXT).get_queue_sender("backlog")
    handlers.set_retries(sender, 1, backoff_s=0.0)
    handlers.watch_attempts(sender, lambda error: None, is_refusal)

    def attempts(error: Exception) -> int:
        made: list[int] = []

        def operation(**options: Any) -> None:
            made.append(1)
            raise error

        with pytest.raises(type(error)):
            sender._do_retryable_operation(operation)
        return len(made)

    assert attempts(sdk.MessagingEntityDisabledError()) == 1
    assert attempts(sdk.MessagingEntityNotFoundError()) == 1
    assert attempts(sdk.ServiceBusQuotaExceededError()) == 1
    assert attempts(sdk.ServiceBusError("no session", condition="amqp:not-allowed")) == 1
    assert attempts(sdk.ServiceBusConnectionError()) == 2, "a connection that died while idle is opened again"


@pytest.mark.promise("P16")
async def test_server_busy_ends_the_asynchronous_sdks_own_attempts() -> None:
    sender: Any = AsyncClient.from_connection_string(TEXT).get_queue_sender("orders")
    noticed: list[BaseException] = []
    handlers.watch_attempts(sender, noticed.append)
    attempts: list[int] = []

    async def busy(**options: Any) -> None:
        attempts.append(1)
        raise sdk.ServiceBusServerBusyError

    with pytest.raises(sdk.ServiceBusServerBusyError):
        await sender._do_retryable_operation(busy)
    assert (len(attempts), noticed) == (1, [])


@pytest.mark.parametrize("is_wrapped", [False, True], ids=["plain", "as a WebSocket wraps it"])
def test_a_socket_is_cut_under_a_caller_that_waits(is_wrapped: bool) -> None:
    near, far = socket.socketpair()

    class WebSocket:
        sock = near

        def shutdown(self) -> None:
            raise AssertionError("this would only close it here")

    transport = SimpleNamespace(sock=WebSocket() if is_wrapped else near)
    handler = SimpleNamespace(_handler=SimpleNamespace(_connection=SimpleNamespace(_transport=transport)))
    with near, far:
        handlers.cut_socket(handler)

        assert far.recv(1) == b""
    handlers.cut_socket(SimpleNamespace(_handler=None))


@pytest.mark.promise("P44")
@pytest.mark.parametrize("is_link", [True, False], ids=["of a link", "of a receiver"])
def test_the_end_of_a_dead_connection_closes_its_socket_and_waits_for_its_keep_alive(is_link: bool) -> None:
    done: list[str] = []

    def close() -> None:
        raise OSError("the peer is gone")

    def join(seconds: float) -> None:
        done.append(f"joined within {seconds:g}")

    connection = SimpleNamespace(_transport=SimpleNamespace(close=lambda: done.append("freed")))
    keeping = SimpleNamespace(join=join)
    handler = SimpleNamespace(close=close, _connection=connection, _keep_alive_thread=keeping)
    if is_link:
        ends = partial(handlers.end_handler, handler)
    else:
        receiver = SimpleNamespace(_handler=handler, _close_handler=close)
        handlers.free_sockets(receiver)
        ends = receiver._close_handler

    with pytest.raises(OSError, match="the peer is gone"):
        ends()

    assert done == ["freed", "joined within 2"]


class Span:
    """As much of a tracing plug-in as the SDK uses."""

    def __init__(self, name: str, kind: object) -> None:
        self.name = name

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return

    def to_header(self) -> dict[str, str]:
        return {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}

    def add_attribute(self, key: str, value: object) -> None:
        return


@pytest.fixture
def _traced() -> Iterator[None]:
    settings.tracing_implementation.set_value(Span)  # type: ignore[arg-type]  # as much of one as is used
    yield
    settings.tracing_implementation.unset_value()


@pytest.mark.usefixtures("_traced")
def test_trace_context_survives_the_detour() -> None:
    message = ServiceBusMessage("x", application_properties={"mine": 1})

    parked = parking.park(
        message_bytes.encoded(message, is_traced=True), "orders", Passport("f", 1, 1, "timeout")
    )

    home = sections.split(parking.restore(parked, 0).payload)
    found = sections.map_items(sections.find(home, sections.APPLICATION_PROPERTIES))
    names = [sections.text_of(key) for key, _ in found]
    assert names == ["mine", "Diagnostic-Id", "traceparent"]
    assert message.application_properties == {"mine": 1}, "the caller's object is never changed"


def test_the_body_of_a_message_is_compared_whatever_surrounds_it() -> None:
    one = message_bytes.encoded(ServiceBusMessage(b"same", message_id="1"))
    two = message_bytes.encoded(ServiceBusMessage(b"same", message_id="2", session_id="s"))
    other = message_bytes.encoded(ServiceBusMessage(b"other", message_id="1"))

    assert message_bytes.body_of(one) == message_bytes.body_of(two) != message_bytes.body_of(other)
