"""One cell, simulated: broker nodes that own shards, and the PostgreSQL primary and standby behind them.

A shard is one thread of control, as in the broker. It applies what has arrived, and while one commit is under way it fills the next. A
message takes part in two commits: the one that stores it, and later the one that removes it. Commits of all shards queue for the
database's processors and then share its flushes. Not simulated: single bytes on the wire, single clients, compaction.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

from bench.cells.costs import Costs, frame_bytes
from bench.cells.events import Action, GroupFlush, Processors, Simulation
from pairbus.server.cluster.ownership.lease import LOOK_MS_MAX, MARGIN_PART, RENEWALS_PER_LEASE

TURN_MESSAGES_MAX = 256
"""Messages that a shard applies in one turn of its loop, at most."""
TURN_PAUSE_S = 0.001
"""While a commit is under way, turns of a loop are at least so far apart. The broker's are not; it saves events and changes no figure much."""
REPLAY_SLICE_MESSAGES = 500
OPEN_SLICE = 100
"""Connections opened in one turn of the loop."""
LOG_RECORDS_PER_LIVE_MESSAGE = 2.0
"""The log of a shard is compacted when half of it is garbage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What a cell is made of, and its settings."""

    nodes: int = 4
    node_processors: int = 8
    database_processors: int = 16
    has_standby: bool = True
    is_one_machine: bool = False
    """Brokers, database and load generator share the first node's processors: the check on one machine."""
    round_trip_s: float = 0.0002
    """Between a node and the database."""
    client_round_trip_s: float = 0.001
    client_s: float = 0.0
    """The clients' processor time per message; it counts on one machine only."""
    lease_s: float = 10.0
    renewals_per_lease: float = RENEWALS_PER_LEASE
    margin_part: float = 1 / MARGIN_PART
    """An owner falls silent this part of the lease before its lease ends."""
    look_s: float = LOOK_MS_MAX / 1000
    """How often a node looks for leases that have ended."""
    renews_together: bool = False
    """A node renews all its leases in one statement."""
    pause_s: float = 0.0
    """The least time from one commit of a shard to its next: fewer, larger commits."""
    frame_bytes_max: int = 32 << 20
    """The largest frame: what the broker lets wait for its disk."""
    is_relayed: bool = True
    """Clients reach any node of the cell, so all but 1/nodes of the messages pass a relay."""

    @property
    def margin_s(self) -> float:
        return self.lease_s * self.margin_part


@dataclass(slots=True)
class Samples:
    """Latencies with weights."""

    values: list[tuple[float, int]] = field(default_factory=list)

    def add(self, seconds: float, weight: int) -> None:
        self.values.append((seconds, weight))

    def percentile(self, share: float) -> float:
        values = sorted(self.values)
        left = share * sum(weight for _, weight in values)
        for seconds, weight in values:
            left -= weight
            if left <= 0:
                return seconds
        return values[-1][0] if values else math.nan


class Node:
    """A broker machine."""

    __slots__ = ("is_alive", "processors", "shards")

    def __init__(self, processors: Processors) -> None:
        self.processors = processors
        self.shards: list[Shard] = []
        self.is_alive = True


