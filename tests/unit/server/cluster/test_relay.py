"""Connections of a node: relayed byte for byte, answered, handed over, made to wait, or closed."""

from __future__ import annotations

import asyncio
import errno
import itertools
import json
import logging
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from pairbus.amqp.transport.framing import SASL_HEADER
from pairbus.server.cluster import advertised
from pairbus.server.cluster.advertised import OwnAddress
from pairbus.server.cluster.health import COMMIT_WAITS_MS, health_answer, role_and_reason, role_of
from pairbus.server.cluster.ownership.keeper import LeaseView
from pairbus.server.cluster.ownership.lease import LeaseState
from pairbus.server.cluster.relaying import reach as reach_module
from pairbus.server.cluster.relaying.pipes import READ_BYTES
from pairbus.server.cluster.relaying.quiet import QUIET_BYTES
from pairbus.server.cluster.relaying.reach import OwnerReach, ask_name, who_else
from pairbus.server.cluster.relaying.relay import FIRST_BYTES_MAX, MARK, Relay, Route, RouteKind
from pairbus.server.config.addresses import format_address
from pairbus.server.sockets.accepting import Acceptor
from pairbus.server.sockets.registry import bind_all
from tests.waiting import until

AMQP = b"AMQP\x00\x01\x00\x00"
TLS = b"\x16\x03\x01\x00\x05hello"
SECONDS_MAX = 20
LITTLE_SECONDS = 0.2


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


class Served(asyncio.Protocol):
    """A server that answers what it hears in brackets."""

    def __init__(self) -> None:
        self.heard = b""
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.heard += data
        assert self.transport is not None
        self.transport.write(b"<" + data + b">")


class Host:
    """A node that knows what the test says."""

    def __init__(self) -> None:
        self.now = Route(RouteKind.CLOSE)
        self.adopted: list[tuple[bytes, bool, str | None]] = []
        self.servers: list[Served] = []
        self.relay: Relay | None = None
        self.waiting = -1
        self.body = b'{"role": "relay"}\n'

    def route(self) -> Route:
        return self.now

    def adopt(
        self, transport: asyncio.Transport, first: bytes, *, http_only: bool, relayed_for: str | None
    ) -> None:
        self.adopted.append((first, http_only, relayed_for))
        served = Served()
        self.servers.append(served)
        transport.set_protocol(served)
        served.connection_made(transport)
        served.data_received(first)

    def health(self, target: str) -> tuple[int, str, bytes]:
        assert self.relay is not None
        self.waiting = self.relay.statistics().waiting
        return 503 if target.endswith("/owner") else 200, "application/json", self.body


class Node:
    """A relay that listens."""

    def __init__(self, *, connections_max: int = 100, wait_seconds: float = SECONDS_MAX) -> None:
        self.host = Host()
        self.relay = Relay(
            self.host,
            connections_max=connections_max,
            first_bytes_seconds=SECONDS_MAX,
            wait_seconds=wait_seconds,
        )
        self.host.relay = self.relay
        sock = bind_all("127.0.0.1", 0)[0]
        self.port = sock.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        self._acceptor = Acceptor(sock, lambda: self.relay.entrance(http_only=False))

    async def connect(self, first: bytes = b"") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(first)
        return reader, writer

    def close(self) -> None:
        self._acceptor.close()
        self.relay.close()


@pytest.fixture
async def nodes() -> AsyncIterator[Callable[..., Node]]:
    made: list[Node] = []

    def make(**settings: float) -> Node:
        made.append(Node(**settings))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for node in made:
        node.close()


@pytest.fixture
async def pair(nodes: Callable[..., Node]) -> tuple[Node, Node]:
    """A relay and the owner that it relays to."""
    relay, owner = nodes(), nodes()
    owner.host.now = Route(RouteKind.LOCAL)
    relay.host.now = Route(RouteKind.RELAY, owner.address)
    return relay, owner


async def soon(awaited: Awaitable[bytes]) -> bytes:
    async with asyncio.timeout(SECONDS_MAX):
        return await awaited


