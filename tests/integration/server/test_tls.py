"""TLS and WebSocket on the one port, with real clients."""

from __future__ import annotations

import asyncio
import itertools
import ssl
from pathlib import Path

import pytest
from websockets.asyncio.client import connect as websocket_connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, NegotiationError
from websockets.typing import Subprotocol

from pairbus.server.layers.tls import HANDSHAKE_BYTES_MAX
from pairbus.server.sockets.registry import Limits
from tests.integration.server.kit import WAIT_SECONDS, connect, read_all, read_cut, read_until, serving
from tests.waiting import until

HEADER = b"AMQP\x03\x01\x00\x00"
AMQP_SUBPROTOCOL = [Subprotocol("AMQPWSB10")]


async def test_amqp_inside_tls_with_the_certificate_checked(tmp_path: Path) -> None:
    async with serving(tmp_path, tls=True) as running:
        reader, writer = await connect(running.amqp, running.client_context())
        writer.write(HEADER + b"OPEN")

        assert await read_until(reader, b">") == b"<" + HEADER + b"OPEN>"

        assert running.broker.gateways[0].secure
        big = b"z" * 3_000_000
        running.broker.gateways[0].say(big + b"END")
        running.server.wake()
        async with asyncio.timeout(WAIT_SECONDS):
            assert await reader.readexactly(len(big) + 3) == big + b"END"
        writer.close()
        await until(lambda: running.broker.gateways[0].is_lost)


async def test_https_on_both_addresses(tmp_path: Path) -> None:
    async with serving(tmp_path, tls=True) as running:
        for address in (running.amqp, running.http):
            reader, writer = await connect(address, running.client_context())
            writer.write(b"GET /q HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")

            assert (await read_all(reader)).endswith(b"GET /q 0")
            writer.close()
        assert all(request.secure for request in running.broker.requests)


async def test_the_brokers_close_ends_tls_in_good_order(tmp_path: Path) -> None:
    async with serving(tmp_path, tls=True) as running:
        reader, writer = await connect(running.amqp, running.client_context())
        writer.write(HEADER + b"BYE")

        # A truncated TLS stream would raise here.
        assert await read_all(reader) == b"<" + HEADER + b"BYE>"
        writer.close()
        await until(lambda: running.server.statistics().listener.open_by_kind == {})


async def test_a_client_that_does_not_know_the_authority_goes_and_hurts_nobody(tmp_path: Path) -> None:
    async with serving(tmp_path, tls=True) as running:
        with pytest.raises(ssl.SSLCertVerificationError):
            await connect(running.amqp, ssl.create_default_context())

        reader, writer = await connect(running.amqp, running.client_context())
        writer.write(HEADER)
        assert await read_until(reader, b">") == b"<" + HEADER + b">"
        writer.close()


@pytest.mark.promise("B59")
async def test_garbage_after_a_client_hello_costs_only_that_peer(tmp_path: Path) -> None:
    async with serving(tmp_path, tls=True) as running:
        reader, writer = await connect(running.amqp)
        writer.write(b"\x16\x03\x01\x00\x05hello" + b"\x00" * 100)
        await read_all(reader)
        writer.close()

        await until(lambda: running.server.statistics().listener.refused_by_reason == {"protocol": 1})


