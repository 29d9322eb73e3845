"""`make bench-spark`, its half of bills and certificates: the same data on Spark and in one process (pyarrow), timed side by side.

    python -m bench.bill [--usage-rows N] [--sends N] [--memory 4g] [--master URL]

Ten million rows of usage and ten million sends unless other numbers are given; each job runs once, in a process that is cold, as a user's is. Both engines
must give the same answers, and those that were planted: a difference is an error. CPU seconds stand beside the time, because a machine may have
other work. Both run through the engines that `pairbus cost report` and `pairbus reconcile` use.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import pyarrow
import pyarrow.compute
import pyarrow.dataset
import pyarrow.parquet

from pairbus.cli.reports.spark_report import SETTINGS, driver_memory
from pairbus.reports.bill.catalogue import builtin_tables
from pairbus.reports.bill.days import Pricing
from pairbus.reports.bill.model import UNBILLED_DEFAULT
from pairbus.reports.engines import arrow
from pairbus.reports.engines.audit_log import AUDIT, RECEIVED, SENT
from pairbus.reports.engines.base import Engine
from pairbus.reports.engines.spark import SparkEngine
from pairbus.reports.engines.usage_log import USAGE, usage_range
from pairbus.reports.inputs import find_inputs
from pairbus.spark.session import spark_session

HOURS: Final = 24
MINUTES: Final = 60
START_MS: Final = int(datetime(2026, 11, 15, tzinfo=UTC).timestamp() * 1000)
LOST: Final = 7
REPEATED_EVERY: Final = 1_000
DESTINATIONS: Final = 20
FILES: Final = 8
OPERATIONS: Final = ("send", "receive", "settle", "empty_receive", "ping")


def main() -> int:
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--usage-rows", type=int, default=10_000_000)
    arguments.add_argument("--sends", type=int, default=10_000_000)
    arguments.add_argument("--memory", default=driver_memory(), help="of Spark's driver")
    arguments.add_argument("--master")
    arguments.add_argument("--directory", default="/var/tmp", help="where the data lies meanwhile")
    given = arguments.parse_args()
    work = Path(tempfile.mkdtemp(prefix="pairbus-bill-", dir=given.directory))
    try:
        return measure(work, given)
    finally:
        shutil.rmtree(work, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class Run:
    """What one job gave, and what it took."""

    found: Any
    seconds: float
    cpu_seconds: float


def measure(work: Path, given: argparse.Namespace) -> int:
    print(f"making {given.usage_rows:,} usage rows and {given.sends:,} sends ...", file=sys.stderr)
    make_usage(work / "usage", given.usage_rows)
    planted = make_ledgers(work, given.sends)
    pool = pyarrow.default_memory_pool()
    one_bill = timed(lambda: bill(arrow, work / "usage"), time.process_time)
    one_answer = timed(lambda: certificate(arrow, work), time.process_time)
    one_memory = pool.max_memory()
    pool.release_unused()
    begun_at = time.perf_counter()
    spark = spark_session("bench", master=given.master, memory=given.memory, settings=SETTINGS)
    session_s = time.perf_counter() - begun_at
    java = Java(spark)
    on_spark = SparkEngine(spark)
    spark_bill = timed(lambda: bill(on_spark, work / "usage"), java.cpu_seconds)
    answer = timed(lambda: certificate(on_spark, work), java.cpu_seconds)
    ordered = timed(lambda: certificate(on_spark, work, with_order=True), java.cpu_seconds)
    print(
        f"\n{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; memory: Spark {java.peak_mb():,} MB (heap {given.memory}), "
        f"pyarrow {one_memory >> 20:,} MB; Spark's session took {session_s:.1f} s more\n"
    )
    print(f"{'':36}{'Spark':>18}{'pyarrow':>18}{'ratio':>16}")
    print(f"{'':36}{'s':>9}{'CPU s':>9}{'s':>9}{'CPU s':>9}{'time':>8}{'CPU':>8}")
    show(f"bill of {given.usage_rows:,} rows", spark_bill, one_bill)
    show(f"certificate of {given.sends:,} sends", answer, one_answer)
    show("... with the order of arrival, warm", ordered, None)
    wrong = [
        text
        for text, is_wrong in (
            (f"bills differ: {spark_bill.found} and {one_bill.found}", spark_bill.found != one_bill.found),
            (
                f"certificates differ: {answer.found}, {ordered.found}, {one_answer.found}, planted {planted}",
                not answer.found == ordered.found == one_answer.found == planted,
            ),
        )
        if is_wrong
    ]
    for text in wrong:
        print(f"WRONG: {text}")
    return 1 if wrong else 0


def show(name: str, on_spark: Run, alone: Run | None) -> None:
    line = f"{name:36}{on_spark.seconds:>9.1f}{on_spark.cpu_seconds:>9.1f}"
    if alone is not None:
        line += f"{alone.seconds:>9.1f}{alone.cpu_seconds:>9.1f}"
        line += f"{on_spark.seconds / alone.seconds:>7.1f}x{on_spark.cpu_seconds / alone.cpu_seconds:>7.1f}x"
    print(line, flush=True)


def timed(work: Callable[[], Any], cpu_seconds: Callable[[], float]) -> Run:
    start, cpu = time.perf_counter(), cpu_seconds()
    found = work()
    return Run(found, time.perf_counter() - start, cpu_seconds() - cpu)


class Java:
    """What Spark's own process has used so far, where the system tells (Linux); tasks of a cluster are not in it."""

    def __init__(self, spark: Any) -> None:
        process = getattr(spark.sparkContext._gateway, "proc", None)
        found = [] if process is None else [process.pid, *_children(process.pid)]
        self._places = [Path(f"/proc/{pid}") for pid in found]

    def cpu_seconds(self) -> float:
        ticks = 0
        for place in self._places:
            if place.exists():
                fields = (place / "stat").read_text().rsplit(")", 1)[1].split()
                ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def peak_mb(self) -> int:
        peaks = [
            int(line.split()[1])
            for place in self._places
            if place.exists()
            for line in (place / "status").read_text().splitlines()
            if line.startswith("VmHWM")
        ]
        return sum(peaks) >> 10


