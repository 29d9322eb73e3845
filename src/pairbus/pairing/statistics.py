"""Counters of a paired client, and the frozen picture of them that dashboard, metrics and tests read (P45)."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final


@dataclass(slots=True)
class Counters:
    """Counted where it happens. Sends and messages are counted in messages, the rest in operations."""

    sends: int = 0
    to_primary: int = 0
    to_backlog: int = 0
    failed: int = 0
    unknown: int = 0
    pings: int = 0
    pings_answered: int = 0
    failovers: int = 0
    recoveries: int = 0
    evictions: int = 0
    readmissions: int = 0
    receives: int = 0
    received: int = 0
    restored: int = 0
    set_aside: int = 0
    in_doubt: int = 0
    possible_duplicates: int = 0
    lock_renewals: int = 0
    operations_primary: int = 0
    """Primary stage of the bill: pings and restored messages; the picture adds the sends."""
    operations_backlog: int = 0
    """Backlog stage of the bill: parked messages and receives."""


@dataclass(frozen=True, slots=True)
class Statistics:
    """A frozen picture of a client's counters and sizes."""

    sends: int
    to_primary: int
    to_backlog: int
    failed: int
    unknown: int
    pings: int
    pings_answered: int
    failovers: int
    recoveries: int
    evictions: int
    readmissions: int
    receives: int
    received: int
    restored: int
    set_aside: int
    in_doubt: int
    possible_duplicates: int
    lock_renewals: int
    operations_primary: int
    operations_backlog: int
    backlog_queues_usable: int
    backlog_queues_evicted: int
    entities_failed_over: int
    oldest_undrained_age_ms: int | None
    drain_rate_per_s: float


METRIC_PREFIX: Final = "pairbus_pairing_"
_GAUGES: Final = frozenset(
    {
        "backlog_queues_usable",
        "backlog_queues_evicted",
        "entities_failed_over",
        "oldest_undrained_age_ms",
        "drain_rate_per_s",
    }
)


def snapshot(
    counters: Counters,
    *,
    usable: int,
    evicted: int,
    failed_over: int,
    oldest_age_ms: int | None,
    drain_rate_per_s: float,
) -> Statistics:
    """Freeze the counters."""
    values = {item.name: getattr(counters, item.name) for item in fields(counters)}
    # Sends to the primary are counted once, where every healthy send passes.
    values["operations_primary"] += counters.to_primary
    return Statistics(
        **values,
        backlog_queues_usable=usable,
        backlog_queues_evicted=evicted,
        entities_failed_over=failed_over,
        oldest_undrained_age_ms=oldest_age_ms,
        drain_rate_per_s=drain_rate_per_s,
    )


def metric_name(field: str) -> str:
    """The Prometheus name of a field of ``Statistics``; OpenTelemetry writes dots for the first two underscores."""
    return f"{METRIC_PREFIX}{field}" if field in _GAUGES else f"{METRIC_PREFIX}{field}_total"


def prometheus(statistics: Statistics) -> str:
    """The picture as Prometheus text."""
    lines = []
    for item in fields(statistics):
        value = getattr(statistics, item.name)
        if value is not None:
            name = metric_name(item.name)
            lines += [f"# TYPE {name} {'gauge' if item.name in _GAUGES else 'counter'}", f"{name} {value}"]
    return "\n".join(lines) + "\n"
