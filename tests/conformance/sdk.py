"""The official client in its two flavours behind one face, so that each behaviour is written once.

The synchronous client is used as it is. The asynchronous one runs on an event loop of its own thread and is
driven through :class:`Portal`, which makes its objects look like their synchronous twins. Nothing of either client
is replaced: what crosses the wire is what the official package sends.
"""

from __future__ import annotations

import asyncio
import base64
import datetime as dt
import hashlib
import hmac
import inspect
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import quote_plus

import pytest
from azure.servicebus import AutoLockRenewer, ServiceBusClient, TransportType
from azure.servicebus.aio import AutoLockRenewer as AsyncAutoLockRenewer
from azure.servicebus.aio import ServiceBusClient as AsyncServiceBusClient

CALL_SECONDS_MAX = 150.0
"""No single call of the client may take longer; a hang becomes a failure that names the call."""

RECEIVE_SECONDS_MAX = 45.0
"""How long :func:`take` waits for messages that are known to be there or about to be: what comes ends the wait at once,
and a machine may be busy with others."""

LOCK_SECONDS = (5, 15, 45)
"""Locks that a test waits out; a queue can have none shorter than the first."""

LOCK_END_SECONDS_MAX = 90.0
"""How long the end of such a lock is waited for, at the most."""

FACES = ("sync", "async")
TRANSPORTS = ("tcp", "tls", "ws", "wss")


def spec(behaviour: str, source: str = "Azure Service Bus documentation") -> pytest.MarkDecorator:
    """State the behaviour of Service Bus that a test checks, and the public source that describes it."""
    return pytest.mark.spec(behaviour, source)


class Portal:
    """An event loop in a thread, and stand-ins for the asynchronous objects that live on it."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="sdk-loop", daemon=True)
        self._thread.start()

    def run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call on the loop, await what comes back, hand over the result or the error."""

        async def call() -> Any:
            result = function(*map(unwrap, args), **{name: unwrap(value) for name, value in kwargs.items()})
            return await result if inspect.isawaitable(result) else result

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result(CALL_SECONDS_MAX)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CALL_SECONDS_MAX)
        self._loop.close()


class Stand:
    """An asynchronous object that can be used without ``await``."""

    def __init__(self, portal: Portal, target: Any) -> None:
        self._portal = portal
        self._target = target

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._target, name)
        if not callable(value):
            return Stand(self._portal, value) if name == "session" and value is not None else value

        def call(*args: Any, **kwargs: Any) -> Any:
            result = self._portal.run(value, *args, **kwargs)
            return Stand(self._portal, result) if is_handler(result) else result

        return call

    def __enter__(self) -> Self:
        self._portal.run(self._target.__aenter__)
        return self

    def __exit__(self, *error: object) -> None:
        self._portal.run(self._target.__aexit__, None, None, None)

    def __iter__(self) -> Iterator[Any]:
        iterator = self._target.__aiter__()
        while True:
            try:
                yield self._portal.run(iterator.__anext__)
            except StopAsyncIteration:
                return


def unwrap(value: Any) -> Any:
    """The real object behind a stand-in, anything else as it is."""
    return value._target if isinstance(value, Stand) else value


def is_handler(value: Any) -> bool:
    """Senders, receivers and pagers of the asynchronous client need a stand-in, messages and lists do not."""
    return hasattr(value, "__aenter__") or hasattr(value, "__aiter__")


@dataclass(frozen=True)
class Endpoint:
    """How to reach one namespace over one transport."""

    connection_string: str
    options: dict[str, Any]


def endpoint_for(transport: str, connection_string: str, ca_file: str) -> Endpoint:
    """The way the official client wants each transport asked for.

    The connection string is the plain one, with the emulator flag. Only a custom endpoint keeps a port for TLS
    and for WebSocket; its presence with the emulator flag gives ``ws``, without it ``wss``.
    """
    if transport == "tcp":
        return Endpoint(connection_string, {})
    address = connection_part(connection_string, "Endpoint").rstrip("/")
    options: dict[str, Any] = {"custom_endpoint_address": address, "connection_verify": ca_file}
    options["transport_type"] = TransportType.Amqp if transport == "tls" else TransportType.AmqpOverWebsocket
    if transport == "ws":
        return Endpoint(connection_string, options)
    secure = ";".join(
        part
        for part in connection_string.split(";")
        if part and not part.startswith("UseDevelopmentEmulator")
    )
    return Endpoint(secure, options)


def connection_part(connection_string: str, name: str) -> str:
    """One value of a connection string."""
    for part in connection_string.split(";"):
        key, _, value = part.partition("=")
        if key.lower() == name.lower():
            return value
    raise KeyError(f"{name} is not in the connection string")


