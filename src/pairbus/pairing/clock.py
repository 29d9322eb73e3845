"""The two clocks of a paired client. Deciding code never asks them: it is given the time."""

from __future__ import annotations

import time


def steady_ms() -> int:
    """Milliseconds of a clock that never steps."""
    return time.monotonic_ns() // 1_000_000


def wall_ms() -> int:
    """The time of day, in milliseconds since the Unix epoch."""
    return time.time_ns() // 1_000_000
