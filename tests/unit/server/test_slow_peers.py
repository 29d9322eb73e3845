"""A peer that asks and does not read costs little memory, and is read again when it reads."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import pytest
from websockets.frames import Frame, Opcode

from pairbus.gateway.http import HttpRequest, HttpResponse
from pairbus.server.loop import Driver
from pairbus.server.sockets.connection import UNREAD_BYTES_MAX, SocketConnection
from pairbus.server.sockets.registry import ConnectionRegistry, Limits
from tests.unit.server.fakes import FakeBroker, FakeStore, FakeTransport

UPGRADE = (
    b"GET /$servicebus/websocket HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Protocol: AMQPWSB10\r\n\r\n"
)
PUT_HEAD = b"PUT /q HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n"


class DeafTransport(FakeTransport):
    """The socket of a peer that sends and never reads: whatever is written stays."""

    def __init__(self) -> None:
        super().__init__()
        self.written = 0
        self._words: list[bytes] = []

    @property
    def words(self) -> bytes:
        return b"".join(self._words)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        return None

    def get_write_buffer_size(self) -> int:
        return self.written

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += len(data)
        self._words.append(bytes(data))

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        for data in list_of_data:
            self.write(data)

    def is_closing(self) -> bool:
        return False


class StillDriver:
    """A driver that never takes a turn by itself."""

    is_reading = True

    def now(self) -> int:
        return 1_700_000_000_000

    def ask_turn(self) -> None:
        return None

    def received(self, count: int) -> None:
        return None


def _registry(limits: Limits | None = None) -> ConnectionRegistry:
    def answer(request: HttpRequest) -> HttpResponse:
        return HttpResponse(200, [], str(len(request.body)).encode())

    return ConnectionRegistry(cast("Any", FakeBroker(FakeStore())), limits or Limits(), answer, None)


def _connected(registry: ConnectionRegistry) -> tuple[SocketConnection, DeafTransport]:
    connection, transport = (
        SocketConnection(registry, cast("Driver", StillDriver()), http_only=False),
        DeafTransport(),
    )
    connection.connection_made(transport)
    return connection, transport


def _speak_http(registry: ConnectionRegistry) -> None:
    for output in registry.http_output():
        output.sink.write(output.chunks, output.closes)


def _take_steps(*strangers: SocketConnection) -> None:
    """Give every stranger as many turns as it needs."""
    for stranger in strangers:
        while stranger.take_step():
            pass


@pytest.mark.promise("B62")
async def test_peer_that_pings_and_never_reads_is_not_read_any_more() -> None:
    registry = _registry()
    connection, transport = _connected(registry)
    connection.data_received(UPGRADE)
    ping = Frame(Opcode.PING, bytes(125)).serialize(mask=True) * 500

    sent = 0
    while transport.is_read and sent < 20 * UNREAD_BYTES_MAX:
        connection.data_received(ping)
        sent += len(ping)

    assert transport.written < 2 * UNREAD_BYTES_MAX
    assert not transport.is_read
    registry.close()


@pytest.mark.promise("B62")
async def test_peer_that_reads_again_is_read_again() -> None:
    registry = _registry()
    connection, transport = _connected(registry)
    connection.data_received(UPGRADE)
    transport.written = 2 * UNREAD_BYTES_MAX
    connection.data_received(Frame(Opcode.PING, b"1").serialize(mask=True))
    assert [transport.is_read] == [False]

    transport.written = 0
    connection.resume_writing()

    assert [transport.is_read] == [True]
    registry.close()


@pytest.mark.promise("M6")
async def test_requests_of_strangers_that_never_end_hold_little_memory_together() -> None:
    registry = _registry(Limits(http_held_bytes_max=2_000_000))
    slow = []
    for _ in range(10):
        connection, transport = _connected(registry)
        connection.data_received(PUT_HEAD + bytes(500_000))
        slow.append((connection, transport))
    _take_steps(*(connection for connection, _ in slow))
    _speak_http(registry)

    refused = [transport for _, transport in slow if transport.words.startswith(b"HTTP/1.1 503")]
    assert len(refused) == 6
    assert all(transport.is_ended for transport in refused)

    # Those within the limit are answered once there is room, and what they held is free again.
    within = [pair for pair in slow if pair[1] not in refused]
    within[1][0].connection_lost(None)
    connection, transport = within[0]
    connection.data_received(bytes(500_000))
    _take_steps(connection)
    _speak_http(registry)
    assert transport.words.endswith(b"1000000")
    for connection, _ in slow:
        connection.connection_lost(None)
    connection, transport = _connected(registry)
    connection.data_received(PUT_HEAD + bytes(900_000))
    connection.data_received(bytes(100_000))
    _take_steps(connection)
    _speak_http(registry)
    assert transport.words.endswith(b"1000000")
    registry.close()
