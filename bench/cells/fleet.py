"""The arithmetic of many cells: how much of everything a number of namespaces needs, and which resource a cell runs out of first.

Every resource of a cell has a limit that is meant to be used (half or two thirds of what there is). The number of cells follows from the
resource that needs the most of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from bench.cells.costs import Costs, frame_bytes
from pairbus.server.cluster.ownership.lease import LOOK_MS_MAX, RENEWALS_PER_LEASE
from pairbus.server.cluster.ownership.reporter import REPORT_SECONDS

NAMESPACES = 100_000
MESSAGES_PER_S = 1_000_000.0
CONNECTIONS_PER_NAMESPACE = 10
"""Of clients. An assumption."""
QUEUED_SECONDS = 60.0
"""Messages that wait in queues, as seconds of traffic. An assumption."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """The machines of a cell: assumptions, but for the speed of processors and disk, which are those of the measurements."""

    nodes: int = 4
    node_processors: int = 8
    node_bytes: float = 32e9
    database_processors: int = 16
    database_connections: int = 1000
    """With more, PostgreSQL spends its memory and its locks on connections."""
    network_bytes_per_s: float = 10e9 / 8
    used_share: float = 0.6
    """Of processors, memory, disk and network in normal operation."""
    spare_nodes: int = 1
    """A cell carries its load with so many nodes gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """How namespaces are laid on shards, processes and connections."""

    name: str
    packs: bool = False
    """Small namespaces share a shard, and a large one has several."""
    shard_messages_per_s: float = 2_500.0
    """What a shard is filled to, if namespaces share it."""
    processes_per_node: int = 0
    """0: a process for each shard."""
    standby_processes: int = 1
    """Further processes of each shard that wait to take it over, if each shard has its own."""
    connections_per_process: int = 5
    """To the database: commits, lease, reading, the list of nodes, settings."""
    connections_per_standby: int = 3
    """Lease, the list of nodes, settings."""
    renews_together: bool = False
    pause_s: float = 0.0
    lease_s: float = 10.0
    renewals_per_lease: float = RENEWALS_PER_LEASE
    looks_per_s: float = 1000 / LOOK_MS_MAX
    """How often a process that waits looks at the lease; a node with many shards looks at all of them in one statement."""


AS_BUILT = Design(name="as built: a process for each namespace")
SHARED_PROCESSES = replace(
    AS_BUILT,
    name="many shards in a process",
    processes_per_node=8,
    standby_processes=0,
    connections_per_process=10,
)
TOGETHER = replace(SHARED_PROCESSES, name="+ a node renews its leases together", renews_together=True)
PACKED = replace(TOGETHER, name="+ small namespaces share a shard, large ones have several", packs=True)
PAUSED = replace(PACKED, name="+ 5 ms between two commits of a shard", pause_s=0.005)
DESIGNS = (AS_BUILT, SHARED_PROCESSES, TOGETHER, PACKED, PAUSED)


def zipf(namespaces: int, messages_per_s: float) -> list[float]:
    """Rates of namespaces, largest first: the second has half of the first, the third a third."""
    total = sum(1 / rank for rank in range(1, namespaces + 1))
    return [messages_per_s / total / rank for rank in range(1, namespaces + 1)]


def shard_limit(costs: Costs, used_share: float = 0.7) -> float:
    """Messages a second that one shard's thread can apply while it commits 200 times a second."""
    size = frame_bytes(1, 1)
    commits = 200.0
    fixed = commits * (costs.commit_s + costs.insert_client.fixed)
    return (used_share - fixed) / (costs.message_s + costs.insert_client.each * size)


def shards_of(rates: list[float], design: Design, limit: float) -> list[float]:
    """Rates of shards. A namespace above ``limit`` is divided; without ``packs`` it is not, and its shard has more than it can do."""
    if not design.packs:
        return rates
    found: list[float] = []
    filled = 0.0
    for rate in rates:
        if rate > design.shard_messages_per_s:
            parts = math.ceil(rate / limit)
            found += [rate / parts] * parts
        else:
            filled += rate
            if filled >= design.shard_messages_per_s:
                found.append(filled)
                filled = 0.0
    return [*found, filled] if filled else found


def commit_seconds(costs: Costs, size: float, pause_s: float = 0.0, group: float = 3.0) -> float:
    """What one commit takes on a cell with room: half a flush of waiting and one flush, on both disks; ``group`` commits share it."""
    wal = costs.wal.at(size)
    disks = 1.5 * (costs.flush.at(group * wal) + costs.standby_flush.at(group * wal))
    return max(
        pause_s, costs.commit_s + costs.insert_client.at(size) + costs.insert.at(size) + disks + 0.0002
    )


def commits_per_s(costs: Costs, rate: float, pause_s: float = 0.0) -> float:
    """Commits a second of a shard: it begins one as soon as the one before has ended and something waits.

    Two records come for each message. A commit takes D; with probability exp(-2·rate·D) nothing came meanwhile, and the next waits
    1 / (2·rate) on average. D grows with what it carries, so it is found by repetition.
    """
    rate_of_records, found = 2 * rate, min(2 * rate, 200.0)
    for _ in range(20):
        size = frame_bytes(1, 1) * rate / max(found, 1e-9)
        duration = commit_seconds(costs, min(size, 4e6), pause_s)
        found = 1 / (duration + math.exp(-rate_of_records * duration) / rate_of_records)
    return min(found, rate_of_records)


