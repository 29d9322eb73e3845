"""Measures what the model needs and merges it into measured.json: of each figure the best of all rounds, because a busy machine only adds.

A round takes about two minutes. It needs PostgreSQL's server programs, psycopg and a C compiler.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.cells import measure_broker, measure_database
from bench.cells.costs import FILE
from bench.loadgen import LoadGenerator
from bench.machine import busy_s
from bench.peer import progress

FLUSHES = 200
FLUSHED_BYTES = (8 << 10, 16 << 10, 128 << 10, 1184 << 10)
"""A commit of 1, 10, 100 and 1000 messages of 1 KB, in pages of the log."""
HIGHER_IS_BETTER = {"per_s", "messages_per_s"}
WHOLE_ROW_BY = "cpu_us"
"""A row with this figure is kept or replaced as a whole: its other figures explain this one."""
TURNS = 3
"""Short runs of each kind in a round: some of them find the machine less busy."""
SAME_EVERY_TIME = {"bytes", "window", "connections", "writers", "messages"}


def flushes(directory: Path) -> list[dict[str, float]]:
    """One write and fdatasync inside a file that is on disk already, by size."""
    path, found = directory / "flush", []
    handle = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        os.pwrite(handle, bytes(64 << 20), 0)
        os.fsync(handle)
        for size in FLUSHED_BYTES:
            took, data = [], bytes(size)
            for number in range(FLUSHES):
                started = time.perf_counter()
                os.pwrite(handle, data, number * size % ((64 << 20) - size))
                os.fdatasync(handle)
                took.append((time.perf_counter() - started) * 1e3)
            took.sort()
            found.append({"bytes": size, "p10_ms": took[FLUSHES // 10], "p50_ms": took[FLUSHES // 2]})
    finally:
        os.close(handle)
        path.unlink()
    return found


def database_figures(*, standby: bool) -> dict[str, Any]:
    with measure_database.servers(standby=standby) as servers:
        measure_database.commits(servers, 4, 1000)  # to warm up, not counted
        rows: list[dict[str, Any]] = []
        for _ in range(TURNS):
            turn = [
                measure_database.commits(servers, writers, messages)._asdict()
                for messages in measure_database.BATCHES
                for writers in measure_database.WRITERS
            ]
            rows = merged(rows, turn) if rows else turn
        if standby:
            return {"commits_standby": rows}
        best: dict[str, Any] = {}
        for _ in range(TURNS):
            turn_of = {name: one._asdict() for name, one in measure_database.renewals(servers).items()}
            best = merged(best, turn_of) if best else turn_of
        return {
            "commits": rows,
            **best,
            "renewed_together": measure_database.RENEWED_TOGETHER,
            "replay": measure_database.replay(servers)._asdict(),
            "connection_mib": measure_database.connection_memory_mib(servers),
        }


def measure_broker_runs(generator: LoadGenerator, home: Path) -> dict[str, Any]:
    best: dict[str, Any] = {}
    for both, send_only in measure_broker.broker_runs(generator, home, TURNS):
        turn = {"broker": [row._asdict() for row in both], "send_only": send_only._asdict()}
        best = merged(best, turn) if best else turn
    return best


def one_round() -> dict[str, Any]:
    busy, started = busy_s(), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="pairbus-cells-", dir=measure_database.BASE) as name:
        home = Path(name)
        generator = LoadGenerator(home)
        progress("the broker")
        figures: dict[str, Any] = {
            **measure_broker_runs(generator, home),
            "idle": measure_broker.idleness(home)._asdict(),
            "relay_us": measure_broker.relay_us(generator, home, TURNS),
            "flush": flushes(home),
        }
    for standby in (False, True):
        progress(f"PostgreSQL {'with a standby' if standby else 'alone'}")
        figures |= database_figures(standby=standby)
    figures["rounds"] = [
        {
            "at": time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
            "processors": os.cpu_count(),
            "busy_processors": (busy_s() - busy) / (time.monotonic() - started),
            "load_average": os.getloadavg()[0],
        }
    ]
    return figures


def merged(old: Any, new: Any, name: str = "") -> Any:
    """The better of two measurements, figure by figure."""
    if isinstance(new, dict) and WHOLE_ROW_BY in new:
        return min(old, new, key=lambda row: row[WHOLE_ROW_BY])
    if isinstance(new, dict):
        return {
            key: merged(old[key], value, key) if key in old else value
            for key, value in {**old, **new}.items()
        }
    if isinstance(new, list):
        return (
            [*old, *new]
            if name == "rounds"
            else [merged(one, two) for one, two in zip(old, new, strict=True)]
        )
    if name in SAME_EVERY_TIME:
        return new
    return max(old, new) if name in HIGHER_IS_BETTER else min(old, new)


def measure(file: Path = FILE) -> None:
    figures = one_round()
    if file.exists():
        figures = merged(json.loads(file.read_text()), figures)
    file.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    measure()
