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
        for item in fields(self):
            setattr(self, item.name, getattr(self, item.name) + getattr(other, item.name))


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
    """Messages that the primary acknowledged to the drain."""
    repeats_dropped: int = 0
    """Second copies of messages that are delivered: completed, not sent."""
    cancelled: int = 0
    """Scheduled messages that their sender cancelled while the drain held them: completed, not sent."""
    passed_over: int = 0
    """Messages left locked where they are: others wait behind them, or they are second copies."""
    receive_operations: int = 0
    """What receives cost: a poll that brings messages as those, one that brings none as itself."""
    fences: int = 0
    """Sessions that went on being parked although their entity took sends."""
    fences_lifted: int = 0
    """Fences that ended because no parked message of the session is left in the backlog."""
    fences_lost: int = 0
    """Fences that ended after a backlog queue with messages of the session was deleted."""
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
    """A snapshot of a client's counters and sizes, from ``client.statistics()``. Messages are counted, unless it says otherwise.

    ``sends = to_primary + to_backlog + spooled + failed + unknown``.

    Args:
        sends: Passed to ``send_messages`` and ``schedule_messages``.
        to_primary: Of these, accepted by the primary.
        to_backlog: Of these, parked in a backlog queue.
        spooled: Of these, kept in the spool.
        failed: Of these, refused everywhere and stored nowhere.
        unknown: Of these, raised an error after an attempt without a clear answer.
        pings: Pings sent.
        pings_answered: Pings that the primary accepted.
        failovers: Changes of an entity to *failed over*.
        recoveries: Changes of an entity back to *healthy*, but for those from *suspect*, which no failover came before.
        evictions: Backlog queues that left the rotation.
        readmissions: Backlog queues that came back to it.
        backlog_queues_lost: Backlog queues that somebody deleted after this client had used them.
        parked_lost: Parked in those, at most: a drain may have delivered some before.
        receives: Polls of the drain.
        received: Backlog messages that the drain received; one may be received again.
        restored: Delivered to the primary, and completed in the backlog.
        set_aside: Dead-lettered in the backlog, with a reason.
        in_doubt: Sent to the primary by the drain, without an answer.
        possible_duplicates: Sent to the primary by the drain, with the lock lost before the message was completed.
        lock_renewals: Locks renewed by the drain.
        resent: Acknowledged by the primary to the drain.
        repeats_dropped: Second copies of delivered messages: completed, not sent.
        cancelled: Scheduled messages that were cancelled while the drain held them.
        passed_over: Left locked in the backlog, so that the drain reaches those behind them, or because another copy is held.
        receive_operations: What receives cost, in billed operations.
        fences: Sessions that went on being parked after failback.
        fences_lifted: Of these, sessions of which no message is in the backlog any more.
        fences_lost: Of these, sessions whose fence ended because a backlog queue was deleted.
        fences_timed_out: Of these, sessions that stayed fenced longer than ``fence_timeout``.
        fence_peeks: Pages that were read to find out.
        replayed_to_primary: Messages of the spool that the primary accepted later.
        replayed_to_backlog: Messages of the spool that a backlog queue accepted later.
        order_looks: Pages that the drain browsed to keep sessions in order.
        operations_primary: Billed operations of the primary: sends, pings, deliveries, replays.
        operations_backlog: Billed operations of the backlog: parked messages, replays, receives and looks.
        backlog_queues_usable: Backlog queues in the rotation now.
        backlog_queues_evicted: Backlog queues outside the rotation now.
        entities_failed_over: Entities that are failed over now.
        sessions_fenced: Sessions that go on being parked now.
        oldest_parked_age_ms: Age of the oldest message that the client knows to be in the backlog; None: none is known.
        oldest_undrained_age_ms: Age of the oldest message that the drain holds; None: it holds none.
        drain_rate_per_s: Delivered per second, over the last ten seconds.
        spool_messages: In the spool now.
        spool_bytes: Their size.
        spool_undeliverable: In the spool, and no namespace takes them.
        oldest_spooled_age_ms: How long the oldest one has waited in the spool; None: the spool is empty.
        spool_left_behind: In spools of the directory that nobody has open and that name another primary.
    """

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
