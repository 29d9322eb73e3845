"""One client for several addresses of one namespace: the nodes of a cluster, of which any serves every client.

The official clients know one host. A connection string of PairBus may list several, ``Endpoint=sb://node-1:5671,node-2:5671/;…``.
``connect`` makes the official client with the first of them, and each sender and receiver of it then goes on to the next address when
the one in use refuses, does not answer, or ends the connection. All that the client has made share what was learnt. With one address or
several, opening ends in bounded time.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from azure.servicebus import TransportType

from pairbus.errors import UsageError
from pairbus.sdk.connection_string import AMQP_PORT, AMQPS_PORT, parse_connection_string
from pairbus.sdk.failures import Failure, classify
from pairbus.sdk.links.opening import bound_opening
from pairbus.sdk.trust import reaching

CONNECT_SECONDS: Final = 1.0
"""How long an address may take to accept a connection while there is another one; as long as the synchronous client gives it."""
OPEN_SECONDS: Final = 3.0
"""How long opening a link at one address may take while another one is untried. A node that waits for its next owner loses nothing by it:
the other node waits too."""

_MAKERS: Final = (
    "get_queue_sender",
    "get_topic_sender",
    "get_queue_receiver",
    "get_subscription_receiver",
    "_create_session_browser",
)
_WEBSOCKET_PATH: Final = "/$servicebus/websocket"
_WEBSOCKET_PORT: Final = 443
_LEAVES: Final = (Failure.CONNECTION, Failure.TIMEOUT, Failure.CANCELLED)
"""After these an address is left. Every other error is an answer of the namespace, which another node would give too."""


class Addresses:
    """The addresses of one namespace, each a host or host:port, and which of them is in use. May be shared by threads."""

    def __init__(self, hosts: Sequence[str], *, uses_tls: bool) -> None:
        self.hosts = tuple(hosts)
        self.uses_tls = uses_tls
        self._place = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self.hosts)

    @property
    def current(self) -> str:
        return self.hosts[self._place]

    def failed(self, address: str) -> None:
        """An address does not serve: the next one is used, unless somebody has noticed it before."""
        with self._lock:
            if self.hosts[self._place] == address:
                self._place = (self._place + 1) % len(self.hosts)

    def url_at(self, address: str, url: str) -> str:
        """The URL of a management request, with another address in it."""
        path = url.split("://", 1)[-1].partition("/")[2]
        return f"{'https' if self.uses_tls else 'http'}://{address}/{path}"


def connect(official: Any, conn_str: str, **options: Any) -> Any:
    """An official client, synchronous or not, for a connection string that may list several addresses.

    Args:
        official: The class of the client.
        conn_str: The connection string.
        options: Of the official client.
    """
    parts = parse_connection_string(conn_str, "given")
    if len(parts.hosts) == 1:
        client = official.from_connection_string(conn_str, **{**reaching(conn_str), **options})
        _replace_makers(client, lambda handler: handler)
        return client
    if options.get("custom_endpoint_address"):
        raise UsageError(
            f"the connection string lists {len(parts.hosts)} addresses, and custom_endpoint_address is one more: give either"
        )
    client = official.from_connection_string(parts.first_text, **{**reaching(parts.first_text), **options})
    spread(client, Addresses(parts.hosts, uses_tls=not parts.is_emulator))
    return client


def shared_addresses(client: Any) -> Addresses | None:
    """What the links of a client with several addresses share; None: it has one address."""
    found: Addresses | None = getattr(client, "_pairbus_addresses", None)
    return found


def spread(client: Any, addresses: Addresses) -> None:
    """Let everything that an official client makes from now on use several addresses."""
    client._pairbus_addresses = addresses
    _replace_makers(client, lambda handler: _Spread(handler, addresses).handler)


def _replace_makers(client: Any, change: Callable[[Any], Any]) -> None:
    """Let everything that an official client makes from now on open within a time limit, and change it further."""
    for name in _MAKERS:
        make = getattr(client, name, None)
        if make is not None:
            setattr(client, name, _changing(make, change))


def _changing(make: Callable[..., Any], change: Callable[[Any], Any]) -> Callable[..., Any]:
    @functools.wraps(make)
    def make_changed(*given: Any, **options: Any) -> Any:
        handler = make(*given, **options)
        bound_opening(handler)
        return change(handler)

    return make_changed


class _Spread:
    """A sender or receiver of the SDK over several addresses."""

    def __init__(self, handler: Any, addresses: Addresses) -> None:
        self.handler = handler
        self._addresses = addresses
        self._used = addresses.current
        self._create: Callable[..., None] = handler._create_handler
        self.sdk_open = handler._open
        self._sdk_handle = handler._handle_exception
        handler._create_handler = self._create_handler
        is_async = inspect.iscoroutinefunction(handler._open)
        handler._open = self._open_later if is_async else self._open
        handler._handle_exception = self._handle_later if is_async else self._handle

    def _create_handler(self, *given: Any, **options: Any) -> None:
        self._create(*given, **options)
        self._used = address = self._addresses.current
        client = self.handler._handler
        path = _WEBSOCKET_PATH if self._is_websocket else ""
        name, port = _name_and_port(address)
        client._hostname, client._custom_endpoint_address = name + path, None
        if port is not None:
            if self._addresses.uses_tls or path:
                client._custom_endpoint_address = f"sb://{address}{path}"
            else:
                client._hostname = address

    @property
    def _is_websocket(self) -> bool:
        return bool(self.handler._config.transport_type.value == TransportType.AmqpOverWebsocket.value)

    # One attempt to open tries every address once, within the time of the attempt.

    def _open(self, timeout: float | None = None) -> None:
        if self.handler._running:
            return
        until = None if timeout is None else time.monotonic() + timeout
        for left in range(len(self._addresses), 0, -1):
            try:
                self.sdk_open(_share(until, left))
            except BaseException as error:
                if not self._is_left(error) or left == 1 or _is_over(error, until):
                    raise
            else:
                return

    async def _open_later(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 - the SDK's shape
        if self.handler._running:
            return
        until = None if timeout is None else time.monotonic() + timeout
        for left in range(len(self._addresses), 0, -1):
            try:
                await self._reach()
                await self.sdk_open(_share(until, left))
            except BaseException as error:
                if not self._is_left(error) or left == 1 or _is_over(error, until):
                    raise
            else:
                return

    async def _reach(self) -> None:
        """Raise OSError or TimeoutError when the address in use accepts no connection: asyncio's client waits for that without a
        limit of its own."""
        if self.handler._config.http_proxy:
            return
        self._used = address = self._addresses.current
        name, port = _name_and_port(address)
        if port is None:
            port = (
                _WEBSOCKET_PORT
                if self._is_websocket
                else AMQPS_PORT
                if self._addresses.uses_tls
                else AMQP_PORT
            )
        async with asyncio.timeout(CONNECT_SECONDS):
            _, writer = await asyncio.open_connection(name.strip("[]"), port)
        writer.close()

    def _is_left(self, error: BaseException) -> bool:
        """Whether the next address is used from now on, because of this error."""
        if classify(error) not in _LEAVES:
            return False
        self._addresses.failed(self._used)
        return True

    # A connection that was open and ended, or does not answer.

    def _handle(self, exception: BaseException) -> Any:
        self._is_left(exception)
        return self._sdk_handle(exception)

    async def _handle_later(self, exception: BaseException) -> Any:
        self._is_left(exception)
        return await self._sdk_handle(exception)


def _name_and_port(address: str) -> tuple[str, int | None]:
    name, _, port = address.rpartition(":")
    return (name, int(port)) if name and port.isdecimal() else (address, None)


def _share(until: float | None, left: int) -> float | None:
    """The time of one address, when so many are left to try until then."""
    if left == 1:
        return None if until is None else max(0.001, until - time.monotonic())
    share = OPEN_SECONDS if until is None else (until - time.monotonic()) / left
    return max(0.001, min(share, OPEN_SECONDS))


def _is_over(error: BaseException, until: float | None) -> bool:
    """Whether no further address is tried: the caller has given up, or there is no time."""
    if not isinstance(error, Exception):
        return True
    return until is not None and time.monotonic() >= until