class Shard:
    """One log, one lease, one loop."""

    def __init__(
        self, cell: Cell, rate: float, *, window: int = 0, connections: int = 0, queued: float = 0.0
    ) -> None:
        self._cell = cell
        self.rate = rate
        """Messages per second that arrive whether or not earlier ones were answered. 0 with ``window``."""
        self.window = window
        """Messages that clients keep unanswered: a closed loop."""
        self.connections = connections
        self.queued = queued
        self.node: Node | None = None
        self.is_serving = True
        self._is_busy = False
        self._is_committing = False
        self._is_wake_due = False
        self._next_arrival = cell.random.expovariate(rate) if rate else math.inf
        self._sends = window
        self._sent_since = 0.0
        self._settles = 0
        self._applied: list[tuple[int, float, float]] = []
        self._applied_settles = 0
        self._applied_bytes = 0
        self._commit_begun = -1.0
        self._turn_begun = -1.0
        self._held: list[Action] = []
        self.lease_until = cell.shape.lease_s
        self.lease_seen_until = cell.shape.lease_s
        self.answered = 0
        self.commits = 0
        self.acks = Samples()
        self.silent_s = 0.0
        self._silent_since = -1.0
        self.returned_at = -1.0

    # --- the loop ---

    def wake(self) -> None:
        """Do the next thing, if the loop is free."""
        if self._is_busy or not self.is_serving:
            return
        cell = self._cell
        if not self._is_committing and self._applied_bytes and self._may_commit():
            self._commit()
            return
        if self._applied_bytes >= cell.shape.frame_bytes_max:
            return  # back-pressure: nothing is read until the commit under way has ended
        pause = self._turn_begun + TURN_PAUSE_S - cell.simulation.now
        if self._is_committing and pause > 1e-9:
            if not self._is_wake_due:
                self._wake_after(pause)
            return
        count, since, until = self._arrived()
        settles = min(self._settles, TURN_MESSAGES_MAX)
        if count or settles:
            self._settles -= settles
            self._turn_begun = cell.simulation.now
            costs = cell.costs
            seconds = costs.message_s * (count * costs.send_share + settles * (1 - costs.send_share))
            self._run(seconds, lambda: self._apply(count, since, until, settles))
        elif self.rate and not self._is_wake_due:
            self._wake_after(max(0.0, self._next_arrival - cell.simulation.now))

    def _arrived(self) -> tuple[int, float, float]:
        """How many sends are taken now, and when the first and the last of them came."""
        now = self._cell.simulation.now
        if not self.rate:
            count, self._sends = min(self._sends, TURN_MESSAGES_MAX), max(0, self._sends - TURN_MESSAGES_MAX)
            return count, self._sent_since, self._sent_since
        first = self._next_arrival
        if now < first:
            return 0, now, now
        until = min(now, first + TURN_MESSAGES_MAX / self.rate)
        # Arrivals have no memory: from the first one on they are as many as the time gives, and the next is as far away as ever.
        draw = self._cell.random
        self._next_arrival = until + draw.expovariate(self.rate)
        return 1 + poisson(draw, self.rate * (until - first)), first, until

    def _wake_after(self, seconds: float) -> None:
        def due() -> None:
            self._is_wake_due = False
            self.wake()

        self._is_wake_due = True
        self._cell.simulation.after(seconds, due)

    def _run(self, seconds: float, then: Action) -> None:
        def done() -> None:
            self._is_busy = False
            then()
            self.wake()

        self._is_busy = True
        assert self.node is not None
        self.node.processors.run(seconds, done)

    def _apply(self, count: int, since: float, until: float, settles: int) -> None:
        if count:
            self._applied.append((count, since, until))
        self._applied_settles += settles
        self._applied_bytes += frame_bytes(count, settles)

    # --- commits ---

    def _may_commit(self) -> bool:
        pause = self._cell.shape.pause_s
        if not pause or self._applied_bytes >= self._cell.shape.frame_bytes_max:
            return True
        left = self._commit_begun + pause - self._cell.simulation.now
        if left <= 1e-9:
            return True
        if not self._is_wake_due:
            self._wake_after(left)
        return False

    def _commit(self) -> None:
        stored, settled, size = self._applied, self._applied_settles, self._applied_bytes
        self._applied, self._applied_settles, self._applied_bytes = [], 0, 0
        self._is_committing = True
        self._commit_begun = self._cell.simulation.now
        self.commits += 1
        self._cell.relay(self, sum(count for count, _, _ in stored))
        costs = self._cell.costs
        work = costs.commit_s + costs.insert_client.at(size)
        self._run(work, lambda: self._cell.database.commit(size, lambda: self._committed(stored, settled)))

    def _committed(self, stored: list[tuple[int, float, float]], settled: int) -> None:
        if not self.is_serving:
            return
        self._is_committing = False
        self.within_lease(lambda: self._answer(stored, settled))
        self.wake()

    def within_lease(self, action: Action) -> None:
        """Do it now, or when the lease has been renewed: nothing is answered outside the lease."""
        now = self._cell.simulation.now
        if now <= self.lease_until - self._cell.shape.margin_s:
            action()
            return
        if self._silent_since < 0:
            self._silent_since = now
        self._held.append(action)

    def renewed(self, sent_at: float) -> None:
        shape = self._cell.shape
        self.lease_until = sent_at + shape.lease_s
        self.lease_seen_until = self._cell.simulation.now + shape.lease_s
        if self._held and self._cell.simulation.now <= self.lease_until - shape.margin_s:
            self.silent_s += self._cell.simulation.now - self._silent_since
            self._silent_since = -1.0
            held, self._held = self._held, []
            for action in held:
                action()

    def _answer(self, stored: list[tuple[int, float, float]], settled: int) -> None:
        cell = self._cell
        now, total = cell.simulation.now, 0
        for count, since, until in stored:
            came = since + (until - since) * cell.random.random()
            self.acks.add(now - came + cell.shape.client_round_trip_s, count)
            total += count
        self.answered += settled
        if self.returned_at < 0 and total:
            self.returned_at = now
        if total and self.window:
            cell.clients(total, lambda: self._send_again(total))
        if total:
            cell.clients(total, lambda: self._settle(total))

    def _send_again(self, count: int) -> None:
        """In a closed loop, senders send as many as were answered."""
        self._sends += count
        self._sent_since = self._cell.simulation.now
        self.wake()

    def _settle(self, count: int) -> None:
        """Receivers settle what was delivered to them."""
        self._settles += count
        self.wake()

    # --- death and return ---

    def stop(self) -> None:
        """The process is gone, and with it everything that was not committed. Clients will send it again."""
        self.is_serving = False
        self.returned_at = math.inf
        self._is_committing = False
        self._sends, self._settles = self.window, 0
        self._applied, self._applied_settles, self._applied_bytes = [], 0, 0
        self._held.clear()

    def start(self, node: Node) -> None:
        """Serve from this node."""
        self.node = node
        node.shards.append(self)
        self._is_busy = False
        self.is_serving = True
        self.returned_at = -1.0
        self._sent_since = self._cell.simulation.now
        self.wake()


