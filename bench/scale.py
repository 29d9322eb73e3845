"""`make bench-scale`: what 100,000 namespaces with a million messages a second need, and what breaks first.

    python -m bench.scale              the model, from the costs in bench/cells/measured.json; no database is needed
    python -m bench.scale --check      besides, its small end beside brokers and a PostgreSQL on this machine
    python -m bench.scale --measure    measures the costs here and merges them into measured.json; then the model

The model is a simulation with a seed: the same costs give the same figures. docs/explanation/scale.md explains them.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from bench.cells import fleet, scenarios
from bench.cells.cell import Shape
from bench.cells.costs import Costs, load
from bench.cells.picture import bars
from bench.peer import BenchError, progress

if TYPE_CHECKING:
    from collections.abc import Iterator

SEED = 1
MIB = 2**20
CONNECTIONS_OF_A_SHARD = 1000
FAR_TOO_MUCH = 20_000
"""Messages that the clients of the noisy shard keep unanswered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much is simulated. The small form is for tests."""

    namespaces: int = fleet.NAMESPACES
    messages_per_s: float = fleet.MESSAGES_PER_S
    cell_shards: int = 16
    cell_messages_per_s: float = 40_000.0
    seconds: float = 1.0


FULL = Size()
SMALL = Size(namespaces=1000, messages_per_s=10_000.0, cell_shards=4, cell_messages_per_s=200.0, seconds=0.1)


def costs_lines(costs: Costs) -> Iterator[str]:
    us = 1e6
    yield "Costs, measured (CPU: of one processor)"
    for what, value in (
        ("broker, CPU per message: send, deliver, settle", f"{costs.message_s * us:.0f} µs"),
        ("broker, CPU per commit", f"{(costs.commit_s + costs.insert_client.fixed) * us:.0f} µs"),
        ("relay, CPU per message", f"{costs.relay_s * us:.1f} µs"),
        ("PostgreSQL, CPU per commit", f"{costs.insert.fixed * us:.0f} µs + {costs.insert.each * 1e9:.1f} ns a byte"),
        ("its standby, CPU per commit", f"{costs.standby_insert.fixed * us:.0f} µs + {costs.standby_insert.each * 1e9:.1f} ns a byte"),
        ("write-ahead log per commit", f"{costs.wal.fixed:.0f} bytes + {costs.wal.each:.2f} a byte"),
        ("flush of the log", f"{costs.flush.fixed * 1e3:.2f} ms + {1 / costs.flush.each / 1e6:,.0f} MB/s"),
        ("a synchronous standby adds", f"{costs.standby_flush.fixed * 1e3:.2f} ms + {1 / costs.standby_flush.each / 1e6:,.0f} MB/s"),
        ("a lease renewed alone, CPU", f"{costs.renew_s * us:.0f} µs"),
        ("a lease renewed with 99 others, CPU", f"{costs.renew_many_s * us:.0f} µs"),
        ("a waiting node looks at a lease, CPU", f"{costs.look_s * us:.0f} µs"),
        ("a lease taken over, CPU", f"{costs.acquire_s * us:.0f} µs"),
        ("replay of a million queued messages, CPU", f"{costs.replay_s * 1e6:.1f} s in the broker, {costs.heads_s * 1e6:.1f} s in PostgreSQL"),
        ("a client's connection opened, CPU", f"{costs.open_s * us:.0f} µs"),
        ("memory", (f"{costs.process_bytes / MIB:.0f} MiB a process, {costs.message_bytes_in_memory:.0f} bytes a queued message, "
                   f"{costs.connection_bytes / 1024:.0f} KiB a client, {costs.backend_bytes / MIB:.1f} MiB a database connection")),
    ):  # fmt: skip
        yield f"  {what:<48} {value}"


def fleet_lines(costs: Costs, hardware: fleet.Hardware, size: Size) -> Iterator[str]:
    yield f"{size.namespaces:,} namespaces, {size.messages_per_s:,.0f} messages/s of 1 KB, Zipf: cells that each resource needs"
    largest = fleet.zipf(size.namespaces, size.messages_per_s)
    limit = fleet.shard_limit(costs)
    over = sum(rate > limit for rate in largest)
    yield f"  largest namespaces: {', '.join(f'{rate:,.0f}' for rate in largest[:4])} messages/s; one shard carries {limit:,.0f}: {over} have more"
    for design in fleet.DESIGNS:
        plan = fleet.plan(costs, design, hardware, size.namespaces, size.messages_per_s)
        yield (
            f"  {design.name}: {plan.shards:,} shards, {plan.commits_per_s:,.0f} commits/s, {plan.renewals_per_s:,.0f} renewals/s, {plan.looks_per_s:,.0f} looks/s, {plan.reports_per_s:,.0f} reports/s"
            f" -> {plan.cells:,} cells, {plan.machines(hardware):,} machines"
        )
        yield "      " + "; ".join(f"{need.resource} {need.cells:,.1f}" for need in plan.needs)


def one_cell_lines(costs: Costs, hardware: fleet.Hardware) -> Iterator[str]:
    """How many namespaces of 10 messages/s one cell carries until each resource is used up."""
    yield "One cell, namespaces of 10 messages/s on average: how many until each resource is used up"
    for design in fleet.DESIGNS:
        plan = fleet.plan(costs, design, hardware, 10_000, 100_000.0)
        order = "; ".join(f"{need.resource} {10_000 / need.cells:,.0f}" for need in plan.needs[:4])
        yield f"  {design.name}: {order}"


def cell_lines(costs: Costs, size: Size) -> Iterator[str]:
    yield f"One cell, simulated: {size.cell_messages_per_s:,.0f} messages/s over shards"
    yield "  shards  commits/s  ack p50 ms  p99 ms  database CPUs  node CPUs  disk busy  standby busy  log MB/s"
    for factor, pause in ((1, 0.0), (4, 0.0), (16, 0.0), (1, 0.005), (4, 0.005)):
        shards = size.cell_shards * factor
        one = scenarios.Load(shards=shards, messages_per_s=size.cell_messages_per_s / shards)
        shape = Shape(pause_s=pause, renews_together=True)
        found = scenarios.normal(costs, shape, one, size.seconds / (1 + factor // 4), SEED)
        yield (
            f"  {shards:>6}{found.commits_per_s:>11,.0f}{found.ack_ms_p50:>12.1f}{found.ack_ms_p99:>8.1f}{found.database_processors:>15.1f}"
            f"{found.node_processors:>11.1f}{found.disk_busy:>11.0%}{found.standby_busy:>14.0%}{found.wal_mb_per_s:>10.0f}"
            f"{'   5 ms between commits' if pause else ''}"
        )


def event_lines(costs: Costs, size: Size) -> Iterator[str]:
    rate = size.cell_messages_per_s / size.cell_shards
    queued = rate * fleet.QUEUED_SECONDS
    usual = scenarios.Load(
        shards=size.cell_shards, messages_per_s=rate, connections=CONNECTIONS_OF_A_SHARD, queued=queued
    )
    shape = Shape(renews_together=True)
    yield f"The same cell, {size.cell_shards} shards, when something happens (lease 10 s)"
    for lease in (10.0, 2.0):
        one = replace(shape, lease_s=lease)
        found = scenarios.node_dies(costs, one, usual, SEED)
        yield (
            f"  a node dies, lease {lease:.0f} s: {found.shards_lost} shards silent for {found.silence_s_first:.1f} to {found.silence_s_last:.1f} s; "
            f"the others' p99 {found.others_p99_ms_before:.0f} -> {found.others_p99_ms_during:.0f} ms"
        )
    heavy = replace(usual, queued=queued * 10)
    found = scenarios.node_dies(costs, replace(shape, lease_s=2.0), heavy, SEED)
    yield f"  the same with ten times as much queued, lease 2 s: silent for {found.silence_s_first:.1f} to {found.silence_s_last:.1f} s"
    for away in (3.0, 12.0):
        over = scenarios.database_fails_over(costs, shape, usual, away, SEED)
        yield (
            f"  the database is away for {away:.0f} s: the longest acknowledgement takes {over.longest_ack_s:.1f} s, "
            f"{over.leases_ended} of {size.cell_shards} leases have ended, {over.caught_up_s:.1f} s until all is as before"
        )
    for limit in (32 * MIB, MIB):
        noise = scenarios.noisy_neighbour(
            costs, replace(shape, frame_bytes_max=limit), usual, FAR_TOO_MUCH, size.seconds, SEED
        )
        yield (
            f"  one shard gets all it can take ({noise.noisy_per_s:,.0f}/s, frames up to {limit // MIB} MiB): p99 of the others {noise.quiet_p99_ms:.0f} -> "
            f"{noise.same_node_p99_ms:.0f} ms on its node, {noise.other_node_p99_ms:.0f} ms elsewhere in the cell, none in other cells"
        )


def check_lines(costs: Costs) -> Iterator[str]:
    from bench.cells import check  # noqa: PLC0415 - it needs psycopg and PostgreSQL, the model does not

    yield "The small end: measured here, and the model with the share of the machine that others left"
    yield f"  {'':<70}{'measured':>12}{'model':>12}{'ratio':>8}"
    with tempfile.TemporaryDirectory(prefix="pairbus-cells-", dir="/var/tmp") as home:
        for row in (
            *check.writers(costs, standby=False),
            *check.writers(costs, standby=True),
            *check.brokers(costs, Path(home)),
        ):
            yield f"  {f'{row.what}: {row.unit}':<70}{row.measured:>12,.2f}{row.model:>12,.2f}{row.ratio:>8.2f}"


def report(costs: Costs, size: Size = FULL) -> Iterator[str]:
    """The model's lines."""
    hardware = fleet.Hardware()
    yield from costs_lines(costs)
    yield ""
    yield from one_cell_lines(costs, hardware)
    yield ""
    yield from fleet_lines(costs, hardware, size)
    yield ""
    yield from cell_lines(costs, size)
    yield ""
    yield from event_lines(costs, size)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.scale",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--measure", action="store_true", help="measure the costs first; takes some minutes")
    parser.add_argument(
        "--check", action="store_true", help="also run brokers and PostgreSQL here, beside the model"
    )
    parser.add_argument(
        "--picture", type=Path, metavar="FILE", help="also draw the cells that each design needs, as SVG"
    )
    parser.add_argument("--small", action="store_true", help="a small form of the model, in a second")
    arguments = parser.parse_args()
    try:
        if arguments.measure:
            from bench.cells.measure import measure  # noqa: PLC0415 - as check

            progress("measuring")
            measure()
        costs = load()
        for line in report(costs, SMALL if arguments.small else FULL):
            print(line, flush=True)
        if arguments.picture is not None:
            plans = [fleet.plan(costs, design, fleet.Hardware()) for design in fleet.DESIGNS]
            arguments.picture.write_text(bars(plans))
        if arguments.check:
            print()
            for line in check_lines(costs):
                print(line, flush=True)
    except (BenchError, ImportError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
