"""A whole broker with failures: ``World(seed)`` owns the clock, the network, the disk and all that is going to happen.

Gateway, engine, commit queue, clock and log are the production ones, unchanged; sockets, disk and time are simulated, and
clients are played by the wire client. The seed first draws how cruel the world is, then what happens in it. After the
storm comes a calm in which everything must finish. The same seed gives the same history in any process.
"""

from __future__ import annotations

import errno
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pairbus.model.access import RIGHTS, ROOT_RULE, AccessRule
from pairbus.storage.log.store import LogStore
from pairbus.storage.memory import MemoryDisk, MemoryStore
from tests.simulation.broker.checkers import PromiseBroken, check_counts, memory_of
from tests.simulation.broker.process import PowerLoss, Process, Socket
from tests.simulation.broker.scene import ROOT_KEY, Bugs, Roughness, Scene
from tests.simulation.disk import SimulatedDisk

if TYPE_CHECKING:
    from pairbus.storage.ports import Store
    from tests.simulation.broker.clients import Client


@dataclass(frozen=True, kw_only=True)
class Cruelty(Roughness):
    """How bad the days are; drawn first of all."""

    sync_ms: int
    crashes: int
    power_losses: int
    failed_syncs: int
    segment_bytes: int
    """0: the store in memory."""

    @staticmethod
    def draw(chance: random.Random) -> Cruelty:
        """A fair share of gentle worlds, and of terrible ones."""
        level = chance.choice((0, 1, 1, 2, 2, 3))
        return Cruelty(
            storm_ms=chance.choice((8_000, 20_000, 40_000)),
            delay_ms=chance.choice((1, 5, 40, 300)),
            splits=chance.choice((0.0, 0.1, 0.5)),
            sync_ms=chance.choice((0, 2, 10, 80, 400)),
            crashes=chance.randrange(level + 1),
            power_losses=chance.randrange(level + 1),
            failed_syncs=chance.choice((0, 0, 0, level and 1)),
            disconnects=chance.randrange(3 * level + 1),
            slow_readers=chance.randrange(2 * level + 1),
            clock_steps=chance.randrange(level + 1),
            mischief=chance.choice((0.0, 0.1, 0.4)),
            segment_bytes=chance.choice((0, 4_096, 4_096, 8_192)),
        )