async def is_closed(reader: asyncio.StreamReader) -> bool:
    try:
        return await soon(reader.read(1)) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize("first", [AMQP, TLS, b"PUT /orders HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n"])
async def test_bytes_go_both_ways_unchanged(pair: tuple[Node, Node], first: bytes) -> None:
    relay, owner = pair
    reader, writer = await relay.connect(first)
    assert await soon(reader.readexactly(len(first) + 2)) == b"<" + first + b">"
    for word in (b"a", b"b" * 3_000_000):
        writer.write(word)
        heard = b""
        while heard.replace(b"<", b"").replace(b">", b"") != word:
            heard += await soon(reader.read(1 << 20))
    assert relay.relay.statistics().relayed == 1
    client = writer.get_extra_info("sockname")
    assert owner.host.adopted == [(first, False, f"127.0.0.1:{client[1]}")]
    writer.close()
    await until(lambda: relay.relay.statistics().relayed == 0)


async def test_an_end_is_passed_on_and_answers_still_come(pair: tuple[Node, Node]) -> None:
    relay, owner = pair
    reader, writer = await relay.connect(AMQP)
    await soon(reader.readexactly(len(AMQP) + 2))
    served = owner.host.servers[0]
    ends: list[bool] = []

    def ended() -> bool:
        ends.append(True)
        return True

    served.eof_received = ended  # type: ignore[method-assign]
    writer.write_eof()
    await until(lambda: bool(ends))
    assert served.transport is not None
    served.transport.write(b"last")
    served.transport.close()
    assert await soon(reader.read()) == b"last"
    await until(lambda: relay.relay.statistics().relayed == 0)


async def test_a_peer_that_reads_nothing_holds_the_owner_up_and_not_the_memory(
    pair: tuple[Node, Node],
) -> None:
    relay, owner = pair
    reader, writer = await relay.connect(AMQP)
    await soon(reader.readexactly(len(AMQP) + 2))
    transport = owner.host.servers[0].transport
    assert transport is not None
    total = 64 << 20
    transport.write(b"x" * total)
    pipe = next(iter(relay.relay._opened))
    await until(lambda: len(pipe.near.unwritten) > 0)
    assert len(pipe.near.unwritten) <= READ_BYTES
    assert not pipe.far.wanted(), "the owner is not read while its client takes nothing"
    assert transport.get_write_buffer_size() > total // 2  # the rest is with the systems' sockets
    count = 0
    while count < total:
        count += len(await soon(reader.read(1 << 20)))
    writer.close()


