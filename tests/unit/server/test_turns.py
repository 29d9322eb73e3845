"""How much of one client's input is handled before others have their turn; the real connection, gateway and broker."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from websockets.frames import Frame, Opcode

from pairbus.amqp.conditions import AmqpError
from pairbus.amqp.encode import encode_described, encode_list, encode_value
from pairbus.amqp.transport.framing import amqp_frame
from pairbus.amqp.transport.handler import Handler
from pairbus.amqp.transport.link import Link
from pairbus.amqp.transport.performatives import DETACH
from pairbus.amqp.transport.session import Session
from pairbus.amqp.types import UInt
from pairbus.gateway.connection import GatewayConnection
from pairbus.gateway.http import HttpRequest, HttpResponse
from pairbus.server.loop import Driver
from pairbus.server.sockets import connection as connection_module
from pairbus.server.sockets.connection import SocketConnection
from pairbus.server.sockets.registry import ConnectionRegistry, Limits
from pairbus.server.sockets.turns import READ_BYTES_MAX, READ_BYTES_MIN, SLICE_NS, Turns, next_read_bytes
from tests.unit.gateway.test_strangers import BEGUN, attach_frame, opening
from tests.unit.gateway.wire_bench import WireBench
from tests.unit.server.test_slow_peers import UPGRADE, DeafTransport, StillDriver

LINKS = 1_500
ROUNDS_MAX = 10_000


def links(count: int, prefix: str = "") -> bytes:
    """Attach a link and detach it again, so many times, each with a name of its own."""
    fields = [encode_value(UInt(0)), encode_value(True)]
    detach = amqp_frame(0, encode_described(DETACH, encode_list(fields)))
    return b"".join(attach_frame(0, f"{prefix}{number}", "$cbs") + detach for number in range(count))


class Watching(Handler):
    """Stands before the handler of a connection that only attaches links, and notes their names."""

    def __init__(self, handler: Handler, attached: list[str]) -> None:
        self._handler = handler
        self._attached = attached

    def session_ended(self, session: Session) -> None:
        self._handler.session_ended(session)

    def link_attached(self, link: Link) -> None:
        self._attached.append(link.attach.name)
        self._handler.link_attached(link)

    def link_detached(self, link: Link, closed: bool, error: AmqpError | None) -> None:
        self._handler.link_detached(link, closed, error)

    def credit(self, link: Link) -> None:
        self._handler.credit(link)


class Room:
    """A server without sockets, whose broker tells which links were attached, in order."""

    def __init__(self) -> None:
        self.attached: list[str] = []
        self.registry = ConnectionRegistry(cast("Any", WireBench().broker), Limits(), self._answer, None)

    async def client(self, first: bytes = b"") -> tuple[SocketConnection, DeafTransport]:
        """A client with a Listen key."""
        driver = cast("Driver", StillDriver())
        connection, transport = SocketConnection(self.registry, driver, http_only=False), DeafTransport()
        connection.connection_made(transport)
        if first:
            connection.data_received(first)
        login = opening("listener") + BEGUN
        connection.data_received(Frame(Opcode.BINARY, login).serialize(mask=True) if first else login)
        await self.rounds_until(lambda: not connection.is_stranger)
        gateway = connection._gateway
        assert isinstance(gateway, GatewayConnection)
        gateway.amqp.handler = Watching(gateway, self.attached)
        return connection, transport

    async def rounds_until(self, is_done: Any) -> int:
        """Rounds of the loop until something is so."""
        for count in range(ROUNDS_MAX):
            if is_done():
                return count
            await asyncio.sleep(0)
        raise AssertionError("it never happened")

    def _answer(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse(200, [], request.body)


@pytest.mark.promise("B63")
async def test_a_client_that_attaches_densely_keeps_nobody_waiting() -> None:
    room = Room()
    abuser, _ = await room.client()
    other, _ = await room.client()

    abuser.data_received(links(LINKS))
    handled = len(room.attached)
    other.data_received(links(2, "other "))

    assert handled < LINKS // 2, "one turn handled it all"
    assert room.attached[handled:] == ["other 0", "other 1"], "a client that sends little is served at once"


@pytest.mark.promise("B63")
async def test_the_rest_is_handled_in_order_and_the_socket_is_not_read_meanwhile() -> None:
    room = Room()
    client, transport = await room.client()
    client.data_received(links(LINKS))
    assert not transport.is_read

    await room.rounds_until(lambda: len(room.attached) == LINKS)
    await room.rounds_until(lambda: transport.is_read)

    assert room.attached == [str(number) for number in range(LINKS)]


@pytest.mark.promise("B63")
async def test_clients_that_send_much_take_turns() -> None:
    room = Room()
    now = 0

    def clock() -> int:
        nonlocal now
        now += SLICE_NS // 4
        return now

    room.registry.turns = Turns(clock)
    clients = [(await room.client())[0] for _ in range(3)]
    for number, client in enumerate(clients):
        client.data_received(links(200, f"{number}:"))

    await room.rounds_until(lambda: len(room.attached) == 600)

    done: dict[str, int] = {}
    for name in room.attached:
        done[name[0]] = done.get(name[0], 0) + 1
        if max(done.values()) < 200 and len(done) == 3:
            assert max(done.values()) - min(done.values()) <= 50, "one is far ahead of the others"


@pytest.mark.promise("B63")
async def test_a_client_that_ends_its_side_has_all_it_sent_handled_and_gets_no_more_messages() -> None:
    room = Room()
    client, transport = await room.client()
    gateway = cast("GatewayConnection", client._gateway)
    client.data_received(links(LINKS))

    assert client.eof_received(), "the transport stays until the rest is handled"
    assert gateway.is_paused
    await room.rounds_until(lambda: transport.is_ended)

    assert len(room.attached) == LINKS
    assert gateway.amqp.is_closed


@pytest.mark.promise("B63")
@pytest.mark.parametrize("is_waiting", [True, False])
async def test_what_a_lost_socket_still_held_is_handled_in_turns(
    monkeypatch: pytest.MonkeyPatch, is_waiting: bool
) -> None:
    room = Room()
    client, _ = await room.client()
    gateway = cast("GatewayConnection", client._gateway)
    data = links(LINKS)
    monkeypatch.setattr(connection_module, "left_in", lambda _: iter([data[:7_777], data[7_777:]]))
    if is_waiting:
        client.data_received(links(LINKS, "before "))
    client.connection_lost(BrokenPipeError())
    client.write([], False)

    assert len(room.attached) < LINKS, "one turn handled it all"
    assert gateway.is_paused
    await room.rounds_until(lambda: client._transport is None)

    assert room.attached[-LINKS:] == [str(number) for number in range(LINKS)]
    assert len(room.attached) == LINKS * (2 if is_waiting else 1)
    assert room.registry.statistics().open_by_kind == {}


@pytest.mark.promise("B63")
async def test_a_websocket_that_closes_has_all_it_sent_handled() -> None:
    room = Room()
    client, transport = await room.client(UPGRADE)
    frames = Frame(Opcode.BINARY, links(LINKS)).serialize(mask=True)
    client.data_received(frames + Frame(Opcode.CLOSE, b"\x03\xe8").serialize(mask=True))

    assert len(room.attached) < LINKS
    await room.rounds_until(lambda: transport.is_ended)

    assert len(room.attached) == LINKS


async def test_a_client_that_is_cut_while_it_waits_leaves_nothing() -> None:
    room = Room()
    client, _ = await room.client()
    client.data_received(links(LINKS))
    client.cut()
    client.connection_lost(None)
    handled = len(room.attached)
    await asyncio.sleep(0)

    assert len(room.attached) == handled
    assert len(room.registry.turns) == 0
    assert room.registry.statistics().open_by_kind == {}


async def test_a_slice_ends_with_its_step_when_something_waits_for_the_loop() -> None:
    turns = Turns(lambda: 0)  # no slice ends by itself
    order: list[str] = []

    class Busy:
        def take_turn(self) -> bool:
            order.append("step")
            if len(order) == 3:
                asyncio.get_running_loop().call_soon(order.append, "urgent")
                turns.interrupt()
            return len(order) < 10

    turns.wait(Busy())
    assert order == ["step"] * 3
    for _ in range(10):
        await asyncio.sleep(0)
    assert order == ["step"] * 3 + ["urgent"] + ["step"] * 6


async def test_what_was_interrupted_between_two_slices_goes_on_in_the_next_round() -> None:
    turns = Turns(lambda: 0)
    order: list[str] = []

    class Busy:
        def take_turn(self) -> bool:
            order.append("step")
            return len(order) < 5

    turns.interrupt()
    turns.wait(Busy())
    assert order == []
    await asyncio.sleep(0)
    assert order == ["step"] * 5


def test_a_read_is_as_large_as_what_is_handled_without_a_wait() -> None:
    size = 64 * 1024
    assert next_read_bytes(size, size - 1, is_behind=False) == size
    assert next_read_bytes(size, size, is_behind=False) == 2 * size
    assert next_read_bytes(READ_BYTES_MAX, READ_BYTES_MAX, is_behind=False) == READ_BYTES_MAX
    assert next_read_bytes(size, size, is_behind=True) == size // 2
    assert next_read_bytes(READ_BYTES_MIN, 100, is_behind=True) == READ_BYTES_MIN
