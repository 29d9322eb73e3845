"""A machine's clock that is set: tokens are judged by it, so a slip of seconds locks nobody out and lets nobody in for longer; how
long a peer was silent is measured in real time, so no step closes a connection.
"""

from __future__ import annotations

import pytest

from pairbus.gateway.connection import FIRST_TOKEN_MS
from tests.simulation.wire import ClientSender
from tests.unit.gateway.slipping import Slipping
from tests.unit.gateway.wire_bench import HOUR

SLIP_MS = 2 * HOUR


def attached(link: ClientSender) -> bool:
    return link.is_attached


def test_a_slip_of_seconds_locks_nobody_out() -> None:
    world = Slipping()
    assert world.put(world.bench.peer(user=None)) == 202
    world.step(SLIP_MS)
    world.wait(3_000)
    world.step(-SLIP_MS)

    for _ in range(30):  # for hours after it, as long as the broker's own clock is ahead
        peer = world.bench.peer(user=None)
        assert world.put(peer) == 202
        link = peer.session.sender("q")
        world.bench.settle()
        assert attached(link)
        world.wait(10 * 60_000)


def test_a_token_ends_by_the_wall_clock_also_while_the_own_clock_is_ahead() -> None:
    world = Slipping()
    world.step(SLIP_MS)
    world.step(-SLIP_MS)
    peer = world.bench.peer(user=None)
    assert world.put(peer, life_ms=5 * 60_000) == 202
    link = peer.session.sender("q")
    world.bench.settle()
    assert attached(link)
    world.wait(3 * 60_000)
    peer.client.heartbeat()
    world.wait(60_000)
    assert attached(link)
    deadline = world.bench.broker.next_deadline()
    assert deadline is not None
    assert deadline > world.bench.now  # else the broker would be woken without end
    world.wait(2 * 60_000)
    assert not attached(link)
    assert world.put(world.bench.peer(user=None), life_ms=-1000) == 401


def test_a_wall_clock_that_is_right_again_ends_what_is_over() -> None:
    world = Slipping()
    world.step(-SLIP_MS)
    peer = world.bench.peer(user=None)
    assert world.put(peer) == 202
    link = peer.session.sender("q")
    world.bench.settle()
    assert attached(link)
    world.step(SLIP_MS)
    world.wait(3 * 60_000)
    assert not attached(link)


MINUTE = 60_000
IDLE_MS = 4 * MINUTE


@pytest.mark.promise("B64")
@pytest.mark.parametrize("step_ms", [10 * MINUTE, HOUR, 20 * 365 * 24 * HOUR, -HOUR])
def test_a_step_of_the_clock_closes_no_connection(step_ms: int) -> None:
    world = Slipping()
    peers = [world.bench.peer() for _ in range(3)]
    link = peers[0].session.sender("q")
    world.bench.settle()
    world.wait(30_000)
    world.step(step_ms)

    for _ in range(10):
        world.wait(20_000)
        peers[0].client.heartbeat()
        world.bench.settle()
        assert attached(link)
    assert not peers[0].client.closed
    assert peers[1].client.closed, "a connection without a link ends after a minute of real time"


@pytest.mark.promise("B64")
@pytest.mark.parametrize("step_ms", [HOUR, -HOUR])
def test_a_silent_peer_is_closed_by_real_time_whatever_the_clock_was_set_to(step_ms: int) -> None:
    world = Slipping()
    peer = world.bench.peer()
    peer.session.sender("q")
    world.bench.settle()
    world.step(step_ms)

    world.wait(IDLE_MS - 10_000)
    assert not peer.client.closed
    for _ in range(
        6
    ):  # its timer is in the broker's own time, which is slow after a step back: at most a tenth
        world.wait(10_000)
    assert peer.client.closed


def test_a_stranger_has_its_twenty_seconds_whatever_the_clock_does() -> None:
    world = Slipping()
    peer = world.bench.peer(user=None)
    world.step(HOUR)
    world.wait(FIRST_TOKEN_MS - 1_000)
    assert not peer.client.closed
    world.wait(2_000)
    assert peer.client.closed
