"""What a benchmark says about the machine, and what else the machine did."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from bench.peer import CLOCK_TICKS_PER_S


def busy_s() -> float:
    """Processor seconds spent by the whole machine, without idling and waiting for disks."""
    words = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    user, nice, system, _idle, _iowait, irq, softirq = (int(word) for word in words[:7])
    return (user + nice + system + irq + softirq) / CLOCK_TICKS_PER_S


def description() -> str:
    """Processors, memory and system, in a line."""
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    return (
        f"{os.cpu_count()} processors ({model}), {memory:.0f} GiB, {platform.system()} {platform.release()}"
    )
