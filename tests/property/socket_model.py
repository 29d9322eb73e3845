"""The server's real connection shell and broker on a socket that takes bytes only when the test says so.

``SocketConnection``, ``ConnectionRegistry``, ``CommitQueue``, ``Broker`` and ``MemoryStore`` are the production code. Only three things are
false: the transport (its kernel has as much room as the test gives it), the driver (the test decides when a commit ends)
and the client.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from typing import Any, Protocol, cast

from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from pairbus.amqp.message.scan import scan
from pairbus.amqp.message.whole import decode_message, encode_message
from pairbus.gateway.broker import Broker
from pairbus.gateway.connection import GatewayConnection
from pairbus.gateway.http import HttpRequest, HttpResponse
from pairbus.gateway.links import ReceiveLink
from pairbus.model.access import RIGHTS, AccessRule
from pairbus.model.entity import QUEUE, Settings
from pairbus.server.committer import Commit, CommitQueue, PendingOutput
from pairbus.server.loop import Driver
from pairbus.server.sockets.connection import SocketConnection
from pairbus.server.sockets.registry import ConnectionRegistry, Limits
from pairbus.server.sockets.turns import Turns
from pairbus.storage.memory import MemoryStore
from tests.simulation.wire import ClientConnection, ClientReceiver, ClientSession
from tests.unit.server.fakes import FakeTransport

NOW = 1_700_000_000_000
WHOLE_MESSAGE_BYTES = 400_000
"""A window for so many bytes takes any message of the queue whole."""


class KernelTransport(FakeTransport):
    """asyncio's selector transport with a kernel buffer of a size that the test controls.

    Args:
        calls_back_for_lists: False: ``writelines`` never calls ``pause_writing``, as in Python 3.12.0 to 3.12.8.
    """

    def __init__(self, *, calls_back_for_lists: bool = True) -> None:
        super().__init__()
        self.protocol: SocketConnection | None = None
        self.room = 0
        """Bytes that the kernel takes from now on."""
        self.taken = bytearray()
        """What the kernel took and the client has not read."""
        self.is_paused = False
        """``pause_writing`` was called and ``resume_writing`` was not yet."""
        self._buffer = bytearray()
        self._high, self._low = 64 * 1024, 16 * 1024
        self._calls_back_for_lists = calls_back_for_lists

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert high is not None
        assert low is not None
        self._high, self._low = high, low
        self._pause_if_full()

    def get_write_buffer_size(self) -> int:
        return len(self._buffer)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._buffer += data
        self._send()
        self._pause_if_full()

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self._buffer += b"".join(list_of_data)
        self._send()
        if self._calls_back_for_lists:
            self._pause_if_full()

    def take(self, count: int) -> None:
        """The kernel has room for so many bytes more."""
        self.room += count
        self._send()
        if self.is_paused and len(self._buffer) <= self._low:
            self.is_paused = False
            assert self.protocol is not None
            self.protocol.resume_writing()

    def _send(self) -> None:
        count = min(self.room, len(self._buffer))
        self.taken += self._buffer[:count]
        del self._buffer[:count]
        self.room -= count

    def _pause_if_full(self) -> None:
        if not self.is_paused and len(self._buffer) > self._high:
            self.is_paused = True
            assert self.protocol is not None
            self.protocol.pause_writing()

    def is_closing(self) -> bool:
        return self.is_ended


class Layer(Protocol):
    """What the client's bytes travel in."""

    def begin(self) -> bytes:
        """What the client writes first."""

    def wrap(self, data: bytes) -> bytes:
        """AMQP bytes as they go to the server."""

    def unwrap(self, data: bytes) -> bytes:
        """The AMQP bytes in what came from the server."""

    def is_ready(self) -> bool:
        """Whether AMQP may begin."""


class PlainLayer:
    """Nothing around AMQP."""

    def begin(self) -> bytes:
        return b""

    def wrap(self, data: bytes) -> bytes:
        return data

    def unwrap(self, data: bytes) -> bytes:
        return data

    def is_ready(self) -> bool:
        return True


