from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from tests.unit.drain.virtual_loop import VirtualLoop
from tests.unit.pairing.fake_sdk import Stage, nothing_left


def pytest_asyncio_loop_factories(item: pytest.Item) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Tests of a paired client on a false clock run on virtual time, all others as everywhere."""
    names = getattr(item, "fixturenames", ())
    is_virtual = "loop" in names or "scene" in names
    return {"virtual": VirtualLoop} if is_virtual else {"asyncio": asyncio.new_event_loop}


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    return Stage(monkeypatch)


@pytest.fixture
async def loop(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[VirtualLoop]:
    """A false clock for a paired client and everything it waits for. What a test leaves behind is an error."""
    running = asyncio.get_running_loop()
    assert isinstance(running, VirtualLoop)
    monkeypatch.setattr("pairbus.pairing.clock.steady_ms", running.now_ms)
    yield running
    nothing_left()
