from __future__ import annotations

import pytest

from pairbus.storage.log.store import LogStore
from tests.simulation.disk import SimulatedDisk
from tests.unit.storage.helpers import ready_log


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk()


@pytest.fixture
def store(disk: SimulatedDisk) -> LogStore:
    return ready_log(disk)
