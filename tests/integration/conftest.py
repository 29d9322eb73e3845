"""Tests with real processes and sockets get more time: a machine may be busy with others, and a slow run is not a wrong one."""

from __future__ import annotations

from pathlib import Path

import pytest

from pairbus.pairing.client import client as client_module
from pairbus.pairing.client.registry import Registry

TEST_SECONDS_MAX = 300
HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TEST_SECONDS_MAX))


@pytest.fixture(autouse=True)
def own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system gives ports again: a client that an earlier test has left behind must not count as paired with a broker of this one."""
    monkeypatch.setattr(client_module, "pairings", Registry())
