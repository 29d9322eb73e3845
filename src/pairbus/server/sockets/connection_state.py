"""The state of one socket's connection; ``connection`` acts on it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from pairbus.server.config.addresses import is_loopback
from pairbus.server.sockets.turns import READ_BYTES_FIRST

if TYPE_CHECKING:
    from pairbus.server.layers.http import HttpLayer
    from pairbus.server.layers.tls import TlsLayer
    from pairbus.server.layers.websocket import WebSocketLayer
    from pairbus.server.loop import Driver
    from pairbus.server.ports import GatewayPort
    from pairbus.server.sockets.registry import ConnectionRegistry


class ConnectionState(asyncio.Protocol):
    """The state of one accepted socket.

    Args:
        registry: What all connections of the server share.
        driver: Gives the time, and is asked for turns.
        http_only: The connection came through the address for HTTP: AMQP is served there over WebSocket only.
    """

    __slots__ = (
        "_driver",
        "_eof",
        "_first",
        "_gateway",
        "_gateway_paused",
        "_held_bytes",
        "_http",
        "_http_only",
        "_is_ending",
        "_is_lost",
        "_is_waiting",
        "_left",
        "_loopback",
        "_peer",
        "_read_bytes",
        "_reading_stopped",
        "_registry",
        "_tls",
        "_transport",
        "_unread",
        "_waiting_bytes",
        "_websocket",
        "_writing_paused",
        "deadline",
        "is_stranger",
        "kind",
        "sent_as_stranger",
    )

    def __init__(self, registry: ConnectionRegistry, driver: Driver, *, http_only: bool) -> None:
        self._registry = registry
        self._driver = driver
        self._http_only = http_only
        self._transport: asyncio.Transport | None = None
        self._peer = ""
        self._loopback = False
        self._first: bytes = b""
        self._tls: TlsLayer | None = None
        self._http: HttpLayer | None = None
        self._websocket: WebSocketLayer | None = None
        self._gateway: GatewayPort | None = None
        self._gateway_paused = False
        self._held_bytes = 0
        """What this connection holds of requests that are not whole, as reported to the registry."""
        self._reading_stopped = False
        self._waiting_bytes = 0
        """Bytes that are taken from the gateway or from HTTP and wait for their commit."""
        self._writing_paused = False
        """The transport has called ``pause_writing``, and so has promised to call ``resume_writing``."""
        self._eof = False
        self._is_ending = False
        """Nothing more will be written; the rest of the input is read and thrown away."""
        self._is_lost = False
        self.deadline: float | None = None
        """When the connection is cut, by the loop's clock, unless something good happens before."""
        self.kind = "new"
        self.is_stranger = True
        """The peer has not proved a right: its input is handled in turn with that of other strangers."""
        self.sent_as_stranger = 0
        """Bytes that count against what all strangers may hold; kept by ``Strangers``."""
        self._unread: bytes = b""
        """A stranger's input that waits for its turn."""
        self._is_waiting = False
        """Input of a client with a key waits for its turn: in the gateway, or in ``_left``."""
        self._left: list[bytes] = []
        """What a lost socket still held, last first."""
        self._read_bytes = READ_BYTES_FIRST

    def came_through_relay(self, peer: str) -> None:
        """Another node relays this connection for ``peer``, as it says. That can take trust away, and never gives any."""
        self._peer = f"{peer} via {self._peer}"
        self._loopback = self._loopback and is_loopback(peer.rpartition(":")[0].strip("[]"))
