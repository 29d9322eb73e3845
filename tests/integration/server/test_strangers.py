"""Peers without a key at the real sockets: what they hold, keep open, log and leave behind."""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
from pathlib import Path

import pytest

from pairbus.gateway.http import HttpRequest, HttpResponse
from pairbus.server.layers.http import REFUSALS_MAX, HttpLayer
from pairbus.server.sockets.registry import LOGGED_BURST, SPARE_SLOTS, Limits
from pairbus.server.sockets.strangers import READ_BYTES
from tests.integration.server.kit import Running, connect, read_all, read_cut, read_until, serving
from tests.waiting import until

HEADER = b"AMQP\x03\x01\x00\x00"
HEALTH = b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
UPGRADE = (
    b"GET /$servicebus/websocket HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Protocol: AMQPWSB10\r\n\r\n"
)
VISITS = {
    "silent": b"",
    "unknown protocol": b"hello there",
    "amqp": HEADER + b"never opened",
    "a request": b"GET /q HTTP/1.1\r\nHost: x\r\n\r\n",
    "half a request": b"PUT /q HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\nabc",
    "no request": b"GET q q q\r\n\r\n",
    "websocket": UPGRADE,
    "broken tls": b"\x16\x03\x01\x00\x05hello",
}


async def is_healthy(running: Running) -> bool:
    reader, writer = await connect(running.http)
    writer.write(HEALTH)
    answer = await read_all(reader)
    writer.close()
    return answer.startswith(b"HTTP/1.1 200")


async def open_client(running: Running) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await connect(running.amqp)
    writer.write(HEADER + b"OPEN")
    assert await read_until(reader, b">")
    return reader, writer


@pytest.mark.promise("M12")
async def test_strangers_keep_no_slot_from_clients_and_health(tmp_path: Path) -> None:
    async with serving(tmp_path, limits=Limits(connections_max=40)) as running:
        old_reader, old = await open_client(running)
        silent = [await connect(running.amqp) for _ in range(100)]

        assert await is_healthy(running)
        new_reader, new = await open_client(running)
        for reader, writer in ((old_reader, old), (new_reader, new)):
            writer.write(b"more")
            assert await read_until(reader, b">") == b"<more>"
        listener = running.server.statistics().listener
        assert sum(listener.open_by_kind.values()) <= 40 + SPARE_SLOTS
        assert set(listener.refused_by_reason) == {"strangers_max"}
        for _, writer in (*silent, (old_reader, old), (new_reader, new)):
            writer.close()


@pytest.mark.promise("M12")
async def test_silent_sockets_do_not_cut_a_client_during_its_handshake(tmp_path: Path) -> None:
    async with serving(tmp_path, limits=Limits(connections_max=10)) as running:
        reader, writer = await connect(running.amqp)
        writer.write(HEADER)
        assert await read_until(reader, b">")
        silent = [await connect(running.amqp) for _ in range(50)]
        await until(lambda: running.server.statistics().listener.accepted == 51)
        writer.write(b"OPEN")

        assert await read_until(reader, b">") == b"<OPEN>"
        for _, one in (*silent, (reader, writer)):
            one.close()


@pytest.mark.promise("M12")
async def test_health_answers_when_clients_hold_every_slot(tmp_path: Path) -> None:
    async with serving(tmp_path, limits=Limits(connections_max=5)) as running:
        clients = [await open_client(running) for _ in range(5)]
        idle = [await connect(running.http) for _ in range(3 * SPARE_SLOTS)]

        assert await is_healthy(running)
        reader, writer = await connect(running.amqp)
        writer.write(HEADER + b"OPEN")
        assert await read_cut(reader) == b"", "a sixth client is turned away"
        for own_reader, own in clients:
            own.write(b"more")
            assert await read_until(own_reader, b">") == b"<more>"
        assert sum(running.server.statistics().listener.open_by_kind.values()) <= 5 + SPARE_SLOTS
        for _, one in (*clients, *idle, (reader, writer)):
            one.close()


