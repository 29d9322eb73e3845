"""One socket: reads, detects the protocol, unwraps it, hands it to the broker, writes what may be written.

    bytes ─► detect ┬─ AMQP ──────────────────────────► gateway connection
                    ├─ TLS ─► detect again ─► AMQP, HTTP
                    └─ HTTP ─┬─ request ─────────────► answer
                             └─ upgrade ─► WebSocket ─► gateway connection

The broker's output comes back through ``write``, after its commit. Only TLS, WebSocket and refusals are written at once, for they
depend on no commit.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import TYPE_CHECKING, Final, cast

from pairbus.amqp.transport.framing import SASL_HEADER
from pairbus.errors import RemoteProtocolError
from pairbus.server.committer import PendingOutput
from pairbus.server.config.addresses import format_address, is_loopback
from pairbus.server.layers.detect import WireProtocol, detect_protocol
from pairbus.server.layers.http import HttpLayer
from pairbus.server.layers.refusal import plain_text_refusal
from pairbus.server.layers.tls import TlsLayer
from pairbus.server.layers.websocket import WebSocketLayer
from pairbus.server.sockets.connection_state import ConnectionState
from pairbus.server.sockets.strangers import READ_BYTES, STEP_BYTES
from pairbus.server.sockets.transports import left_in, limit_reads, release, unread_bytes
from pairbus.server.sockets.turns import STEP_WORK, next_read_bytes

if TYPE_CHECKING:
    from pairbus.server.ports import GatewayPort

logger = logging.getLogger(__name__)

WRITE_BYTES_HIGH: Final = 256 * 1024
"""Above this many unwritten bytes a socket gets no more deliveries (B63), and so it is above this many that wait for a commit."""
WRITE_BYTES_LOW: Final = 64 * 1024
"""Unwritten bytes at which the transport calls ``resume_writing``, if it has called ``pause_writing`` before."""
UNREAD_BYTES_MAX: Final = 1024 * 1024
"""Unwritten bytes at which the socket is not read either: a peer that sends and never reads waits (B62)."""


class SocketConnection(ConnectionState):
    """One accepted socket.

    Args:
        registry: What all connections of the server share.
        http_only: Came through the address for HTTP: AMQP is served there over WebSocket only.
    """

    __slots__ = ()

    # What asyncio tells.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not asserted: other event loops have transports that are no subclass of asyncio's.
        self._transport = transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername") or ("", 0)
        self._peer = format_address(peer[0], peer[1])
        self._loopback = is_loopback(peer[0])
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        transport.set_write_buffer_limits(high=WRITE_BYTES_HIGH, low=WRITE_BYTES_LOW)
        limit_reads(transport, READ_BYTES)
        self._registry.arrived(self)
        if not self._driver.is_reading:
            self.set_reading(False)

    def data_received(self, data: bytes) -> None:
        if self._is_ending:
            return
        if self.is_stranger:
            self._unread += data
            if self._http is None:  # bodies of requests have a limit of their own
                self._registry.strangers.holds(self, len(data))
            self._registry.strangers.has_work(self)
            self._review_reading()
            return
        self._registry.received(len(data))
        self._driver.received(len(data))
        self._receive(data)
        if self._is_waiting or len(data) >= self._read_bytes:
            self._read_bytes = next_read_bytes(self._read_bytes, len(data), self._is_waiting)
            self._limit_reads(self._read_bytes)

    def _receive(self, data: bytes) -> None:
        try:
            if not data:
                self._feed(b"")
            elif self._tls is not None:
                self._receive_tls(data)
            else:
                self._receive_plain(data)
        except RemoteProtocolError as error:
            self._registry.log_refusal(self._peer, str(error))
            self._registry.refused("protocol")
            self._flush_tls()
            self.end()
        except Exception:
            # A fault of ours that one peer's bytes brought out: it may cost that peer, and no other (B59).
            logger.exception("connection broke", extra={"event": "connection.broke", "peer": self._peer})
            self.cut()

    def eof_received(self) -> bool:
        self._eof = True
        if self._is_ending or self._is_lost:
            return False
        if self._unread or self._is_waiting:
            self._review_deliveries()
            return True  # when that has been handled, ``take_step`` or ``take_turn`` comes back here
        if self._http is not None:
            self._http.receive_eof()
            self._registry.has_http_output(self)
            self._driver.ask_turn()
            return True
        # What came is applied and will be committed; no answer can be sent.
        self._lose_gateway()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None and not self._eof and not self._is_ending and not self.is_stranger:
            # A write failed, but what the peer sent before it went is still in the socket: clients write their settlements,
            # close, and never read the answers. asyncio stops reading there, we do not.
            self._left = list(left_in(self._transport))[::-1]
            self._registry.received(sum(map(len, self._left)))
            self._driver.received(sum(map(len, self._left)))
        self._is_lost = True
        if self._is_behind() and not self._is_ending:
            self._review_deliveries()
            self._is_waiting = True
            self._registry.turns.wait(self)
        else:
            self._leave()

    def _leave(self) -> None:
        """Nothing of a lost connection is left to do."""
        self._lose_gateway()
        self._hold(0)
        self._registry.left(self)
        # The chain of references back is cut by hand: the collector seldom looks at old objects.
        if self._websocket is not None:
            self._websocket.release()
        if self._transport is not None:
            release(self._transport)
        self._transport = self._tls = self._http = self._websocket = None
        self._unread = b""

    def pause_writing(self) -> None:
        self._writing_paused = True
        self._review_deliveries()

    def resume_writing(self) -> None:
        self._writing_paused = False
        self._review_reading()
        self._review_deliveries()
        self._proceed_http()

    # What the server asks.

    def take_step(self) -> bool:
        """Handle a little of what a stranger sent; whether there is more to do."""
        if self._is_ending or self._is_lost:
            self._unread = b""
            return False
        http = self._http
        if http is not None and http.is_behind:
            self._proceed_http(is_my_turn=True)
            # While it stays behind its answers go first; ``write`` comes back here.
            return bool(self._unread) and not http.is_behind
        piece, self._unread = self._unread[:STEP_BYTES], self._unread[STEP_BYTES:]
        self._registry.received_from_stranger(len(piece))
        self._driver.received(len(piece))
        self._receive(piece)
        self._look_who_it_is()
        if self._unread:
            return True
        if self._eof and not self.eof_received():
            self.end()
        self._review_reading()
        return False

    def take_turn(self) -> bool:
        """Handle a little more of what a client with a key sent; whether there is more to do."""
        if self._is_behind() and not self._is_ending:
            self._driver.ask_turn()
            is_inside = self._gateway is not None and self._gateway.is_behind
            self._receive(b"" if is_inside else self._left.pop())
            if self._is_behind():
                return True
        self._is_waiting = False
        if self._is_lost:
            self._leave()
        elif (self._websocket is not None and self._websocket.is_ended) or (
            self._eof and not self.eof_received()
        ):
            self.end()
        self._review_reading()
        return False

    def has_sent(self) -> bool:
        """Whether bytes have come that are not read yet."""
        return unread_bytes(self._transport) > 0

    def evict(self, reason: str) -> None:
        """Cut this connection to make room for another."""
        self._registry.refused(reason)
        self._registry.log_refusal(self._peer, reason)
        self.cut()

    def _look_who_it_is(self) -> None:
        """Ask the gateway or HTTP whether the peer has proved a right."""
        if self._gateway is not None:
            is_stranger = self.is_stranger and self._gateway.is_stranger
        elif self._http is not None:
            is_stranger = not self._http.is_known
        else:
            return
        if is_stranger == self.is_stranger:
            return
        self.is_stranger = is_stranger
        self._limit_reads(READ_BYTES if is_stranger else self._read_bytes)
        if is_stranger:
            self._registry.strangers.arrived(self)
            return
        self._registry.strangers.left(self)
        rest, self._unread = self._unread, b""
        if rest:
            self._registry.received(len(rest))
            self._driver.received(len(rest))
            self._receive(rest)

    def write(self, chunks: list[bytes], closes: bool) -> None:
        """Write output whose commit has ended. Never raises for a fault in the output or in its TLS or WebSocket layer."""
        try:
            self._write_committed(chunks, closes)
        except Exception:
            # Whatever one socket, its TLS or its WebSocket does not take may cost that peer, and no other (B59).
            logger.exception("connection broke", extra={"event": "connection.broke", "peer": self._peer})
            self.cut()

    def _write_committed(self, chunks: list[bytes], closes: bool) -> None:
        size = sum(map(len, chunks))
        self._waiting_bytes -= size
        if self._transport is None or self._is_lost or self._is_ending:
            return
        if chunks:
            if self._websocket is not None:
                chunks = self._websocket.frame(chunks)
                size = sum(map(len, chunks))
            if self._tls is not None and chunks:
                chunks = [self._tls.encrypt(chunks)]
                size = len(chunks[0])
            self._registry.sent(size)
            self._write(chunks)
        if closes:
            self.end()
            return
        self._review_deliveries()
        if self._http is not None:
            self._proceed_http()
        self._review_reading()

    def take_gateway_output(self, gateway: GatewayPort) -> PendingOutput | None:
        """The broker's output on this connection, to be written after the commit."""
        chunks = gateway.take_output()
        closes = gateway.is_closed
        if self._is_lost or self._is_ending or not (chunks or closes):
            return None
        if len(chunks) > 1:
            chunks = [b"".join(chunks)]  # a burst has thousands of pieces, and all that follows looks at each
        self._waiting_bytes += sum(map(len, chunks))
        self._review_deliveries()
        if self.deadline is not None and gateway.is_open:
            self.deadline = None
            self._registry.handshake_completed(self)
        return PendingOutput(self, chunks, closes)

    def take_http_output(self) -> PendingOutput | None:
        """Answers to HTTP requests, to be written after the commit."""
        http = self._http
        if http is None or self._is_lost or self._is_ending:
            return None
        if http.is_served:
            http.is_served = False
            self._set_deadline(self._registry.limits.http_idle_seconds)
        chunks = http.take_output()
        self._waiting_bytes += sum(map(len, chunks))
        return PendingOutput(self, chunks, http.is_ended) if chunks or http.is_ended else None

    def set_reading(self, may_read: bool) -> None:
        """Read the socket, or leave it alone: the disk is behind."""
        transport = self._transport
        if transport is None or self._is_lost or self._is_ending or transport.is_closing():
            return
        if may_read and not self._reading_stopped:
            transport.resume_reading()
        elif not may_read:
            transport.pause_reading()

    def close(self, condition: str, description: str) -> None:
        """Close in an orderly way: an AMQP peer gets the reason, the others just end."""
        if self._gateway is not None and not self._gateway.is_closed:
            self._gateway.close(condition, description)
        elif self._gateway is None:
            self.end()
            if self._transport is not None:
                # The peer waits for no answer here, so there is nothing to linger for.
                self._transport.close()

    def end(self) -> None:
        """Write no more: flush, close our direction, and read on until the peer has gone (or its time is up).

        Closing a socket with unread input would reset it, and the reset can overtake our last output.
        """
        transport = self._transport
        if transport is None or self._is_ending or self._is_lost:
            return
        farewell = self._websocket.end() if self._websocket is not None else []
        if self._tls is not None and self._tls.is_established:
            farewell = [self._tls.encrypt(farewell)] if farewell else []
            farewell.append(self._tls.end())
        if farewell:
            transport.writelines(farewell)
        self._is_ending = True
        self._lose_gateway()
        if self._eof:
            transport.close()
            return
        self._set_deadline(self._registry.limits.linger_seconds)
        if transport.can_write_eof():
            try:
                transport.write_eof()
            except OSError:
                # The peer has reset the socket already; the read side notices its end.
                transport.abort()
                return
        if not transport.is_closing():
            transport.resume_reading()

    def cut(self) -> None:
        """Close at once and drop what was not written."""
        self._is_ending = True
        if self._transport is not None:
            self._transport.abort()  # it tells us later; should the broker break over the loss, the socket still goes
        self._lose_gateway()

    # Layers.

    def _receive_tls(self, data: bytes) -> None:
        tls = self._tls
        assert tls is not None, "called with TLS only"
        plain = tls.receive(data)
        self._flush_tls()
        if plain:
            self._receive_plain(plain)
        if tls.is_ended and not self._is_ending and not self._eof and not self.eof_received():
            self.end()

    def _receive_plain(self, data: bytes) -> None:
        if self._websocket is not None:
            self._receive_websocket(data)
        elif self._gateway is not None:
            self._feed(data)
        elif self._http is not None:
            self._receive_http(data)
        else:
            self._detect(data)

    def _detect(self, data: bytes) -> None:
        self._first += data
        protocol = detect_protocol(self._first)
        if protocol is None:
            return
        first, self._first = self._first, b""
        if protocol is WireProtocol.TLS and self._tls is None:
            self._begin_tls(first)
        elif protocol is WireProtocol.HTTP:
            self._begin_http(first)
        elif protocol is WireProtocol.AMQP and not self._http_only:
            self._begin_amqp(first)
        else:
            self._refuse_unknown()

    def _begin_tls(self, first: bytes) -> None:
        context = self._registry.tls_context
        if context is None:
            self._refuse("tls", [])
            return
        self._tls = TlsLayer(context)
        self._receive_tls(first)

    def _begin_amqp(self, first: bytes) -> None:
        if not self._is_loopback_or_tls():
            self._refuse("plain_text", [plain_text_refusal(WireProtocol.AMQP, first)])
            return
        self._become("amqps" if self._tls is not None else "amqp")
        self._open_gateway()
        if self._gateway is not None:
            self._receive_plain(first)

    def _begin_http(self, first: bytes) -> None:
        if not self._is_loopback_or_tls():
            self._refuse("plain_text", [plain_text_refusal(WireProtocol.HTTP, first)])
            return
        self._become("https" if self._tls is not None else "http")
        self._http = HttpLayer(
            self._registry.answer,
            peer=self._peer,
            secure=self._tls is not None,
            body_bytes_max=self._registry.limits.http_body_bytes_max,
            now=self._driver.now,
        )
        self._receive_http(first)

    def _receive_http(self, data: bytes) -> None:
        http = self._http
        assert http is not None, "called with HTTP only"
        http.receive(data)
        self._after_http(http)

    def _proceed_http(self, *, is_my_turn: bool = False) -> None:
        """Room for answers again: look at the next request that waits; a stranger's when it is the stranger's turn."""
        http = self._http
        if http is None or self._transport is None or self._is_ending or not http.is_behind:
            return
        if self.is_stranger and not is_my_turn:
            self._registry.strangers.has_work(self)
            return
        if not self._writing_paused:  # else ``resume_writing`` will call this again
            http.proceed()
            self._after_http(http)
            self._review_reading()

    def _after_http(self, http: HttpLayer) -> None:
        if not self._hold(http.held_bytes):
            http.refuse_busy()
            self._hold(0)
        if http.upgrade_head is not None:
            self._begin_websocket(http)
        elif http.has_output or http.is_ended:
            self._registry.has_http_output(self)
            self._driver.ask_turn()
            self._review_reading()
        self._look_who_it_is()

    def _begin_websocket(self, http: HttpLayer) -> None:
        assert http.upgrade_head is not None, "called with an upgrade only"
        rest = http.trailing_data()
        self._websocket = WebSocketLayer(http.upgrade_head)
        self._http = None
        self._write_now(self._websocket.take_output())
        if not self._websocket.is_accepted:
            self._registry.refused("websocket")
            self.end()
            return
        self._become("wss" if self._tls is not None else "ws")
        self._set_deadline(self._registry.limits.handshake_seconds)
        self._open_gateway()
        if rest:
            self._receive_websocket(rest)

    def _receive_websocket(self, data: bytes) -> None:
        websocket = self._websocket
        assert websocket is not None, "called with WebSocket only"
        plain = websocket.receive(data)
        self._write_now(websocket.take_output())
        if plain:
            self._feed(plain)
        if websocket.is_ended and not self._is_waiting:
            self.end()

    def _feed(self, data: bytes) -> None:
        """Give the broker a step's work; what is left of it waits for its turn, and the socket is not read meanwhile."""
        gateway = self._gateway
        if gateway is None:
            return
        gateway.receive(data, self._driver.now(), STEP_WORK)
        if gateway.is_behind and not self._is_waiting:
            self._is_waiting = True
            self._registry.turns.wait(self)
            if self._is_waiting:
                self._review_reading()

    # Small parts.

    def _is_behind(self) -> bool:
        return bool(self._left) or (self._gateway is not None and self._gateway.is_behind)

    def _is_loopback_or_tls(self) -> bool:
        return self._loopback or self._tls is not None

    def _become(self, kind: str) -> None:
        self._registry.became(self.kind, kind)
        self.kind = kind

    def _open_gateway(self) -> None:
        if self._registry.is_full:
            self.evict("connections_max")
            return
        self._gateway = self._registry.broker.connect(
            self._peer, self._tls is not None, self._loopback, self._driver.now()
        )
        self._gateway.context = self
        self._review_deliveries()

    def _refuse(self, reason: str, answer: list[bytes]) -> None:
        self._registry.log_refusal(self._peer, reason)
        self._registry.refused(reason)
        self._write_now(answer)
        self.end()

    def _refuse_unknown(self) -> None:
        # AMQP 1.0, 2.2: a peer that opens with something else gets the header that would do, then the connection ends.
        serves_amqp = not self._http_only and self._is_loopback_or_tls()
        self._refuse("unknown_protocol", [SASL_HEADER] if serves_amqp else [])

    def _write(self, chunks: list[bytes]) -> None:
        transport = self._transport
        if transport is None:
            return
        transport.writelines(chunks)
        if not self._writing_paused and transport.get_write_buffer_size() > WRITE_BYTES_HIGH:
            # Python 3.12.0 to 3.12.8: ``writelines`` does not call ``pause_writing``, but setting the limits does.
            transport.set_write_buffer_limits(high=WRITE_BYTES_HIGH, low=WRITE_BYTES_LOW)

    def _write_now(self, chunks: list[bytes]) -> None:
        if not chunks or self._transport is None or self._is_ending:
            return
        if self._tls is not None:
            chunks = [self._tls.encrypt(chunks)]
        self._write(chunks)
        self._review_reading()

    def _flush_tls(self) -> None:
        if self._tls is not None and self._transport is not None and (output := self._tls.take_output()):
            self._transport.write(output)
            self._review_reading()

    def _review_deliveries(self) -> None:
        """Pause or resume deliveries. They are paused only while something is certain to end the pause.

        There are two reasons to pause. Either the transport has called ``pause_writing``, then it will call
        ``resume_writing``. Or too much waits for a commit, then ``write`` will be called. A pause that rested on the
        amount in the write buffer would have no end between the two limits, where the transport calls nothing.
        """
        gateway = self._gateway
        # A peer that has gone gets nothing either, while what it sent before is handled.
        pause = self._writing_paused or self._waiting_bytes > WRITE_BYTES_HIGH or self._eof or self._is_lost
        if gateway is None or pause == self._gateway_paused:
            return
        self._gateway_paused = pause
        if pause:
            gateway.pause()
        else:
            gateway.resume(self._driver.now())
            self._driver.ask_turn()

    def _lose_gateway(self) -> None:
        gateway, self._gateway = self._gateway, None
        if gateway is not None:
            gateway.lost(self._driver.now())
            gateway.context = None
            self._driver.ask_turn()

    def _review_reading(self) -> None:
        """Who asks and does not listen is not read: neither answers nor requests may pile up."""
        transport = self._transport
        if transport is None or self._is_ending or self._is_lost:
            return
        is_behind = self._http is not None and (self._http.is_full or self._http.is_behind)
        stop = (
            is_behind
            or self._is_waiting
            or bool(self._unread)
            or transport.get_write_buffer_size() > UNREAD_BYTES_MAX
        )
        if stop != self._reading_stopped:
            self._reading_stopped = stop
            self.set_reading(not stop and self._driver.is_reading)

    def _hold(self, count: int) -> bool:
        """Report to the registry how much of unfinished requests is held; False when all together hold too much (M6)."""
        more, self._held_bytes = count - self._held_bytes, count
        return not more or self._registry.holds(more)

    def _set_deadline(self, seconds: float) -> None:
        self.deadline = asyncio.get_running_loop().time() + seconds
        self._registry.timed(self)

    def _limit_reads(self, count: int) -> None:
        if self._transport is not None:
            limit_reads(self._transport, count)
