"""Takes every connection of a node, and passes on to the owner what this node cannot serve itself.

The first bytes of a connection decide, once:

    GET /health in plain text ──► answered here, by every node for itself
    this node is the owner ─────► its server takes the connection over
    another node is ────────────► a second connection to the owner, and bytes both ways: AMQP, TLS, WebSocket, HTTP, the live page
    an owner is about to be ────► the connection waits for it, not longer than ``wait_seconds``
    nobody knows the owner ─────► the connection is closed

Rule 1: a relayed connection begins with a line, the *mark*, that names the peer. A node that is not the owner closes a connection
        that begins so. Two nodes that take each other for the owner do not pass connections back and forth.
Rule 2: the mark can take trust away and never give any: what another machine sent in plain text is not taken for this machine's own.
Rule 3: plain text does not leave the machine: it is relayed if the owner is on this machine too, and refused otherwise (M14).

``pipes`` passes the bytes of a relayed connection on, in a thread of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol, cast

from pairbus.gateway.own_addresses import NODE_ADDRESSES, own_address
from pairbus.server.cluster.relaying.pipes import Pipe, Pipes
from pairbus.server.cluster.relaying.quiet import Quiet
from pairbus.server.cluster.relaying.reach import OwnerReach, connect
from pairbus.server.config.addresses import format_address, is_loopback
from pairbus.server.layers.detect import PREFIX_BYTES_MAX, WireProtocol, detect_protocol
from pairbus.server.layers.refusal import plain_text_refusal
from pairbus.server.layers.target import origin_form
from pairbus.server.sockets.transports import limit_reads

logger = logging.getLogger(__name__)

MARK: Final = b"PAIRBUS-RELAY "
MARK_BYTES_MAX: Final = 128
FIRST_BYTES_MAX: Final = 64 * 1024
"""What is read of a connection before it is passed on."""
HEAD_BYTES_MAX: Final = 8 * 1024
"""Of a request for ``/health``."""
REFUSAL_SECONDS: Final = 1.0
"""So long a client has to read why it is refused."""
SWEEP_SECONDS: Final = 0.1
FULL_LOG_SECONDS: Final = 60.0
"""Between two lines in the log about the lack of places."""
NO_ROOM: Final = ("connections_max", "no_descriptor")
"""Why a new connection is refused for lack of places."""
MADE_ROOM: Final = "made_room"
"""Why an old one is cut for a new one."""
HEALTH_STARTS: Final = tuple(
    method + start for method in (b"get ", b"head ") for start in (b"/health", b"http://", b"https://")
)
"""How a request for this node's health may begin, in small letters; whether it is one shows its whole line."""
_HEALTH_START_BYTES: Final = max(len(start) for start in HEALTH_STARTS)


class RouteKind(Enum):
    LOCAL = "local"
    RELAY = "relay"
    WAIT = "wait"
    CLOSE = "close"


@dataclass(frozen=True, slots=True)
class Route:
    """Where a new connection goes."""

    kind: RouteKind
    address: str = ""
    """Of the owner; with RELAY."""


