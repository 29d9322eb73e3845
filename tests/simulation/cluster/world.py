"""Several brokers on one database, on bad days: ``ClusterWorld(seed)`` owns the clocks, the network, the database and all that happens.

The seed first draws how cruel the world is, then what happens in it. After the storm comes a calm in which everything must finish.
The same seed gives the same history in any process.
"""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from pairbus.storage.table.ports import REQUEST_MOVE, LeaseTable, OutcomeUnknown, SequenceTaken
from tests.simulation.broker.checkers import PromiseBroken, check_counts, memory_of
from tests.simulation.broker.places import settle_in
from tests.simulation.broker.scene import Roughness, Scene
from tests.simulation.cluster.bugs import ClusterBugs
from tests.simulation.cluster.checkers import LogChecker
from tests.simulation.cluster.database import Database, Faults, Server
from tests.simulation.cluster.machine_loop import virtual_threads
from tests.simulation.cluster.node import Node, RelayedSocket
from tests.simulation.cluster.table import SimulatedTable
from tests.simulation.virtual_time import Machine

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.broker.clients import Client
    from tests.simulation.broker.process import Socket
    from tests.simulation.cluster.node import Serving
    from tests.simulation.cluster.table import SimulatedNodes

RATES: Final = (0.96, 0.99, 1.0, 1.0, 1.01, 1.04)
"""How fast the clocks of machines run, the wall clock like the monotonic one; the margin of the lease must make up for it."""


@dataclass(frozen=True, kw_only=True)
class ClusterCruelty(Roughness):
    """How bad the days are; drawn first of all."""

    nodes: int
    lease_ms: int
    kills: int
    pauses: int
    cuts: int
    moves: int
    restarts: int
    failovers: int
    hangs: int
    terminations: int
    standby_losses: int
    pairs: int
    """How often two things happen at once."""
    faults: Faults
    unit_bits: int
    cache_bytes: int
    garbage_bytes_min: int

    @staticmethod
    def draw(chance: random.Random, *, is_terrible: bool = False) -> ClusterCruelty:
        """A fair share of gentle worlds, and of terrible ones."""
        level = 3 if is_terrible else chance.choice((0, 1, 1, 2, 2, 3))
        unknown = chance.choice((0.0, 0.01, 0.05)) if level else 0.0
        return ClusterCruelty(
            storm_ms=chance.choice((4_000, 9_000)),
            delay_ms=chance.choice((1, 5, 40, 200)),
            splits=chance.choice((0.0, 0.1)),
            disconnects=chance.randrange(level + 1),
            slow_readers=chance.randrange(level + 1),
            clock_steps=chance.randrange(level + 1),
            mischief=chance.choice((0.0, 0.1, 0.4)),
            nodes=chance.choice((2, 2, 3)),
            lease_ms=chance.choice((500, 1_000, 2_000)),
            kills=chance.randrange(level + 1),
            pauses=chance.randrange(level + 2) if level else 0,
            cuts=chance.randrange(level + 1),
            moves=chance.randrange(level + 1),
            restarts=chance.randrange(level + 1),
            failovers=chance.randrange(level + 1),
            hangs=chance.randrange(level + 1),
            terminations=chance.randrange(level + 1),
            standby_losses=chance.randrange(level + 1),
            pairs=chance.randrange(level + 1),
            unit_bits=chance.choice((2, 3, 10)),
            cache_bytes=chance.choice((2_000, 1 << 20)),
            garbage_bytes_min=chance.choice((500, 4_000)),
            faults=Faults(
                delay_ms=chance.choice((0, 2, 10, 80)),
                replication_ms=chance.choice((0, 5, 60, 300)),
                lost_before=unknown,
                lost_after=unknown,
                late=unknown,
                slow=chance.choice((0.0, 0.02, 0.15)) if level else 0.0,
                late_ms=chance.choice((10, 500, 5_000)),
                timeout_ms=chance.choice((300, 1_000)),
                range_frames=chance.choice((2, 8)),
            ),
        )


