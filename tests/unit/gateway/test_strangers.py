"""What one peer can make the broker hold and compute, before it has shown a right and with a small right."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from pairbus.amqp.encode import encode_described, encode_list, encode_map, encode_value
from pairbus.amqp.message.whole import decode_message, encode_message
from pairbus.amqp.transport.connection import Connection
from pairbus.amqp.transport.framing import AMQP_HEADER, SASL_HEADER, amqp_frame
from pairbus.amqp.transport.link import Link
from pairbus.amqp.transport.performatives import (
    ATTACH,
    BEGIN,
    CLOSE,
    FLOW,
    OPEN,
    Attach,
    Coordinator,
    Transfer,
)
from pairbus.amqp.transport.sasl import SaslInit
from pairbus.amqp.transport.session import Session
from pairbus.amqp.types import Described, Symbol, UInt, ULong
from pairbus.engine.queues.consumer import Consumer
from pairbus.errors import RemoteProtocolError
from pairbus.gateway import transactions
from pairbus.gateway.connection import GatewayConnection
from pairbus.gateway.links import LinkContext
from pairbus.gateway.management import node as management
from pairbus.gateway.rights import tokens
from pairbus.gateway.rights.stranger import (
    STRANGER_BYTES_MAX,
    STRANGER_LINKS_MAX,
    STRANGER_REFUSALS_MAX,
    STRANGER_SESSIONS_MAX,
)
from tests.unit.gateway.wire_bench import Peer, WireBench, token

MEBIBYTE = 1_048_576

HELD_BYTES_MAX = 128 * 1024
"""What one connection without a valid token may make the broker hold, whatever it sends."""
VISITS_BEFORE = VISITS = 50
"""Connections that come and go before the measurement, which fill the interpreter's free lists, and during it."""
LEFT_BYTES_MAX = 384
"""What may remain of a connection that has gone, on average: about 100 bytes for its timer, until the timers out of date are
swept; the rest is for tables that grow in steps. The connection itself is ten times as much."""


def opening(user: str | None = None) -> bytes:
    """The bytes up to the AMQP header, from a peer that does not wait for answers."""
    init = SaslInit("ANONYMOUS", b"", "localhost")
    if user is not None:
        init = SaslInit("PLAIN", f"\0{user}\0{user}-1".encode(), "localhost")
    return SASL_HEADER + init.frame() + AMQP_HEADER


def open_frame(properties: bytes = b"\x40") -> bytes:
    fields = [encode_value("peer"), *[b"\x40"] * 8, properties]
    return amqp_frame(0, encode_described(OPEN, encode_list(fields)))


def begin_frame(channel: int) -> bytes:
    numbers = [encode_value(UInt(number)) for number in (0, 5000, 5000)]
    return amqp_frame(channel, encode_described(BEGIN, encode_list([b"\x40", *numbers])))


def attach_frame(handle: int, name: str, address: str, properties: bytes = b"\x40") -> bytes:
    target = encode_described(0x29, encode_list([encode_value(address)]))
    fields = [encode_value(name), encode_value(UInt(handle)), b"\x42", b"\x40", b"\x40", b"\x40", target]
    fields += [b"\x40", b"\x40", encode_value(UInt(0)), b"\x40", b"\x40", b"\x40", properties]
    return amqp_frame(0, encode_described(ATTACH, encode_list(fields)))


def coordinator_frames(body: object, count: int) -> bytes:
    """A controller link, and so many requests on it."""
    attach = Attach("c")
    attach.target = Coordinator()
    attach.initial_delivery_count = 0
    frames = [amqp_frame(0, attach.encode())]
    for number in range(count):
        transfer = Transfer(0)
        transfer.delivery_id = number
        transfer.delivery_tag = b"%d" % number
        frames.append(amqp_frame(0, transfer.encode() + encode_message(body=body)))
    return b"".join(frames)


def flow_frame(values: int) -> bytes:
    """A flow whose list claims and holds one-byte values only."""
    return amqp_frame(0, encode_described(FLOW, encode_list([b"\x43"] * values)))


def wide(size: int) -> bytes:
    """A properties map with one list of this many one-byte values."""
    return encode_map({Symbol("x"): [None] * size})


