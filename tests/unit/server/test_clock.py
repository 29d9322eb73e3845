from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.server.clock import BrokerClock

MS = 1_000_000


class Times:
    def __init__(self) -> None:
        self.wall = 1_700_000_000_000 * MS
        self.real = 0

    def pass_ms(self, ms: int) -> None:
        self.wall += ms * MS
        self.real += ms * MS

    def clock(self) -> BrokerClock:
        return BrokerClock(lambda: self.wall, lambda: self.real)


def test_clock_follows_an_undisturbed_wall_clock_exactly() -> None:
    times = Times()
    clock = times.clock()

    times.pass_ms(1234)

    assert clock() == times.wall // MS


@pytest.mark.promise("B26")
def test_clock_follows_a_wall_clock_that_runs_a_hundredth_slower_than_the_monotonic_one() -> None:
    times = Times()
    clock = times.clock()

    for _ in range(1_000):
        times.wall += 1_000 * MS
        times.real += 1_010 * MS
        clock()

    assert (clock(), clock.lead_ms()) == (times.wall // MS, 0)


@pytest.mark.promise("B65")
def test_forward_step_is_adopted_at_once() -> None:
    times = Times()
    clock = times.clock()

    times.wall += 3_600_000 * MS

    assert clock() == times.wall // MS


@pytest.mark.promise("B20")
def test_backward_step_never_takes_the_clock_back_nor_stops_it() -> None:
    times = Times()
    clock = times.clock()
    before = clock()
    times.wall -= 60_000 * MS

    times.pass_ms(1_000)

    assert clock() == before + 990


@pytest.mark.promise("B65")
def test_clock_meets_the_wall_again_after_a_backward_step() -> None:
    times = Times()
    clock = times.clock()
    times.wall -= 60_000 * MS

    for _ in range(6_001):
        times.pass_ms(1_000)
        clock()

    assert clock() == times.wall // MS


@pytest.mark.promise("B20")
@given(st.lists(st.tuples(st.integers(0, 10_000), st.integers(-(10**7), 10**7)), max_size=50))
def test_clock_never_goes_back_and_never_stops_whatever_the_wall_does(
    steps: list[tuple[int, int]],
) -> None:
    times = Times()
    clock = times.clock()
    last = clock()

    for passed, step in steps:
        times.pass_ms(passed)
        times.wall += step * MS
        now = clock()
        assert now >= last + passed * 99 // 100 - 1
        last = now


@pytest.mark.promise("B49", "B65")
@given(st.integers(1, 7_200_000), st.integers(1_000, 86_400_000))
def test_what_begins_after_a_backward_step_is_late_by_a_hundredth_at_most(back: int, length: int) -> None:
    times = Times()
    clock = times.clock()
    times.wall -= back * MS
    end = clock() + length

    times.pass_ms(length + length // 99 + 2)

    assert clock() >= end


@given(st.lists(st.tuples(st.integers(0, 10_000), st.integers(-(10**7), 10**7)), max_size=50))
def test_the_lead_always_leads_back_to_the_wall_clock(steps: list[tuple[int, int]]) -> None:
    times = Times()
    clock = times.clock()
    for passed, step in steps:
        times.pass_ms(passed)
        times.wall += step * MS
        now = clock()
        assert clock.lead_ms() >= 0
        assert abs(now - clock.lead_ms() - times.wall // MS) <= 1


@pytest.mark.promise("B44", "B45", "B65")
@given(
    st.integers(0, 7_200_000 * MS),
    st.integers(1, 86_400_000),
    st.integers(0, 999_999),
    st.integers(0, 3_600_000),
)
def test_the_instant_of_a_date_comes_with_the_date(
    back_ns: int, ahead_ms: int, part_ns: int, passed: int
) -> None:
    times = Times()
    times.wall += part_ns
    clock = times.clock()
    times.wall -= back_ns
    times.pass_ms(passed)
    now = clock()
    date = times.wall // MS + ahead_ms
    assert now - clock.lead_ms() == times.wall // MS

    instant = clock.instant_of(date)
    times.pass_ms(ahead_ms)

    assert now < instant
    assert abs(clock() - instant) <= 2
