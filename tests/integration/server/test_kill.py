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


@pytest.mark.promise("B1", "B5", "B13", "B17", "B19")
@pytest.mark.timeout(900)
def test_kills_under_load_lose_nothing_and_bring_nothing_back() -> None:
    verdict, events = run(KILLS, SEED, at_least=AT_LEAST)

    print(verdict.summary())
    assert verdict.is_clean, verdict.summary()
    assert verdict.counts["kills"] == KILLS + 1
    for name, number in AT_LEAST.items():
        assert verdict.counts[name] > number, name
    assert len(events) > 500
