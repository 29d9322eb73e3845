from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.drain.virtual_loop import VirtualLoop


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    started = VirtualLoop()
    yield started
    started.close()
