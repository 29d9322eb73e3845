"""Processor time in nanoseconds: the ticks of 10 ms that `bench.peer` reads are too coarse for runs of half a second."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from bench.peer import cpu_seconds


def processor_s(root: int) -> float:
    """Processor time of a process and its descendants, those that run now. In ticks where the kernel keeps nothing finer."""
    if not Path("/proc/self/schedstat").exists():
        return cpu_seconds(root)
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            text = entry.read_text()
            parents.setdefault(int(text.rpartition(")")[2].split()[1]), []).append(int(entry.parent.name))
    total, pending = 0, [root]
    while pending:
        pid = pending.pop()
        pending += parents.get(pid, [])
        for file in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            with suppress(OSError):
                total += int(file.read_text().split()[0])
    return total / 1e9
