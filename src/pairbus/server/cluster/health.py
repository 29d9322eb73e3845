"""What a node of a cluster answers to ``/health``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from pairbus import __version__
from pairbus.form import FORM
from pairbus.server.cluster.ownership.lease import LeaseCall, LeaseState
from pairbus.server.cluster.relaying.relay import RouteKind
from pairbus.storage.table.ports import MOVER, REQUEST_DRAIN

if TYPE_CHECKING:
    from pairbus.server.cluster.ownership.keeper import LeaseView
    from pairbus.server.cluster.relaying.reach import OwnerReach
    from pairbus.server.cluster.relaying.relay import Route


REPORT_WAITS_MS: Final = 3_000
"""A report that has waited for so long is told of: other nodes and operators soon take the node for late."""
COMMIT_WAITS_MS: Final = 3_000
"""While a commit has waited for so long, the owner is unfit: it answers nobody, although renewals of its lease may pass."""
_CALLS: Final = {
    LeaseCall.LOOK: "a look at the lease is under way",
    LeaseCall.ACQUIRE: "this node is taking the lease",
    LeaseCall.RENEW: "a renewal of the lease is under way",
    LeaseCall.RELEASE: "the lease is being given back",
    LeaseCall.NONE: "this node has not asked since: it was paused, or its machine is too busy",
}


def role_and_reason(
    route: Route,
    reach: OwnerReach,
    view: LeaseView | None,
    *,
    is_lease_over: bool,
    commit_waits_ms: int,
    lease_ms: int,
    failed_takeover: str,
) -> tuple[str, str]:
    """What a node is, and why if it is ``silent``; ``view``: None before it has a lease to keep."""
    if view is None:
        return role_of(route, reach, is_lease_over)
    role, reason = role_of(route, reach, is_lease_over, commit_trouble(commit_waits_ms, view))
    if role == "silent" and not reason:
        reason = silent_reason(view, route, lease_ms, failed_takeover)
    return role, reason


def role_of(route: Route, reach: OwnerReach, is_lease_over: bool, commit: str = "") -> tuple[str, str]:
    """What a node is, and why if it is ``silent`` because it cannot reach the owner, or as the owner because of ``commit``."""
    if route.kind is RouteKind.LOCAL:
        return ("silent" if commit else "owner"), commit
    if route.kind is not RouteKind.RELAY:
        return "silent", ""
    if trouble := reach.trouble():
        return "silent", trouble
    return ("silent" if is_lease_over else "relay"), ""


def commit_trouble(waits_ms: int, view: LeaseView) -> str:
    """Why an owner whose commit has waited for so long answers nobody; empty: it answers."""
    if waits_ms < COMMIT_WAITS_MS:
        return ""
    why = f": {view.commit_waits_for}" if view.commit_waits_for else ""
    return f"the database has not answered a commit for {waits_ms / 1000:.1f} s{why}"


def silent_reason(view: LeaseView, route: Route, lease_ms: int, failed_takeover: str) -> str:
    """Why a node that is ``silent`` and has no owner to relay to serves nobody; empty: an owner is about to be found."""
    failure = f": {view.failure}" if view.failure else ""
    if view.state is LeaseState.FENCED:
        return str(view.ending) if view.ending is not None else "another node has taken the namespace"
    if view.lag_ms >= lease_ms // 2:
        # Without an error it was reached, and what it waits for is not known here.
        waited = f"the database has not answered for {view.lag_ms / 1000:.1f} s"
        return f"{waited}{failure or ': ' + _CALLS[view.call]}"
    if view.doubled:
        return view.doubled
    if view.ownership is not None and view.ownership.owner == MOVER and view.ownership.remaining_ms > 0:
        return "`pairbus store move` moves the namespace: this node waits for its end"
    if failed_takeover:
        return f"this node could not take over: {failed_takeover}"
    if view.state is LeaseState.REPLAYING:
        return "this node became the owner and reads the log"
    if failure:
        return f"the database failed{failure}"
    if view.asked == REQUEST_DRAIN:
        return "this node takes no part (`pairbus cluster drain`), and no other one owns the namespace"
    if route.kind is RouteKind.RELAY:
        return "the last lease that this node knows of has ended, and the database tells of no other"
    if view.ownership is not None and view.ownership.owner and view.ownership.remaining_ms <= 0:
        return f"the lease of {view.ownership.owner} has ended, and no node has taken the namespace yet"
    return ""


def report_warning(view: LeaseView) -> str:
    """What is wrong with the reports of a node, by which others know it; empty: nothing. Its clients are served all the same."""
    if view.doubled or view.report_waits_ms < REPORT_WAITS_MS:
        return view.doubled
    why = f": {view.report_waits_for}" if view.report_waits_for else ""
    return (
        f"the database has not answered this node's report for {view.report_waits_ms / 1000:.1f} s{why}. `pairbus cluster status` "
        "shows what the node reported last, and what is asked of it waits"
    )


def health_answer(
    target: str, role: str, namespace: str, standing: Mapping[str, str], reason: str, warning: str = ""
) -> tuple[int, str, bytes]:
    """The status, the content type and the body.

    Args:
        target: The path that was asked for.
        role: Of this node.
        namespace: Of this node.
        standing: What else is known of it.
        reason: Why no client is served through this node; empty: not known, or one is.
        warning: What is wrong although clients are served; empty: nothing.
    """
    is_fit = role == "owner" if target.endswith("/owner") else role in ("owner", "relay")
    body = {
        "status": "healthy" if is_fit else "unhealthy",
        "namespace": namespace,
        "version": __version__,
        "form": FORM.name,
        "compiled": list(FORM.parts),
        **standing,
        **({"reason": reason} if reason else {}),
        **({"warning": warning} if warning else {}),
    }
    status = HTTPStatus.OK if is_fit else HTTPStatus.SERVICE_UNAVAILABLE
    return int(status), "application/json", json.dumps(body).encode() + b"\n"
