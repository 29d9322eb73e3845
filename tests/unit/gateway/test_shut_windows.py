"""What waits for sessions whose window is shut is bounded per connection and over all of them, and never forgotten."""

from __future__ import annotations

import pytest

from pairbus.amqp.types import Int, Long
from pairbus.model.entity import Settings
from tests.simulation.wire import ClientReceiver, ClientSession
from tests.unit.gateway.wire_bench import Peer, WireBench, message

MIB = 1 << 20
MESSAGE_BYTES = 200_000


def _open(session: ClientSession, window: int = 65_536) -> None:
    session.window = window
    session.write(session.flow_frame().encode())


def _fill(bench: WireBench, count: int, size: int = MESSAGE_BYTES) -> None:
    sender = bench.peer().session.sender("q")
    bench.settle()
    for _ in range(count):
        sender.send(message(bytes(size)))
    bench.settle()


def _listener(bench: WireBench, max_frame_size: int = 65_536) -> Peer:
    return bench.peer("listener", "listener-1", max_frame_size=max_frame_size)


def _waiting(peer: Peer) -> int:
    return sum(session.queued_bytes for session in peer.gateway.amqp.sessions.values())


def _receivers(peer: Peer, count: int, window: int, links: int = 1) -> list[ClientReceiver]:
    found = []
    for _ in range(count):
        session = peer.client.session(window)
        found += [session.receiver("q", credit=10) for _ in range(links)]
    return found


@pytest.mark.promise("B62")
@pytest.mark.parametrize(("sessions", "links"), [(60, 1), (1, 60), (10, 6)])
def test_deliveries_that_wait_for_windows_are_bounded_per_connection(sessions: int, links: int) -> None:
    bench = WireBench()
    queue = bench.queue("q").main
    _fill(bench, 60)
    peer = _listener(bench, max_frame_size=4_096)
    receivers = _receivers(peer, sessions, 1, links)
    bench.settle()

    assert _waiting(peer) <= MIB + 2 * MESSAGE_BYTES
    assert len(queue.locks) <= MIB // MESSAGE_BYTES + 2, "what does not wait is not locked"

    for session in peer.client.sessions.values():
        _open(session, 1 << 30)
    bench.settle()
    assert sum(len(receiver.deliveries) for receiver in receivers) == 60
    assert _waiting(peer) == 0


@pytest.mark.promise("B62")
def test_deliveries_that_wait_for_windows_are_bounded_over_all_connections(bench: WireBench) -> None:
    bench.broker.connection_settings.waiting_bytes_total_max = 2 * MIB
    queue = bench.queue("q").main
    _fill(bench, 80)
    peers = [_listener(bench) for _ in range(20)]
    receivers = [receiver for peer in peers for receiver in _receivers(peer, 4, 1)]
    bench.settle()

    total = bench.broker.connection_settings.waiting
    assert total.size <= 2 * MIB + 20 * (MESSAGE_BYTES + 10_000)
    assert len(queue.locks) < 45

    for peer in peers:
        for session in peer.client.sessions.values():
            _open(session)
        bench.settle()
    assert sum(len(receiver.deliveries) for receiver in receivers) == 80
    assert total.size == 0


@pytest.mark.promise("B63")
def test_a_session_with_a_window_gets_messages_while_others_are_shut(bench: WireBench) -> None:
    bench.queue("q")
    _fill(bench, 30)
    peer = _listener(bench)
    _receivers(peer, 20, 1)
    bench.settle()
    assert peer.gateway.is_window_limited

    (reader,) = _receivers(peer, 1, 65_536)
    bench.settle()

    assert len(reader.deliveries) == 10


@pytest.mark.promise("B63")
def test_a_session_that_opens_its_window_wide_gets_messages_while_others_are_shut(bench: WireBench) -> None:
    bench.queue("q")
    _fill(bench, 60)
    peer = _listener(bench)
    receivers = _receivers(peer, 20, 1)
    bench.settle()
    waiting = [r for r in receivers if not peer.gateway.amqp.sessions[r.session.channel].queued]
    assert waiting, "some have a window and no message"

    _open(waiting[0].session)
    bench.settle()

    assert len(waiting[0].deliveries) == 10


@pytest.mark.promise("B62")
def test_what_waited_is_free_again_when_the_peer_has_gone(bench: WireBench) -> None:
    bench.queue("q")
    _fill(bench, 30)
    peer = _listener(bench)
    _receivers(peer, 20, 1)
    bench.settle()
    total = bench.broker.connection_settings.waiting
    assert total.size > MIB

    bench.peers.remove(peer)
    peer.gateway.lost(bench.now)

    assert total.size == 0
    assert not bench.broker.window_limited


@pytest.mark.promise("M6")
def test_answers_that_wait_for_windows_are_bounded_per_connection(bench: WireBench) -> None:
    bench.queue("q")
    _fill(bench, 5)
    peer = _listener(bench)
    highest = 0
    for _ in range(20):
        session = peer.client.session(0)
        node = session.request_link("q/$management")
        node.request(
            {"operation": "com.microsoft:peek-message"},
            {"from-sequence-number": Long(1), "message-count": Int(5)},
        )
        bench.settle()
        highest = max(highest, _waiting(peer))

    assert MIB < highest <= 3 * MIB
    assert peer.client.closed
    assert peer.client.error is not None
    assert peer.client.error.condition == "amqp:resource-limit-exceeded"
    assert bench.broker.connection_settings.waiting.size == 0


@pytest.mark.promise("B62")
def test_closed_session_window_stops_deliveries_and_an_open_one_lets_them_go_on(bench: WireBench) -> None:
    bench.queue(settings=Settings(max_size_mb=1024))
    peer = bench.peer()
    sender = peer.session.sender("q")
    bench.settle()
    for _ in range(200):
        sender.send(message(bytes(10_000)))
    bench.settle()
    slow = bench.peer()
    receiver = slow.session.receiver("q")
    bench.settle()
    slow.session.set_window(0)
    bench.settle()

    receiver.credit = 200
    frame = slow.session.flow_frame()
    frame.incoming_window = 0
    frame.handle, frame.delivery_count, frame.link_credit = receiver.handle, 0, 200
    slow.session.write(frame.encode())
    bench.settle()

    session = next(iter(slow.gateway.amqp.sessions.values()))
    assert sum(map(len, session.queued)) < 50_000
    assert not receiver.deliveries
    for _ in range(40):
        slow.session.set_window(6)
        bench.settle()
    assert len(receiver.deliveries) == 200
    numbers = [delivery.annotation("x-opt-sequence-number") for delivery in receiver.deliveries]
    assert numbers == list(range(1, 201))