BEGUN = open_frame() + begin_frame(0)
FLOODS: dict[str, bytes] = {
    "attaches with wide properties": BEGUN
    + b"".join(attach_frame(i, f"l{i}", "$cbs", wide(15_000)) for i in range(STRANGER_LINKS_MAX)),
    "attaches at the limit of values": BEGUN
    + b"".join(attach_frame(i, f"l{i}", "$cbs", wide(200)) for i in range(STRANGER_LINKS_MAX)),
    "attaches with long names": BEGUN
    + b"".join(attach_frame(i, f"{i}" + "n" * 15_000, "$cbs") for i in range(STRANGER_LINKS_MAX)),
    "open with wide properties": open_frame(wide(60_000)),
    "sessions": open_frame() + b"".join(begin_frame(channel) for channel in range(5000)),
    "declares": BEGUN + coordinator_frames(Described(ULong(0x31), [None]), 500),
    "discharges": BEGUN + coordinator_frames(Described(ULong(0x32), [b"unknown"]), 500),
    "flows of one-byte values": BEGUN + flow_frame(60_000) * 10,
    "a close with a wide error": BEGUN
    + amqp_frame(
        0,
        encode_described(
            CLOSE,
            encode_list([
                encode_value(Described(ULong(0x1D), [Symbol("amqp:internal-error"), "", {Symbol("x"): [None] * 60_000}]))
            ]),
        ),
    ),
    "a frame that never ends": BEGUN + b"\x00\x00\xff\xff\x02\x00\x00\x00" + b"\x00" * 60_000,
}  # fmt: skip


@contextmanager
def measured() -> Iterator[Callable[[], int]]:
    """Gives the bytes allocated since, with the garbage collector off: only reference counting gives memory back."""
    gc.collect()
    gc.disable()
    tracemalloc.start()
    start = tracemalloc.get_traced_memory()[0]
    try:
        yield lambda: tracemalloc.get_traced_memory()[0] - start
    finally:
        tracemalloc.stop()
        gc.enable()


def visit(bench: WireBench, data: bytes) -> GatewayConnection:
    """A peer that sends all of this at once and reads nothing."""
    connection = bench.broker.connect("127.0.0.1:50000", secure=True, loopback=True, now=bench.now)
    for start in range(0, len(data), 65_536):
        connection.receive(data[start : start + 65_536], bench.now)
    bench.broker.pump(bench.now)
    return connection


def leave(bench: WireBench, connection: GatewayConnection) -> None:
    connection.lost(bench.now)
    bench.broker.take_dirty()


@pytest.mark.promise("B62")
@pytest.mark.parametrize("name", FLOODS)
def test_what_a_stranger_sends_is_not_held_many_times_over(name: str, bench: WireBench) -> None:
    data = opening() + FLOODS[name]
    leave(bench, visit(bench, data))  # what is made once, such as caches of the interpreter
    with measured() as held:
        connection = visit(bench, data)
        while_here = held()
        leave(bench, connection)

    assert while_here <= HELD_BYTES_MAX


@pytest.mark.promise("B63")
def test_a_stranger_with_too_many_sessions_is_read_no_further(bench: WireBench) -> None:
    begins = [begin_frame(channel) for channel in range(STRANGER_SESSIONS_MAX + 1)]
    connection = visit(bench, opening() + open_frame() + b"".join(begins[:-1]))
    assert not connection.is_closed
    connection.receive(begins[-1], bench.now)

    assert connection.is_closed


@pytest.mark.promise("B67")
@pytest.mark.parametrize("name", FLOODS)
def test_connections_of_strangers_that_have_gone_leave_next_to_nothing(name: str, bench: WireBench) -> None:
    data = opening() + FLOODS[name]
    with measured() as held:
        for _ in range(VISITS_BEFORE):
            leave(bench, visit(bench, data))
        before = held()
        for _ in range(VISITS):
            leave(bench, visit(bench, data))
        left = held() - before

    assert left / VISITS <= LEFT_BYTES_MAX


@pytest.mark.promise("B62")
@pytest.mark.parametrize("user", ["listener", "sender"])
def test_a_client_with_one_right_keeps_no_decoded_attaches(user: str, bench: WireBench) -> None:
    """255 links on one session: what is kept of each is a few names, not the attach."""
    bench.queue("q")
    attaches = b"".join(
        attach_frame(i, f"l{i}", "$cbs", wide(200)) for i in range(255)
    )  # any right may reach the token node
    data = opening(user) + BEGUN + attaches
    leave(bench, visit(bench, data))
    with measured() as held:
        leave(bench, visit(bench, data))
        before = held()
        connection = visit(bench, data)
        assert len(connection.links) == 255
        connection.take_output()
        while_here = held() - before
        leave(bench, connection)
        del connection
        left = held() - before

    assert while_here <= 255 * 2048
    # One visit, not an average over many: a table that grows in this moment counts whole. 255 attaches would be far more.
    assert left <= 2 * LEFT_BYTES_MAX


