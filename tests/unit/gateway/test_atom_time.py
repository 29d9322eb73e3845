from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.errors import ArgumentError
from pairbus.gateway.atom.times import FOREVER_TEXT, NEVER_TEXT, duration, duration_ms, instant, instant_ms
from pairbus.model.entity import FOREVER_MS


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("PT1M", 60_000),
        ("PT5S", 5_000),
        ("PT0.5S", 500),
        ("P1D", 86_400_000),
        ("P7D", 604_800_000),
        ("P1DT2H3M4.567S", 93_784_567),
        (FOREVER_TEXT, FOREVER_MS),
    ],
)
def test_durations_are_exact_both_ways(text: str, ms: int) -> None:
    assert duration_ms("x", text) == ms
    assert duration(ms) == text


def test_the_longest_duration_survives_the_python_client_rounding_it() -> None:
    # It reads 5.4775807 as 5.477581 and sends 5.47758 or what a double makes of it (SDK, avoid_timedelta_overflow).
    for text in ("P10675199DT2H48M5.47758S", "P10675199DT2H48M5.477581S", "P10675199DT2H48M5.477539S"):
        assert duration_ms("x", text) == FOREVER_MS


@given(st.integers(min_value=0, max_value=FOREVER_MS))
def test_any_duration_comes_back(ms: int) -> None:
    assert duration_ms("x", duration(ms)) == ms


@pytest.mark.parametrize(
    "text", ["", "P", "PT", "1M", "PT1X", "P1Y", "-PT1S", "PT1M ", "P10675200D", "P1D" * 40]
)
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ArgumentError, match="LockDuration is"):
        duration_ms("LockDuration", text)


def test_instants_have_seven_digits() -> None:
    assert instant(1_767_225_600_123) == "2026-01-01T00:00:00.1230000Z"
    assert instant(0) == NEVER_TEXT
    assert instant(10**18) == "9999-12-31T23:59:59.9990000Z"


@given(st.integers(min_value=1, max_value=253_402_300_799_999))
def test_any_instant_comes_back(ms: int) -> None:
    assert instant_ms("x", instant(ms)) == ms


@pytest.mark.parametrize("text", ["", "yesterday", "2026-13-01T00:00:00Z", "2026-01-01"])
def test_what_is_no_instant_is_refused(text: str) -> None:
    with pytest.raises(ArgumentError, match="CreatedTime is"):
        instant_ms("CreatedTime", text)