@dataclass(frozen=True, slots=True)
class Need:
    """One resource: how much is needed in all, and how much of it a cell has to give."""

    resource: str
    needed: float
    per_cell: float
    unit: str

    @property
    def cells(self) -> float:
        return self.needed / self.per_cell


@dataclass(frozen=True, slots=True)
class Plan:
    """What a design needs."""

    design: Design
    shards: int
    processes: int
    commits_per_s: float
    renewals_per_s: float
    looks_per_s: float
    reports_per_s: float
    overloaded: int
    """Shards that have more to do than one thread can."""
    needs: list[Need]

    @property
    def cells(self) -> int:
        return math.ceil(max(need.cells for need in self.needs))

    @property
    def first(self) -> Need:
        """The resource that decides."""
        return max(self.needs, key=lambda need: need.cells)

    def machines(self, hardware: Hardware) -> int:
        return self.cells * (2 + hardware.nodes)


def plan(
    costs: Costs,
    design: Design,
    hardware: Hardware,
    namespaces: int = NAMESPACES,
    messages_per_s: float = MESSAGES_PER_S,
) -> Plan:
    rates = zipf(namespaces, messages_per_s)
    limit = shard_limit(costs)
    shards = shards_of(rates, design, limit)
    # Shards of nearly the same rate are calculated once.
    found: dict[int, float] = {}
    commits = 0.0
    for rate in shards:
        key = round(math.log(rate) * 20)
        if key not in found:
            found[key] = commits_per_s(costs, rate, design.pause_s)
        commits += found[key]
    size = frame_bytes(1, 1)
    renewals = len(shards) * design.renewals_per_lease / design.lease_s
    renew_s, renew_wal = (
        (costs.renew_many_s, costs.renew_many_wal_bytes)
        if design.renews_together
        else (costs.renew_s, costs.renew_wal_bytes)
    )
    looks = 0.0 if design.processes_per_node else len(shards) * design.standby_processes * design.looks_per_s
    # Every process writes its own row in the list of nodes; that costs what a renewal costs.
    reports = (
        0.0 if design.processes_per_node else len(shards) * (1 + design.standby_processes) / REPORT_SECONDS
    )
    per_process = design.processes_per_node
    serving = hardware.nodes - hardware.spare_nodes
    wal = (
        commits * costs.wal.fixed
        + messages_per_s * costs.wal.each * size
        + (renewals * renew_wal + reports * costs.renew_wal_bytes)
    )
    database_s = (
        commits * costs.insert.fixed
        + messages_per_s * costs.insert.each * size
        + renewals * renew_s
        + looks * costs.look_s
        + reports * costs.renew_s
    )
    relayed = (hardware.nodes - 1) / hardware.nodes
    node_s = (
        commits * (costs.commit_s + costs.insert_client.fixed)
        + messages_per_s * (costs.message_s + costs.insert_client.each * size + costs.relay_s * relayed)
        + (reports + looks if design.renews_together else reports + renewals + looks)
        * costs.insert_client.fixed
    )
    memory = messages_per_s * QUEUED_SECONDS * costs.message_bytes_in_memory
    memory += namespaces * CONNECTIONS_PER_NAMESPACE * costs.connection_bytes
    share = hardware.used_share
    needs = [
        Need("database: processors", database_s, hardware.database_processors * share, "processors"),
        # Every byte is written twice: to the log, and by a later checkpoint to the table.
        Need("database: disk", (wal + messages_per_s * size) * costs.flush.each, share, "disks"),
        Need("standby: log", wal * costs.standby_flush.each, share, "standbys"),
        # The frames come in on one direction of the network, and the log leaves on the other.
        Need("network of the primary", wal, hardware.network_bytes_per_s * share, "bytes/s"),
        Need("nodes: processors", node_s, serving * hardware.node_processors * share, "processors"),
        Need(
            "nodes: network",
            _node_bytes(messages_per_s, relayed),
            serving * hardware.network_bytes_per_s * share,
            "bytes/s",
        ),
    ]
    if per_process:
        process_bytes = hardware.nodes * per_process * costs.process_bytes
        room = serving * hardware.node_bytes * share - process_bytes
        needs.append(Need("nodes: memory", memory, room, "bytes"))
        # The same for every cell, however many namespaces it has.
        connections = hardware.nodes * per_process * design.connections_per_process
        assert connections <= hardware.database_connections
        processes = -1
    else:
        processes = len(shards) * (1 + design.standby_processes)
        memory += processes * costs.process_bytes
        needs.append(Need("nodes: memory", memory, serving * hardware.node_bytes * share, "bytes"))
        connections = len(shards) * (
            design.connections_per_process + design.standby_processes * design.connections_per_standby
        )
        needs.append(Need("database: connections", connections, hardware.database_connections, "connections"))
    needs.sort(key=lambda need: -need.cells)
    result = Plan(
        design,
        len(shards),
        processes,
        commits,
        renewals,
        looks,
        reports,
        sum(rate > limit for rate in shards),
        needs,
    )
    return replace(result, processes=result.cells * hardware.nodes * per_process) if per_process else result


def _node_bytes(messages_per_s: float, relayed: float) -> float:
    """Bytes a second that leave the nodes: to the database, to receivers, and both ways through relays."""
    return messages_per_s * frame_bytes(1, 1) * (1 + 2 * relayed + 1)
