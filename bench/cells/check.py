"""The small end of the model beside a real run on this machine: brokers, PostgreSQL and load generators share its processors.

The model gets the measured costs and how much of the machine others used during the run. It gets no figure of the run itself.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from bench import ours
from bench.cells import measure_database
from bench.cells.cell import Cell, Database, Samples, Shape
from bench.cells.clock import processor_s
from bench.cells.costs import Costs, Line, frame_bytes
from bench.cells.events import Processors, Simulation
from bench.loadgen import Load, LoadGenerator
from bench.machine import busy_s

PROCESSORS = 2
LOOPBACK_S = 0.00004
RUN_SECONDS = 3.0
LEASE_S = 10
NOT_PROCESSOR_TIME = {"flush", "standby_flush", "wal"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure, both ways."""

    what: str
    measured: float
    model: float
    unit: str

    @property
    def ratio(self) -> float:
        return self.model / self.measured if self.measured else float("nan")


def left_over(foreign: float) -> tuple[int, float]:
    """What others leave of the machine: whole processors, and how much longer a job takes on them."""
    left = PROCESSORS - foreign
    whole = max(1, round(left))
    return whole, max(1.0, whole / left)


def stretched(costs: Costs, factor: float) -> Costs:
    """Costs on processors of which others take a share: every job takes longer, the disk does not."""

    def longer(name: str, value: Any) -> Any:
        if name in NOT_PROCESSOR_TIME:
            return value
        if isinstance(value, Line):
            return Line(value.fixed * factor, value.each * factor)
        return value * factor if name.endswith("_s") else value

    return replace(costs, **{one.name: longer(one.name, getattr(costs, one.name)) for one in fields(costs)})


class Busy:
    """How many processors of the machine are busy, from its making on."""

    def __init__(self) -> None:
        self._busy, self._at = busy_s(), time.monotonic()

    def others(self, own: float) -> float:
        """Those that work on something else, if our work takes ``own`` of them."""
        busy = (busy_s() - self._busy) / (time.monotonic() - self._at)
        return min(PROCESSORS - 0.1, max(0.0, busy - own))


def writers(costs: Costs, *, standby: bool) -> list[Row]:
    """Commits alone: writers in one process, by number and size."""
    rows = []
    with measure_database.servers(standby=standby) as servers:
        measure_database.commits(servers, 4, 1000)
        for count in (4, 16):
            for messages in (1, 10, 100):
                busy = Busy()
                real = measure_database.commits(servers, count, messages, RUN_SECONDS)
                own_us = real.client_cpu_us + real.primary_cpu_us + real.standby_cpu_us
                foreign = busy.others(own_us / 1e6 * real.per_s)
                expected = modelled_writers(costs, count, messages, foreign, standby=standby)
                what = f"{count} writers, {messages} messages each{', standby' if standby else ''}"
                rows.append(Row(what=what, measured=real.per_s, model=expected, unit="commits/s"))
    return rows


def modelled_writers(costs: Costs, count: int, messages: int, foreign: float, *, standby: bool) -> float:
    whole, factor = left_over(foreign)
    costs = stretched(costs, factor)
    simulation = Simulation()
    processors = Processors(simulation, whole)
    client = Processors(simulation, 1)  # the writers are threads of one interpreter
    shape = Shape(has_standby=standby, round_trip_s=LOOPBACK_S)
    database = Database(simulation, costs, shape, processors, processors)
    size = frame_bytes(messages, messages)

    def write() -> None:
        client.run(costs.insert_client.at(size), lambda: database.commit(size, write))

    for _ in range(count):
        write()
    simulation.run(5.0)
    return database.commits / 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Brokers:
    """Real brokers on one PostgreSQL, each with its load."""

    shards: int
    window: int
    rate: float = 0.0
    """Messages a second and shard; 0: as many as the window lets through."""
    standby: bool = False

    def __str__(self) -> str:
        load = f"{self.rate:,.0f} messages/s each" if self.rate else f"window {self.window}"
        return f"{self.shards} shards, {load}{', standby' if self.standby else ''}"


RUNS = (
    Brokers(shards=1, window=10),
    Brokers(shards=1, window=100),
    Brokers(shards=4, window=10),
    Brokers(shards=4, window=100),
    Brokers(shards=4, window=100, standby=True),
    Brokers(shards=4, window=1000, rate=250.0),
    Brokers(shards=4, window=1000, rate=250.0, standby=True),
)


def brokers(costs: Costs, home: Path) -> list[Row]:
    generator = LoadGenerator(home)
    rows = []
    for standby in (False, True):
        with measure_database.servers(standby=standby) as servers:
            for run in (run for run in RUNS if run.standby is standby):
                rows += one_run(costs, servers, generator, home, run)
    return rows


