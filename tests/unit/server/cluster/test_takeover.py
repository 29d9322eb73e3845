"""Takeovers that failed, owners that were seen, and what /health says meanwhile."""

from __future__ import annotations

import pytest

from pairbus.server.cluster.health import REPORT_WAITS_MS, report_warning, silent_reason
from pairbus.server.cluster.ownership.keeper import LeaseView
from pairbus.server.cluster.ownership.lease import LeaseCall, LeaseState
from pairbus.server.cluster.ownership.takeover import PAUSE_MS_MAX, PAUSE_MS_MIN, SeenOwners, Takeovers
from pairbus.server.cluster.relaying.relay import Route, RouteKind
from pairbus.storage.table.ports import REQUEST_DRAIN, Ownership


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
            "has not answered for 3.0 s: a renewal of the lease is under way",
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
    view = LeaseView(LeaseState(state), None, None, "", (), lag_ms, failure=failure, call=LeaseCall.RENEW)
    reason = silent_reason(view, Route(RouteKind.WAIT), 2_000, takeover)
    assert said in reason
    assert bool(said) == bool(reason)


@pytest.mark.promise("S8")
@pytest.mark.parametrize(
    ("lag_ms", "failure", "said"),
    [
        (100, "", "the last lease that this node knows of has ended, and the database tells of no other"),
        (9_000, "", "the database has not answered for 9.0 s: a look at the lease is under way"),
        (9_000, "nobody takes writes", "the database has not answered for 9.0 s: nobody takes writes"),
    ],
)
def test_a_relay_whose_last_lease_has_ended_says_that_of_a_silent_database_only_what_it_knows(
    lag_ms: int, failure: str, said: str
) -> None:
    view = LeaseView(LeaseState.IDLE, None, None, "", (), lag_ms, failure=failure, call=LeaseCall.LOOK)
    assert silent_reason(view, Route(RouteKind.RELAY, "10.0.0.1:5671"), 2_000, "") == said


def test_a_second_process_of_a_node_says_why_it_serves_nobody() -> None:
    view = LeaseView(LeaseState.IDLE, None, None, "", (), 100, doubled="another process reports")
    assert silent_reason(view, Route(RouteKind.WAIT), 2_000, "") == "another process reports"


@pytest.mark.promise("S8")
@pytest.mark.parametrize(
    ("call", "said"),
    [
        (LeaseCall.ACQUIRE, "this node is taking the lease"),
        (LeaseCall.RELEASE, "the lease is being given back"),
        (LeaseCall.NONE, "this node has not asked since: it was paused, or its machine is too busy"),
    ],
)
def test_a_silent_node_names_the_call_that_waits(call: LeaseCall, said: str) -> None:
    view = LeaseView(LeaseState.SILENT, None, None, "", (), 3_000, call=call)
    reason = silent_reason(view, Route(RouteKind.CLOSE), 2_000, "")
    assert reason == f"the database has not answered for 3.0 s: {said}"


@pytest.mark.parametrize(
    ("waits_ms", "waits_for", "said"),
    [
        (REPORT_WAITS_MS - 1, "", ""),
        (4_000, "", "the database has not answered this node's report for 4.0 s. `pairbus cluster status`"),
        (4_000, "a lock", "the database has not answered this node's report for 4.0 s: a lock. `pairbus"),
    ],
)
def test_a_report_that_waits_is_a_warning_and_no_reason(waits_ms: int, waits_for: str, said: str) -> None:
    """Clients are served all the same: the lease is renewed beside it."""
    view = LeaseView(
        LeaseState.IDLE, None, None, "", (), 100, report_waits_ms=waits_ms, report_waits_for=waits_for
    )
    assert report_warning(view).startswith(said)
    assert bool(report_warning(view)) == bool(said)
    assert silent_reason(view, Route(RouteKind.WAIT), 2_000, "") == ""


@pytest.mark.parametrize(
    ("asked", "owner", "said"),
    [
        (REQUEST_DRAIN, Ownership(3, "", "", 0), "this node takes no part (`pairbus cluster drain`)"),
        ("", Ownership(3, "a", "10.0.0.1:5671", 0), "the lease of a has ended, and no node has taken"),
        ("", Ownership(3, "", "", 0), ""),
    ],
)
def test_a_node_without_an_owner_says_whom_it_waits_for(asked: str, owner: Ownership, said: str) -> None:
    view = LeaseView(LeaseState.IDLE, None, owner, asked, (), 100)
    reason = silent_reason(view, Route(RouteKind.WAIT), 2_000, "")
    assert reason.startswith(said)
    assert bool(reason) is bool(said)