@pytest.mark.promise("M12")
async def test_a_flood_of_strangers_is_no_flood_of_log_lines(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "pairbus.server")
    async with serving(tmp_path) as running:
        for _ in range(3 * LOGGED_BURST):
            reader, writer = await connect(running.amqp)
            writer.write(b"hello there")
            await read_cut(reader)
            writer.close()
        refused = running.server.statistics().listener.refused_by_reason

    lines = [record for record in caplog.records if record.message == "connection refused"]
    assert refused == {"unknown_protocol": 3 * LOGGED_BURST}
    assert len(lines) < 2 * LOGGED_BURST


@pytest.mark.promise("B63")
async def test_requests_that_come_in_one_piece_are_answered_one_per_turn(tmp_path: Path) -> None:
    """A thousand requests in one segment: a client in between is heard before they are through."""
    async with serving(tmp_path) as running:
        client_reader, client = await open_client(running)
        reader, writer = await connect(running.amqp)
        writer.write(b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n" * 1_000)
        await until(lambda: len(running.broker.requests) > 0)
        client.write(b"more")
        assert await read_until(client_reader, b">") == b"<more>"
        heard_after = len(running.broker.requests)
        await until(lambda: len(running.broker.requests) == 1_000)

        assert heard_after < 900
        for one in (client, writer):
            one.close()
        assert reader is not None


async def test_a_connection_of_an_unknown_caller_is_read_again_after_each_answer(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        reader, writer = await connect(running.http)
        for number in range(5):
            writer.write(b"GET /%d HTTP/1.1\r\nHost: x\r\n\r\n" % number)
            assert await read_until(reader, b"GET /%d 0" % number)
        writer.close()


@pytest.mark.promise("M12")
async def test_an_unknown_caller_that_is_refused_again_and_again_is_shown_the_door() -> None:
    def answer(_: HttpRequest) -> HttpResponse:
        return HttpResponse(401, [], b"")

    http = HttpLayer(answer, peer="", secure=False, body_bytes_max=10, now=lambda: 0)
    for number in range(REFUSALS_MAX):
        assert not http.is_ended, number
        http.receive(b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n")

    assert http.is_ended
    assert b"connection: close" in b"".join(http.take_output()).lower()


@pytest.mark.promise("B62")
async def test_a_strangers_socket_is_read_in_small_pieces(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        registry = running.server._registry
        assert registry is not None
        _, stranger = await connect(running.amqp)
        await until(lambda: len(registry.strangers) == 1)
        connection = next(iter(registry._connections))
        transport = connection._transport
        assert transport is not None
        assert transport.max_size == READ_BYTES  # type: ignore[attr-defined]
        stranger.write(HEADER + b"OPEN")
        await until(lambda: len(registry.strangers) == 0)
        assert transport.max_size > READ_BYTES  # type: ignore[attr-defined]
        stranger.close()


def visit(address: tuple[str, int], data: bytes) -> None:
    """A visit with blocking sockets, in a thread: no transport in this process but the server's."""
    with socket.create_connection(address) as sock:
        sock.settimeout(1)
        sock.sendall(data)
        sock.shutdown(socket.SHUT_WR)
        try:
            while sock.recv(65_536):
                pass
        except OSError:
            return


@pytest.mark.promise("B67")
@pytest.mark.parametrize("name", VISITS)
async def test_a_visit_leaves_nothing_to_the_garbage_collector(name: str, tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        loop = asyncio.get_running_loop()
        registry = running.server._registry
        assert registry is not None

        async def visit_once() -> None:
            await loop.run_in_executor(None, visit, running.amqp, VISITS[name])
            await until(lambda: not registry._connections)
            await asyncio.sleep(0)

        await visit_once()
        running.broker.gateways.clear()
        gc.collect()
        gc.disable()
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            for _ in range(3):
                await visit_once()
            running.broker.gateways.clear()
            gc.collect()
            kinds = {type(thing).__name__ for thing in gc.garbage}
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()

    assert not kinds & {
        "SocketConnection",
        "HttpLayer",
        "Connection",
        "WebSocketLayer",
        "ServerProtocol",
        "TlsLayer",
    }
    assert "_SelectorSocketTransport" not in kinds
