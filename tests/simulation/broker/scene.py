"""What every simulated world with a broker has: time, chance, clients, what they were told, and a history.

``world`` is one broker on one disk, ``cluster.world`` several on one database. Clients and checkers know only what is here.
"""

from __future__ import annotations

import hashlib
import random
from abc import ABC, abstractmethod
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final, Protocol

from tests.simulation.broker.checkers import Ledger, PromiseBroken
from tests.simulation.virtual_time import RestlessWorld, VirtualTime

if TYPE_CHECKING:
    from collections.abc import Callable

    from pairbus.gateway.broker import Broker
    from pairbus.gateway.connection import GatewayConnection
    from pairbus.gateway.http import HttpRequest
    from pairbus.server.committer import OutputSink
    from tests.simulation.broker.changes import Administrator
    from tests.simulation.broker.clients import Client
    from tests.simulation.broker.process import Socket

START: Final = 1_700_000_000_000
NANOSECONDS_PER_MS: Final = 1_000_000
ROOT_KEY: Final = "d29ybGQ="
CALM_MS_MAX: Final = 30 * 60_000
SLIP_MS: Final = 450_000
"""How far the machine's clock is ahead for some seconds: long after it is right again the broker's own clock is ahead."""
EVENTS_MAX: Final = 400_000


@dataclass(frozen=True, kw_only=True)
class Bugs:
    """Faults planted in the harness, for a simulator that nobody has seen fail proves nothing."""

    replies_before_sync: bool = False
    loses_removals: bool = False
    reuses_numbers: bool = False
    hands_out_twice: bool = False
    commits_rollbacks: bool = False
    forgets_changes: bool = False


@dataclass(frozen=True, kw_only=True)
class Roughness:
    """How the network is, and how consumers behave."""

    storm_ms: int
    delay_ms: int
    splits: float
    disconnects: int
    slow_readers: int
    clock_steps: int
    mischief: float
    """How often a consumer does something other than complete."""


class Life(Protocol):
    """One life of a broker, as sockets and clients know it."""

    broker: Broker
    life: int
    is_dead: bool

    def clock(self) -> int:
        """The broker's present instant."""

    def wall(self) -> int:
        """What the clock of the broker's machine shows."""

    def connect(self, socket: Socket) -> None:
        """A client's connection is accepted."""

    def receive(self, socket: Socket, data: bytes) -> None:
        """Bytes from a client."""

    def request(self, request: HttpRequest, caller: OutputSink) -> None:
        """A management request; its answer is written after the commit, like every other."""

    def resume(self, gateway: GatewayConnection) -> None:
        """A socket has room again."""

    def lost(self, socket: Socket) -> None:
        """A socket is gone."""

    def writes(self, socket: Socket) -> None:
        """Output is about to leave: the place to check that it may."""