def _children(pid: int) -> list[int]:
    place = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in place.read_text().split()] if place.exists() else []


# -- data ---------------------------------------------------------------------------------------------


def cycle(values: list[str], numbers: pyarrow.Array, stride: int = 1) -> pyarrow.Array:
    """A value for each number: the list over and over, each ``stride`` times."""
    steps = pyarrow.compute.divide(numbers, stride)
    return pyarrow.array(values).take(remainder(steps, len(values)))


def remainder(numbers: pyarrow.Array, divisor: int) -> pyarrow.Array:
    whole = pyarrow.compute.multiply(pyarrow.compute.divide(numbers, divisor), divisor)
    return pyarrow.compute.subtract(numbers, whole)


def make_usage(directory: Path, rows: int) -> None:
    """A day, by hours: every minute has as many entities × operations as it takes."""
    per_minute = max(1, rows // (HOURS * MINUTES * len(OPERATIONS)))
    entities = [f"queue-{at}" for at in range(per_minute)]
    per_hour = MINUTES * len(OPERATIONS) * per_minute
    numbers = pyarrow.array(range(per_hour), pyarrow.int64())
    for hour in range(HOURS):
        minutes = pyarrow.compute.divide(numbers, len(OPERATIONS) * per_minute)
        ones = pyarrow.compute.add(remainder(numbers, 97), 1)
        table = pyarrow.table(
            {
                "bucket": pyarrow.compute.add(
                    pyarrow.compute.multiply(minutes, 60_000), START_MS + hour * 3_600_000
                ).cast(pyarrow.timestamp("ms", tz="UTC")),
                "namespace": cycle(["contoso"], numbers),
                "entity": cycle(entities, numbers, len(OPERATIONS)),
                "operation": cycle(list(OPERATIONS), numbers),
                "stage": cycle(["primary", "backlog"], numbers, len(OPERATIONS)),
                "count": ones,
                "bytes": pyarrow.compute.multiply(ones, 1_000),
                "units": pyarrow.compute.add(ones, 1),
                "connection_peak": pyarrow.compute.multiply(ones, 0).cast(pyarrow.int32()),
            }
        )
        path = directory / f"hour=2026-11-15T{hour:02}" / "part-bench.parquet"
        path.parent.mkdir(parents=True)
        pyarrow.parquet.write_table(table, path, compression="zstd")


def make_ledgers(work: Path, sends: int) -> tuple[int, int, int, int]:
    """What was accepted, lost, repeated and unexpected."""
    lost = {sends * (at + 1) // (LOST + 1) for at in range(LOST)}
    repeated = 0
    for file in range(FILES):
        first, end = sends * file // FILES, sends * (file + 1) // FILES
        numbers = pyarrow.array(range(first, end), pyarrow.int64())
        write_ledger(work / "sent" / f"{file}.parquet", numbers, "sent", 0)
        arrived = [number for number in range(first, end) if number not in lost]
        again = [number for number in arrived if number % REPEATED_EVERY == 1]
        repeated += len(again)
        write_ledger(
            work / "received" / f"{file}.parquet",
            pyarrow.array(arrived + again, pyarrow.int64()),
            "completed",
            500,
        )
    return sends, LOST, repeated, 0


def write_ledger(path: Path, numbers: pyarrow.Array, kind: str, delay_ms: int) -> None:
    text = numbers.cast(pyarrow.string())
    table = pyarrow.table(
        {
            "time": pyarrow.compute.add(numbers, START_MS + delay_ms).cast(pyarrow.timestamp("ms", tz="UTC")),
            "kind": cycle([kind], numbers),
            "entity": cycle([f"orders-{at}" for at in range(DESTINATIONS)], numbers),
            "sequence_number": numbers,
            "message_id": pyarrow.compute.binary_join_element_wise("0f9a1c2e-message", text, "-"),
            # Real hashes: anything simpler would compress as no ledger does.
            "sha256": pyarrow.array([sha256(b"%d" % number).hexdigest() for number in numbers.to_pylist()]),
        }
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(table, path, compression="zstd")


# -- engines ------------------------------------------------------------------------------------------


def bill(engine: Engine, directory: Path) -> tuple[int, int]:
    """Rows of the bill's table, and the billed operations."""
    inputs = find_inputs(None, [str(directory)], USAGE)
    pricing = Pricing(tables=builtin_tables(), tier="standard", currency="USD", unbilled=UNBILLED_DEFAULT)
    report = engine.price(usage_range(inputs, None, None), pricing).report
    return report.rows.counted, report.operations


def certificate(engine: Engine, work: Path, with_order: bool = False) -> tuple[int, int, int, int]:
    inputs = {role: find_inputs(None, [str(work / role)], AUDIT) for role in (SENT, RECEIVED)}
    found = engine.reconcile(inputs, None, with_body=True, with_order=with_order).certificate
    return found.accepted, found.fates["lost"], found.fates["repeated"], found.fates["unexpected"]


if __name__ == "__main__":
    sys.exit(main())
