"""What happens to a cell: normal load, a node dies, the database fails over, one namespace sends far too much."""

from __future__ import annotations

from dataclasses import dataclass, replace

from bench.cells.cell import Cell, Samples, Shape, Shard
from bench.cells.costs import Costs

WARM_UP_S = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Shards of a cell and what each of them gets."""

    shards: int
    messages_per_s: float
    connections: int = 0
    queued: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Normal:
    """A cell under a steady load."""

    load: Load
    answered_per_s: float
    commits_per_s: float
    ack_ms_p50: float
    ack_ms_p99: float
    database_processors: float
    node_processors: float
    """Of all nodes."""
    disk_busy: float
    standby_busy: float
    wal_mb_per_s: float
    silent_shards: int
    events: int


def build(costs: Costs, shape: Shape, load: Load, seed: int = 1) -> Cell:
    cell = Cell(costs, shape, seed)
    for _ in range(load.shards):
        cell.add(load.messages_per_s, connections=load.connections, queued=load.queued)
    return cell


def normal(costs: Costs, shape: Shape, load: Load, seconds: float = 1.0, seed: int = 1) -> Normal:
    cell = build(costs, shape, load, seed)
    cell.run(WARM_UP_S)
    for shard in cell.shards:
        shard.acks.values.clear()
    nodes = {id(node.processors): node.processors for node in cell.nodes}.values()
    before = (
        sum(shard.answered for shard in cell.shards),
        cell.database.commits,
        cell.database.processors.busy_s,
        sum(node.busy_s for node in nodes),
        cell.database.disk.busy_s,
        cell.database.standby.busy_s if cell.database.standby else 0.0,
        cell.database.disk.written_bytes,
    )
    cell.run(seconds)
    after = (
        sum(shard.answered for shard in cell.shards),
        cell.database.commits,
        cell.database.processors.busy_s,
        sum(node.busy_s for node in nodes),
        cell.database.disk.busy_s,
        cell.database.standby.busy_s if cell.database.standby else 0.0,
        cell.database.disk.written_bytes,
    )
    answered, commits, database, node, disk, standby, wal = (
        (new - old) / seconds for new, old in zip(after, before, strict=True)
    )
    acks = together(cell.shards)
    return Normal(
        load=load,
        answered_per_s=answered,
        commits_per_s=commits,
        ack_ms_p50=acks.percentile(0.5) * 1e3,
        ack_ms_p99=acks.percentile(0.99) * 1e3,
        database_processors=database,
        node_processors=node,
        disk_busy=disk,
        standby_busy=standby,
        wal_mb_per_s=wal / 1e6,
        silent_shards=sum(shard.silent_s > 0 for shard in cell.shards),
        events=cell.simulation.events,
    )


def together(shards: list[Shard]) -> Samples:
    return Samples([value for shard in shards for value in shard.acks.values])


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """A node died."""

    shards_lost: int
    silence_s_first: float
    silence_s_last: float
    others_p99_ms_before: float
    others_p99_ms_during: float
    """Of shards on the surviving nodes, from the kill to the last takeover."""


def node_dies(costs: Costs, shape: Shape, load: Load, seed: int = 1) -> Death:
    cell = build(costs, shape, load, seed)
    # Two renewals first, so that leases end spread over a renewal's time, as they do in life.
    cell.run(2 * shape.lease_s / shape.renewals_per_lease)
    victim = cell.nodes[0]
    others = [shard for shard in cell.shards if shard.node is not victim]
    before = together(others).percentile(0.99)
    for shard in others:
        shard.acks.values.clear()
    at = cell.simulation.now
    lost = cell.kill(victim)
    longest = shape.lease_s + shape.look_s + 60
    while (
        any(shard.returned_at < 0 or shard.returned_at > 1e12 for shard in lost)
        and cell.simulation.now < at + longest
    ):
        cell.run(0.25)
    silences = sorted(shard.returned_at - at for shard in lost)
    return Death(
        shards_lost=len(lost),
        silence_s_first=silences[0],
        silence_s_last=silences[-1],
        others_p99_ms_before=before * 1e3,
        others_p99_ms_during=together(others).percentile(0.99) * 1e3,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Failover:
    """The database was away."""

    away_s: float
    longest_ack_s: float
    leases_ended: int
    """Shards whose lease was over when the database came back: any node may take them then, their owner included."""
    caught_up_s: float
    """From the database's return until acknowledgements are as quick as before."""


def database_fails_over(costs: Costs, shape: Shape, load: Load, away_s: float, seed: int = 1) -> Failover:
    cell = build(costs, shape, load, seed)
    cell.run(WARM_UP_S + 2 * shape.lease_s / shape.renewals_per_lease)
    usual = together(cell.shards).percentile(0.99)
    clear(cell.shards)
    cell.fail_database(away_s)
    cell.run(away_s)
    ended = sum(shard.lease_seen_until <= cell.simulation.now for shard in cell.shards)
    step, waited = 0.1, 0.0
    longest = 0.0
    while waited < 30:
        cell.run(step)
        waited += step
        acks = together(cell.shards)
        longest = max([longest, *(seconds for seconds, _ in acks.values)])
        if acks.values and acks.percentile(0.99) <= 1.5 * usual:
            break
        clear(cell.shards)
    return Failover(
        away_s=away_s,
        longest_ack_s=longest,
        leases_ended=ended,
        caught_up_s=waited,
    )


def clear(shards: list[Shard]) -> None:
    for shard in shards:
        shard.acks.values.clear()


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """One shard gets as much as its clients can send."""

    noisy_per_s: float
    same_node_p99_ms: float
    other_node_p99_ms: float
    quiet_p99_ms: float
    """The same cell without the noise."""


def noisy_neighbour(
    costs: Costs, shape: Shape, load: Load, window: int, seconds: float = 1.0, seed: int = 1
) -> Noise:
    quiet = normal(costs, shape, load, seconds, seed)
    cell = build(costs, shape, replace(load, shards=load.shards - 1), seed)
    noisy = cell.add(0.0, window=window)
    cell.run(WARM_UP_S)
    clear(cell.shards)
    answered = noisy.answered
    cell.run(seconds)
    near = [shard for shard in cell.shards if shard is not noisy and shard.node is noisy.node]
    far = [shard for shard in cell.shards if shard.node is not noisy.node]
    return Noise(
        noisy_per_s=(noisy.answered - answered) / seconds,
        same_node_p99_ms=together(near).percentile(0.99) * 1e3,
        other_node_p99_ms=together(far).percentile(0.99) * 1e3,
        quiet_p99_ms=quiet.ack_ms_p99,
    )