class World(Scene):
    """One seed's history.

    Args:
        seed: Draws everything.
        bugs: Planted ones.
        inspects: Whether the engine's decisions are checked beside what clients see.
    """

    def __init__(self, seed: int, *, bugs: Bugs | None = None, inspects: bool = True) -> None:
        super().__init__(seed, inspects, bugs)
        self.cruelty = Cruelty.draw(self.chance)
        self.process: Process | None = None
        self.lives = 0
        self._disk = SimulatedDisk()
        self._memory_disk = MemoryDisk()
        self._crashed_disk: SimulatedDisk | None = None
        self.say("world", f"seed {seed}: {self.cruelty}")

    @property
    def roughness(self) -> Roughness:
        """See Scene."""
        return self.cruelty

    def current(self) -> Process | None:
        """See Scene."""
        return self.process

    def connect(self, client: Client) -> Socket | None:
        """See Scene."""
        if self.process is None:
            return None
        socket = Socket(self, client, self.process)
        self.process.connect(socket)
        return socket

    # -- the broker's lives

    def begin_life(self) -> None:
        """Start the broker on what is on the disk."""
        process = Process(self, self._open_store(), self.lives)
        self.lives += 1
        self.process = process
        if self.lives == 1:
            now = process.clock()
            root = AccessRule(name=ROOT_RULE, rights=RIGHTS, primary_key=ROOT_KEY, secondary_key="-")
            process.broker.namespace.set_access_rules((root,), now)
        check_counts(process.broker.namespace)
        if self.administrator is not None:
            self.administrator.check(process.broker.namespace)
        process.ask_turn()
        self.say("broker", f"begins life {self.lives}")

    def _open_store(self) -> Store:
        if not self.cruelty.segment_bytes:
            return MemoryStore(self._memory_disk)
        return LogStore.open(
            "simulated",
            segment_bytes=self.cruelty.segment_bytes,
            cache_bytes=16_384,
            reserve_bytes=0,
            file_system=self._disk,
            make_marker=self._marker,
            is_background=False,
        )

    def _marker(self) -> bytes:
        return self.chance.randbytes(8)

    def end_life(self, why: str, *, loses_power: bool) -> None:
        """The process is gone, and begins again after a while."""
        process = self.process
        if process is None:
            return
        self.say("broker", f"ends: {why}")
        process.is_dead = True
        self.process = None
        if self.cruelty.segment_bytes:
            if self._crashed_disk is not None:
                self._disk, self._crashed_disk = self._crashed_disk, None
            else:
                self._disk = self._disk.crashed(self.chance) if loses_power else self._disk.killed()
        for socket in list(process.sockets):
            socket.is_known = False
            socket.cut("the broker died")
        if self.chance.random() < 0.3:
            self.set_clock(-self.chance.choice((2_000, 30_000)))  # before the next life asks for the time
        self.at(self.time + self.chance.randrange(2_000), self.begin_life)

    def lose_power(self) -> None:
        """The power goes now."""
        self.end_life("the power went", loses_power=True)

    def _lose_power_in_commit(self) -> None:
        """Lose it at some step of the next commit."""
        if self.process is None or not self.cruelty.segment_bytes:
            self.lose_power()
            return
        steps = self.chance.randrange(1, 4)

        def watch(_: str) -> None:
            nonlocal steps
            steps -= 1
            if steps == 0:
                self._disk.watch = None
                self._crashed_disk = self._disk.crashed(self.chance)
                raise PowerLoss

        self._disk.watch = watch

    def _kill(self) -> None:
        self.end_life("it was killed", loses_power=False)

    def _fail_sync(self) -> None:
        if self.process is not None and self.cruelty.segment_bytes:
            self._disk.fail("sync", errno.EIO)

    # -- failures

    def _plan_storm(self) -> None:
        cruelty, chance = self.cruelty, self.chance
        for action, count in (
            (self._kill, cruelty.crashes),
            (self.lose_power, (cruelty.power_losses + 1) // 2),
            (self._lose_power_in_commit, cruelty.power_losses // 2),
            (self._fail_sync, cruelty.failed_syncs),
            (self.disconnect, cruelty.disconnects),
            (self.slow_down, cruelty.slow_readers),
            (self.step_clock, cruelty.clock_steps),
        ):
            for _ in range(count):
                self.at(chance.randrange(cruelty.storm_ms), action)
        self.at(chance.randrange(1_000), self._housekeep)

    def _housekeep(self) -> None:
        if self.process is not None:
            self.process.housekeep(self.chance.choice((1, 10, 200)))
            check_counts(self.process.broker.namespace)
        if not self.is_calm:
            self.at(self.time + self.chance.choice((50, 400, 2_000)), self._housekeep)

    # -- the run

    def run(self, messages: int = 30, consumers: int = 2) -> None:
        """Storm, calm, verdict. Raises PromiseBroken."""
        from tests.simulation.broker.places import ENTITIES, settle_in

        self.begin_life()
        assert self.process is not None, "it has just begun"
        for kind, path, settings in ENTITIES:
            self.process.broker.namespace.create(kind, path, settings, self.process.clock())
        self.process.commit_now()
        settle_in(self, messages, consumers)
        self._plan_storm()
        for client in self.clients:
            self.at(self.chance.randrange(200), client.connect)
        self.run_until(self.cruelty.storm_ms)
        self._calm_down()
        self.drain()
        self.ledger.check_end()
        self._check_replay()

    def _calm_down(self) -> None:
        self._disk.watch = None
        self._disk._faults.clear()
        if self.process is None and not self.virtual.expects(self.begin_life):
            self.begin_life()
        self.clients_calm_down()

    def _check_replay(self) -> None:
        """Killed once more, the next life knows what this one knew (B1, B5, B9, B17, B19)."""
        assert self.process is not None, "it has just been drained"
        self.run_until(self.time + 1_000)
        check_counts(self.process.broker.namespace)
        before = memory_of(self.process.broker.namespace)
        self.end_life("the last kill", loses_power=False)
        self.begin_life()
        after = memory_of(self.process.broker.namespace)
        if after != before:
            raise PromiseBroken(f"B9, B17: replaying the records gives {after}, not {before}")