class Database:
    """A primary and its synchronous standby."""

    def __init__(
        self,
        simulation: Simulation,
        costs: Costs,
        shape: Shape,
        processors: Processors,
        standby_processors: Processors,
    ) -> None:
        self._simulation = simulation
        self._costs = costs
        self._shape = shape
        self.processors = processors
        self.standby_processors = standby_processors
        self.disk = GroupFlush(simulation, costs.flush)
        self.standby = GroupFlush(simulation, costs.standby_flush) if shape.has_standby else None
        self.commits = 0

    def commit(self, size: int, done: Action) -> None:
        """Insert one frame and let ``done`` be called when the answer has reached the broker."""
        self.commits += 1
        if self.standby is not None:
            # Beside the wait for its disk, which was measured with this work inside.
            self.standby_processors.run(self._costs.standby_insert.at(size), _nothing)
        self.statement(self._costs.insert.at(size), self._costs.wal.at(size), done)

    def statement(self, seconds: float, wal_bytes: float, done: Action) -> None:
        half = self._shape.round_trip_s / 2
        after, standby = self._simulation.after, self.standby

        def answer() -> None:
            after(half, done)

        def flushed() -> None:
            if standby is None:
                answer()
            else:
                standby.write(wal_bytes, answer)

        after(half, lambda: self.processors.run(seconds, lambda: self.disk.write(wal_bytes, flushed)))


