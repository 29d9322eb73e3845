"""A flood of management requests is told to wait, before anything is done for it (M12)."""

from __future__ import annotations

import pytest

from pairbus.gateway.http import BURST, STRANGER_BURST, RateLimit
from tests.unit.gateway.wire_bench import WireBench, token


@pytest.mark.promise("M12")
def test_bucket_gives_its_burst_then_the_rate_and_fills_up_again() -> None:
    limit = RateLimit(per_second=10, burst=3)

    taken = [limit.takes(now) for now in (1_000, 1_000, 1_000, 1_000, 1_099, 1_100, 1_100, 60_000)]

    assert taken == [True, True, True, False, False, True, False, True]


@pytest.mark.promise("M12")
def test_clock_that_stands_still_or_steps_back_gives_nothing_more() -> None:
    limit = RateLimit(per_second=10, burst=1)

    assert [limit.takes(now) for now in (5_000, 5_000, 4_000)] == [True, False, False]


@pytest.mark.promise("M12")
def test_requests_beyond_the_limit_get_server_busy_and_a_moment_to_wait(bench: WireBench) -> None:
    target = "/$Resources/queues?api-version=2021-05"
    good = token("root", "root-1")

    statuses = [bench.http("GET", target, good).status for _ in range(BURST + 1)]
    late = bench.http("GET", target, good)
    bench.now += 1_000

    assert statuses == [200] * BURST + [503]
    assert ("Retry-After", "1") in late.headers
    assert bench.http("GET", target, good).status == 200


@pytest.mark.promise("M12")
def test_strangers_use_up_nothing_of_what_callers_with_a_key_get(bench: WireBench) -> None:
    target = "/$Resources/queues?api-version=2021-05"
    strangers = (None, "SharedAccessSignature nonsense", token("root", "wrong"), "Basic cm9vdDp3cm9uZw==")

    statuses = [bench.http("GET", target, strangers[i % 4]).status for i in range(STRANGER_BURST + 1)]
    metrics = bench.http("GET", "/metrics", None).status
    known = [bench.http("GET", target, token("root", "root-1")).status for _ in range(BURST)]

    assert statuses == [401] * STRANGER_BURST + [503]
    assert metrics == 503
    assert known == [200] * BURST


@pytest.mark.promise("M12")
def test_a_caller_who_waits_is_served_whatever_known_callers_do(bench: WireBench) -> None:
    target = "/$Resources/queues?api-version=2021-05"
    for _ in range(BURST + 1):
        bench.http("GET", target, token("root", "root-1"))

    assert bench.http("GET", target, None).status == 401
