"""Opening a sender or receiver of the SDK ends, whatever the peer leaves out.

The synchronous SDK waits without a limit for the TLS handshake and the SASL frames of a peer that accepts connections and says
nothing, such as a paused process. Neither form of it has a limit for a link when the caller gives none.
"""

from __future__ import annotations

import errno
import functools
import inspect
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, NoReturn

from azure.servicebus import NEXT_AVAILABLE_SESSION
from azure.servicebus._pyamqp._connection import Connection
from azure.servicebus._pyamqp.error import AMQPConnectionError, ErrorCondition

from pairbus.sdk.links.handlers import close_at_once, cut_client, end_handler, free_connection, take_handler

ANSWER_SECONDS: Final = 10.0
"""How long a connection may take to be ready for links, and how long a link may take if the caller gives no time."""
SESSION_SECONDS: Final = 65.0
"""How long the namespace itself waits for a session when a receiver of the next one says nothing."""
SILENT: Final = "it accepted the connection and did not answer"
CLOSED: Final = "The handler was closed while it was opening."


def bound_opening(handler: Any) -> None:
    """Let a sender or receiver of either form give up opening when its peer is silent. What is neither stays as it is."""
    if hasattr(handler, "_create_handler") and not hasattr(handler, "_pairbus_opening"):
        _Opening(handler)


def bound_closing(handler: Any) -> None:
    """Let closing a sender or receiver end its opening, too, however far that has come."""
    opening: _Opening | None = getattr(handler, "_pairbus_opening", None)
    close_at_once(handler, lambda: None if opening is None else opening.end())


def replace_open(handler: Any, open_: Callable[[float | None], None]) -> None:
    """Let a synchronous sender or receiver open in another way, within the same limits, at each of its addresses in turn."""
    opening: _Opening | None = getattr(handler, "_pairbus_opening", None)
    if opening is None:
        handler._open = open_
    else:
        opening.sdk_open = open_


