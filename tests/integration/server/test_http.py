"""HTTP on the one port and on its own: keep-alive, pipelining, limits, health, metrics."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import h11
import pytest

from pairbus.form import FORM
from pairbus.gateway.http import HttpRequest, HttpResponse
from pairbus.server.sockets.registry import Limits
from tests.integration.server.kit import (
    WAIT_SECONDS,
    Running,
    connect,
    read_all,
    read_cut,
    read_until,
    serving,
)
from tests.waiting import until


async def get(running: Running, target: str, *, address: tuple[str, int] | None = None) -> tuple[int, bytes]:
    reader, writer = await connect(address or running.amqp)
    writer.write(f"GET {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    answer = await read_all(reader)
    writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), body


@pytest.mark.parametrize("which", ["amqp", "http"])
async def test_requests_are_answered_on_both_addresses(tmp_path: Path, which: str) -> None:
    async with serving(tmp_path) as running:
        address = running.amqp if which == "amqp" else running.http

        assert await get(running, "/queue%2Fa?api-version=2021-05", address=address) == (
            200,
            b"GET /queue%2Fa?api-version=2021-05 0",
        )

        request = running.broker.requests[0]
        assert request.headers["host"] == "x"
        assert request.peer.startswith("127.0.0.1:")
        assert not request.secure


async def test_one_connection_serves_many_requests_pipelined_ones_too(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        reader, writer = await connect(running.amqp)
        one = b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc"
        writer.write(one * 3)
        client = h11.Connection(h11.CLIENT)
        bodies = []
        for _ in range(3):
            client.send(
                h11.Request(method="POST", target="/a", headers=[("Host", "x"), ("Content-Length", "3")])
            )
            client.send(h11.Data(data=b"abc"))
            client.send(h11.EndOfMessage())
            bodies.append(await _read_response(client, reader))
            client.start_next_cycle()

        assert bodies == [b"POST /a 3"] * 3
        writer.close()


async def _read_response(client: h11.Connection, reader: asyncio.StreamReader) -> bytes:
    body = b""
    while True:
        event = client.next_event()
        if event is h11.NEED_DATA:
            async with asyncio.timeout(WAIT_SECONDS):
                client.receive_data(await reader.read(65536))
        elif isinstance(event, h11.Data):
            body += bytes(event.data)
        elif isinstance(event, h11.EndOfMessage):
            return body


@pytest.mark.promise("B4")
async def test_a_change_is_durable_before_it_is_answered(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        running.store.gate.clear()
        reader, writer = await connect(running.amqp)
        writer.write(b"PUT /q HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        waiting = asyncio.ensure_future(read_all(reader))
        await until(lambda: len(running.broker.requests) == 1)
        done, _ = await asyncio.wait([waiting], timeout=0.05)
        assert not done

        running.store.gate.set()

        assert (await waiting).startswith(b"HTTP/1.1 200 ")
        assert running.store.synced == ["PUT /q"]
        writer.close()


async def test_a_half_closed_client_is_still_answered(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        reader, writer = await connect(running.amqp)
        writer.write(b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n")
        writer.write_eof()

        assert (await read_all(reader)).endswith(b"GET /a 0")
        writer.close()


async def test_head_and_continue_are_answered_as_http_says(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        reader, writer = await connect(running.amqp)
        writer.write(b"HEAD /a HTTP/1.1\r\nHost: x\r\n\r\n")
        head = await read_until(reader, b"\r\n\r\n")
        assert b"content-length: 9\r\n" in head.lower()
        writer.write(b"POST /b HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n")
        assert (await read_until(reader, b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
        writer.write(b"hi")

        assert (await read_until(reader, b"POST /b 2")).startswith(b"HTTP/1.1 200 ")
        writer.close()


@pytest.mark.promise("M12")
@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 70_000 + b"\r\n\r\n", 431),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5000\r\n\r\n", 413),
        (
            b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n800\r\n"
            + b"z" * 2048
            + b"\r\n",
            413,
        ),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: ten\r\n\r\n", 400),
    ],
)
async def test_requests_beyond_the_limits_are_refused_before_the_work(
    tmp_path: Path, request_bytes: bytes, status: int
) -> None:
    async with serving(tmp_path, limits=Limits(http_body_bytes_max=1024)) as running:
        reader, writer = await connect(running.amqp)
        writer.write(request_bytes)

        answer = await read_all(reader)

        assert answer.startswith(f"HTTP/1.1 {status} ".encode())
        assert b"connection: close" in answer.lower()
        assert running.broker.requests == []
        writer.close()


async def test_idle_connections_are_cut_and_slow_heads_too(tmp_path: Path) -> None:
    limits = Limits(handshake_seconds=0.5, http_idle_seconds=0.5)
    async with serving(tmp_path, limits=limits) as running:
        idle_reader, idle = await connect(running.amqp)
        idle.write(b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n")
        slow_reader, slow = await connect(running.amqp)
        slow.write(b"GET /a HTTP/1.1\r\nHost:")

        assert (await read_cut(idle_reader)).endswith(b"GET /a 0")
        assert await read_cut(slow_reader) == b""

        idle.close()
        slow.close()


@pytest.mark.promise("B62")
async def test_who_asks_and_never_listens_is_not_read_for_ever(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        running.broker.http_body = b"z" * 200_000
        reader, writer = await connect(running.amqp)
        writer.write(b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n" * 2_000)
        await until(lambda: len(running.broker.requests) > 2)
        count = -1
        while count != len(running.broker.requests):
            count = len(running.broker.requests)
            assert await get(running, "/health") is not None

        assert count < 200
        total = 0
        async with asyncio.timeout(WAIT_SECONDS):
            while len(running.broker.requests) < 2_000:
                total += len(await reader.read(1 << 20))
        assert total > 0
        writer.close()


async def test_health_says_who_is_there(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        status, body = await get(running, "/health")

        assert status == 200
        assert json.loads(body)["status"] == "healthy"
        assert json.loads(body)["namespace"] == "contoso"
        assert json.loads(body)["form"] == FORM.name
        assert json.loads(body)["compiled"] == list(FORM.parts)


async def test_metrics_hold_the_servers_part_and_the_brokers(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        running.broker.http_body = b"pairbus_messages 7\n"

        status, body = await get(running, "/metrics")

        text = body.decode()
        assert status == 200
        assert 'pairbus_connections{protocol="http"} 1' in text
        assert "# TYPE pairbus_commit_seconds histogram" in text
        assert text.endswith("pairbus_messages 7\n")


async def test_pages_come_before_the_broker_and_faults_are_500(tmp_path: Path) -> None:
    def page(request: HttpRequest, now: int) -> HttpResponse | None:
        return HttpResponse(200, [], b"page") if request.target == "/" else None

    async with serving(tmp_path, page=page) as running:
        assert await get(running, "/") == (200, b"page")
        assert (await get(running, "/boom"))[0] == 500
        assert (await get(running, "/other"))[0] == 200
