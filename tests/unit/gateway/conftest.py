from __future__ import annotations

import pytest

from tests.unit.gateway.wire_bench import WireBench


@pytest.fixture
def bench() -> WireBench:
    return WireBench()
