"""What clients say to the broker is use of the entity it is about, whichever way they say it."""

from __future__ import annotations

import pytest

from pairbus.gateway.management.node import OPERATIONS
from pairbus.model.entity import Settings
from tests.unit.gateway.wire_bench import Peer, WireBench, message

MINUTE = 60_000
IDLE = Settings(auto_delete_on_idle_ms=5 * MINUTE, lock_duration_ms=5 * MINUTE)
WORDS = ("complete", "abandon", "defer", "dead_letter", "release")


def stay(bench: WireBench, peer: Peer, minutes: int) -> None:
    """A client stays connected, and does nothing else."""
    for _ in range(minutes):
        peer.client.heartbeat()
        bench.wait(MINUTE)


@pytest.mark.promise("B1")
@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_request_to_a_management_node_is_use(operation: str, bench: WireBench) -> None:
    entity = bench.queue("q", IDLE)
    peer = bench.peer()
    peer.ask("q", "peek-message", {})
    stay(bench, peer, 4)
    peer.ask("q", operation, {})

    assert entity.accessed_at == bench.now
    stay(bench, peer, 4)
    assert not entity.is_deleted


@pytest.mark.promise("B1")
@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("place", ["q", "q/$DeadLetterQueue"])
def test_a_receiver_that_settles_now_and_then_keeps_its_queue(word: str, place: str) -> None:
    bench = WireBench()
    entity = bench.queue("q", IDLE)
    peer = bench.peer()
    sender = peer.session.sender("q")
    bench.settle()
    for text in ("first", "second"):
        sender.send(message(text))
    if place != "q":
        first = peer.session.receiver("q", credit=2)
        bench.settle()
        for delivery in list(first.deliveries):
            first.dead_letter(delivery, "reason", "description")
        bench.settle()
        first.detach()
    receiver = peer.session.receiver(place, credit=1)
    bench.settle()
    stay(bench, peer, 4)
    getattr(receiver, word)(receiver.deliveries[0], *(("r", "d") if word == "dead_letter" else ()))
    bench.settle()
    assert entity.accessed_at == bench.now

    receiver.detach()
    bench.wait(4 * MINUTE)
    assert not entity.is_deleted


@pytest.mark.promise("B1")
def test_a_receiver_that_asks_for_messages_uses_its_queue(bench: WireBench) -> None:
    entity = bench.queue("q", IDLE)
    peer = bench.peer()
    receiver = peer.session.receiver("q")
    bench.wait(4 * MINUTE)
    receiver.grant(1)
    bench.settle()
    assert entity.accessed_at == bench.now


@pytest.mark.promise("B1")
def test_the_end_of_a_silent_receiver_is_use_at_that_instant(bench: WireBench) -> None:
    """A connection says nothing for long, and what ends its link is a change of the configuration."""
    entity, other = bench.queue("q", IDLE), bench.queue("other")
    peer = bench.peer()
    receiver = peer.session.receiver("q")
    bench.settle()
    stay(bench, peer, 9)
    asleep = bench.now
    bench.wait(MINUTE)
    bench.namespace.set_access_rules((), bench.now)
    bench.namespace.delete(other, bench.now)
    bench.settle()

    assert receiver.detached
    assert entity.accessed_at == bench.now > asleep