class WebSocketLayer:
    """AMQP in WebSocket frames."""

    def __init__(self) -> None:
        uri = parse_uri("ws://localhost/$servicebus/websocket")
        self._protocol = ClientProtocol(uri, subprotocols=[Subprotocol("AMQPWSB10")])
        self._protocol.send_request(self._protocol.connect())

    def begin(self) -> bytes:
        return b"".join(self._protocol.data_to_send())

    def wrap(self, data: bytes) -> bytes:
        if data:
            self._protocol.send_binary(data)
        return b"".join(self._protocol.data_to_send())

    def unwrap(self, data: bytes) -> bytes:
        self._protocol.receive_data(data)
        frames = [event for event in self._protocol.events_received() if isinstance(event, Frame)]
        return b"".join(bytes(frame.data) for frame in frames if frame.opcode in (Opcode.BINARY, Opcode.CONT))

    def is_ready(self) -> bool:
        return self._protocol.state.name == "OPEN"


class TlsLayer:
    """AMQP in TLS."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname="localhost")
        self._is_ready = False

    def begin(self) -> bytes:
        self._shake()
        return self._outgoing.read()

    def _shake(self) -> None:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return
        self._is_ready = True

    def wrap(self, data: bytes) -> bytes:
        if data:
            self._tls.write(data)
        return self._outgoing.read()

    def unwrap(self, data: bytes) -> bytes:
        self._incoming.write(data)
        if not self._is_ready:
            self._shake()
        plain = b""
        while self._is_ready:
            try:
                plain += self._tls.read(65_536)
            except ssl.SSLWantReadError:
                break
        return plain

    def is_ready(self) -> bool:
        return self._is_ready


class StepDriver:
    """``server.loop`` without a loop and a thread: a turn when asked, a commit's end when the test says so."""

    is_reading = True

    def __init__(self, broker: Broker, store: MemoryStore, registry: ConnectionRegistry) -> None:
        self._broker = broker
        self._store = store
        self._queue = CommitQueue(lambda: registry.gateway_output() + registry.http_output(), store.seal)
        self._turn_asked = False
        self.commit: Commit | None = None
        """The commit under way."""

    def now(self) -> int:
        return NOW

    def received(self, count: int) -> None:
        self._queue.received(count)
        self.ask_turn()

    def ask_turn(self) -> None:
        self._turn_asked = True

    def run(self) -> None:
        """Take the turns that were asked for; a deadline that has come asks for one, as the driver's timer does."""
        for _ in range(10_000):
            if not self._turn_asked and self._broker.next_deadline() != 0:
                return
            self._turn_asked = False
            self._broker.pump(NOW)
            self._proceed([])
            if self._broker.next_deadline() == 0 and self.commit is not None:
                self._broker.pump(NOW)
        raise AssertionError("the broker asks for one turn after the other")

    def finish(self) -> None:
        """The commit under way ends."""
        commit, self.commit = self.commit, None
        if commit is not None:
            assert commit.batch is not None
            self._store.commit(commit.batch)
            self._proceed(self._queue.finish(commit))

    def _proceed(self, words: list[PendingOutput]) -> None:
        commit, words = self._queue.proceed(words)
        if commit is not None:
            self.commit = commit
        for output in words:
            output.sink.write(output.chunks, output.closes)