def use(bench: WireBench, user: str | None) -> None:
    """A client that sends, receives, asks and goes, as a client of an SDK does."""
    peer = bench.peer(user, f"{user}-1") if user is not None else bench.peer(None)
    if user is None:
        assert peer.put_token(token("root", "root-1"), "q") == 202
    sender = peer.session.sender("q")
    receiver = peer.session.receiver("q")
    bench.settle()
    sender.send(b"\x00\x53\x75\xa0\x03abc")
    receiver.grant(10)
    bench.settle()
    for delivery in list(receiver.deliveries):
        receiver.complete(delivery)
    bench.settle()
    if user in ("root", None):
        peer.ask("q", "peek-message", {"from-sequence-number": 1, "message-count": UInt(1)})
    peer.session.receiver("missing")
    bench.settle()
    peer.gateway.lost(bench.now)
    bench.broker.take_dirty()
    bench.peers.remove(peer)


@pytest.mark.promise("B67")
@pytest.mark.parametrize("user", ["root", "listener", "sender", None])
def test_a_client_that_has_gone_leaves_nothing_to_the_garbage_collector(user: str | None) -> None:
    bench = WireBench()
    bench.queue("q")
    peer_before = bench.peer()
    del peer_before
    use(bench, user)
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        for _ in range(3):
            use(bench, user)
        gc.collect()
        kinds = (GatewayConnection, Connection, Session, Link, LinkContext, Consumer)
        assert [thing for thing in gc.garbage if isinstance(thing, kinds)] == []
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


@pytest.mark.promise("B60")
def test_a_performative_is_read_in_time_that_its_fields_need(bench: WireBench) -> None:
    """A flow of 60,000 one-byte values is refused before the values are looked at."""
    connection = visit(bench, opening("listener") + BEGUN)
    connection.take_output()
    flow = flow_frame(60_000)
    with measured():
        connection.receive(flow, bench.now)
        peak = tracemalloc.get_traced_memory()[1]

    assert connection.is_closed
    assert peak <= 80 * 1024


def lasts_ms(bench: WireBench, peer: Peer) -> int:
    """How long the connection lasts, in whole seconds, while the peer says that it lives."""
    start = bench.now
    while not peer.client.closed:
        assert bench.now - start < 1_000_000
        peer.client.heartbeat()
        bench.wait(1000)
    return bench.now - start


@pytest.mark.promise("M6")
def test_a_connection_without_a_token_is_closed_after_20_seconds(bench: WireBench) -> None:
    peer = bench.peer(None)
    peer.session.request_link("$cbs")

    assert lasts_ms(bench, peer) == 20_000
    assert peer.client.error is not None
    assert peer.client.error.condition == "amqp:connection:forced"
    assert "No valid token was put for 20000 milliseconds" in peer.client.error.description


@pytest.mark.promise("M6")
def test_refused_tokens_do_not_make_a_connection_last(bench: WireBench) -> None:
    peer = bench.peer(None)
    bench.wait(15_000)
    assert peer.put_token(token("root", "wrong"), "") == 401

    assert lasts_ms(bench, peer) == 5_000


@pytest.mark.promise("M3")
def test_a_connection_whose_last_token_has_ended_is_closed_20_seconds_later(bench: WireBench) -> None:
    peer = bench.peer(None)
    assert peer.put_token(token("root", "root-1", expires_at=bench.now + 60_000), "") == 202

    assert lasts_ms(bench, peer) == 80_000


def test_a_new_connection_has_60_seconds_for_its_first_link(bench: WireBench) -> None:
    peer = bench.peer()

    assert lasts_ms(bench, peer) == 60_000
    assert peer.client.error is not None
    assert "60000 milliseconds" in peer.client.error.description


@pytest.mark.promise("M12")
def test_a_connection_that_shows_nothing_but_refused_tokens_is_closed(bench: WireBench) -> None:
    peer = bench.peer(None)
    for _ in range(STRANGER_REFUSALS_MAX):
        assert not peer.client.closed
        assert peer.put_token(token("root", "wrong"), "") == 401

    assert peer.client.closed
    assert peer.client.error is not None
    assert peer.client.error.condition == "amqp:unauthorized-access"


@pytest.mark.promise("M12")
def test_a_client_with_a_valid_token_may_have_others_refused(bench: WireBench) -> None:
    peer = bench.peer(None)
    assert peer.put_token(token("root", "root-1"), "") == 202
    statuses = [peer.put_token(token("root", "wrong"), "") for _ in range(3 * STRANGER_REFUSALS_MAX)]

    assert statuses == [401] * len(statuses)
    assert not peer.client.closed


@pytest.mark.promise("M6")
def test_a_client_with_the_key_may_wait_for_its_entity(bench: WireBench) -> None:
    """A valid token for an entity that is not there yet proves the key: neither the count nor the time of strangers applies."""
    peer = bench.peer(None)
    for _ in range(50):
        assert peer.put_token(token("root", "root-1"), "late") == 404
        bench.wait(1000)
        peer.client.heartbeat()
    bench.queue("late")

    assert peer.put_token(token("root", "root-1"), "late") == 202
    assert not peer.client.closed
    sender = peer.session.sender("late")
    bench.settle()
    assert not sender.detached