@pytest.mark.parametrize("failing", [1, 2])
async def test_where_no_descriptor_is_left_both_connections_end(
    pair: tuple[Node, Node], monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    relay, _ = pair
    before, calls = open_descriptors(), 0

    def socket_of(transport: asyncio.Transport) -> socket.socket:
        nonlocal calls
        calls += 1
        if calls == failing:
            raise OSError(errno.EMFILE, "Too many open files")
        taken: socket.socket = transport.get_extra_info("socket").dup()
        return taken

    monkeypatch.setattr("pairbus.server.cluster.relaying.relay._socket_of", socket_of)
    reader, writer = await relay.connect(AMQP)
    assert await is_closed(reader)
    writer.close()
    assert relay.relay.statistics().refused_by_reason == {"no_descriptor": 1}
    assert relay.relay.statistics().relayed == relay.relay.statistics().waiting == 0
    await until(lambda: open_descriptors() <= before)


async def test_a_connection_that_meets_no_descriptor_for_the_owner_does_not_wait(
    pair: tuple[Node, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def connect(address: str) -> asyncio.Transport:
        raise OSError(errno.EMFILE, "Too many open files")

    relay, _ = pair
    monkeypatch.setattr("pairbus.server.cluster.relaying.relay.connect", connect)
    reader, _writer = await relay.connect(AMQP)
    assert await is_closed(reader)
    assert relay.relay.statistics().refused_by_reason == {"no_descriptor": 1}
    assert relay.relay.statistics().failed_total == 0


async def test_a_client_that_sent_late_is_not_cut_while_the_way_to_the_owner_opens(
    pair: tuple[Node, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    relay, _ = pair
    is_free, connect = asyncio.Event(), reach_module.connect

    async def connect_slowly(address: str) -> asyncio.Transport:
        await is_free.wait()
        return await connect(address)

    monkeypatch.setattr("pairbus.server.cluster.relaying.relay.connect", connect_slowly)
    reader, _writer = await relay.connect(AMQP)
    await until(lambda: any(one._connecting is not None for one in relay.relay._entrances))
    (entrance,) = relay.relay._entrances
    entrance.deadline = 0.0  # the time for its first bytes ends

    relay.relay._sweep()

    is_free.set()
    assert await soon(reader.readexactly(len(AMQP) + 2)) == b"<" + AMQP + b">"
    assert relay.relay.statistics().refused_by_reason == {}


async def test_connections_that_read_why_they_are_refused_have_places_too(
    nodes: Callable[..., Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pairbus.server.cluster.relaying.relay.is_loopback", lambda host: False)
    monkeypatch.setattr("pairbus.server.cluster.relaying.relay.REFUSAL_SECONDS", 3_600.0)
    relay, owner = nodes(connections_max=2), nodes()
    relay.host.now = Route(RouteKind.RELAY, owner.address)
    before = open_descriptors()
    refused = []
    for _ in range(6):
        reader, writer = await relay.connect(SASL_HEADER)
        assert (await soon(reader.readexactly(len(SASL_HEADER)))) == SASL_HEADER
        refused.append((reader, writer))

    ours = 6
    await until(lambda: open_descriptors() - before <= ours + 2)
    assert relay.relay.statistics().refused_by_reason == {"plain_text": 6}
    relay.relay.close()
    await until(lambda: open_descriptors() - before <= ours)


async def test_relayed_connections_are_cut_when_the_owner_changes(pair: tuple[Node, Node]) -> None:
    relay, _ = pair
    reader, _writer = await relay.connect(AMQP)
    await soon(reader.readexactly(len(AMQP) + 2))
    relay.host.now = Route(RouteKind.CLOSE)
    relay.relay.owner_changed("")
    assert await is_closed(reader)
    await until(lambda: relay.relay.statistics().relayed == 0)


async def test_two_nodes_that_take_each_other_for_the_owner_pass_nothing_back_and_forth(
    nodes: Callable[..., Node],
) -> None:
    one, other = nodes(), nodes()
    one.host.now = Route(RouteKind.RELAY, other.address)
    other.host.now = Route(RouteKind.RELAY, one.address)
    reader, _ = await one.connect(AMQP)
    assert await is_closed(reader)
    assert other.relay.statistics().refused_by_reason == {"relayed_to_no_owner": 1}
    assert other.relay.statistics().relayed_total == 0
    assert one.relay.statistics().relayed_total == 1


@pytest.mark.promise("S8")
async def test_without_a_known_owner_a_connection_is_closed_at_once(nodes: Callable[..., Node]) -> None:
    node = nodes()
    reader, _ = await node.connect(AMQP)
    assert await is_closed(reader)
    assert node.relay.statistics().refused_by_reason == {"no_owner": 1}


async def test_a_connection_waits_for_an_owner_that_is_about_to_be(nodes: Callable[..., Node]) -> None:
    node = nodes()
    node.host.now = Route(RouteKind.WAIT)
    reader, _ = await node.connect(AMQP)
    await until(lambda: node.relay.statistics().waiting == 1)
    node.host.now = Route(RouteKind.LOCAL)
    node.relay.owner_changed("")
    assert await soon(reader.readexactly(len(AMQP) + 2)) == b"<" + AMQP + b">"
    assert node.relay.statistics().waiting == 0


async def test_a_connection_to_an_owner_that_has_died_waits_for_the_next_one(
    pair: tuple[Node, Node], nodes: Callable[..., Node]
) -> None:
    relay, owner = pair
    owner.close()
    reader, _ = await relay.connect(AMQP)
    await until(lambda: any(one.is_waiting for one in relay.relay._entrances))
    relay.host.now = Route(RouteKind.LOCAL)
    assert await soon(reader.readexactly(len(AMQP) + 2)) == b"<" + AMQP + b">"


async def test_a_relay_knows_that_the_owner_cannot_be_reached_and_when_it_can_again(
    pair: tuple[Node, Node], caplog: pytest.LogCaptureFixture
) -> None:
    relay, owner = pair
    reach = relay.relay.reach
    owner.close()
    relay.relay.owner_changed(owner.address)  # no client comes: it looks by itself
    await until(lambda: relay.relay.statistics().failed_total == 1)
    route = relay.host.now
    role, reason = role_of(route, reach, False)
    assert role == "silent"
    assert owner.address in reason
    _, writer = await relay.connect(AMQP)
    await until(lambda: relay.relay.statistics().failed_total > 3)
    told = [one for one in caplog.records if getattr(one, "event", "") == "cluster.relay_failed"]
    assert len(told) == 1  # once for each reason
    host, port = owner.address.split(":")
    listener = await asyncio.start_server(lambda *_: None, host, int(port))
    await until(lambda: not reach.failure)
    assert role_of(route, reach, False) == ("relay", "")
    assert role_of(route, reach, True)[0] == "silent"
    writer.close()
    listener.close()


async def test_an_address_that_is_none_is_a_failure_like_others(nodes: Callable[..., Node]) -> None:
    node = nodes()
    node.relay.owner_changed("a b:1")
    await until(lambda: bool(node.relay.reach.failure))
    node.relay.owner_changed("")
    assert role_of(Route(RouteKind.WAIT), node.relay.reach, False) == ("silent", "")
    assert node.relay.reach.failure == ""


async def test_a_connection_waits_only_for_so_long(nodes: Callable[..., Node]) -> None:
    node = nodes(wait_seconds=LITTLE_SECONDS)
    node.host.now = Route(RouteKind.WAIT)
    reader, _ = await node.connect(AMQP)
    assert await is_closed(reader)


async def test_the_number_of_connections_has_a_limit(nodes: Callable[..., Node]) -> None:
    node = nodes(connections_max=1)
    node.host.now = Route(RouteKind.WAIT)
    first, writer = await node.connect(AMQP)
    await until(lambda: node.relay.statistics().waiting == 1)
    second, _ = await node.connect(AMQP)
    assert await is_closed(second)
    assert not first.at_eof()
    writer.close()


async def test_a_full_relay_cuts_the_oldest_connection_that_has_hardly_sent_anything(
    nodes: Callable[..., Node], caplog: pytest.LogCaptureFixture
) -> None:
    relay, owner = nodes(connections_max=3), nodes()
    owner.host.now = Route(RouteKind.LOCAL)
    relay.host.now = Route(RouteKind.RELAY, owner.address)

    async def relayed(first: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await relay.connect(first)
        await soon(reader.readexactly(len(first) + 2))
        return reader, writer

    speaking, _writer = await relayed(AMQP + bytes(QUIET_BYTES))
    silent, _silent_writer = await relay.connect()
    await until(lambda: relay.relay.statistics().waiting == 1)
    header_only, _header_writer = await relayed(AMQP)
    kept = [await relayed(AMQP + bytes(QUIET_BYTES))]
    assert await is_closed(silent)
    kept.append(await relayed(AMQP + bytes(QUIET_BYTES)))
    assert await is_closed(header_only)
    assert relay.relay.statistics().refused_by_reason == {"made_room": 2}

    refused, _refused_writer = await relay.connect(AMQP)
    assert await is_closed(refused), "nobody is left who has hardly sent anything"
    assert relay.relay.statistics().refused_by_reason == {"connections_max": 1, "made_room": 2}
    assert not any(reader.at_eof() for reader in (speaking, kept[0][0], kept[1][0]))
    told = [one for one in caplog.records if getattr(one, "event", "") == "cluster.relay_full"]
    assert len(told) == 1, "once a minute"
    assert "Raise MaxConnections" in told[0].getMessage()
    assert told[0].__dict__["connections_max"] == 3
    assert told[0].__dict__["cut"] == 1


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/health", 200),
        ("/health/owner", 503),
        ("/health?x=1", 200),
        ("http://node:5672/health", 200),
        ("HTTPS://node/health/owner?x=1", 503),
    ],
)
@pytest.mark.parametrize("kind", list(RouteKind))
async def test_every_node_answers_for_its_own_health(
    nodes: Callable[..., Node], path: str, status: int, kind: RouteKind
) -> None:
    node = nodes()
    node.host.now = Route(kind, "127.0.0.1:1")
    reader, writer = await node.connect(b"GET " + path.encode())
    writer.write(b" HTTP/1.1\r\nhost: x\r\n")
    writer.write(b"\r\n")
    head, _, body = (await soon(reader.read())).partition(b"\r\n\r\n")
    assert head.startswith(f"HTTP/1.1 {status} ".encode())
    assert node.host.waiting == 0  # whoever asks for it does not wait for an owner
    assert json.loads(body) == {"role": "relay"}


@pytest.mark.parametrize(
    "target",
    [
        b"/healthy",
        b"http://node/q",
        b"http://user@node/health",
        b"/health?api-version=2021-05",
        b"/health/owner?enrich=false&API-version=2021-05",
        b"http://node/health/metrics?api-version=2021-05",
    ],
)
async def test_other_requests_that_begin_alike_are_relayed(pair: tuple[Node, Node], target: bytes) -> None:
    relay, _ = pair
    request = b"GET " + target + b" HTTP/1.1\r\n\r\n"
    reader, _ = await relay.connect(request)
    assert await soon(reader.readexactly(len(request) + 2)) == b"<" + request + b">"


@pytest.mark.promise("M14")
async def test_plain_text_of_another_machine_is_not_relayed(
    pair: tuple[Node, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    relay, owner = pair
    monkeypatch.setattr("pairbus.server.cluster.relaying.relay.is_loopback", lambda host: False)
    reader, _ = await relay.connect(SASL_HEADER)
    assert (await soon(reader.read())).startswith(SASL_HEADER)
    reader, _ = await relay.connect(b"GET / HTTP/1.1\r\n\r\n")
    assert (await soon(reader.read())).startswith(b"HTTP/1.1 403 ")
    reader, _ = await relay.connect(TLS)
    assert await soon(reader.readexactly(len(TLS) + 2)) == b"<" + TLS + b">"
    assert len(owner.host.adopted) == 1


@pytest.mark.promise("M14")
async def test_plain_text_is_not_relayed_to_another_machine_and_the_reason_is_told(
    pair: tuple[Node, Node], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    relay, owner = pair
    monkeypatch.setattr("pairbus.server.cluster.relaying.relay._is_of_this_machine", lambda upstream: False)
    for _ in range(2):
        reader, writer = await relay.connect(AMQP)
        writer.write(bytes(FIRST_BYTES_MAX + 1))  # the client goes on: it must be able to read the answer
        answer = await soon(reader.read())
        assert b"amqp:not-allowed" in answer
        assert f"this node relays to {owner.address}".encode() in answer
    reader, _ = await relay.connect(b"GET / HTTP/1.1\r\n\r\n")
    answer = await soon(reader.read())
    assert answer.startswith(b"HTTP/1.1 403 ")
    assert (
        f"this node relays to {owner.address}, and plain text does not leave the machine".encode() in answer
    )
    reader, _ = await relay.connect(TLS)
    assert await soon(reader.readexactly(len(TLS) + 2)) == b"<" + TLS + b">"
    assert len(owner.host.adopted) == 1
    assert relay.relay.statistics().refused_by_reason == {"plain_text": 3}
    told = [one for one in caplog.records if getattr(one, "event", "") == "cluster.plain_text"]
    assert len(told) == 1, "once for each owner"
    assert "Use TLS" in told[0].getMessage()


@pytest.mark.parametrize("words", [MARK + b"x" * 200, b"nonsense that is no protocol at all"])
async def test_what_is_no_protocol_is_not_relayed(pair: tuple[Node, Node], words: bytes) -> None:
    relay, _ = pair
    reader, _ = await relay.connect(words)
    assert await is_closed(reader)
    assert relay.relay.statistics().refused_by_reason == {"protocol": 1}


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        (("contoso", "b"), "node b answers there instead of node a: the --advertise of a is wrong"),
        (("other", "a"), "namespace other answers there instead of node a: the --advertise of a is wrong"),
    ],
)
async def test_an_address_at_which_another_node_answers_is_told_of_until_the_owner_does(
    nodes: Callable[..., Node], caplog: pytest.LogCaptureFixture, answers: tuple[str, str], reason: str
) -> None:
    """The owner's --advertise leads back to this node, to another that relays, or to another namespace."""
    relay, other = nodes(), nodes()
    relay.host.now = Route(RouteKind.RELAY, other.address)
    reach = relay.relay.reach

    def answer(namespace: str, node: str) -> None:
        other.host.body = json.dumps({"namespace": namespace, "node": node, "role": "relay"}).encode()

    answer(*answers)
    relay.relay.owner_changed(other.address, ("contoso", "a"))
    await until(lambda: reach.failure == reason)
    await relayed(relay, AMQP)  # it can be made, and proves nothing
    role, told = role_of(relay.host.now, reach, False)
    assert (role, told) == ("silent", f"the owner at {other.address} cannot be reached: {reason}")
    events = [one for one in caplog.records if getattr(one, "event", "") == "cluster.relay_failed"]
    assert [one.__dict__["error"] for one in events] == [reason]

    answer("contoso", "a")
    await until(lambda: not reach.failure)
    assert role_of(relay.host.now, reach, False) == ("relay", "")


def in_turn(host: Host, *names: str) -> None:
    """Answer as a balancer that leads to these nodes one after the other."""
    bodies = itertools.cycle([json.dumps({"namespace": "contoso", "node": name}).encode() for name in names])

    def health(target: str) -> tuple[int, str, bytes]:
        return 200, "application/json", next(bodies) if target == "/health" else b""

    host.health = health  # type: ignore[method-assign]


@pytest.mark.parametrize("names", [("a", "b"), ("a", "a", "b"), ("b", "a", "a", "a")])
async def test_a_balancer_in_place_of_the_owner_is_told_of_although_it_leads_there_sometimes(
    nodes: Callable[..., Node], names: tuple[str, ...]
) -> None:
    relay, balancer = nodes(), nodes()
    in_turn(balancer.host, *names)
    relay.relay.owner_changed(balancer.address, ("contoso", "a"))
    await until(lambda: "node b answers there instead of node a" in relay.relay.reach.failure)


@pytest.mark.parametrize("names", [("a", "b"), ("a", "a", "b"), ("b",)])
async def test_a_node_tells_that_its_own_address_leads_to_another_one(
    nodes: Callable[..., Node],
    names: tuple[str, ...],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(advertised, "CHECK_SECONDS", 0.01)
    balancer = nodes()
    in_turn(balancer.host, *names)
    own = OwnAddress()
    own.watch(balancer.address, "contoso", "a")
    try:
        await until(lambda: bool(own.trouble))
        assert f"node b answers at {balancer.address}, which this node advertises" in own.trouble
        _, _, body = health_answer("/health", "owner", "contoso", {}, "", own.trouble)
        assert json.loads(body)["warning"] == own.trouble
        events = [one for one in caplog.records if getattr(one, "event", "") == "cluster.advertise_wrong"]
        assert len(events) == 1, "once"
        in_turn(balancer.host, "a")
        await until(lambda: not own.trouble)
    finally:
        own.close()


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nobody.invalid:5671"])
async def test_a_node_tells_that_it_does_not_reach_itself_at_its_address(
    address: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(advertised, "CHECK_SECONDS", 0.01)
    asked = 0

    async def counted(address: str, expected: tuple[str, str]) -> str:
        nonlocal asked
        asked += 1
        return await who_else(address, expected)

    monkeypatch.setattr(advertised, "who_else", counted)
    own = OwnAddress()
    own.watch(address, "contoso", "a")
    try:
        await until(lambda: asked > 2)
        assert f"this node does not reach itself at {address}, which it advertises (" in own.trouble
        events = [one for one in caplog.records if getattr(one, "event", "") == "cluster.advertise_unreached"]
        assert len(events) == 1, "once"
    finally:
        own.close()


@pytest.mark.parametrize("body", [b"", b"not JSON", b"[]", b"{}", b'{"namespace": "contoso"}'])
async def test_what_does_not_answer_as_a_node_is_taken_for_the_owner(
    nodes: Callable[..., Node], body: bytes
) -> None:
    owner = nodes()
    owner.host.body = body
    assert await asyncio.wait_for(ask_name(owner.address), SECONDS_MAX) is None


class Swallower:
    """The owner's address: it takes every connection, and answers or says nothing."""

    def __init__(self) -> None:
        self.answers = True
        self.role = "owner"
        self.asked = 0
        self.closes = ""
        """When each connection is closed without an answer: ``at once``, or ``read``, after what was sent; empty: it is not."""
        self.closed = 0
        self.address = ""
        self._server: asyncio.Server | None = None
        self._writers: list[asyncio.StreamWriter] = []

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = format_address(*self._server.sockets[0].getsockname()[:2])

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        if self.closes == "at once" or not await reader.read(4096) or self.closes:
            self.closed += 1
            writer.close()
            return
        self.asked += 1
        if self.answers:
            body = {"namespace": "contoso", "node": "a", "role": self.role, "reason": "a commit waits"}
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n" + json.dumps(body).encode())
            writer.close()

    def close(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()


@pytest.fixture
async def swallower(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Swallower]:
    monkeypatch.setattr(reach_module, "CONNECT_SECONDS_MAX", 1.0)
    for name in ("RETRY_SECONDS", "WATCH_SECONDS"):
        monkeypatch.setattr(reach_module, name, LITTLE_SECONDS / 4, raising=False)
    made = Swallower()
    await made.open()
    yield made
    made.close()


@pytest.mark.parametrize("is_silent_at_first", [True, False])
async def test_an_owner_that_takes_connections_and_says_nothing_is_told_of_until_it_answers(
    nodes: Callable[..., Node],
    swallower: Swallower,
    caplog: pytest.LogCaptureFixture,
    is_silent_at_first: bool,
) -> None:
    """A frozen process, or a network that swallows everything: nobody comes by this node, so it must find that out by itself."""
    relay = nodes()
    relay.host.now = Route(RouteKind.RELAY, swallower.address)
    reach = relay.relay.reach
    swallower.answers = not is_silent_at_first
    relay.relay.owner_changed(swallower.address, ("contoso", "a"))
    if not is_silent_at_first:
        await until(lambda: swallower.asked > reach_module.ASKED_TIMES + 1)
        await until(lambda: role_of(relay.host.now, reach, False) == ("relay", ""))
        swallower.answers = False
    await until(lambda: bool(reach.failure))
    await relayed(relay, AMQP)  # it can be made, and proves nothing
    role, told = role_of(relay.host.now, reach, False)
    assert role == "silent"
    assert told.startswith(f"the owner at {swallower.address} takes connections and has said nothing for "), (
        told
    )
    seconds = silent_seconds(told)
    await until(lambda: silent_seconds(reach.trouble()) > seconds)
    events = [one for one in caplog.records if getattr(one, "event", "") == "cluster.relay_failed"]
    assert len(events) == 1, "once"

    swallower.answers = True
    await until(lambda: role_of(relay.host.now, reach, False) == ("relay", ""))


async def relayed(relay: Node, first: bytes) -> None:
    """Make a connection through a relay, and see that it reached what is there."""
    before = relay.relay.statistics().relayed_total
    _, writer = await relay.connect(first)
    await until(lambda: relay.relay.statistics().relayed_total > before)
    writer.close()


@pytest.mark.parametrize("reads", [False, True])
async def test_a_way_to_the_owner_that_closes_each_connection_is_told_of_until_the_owner_answers(
    nodes: Callable[..., Node], swallower: Swallower, caplog: pytest.LogCaptureFixture, reads: bool
) -> None:
    """What lies in between takes connections and has nobody behind it. Closed before it has read, a connection is reset, else it just ends."""
    caplog.set_level(logging.INFO)
    relay = nodes()
    relay.host.now = Route(RouteKind.RELAY, swallower.address)
    reach = relay.relay.reach
    relay.relay.owner_changed(swallower.address, ("contoso", "a"))
    await until(lambda: swallower.asked > reach_module.ASKED_TIMES)
    swallower.closes = "read" if reads else "at once"
    await until(lambda: bool(reach.failure))
    for _ in range(3):
        await relayed(relay, AMQP)
        asked = swallower.closed
        await until(lambda asked=asked: swallower.closed > asked + 1)  # type: ignore[misc]
        role, told = role_of(relay.host.now, reach, False)
        assert (role, told[: told.rindex(":")]) == (
            "silent",
            f"the owner at {swallower.address} cannot be reached",
        )
    assert not [one for one in caplog.records if getattr(one, "event", "") == "cluster.relay_back"]

    swallower.closes = ""
    await until(lambda: role_of(relay.host.now, reach, False) == ("relay", ""))


def silent_seconds(told: str) -> float:
    return float(told.rpartition(" for ")[2].removesuffix(" s"))


async def test_an_owner_that_answers_is_asked_by_one_connection_at_a_time(
    nodes: Callable[..., Node], swallower: Swallower, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first look asks several times, for a balancer answers by turns. After that each look is one request."""
    for name in ("CONNECT_SECONDS_MAX", "WATCH_SECONDS"):
        monkeypatch.setattr(reach_module, name, SECONDS_MAX, raising=False)
    relay = nodes()
    relay.relay.owner_changed(swallower.address, ("contoso", "a"))
    await until(lambda: swallower.asked == reach_module.ASKED_TIMES)
    relay.relay.reach.failed(swallower.address, OSError("refused"))
    await until(lambda: swallower.asked == reach_module.ASKED_TIMES + 1)
    await until(lambda: not relay.relay.reach.failure)


async def test_an_owner_that_says_that_it_serves_nobody_is_believed_until_it_serves(
    nodes: Callable[..., Node], swallower: Swallower, caplog: pytest.LogCaptureFixture
) -> None:
    """Its commits wait, and its lease goes on. That is no failure of the way to it."""
    relay = nodes()
    relay.host.now = Route(RouteKind.RELAY, swallower.address)
    reach = relay.relay.reach
    swallower.role = "silent"
    relay.relay.owner_changed(swallower.address, ("contoso", "a"))
    await until(lambda: role_of(relay.host.now, reach, False)[0] == "silent")
    assert reach.trouble() == f"the owner at {swallower.address} serves nobody: a commit waits"
    assert not reach.failure
    assert not [one for one in caplog.records if getattr(one, "event", "") == "cluster.relay_failed"]
    swallower.role = "owner"
    await until(lambda: role_of(relay.host.now, reach, False) == ("relay", ""))


def test_an_owner_whose_commit_waits_for_long_serves_nobody_and_says_why() -> None:
    def found(waits_ms: int, waits_for: str = "") -> tuple[str, str]:
        view = LeaseView(LeaseState.SERVING, None, None, "", (), 100, commit_waits_for=waits_for)
        return role_and_reason(
            Route(RouteKind.LOCAL),
            OwnerReach(),
            view,
            is_lease_over=False,
            commit_waits_ms=waits_ms,
            lease_ms=2_000,
            failed_takeover="",
        )

    assert found(0) == found(COMMIT_WAITS_MS - 1) == ("owner", "")
    assert found(4_000) == ("silent", "the database has not answered a commit for 4.0 s")
    assert found(4_000, "a lock")[1] == "the database has not answered a commit for 4.0 s: a lock"
