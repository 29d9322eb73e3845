"""Tokens are judged by the wall clock: a slip of seconds locks nobody out, and lets nobody in for longer."""

from __future__ import annotations

from pairbus.server.clock import BrokerClock
from tests.simulation.wire import ClientSender
from tests.unit.gateway.wire_bench import HOUR, START, Peer, WireBench, token

NS = 1_000_000
SLIP_MS = 2 * HOUR


class Slipping:
    """A broker whose machine has a wall clock that can be set."""

    def __init__(self) -> None:
        self.wall = self.real = START * NS
        self.clock = BrokerClock(lambda: self.wall, lambda: self.real)
        self.bench = WireBench()
        self.bench.queue()
        self.bench.broker.follow_wall_clock(self.clock.lead_ms)

    def wait(self, ms: int) -> None:
        self.wall += ms * NS
        self.real += ms * NS
        self.read()

    def step(self, ms: int) -> None:
        self.wall += ms * NS
        self.read()

    def read(self) -> None:
        self.bench.now = self.clock()
        self.bench.broker.tick(self.bench.now)
        self.bench.settle()

    def put(self, peer: Peer, life_ms: int = HOUR) -> int:
        """A token that ends so long after now, by the wall clock, as the SDKs make them."""
        return peer.put_token(token("root", "root-1", "q", expires_at=self.wall // NS + life_ms), "q")


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
