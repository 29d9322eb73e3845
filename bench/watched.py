"""The `pairbus` command with a stop-watch in its event loop.

    python -m bench.watched serve …

On SIGUSR2 it writes the longest callbacks since the last time to the file that ``PAUSES_FILE`` names. Two clocks are kept: the wall's,
which other programs on the machine lengthen too, and the processor time of the loop's thread, which they do not.
"""

from __future__ import annotations

import asyncio.events
import gc
import heapq
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, Final

from pairbus.cli import main as command

PAUSES_FILE: Final = "PAIRBUS_BENCH_PAUSES"
KEPT: Final = 5
SHORT_NS: Final = 1_000_000
"""Callbacks below this are not looked at."""

_longest: dict[str, list[tuple[float, str]]] = {"cpu": [], "wall": [], "gc": []}
_gc_started: list[int] = []


def _keep(kind: str, ns: int, what: str) -> None:
    kept = _longest[kind]
    if len(kept) < KEPT:
        heapq.heappush(kept, (ns / 1e6, what))
    elif ns / 1e6 > kept[0][0]:
        heapq.heapreplace(kept, (ns / 1e6, what))


def _watch() -> None:
    run = asyncio.events.Handle._run
    thread_ns, wall_ns = time.thread_time_ns, time.perf_counter_ns

    def watched(handle: Any) -> None:
        wall, cpu = wall_ns(), thread_ns()
        run(handle)
        cpu_took, wall_took = thread_ns() - cpu, wall_ns() - wall
        if cpu_took > SHORT_NS:
            _keep("cpu", cpu_took, repr(handle._callback)[:200])
        if wall_took > SHORT_NS:
            _keep("wall", wall_took, repr(handle._callback)[:200])

    asyncio.events.Handle._run = watched  # type: ignore[method-assign]
    gc.callbacks.append(_collected)


def _collected(phase: str, info: dict[str, int]) -> None:
    if phase == "start":
        _gc_started.append(time.thread_time_ns())
    elif _gc_started:
        _keep("gc", time.thread_time_ns() - _gc_started.pop(), f"generation {info['generation']}")


def _tell(_number: int, _frame: object) -> None:
    file = Path(os.environ[PAUSES_FILE])
    told = {kind: sorted(kept, reverse=True) for kind, kept in _longest.items()}
    for kept in _longest.values():
        kept.clear()
    unfinished = file.with_suffix(".new")
    unfinished.write_text(json.dumps(told))
    unfinished.rename(file)


def main() -> None:
    signal.signal(signal.SIGUSR2, _tell)
    _watch()
    command(sys.argv[1:])


if __name__ == "__main__":
    main()
