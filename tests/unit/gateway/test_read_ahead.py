"""Requests and drains that need message bytes from another machine: they are answered when the bytes are here."""

from __future__ import annotations

import pytest

from pairbus.amqp.types import Array, Int, Long, UInt
from tests.simulation.wire import RequestLink
from tests.unit.gateway.test_management_messages import bodies
from tests.unit.gateway.wire_bench import Peer, WireBench, with_messages

PEEK = {"from-sequence-number": Long(1), "message-count": Int(10)}


class FarBlobs:
    """Nothing is at hand until ``arrive`` is called."""

    def __init__(self, bench: WireBench) -> None:
        self._bench = bench
        self.here: set[int] = set()
        self.asked: dict[int, list[int]] = {}
        self.fetches = 0
        self.waits = 0
        bench.namespace.context.read_ahead = self
        original = bench.store.read

        def read(location: int, size: int) -> bytes:
            self.waits += location not in self.here
            return original(location, size)

        bench.store.read = read  # type: ignore[method-assign]

    def is_at_hand(self, location: int) -> bool:
        return location in self.here

    def fetch(self, locations: list[int], tag: int) -> None:
        self.fetches += 1
        self.asked.setdefault(tag, []).extend(locations)

    def arrive(self, *, is_lost: bool = False) -> None:
        asked, self.asked = self.asked, {}
        if not is_lost:
            for locations in asked.values():
                self.here.update(locations)
        self._bench.broker.fetched(sorted(asked), self._bench.now)
        self._bench.settle()


def asked(bench: WireBench, peer: Peer, operation: str, body: object) -> tuple[RequestLink, object]:
    node = peer.session.request_link("q/$management")
    bench.settle()
    number = node.request({"operation": f"com.microsoft:{operation}"}, body)
    bench.settle()
    return node, number


def test_a_peek_is_answered_when_its_bytes_are_here() -> None:
    bench, peer = with_messages(3)
    far = FarBlobs(bench)
    node, number = asked(bench, peer, "peek-message", PEEK)
    assert number not in node.responses
    far.arrive()
    found = node.responses[number]
    assert isinstance(found.body, dict)
    assert bodies(found.body) == ["m0", "m1", "m2"]
    assert far.waits == 0
    assert not bench.broker.postponed


def test_a_peek_of_more_than_is_kept_is_read_on_the_spot_in_the_end() -> None:
    bench, peer = with_messages(2)
    far = FarBlobs(bench)
    node, number = asked(bench, peer, "peek-message", PEEK)
    for _ in range(20):
        far.arrive(is_lost=True)
    assert number in node.responses
    assert far.fetches < 10
    assert far.waits == 2


def test_a_request_whose_connection_has_gone_is_forgotten() -> None:
    bench, peer = with_messages(1)
    far = FarBlobs(bench)
    asked(bench, peer, "peek-message", PEEK)
    peer.gateway.lost(bench.now)
    far.arrive()
    assert not bench.broker.postponed


@pytest.mark.promise("B34")
def test_deferred_messages_are_locked_when_their_bytes_are_here() -> None:
    bench, peer = with_messages(2)
    receiver = peer.session.receiver("q", credit=2)
    bench.settle()
    for delivery in receiver.deliveries:
        receiver.defer(delivery)
    bench.settle()
    queue = bench.namespace.find("q")
    assert queue is not None
    far = FarBlobs(bench)
    body = {"sequence-numbers": Array([Long(1), Long(2)]), "receiver-settle-mode": UInt(1)}
    node, number = asked(bench, peer, "receive-by-sequence-number", body)
    assert number not in node.responses
    assert not queue.main.locks
    far.arrive()
    found = node.responses[number].body
    assert isinstance(found, dict)
    assert bodies(found) == ["m0", "m1"]
    assert len(queue.main.locks) == 2


def test_a_drain_ends_after_what_was_under_way() -> None:
    bench, peer = with_messages(2)
    far = FarBlobs(bench)
    receiver = peer.session.receiver("q", credit=0)
    bench.settle()
    receiver.grant(5, drain=True)
    bench.settle()
    assert receiver.deliveries == []
    assert receiver.credit == 5
    far.arrive()
    assert len(receiver.deliveries) == 2
    assert receiver.credit == 0