class _Opening:
    """How one sender or receiver opens."""

    def __init__(self, handler: Any) -> None:
        self._handler = handler
        self._until = 0.0
        """When the connection that is being opened must be ready for links."""
        self._is_ended = False
        """Whether the handler is closed. Looked at in every step: who closes it may find no socket that could be cut."""
        self._client: Any = None
        """The SDK's own client that is being opened. The handler forgets it when it is closed."""
        self.sdk_open = handler._open
        handler._pairbus_opening = self
        self._is_async = is_async = inspect.iscoroutinefunction(handler._open)
        self._create: Callable[..., None] = handler._create_handler
        handler._open = self._open_later if is_async else self._open
        handler._create_handler = self._create_handler

    def end(self) -> None:
        """Opening ends with its next step, and does not begin any more."""
        self._is_ended = True

    def check(self) -> None:
        """Raise ValueError when the handler is closed, TimeoutError when its peer has been silent for too long."""
        if self._is_ended:
            raise ValueError(CLOSED)
        if time.monotonic() >= self._until:
            _raise_silent()

    def seconds_left(self) -> float:
        """How long the connection may take until it is ready for links."""
        return max(0.001, self._until - time.monotonic())

    def _open(self, timeout: float | None = None) -> None:
        if self._handler._running:
            return
        limit = self._limit() if timeout is None else timeout
        self._until = time.monotonic() + min(limit, ANSWER_SECONDS)
        try:
            self._check_live()
            self.sdk_open(limit)
            self._check_live()
        except BaseException:
            if self._is_ended:
                # Nobody else would close what was opened meanwhile.
                take_handler(self._handler)
                with suppress(Exception):
                    end_handler(self._client)
            raise
        finally:
            self._client = None

    async def _open_later(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 - the SDK's shape
        if self._handler._running:
            return
        self._check_live()
        try:
            await self.sdk_open(self._limit() if timeout is None else timeout)
            self._check_live()
        except BaseException:
            # The SDK closes in order, within what is left of the time: nothing, after a silent peer. The next address would pay.
            take_handler(self._handler)
            cut_client(self._client)
            raise
        finally:
            self._client = None

    def _check_live(self) -> None:
        if self._is_ended:
            raise ValueError(CLOSED)

    def _limit(self) -> float:
        """How long opening may take if the caller does not say. For the next session the namespace waits until there is one."""
        handler = self._handler
        if getattr(handler, "_session_id", None) != NEXT_AVAILABLE_SESSION:
            return ANSWER_SECONDS
        return float(handler._max_wait_time or SESSION_SECONDS) + ANSWER_SECONDS

    def _create_handler(self, *given: Any, **options: Any) -> None:
        self._create(*given, **options)
        self._client = self._handler._handler
        self._bound_client(self._client)

    def _bound_client(self, client: Any) -> None:
        """Stand where the SDK's client opens, until it is open: it asks for that before each send."""
        if self._is_async:
            client.open_async = functools.partial(self._open_client_later, client)
        else:
            client.open = functools.partial(self._open_client, client)

    def _open_client(self, client: Any, connection: Any = None) -> None:
        if connection is None and client._connection is None:
            if self._handler._running:
                # The SDK's retries below its sender open a connection of their own, long after the sender was opened.
                self._until = time.monotonic() + ANSWER_SECONDS
            self._check_live()
            client._connection = made = _new_connection(client)
            _bound_transport(made._transport, self)
            try:
                made.open()
            except BaseException:
                free_connection(made)
                raise
        type(client).open(client, connection)
        _bound_token(client, self)
        vars(client).pop("open", None)
        client.close = functools.partial(self._close_client, client)

    def _close_client(self, client: Any) -> None:
        vars(client).pop("close", None)  # two may close at the same time
        self._bound_client(client)
        type(client).close(client)

    async def _open_client_later(self, client: Any, connection: Any = None) -> None:
        self._check_live()
        await type(client).open_async(client, connection)
        vars(client).pop("open_async", None)


def _new_connection(client: Any) -> Any:
    """The connection that the SDK's ``AMQPClient.open`` makes, which it opens before anybody can reach it."""
    return Connection(
        "amqps://" + client._hostname if client._use_tls else "amqp://" + client._hostname,
        sasl_credential=client._auth.sasl,
        ssl_opts=client._ssl_opts,
        container_id=client._name,
        max_frame_size=client._max_frame_size,
        channel_max=client._channel_max,
        idle_timeout=client._idle_timeout,
        properties=client._properties,
        network_trace=client._network_trace,
        transport_type=client._transport_type,
        http_proxy=client._http_proxy,
        custom_endpoint_address=client._custom_endpoint_address,
        socket_timeout=client._socket_timeout,
        use_tls=client._use_tls,
    )


def _bound_transport(transport: Any, opening: _Opening) -> None:
    """Bound the TLS handshake and the SASL frames, which the SDK reads from a socket that it has made wait for ever."""
    wrap = getattr(transport, "_wrap_socket", None)
    receive = transport.receive_frame

    def wrap_in_time(socket: Any, **options: Any) -> Any:
        opening.check()
        socket.settimeout(opening.seconds_left())
        try:
            return wrap(socket, **options)  # type: ignore[misc]  # set only where there is one
        except TimeoutError:
            _raise_silent()

    def receive_in_time(**options: Any) -> Any:
        # The socket's own time limit is a fraction of a second; what has arrived by then is kept for the next read.
        while True:
            channel, frame = receive(**options)
            if frame is not None:
                return channel, frame
            opening.check()

    def negotiate() -> None:
        transport.receive_frame = receive_in_time
        try:
            transport._negotiate()
        finally:
            del transport.receive_frame

    transport.negotiate = negotiate
    if wrap is not None:
        transport._wrap_socket = wrap_in_time


def _bound_token(client: Any, opening: _Opening) -> None:
    """Bound the frames up to the answer to the token, for which the SDK waits a minute."""
    is_complete = type(client).auth_complete

    def complete() -> bool:
        if is_complete(client):
            # The SDK calls it with every message; from now on it is its own again.
            vars(client).pop("auth_complete", None)
            return True
        try:
            opening.check()
        except TimeoutError as error:
            raise AMQPConnectionError(ErrorCondition.SocketError, description=SILENT, error=error) from error
        return False

    client.auth_complete = complete


def _raise_silent() -> NoReturn:
    raise TimeoutError(errno.ETIMEDOUT, SILENT)
