"""What is counted as an operation, by whom it was caused, and how many there are: the arithmetic of pairing.

An operation is billed once for every 64 KB begun. A message through the backlog counts four times: sent to the backlog, received from
it, sent to the primary, received from it (D6). While a primary entity is away it is pinged: at once, then once per interval. A syphon with
nothing to do asks each backlog queue once in 15 minutes.
"""

from __future__ import annotations

from typing import Final

UNIT_BYTES: Final = 65_536
"""An operation is billed for every 64 KB begun."""
SECOND_MS: Final = 1_000
MINUTE_MS: Final = 60_000
HOUR_MS: Final = 3_600_000
DAY_MS: Final = 86_400_000
IDLE_POLL_MINUTES: Final = 15
"""A syphon's long poll of a queue with nothing in it."""
IDLE_POLLS_PER_HOUR: Final = 60 // IDLE_POLL_MINUTES
DIRECT_OPERATIONS: Final = 2
"""Sent and received."""
DETOUR_OPERATIONS: Final = 4
"""Sent to the backlog, received from it, sent to the primary, received from it."""

PRIMARY: Final = "primary"
BACKLOG: Final = "backlog"
STAGES: Final = (PRIMARY, BACKLOG)
SEND: Final = "send"
PING: Final = "ping"
RECEIVE: Final = "receive"
EMPTY_RECEIVE: Final = "empty_receive"
SETTLE: Final = "settle"
CONNECTIONS: Final = "connections"
"""Not an operation: a row that tells the most connections of a minute."""
OPERATIONS: Final = (
    SEND, PING, RECEIVE, EMPTY_RECEIVE, SETTLE, "peek", "renew", "schedule", "cancel", "delete", "session", "management", CONNECTIONS
)  # fmt: skip
"""Every operation of the usage log (docs/reference/usage-log.md)."""
UNBILLED_DEFAULT: Final = (SETTLE, CONNECTIONS)
"""Settling is part of receiving in the model of four operations; ``--count-settlements`` bills it too."""

BACKLOG_SEND: Final = "sent to the backlog"
BACKLOG_RECEIVE: Final = "received from the backlog"
PRIMARY_SEND: Final = "sent to the primary"
PRIMARY_RECEIVE: Final = "received from the primary"
PINGS: Final = "pings"
IDLE: Final = "idle receives of the backlog"
PRIMARY_EMPTY: Final = "empty receives of the primary"
BACKLOG_OTHER: Final = "other work on the backlog"
PRIMARY_OTHER: Final = "other work on the primary"
PURPOSES: Final = (
    PRIMARY_SEND, PRIMARY_RECEIVE, PRIMARY_EMPTY, PRIMARY_OTHER,
    BACKLOG_SEND, BACKLOG_RECEIVE, BACKLOG_OTHER, IDLE, PINGS,
)  # fmt: skip
PAIRING_PURPOSES: Final = (BACKLOG_SEND, BACKLOG_RECEIVE, BACKLOG_OTHER, IDLE, PINGS)
"""What would not have been asked for without the pairing."""
_BY_OPERATION: Final = {
    (PRIMARY, SEND): PRIMARY_SEND,
    (PRIMARY, RECEIVE): PRIMARY_RECEIVE,
    (PRIMARY, EMPTY_RECEIVE): PRIMARY_EMPTY,
    (BACKLOG, SEND): BACKLOG_SEND,
    (BACKLOG, RECEIVE): BACKLOG_RECEIVE,
    (BACKLOG, EMPTY_RECEIVE): IDLE,
}


def purpose(stage: str, operation: str) -> str:
    """What an operation was for."""
    if operation == PING:
        return PINGS
    return _BY_OPERATION.get((stage, operation), BACKLOG_OTHER if stage == BACKLOG else PRIMARY_OTHER)


AWAY_INTERVAL_MS: Final = 30_000
"""How often a drain whose destinations are away looks for messages of others, and renews the lock of those it probes with."""
WINDOW: Final = 1_000
"""Messages of one backlog queue that a drain may hold: it gives them back while their destination is away."""


def units(size: int) -> int:
    """How often an operation on so many bytes is billed."""
    return max(1, -(-size // UNIT_BYTES))


def idle_receives(queues: int, syphons: int, duration_ms: int) -> int:
    """Long polls that come back empty: 10 queues make 40 an hour, 960 a day, 28,800 in 30 days."""
    return queues * syphons * (duration_ms // (IDLE_POLL_MINUTES * MINUTE_MS))


def failed_over_ms(outage_ms: int, failover_interval_ms: int) -> int:
    """How long an entity is failed over in an outage; 0 for an outage that is no longer than the failover interval."""
    return max(0, outage_ms - failover_interval_ms)


def begun(duration_ms: int, interval_ms: int) -> int:
    """How many intervals begin in a time."""
    return -(-duration_ms // interval_ms)


def drain_while_away(queues: int, entities: int, syphons: int, away_ms: int) -> int:
    """What a syphon that cannot deliver costs: for every 30 s begun a look into each queue and a renewed lock for each entity."""
    return syphons * (queues + entities) * begun(away_ms, AWAY_INTERVAL_MS) if queues else 0


def pings(entities: int, away_ms: int, interval_ms: int) -> int:
    """The first at failover, then one after each interval; the last one finds the entity back. An entity that fails over for a day has
    1,440 and the first at one a minute; one that does not fail over has none.
    """
    return entities * (1 + begun(away_ms, interval_ms)) if away_ms > 0 else 0
