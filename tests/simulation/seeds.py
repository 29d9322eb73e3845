"""Which worlds a simulation runs.

``PAIRBUS_SEED=17`` replays one world. ``PAIRBUS_SEEDS=1000`` runs that many, and ``PAIRBUS_SEEDS=few`` an eighth of those that `make test` runs.
"""

from __future__ import annotations

import os

import pytest

ONE = os.environ.get("PAIRBUS_SEED") or None
"""The world to replay, with its history printed."""

FEW = 8
"""`make check` runs one world where `make test` runs this many."""


def seeds(short: int, least: int = 0) -> list[int]:
    """Return the seeds to run: ``short`` of them in `make test`, and at least ``least`` when a number is given."""
    if ONE:
        return [int(ONE)]
    given = os.environ.get("PAIRBUS_SEEDS") or None
    if given is None:
        return list(range(short))
    return list(range(max(1, short // FEW) if given == "few" else max(int(given), least)))


def groups(numbers: list[int], size: int) -> list[object]:
    """Return the seeds as parameters of ``size`` seeds each: worlds of milliseconds are not worth a test each."""
    return [
        pytest.param(numbers[start : start + size], id=str(numbers[start]))
        for start in range(0, len(numbers), size)
    ]
