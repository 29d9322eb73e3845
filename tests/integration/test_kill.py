"""The broker is killed under load again and again, and no promise it gave is broken. The short form of the soak."""

from __future__ import annotations

import pytest

from tests.soak.kill import run

KILLS = 8
SEED = 20_261
AT_LEAST = {
    "sends acknowledged": 100,
    "complete ok": 50,
    "publishes": 20,
    "transactions": 10,
    "configure ok": 5,
}
"""A run in which nothing happened would prove nothing."""


@pytest.mark.timeout(900)
def test_B01_B05_B13_B17_B19_hold_over_kills_under_load() -> None:
    verdict, events = run(KILLS, SEED, at_least=AT_LEAST)

    print(verdict.summary())
    assert verdict.is_clean, verdict.summary()
    assert verdict.counts["kills"] == KILLS + 1
    for name, number in AT_LEAST.items():
        assert verdict.counts[name] > number, name
    assert len(events) > 500