class Cell:
    """The cell: build it, ``run``, read the figures."""

    def __init__(self, costs: Costs, shape: Shape, seed: int = 1) -> None:
        self.costs = costs
        self.shape = shape
        self.random = random.Random(seed)
        self.simulation = Simulation()
        first = Processors(self.simulation, shape.node_processors)
        others = [
            first if shape.is_one_machine else Processors(self.simulation, shape.node_processors)
            for _ in range(shape.nodes - 1)
        ]
        self.nodes = [Node(processors) for processors in (first, *others)]
        database = first if shape.is_one_machine else Processors(self.simulation, shape.database_processors)
        standby = first if shape.is_one_machine else Processors(self.simulation, shape.database_processors)
        self.database = Database(self.simulation, costs, shape, database, standby)
        self.shards: list[Shard] = []
        self.renewals = 0

    def add(self, rate: float = 0.0, *, window: int = 0, connections: int = 0, queued: float = 0.0) -> Shard:
        """A shard on the node with the least load."""
        shard = Shard(self, rate, window=window, connections=connections, queued=queued)
        self.shards.append(shard)
        self._place(shard)
        return shard

    def _place(self, shard: Shard) -> None:
        node = min(
            (node for node in self.nodes if node.is_alive),
            key=lambda node: (sum(s.rate for s in node.shards), len(node.shards)),
        )
        shard.start(node)

    def run(self, seconds: float) -> None:
        if self.simulation.now == 0.0:
            self._start_renewals()
        self.simulation.run(self.simulation.now + seconds)

    def relay(self, shard: Shard, count: int) -> None:
        """Charge the relaying nodes for these messages."""
        others = [node for node in self.nodes if node is not shard.node and node.is_alive]
        if self.shape.is_relayed and others:
            share = len(others) / (len(others) + 1)
            self.random.choice(others).processors.run(self.costs.relay_s * count * share, _nothing)

    def clients(self, count: int, react: Action) -> None:
        """Let senders, or receivers, react to an answer. Each is half of the clients' work."""
        shape = self.shape
        if shape.is_one_machine and shape.client_s:
            self.nodes[0].processors.run(
                shape.client_s / 2 * count, lambda: self.simulation.after(shape.client_round_trip_s, react)
            )
        else:
            self.simulation.after(shape.client_round_trip_s, react)

    # --- leases ---

    def _start_renewals(self) -> None:
        period = self.shape.lease_s / self.shape.renewals_per_lease
        for each in self.nodes if self.shape.renews_together else self.shards:
            self.simulation.after(period * self.random.random(), lambda each=each: self._renew(each))  # type: ignore[misc]

    def _renew(self, each: Node | Shard) -> None:
        costs, sent_at = self.costs, self.simulation.now
        shards = list(each.shards) if isinstance(each, Node) else [each]
        node = each if isinstance(each, Node) else each.node
        if isinstance(each, Node) and not each.is_alive:
            return
        self.simulation.after(self.shape.lease_s / self.shape.renewals_per_lease, lambda: self._renew(each))
        if node is None or not shards or not (isinstance(each, Node) or each.is_serving):
            return
        count = len(shards)
        self.renewals += count
        single = costs.renew_s, costs.renew_wal_bytes
        seconds, wal = (
            single if count == 1 else (costs.renew_many_s * count, costs.renew_many_wal_bytes * count)
        )

        def renewed() -> None:
            for shard in shards:
                if shard.is_serving:
                    shard.renewed(sent_at)

        node.processors.run(costs.insert_client.fixed, lambda: self.database.statement(seconds, wal, renewed))

    def fail_database(self, seconds: float) -> None:
        """The primary dies; its standby answers so many seconds later."""
        self.database.processors.stop()
        self.simulation.after(seconds, self.database.processors.resume)

    def kill(self, node: Node) -> list[Shard]:
        """The node dies. Its shards are taken over when their leases have ended. Returns them."""
        node.is_alive = False
        lost, node.shards = node.shards, []
        for shard in lost:
            shard.stop()
            shard.node = None
            left = (
                max(0.0, shard.lease_seen_until - self.simulation.now)
                + self.random.random() * self.shape.look_s
            )
            self.simulation.after(left, lambda shard=shard: self._take_over(shard))  # type: ignore[misc]
        return lost

    def _take_over(self, shard: Shard) -> None:
        # Placed now, so that the shards that come next see the load; it serves once it has replayed.
        alive = [node for node in self.nodes if node.is_alive]
        node = min(alive, key=lambda node: (sum(s.rate for s in node.shards), len(node.shards)))
        node.shards.append(shard)
        costs = self.costs
        records = shard.queued * LOG_RECORDS_PER_LIVE_MESSAGE
        slices = math.ceil(records / REPLAY_SLICE_MESSAGES)
        openings = math.ceil(shard.connections / OPEN_SLICE)

        def serve() -> None:
            node.shards.remove(shard)
            shard.lease_until = shard.lease_seen_until = self.simulation.now + self.shape.lease_s
            shard.start(node)

        def opened(left: int) -> None:
            if left == 0:
                serve()
            else:
                node.processors.run(costs.open_s * OPEN_SLICE, lambda: opened(left - 1))

        def replayed(left: int) -> None:
            if left == 0:
                opened(openings)
                return
            read = costs.heads_s * REPLAY_SLICE_MESSAGES
            work = costs.replay_s * REPLAY_SLICE_MESSAGES
            self.database.processors.run(read, lambda: node.processors.run(work, lambda: replayed(left - 1)))

        self.database.statement(costs.acquire_s, costs.acquire_wal_bytes, lambda: replayed(slices))


def _nothing() -> None:
    return


def poisson(source: random.Random, mean: float) -> int:
    """How many of many rare events happen; a rounded normal draw when it is many."""
    if mean <= 0:
        return 0
    if mean > 30:
        return max(0, round(source.gauss(mean, math.sqrt(mean))))
    limit, product, count = math.exp(-mean), source.random(), 0
    while product > limit:
        product *= source.random()
        count += 1
    return count
