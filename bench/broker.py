"""`make bench-broker`: our broker and RabbitMQ's quorum queues under one load generator, round by round, side by side.

Both brokers run at the same time on the same filesystem and take turns, so that a busy machine hurts both alike: read the
ratios. Both answer a durable send only after the disk was flushed; that is the only comparison made here.

`--store postgresql` compares our broker with itself instead: its log on this disk, in a PostgreSQL on this disk, and in one that
waits for a synchronous standby, on this disk too.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import tempfile
import time
from contextlib import ExitStack, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from bench import ours, postgresql, rabbitmq
from bench.loadgen import Load, LoadGenerator, LoadResult
from bench.peer import CLOCK_TICKS_PER_S, BenchError, Peer

if TYPE_CHECKING:
    from collections.abc import Iterable

BASE = Path("/var/tmp")
WINDOWS = (1, 100, 1000)
CONNECTIONS = (1, 4)
ROUNDS = 3
RUN_SECONDS = 2.0
QUICK_SECONDS = 1.0
STANDARD_OUTPUT = "-"
PROBES = 200
PROBE_BYTES = 1024
PROBE_FILE_BYTES = 4 << 20
QUIET_SHARE = 0.05
QUIET_STEP_S = 0.25
QUIET_TIMEOUT_S = 5.0
FOREIGN_SHARE_MAX = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One turn of one broker in one scenario."""

    peer: str
    window: int
    connections: int
    load: LoadResult
    broker_cpu_us_per_message: float
    foreign_cpus: float
    """How many processors were busy with neither the broker nor the generator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """The medians of one broker in one scenario."""

    msgs_per_s: float
    ack_ms_p50: float
    ack_ms_p99: float
    cpu_us: float


def sync_probe_ms(directory: Path) -> float:
    """Median of a 1 KB write plus fdatasync inside a file that is already on disk: the floor of a durable answer."""
    path = directory / "probe"
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    took = []
    try:
        os.pwrite(descriptor, b"\0" * PROBE_FILE_BYTES, 0)
        os.fsync(descriptor)
        for number in range(PROBES):
            started = time.perf_counter()
            os.pwrite(descriptor, b"x" * PROBE_BYTES, number * PROBE_BYTES)
            os.fdatasync(descriptor)
            took.append(time.perf_counter() - started)
    finally:
        os.close(descriptor)
        path.unlink()
    return median(took) * 1000


def machine_busy_s() -> float:
    """Processor seconds spent by the whole machine, without idling and waiting for disks."""
    words = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    user, nice, system, _idle, _iowait, irq, softirq = (int(word) for word in words[:7])
    return (user + nice + system + irq + softirq) / CLOCK_TICKS_PER_S


def wait_quiet(peers: Iterable[Peer]) -> None:
    """Until the brokers have finished what they do behind an answer (compaction, flushing), or a bound has passed."""
    deadline = time.monotonic() + QUIET_TIMEOUT_S
    peers = list(peers)
    before = sum(peer.cpu_seconds() for peer in peers)
    while time.monotonic() < deadline:
        time.sleep(QUIET_STEP_S)
        after = sum(peer.cpu_seconds() for peer in peers)
        if after - before <= QUIET_SHARE * QUIET_STEP_S:
            return
        before = after


def measure(generator: LoadGenerator, peer: Peer, load: Load) -> Run:
    broker_before, busy_before, started = peer.cpu_seconds(), machine_busy_s(), time.monotonic()
    result = generator.run(peer, load)
    took = time.monotonic() - started
    broker_s, busy_s = peer.cpu_seconds() - broker_before, machine_busy_s() - busy_before
    if result.rejected or result.duplicates:
        raise BenchError(f"{peer.name} rejected {result.rejected} and repeated {result.duplicates} messages")
    return Run(
        peer=peer.name,
        window=load.window,
        connections=load.connections,
        load=result,
        broker_cpu_us_per_message=broker_s * 1e6 / max(1, result.messages),
        foreign_cpus=max(0.0, busy_s - broker_s - result.generator_cpu_s) / took,
    )


def measure_rounds(generator: LoadGenerator, peers: list[Peer], rounds: int, seconds: float) -> list[Run]:
    for peer in peers:  # once to warm up, not counted
        generator.run(peer, Load(seconds=seconds))
    runs = []
    for number in range(rounds):
        for window in WINDOWS:
            for connections in CONNECTIONS:
                for peer in peers if number % 2 == 0 else reversed(peers):
                    wait_quiet(peers)
                    load = Load(window=window, connections=connections, seconds=seconds)
                    runs.append(measure(generator, peer, load))
                    show_progress(
                        f"round {number + 1}/{rounds}  window {window}  {connections} x {peer.name}"
                    )
    show_progress("")
    return runs


def show_progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r{text:<70}", end="\r", file=sys.stderr, flush=True)


def cell(runs: list[Run], peer: str, window: int, connections: int) -> Cell | None:
    mine = [run for run in runs if (run.peer, run.window, run.connections) == (peer, window, connections)]
    if not mine:
        return None
    return Cell(
        msgs_per_s=median(run.load.msgs_per_s for run in mine),
        ack_ms_p50=median(run.load.ack_us_p50 for run in mine) / 1000,
        ack_ms_p99=median(run.load.ack_us_p99 for run in mine) / 1000,
        cpu_us=median(run.broker_cpu_us_per_message for run in mine),
    )


def table(runs: list[Run], peers: list[str], is_of_stores: bool) -> list[str]:
    """One line for each scenario and broker. The ratios stand on our line, or, between stores, on the line of each database."""
    compared = "database / log on this disk" if is_of_stores else "ours / RabbitMQ"
    head = (
        f"{'window':>6} {'conns':>5}  {'broker':<16}{'msgs/s':>9}{'ack p50 ms':>12}{'p99 ms':>9}{'CPU us/msg':>12}"
        f"   {compared}: msgs/s, p50, CPU"
    )
    lines = [head, "-" * len(head)]
    for window in WINDOWS:
        for connections in CONNECTIONS:
            cells = [cell(runs, peer, window, connections) for peer in peers]
            for position, (peer, own) in enumerate(zip(peers, cells, strict=True)):
                if own is None:
                    continue
                where = f"{window:>6} {connections:>5}" if position == 0 else " " * 12
                line = (
                    f"{where}  {peer:<16}{own.msgs_per_s:>9,.0f}{own.ack_ms_p50:>12.2f}{own.ack_ms_p99:>9.2f}"
                )
                line += f"{own.cpu_us:>12.1f}"
                if is_of_stores:
                    other = cells[0] if position else None
                else:
                    other = cells[1] if position == 0 and len(cells) > 1 else None
                lines.append(line + (ratios(own, other) if other else ""))
    return lines


def ratios(own: Cell, other: Cell) -> str:
    rate, p50 = own.msgs_per_s / other.msgs_per_s, own.ack_ms_p50 / other.ack_ms_p50
    cpu = f"{own.cpu_us / other.cpu_us:.2f}x" if other.cpu_us else "-"
    return f"   {rate:>5.2f}x  {p50:.2f}x  {cpu}"


def generator_alone(generator: LoadGenerator, seconds: float) -> LoadResult:
    with generator.null_broker() as peer:
        return generator.run(peer, Load(window=100, seconds=seconds, is_verified=False))


def verdict(runs: list[Run]) -> list[str]:
    """The ratios that a store in PostgreSQL should reach, and what it reached: medians of the ratios of each round."""
    lines = []
    for peer, window, connections, wanted in postgresql.TARGETS:
        own = [run for run in runs if (run.peer, run.window, run.connections) == (peer, window, connections)]
        base = [
            run for run in runs if (run.peer, run.window, run.connections) == ("PairBus", window, connections)
        ]
        if own and len(own) == len(base):
            reached = median(
                mine.load.msgs_per_s / theirs.load.msgs_per_s for mine, theirs in zip(own, base, strict=True)
            )
            lines.append(
                f"{peer}, window {window}, {connections} connections: {reached:.2f} x the log on this disk (wanted: {wanted:.2f})"
            )
    return lines


def heading(names: list[str]) -> list[str]:
    lines = [
        "1 KB durable messages over AMQP 1.0, sent and received at once (each connection is a sender and a receiver)."
    ]
    if "rabbitmq" in names:
        lines.append(
            f"RabbitMQ {rabbitmq.version()} with a quorum queue: it flushes before it answers. Same durability."
        )
    if "postgresql" in names:
        lines.append(f"{postgresql.version()}; its processor time is counted with its broker's.")
    if "ours" in names:
        lines.append(f"PairBus from this checkout, {'compiled' if ours.is_compiled() else 'not compiled'}.")
    return lines


def print_report(runs: list[Run], names: list[str], sync_ms: float, alone: LoadResult) -> None:
    peers = list(dict.fromkeys(run.peer for run in runs))
    peers.sort(key=lambda peer: peer != "PairBus")
    print("\n".join(["", *heading(names), "", *table(runs, peers, "postgresql" in names), ""]))
    for line in verdict(runs):
        print(line)
    print(f"raw 1 KB write + fdatasync on this disk: {sync_ms:.2f} ms (median of {PROBES})")
    own = cell(runs, "PairBus", 1, 1)
    if own is not None:
        print(f"PairBus, window 1, 1 connection: ack p50 is {own.ack_ms_p50 / sync_ms:.1f} raw syncs")
    print(
        f"the generator alone, against a broker that stores nothing, window 100, 1 connection: "
        f"{alone.msgs_per_s:,.0f} msgs/s, {alone.generator_cpu_s * 1e6 / alone.messages:.2f} us CPU each"
    )
    worst = max(run.foreign_cpus for run in runs)
    busy = sum(run.foreign_cpus > FOREIGN_SHARE_MAX for run in runs)
    print(
        f"other work on this machine: {busy} of {len(runs)} runs saw more than {FOREIGN_SHARE_MAX} CPUs of it, at most {worst:.2f}"
    )


def as_json(runs: list[Run], sync_ms: float, alone: LoadResult) -> str:
    report = {
        "rabbitmq_version": rabbitmq.version() if any(run.peer == "RabbitMQ" for run in runs) else None,
        "compiled": ours.is_compiled(),
        "sync_probe_ms": sync_ms,
        "generator_alone": dataclasses.asdict(alone),
        "runs": [dataclasses.asdict(run) for run in runs],
    }
    return json.dumps(report, indent=1)


def bench(arguments: argparse.Namespace) -> None:
    names = [arguments.only] if arguments.only else ["ours", "rabbitmq"]
    if arguments.store is not None:
        names = ["ours", arguments.store]
    rounds, seconds = (1, QUICK_SECONDS) if arguments.quick else (ROUNDS, RUN_SECONDS)
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pairbus-bench-", dir=BASE)))
        generator = LoadGenerator(home)
        if "rabbitmq" in names:
            rabbitmq.ensure_installed()
        sync_ms = sync_probe_ms(home)
        alone = generator_alone(generator, seconds)
        peers = []
        if "ours" in names:
            peers.append(stack.enter_context(ours.OurBroker(home)))
        if "rabbitmq" in names:
            peers.append(stack.enter_context(rabbitmq.RabbitMQ(home)))
        if "postgresql" in names:
            home.chmod(0o755)  # PostgreSQL may run as another user
            peers.extend(postgresql.brokers(home, stack))
        runs = measure_rounds(generator, peers, rounds, seconds)
    with redirect_stdout(sys.stderr if arguments.json == STANDARD_OUTPUT else sys.stdout):
        print_report(runs, names, sync_ms, alone)
    if arguments.json == STANDARD_OUTPUT:
        print(as_json(runs, sync_ms, alone))
    elif arguments.json is not None:
        Path(arguments.json).write_text(as_json(runs, sync_ms, alone) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.broker", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short round instead of three")
    parser.add_argument("--only", choices=("ours", "rabbitmq"), help="measure one broker alone")
    parser.add_argument(
        "--store",
        choices=("postgresql",),
        help="measure our broker with this store beside the log on this disk, instead of RabbitMQ",
    )
    parser.add_argument(
        "--json",
        nargs="?",
        const=STANDARD_OUTPUT,
        metavar="FILE",
        help="write every run to FILE; without FILE to standard output, and the table to standard error",
    )
    try:
        bench(parser.parse_args())
    except BenchError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