class Scene(ABC):
    """One seed's history. The seed draws everything."""

    closes_connections = False
    """Whether a broker here has reasons of its own to close the connection of a client that speaks."""
    output_wait_ms = 5_000
    """How long output may wait for its commit."""

    def __init__(self, seed: int, inspects: bool, bugs: Bugs | None = None) -> None:
        self.seed = seed
        self.bugs = bugs or Bugs()
        self.inspects = inspects
        self.chance = random.Random(seed)
        self.virtual = VirtualTime(EVENTS_MAX)
        self.wall_offset_ms = 0
        self._clock_steps = [(0, 0)]
        """When the machine's clock was set, and how far it was from real time afterwards."""
        self.is_calm = False
        self.ledger = Ledger()
        self.ledger.latest_wall = self.latest_wall_for_output
        self.ledger.was_set_back = self.was_set_back
        self.decisions: dict[tuple[int, int], int] = {}
        self.clients: list[Client] = []
        self.administrator: Administrator | None = None
        self.restated = 0
        self.history: list[str] = []
        self._emissions = 0

    @property
    @abstractmethod
    def roughness(self) -> Roughness:
        """How bad the days are."""

    @abstractmethod
    def current(self) -> Life | None:
        """The broker that answers now; None: there is none."""

    @abstractmethod
    def connect(self, client: Client) -> Socket | None:
        """A client asks for a connection; None: nobody is there."""

    # -- time and chance

    def wall_lead_ms(self) -> int:
        """How far the clock of a broker's machine has been ahead of ``wall_ns`` at most; there may be several machines."""
        return 0

    @property
    def time(self) -> int:
        """Milliseconds of real time since the world began."""
        return self.virtual.now

    def wall_ns(self) -> int:
        """What the machine's clock says; somebody may set it."""
        return (START + self.time + self.wall_offset_ms) * NANOSECONDS_PER_MS

    def latest_wall(self, since: int) -> int:
        """The latest date that the machine's clock has shown since some moment of real time: a client's date may have come then."""
        latest = 0
        until = self.time
        for time, offset in reversed(self._clock_steps):
            latest = max(latest, START + until + offset)
            if time <= since:
                break
            until = time
        return latest + self.wall_lead_ms()

    def latest_wall_for_output(self, at: int) -> int:
        """The latest date that the machine's clock can have shown when output was made that the broker wrote at some moment."""
        return self.latest_wall(at - self.output_wait_ms)

    def was_set_back(self, since: int) -> bool:
        """Whether the machine's clock was set back after some moment of real time, or while output of that moment waited."""
        steps = self._clock_steps
        return any(
            after < before and time >= since - self.output_wait_ms
            for (_, before), (time, after) in pairwise(steps)
        )

    def monotonic_ns(self) -> int:
        """Real time."""
        return self.time * NANOSECONDS_PER_MS

    def delay(self) -> int:
        """How long the network takes this time."""
        return self.chance.randrange(self.roughness.delay_ms + 1)

    def at(self, time: int, action: Callable[..., None], *arguments: object) -> None:
        """Have something happen."""
        self.virtual.at(time, action, *arguments)

    def next_emission(self) -> int:
        """A number for each writing of the broker, in order."""
        self._emissions += 1
        return self._emissions

    def say(self, who: str, what: str) -> None:
        """Note an event of the history."""
        self.history.append(f"{self.time:>7} {who}: {what}")

    def digest(self) -> str:
        """A fingerprint of everything that happened."""
        return hashlib.sha256("\n".join(self.history).encode()).hexdigest()

    # -- bad days that every world has

    def disconnect(self) -> None:
        sockets = [client.socket for client in self.clients if client.socket is not None]
        if sockets:
            self.chance.choice(sockets).cut("the network broke")

    def slow_down(self) -> None:
        sockets = [client.socket for client in self.clients if client.socket is not None]
        if sockets:
            socket = self.chance.choice(sockets)
            socket.reads = False
            self.say(socket.client.name, "stops reading")
            self.at(self.time + self.chance.randrange(8_000), self.speed_up, socket)

    def speed_up(self, socket: Socket) -> None:
        socket.reads = True
        socket.read()

    def step_clock(self) -> None:
        step = self.chance.choice((-30_000, -2_000, -1, 500, 9_000, 40_000, 600_000, SLIP_MS))
        self.set_clock(step)
        if step == SLIP_MS:
            self.at(self.time + self.chance.randrange(1, 4_000), self.set_clock, -SLIP_MS)

    def set_clock(self, step: int) -> None:
        """Somebody sets the machine's clock."""
        self.wall_offset_ms += step
        self._clock_steps.append((self.time, self.wall_offset_ms))
        self.say("world", f"the clock is set by {step} ms")

    # -- the run

    def run_until(self, time: int) -> None:
        try:
            self.virtual.run_until(time)
        except RestlessWorld as error:
            raise PromiseBroken(str(error)) from error

    def clients_calm_down(self) -> None:
        self.is_calm = True
        self.say("world", "calm")
        for client in self.clients:
            if client.socket is not None:
                self.speed_up(client.socket)
            client.calm_down()
        if self.administrator is not None:
            self.administrator.calm_down()

    def drain(self) -> None:
        """Everything finishes, with nothing but time (B31, B37, B45)."""
        until = self.time + CALM_MS_MAX
        while self.time < until:
            self.run_until(self.time + 1_000)
            if self._is_drained():
                return
        if not self._leftovers():
            self.ledger.check_end()
        raise PromiseBroken(f"B31, B37, B45: not finished after the calm: {self._leftovers()}")

    def _is_drained(self) -> bool:
        if self.current() is None or not all(client.is_finished for client in self.clients):
            return False
        if self.administrator is not None and not self.administrator.is_finished:
            return False
        return not self._leftovers() and not self.ledger.unfinished()

    def _leftovers(self) -> list[str]:
        life = self.current()
        if life is None:
            return ["the broker is down"]
        return [
            f"{queue.path} holds {sorted(queue.messages)}"
            for queue in life.broker.namespace.all_queues()
            if queue.messages
        ]
