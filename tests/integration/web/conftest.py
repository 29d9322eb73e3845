"""What the tests of the page share: a browser, and a namespace with something of everything in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pairbus.testing import Namespace
from tests.integration.web.chromium import Browser
from tests.integration.web.kit import stocked


@pytest.fixture(scope="module")
def namespace() -> Iterator[Namespace]:
    """For tests that change little."""
    with stocked() as running:
        yield running


@pytest.fixture
def fresh() -> Iterator[Namespace]:
    """For tests that change what the others show."""
    with stocked() as running:
        yield running


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    with Browser(tmp_path / "profile") as running:
        running.size(1280, 860)
        yield running
        assert running.errors == []