class SocketModel:
    """One client on one socket, with one or more sessions of one receiver each on the same queue."""

    def __init__(
        self,
        layer: Layer,
        *,
        server_context: ssl.SSLContext | None = None,
        calls_back_for_lists: bool = True,
        receive_and_delete: bool = True,
        max_frame_size: int = 1 << 20,
        receivers: int = 1,
    ) -> None:
        self.store = MemoryStore()
        list(self.store.replay())
        self.broker = Broker("contoso", self.store, bytes(range(16)))
        self.broker.serve(None)
        rule = AccessRule(name="root", rights=RIGHTS, primary_key="key-1", secondary_key="key-2")
        self.broker.namespace.set_access_rules((rule,), NOW)
        self.entity = self.broker.namespace.create(QUEUE, "q", Settings(), NOW)
        self.registry = ConnectionRegistry(cast("Any", self.broker), Limits(), _no_answer, server_context)
        self.registry.turns = Turns(lambda: 0)  # no slice ever ends, however slow the machine is
        self.driver = StepDriver(self.broker, self.store, self.registry)
        self.layer = layer
        self.holds_commits = False
        """Commits end only when ``driver.finish`` is called."""
        self.transport = KernelTransport(calls_back_for_lists=calls_back_for_lists)
        self.connection = SocketConnection(self.registry, cast("Driver", self.driver), http_only=False)
        self.transport.protocol = self.connection
        self.connection.connection_made(self.transport)
        self.client = ClientConnection("client", "root", "key-1", max_frame_size=max_frame_size)
        self.sessions: list[ClientSession] = []
        self.receivers: list[ClientReceiver] = []
        self.sent = 0
        self.transport.take(1 << 20)
        self.connection.data_received(layer.begin())
        self.settle()
        for _ in range(receivers):
            session = self.client.session()
            self.sessions.append(session)
            self.receivers.append(session.receiver("q", receive_and_delete=receive_and_delete))
        self.settle()
        assert all(receiver.is_attached for receiver in self.receivers)
        self.transport.room = 0

    @property
    def gateway(self) -> GatewayConnection:
        (gateway,) = self.broker.connections
        return gateway

    def settle(self) -> None:
        """Carry bytes both ways as far as the kernel's room goes, until nothing moves."""
        for _ in range(10_000):
            moved = False
            if self.layer.is_ready() and (said := self.layer.wrap(self.client.take_output())):
                moved = True
                self.connection.data_received(said)
            self.driver.run()
            if self.driver.commit is not None and not self.holds_commits:
                moved = True
                self.driver.finish()
                self.driver.run()
            if self.transport.taken:
                moved = True
                taken = bytes(self.transport.taken)
                self.transport.taken.clear()
                self.client.receive(self.layer.unwrap(taken))
            if not moved:
                return
        raise AssertionError("they do not stop talking")

    def put(self, size: int) -> None:
        """A message is in the queue."""
        self.sent += 1
        message = scan(encode_message(body=self.sent.to_bytes(8, "big") + bytes(size)), False)
        self.broker.namespace.send(self.entity, message, NOW)
        self.driver.ask_turn()

    def grant(self, place: int, credit: int, window: int) -> None:
        """The receiver says what its link and its session take from now on."""
        receiver = self.receivers[place]
        frame = receiver.session.flow_frame()
        frame.incoming_window = window
        frame.handle = receiver.handle
        frame.delivery_count = receiver.delivery_count
        frame.link_credit = receiver.credit = credit
        receiver.session.write(frame.encode())

    def open_window(self, place: int, window: int) -> None:
        """The session of a receiver says what it takes, and nothing of links."""
        session = self.receivers[place].session
        frame = session.flow_frame()
        frame.incoming_window = window
        session.write(frame.encode())

    def received(self) -> list[int]:
        """The messages that came, by number, in the order of the receivers."""
        return [
            int.from_bytes(_body(delivery.payload)[:8], "big")
            for receiver in self.receivers
            for delivery in receiver.deliveries
        ]

    def stalled(self) -> list[str]:
        """Receivers that could have a message, while nothing is on its way and nobody has promised to call.

        While enough waits for windows that the client has shut on its other sessions, a session may be passed over whose window
        does not take a whole message: the client opens the others, and it is served.
        """
        if self.driver.commit is not None or self.transport.is_paused or self.gateway.amqp.has_output():
            return []
        if self.entity.main.ready.first() is None:
            return []
        return [
            f"{link.name}: credit {link.credit}, window {link.session.remote_window}, unwritten "
            f"{self.transport.get_write_buffer_size()}"
            for link, context in self.gateway.links.items()
            if isinstance(context, ReceiveLink)
            and link.credit > 0
            and link.session.has_window()
            and not (
                self.gateway.amqp.has_enough_waiting()
                and link.session.remote_window * self.gateway.amqp.send_frame_max < WHOLE_MESSAGE_BYTES
            )
        ]


def _body(payload: bytes) -> bytes:
    body = decode_message(payload).body
    assert isinstance(body, bytes), type(body)
    return body


def _no_answer(request: HttpRequest) -> HttpResponse:
    return HttpResponse(404, [], b"")