@pytest.mark.promise("M6")
async def test_a_handshake_that_never_ends_is_limited_in_bytes_and_time(tmp_path: Path) -> None:
    async with serving(
        tmp_path, tls=True, limits=Limits(handshake_seconds=0.5, linger_seconds=0.5)
    ) as running:
        _, writer = await connect(running.amqp)
        # A hello that claims to be as long as TLS allows, sent in records that never complete it.
        record = b"\x16\x03\x01\x40\x00" + b"\x01\xff\xff\xff" + b"\x00" * (0x4000 - 4)
        filler = b"\x16\x03\x01\x40\x00" + b"\x00" * 0x4000
        writer.write(record + filler * (HANDSHAKE_BYTES_MAX // 0x4000))
        quiet_reader, quiet = await connect(running.amqp)
        quiet.write(b"\x16\x03\x01")

        assert await read_cut(quiet_reader) == b""

        await until(lambda: running.server.statistics().listener.open_by_kind == {})
        assert running.broker.gateways == []
        writer.close()
        quiet.close()


async def test_without_tls_a_client_hello_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await connect(running.amqp, ssl.create_default_context())
        assert running.server.statistics().listener.refused_by_reason == {"tls": 1}


@pytest.mark.parametrize("secure", [False, True])
async def test_websocket_carries_a_byte_stream_and_answers_pings(tmp_path: Path, secure: bool) -> None:
    async with serving(tmp_path, tls=secure) as running:
        scheme = "wss" if secure else "ws"
        url = f"{scheme}://localhost:{running.amqp[1]}/$servicebus/websocket"
        context = running.client_context() if secure else None
        async with websocket_connect(
            url, subprotocols=AMQP_SUBPROTOCOL, ssl=context, host="127.0.0.1", port=running.amqp[1]
        ) as client:
            assert client.subprotocol == "AMQPWSB10"
            await client.send(HEADER[:3])
            await client.send([HEADER[3:], b"OPEN"])
            await until(lambda: running.broker.gateways[0].heard == HEADER + b"OPEN")
            heard = b""
            async with asyncio.timeout(WAIT_SECONDS):
                while not heard.endswith(b"OPEN>"):
                    part = await client.recv()
                    assert isinstance(part, bytes)
                    heard += part
                await (await client.ping())
            assert running.broker.gateways[0].secure is secure
            big = b"w" * 300_000
            running.broker.gateways[0].say(big)
            running.server.wake()
            got = b""
            async with asyncio.timeout(WAIT_SECONDS):
                while len(got) < len(big):
                    part = await client.recv()
                    assert isinstance(part, bytes)
                    assert len(part) <= 64 * 1024
                    got += part
            assert got == big
        await until(lambda: running.broker.gateways[0].is_lost)


async def test_websocket_with_an_encoded_dollar_sign_is_the_same_place(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        url = f"ws://127.0.0.1:{running.amqp[1]}/%24servicebus/websocket"
        async with websocket_connect(url, subprotocols=AMQP_SUBPROTOCOL) as client:
            await client.send(HEADER)

            async with asyncio.timeout(WAIT_SECONDS):
                assert await client.recv() == b"<" + HEADER + b">"


OFFERS = {
    ("AMQPWSB10",): "AMQPWSB10",
    ("amqp",): "amqp",
    ("amqp", "AMQPWSB10"): "amqp",
    ("AMQPWSB10", "amqp"): "AMQPWSB10",
    ("chat", "amqp"): "amqp",
}


@pytest.mark.parametrize("address", ["amqp", "http"])
async def test_both_names_of_amqp_open_a_websocket_on_every_address(tmp_path: Path, address: str) -> None:
    async with serving(tmp_path) as running:
        host, port = running.amqp if address == "amqp" else running.http
        for path, (offered, answered) in itertools.product(["/", "/$servicebus/websocket"], OFFERS.items()):
            async with websocket_connect(
                f"ws://{host}:{port}{path}", subprotocols=[Subprotocol(name) for name in offered]
            ) as client:
                assert client.subprotocol == answered
                await client.send(HEADER)
                async with asyncio.timeout(WAIT_SECONDS):
                    assert await client.recv() == b"<" + HEADER + b">"


async def test_websocket_elsewhere_or_without_the_subprotocol_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        with pytest.raises(InvalidStatus):
            async with websocket_connect(
                f"ws://127.0.0.1:{running.amqp[1]}/other", subprotocols=AMQP_SUBPROTOCOL
            ):
                pass
        with pytest.raises((InvalidStatus, NegotiationError)):
            async with websocket_connect(
                f"ws://127.0.0.1:{running.amqp[1]}/$servicebus/websocket", subprotocols=[Subprotocol("chat")]
            ):
                pass
        assert running.broker.gateways == []


async def test_websocket_text_frames_are_refused(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        url = f"ws://127.0.0.1:{running.amqp[1]}/$servicebus/websocket"
        async with websocket_connect(url, subprotocols=AMQP_SUBPROTOCOL) as client:
            await client.send("text")

            with pytest.raises(ConnectionClosed) as closed:
                async with asyncio.timeout(WAIT_SECONDS):
                    await client.recv()

            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1003


async def test_the_brokers_close_ends_a_websocket_with_a_close_frame(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        url = f"ws://127.0.0.1:{running.amqp[1]}/$servicebus/websocket"
        async with websocket_connect(url, subprotocols=AMQP_SUBPROTOCOL) as client:
            await client.send(HEADER + b"BYE")
            async with asyncio.timeout(WAIT_SECONDS):
                assert await client.recv() == b"<" + HEADER + b"BYE>"
                with pytest.raises(ConnectionClosed) as closed:
                    await client.recv()

            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1000