def one_run(
    costs: Costs, servers: measure_database.Servers, generator: LoadGenerator, home: Path, run: Brokers
) -> list[Row]:
    measure_database.checkpoint(servers)
    with ExitStack() as stack:
        name = f"shard_{time.time_ns()}"
        # A database for each: they are one server, and share its processors, its log and its flushes.
        urls = [servers.primary.new_database(f"{name}_{number}") for number in range(run.shards)]
        options = ("--node", "check", "--lease", str(LEASE_S))
        peers = [
            stack.enter_context(ours.OurBroker(home, options=("--store", url, *options))) for url in urls
        ]
        load = Load(window=run.window, seconds=RUN_SECONDS, rate=run.rate)
        for peer in peers:
            generator.run(peer, Load(window=run.window, seconds=0.5))
        pids = [peer.pid for peer in peers]
        before = sum(map(processor_s, pids)), processor_s(servers.pids()[0]), _frames(servers, urls)
        all_before, busy = sum(map(processor_s, servers.pids())), Busy()
        with ThreadPoolExecutor(run.shards) as pool:
            results = list(pool.map(lambda peer: generator.run(peer, load), peers))
        seconds = max(result.wall_s for result in results)
        own = sum(map(processor_s, servers.pids())) - all_before + sum(map(processor_s, pids)) - before[0]
        foreign = busy.others((own + sum(result.generator_cpu_s for result in results)) / seconds)
        after = sum(map(processor_s, pids)), processor_s(servers.pids()[0]), _frames(servers, urls)
    messages = sum(result.messages for result in results)
    client_s = sum(result.generator_cpu_s for result in results) / messages
    expected = modelled_brokers(costs, run, foreign, client_s)
    broker_us, database_us = (
        (new - old) / messages * 1e6 for new, old in zip(after[:2], before[:2], strict=True)
    )
    acks = sorted(result.ack_us_p50 / 1e3 for result in results)
    rate = messages / seconds
    figures = (
        ("messages/s", rate, expected["messages_per_s"]),
        ("ack p50, ms", acks[len(acks) // 2], expected["ack_ms_p50"]),
        ("commits/message", (after[2] - before[2]) / messages, expected["commits_per_message"]),
        ("broker µs/message", broker_us, expected["broker_us"]),
        ("database µs/message", database_us, expected["database_us"]),
    )
    title = f"{run} ({foreign:.1f} processors busy with other work)"
    return [Row(what=title, measured=real, model=modelled, unit=unit) for unit, real, modelled in figures]


def _frames(servers: measure_database.Servers, urls: list[str]) -> int:
    """Frames in all shards."""
    query = "select coalesce(max(seq), 0) from pairbus_frame"
    return sum(int(servers.primary.run(query, url.rpartition("/")[2])[0][0]) for url in urls)


def modelled_brokers(
    costs: Costs, run: Brokers, foreign: float, client_s: float, seconds: float = 2.0
) -> dict[str, float]:
    whole, factor = left_over(foreign)
    shape = Shape(
        nodes=1,
        node_processors=whole,
        has_standby=run.standby,
        is_one_machine=True,
        round_trip_s=LOOPBACK_S,
        client_round_trip_s=LOOPBACK_S,
        client_s=client_s * factor,
        is_relayed=False,
    )
    cell = Cell(stretched(costs, factor), shape)
    for _ in range(run.shards):
        cell.add(run.rate, window=0 if run.rate else run.window)
    cell.run(0.5)
    before = sum(shard.answered for shard in cell.shards), cell.database.commits
    bytes_before = cell.database.disk.written_bytes
    for shard in cell.shards:
        shard.acks.values.clear()
    cell.run(seconds)
    messages = sum(shard.answered for shard in cell.shards) - before[0]
    commits = cell.database.commits - before[1]
    frames = (cell.database.disk.written_bytes - bytes_before - commits * costs.wal.fixed) / costs.wal.each
    acks = Samples([value for shard in cell.shards for value in shard.acks.values])
    broker = (
        costs.message_s * messages
        + commits * (costs.commit_s + costs.insert_client.fixed)
        + frames * costs.insert_client.each
    )
    database = commits * costs.insert.fixed + frames * costs.insert.each
    return {
        "messages_per_s": messages / seconds,
        "ack_ms_p50": acks.percentile(0.5) * 1e3,
        "commits_per_message": commits / messages,
        "broker_us": broker / messages * 1e6,
        "database_us": database / messages * 1e6,
    }