class ClusterWorld(Scene):
    """One seed's history.

    Args:
        seed: Draws everything.
        planted: Faults of the nodes.
        is_terrible: Whether all bad things happen, not as many as the seed draws.
        inspects: Whether the log, the lease and the engine's decisions are checked beside what clients see.
    """

    closes_connections = True  # a shard moves
    output_wait_ms = 60_000  # the database is away meanwhile

    def __init__(
        self,
        seed: int,
        *,
        planted: ClusterBugs | None = None,
        inspects: bool = True,
        is_terrible: bool = False,
    ) -> None:
        super().__init__(seed, inspects)
        self.planted = planted or ClusterBugs()
        self.cruelty = ClusterCruelty.draw(self.chance, is_terrible=is_terrible)
        self.database = Database(self.virtual, self.chance, self.cruelty.faults)
        self.log_checker = LogChecker(self.database, is_blind=not inspects)
        self.nodes = [
            Node(self, f"node-{number}", self.chance.choice(RATES)) for number in range(self.cruelty.nodes)
        ]
        self.say("world", f"seed {seed}: {self.cruelty}")

    @property
    def roughness(self) -> Roughness:
        """See Scene."""
        return self.cruelty

    def wall_lead_ms(self) -> int:
        """See Scene."""
        return max(node.wall_lead_ms() for node in self.nodes)

    # -- who serves

    def current(self) -> Serving | None:
        """See Scene: the owner, if it answers."""
        found = None
        for node in self.nodes:
            serving = node.serving
            if serving is None or node.machine.is_paused or not node.may_write():
                continue
            if serving.life == self.database.primary.durable.row.epoch:
                found = serving
        return found

    def serving_at(self, address: str) -> Serving | None:
        """What a node that relays reaches at an address."""
        for node in self.nodes:
            if node.name == address and not node.machine.is_dead:
                return node.serving
        return None

    def connect(self, client: Client) -> Socket | None:
        """See Scene: any node accepts, and relays to the owner that it knows."""
        node = self.chance.choice(self.nodes)
        serving = node.reach()
        if serving is None:
            return None
        socket = RelayedSocket(self, client, serving, node)
        serving.connect(socket)
        return socket

    # -- bad days

    def _plan_storm(self) -> None:
        cruelty, chance = self.cruelty, self.chance
        happenings: list[tuple[Callable[[], None], int]] = [
            (self._kill, cruelty.kills),
            (self._pause, cruelty.pauses),
            (self._cut_off, cruelty.cuts),
            (self._move, cruelty.moves),
            (self._restart_database, cruelty.restarts),
            (self._fail_over, cruelty.failovers),
            (self._hang, cruelty.hangs),
            (self._terminate, cruelty.terminations),
            (self._lose_standby, cruelty.standby_losses),
            (self.disconnect, cruelty.disconnects),
            (self.slow_down, cruelty.slow_readers),
            (self.step_clock, cruelty.clock_steps),
        ]
        for action, count in happenings:
            for _ in range(count):
                self.at(chance.randrange(cruelty.storm_ms), action)
        worst = [action for action, _ in happenings[:9]]
        for _ in range(cruelty.pairs):
            at = chance.randrange(cruelty.storm_ms)
            for action in chance.sample(worst, 2):
                self.at(at + chance.choice((0, 0, 1, 20, 200)), action)
        self.at(chance.randrange(1_000), self._inspect)

    def _owner_mostly(self) -> Node:
        """A node: more often than not the owner."""
        owners = [node for node in self.nodes if node.serving is not None]
        return self.chance.choice(owners if owners and self.chance.random() < 0.75 else self.nodes)

    def _kill(self) -> None:
        self._owner_mostly().end("it was killed")

    def _pause(self) -> None:
        lease_ms = self.cruelty.lease_ms
        ms = self.chance.choice((lease_ms // 4, lease_ms, lease_ms + lease_ms // 2, 3 * lease_ms))
        self._owner_mostly().pause(ms)

    def _cut_off(self) -> None:
        node = self._owner_mostly()
        ms = self.chance.randrange(1, 3 * self.cruelty.lease_ms)
        self.say(node.name, f"cannot reach the database for {ms} ms")
        node.cut_off_until = self.time + ms

    def _move(self) -> None:
        """An operator asks the owner to give the shard to another node."""
        machine = Machine(self.virtual)
        nodes = SimulatedTable(self.database, machine).nodes()
        for node in self.nodes:
            if node.serving is not None:
                machine.start(partial(_ask_to_move, nodes, node.name), "operator")

    def _restart_database(self) -> None:
        self.say("database", "restarts")
        if self.chance.random() < 0.5:
            self.database.primary.has_standby = False
            self.at(self.time + self.chance.randrange(3_000), self._regain_standby)
        self.database.restart(self.chance.choice((10, 300, 1_500)))

    def _fail_over(self) -> None:
        is_cut_off = self.chance.random() < 0.5
        self.say(
            "database", f"the standby is promoted{', the former primary lives on' if is_cut_off else ''}"
        )
        self.database.fail_over(
            is_cut_off=is_cut_off,
            lingers_ms=self.chance.choice((50, 1_000, 4_000)),
            standby_ms=self.chance.choice((0, 200, 1_500)),
        )

    def _hang(self) -> None:
        """The primary stops answering. Mostly the standby is promoted then, and the former primary never learns of it."""
        chance = self.chance
        is_replaced = chance.random() < 0.75
        ms = chance.choice((400, 4_000, 12_000, None)) if is_replaced else chance.choice((400, 4_000, 8_000))
        self.say("database", f"hangs for {'ever' if ms is None else f'{ms} ms'}")
        server = self.database.primary
        self.database.hang(ms)
        if is_replaced:
            self.at(self.time + chance.choice((0, 300, 2_000)), self._replace, server, ms is None)

    def _replace(self, server: Server, is_for_ever: bool) -> None:
        if server is self.database.primary and (server.is_hung or not is_for_ever):
            self.say("database", "the standby is promoted in place of the one that hangs")
            standby_ms = self.chance.choice((0, 200, 1_500))
            lingers_ms = self.chance.choice((1_000, 20_000, None))
            self.database.fail_over(
                is_cut_off=True, lingers_ms=None if is_for_ever else lingers_ms, standby_ms=standby_ms
            )

    def _terminate(self, tries: int = 40) -> None:
        if not self.database.primary.waiting and tries:
            self.at(self.time + 25, self._terminate, tries - 1)  # it is worst while a commit waits
            return
        self.say("database", "connections are ended")
        self.database.terminate()

    def _lose_standby(self) -> None:
        self.say("database", "the standby goes")
        self.database.lose_standby()
        self.at(self.time + self.chance.choice((50, 600, 3_000)), self._regain_standby)

    def _regain_standby(self) -> None:
        if not self.database.primary.has_standby:
            self.say("database", "the standby is back")
            self.database.regain_standby()

    def _inspect(self) -> None:
        serving = self.current()
        if serving is not None:
            check_counts(serving.broker.namespace)
        if not self.is_calm:
            self.at(self.time + self.chance.choice((50, 400, 2_000)), self._inspect)

    # -- the run

    def run(self, messages: int = 30, consumers: int = 2) -> None:
        """Storm, calm, verdict. Raises PromiseBroken."""
        with virtual_threads():
            try:
                self._live(messages, consumers)
            finally:
                for node in self.nodes:
                    node.machine.kill()

    def _live(self, messages: int, consumers: int) -> None:
        for node in self.nodes:
            self.at(self.chance.randrange(300), node.begin)
        settle_in(self, messages, consumers)
        self._plan_storm()
        for client in self.clients:
            self.at(self.chance.randrange(200), client.connect)
        self.run_until(self.cruelty.storm_ms)
        self._calm_down()
        self.drain()
        self.ledger.check_end()
        self._check_replay()
        self._check_moved_away()

    def _calm_down(self) -> None:
        self.database.calm()
        for node in self.nodes:
            node.cut_off_until = 0
        self.at(self.time + 3_000, self._regain_standby)
        self.clients_calm_down()

    def _check_replay(self) -> None:
        """Killed once more, the next owner knows what this one knew (S3, B1, B5, B9, B17, B19)."""
        self.run_until(self.time + 1_000)
        owner = self._next_owner()
        before = memory_of(owner.broker.namespace)
        owner.node.end("the last kill")
        after = memory_of(self._next_owner().broker.namespace)
        if after != before:
            raise PromiseBroken(f"S3, B9, B17: replaying the log gives {after}, not {before}")

    def _next_owner(self) -> Serving:
        for _ in range(60):
            owner = self.current()
            if owner is not None:
                return owner
            self.run_until(self.time + 500)
        raise PromiseBroken("S3: nobody took the shard in half a minute of calm")

    def _check_moved_away(self) -> None:
        """The namespace is moved to another store while all nodes stand still; when they wake, none serves it here (S3, S4, S6)."""
        lease_ms = self.cruelty.lease_ms
        self.stand_still(5 * lease_ms)
        self.run_until(self.time + 2 * lease_ms)
        machine = Machine(self.virtual)
        lease = SimulatedTable(self.database, machine).lease()
        marked: list[bool] = []
        machine.start(partial(_move_away, lease, marked), "operator")
        self.run_until(self.time + 2 * lease_ms)
        if marked != [True]:
            raise PromiseBroken("S3: the namespace could not be moved away")
        before = self.database.primary.durable.last
        for _ in range(20):
            self.run_until(self.time + lease_ms)
            after = self.database.primary.durable.last
            if self.current() is not None or after != before:
                raise PromiseBroken(f"S3, S6: served after it was moved away: frame {after}, not {before}")

    def stand_still(self, ms: int) -> None:
        """Pause all nodes together, once each one runs: one that is paused already would go on when that pause ends."""
        while any(node.machine.is_dead or node.machine.is_paused for node in self.nodes):
            self.run_until(self.time + 100)
        for node in self.nodes:
            node.pause(ms)


def _move_away(lease: LeaseTable, marked: list[bool]) -> None:
    for _ in range(20):
        with suppress(OutcomeUnknown, SequenceTaken):
            held = lease.acquire("mover", "", 60_000)
            if held is not None:
                marked.append(lease.move_away(held.epoch, "another store"))
                return


def _ask_to_move(nodes: SimulatedNodes, node: str) -> None:
    with suppress(OutcomeUnknown):
        nodes.ask(node, REQUEST_MOVE)
