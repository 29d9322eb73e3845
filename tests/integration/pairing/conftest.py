"""What the tests of the paired client share."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from pairbus.testing import Namespace, Pair


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """State goes to the test's own directory, and the SDK does not log every failure that a test provokes."""
    monkeypatch.setenv("PAIRBUS_STATE_DIR", str(tmp_path / "state"))
    logging.getLogger("azure").setLevel(logging.CRITICAL)


@pytest.fixture
def pair() -> Iterator[Pair]:
    with Pair(Namespace("contoso", queues=["orders"]), Namespace("fabrikam")) as started:
        yield started
