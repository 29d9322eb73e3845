"""A broker whose machine has a wall clock that can be set."""

from __future__ import annotations

from pairbus.server.clock import BrokerClock
from pairbus.storage.memory import MemoryDisk
from tests.unit.gateway.wire_bench import HOUR, START, Peer, WireBench, token

NS = 1_000_000


class Slipping:
    """The broker's clock is the one that ships; the wall clock and real time are the test's."""

    def __init__(self, disk: MemoryDisk | None = None, wall_ms: int = START) -> None:
        self.wall = self.real = wall_ms * NS
        self.clock = BrokerClock(lambda: self.wall, lambda: self.real)
        self.bench = WireBench(disk)
        self.bench.now = wall_ms
        if self.bench.namespace.find("q") is None:
            self.bench.queue()
        self.bench.broker.follow_wall_clock(self.clock)
        self.bench.broker.steady_ms = self.clock.steady_ms

    @property
    def date(self) -> int:
        """What the wall clock shows."""
        return self.wall // NS

    def wait(self, ms: int) -> None:
        self.wall += ms * NS
        self.real += ms * NS
        self.read()

    def wake(self) -> None:
        """Let real time pass until the broker has asked to be woken, at most a minute."""
        deadline = self.bench.broker.next_deadline()
        self.wait(60_000 if deadline is None else min(max(deadline - self.bench.now, 1), 60_000))

    def step(self, ms: int) -> None:
        self.wall += ms * NS
        self.read()

    def slip(self, ms: int) -> None:
        """The wall clock is ahead for three seconds: afterwards the broker's clock is."""
        self.step(ms)
        self.wait(3_000)
        self.step(-ms)

    def read(self) -> None:
        self.bench.now = self.clock()
        self.bench.broker.tick(self.bench.now)
        self.bench.settle()

    def put(self, peer: Peer, life_ms: int = HOUR) -> int:
        """A token that ends so long after now, by the wall clock, as the SDKs make them."""
        return peer.put_token(token("root", "root-1", "q", expires_at=self.date + life_ms), "q")
