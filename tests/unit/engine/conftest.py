from __future__ import annotations

import pytest

from pairbus.engine.entity import Entity
from pairbus.engine.queues.queue import Queue
from tests.unit.engine.engine_kit import Bench


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture
def queue(bench: Bench) -> Queue:
    return bench.queue()


@pytest.fixture
def topic(bench: Bench) -> Entity:
    return bench.topic()
