from __future__ import annotations

import pytest

from tests.unit.pairing.fake_sdk import Stage


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    return Stage(monkeypatch)