class Host(Protocol):
    """What the relay asks of its node."""

    def route(self) -> Route:
        """Where a connection that comes now goes."""

    def adopt(
        self, transport: asyncio.Transport, first: bytes, *, http_only: bool, relayed_for: str | None
    ) -> None:
        """Serve a connection here; ``first`` is what was read of it."""

    def health(self, target: str) -> tuple[int, str, bytes]:
        """The status, the content type and the body of this node's answer to ``/health``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayStatistics:
    """What passes through this node."""

    relayed: int
    """Connections that are relayed now."""
    waiting: int
    """Connections that wait for their first bytes or for an owner."""
    relayed_total: int
    failed_total: int
    """Connections to the owner that could not be made, or led nowhere."""
    refused_by_reason: dict[str, int]


class Relay:
    """All connections of one node that its server does not have.

    Args:
        host: Knows the owner.
        connections_max: Connections that wait, are relayed, or read why they are refused, together. For a further one a refused one is cut, or
            the oldest quiet one (``quiet``); without such a one it is refused.
        first_bytes_seconds: Until a peer has sent enough to decide.
        wait_seconds: How long a connection waits for an owner.
    """

    def __init__(
        self, host: Host, *, connections_max: int, first_bytes_seconds: float, wait_seconds: float
    ) -> None:
        self.host = host
        self._connections_max = connections_max
        self._first_bytes_seconds = first_bytes_seconds
        self.wait_seconds = wait_seconds
        self._entrances: dict[Entrance, None] = {}
        self._refusing: dict[Entrance, None] = {}
        """Connections that were refused with an answer, and have a moment to read it."""
        self._pipes = Pipes()
        self._opened: dict[Pipe, None] = {}
        """The relayed connections."""
        self._quiet = Quiet()
        self._full_logged_at: float | None = None
        self._relayed_total = 0
        self._refused: dict[str, int] = {}
        self._sweeper: asyncio.TimerHandle | None = None
        self._plain_text_owners: set[str] = set()
        """Addresses of owners for which a refusal of plain text was told."""
        self.reach = OwnerReach()

    def entrance(self, *, http_only: bool) -> Entrance:
        """The protocol of a connection that was just accepted."""
        return Entrance(self, http_only=http_only)

    def statistics(self) -> RelayStatistics:
        return RelayStatistics(
            relayed=len(self._opened),
            waiting=len(self._entrances),
            relayed_total=self._relayed_total,
            failed_total=self.reach.failures,
            refused_by_reason=dict(sorted(self._refused.items())),
        )

    def owner_changed(self, address: str, expected: tuple[str, str] | None = None) -> None:
        """Cut what was relayed to the former owner, so that clients come back, and look again where waiting connections go.

        ``address``: of the owner to relay to; empty: there is none, or this node is it. ``expected``: the namespace and the owner's name.
        """
        self.reach.aim(address, expected)
        self._plain_text_owners.clear()
        self.cut_relayed()
        self.reroute()

    def cut_relayed(self) -> None:
        for pipe in self._opened:
            self._pipes.cut(pipe)

    def reroute(self) -> None:
        """Look again where waiting connections go."""
        for entrance in list(self._entrances):
            entrance.decide()

    def close(self) -> None:
        """Cut everything."""
        self.reach.close()
        self._pipes.close()
        for entrance in list(self._entrances):
            entrance.refuse("stopped")
        for entrance in list(self._refusing):
            entrance.cut()
        if self._sweeper is not None:
            self._sweeper.cancel()

    # Asked by connections.

    def arrived(self, entrance: Entrance) -> bool:
        """A socket was accepted; False: there are too many."""
        now = asyncio.get_running_loop().time()
        places = len(self._entrances) + len(self._opened) + len(self._refusing)
        if places >= self._connections_max and not self._make_room(now):
            self.refused("connections_max")
            return False
        self._entrances[entrance] = None
        entrance.arrived_at = now
        entrance.deadline = now + self._first_bytes_seconds
        if self._sweeper is None:
            self._sweep_later()
        return True

    def left(self, entrance: Entrance) -> None:
        self._entrances.pop(entrance, None)
        self._refusing.pop(entrance, None)

    def answered(self, entrance: Entrance) -> None:
        """It was refused with an answer, and keeps its place until it is closed."""
        self._refusing[entrance] = None

    def _make_room(self, now: float) -> bool:
        """Cut a connection that was refused, or the oldest one that has hardly sent anything; False: there is none."""
        refused = next(iter(self._refusing), None)
        if refused is not None:
            refused.cut()
            return True
        entrance = next((one for one in self._entrances if one.is_undecided), None)
        quiet = self._quiet.oldest(now)
        if entrance is not None and (quiet is None or entrance.arrived_at <= quiet[0]):
            entrance.refuse(MADE_ROOM)
            return True
        if quiet is None:
            return False
        _, pipe = quiet
        self._forget(pipe)  # at once: the thread closes it a little later
        self._pipes.cut(pipe)
        self.refused(MADE_ROOM)
        return True

    def _forget(self, pipe: Pipe) -> None:
        self._opened.pop(pipe, None)
        self._quiet.left(pipe)

    def join(
        self, client: asyncio.Transport, upstream: asyncio.Transport, first: bytes, *, has_ended: bool
    ) -> None:
        """Pass bytes between the two from now on, ``first`` ahead of them. asyncio is done with both sockets.

        Where the system has no descriptor left for the change, both connections end.
        """
        loop = asyncio.get_running_loop()

        def ended(pipe: Pipe) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed, and nobody counts any more
                loop.call_soon_threadsafe(self._forget, pipe)

        taken: list[socket.socket] = []
        try:
            for transport in (client, upstream):
                taken.append(_socket_of(transport))  # noqa: PERF401 - the first must be closed if there is none for the second
            pipe = self._pipes.join(*taken, first=first, has_ended=has_ended, ended=ended)
        except OSError:
            for one in taken:
                one.close()
            self.refused("no_descriptor")
        else:
            self._opened[pipe] = None
            self._quiet.joined(pipe, loop.time())
            self._relayed_total += 1
        finally:
            # The connections stay: they have another descriptor now.
            client.abort()
            upstream.abort()

    def refused(self, reason: str) -> None:
        self._refused[reason] = self._refused.get(reason, 0) + 1
        if reason == MADE_ROOM or reason in NO_ROOM:
            self._tell_of_no_room(asyncio.get_running_loop().time())

    def _tell_of_no_room(self, now: float) -> None:
        if self._full_logged_at is not None and now < self._full_logged_at + FULL_LOG_SECONDS:
            return
        self._full_logged_at = now
        logger.warning(
            "this node has no place for further connections: it cuts those that have hardly sent anything, and refuses new ones if there are "
            "none. Raise MaxConnections and the limit of file descriptors (`ulimit -n`; a relayed connection needs two), or let clients use "
            "further nodes",
            extra={
                "event": "cluster.relay_full",
                "connections_max": self._connections_max,
                "cut": self._refused.get(MADE_ROOM, 0),
                "refused": sum(self._refused.get(reason, 0) for reason in NO_ROOM),
            },
        )

    def refused_plain_text(self, address: str) -> None:
        """A client of this machine spoke plain text, and the owner is on another one. It is told once for each owner."""
        if address in self._plain_text_owners:
            return
        self._plain_text_owners.add(address)
        logger.warning(
            "a client of this machine is refused: it uses plain text, which is not relayed to another machine. Use TLS, with the connection "
            "string and the CA file of this node's ready file",
            extra={"event": "cluster.plain_text", "address": address},
        )

    def _sweep_later(self) -> None:
        self._sweeper = asyncio.get_running_loop().call_later(SWEEP_SECONDS, self._sweep)

    def _sweep(self) -> None:
        """One timer for all connections that wait."""
        self._sweeper = None
        now = asyncio.get_running_loop().time()
        for entrance in list(self._entrances):
            if entrance.is_waiting and entrance.deadline <= now:
                entrance.refuse("no_owner")
            elif entrance.is_undecided and entrance.deadline <= now:
                entrance.refuse("no_first_bytes")
            elif entrance.is_waiting:
                entrance.decide()
        if self._entrances:
            self._sweep_later()


class Entrance(asyncio.Protocol):
    """A connection until it is known where it goes."""

    def __init__(self, relay: Relay, *, http_only: bool) -> None:
        self._relay = relay
        self._http_only = http_only
        self._transport: asyncio.Transport | None = None
        self._first: bytes = b""
        self._peer = ""
        self._is_loopback = False
        self._relayed_for: str | None = None
        self._connecting: asyncio.Task[None] | None = None
        """The way to the owner is being opened, which has a bound of its own."""
        self._has_eof = False
        self._refused: asyncio.Transport | None = None
        """The connection that was refused with an answer, until it is closed."""
        self.is_waiting = False
        """Enough was read to decide, and there is no owner to pass it to."""
        self.arrived_at = self.deadline = 0.0

    @property
    def is_undecided(self) -> bool:
        """Its first bytes have not come."""
        return self._connecting is None and not self.is_waiting

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername") or ("", 0)
        self._peer = format_address(peer[0], peer[1])
        self._is_loopback = is_loopback(peer[0])
        limit_reads(transport, FIRST_BYTES_MAX)
        if not self._relay.arrived(self):
            transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._refused is not None:
            return
        self._first += data
        if len(self._first) >= FIRST_BYTES_MAX and self._transport is not None:
            self._transport.pause_reading()
        if self._connecting is None:
            self.decide()

    def eof_received(self) -> bool:
        self._has_eof = True
        # A request may end with it: it is decided on, and the rest is passed on.
        return self._connecting is not None

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio passes it
        self._relay.left(self)
        if self._connecting is not None:
            self._connecting.cancel()
        self._transport = None

    def refuse(self, reason: str, answer: bytes = b"") -> None:
        """Close, after an answer if there is one."""
        self._relay.left(self)
        self._relay.refused(reason)
        transport, self._transport = self._transport, None
        if transport is None:
            return
        if not answer:
            transport.abort()
            return
        # What a client sends meanwhile is read and dropped: closed at once, the system would reset the connection, and the client could
        # not read the answer.
        self._refused = transport
        self._relay.answered(self)
        transport.write(answer)
        transport.write_eof()
        transport.resume_reading()
        asyncio.get_running_loop().call_later(REFUSAL_SECONDS, self.cut)

    def cut(self) -> None:
        """It was refused, and has had its time to read the answer, or its place is needed."""
        self._relay.left(self)
        if self._refused is not None:
            self._refused.abort()

    def decide(self) -> None:
        """See where the connection goes, as soon as enough has come."""
        transport = self._transport
        if transport is None or not self._first or self._connecting is not None:
            return
        if self._relayed_for is None and not self._take_mark():
            return
        protocol = detect_protocol(self._first[:PREFIX_BYTES_MAX])
        if protocol is None:
            return
        if (
            protocol is WireProtocol.HTTP
            and self._first[:_HEALTH_START_BYTES].lower().startswith(HEALTH_STARTS)
            and self._answer_health()
        ):
            return
        route = self._relay.host.route()
        if route.kind is RouteKind.LOCAL:
            self._hand_over(transport)
        elif self._relayed_for is not None:
            # Another node takes this one for the owner: it will learn better, and the client comes back.
            self.refuse("relayed_to_no_owner")
        elif route.kind is RouteKind.CLOSE:
            self.refuse("no_owner")
        elif protocol is not WireProtocol.TLS and not self._is_loopback:
            # The owner could not tell where it came from, and plain text is served to this machine only (M14).
            self.refuse("plain_text", plain_text_refusal(protocol, self._first))
        elif protocol is WireProtocol.UNKNOWN or (self._http_only and protocol is WireProtocol.AMQP):
            self.refuse("protocol")
        elif route.kind is RouteKind.RELAY:
            transport.pause_reading()
            self._connecting = asyncio.get_running_loop().create_task(self._connect(route.address, protocol))
        else:
            self._wait()

    def _take_mark(self) -> bool:
        """Cut the mark off; False while it is not whole."""
        head = self._first[: len(MARK)]
        if not MARK.startswith(head):
            return True
        end = self._first.find(b"\r\n", 0, MARK_BYTES_MAX)
        if end < 0:
            if len(self._first) >= MARK_BYTES_MAX:
                self.refuse("protocol")
            return False
        self._relayed_for = self._first[len(MARK) : end].decode("latin-1")
        self._first = self._first[end + 2 :]
        return bool(self._first)

    def _answer_health(self) -> bool:
        """Answer a request for this node's health; False: it is another request."""
        line = self._first.partition(b"\r\n")[0].split(b" ")
        if b"\r\n" not in self._first:
            return len(self._first) < HEAD_BYTES_MAX
        try:
            target = origin_form(line[1]).decode("latin-1")
        except ValueError:
            return False  # the owner says what is wrong
        path = own_address(line[0].decode("latin-1").upper(), target)
        if path not in NODE_ADDRESSES:
            return False  # the owner's, or an entity's
        if b"\r\n\r\n" not in self._first and len(self._first) < HEAD_BYTES_MAX:
            return True
        self._relay.left(self)  # it does not wait for an owner
        status, kind, body = self._relay.host.health(path)
        reason = "OK" if status == 200 else "Service Unavailable"
        head = (
            f"HTTP/1.1 {status} {reason}\r\ncontent-type: {kind}\r\ncache-control: no-store\r\n"
            f"connection: close\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        assert self._transport is not None, "decide is called with a transport"
        transport, self._transport = self._transport, None
        transport.write(head.encode() + (b"" if line[0] == b"HEAD" else body))
        transport.close()
        return True

    def _wait(self) -> None:
        if not self.is_waiting:
            self.is_waiting = True
            self.deadline = asyncio.get_running_loop().time() + self._relay.wait_seconds

    def _hand_over(self, transport: asyncio.Transport) -> None:
        self._relay.left(self)
        self._transport = None
        first, self._first = self._first, b""
        transport.resume_reading()
        self._relay.host.adopt(transport, first, http_only=self._http_only, relayed_for=self._relayed_for)

    async def _connect(self, address: str, protocol: WireProtocol) -> None:
        try:
            upstream = await connect(address)
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                # That says nothing about the owner, and waiting would hold a descriptor that others need.
                self._connecting = None
                self.refuse("no_descriptor")
                return
            self._relay.reach.failed(address, error)
            # The owner may just have gone: wait until it is back or another node has taken over.
            self._connecting = None
            if self._transport is not None:
                self._transport.resume_reading()
            self._wait()
            return
        client = self._transport
        self._connecting = None
        if client is None or client.is_closing():
            upstream.abort()
            return
        if self._relay.host.route() != Route(RouteKind.RELAY, address):
            upstream.abort()
            client.resume_reading()
            self.decide()
            return
        if protocol is not WireProtocol.TLS and not _is_of_this_machine(upstream):
            # The owner would refuse it without a word to this node.
            upstream.abort()
            self._relay.refused_plain_text(address)
            why = f"this node relays to {address}, and plain text does not leave the machine"
            self.refuse("plain_text", plain_text_refusal(protocol, self._first, why))
            return
        self._relay.left(self)
        self._transport = None
        first, self._first = MARK + self._peer.encode() + b"\r\n" + self._first, b""
        self._relay.join(client, upstream, first, has_ended=self._has_eof)


def _is_of_this_machine(upstream: asyncio.Transport) -> bool:
    peer = upstream.get_extra_info("peername")
    return peer is not None and is_loopback(peer[0])


def _socket_of(transport: asyncio.Transport) -> socket.socket:
    """The transport's connection under a descriptor of its own. Raises OSError."""
    taken: socket.socket = transport.get_extra_info("socket").dup()
    return taken
