"""Takeovers that failed, owners that were seen, and what /health says meanwhile."""

from __future__ import annotations

import pytest

from pairbus.server.cluster.health import silent_reason
from pairbus.server.cluster.ownership.keeper import LeaseView
from pairbus.server.cluster.ownership.lease import LeaseState
from pairbus.server.cluster.ownership.takeover import PAUSE_MS_MAX, PAUSE_MS_MIN, SeenOwners, Takeovers
from pairbus.server.cluster.relaying.relay import Route, RouteKind


def test_pauses_after_failed_takeovers_grow_until_one_succeeds() -> None:
    takeovers = Takeovers()
    pauses = [takeovers.failed(OSError("too many connections")) for _ in range(9)]
    assert pauses[:3] == [PAUSE_MS_MIN, 2 * PAUSE_MS_MIN, 4 * PAUSE_MS_MIN]
    assert pauses[-1] == PAUSE_MS_MAX
    assert (takeovers.failures, takeovers.reason) == (9, "too many connections")
    takeovers.served()
    assert (takeovers.reason, takeovers.failed(OSError("x"))) == ("", PAUSE_MS_MAX), "another node serves"
    takeovers.succeeded()
    assert takeovers.failed(OSError("x")) == PAUSE_MS_MIN
    assert takeovers.failures == 11


def test_the_first_owner_is_no_change_and_neither_is_a_time_without_one() -> None:
    seen = SeenOwners()
    for epoch, owner in ((0, ""), (1, "a"), (1, "a"), (1, ""), (1, "a")):
        seen.saw(epoch, owner)
    assert seen.changes == 0
    seen.saw(2, "b")
    seen.saw(3, "b")
    assert seen.changes == 2


@pytest.mark.promise("S8")
@pytest.mark.parametrize(
    ("state", "lag_ms", "failure", "takeover", "said"),
    [
        (
            "silent",
            3_000,
            "",
            "",
            "has not answered for 3.0 s: a call is under way",
        ),
        ("silent", 3_000, "refused", "", "has not answered for 3.0 s: refused"),
        ("idle", 100, "", "too many connections", "could not take over: too many connections"),
        ("replaying", 100, "", "", "reads the log"),
        ("replaying", 100, "", "too many connections", "too many connections"),
        ("idle", 100, "refused", "", "the database failed: refused"),
        ("idle", 100, "", "", ""),
    ],
)
def test_a_node_that_serves_nobody_says_why(
    state: str, lag_ms: int, failure: str, takeover: str, said: str
) -> None:
    view = LeaseView(LeaseState(state), None, None, "", (), lag_ms, failure=failure)
    reason = silent_reason(view, Route(RouteKind.WAIT), 2_000, takeover)
    assert said in reason
    assert bool(said) == bool(reason)


@pytest.mark.promise("S8")
@pytest.mark.parametrize(
    ("lag_ms", "failure", "said"),
    [
        (100, "", "the last lease that this node knows of has ended, and the database tells of no other"),
        (9_000, "", "the database has not answered for 9.0 s: a call is under way"),
        (9_000, "nobody takes writes", "the database has not answered for 9.0 s: nobody takes writes"),
    ],
)
def test_a_relay_whose_last_lease_has_ended_says_that_of_a_silent_database_only_what_it_knows(
    lag_ms: int, failure: str, said: str
) -> None:
    view = LeaseView(LeaseState.IDLE, None, None, "", (), lag_ms, failure=failure)
    assert silent_reason(view, Route(RouteKind.RELAY, "10.0.0.1:5671"), 2_000, "") == said


def test_a_second_process_of_a_node_says_why_it_serves_nobody() -> None:
    view = LeaseView(LeaseState.IDLE, None, None, "", (), 100, doubled="another process reports")
    assert silent_reason(view, Route(RouteKind.WAIT), 2_000, "") == "another process reports"
