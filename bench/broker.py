"""`make bench-broker`: our broker in both forms and RabbitMQ's quorum queues under one load generator, round by round, side by side.

All brokers run at the same time on the same filesystem and take turns, so that a busy machine hurts them alike: read the
ratios. Each answers a durable send only after the disk was flushed; that is the only comparison made here. A peer that is not
installed is left out, and the table says so.

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

from bench import machine, ours, postgresql, rabbitmq
from bench.cells.measure_broker import RELAY_WINDOW, relay_us
from bench.loadgen import Load, LoadGenerator, LoadResult
from bench.peer import BenchError, Peer

if TYPE_CHECKING:
    from collections.abc import Iterable

BASE = Path("/var/tmp")
BASELINE = "RabbitMQ quorum"
"""The ratios of the table are to this broker."""
OURS = "PairBus"
ROUNDS = 5
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
class Scenario:
    """What the generator does."""

    window: int
    connections: int
    mode: str = "both"

    @property
    def title(self) -> str:
        """What the table calls it."""
        what = "send + receive" if self.mode == "both" else "receive a backlog"
        return f"{what}, window {self.window}, {self.connections} x"


SCENARIOS = (
    *(Scenario(window=window, connections=count) for window in (1, 100, 1000) for count in (1, 4)),
    Scenario(window=1, connections=16),
    Scenario(window=1000, connections=4, mode="receive"),
)
BACKLOG_MESSAGES = 60_000
QUICK_BACKLOG_MESSAGES = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One turn of one broker in one scenario."""

    peer: str
    scenario: Scenario
    load: LoadResult
    broker_cpu_us_per_message: float
    commits: int
    """Of our broker; 0: not known."""
    foreign_cpus: float
    """How many processors were busy with neither the broker nor the generator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """The medians of one broker in one scenario."""

    msgs_per_s: float
    ack_ms_p50: float
    ack_ms_p99: float
    cpu_us: float
    messages_per_commit: float
    """0: not known."""


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


def measure(generator: LoadGenerator, peer: Peer, scenario: Scenario, load: Load) -> Run:
    if scenario.mode == "receive":
        fill = Load(mode="send", window=scenario.window, connections=scenario.connections, count=load.count)
        generator.run(peer, fill)
        wait_quiet([peer])
    commits_before, broker_before = ours.commits(peer), peer.cpu_seconds()
    busy_before, started = machine.busy_s(), time.monotonic()
    result = generator.run(peer, load)
    took = time.monotonic() - started
    broker_s, busy_s = peer.cpu_seconds() - broker_before, machine.busy_s() - busy_before
    if result.rejected or result.duplicates:
        raise BenchError(f"{peer.name} rejected {result.rejected} and repeated {result.duplicates} messages")
    return Run(
        peer=peer.name,
        scenario=scenario,
        load=result,
        broker_cpu_us_per_message=broker_s * 1e6 / max(1, result.messages),
        commits=ours.commits(peer) - commits_before,
        foreign_cpus=max(0.0, busy_s - broker_s - result.generator_cpu_s) / took,
    )


def measure_rounds(
    generator: LoadGenerator, peers: list[Peer], rounds: int, seconds: float, backlog: int
) -> list[Run]:
    for peer in peers:  # once to warm up, not counted
        generator.run(peer, Load(seconds=seconds))
    runs = []
    for number in range(rounds):
        for scenario in SCENARIOS:
            for peer in peers if number % 2 == 0 else reversed(peers):
                wait_quiet(peers)
                load = Load(mode=scenario.mode, window=scenario.window, connections=scenario.connections)
                if scenario.mode == "receive":
                    load = dataclasses.replace(load, count=backlog)
                else:
                    load = dataclasses.replace(load, seconds=seconds)
                show_progress(f"round {number + 1}/{rounds}  {scenario.title} {peer.name}")
                runs.append(measure(generator, peer, scenario, load))
    show_progress("")
    return runs


def show_progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r{text:<70}", end="\r", file=sys.stderr, flush=True)


def cell(runs: list[Run], peer: str, scenario: Scenario) -> Cell | None:
    mine = [run for run in runs if run.peer == peer and run.scenario == scenario]
    if not mine:
        return None
    return Cell(
        msgs_per_s=median(run.load.msgs_per_s for run in mine),
        ack_ms_p50=median(run.load.ack_us_p50 for run in mine) / 1000,
        ack_ms_p99=median(run.load.ack_us_p99 for run in mine) / 1000,
        cpu_us=median(run.broker_cpu_us_per_message for run in mine),
        messages_per_commit=median(run.load.messages / run.commits if run.commits > 0 else 0 for run in mine),
    )


def ratio(runs: list[Run], peer: str, base: str, scenario: Scenario) -> float | None:
    """How many times as many messages a second: the median over the rounds, each with its own pair of runs."""
    own = [run.load.msgs_per_s for run in runs if run.peer == peer and run.scenario == scenario]
    other = [run.load.msgs_per_s for run in runs if run.peer == base and run.scenario == scenario]
    if peer == base or not own or len(own) != len(other):
        return None
    return median(mine / theirs for mine, theirs in zip(own, other, strict=True))


HEAD = (
    "scenario",
    "broker",
    "messages/s",
    "ratio",
    "ack p50 ms",
    "ack p99 ms",
    "CPU µs/message",
    "messages/commit",
)


def rows(runs: list[Run], peers: list[str], base: str) -> list[tuple[str, ...]]:
    """One row for each scenario and broker, as text."""
    found: list[tuple[str, ...]] = []
    for scenario in SCENARIOS:
        is_first = True
        for peer in peers:
            own = cell(runs, peer, scenario)
            if own is None:
                continue
            times = ratio(runs, peer, base, scenario)
            found.append(
                (
                    scenario.title if is_first else "",
                    peer,
                    f"{own.msgs_per_s:,.0f}",
                    f"{times:.2f} x" if times is not None else "",
                    f"{own.ack_ms_p50:.2f}" if own.ack_ms_p50 else "",
                    f"{own.ack_ms_p99:.2f}" if own.ack_ms_p99 else "",
                    f"{own.cpu_us:.1f}",
                    f"{own.messages_per_commit:.1f}" if own.messages_per_commit else "",
                )
            )
            is_first = False
    return found


def table(found: list[tuple[str, ...]]) -> list[str]:
    """For a terminal."""
    widths = [max(len(row[place]) for row in [HEAD, *found]) for place in range(len(HEAD))]
    lines = [
        "  ".join(
            text.ljust(width) if place < 2 else text.rjust(width)
            for place, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in [HEAD, *found]
    ]
    return [lines[0], "-" * len(lines[0]), *lines[1:]]


def markdown(found: list[tuple[str, ...]]) -> list[str]:
    """For a page."""
    lines = ["| " + " | ".join(HEAD) + " |", "|---|---|" + "---:|" * (len(HEAD) - 2)]
    return lines + ["| " + " | ".join(row) + " |" for row in found]


def generator_alone(generator: LoadGenerator, seconds: float) -> LoadResult:
    with generator.null_broker() as peer:
        return generator.run(peer, Load(window=100, seconds=seconds, is_verified=False))


def verdict(runs: list[Run]) -> list[str]:
    """The ratios that a store in PostgreSQL should reach, and what it reached: medians of the ratios of each round."""
    lines = []
    for peer, window, connections, wanted in postgresql.TARGETS:
        reached = ratio(runs, peer, OURS, Scenario(window=window, connections=connections))
        if reached is not None:
            lines.append(
                f"{peer}, window {window}, {connections} connections: {reached:.2f} x the log on this disk (wanted: {wanted:.2f})"
            )
    return lines


def relaying(generator: LoadGenerator, home: Path, turns: int) -> str:
    """What a node that is not the owner pays to pass messages on."""
    cost = relay_us(generator, home, turns)
    return f"A node that relays takes {cost:.1f} µs of processor time a message at window {RELAY_WINDOW} (wanted: {postgresql.RELAY_US_MAX:.1f} at most)"


def heading(names: list[str], form: str, left_out: list[str]) -> list[str]:
    """What was compared with what, in which versions and with which settings. ``form``: the one that a comparison of stores is made in."""
    lines = [
        "1 KB durable messages over AMQP 1.0. Send + receive: each of the connections (x) is one that sends and one that receives.",
        f"Machine: {machine.description()}.",
    ]
    if "rabbitmq" in names:
        lines.append(
            f"RabbitMQ {rabbitmq.version()} with its default settings and a quorum queue of one member: it flushes before it "
            "answers, as PairBus does."
        )
    if "postgresql" in names:
        lines.append(f"{postgresql.version()}; its processor time is counted with its broker's.")
        lines.append(f"Each broker runs in the {form} form.")
    if "ours" in names:
        lines.append(f"PairBus from this checkout, Python {sys.version.split()[0]}, default settings.")
    return lines + [f"Left out: {text}." for text in left_out]


def footing(runs: list[Run], peers: list[str], sync_ms: float, alone: LoadResult) -> list[str]:
    """What one needs to know to judge the figures."""
    lines = [f"A raw 1 KB write and fdatasync on this disk takes {sync_ms:.2f} ms (median of {PROBES})."]
    for peer in peers:
        own = cell(runs, peer, SCENARIOS[0])
        if own is not None:
            lines.append(f"{peer}, window 1, 1 x: ack p50 is {own.ack_ms_p50 / sync_ms:.1f} raw syncs.")
    lines.append(
        f"The generator alone, against a broker that stores nothing, window 100, 1 x: {alone.msgs_per_s:,.0f} messages/s, "
        f"{alone.generator_cpu_s * 1e6 / alone.messages:.2f} µs of processor time each."
    )
    worst = max(run.foreign_cpus for run in runs)
    busy = sum(run.foreign_cpus > FOREIGN_SHARE_MAX for run in runs)
    lines.append(
        f"Other work on this machine: {busy} of {len(runs)} runs saw more than {FOREIGN_SHARE_MAX} processors of it, "
        f"at most {worst:.2f}. Brokers that are not under load are counted with it."
    )
    return lines


def as_json(runs: list[Run], sync_ms: float, alone: LoadResult) -> str:
    report = {
        "machine": machine.description(),
        "rabbitmq_version": rabbitmq.version() if any(run.peer == BASELINE for run in runs) else None,
        "sync_probe_ms": sync_ms,
        "generator_alone": dataclasses.asdict(alone),
        "runs": [dataclasses.asdict(run) for run in runs],
    }
    return json.dumps(report, indent=1)


def own_brokers(home: Path, stack: ExitStack, wanted: str, left_out: list[str]) -> list[Peer]:
    """Our broker, in each form that was asked for and is there."""
    there = ours.forms()
    if ours.COMPILED not in there and wanted != ours.PURE:
        left_out.append("the compiled form (`make fast` compiles it)")
    chosen = [name for name in there if wanted in ("both", name)]
    return [stack.enter_context(ours.OurBroker(home, form=name, name=f"{OURS} {name}")) for name in chosen]


def one_form(wanted: str) -> str:
    """The form in which stores are compared: the quick one that is there, or the one that was asked for."""
    there = ours.forms()
    if wanted == "both":
        return there[0]
    if wanted not in there:
        raise BenchError(f"the {wanted} form is not there: `make fast` compiles it")
    return wanted


def bench(arguments: argparse.Namespace) -> None:
    names = [arguments.only] if arguments.only else ["ours", "rabbitmq"]
    if arguments.store is not None:
        names = ["ours", arguments.store]
    rounds, seconds, backlog = arguments.rounds, RUN_SECONDS, BACKLOG_MESSAGES
    if arguments.quick:
        rounds, seconds, backlog = 1, QUICK_SECONDS, QUICK_BACKLOG_MESSAGES
    left_out: list[str] = []
    form = one_form(arguments.form) if arguments.store is not None else ""
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pairbus-bench-", dir=BASE)))
        generator = LoadGenerator(home)
        if "rabbitmq" in names:
            try:
                rabbitmq.ensure_installed()
            except BenchError as error:
                if arguments.only:
                    raise
                names.remove("rabbitmq")
                left_out.append(str(error).rstrip("."))
        sync_ms = sync_probe_ms(home)
        alone = generator_alone(generator, seconds)
        peers = []
        if "postgresql" in names:
            peers.append(stack.enter_context(ours.OurBroker(home, name=OURS, form=form)))
            home.chmod(0o755)  # PostgreSQL may run as another user
            peers.extend(postgresql.brokers(home, stack, form))
        elif "ours" in names:
            peers.extend(own_brokers(home, stack, arguments.form, left_out))
        if "rabbitmq" in names:
            peers.append(stack.enter_context(rabbitmq.RabbitMQ(home)))
        if not peers:
            raise BenchError(f"there is nothing to measure: {'; '.join(left_out)}")
        runs = measure_rounds(generator, peers, rounds, seconds, backlog)
        remarks = verdict(runs)
        if "postgresql" in names:
            remarks.append(relaying(generator, home, rounds))
    report(
        arguments,
        runs,
        [peer.name for peer in peers],
        heading(names, form, left_out),
        sync_ms,
        alone,
        remarks,
    )


def report(
    arguments: argparse.Namespace,
    runs: list[Run],
    peers: list[str],
    head: list[str],
    sync_ms: float,
    alone: LoadResult,
    remarks: list[str],
) -> None:
    """Tell a person, and write what was asked for."""
    base = OURS if OURS in peers else BASELINE
    found = rows(runs, peers, base)
    foot = footing(runs, peers, sync_ms, alone)
    head.append(
        f"Ratios are to {base}: medians over {len(runs) // len(peers) // len(SCENARIOS)} rounds, as all figures are."
    )
    with redirect_stdout(sys.stderr if arguments.json == STANDARD_OUTPUT else sys.stdout):
        print("\n".join(["", *head, "", *table(found), "", *remarks, *foot]))
    if arguments.markdown is not None:
        lines = [*(f"- {line}" for line in head), "", *markdown(found), "", *(f"- {line}" for line in foot)]
        Path(arguments.markdown).write_text("\n".join(lines) + "\n")
    if arguments.json == STANDARD_OUTPUT:
        print(as_json(runs, sync_ms, alone))
    elif arguments.json is not None:
        Path(arguments.json).write_text(as_json(runs, sync_ms, alone) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.broker", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short round")
    parser.add_argument(
        "--rounds", type=int, default=ROUNDS, metavar="N", help=f"how many rounds; default: {ROUNDS}"
    )
    parser.add_argument(
        "--form",
        choices=("both", ours.COMPILED, ours.PURE),
        default="both",
        help="measure our broker in one form only; default: in each that is there, with --store in the quicker one",
    )
    parser.add_argument("--markdown", metavar="FILE", help="write the table to FILE, for a page")
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
