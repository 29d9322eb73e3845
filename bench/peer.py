"""What a broker under test tells the benchmark: where it listens, who may enter, which process to charge."""

from __future__ import annotations

import os
import socket
import sys
from dataclasses import dataclass
from pathlib import Path

CLOCK_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class BenchError(Exception):
    """The benchmark cannot go on; the text says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A broker that is up and has one empty durable queue."""

    name: str
    host: str
    port: int
    user: str
    password: str
    address: str
    pid: int
    beside: tuple[int, ...] = ()
    """Further processes that work for this broker, such as its database."""
    http: str = ""
    """Where our own broker answers HTTP."""

    def cpu_seconds(self) -> float:
        """CPU time of everything that works for this broker."""
        return sum(map(cpu_seconds, (self.pid, *self.beside)))


def progress(text: str) -> None:
    """Show a person who waits what is under way."""
    if sys.stderr.isatty():
        print(f"{text} …", file=sys.stderr, flush=True)


def free_port() -> int:
    """A loopback port that nobody listens on right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _stat_fields(pid: str) -> list[str] | None:
    try:
        text = Path("/proc", pid, "stat").read_text()
    except OSError:
        return None  # ended between listing and reading
    return text[text.rindex(")") + 2 :].split()


def cpu_seconds(root: int) -> float:
    """CPU time of a process and all its descendants, the ended ones included."""
    stats = {
        int(pid): fields for pid in os.listdir("/proc") if pid.isdigit() and (fields := _stat_fields(pid))
    }
    children: dict[int, list[int]] = {}
    for pid, fields in stats.items():
        children.setdefault(int(fields[1]), []).append(pid)
    ticks, pending = 0, [root]
    while pending:
        pid = pending.pop()
        if pid in stats:
            ticks += sum(int(value) for value in stats[pid][11:15])  # utime stime cutime cstime
        pending += children.get(pid, [])
    return ticks / CLOCK_TICKS_PER_S
