"""Links that nobody uses stay attached: the service would detach them after ten minutes."""

from __future__ import annotations

import pytest

from pairbus.amqp.states import ACCEPTED_CODE
from pairbus.amqp.types import Symbol, UInt
from pairbus.gateway.connection import NO_LINK_MS
from pairbus.model.entity import Settings
from tests.unit.gateway.wire_bench import Peer, WireBench, message

SESSION_FILTER = "com.microsoft:session-filter"

MINUTE = 60_000


def test_a_link_that_is_idle_for_eleven_minutes_can_be_used(bench: WireBench) -> None:
    bench.queue("q")
    peer = bench.peer()
    sender, receiver = peer.session.sender("q"), peer.session.receiver("q")
    for _ in range(11):
        bench.wait(MINUTE)
        peer.client.heartbeat()
    sent = sender.send(message("x"))
    receiver.grant(1)
    bench.settle()

    assert sender.outcomes[sent].code == ACCEPTED_CODE
    assert [delivery.message.body for delivery in receiver.deliveries] == ["x"]


def _keep_alive(bench: WireBench, peer: Peer, ms: int) -> None:
    for _ in range(ms // MINUTE):
        peer.client.heartbeat()
        bench.wait(MINUTE)


def test_a_connection_whose_wait_for_a_session_ends_may_try_again(bench: WireBench) -> None:
    """The end of its last link begins the time that it may go without any, whoever ended it."""
    bench.queue("q", Settings(requires_session=True))
    peer = bench.peer()
    for _ in range(3):
        waiting = peer.session.receiver(
            "q",
            filter={Symbol(SESSION_FILTER): None},
            properties={Symbol("com.microsoft:timeout"): UInt(8 * MINUTE)},
        )
        _keep_alive(bench, peer, 8 * MINUTE + NO_LINK_MS - MINUTE)
        assert waiting.detached
        assert not peer.client.closed

    _keep_alive(bench, peer, NO_LINK_MS + MINUTE)
    assert peer.client.closed


@pytest.mark.parametrize(
    ("sign", "share"), [("nothing", 0), ("it asks for more", 2), ("it completes what it lost", 2)]
)
def test_a_receiver_whose_lock_lapsed_takes_its_turn_once_it_is_heard(
    bench: WireBench, sign: str, share: int
) -> None:
    bench.queue("q")
    sender = bench.peer().session.sender("q")
    one, other = bench.peer().session.receiver("q"), bench.peer().session.receiver("q")
    one.grant(10)
    sender.send(message("lapses"))
    bench.settle()
    other.grant(10)
    bench.wait(MINUTE)
    if sign == "it asks for more":
        one.grant(10)
    elif sign == "it completes what it lost":
        one.complete(one.deliveries[0])
    bench.settle()
    for _ in range(4):
        sender.send(message("new"))
    bench.settle()

    assert (len(one.deliveries) - 1, len(other.deliveries) - 1) == (share, 4 - share)
