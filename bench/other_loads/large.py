"""Large messages: bytes a second beside plain writes to the same disk."""

from __future__ import annotations

import os
import time
from pathlib import Path
from statistics import median
from typing import Final

from bench.other_loads.client import receive, send
from bench.other_loads.kit import MIB, Row, Setting, cost_of
from bench.ours import OurBroker

SIZES: Final = (100_000, 1_000_000)
TURN_BYTES: Final = 60_000_000
IN_FLIGHT_BYTES: Final = 2_000_000


def _written_mib_per_s(directory: Path, size: int) -> float:
    """Plain writes of as many bytes at once as are in flight, each followed by a sync."""
    path = directory / "plain"
    piece = b"x" * max(size, IN_FLIGHT_BYTES)
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY, 0o600)
    started, written = time.perf_counter(), 0
    try:
        while written < TURN_BYTES:
            written += os.write(descriptor, piece)
            os.fdatasync(descriptor)
    finally:
        os.close(descriptor)
        path.unlink()
    return written / MIB / (time.perf_counter() - started)


def measure(setting: Setting) -> list[Row]:
    rows = []
    settings = {"MaxSizeInMegabytes": 5120, "MaxMessageSizeInKilobytes": 2048}
    declared = {"Queues": [{"Name": "large", "Properties": settings}]}
    with OurBroker(setting.home, declared=declared) as peer:
        for size in SIZES:
            setting.show(f"messages of {size // 1000} KB")
            body, count = b"x" * size, TURN_BYTES // size
            in_flight = max(2, IN_FLIGHT_BYTES // size)
            disk, sent, received, send_cpu, receive_cpu = [], [], [], [], []
            for _ in range(setting.rounds):
                disk.append(_written_mib_per_s(setting.home, size))
                out = cost_of(peer, lambda: send(peer, "large", body, count, in_flight))  # noqa: B023
                back = cost_of(peer, lambda: receive(peer, "large", count, in_flight))  # noqa: B023
                sent.append(out.per_s * size / MIB)
                received.append(back.per_s * size / MIB)
                send_cpu.append(out.cpu_us / size * MIB)
                receive_cpu.append(back.cpu_us / size * MIB)
            rows.append(
                Row(
                    load=f"messages of {size // 1000} KB: send",
                    cost=median(sent),
                    yardstick=median(disk),
                    unit="MiB/s beside plain write + sync",
                    note=f"{median(send_cpu):,.0f} µs CPU a MiB",
                )
            )
            rows.append(
                Row(
                    load=f"messages of {size // 1000} KB: receive",
                    cost=median(received),
                    yardstick=median(disk),
                    unit="MiB/s beside plain write + sync",
                    note=f"{median(receive_cpu):,.0f} µs CPU a MiB",
                )
            )
    return rows
