"""Tests that share something run in one process, and long ones begin first."""

from __future__ import annotations

import pytest

from tests.scheduling import rank_of, unit_of

SHARING = "tests/integration/cli/test_store_command.py::test_x"
ALONE = "tests/integration/package/test_docs.py::test_block_runs[README.md:1]"
WORLD = "tests/simulation/test_broker_world.py::test_x[1]"
UNIT = "tests/unit/test_scheduling.py::test_x"
SPARK = "tests/integration/spark/test_source.py::test_x"


@pytest.mark.parametrize(
    ("test_id", "unit"),
    [
        (SPARK, "tests/integration/spark/"),
        ("tests/integration/reports/test_reconcile.py::test_x[spark]", "tests/integration/spark/"),
        (SHARING, "tests/integration/cli/test_store_command.py"),
        (ALONE, ALONE),
        (WORLD, WORLD),
        ("tests/simulation/test_power_loss.py::test_x[1]", "tests/simulation/test_power_loss.py"),
        (UNIT, "tests/unit/test_scheduling.py"),
    ],
)
def test_what_runs_in_one_process(test_id: str, unit: str) -> None:
    assert unit_of(test_id) == unit


def test_what_takes_long_begins_first() -> None:
    assert sorted([UNIT, WORLD, ALONE, SHARING, SPARK], key=rank_of) == [SPARK, SHARING, ALONE, WORLD, UNIT]
