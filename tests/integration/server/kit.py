"""Helpers for tests of the real server on real sockets: a running server around a small broker, and bounded waits."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from pairbus.server.clock import Clock
from pairbus.server.config.addresses import parse_address
from pairbus.server.server import Page, Server
from pairbus.server.sockets.registry import Limits
from tests.unit.server.fakes import FakeBroker, FakeStore, assemble_with, assembly, options

WAIT_SECONDS = 45.0


class Running:
    def __init__(self, server: Server, broker: FakeBroker) -> None:
        self.server = server
        self.broker = broker
        self.store: FakeStore = broker.store
        self.amqp = parse_address(server.ready.amqp, "amqp")
        self.http = parse_address(server.ready.http, "http")

    def client_context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self.server.ready.ca_file)


@asynccontextmanager
async def serving(
    data: Path,
    *,
    tls: bool = False,
    limits: Limits | None = None,
    page: Page | None = None,
    clock: Clock | None = None,
) -> AsyncIterator[Running]:
    broker, _ = assembly()
    server = Server(
        options(data, tls=tls, limits=limits),
        assemble=lambda _o, _n: assemble_with(broker),
        page=page,
        clock=clock,
    )
    await server.start()
    try:
        yield Running(server, broker)
    finally:
        await server.stop()


async def connect(
    address: tuple[str, int], context: ssl.SSLContext | None = None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host = "localhost" if context is not None else None
    return await asyncio.open_connection(*address, ssl=context, server_hostname=host)


async def read_until(reader: asyncio.StreamReader, end: bytes) -> bytes:
    async with asyncio.timeout(WAIT_SECONDS):
        return await reader.readuntil(end)


async def read_all(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(WAIT_SECONDS):
        return await reader.read()


async def read_cut(reader: asyncio.StreamReader) -> bytes:
    """What came before the server ended the connection, with or without a reset."""
    try:
        return await read_all(reader)
    except ConnectionResetError:
        return b""
