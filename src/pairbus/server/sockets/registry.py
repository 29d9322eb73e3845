"""Every listening address and every connection of one server, with their limits and counts."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Final

from pairbus.errors import UsageError
from pairbus.gateway.http import RateLimit
from pairbus.server.committer import PendingOutput
from pairbus.server.config.addresses import format_address, is_loopback
from pairbus.server.layers.http import BODY_BYTES_MAX_DEFAULT
from pairbus.server.loop import UNCOMMITTED_BYTES_MAX
from pairbus.server.sockets.accepting import Acceptor
from pairbus.server.sockets.connection import SocketConnection
from pairbus.server.sockets.strangers import Strangers
from pairbus.server.sockets.turns import Turns

if TYPE_CHECKING:
    from pairbus.gateway.http import HttpRequest, HttpResponse
    from pairbus.server.loop import Driver
    from pairbus.server.ports import BrokerPort

logger = logging.getLogger(__name__)

CONNECTIONS_MAX_DEFAULT: Final = 10_000
HANDSHAKE_SECONDS_DEFAULT: Final = 20.0
HTTP_IDLE_SECONDS_DEFAULT: Final = 60.0
HTTP_HELD_BYTES_MAX_DEFAULT: Final = 64 * 1024 * 1024
LINGER_SECONDS_DEFAULT: Final = 2.0
SPARE_SLOTS: Final = 8
"""Connections beyond ``connections_max`` for HTTP alone, so that ``/health`` answers when all others are taken."""
LOGGED_PER_SECOND: Final = 1
LOGGED_BURST: Final = 60
"""Refused connections with a line each in the log; of further ones the next line gives the number."""
SWEEP_SECONDS_MAX: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a peer may take of the server.

    Args:
        connections_max: Connections at once. Up to half of them may be of peers that have proved no right; when more come,
            or all are taken, the one of these that has been there longest is cut.
        handshake_seconds: Until the peer has opened AMQP or sent a whole request.
        http_idle_seconds: Between an answer and the next whole request.
        linger_seconds: How long a peer may take to go after our last output.
        http_held_bytes_max: Bodies of requests that are not whole, of all connections together: their senders are not known yet.
        uncommitted_bytes_max: Input that may wait for the disk before no socket is read.
    """

    connections_max: int = CONNECTIONS_MAX_DEFAULT
    handshake_seconds: float = HANDSHAKE_SECONDS_DEFAULT
    http_idle_seconds: float = HTTP_IDLE_SECONDS_DEFAULT
    http_body_bytes_max: int = BODY_BYTES_MAX_DEFAULT
    http_held_bytes_max: int = HTTP_HELD_BYTES_MAX_DEFAULT
    linger_seconds: float = LINGER_SECONDS_DEFAULT
    uncommitted_bytes_max: int = UNCOMMITTED_BYTES_MAX

    def __post_init__(self) -> None:
        for limit in fields(self):
            if getattr(self, limit.name) <= 0:
                raise UsageError(f"{limit.name} must be above 0 and is {getattr(self, limit.name)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerStatistics:
    """Who is connected and who was turned away."""

    open_by_kind: dict[str, int]
    accepted: int
    refused_by_reason: dict[str, int]
    received_bytes: int
    sent_bytes: int


class ConnectionRegistry:
    """All connections of one server, and what they share."""

    def __init__(
        self,
        broker: BrokerPort,
        limits: Limits,
        answer: Callable[[HttpRequest], HttpResponse],
        tls_context: ssl.SSLContext | None,
    ) -> None:
        self.broker = broker
        self.limits = limits
        self.answer = answer
        self.tls_context = tls_context
        self._acceptors: list[Acceptor] = []
        # Dicts, not sets: they keep the order of arrival, so two runs do the same things in the same order.
        self._connections: dict[SocketConnection, None] = {}
        self._timed: dict[SocketConnection, None] = {}
        self._with_http_output: dict[SocketConnection, None] = {}
        self._sweeper: asyncio.TimerHandle | None = None
        self._empty = asyncio.Event()
        self._empty.set()
        self._open_by_kind: Counter[str] = Counter()
        self._refused_by_reason: Counter[str] = Counter()
        self._accepted = self._received_bytes = self._stranger_bytes = self._sent_bytes = 0
        self.strangers = Strangers(lambda: self._received_bytes)
        self.turns = Turns()
        self._strangers_max = max(SPARE_SLOTS, limits.connections_max // 2)
        self._log_rate = RateLimit(LOGGED_PER_SECOND, LOGGED_BURST)
        self._unlogged = 0
        self._held_bytes = 0

    # Asked by the server.

    async def listen(self, driver: Driver, host: str, port: int, *, http_only: bool) -> tuple[str, int]:
        """Open one address, whose connections ``driver`` serves. Returns the host and the port that was taken. Raises OSError."""
        loop = asyncio.get_running_loop()
        sockets = await loop.run_in_executor(None, bind_all, host, port)
        taken = sockets[0].getsockname()
        for sock in sockets:
            self._acceptors.append(
                Acceptor(sock, lambda: SocketConnection(self, driver, http_only=http_only))
            )
        return host or taken[0], taken[1]

    def adopt(
        self,
        driver: Driver,
        transport: asyncio.Transport,
        first: bytes,
        *,
        http_only: bool,
        relayed_for: str | None,
    ) -> None:
        """Take over a connection that was accepted elsewhere and of which ``first`` was read."""
        connection = SocketConnection(self, driver, http_only=http_only)
        transport.set_protocol(connection)
        connection.connection_made(transport)
        if relayed_for is not None:
            connection.came_through_relay(relayed_for)
        connection.data_received(first)

    def stop_listening(self) -> None:
        for acceptor in self._acceptors:
            acceptor.close()
        self._acceptors.clear()

    def close_all(self, condition: str, description: str) -> None:
        """Ask every connection to end in an orderly way."""
        for connection in list(self._connections):
            connection.close(condition, description)

    def cut_all(self) -> None:
        """End every connection at once, even if the broker fails over it."""
        for connection in list(self._connections):
            try:
                connection.cut()
            except Exception:
                logger.exception("connection broke", extra={"event": "connection.broke"})

    async def wait_empty(self, seconds_max: float) -> bool:
        """Wait until every connection has gone; False when that took too long."""
        try:
            async with asyncio.timeout(seconds_max):
                await self._empty.wait()
        except TimeoutError:
            return False
        return True

    def close(self) -> None:
        """Release timers; connections must be gone."""
        self.strangers.close()
        self.turns.close()
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None

    def set_reading(self, may_read: bool) -> None:
        """Read all sockets, or none: the disk is behind."""
        for connection in list(self._connections):
            connection.set_reading(may_read)

    def gateway_output(self) -> list[PendingOutput]:
        """The output of the broker, connection by connection."""
        outputs = []
        for gateway in self.broker.take_dirty():
            connection = gateway.context
            if isinstance(connection, SocketConnection):
                output = connection.take_gateway_output(gateway)
                if output is not None:
                    outputs.append(output)
            else:
                # Its socket has gone; the output is taken so that it does not pile up.
                gateway.take_output()
        return outputs

    def http_output(self) -> list[PendingOutput]:
        if not self._with_http_output:
            return []
        connections, self._with_http_output = self._with_http_output, {}
        outputs = (connection.take_http_output() for connection in connections)
        return [output for output in outputs if output is not None]

    def statistics(self) -> ListenerStatistics:
        """A snapshot for metrics and tests."""
        return ListenerStatistics(
            open_by_kind={kind: count for kind, count in sorted(self._open_by_kind.items()) if count},
            accepted=self._accepted,
            refused_by_reason=dict(sorted(self._refused_by_reason.items())),
            received_bytes=self._received_bytes + self._stranger_bytes,
            sent_bytes=self._sent_bytes,
        )

    # Asked by connections.

    def received(self, count: int) -> None:
        self._received_bytes += count

    def received_from_stranger(self, count: int) -> None:
        """Bytes of a peer that has proved no right are handled."""
        self._stranger_bytes += count

    @property
    def is_full(self) -> bool:
        """Whether a further connection is there for HTTP alone."""
        return len(self._connections) > self.limits.connections_max

    def log_refusal(self, peer: str, reason: str) -> None:
        """A line in the log, unless there have been many: a flood of strangers must not be one of lines."""
        if not self._log_rate.takes(int(asyncio.get_running_loop().time() * 1000)):
            self._unlogged += 1
            return
        extra = {"event": "connection.refused", "peer": peer, "reason": reason}
        if self._unlogged:
            extra["not_logged"] = str(self._unlogged)
            self._unlogged = 0
        logger.warning("connection refused", extra=extra)

    def sent(self, count: int) -> None:
        self._sent_bytes += count

    def holds(self, more: int) -> bool:
        """So much more (or less) of unfinished requests is held; whether that is still within the limit."""
        self._held_bytes += more
        return more <= 0 or self._held_bytes <= self.limits.http_held_bytes_max

    def refused(self, reason: str) -> None:
        """A connection was turned away."""
        self._refused_by_reason[reason] += 1

    def has_http_output(self, connection: SocketConnection) -> None:
        """An HTTP connection has output for the next commit."""
        self._with_http_output[connection] = None

    def arrived(self, connection: SocketConnection) -> None:
        """A socket was accepted."""
        self._accepted += 1
        self._connections[connection] = None
        self._empty.clear()
        self._open_by_kind[connection.kind] += 1
        # The newcomer is no candidate: it has had no time to send anything.
        if len(self.strangers) >= self._strangers_max:
            self.strangers.evict_one("strangers_max")
        elif len(self._connections) > self.limits.connections_max and len(self.strangers):
            self.strangers.evict_one("connections_max")
        elif len(self._connections) > self.limits.connections_max + SPARE_SLOTS:
            connection.evict("connections_max")
            return
        self.strangers.arrived(connection)
        connection.deadline = asyncio.get_running_loop().time() + self.limits.handshake_seconds
        self.timed(connection)

    def became(self, old: str, new: str) -> None:
        """The protocol of a connection was detected."""
        self._open_by_kind[old] -= 1
        self._open_by_kind[new] += 1

    def left(self, connection: SocketConnection) -> None:
        """A socket has gone."""
        self._connections.pop(connection, None)
        self._timed.pop(connection, None)
        self._with_http_output.pop(connection, None)
        self.strangers.left(connection)
        self.turns.left(connection)
        self._open_by_kind[connection.kind] -= 1
        if not self._connections:
            self._empty.set()

    def timed(self, connection: SocketConnection) -> None:
        """A connection has a deadline now."""
        self._timed[connection] = None
        if self._sweeper is None:
            shortest = min(
                self.limits.handshake_seconds, self.limits.http_idle_seconds, self.limits.linger_seconds
            )
            pause = min(SWEEP_SECONDS_MAX, shortest / 4)
            self._sweeper = asyncio.get_running_loop().call_later(pause, self._sweep)

    def handshake_completed(self, connection: SocketConnection) -> None:
        """A connection has been opened and has no deadline any more."""
        self._timed.pop(connection, None)
        self.strangers.opened(connection)

    def _sweep(self) -> None:
        """One timer for all deadlines: thousands of connections cost no timer each."""
        self._sweeper = None
        now = asyncio.get_running_loop().time()
        for connection in [c for c in self._timed if c.deadline is not None and c.deadline <= now]:
            del self._timed[connection]
            if connection.kind == "new":
                self.refused("handshake_timeout")
            connection.cut()
        if self._timed:
            self.timed(next(iter(self._timed)))


def resolve(host: str, port: int) -> list[tuple[socket.AddressFamily, tuple[str, int]]]:
    """The addresses a host stands for, IPv4 first. Raises UsageError when there is none."""
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise UsageError(f"{host!r} is no address of this machine: {error.strerror or error}") from error
    ordered = sorted(found, key=lambda info: info[0] != socket.AF_INET)
    unique = dict.fromkeys((info[0], (str(info[4][0]), int(info[4][1]))) for info in ordered)
    return list(unique)


def is_loopback_only(host: str) -> bool:
    """Whether listening on this host can be reached from this machine alone."""
    return all(is_loopback(address[0]) for _, address in resolve(host, 0))


def bind_all(host: str, port: int) -> list[socket.socket]:
    """One bound socket for every address of the host, all on one port. Raises OSError when the first is taken."""
    sockets: list[socket.socket] = []
    for family, (literal, _) in resolve(host, port):
        chosen = sockets[0].getsockname()[1] if sockets else port
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind((literal, chosen))
            sock.setblocking(False)
        except OSError as error:
            sock.close()
            if not sockets:
                raise OSError(error.errno, f"{format_address(literal, chosen)}: {error.strerror}") from error
            # The first address serves; a machine without IPv6 still resolves localhost to ::1.
            logger.info(
                "address skipped",
                extra={"event": "listener.skipped", "address": format_address(literal, chosen)},
            )
            continue
        sockets.append(sock)
    return sockets
