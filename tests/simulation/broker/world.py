"""A whole broker with failures: ``World(seed)`` owns the clock, the network, the disk and all that is going to happen.

Gateway, engine, commit queue, clock and log are the production ones, unchanged; sockets, disk and time are simulated, and
clients are played by the wire client. The seed first draws how cruel the world is, then what happens in it. After the
storm comes a calm in which everything must finish. The same seed gives the same history in any process.
"""

from __future__ import annotations

import errno
import hashlib
import random
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final

from pairbus.model.access import RIGHTS, ROOT_RULE, AccessRule
from pairbus.storage.log.store import LogStore
from pairbus.storage.memory import MemoryDisk, MemoryStore
from tests.simulation.broker.checkers import Ledger, PromiseBroken, check_counts, memory_of
from tests.simulation.broker.process import PowerLoss, Process, Socket
from tests.simulation.disk import SimulatedDisk

if TYPE_CHECKING:
    from collections.abc import Callable

    from pairbus.storage.ports import Store
    from tests.simulation.broker.changes import Administrator
    from tests.simulation.broker.clients import Client

START: Final = 1_700_000_000_000
NANOSECONDS_PER_MS: Final = 1_000_000
ROOT_KEY: Final = "d29ybGQ="
CALM_MS_MAX: Final = 30 * 60_000
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
class Cruelty:
    """How bad the days are; drawn first of all."""

    storm_ms: int
    delay_ms: int
    splits: float
    sync_ms: int
    crashes: int
    power_losses: int
    failed_syncs: int
    disconnects: int
    slow_readers: int
    clock_steps: int
    mischief: float
    """How often a consumer does something other than complete."""
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


class World:
    """One seed's history.

    Args:
        seed: Draws everything.
        bugs: Planted ones.
        inspects: Whether the engine's decisions are checked beside what clients see.
    """

    def __init__(self, seed: int, *, bugs: Bugs | None = None, inspects: bool = True) -> None:
        self.seed = seed
        self.bugs = bugs or Bugs()
        self.inspects = inspects
        self.chance = random.Random(seed)
        self.cruelty = Cruelty.draw(self.chance)
        self.time = 0
        """Milliseconds of real time since the world began."""
        self.wall_offset_ms = 0
        self.broker_now_max = 0
        self.is_calm = False
        self.ledger = Ledger()
        self.decisions: dict[tuple[int, int], int] = {}
        self.clients: list[Client] = []
        self.administrator: Administrator | None = None
        self.process: Process | None = None
        self.lives = 0
        self.restated = 0
        self.history: list[str] = []
        self._events: list[tuple[int, int, Callable[..., None], tuple[object, ...]]] = []
        self._event_count = 0
        self._emissions = 0
        self._disk = SimulatedDisk()
        self._memory_disk = MemoryDisk()
        self._crashed_disk: SimulatedDisk | None = None
        self.say("world", f"seed {seed}: {self.cruelty}")

    # -- time and chance

    def wall_ns(self) -> int:
        """What the machine's clock says; somebody may set it."""
        return (START + self.time + self.wall_offset_ms) * NANOSECONDS_PER_MS

    def monotonic_ns(self) -> int:
        """Real time."""
        return self.time * NANOSECONDS_PER_MS

    def delay(self) -> int:
        """How long the network takes this time."""
        return self.chance.randrange(self.cruelty.delay_ms + 1)

    def at(self, time: int, action: Callable[..., None], *arguments: object) -> None:
        """Have something happen."""
        self._event_count += 1
        heappush(self._events, (max(time, self.time), self._event_count, action, arguments))

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
            (self._disconnect, cruelty.disconnects),
            (self._slow_down, cruelty.slow_readers),
            (self._step_clock, cruelty.clock_steps),
        ):
            for _ in range(count):
                self.at(chance.randrange(cruelty.storm_ms), action)
        self.at(chance.randrange(1_000), self._housekeep)

    def _disconnect(self) -> None:
        sockets = [client.socket for client in self.clients if client.socket is not None]
        if sockets:
            self.chance.choice(sockets).cut("the network broke")

    def _slow_down(self) -> None:
        sockets = [client.socket for client in self.clients if client.socket is not None]
        if sockets:
            socket = self.chance.choice(sockets)
            socket.reads = False
            self.say(socket.client.name, "stops reading")
            self.at(self.time + self.chance.randrange(8_000), self._speed_up, socket)

    def _speed_up(self, socket: Socket) -> None:
        socket.reads = True
        socket.read()

    def _step_clock(self) -> None:
        step = self.chance.choice((-30_000, -2_000, -1, 500, 9_000, 40_000))
        self.wall_offset_ms += step
        self.say("world", f"the clock is set by {step} ms")

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
        self._run_until(self.cruelty.storm_ms)
        self._calm_down()
        self._drain()
        self.ledger.check_end()
        self._check_replay()

    def _run_until(self, time: int) -> None:
        while self._events and self._events[0][0] <= time:
            at, number, action, arguments = heappop(self._events)
            self.time = at
            if number > EVENTS_MAX:
                raise PromiseBroken("the world does not come to rest")
            action(*arguments)
        self.time = max(self.time, time)

    def _calm_down(self) -> None:
        self.is_calm = True
        self._disk.watch = None
        self._disk._faults.clear()
        self.say("world", "calm")
        if self.process is None and not any(action == self.begin_life for _, _, action, _ in self._events):
            self.begin_life()
        for client in self.clients:
            if client.socket is not None:
                self._speed_up(client.socket)
            client.calm_down()
        if self.administrator is not None:
            self.administrator.calm_down()

    def _drain(self) -> None:
        """Everything finishes, without anything but time skip_list (B31, B37, B45)."""
        until = self.time + CALM_MS_MAX
        while self.time < until:
            self._run_until(self.time + 1_000)
            if self._is_drained():
                return
        if not self._leftovers():
            self.ledger.check_end()
        raise PromiseBroken(f"B31, B37, B45: not finished after the calm: {self._leftovers()}")

    def _is_drained(self) -> bool:
        if self.process is None or not all(client.is_finished for client in self.clients):
            return False
        if self.administrator is not None and not self.administrator.is_finished:
            return False
        return not self._leftovers() and not self.ledger.unfinished()

    def _leftovers(self) -> list[str]:
        if self.process is None:
            return ["the broker is down"]
        return [
            f"{queue.path} holds {sorted(queue.messages)}"
            for queue in self.process.broker.namespace.all_queues()
            if queue.messages
        ]

    def _check_replay(self) -> None:
        """Killed once more, the next life knows what this one knew (B1, B5, B9, B17, B19)."""
        assert self.process is not None, "it has just been drained"
        self._run_until(self.time + 1_000)
        check_counts(self.process.broker.namespace)
        before = memory_of(self.process.broker.namespace)
        self.end_life("the last kill", loses_power=False)
        self.begin_life()
        after = memory_of(self.process.broker.namespace)
        if after != before:
            raise PromiseBroken(f"B9, B17: replaying the records gives {after}, not {before}")