@pytest.mark.promise("M3")
def test_a_token_for_a_missing_entity_proves_the_key_only_until_it_ends(bench: WireBench) -> None:
    peer = bench.peer(None)
    assert peer.put_token(token("root", "root-1", expires_at=bench.now + 60_000), "late") == 404

    assert lasts_ms(bench, peer) == 80_000
    assert peer.client.error is not None
    assert "No valid token" in peer.client.error.description


@pytest.mark.promise("M12")
def test_wrong_tokens_for_a_missing_entity_are_refused_tokens(bench: WireBench) -> None:
    peer = bench.peer(None)
    assert [peer.put_token(token("root", "wrong"), "late") for _ in range(STRANGER_REFUSALS_MAX)] == [
        401
    ] * STRANGER_REFUSALS_MAX

    assert peer.client.closed


@pytest.mark.promise("M6")
def test_what_follows_a_valid_password_in_one_piece_is_read_whole(bench: WireBench) -> None:
    """A client that does not wait for answers may send more with its log-in than a stranger may send at all."""
    attaches = b"".join(attach_frame(i, f"l{i}", "$cbs", wide(200)) for i in range(200))
    connection = bench.broker.connect("127.0.0.1:50000", secure=True, loopback=True, now=bench.now)
    connection.receive(opening("sender") + BEGUN + attaches, bench.now)

    assert len(attaches) > STRANGER_BYTES_MAX
    assert len(connection.links) == 200


@pytest.mark.promise("M13")
def test_what_callers_without_the_right_try_is_recorded_apart_from_actions(bench: WireBench) -> None:
    refused: list[tuple[str, ...]] = []
    bench.broker._on_refusal = lambda *record: refused.append(record)
    bench.queue("q")
    bench.peer("root", "wrong")
    bench.peer(None).put_token(token("root", "wrong"), "q")
    target = "/q?api-version=2021-05"
    for header in (None, token("root", "wrong"), token("listener", "listener-1")):
        bench.http("DELETE", target, header)
    bench.http("GET", "/metrics", None)
    bench.http("DELETE", target, token("root", "root-1"))

    assert [record[0] for record in refused] == ["login", "put-token", *["delete entity"] * 3, "metrics"]
    assert [(record[0], record[2], record[3]) for record in bench.audits] == [
        ("delete entity", "root", "200")
    ]


@pytest.mark.promise("B60")
@pytest.mark.parametrize("values_max", [tokens.VALUES_MAX, transactions.VALUES_MAX, management.VALUES_MAX])
def test_requests_to_nodes_are_decoded_within_a_number_of_values(values_max: int) -> None:
    """Megabytes of one-byte values in one request would take seconds, for everybody."""
    body = [[None] * 60_000] * 20
    payload = encode_message(correlation_id_raw=b"", application_properties={}, body=body)
    with measured():
        with pytest.raises(RemoteProtocolError, match="more values are claimed"):
            decode_message(payload, values_max)
        peak = tracemalloc.get_traced_memory()[1]

    assert peak <= 32 * values_max + 64 * 1024


@pytest.mark.promise("M6")
def test_stranger_who_asks_and_never_takes_answers_is_shown_the_door(bench: WireBench) -> None:
    stranger = bench.peer(None)
    node = stranger.session.request_link("$cbs")
    bench.settle()
    stranger.session.set_window(0)
    for _ in range(600):
        if stranger.gateway.amqp.closing:
            break
        for _ in range(100):
            node.request({"operation": "put-token", "name": "x" * 100}, "nonsense")
        bench.settle()

    held = [frame for session in stranger.gateway.amqp.sessions.values() for frame in session.queued]
    assert sum(map(len, held)) < 8 * MEBIBYTE
    assert stranger.gateway.amqp.closing


@pytest.mark.promise("M6")
def test_token_request_is_short(bench: WireBench) -> None:
    stranger = bench.peer(None)
    node = stranger.session.request_link("$cbs")
    bench.settle()

    assert node.sender.answer is not None
    assert 0 < node.sender.answer.max_message_size <= 65_536


@pytest.mark.promise("M6")
def test_stranger_gets_few_links(bench: WireBench) -> None:
    stranger = bench.peer(None)
    for _ in range(200):
        stranger.session.sender("$cbs")
        if len(stranger.session.links) % 20 == 0:
            bench.settle()
    bench.settle()

    assert stranger.gateway.amqp.closing
    assert stranger.gateway.amqp.link_count < 100
