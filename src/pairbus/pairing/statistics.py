"""Counters of a paired client, and the frozen picture of them that dashboard, metrics and tests read (P45)."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

from pairbus.spool.file import Content


@dataclass(slots=True, eq=False)
class Tally:
    """What became of the messages of one sender. Its own, because threads that share a counter lose counts."""

    sends: int = 0
    to_primary: int = 0
    to_backlog: int = 0
    spooled: int = 0
    failed: int = 0
    unknown: int = 0

    def add(self, other: Tally) -> None:
        """Take another tally's counts in."""
        self.sends += other.sends
        self.to_primary += other.to_primary
        self.to_backlog += other.to_backlog
        self.spooled += other.spooled
        self.failed += other.failed
        self.unknown += other.unknown


@dataclass(slots=True)
class Counters:
    """Counted where it happens: pings and rotation under the client's lock, the rest by the drain alone."""

    pings: int = 0
    pings_answered: int = 0
    failovers: int = 0
    recoveries: int = 0
    evictions: int = 0
    readmissions: int = 0
    backlog_queues_lost: int = 0
    """Backlog queues that were deleted after this client had used them."""
    parked_lost: int = 0
    """Messages that this client had parked in them, at most: a drain may have delivered some before."""
    receives: int = 0
    received: int = 0
    restored: int = 0
    set_aside: int = 0
    in_doubt: int = 0
    possible_duplicates: int = 0
    lock_renewals: int = 0
    resent: int = 0
    """Messages that the primary acknowledged to the syphon."""
    repeats_dropped: int = 0
    """Second copies of messages that are delivered: completed, not sent."""
    cancelled: int = 0
    """Scheduled messages that their sender cancelled while the syphon held them: completed, not sent."""
    passed_over: int = 0
    """Messages left where they are, because their destination is unavailable and others wait behind them."""
    receive_operations: int = 0
    """What receives cost: a poll that brings messages as those, one that brings none as itself."""
    fences: int = 0
    """Sessions that went on being parked although their entity took sends."""
    fences_lifted: int = 0
    """Those of which every message has left the backlog, as far as the client knows by arriving."""
    fences_lost: int = 0
    """Those that ended after a backlog queue with messages of the session was deleted."""
    fences_timed_out: int = 0
    fence_peeks: int = 0
    """Pages that looks into the backlog queues have read."""
    replayed_to_primary: int = 0
    """Messages of the spool that the primary accepted; likewise the backlog below. Counted under the client's lock."""
    replayed_to_backlog: int = 0
    order_looks: int = 0
    """Pages of a backlog queue that were browsed to keep sessions in order; each is a receive operation too."""


@dataclass(frozen=True, slots=True)
class Statistics:
    """A frozen picture of a client's counters and sizes."""

    sends: int
    to_primary: int
    to_backlog: int
    spooled: int
    failed: int
    unknown: int
    pings: int
    pings_answered: int
    failovers: int
    recoveries: int
    evictions: int
    readmissions: int
    backlog_queues_lost: int
    parked_lost: int
    receives: int
    received: int
    restored: int
    set_aside: int
    in_doubt: int
    possible_duplicates: int
    lock_renewals: int
    resent: int
    repeats_dropped: int
    cancelled: int
    passed_over: int
    receive_operations: int
    fences: int
    fences_lifted: int
    fences_lost: int
    fences_timed_out: int
    fence_peeks: int
    replayed_to_primary: int
    replayed_to_backlog: int
    order_looks: int
    operations_primary: int
    operations_backlog: int
    backlog_queues_usable: int
    backlog_queues_evicted: int
    entities_failed_over: int
    sessions_fenced: int
    oldest_parked_age_ms: int | None
    oldest_undrained_age_ms: int | None
    drain_rate_per_s: float
    spool_messages: int
    spool_bytes: int
    spool_undeliverable: int
    oldest_spooled_age_ms: int | None
    spool_left_behind: int


METRIC_PREFIX: Final = "pairbus_pairing_"
_GAUGES: Final = frozenset(
    {
        "backlog_queues_usable",
        "backlog_queues_evicted",
        "entities_failed_over",
        "sessions_fenced",
        "oldest_parked_age_ms",
        "oldest_undrained_age_ms",
        "drain_rate_per_s",
        "spool_messages",
        "spool_bytes",
        "spool_undeliverable",
        "oldest_spooled_age_ms",
        "spool_left_behind",
    }
)


def snapshot(
    counters: Counters,
    tally: Tally,
    *,
    usable: int,
    evicted: int,
    failed_over: int,
    sessions_fenced: int = 0,
    oldest_parked_age_ms: int | None = None,
    oldest_age_ms: int | None,
    drain_rate_per_s: float,
    spool: Content,
    left_behind: int = 0,
    now_ms: int,
) -> Statistics:
    values = {item.name: getattr(counters, item.name) for item in fields(counters)}
    values |= {item.name: getattr(tally, item.name) for item in fields(tally)}
    return Statistics(
        **values,
        operations_primary=tally.to_primary + counters.pings + counters.resent + counters.replayed_to_primary,
        operations_backlog=tally.to_backlog
        + counters.receive_operations
        + counters.replayed_to_backlog
        + counters.fence_peeks,
        backlog_queues_usable=usable,
        backlog_queues_evicted=evicted,
        entities_failed_over=failed_over,
        sessions_fenced=sessions_fenced,
        oldest_parked_age_ms=oldest_parked_age_ms,
        oldest_undrained_age_ms=oldest_age_ms,
        drain_rate_per_s=drain_rate_per_s,
        spool_messages=spool.count,
        spool_bytes=spool.size,
        spool_undeliverable=spool.undeliverable,
        oldest_spooled_age_ms=spool.age_ms(now_ms),
        spool_left_behind=left_behind,
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
