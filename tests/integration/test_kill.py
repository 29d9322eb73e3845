"""The broker is killed under load again and again, and no promise it gave is broken. The short form of the soak."""

from __future__ import annotations

import pytest

from tests.soak.kill import run

KILLS = 8
SEED = 20_261


@pytest.mark.timeout(180)
def test_B01_B05_B13_B17_B19_hold_over_kills_under_load() -> None:
    verdict, events = run(KILLS, SEED)

    print(verdict.summary())
    assert verdict.is_clean, verdict.summary()
    assert verdict.counts["kills"] == KILLS + 1
    # A run in which nothing happened would prove nothing.
    assert verdict.counts["sends acknowledged"] > 100
    assert verdict.counts["complete ok"] > 50
    assert verdict.counts["publishes"] > 20
    assert verdict.counts["transactions"] > 10
    assert verdict.counts["configure ok"] > 5
    assert len(events) > 500
