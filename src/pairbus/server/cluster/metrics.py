"""What a node of a cluster counts; part of ``GET /metrics`` of the owner, and ``GET /health/metrics`` of every node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pairbus.gateway.telemetry.exposition import COUNTER, GAUGE, Family, Metric, Values, metrics_of

if TYPE_CHECKING:
    from pairbus.server.cluster.relaying.relay import RelayStatistics
    from pairbus.storage.table.ports import DatabaseCopies

CLUSTER_METRICS: Final[dict[str, Family]] = {
    "pairbus_cluster_role": (
        GAUGE,
        "1 for what this node is now: owner, relay or silent.",
        ("node", "role"),
    ),
    "pairbus_cluster_epoch": (GAUGE, "Epoch of the owner that this node knows.", ()),
    "pairbus_cluster_owner_changes_total": (
        COUNTER,
        "Changes of owner that this node has seen, after the first owner.",
        (),
    ),
    "pairbus_cluster_failed_takeovers_total": (
        COUNTER,
        "Times that this node gave its lease back, because the database did not let it read the log.",
        (),
    ),
    "pairbus_cluster_silences_total": (
        COUNTER,
        "Times that this node, as the owner, could not renew its lease in time.",
        (),
    ),
    "pairbus_cluster_lease_renewals_total": (
        COUNTER,
        "Renewals of the lease that the database answered.",
        (),
    ),
    "pairbus_cluster_database_failures_total": (
        COUNTER,
        "Calls of the lease that the database did not answer or refused, and looks at a call on any connection that has had no answer for seconds.",
        (),
    ),
    "pairbus_cluster_database_lag_seconds": (
        GAUGE,
        "Time since the database last answered a call of the lease.",
        (),
    ),
    "pairbus_cluster_standby_behind_bytes": (
        GAUGE,
        "Log that a standby of the database has not flushed yet, as the owner sees it; only where its role may see it.",
        ("standby", "state"),
    ),
    "pairbus_cluster_relayed_connections": (GAUGE, "Connections that are relayed to the owner now.", ()),
    "pairbus_cluster_relayed_connections_total": (COUNTER, "Connections that were relayed.", ()),
    "pairbus_cluster_relay_failures_total": (
        COUNTER,
        "Connections to the owner that this node could not make, or whose other end said nothing or was another node.",
        (),
    ),
    "pairbus_cluster_refused_connections_total": (
        COUNTER,
        "Connections that this node did not relay, by reason; made_room: it was full and cut the connection for a new one.",
        ("reason",),
    ),
    "pairbus_cluster_waiting_connections": (GAUGE, "Connections that wait for an owner.", ()),
}
ROLES: Final = ("owner", "relay", "silent")


def cluster_metrics(
    *,
    node: str,
    role: str,
    epoch: int,
    owner_changes: int,
    failed_takeovers: int,
    silences: int,
    renewals: int,
    failures: int,
    lag_ms: int,
    copies: DatabaseCopies | None,
    relay: RelayStatistics,
) -> list[Metric]:
    """All of them, as one node sees itself."""
    values: dict[str, Values] = {
        "pairbus_cluster_role": {(node, one): int(one == role) for one in ROLES},
        "pairbus_cluster_epoch": {(): epoch},
        "pairbus_cluster_owner_changes_total": {(): owner_changes},
        "pairbus_cluster_failed_takeovers_total": {(): failed_takeovers},
        "pairbus_cluster_silences_total": {(): silences},
        "pairbus_cluster_lease_renewals_total": {(): renewals},
        "pairbus_cluster_database_failures_total": {(): failures},
        "pairbus_cluster_database_lag_seconds": {(): lag_ms / 1000},
        "pairbus_cluster_standby_behind_bytes": {
            (one.name, one.state): one.behind_bytes
            for one in (copies.standbys if copies is not None else ())
            if one.behind_bytes is not None
        },
        "pairbus_cluster_relayed_connections": {(): relay.relayed},
        "pairbus_cluster_relayed_connections_total": {(): relay.relayed_total},
        "pairbus_cluster_relay_failures_total": {(): relay.failed_total},
        "pairbus_cluster_refused_connections_total": {
            (reason,): count for reason, count in relay.refused_by_reason.items()
        },
        "pairbus_cluster_waiting_connections": {(): relay.waiting},
    }
    return metrics_of(CLUSTER_METRICS, values)