def sas_token(connection_string: str, resource: str, seconds: float) -> str:
    """A token made the way the documentation describes, independent of the client."""
    expiry = str(int(time.time() + seconds))
    signed = quote_plus(resource)
    key = connection_part(connection_string, "SharedAccessKey").encode()
    signature = base64.b64encode(hmac.digest(key, f"{signed}\n{expiry}".encode(), hashlib.sha256))
    rule = connection_part(connection_string, "SharedAccessKeyName")
    return f"SharedAccessSignature sr={signed}&sig={quote_plus(signature)}&se={expiry}&skn={rule}"


class Bus:
    """One flavour of the client on one namespace; opens senders and receivers, closes everything at the end."""

    def __init__(self, face: str, endpoint: Endpoint) -> None:
        self.face = face
        self.endpoint = endpoint
        self._portal = Portal() if face == "async" else None
        self._open: list[Any] = []
        self._client = self.client()

    def client(self, connection_string: str | None = None, **options: Any) -> Any:
        """A client of its own; without retries (but over WebSocket), so that an error reaches the caller at once."""
        # The client gives a WebSocket peer a second for each step of the handshake, which a busy machine may miss:
        # there it may knock again.
        is_websocket = self.endpoint.options.get("transport_type") is TransportType.AmqpOverWebsocket
        settings = {
            "retry_total": 3 if is_websocket else 0,
            "retry_backoff_factor": 0.01,
            **self.endpoint.options,
            **options,
        }
        text = connection_string or self.endpoint.connection_string
        if self._portal is None:
            client: Any = ServiceBusClient.from_connection_string(text, **settings)
        else:
            client = Stand(
                self._portal, self._portal.run(AsyncServiceBusClient.from_connection_string, text, **settings)
            )
        self._open.append(client)
        return client

    def sender(self, queue: str, **options: Any) -> Any:
        return self._client.get_queue_sender(queue, **options)

    def receiver(self, queue: str, **options: Any) -> Any:
        return self._client.get_queue_receiver(queue, **options)

    def sessions(self, queue: str, **options: Any) -> list[str]:
        """The ids of the queue's sessions, all pages."""
        return list(self._client.list_queue_sessions(queue, **options))

    def renewer(self, **options: Any) -> Any:
        if self._portal is None:
            renewer: Any = AutoLockRenewer(**options)
        else:
            renewer = Stand(self._portal, self._portal.run(AsyncAutoLockRenewer, **options))
        self._open.append(renewer)
        return renewer

    def close(self) -> None:
        for thing in reversed(self._open):
            thing.close()
        if self._portal is not None:
            self._portal.close()

    # What nearly every test does, in one line each.

    def send(self, queue: str, *messages: Any) -> None:
        """Send one by one, so that each gets its own acknowledgement."""
        with self.sender(queue) as sender:
            for message in messages:
                sender.send_messages(message)

    def take(self, queue: str, count: int, **options: Any) -> list[Any]:
        """Receive exactly ``count`` and delete them."""
        with self.receiver(queue, receive_mode="receiveanddelete", **options) as receiver:
            return take(receiver, count)

    def peek(self, queue: str, count: int = 100, **options: Any) -> list[Any]:
        """Look at everything, from the first number."""
        with self.receiver(queue, **options) as receiver:
            return list(receiver.peek_messages(count))


def take(receiver: Any, count: int, seconds: float = RECEIVE_SECONDS_MAX) -> list[Any]:
    """Receive exactly ``count`` messages, in as many calls as it needs.

    The client returns 0.2 s after the first message with whatever it has, so one call may bring fewer.
    """
    messages: list[Any] = []
    deadline = time.monotonic() + seconds
    while len(messages) < count:
        left = deadline - time.monotonic()
        if left <= 0:
            pytest.fail(f"{len(messages)} of {count} messages came within {seconds} s: {texts(messages)}")
        messages += receiver.receive_messages(count - len(messages), max_wait_time=left)
    return messages


def with_short_locks(scenario: Callable[[dt.timedelta], None], lost: type[Exception]) -> None:
    """Run a scenario with the shortest lock there is; where a busy machine let that lapse, with longer ones."""
    for seconds in LOCK_SECONDS[:-1]:
        try:
            return scenario(dt.timedelta(seconds=seconds))
        except lost:
            pass
    return scenario(dt.timedelta(seconds=LOCK_SECONDS[-1]))


def texts(messages: list[Any]) -> list[str]:
    """The bodies as text."""
    return [str(message) for message in messages]


def numbers(messages: list[Any]) -> list[int]:
    """The sequence numbers."""
    return [message.sequence_number for message in messages]
