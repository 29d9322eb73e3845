"""The broker's part of ``GET /metrics``. Names and meanings are in the reference; a test compares them.

Only names of entities, of which at most ``ENTITIES_LABELLED_MAX`` are told apart, and the broker's own words become labels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pairbus.gateway.telemetry.exposition import COUNTER, GAUGE, Metric, Sample, by_label, single
from pairbus.model.entity import KIND_NAMES, QUEUE, SUBSCRIPTION, TOPIC

if TYPE_CHECKING:
    from pairbus.gateway.broker import Broker

ENTITIES_LABELLED_MAX: Final = 500
"""Beyond this many entities, those last by name are told together, under ``THE_REST``."""
THE_REST: Final = "…"


class _Table:
    """Values by labels, added up."""

    __slots__ = ("values",)

    def __init__(self) -> None:
        self.values: dict[tuple[str, str], int] = {}

    def add(self, first: str, second: str, value: int) -> None:
        key = (first, second)
        self.values[key] = self.values.get(key, 0) + value

    def metric(self, name: str, kind: str, text: str, first: str, second: str) -> Metric:
        return Metric(
            name,
            kind,
            text,
            [Sample(name, value, {first: key[0], second: key[1]}) for key, value in self.values.items()],
        )


def broker_metrics(broker: Broker) -> list[Metric]:
    """Every family, those without samples too."""
    return [*_entities(broker), *_operations(broker), *_events(broker), *_connections(broker)]


def _labelled(broker: Broker) -> set[str]:
    """Paths that have a label of their own."""
    paths = sorted(
        entity.path for kind in (QUEUE, TOPIC, SUBSCRIPTION) for entity in broker.namespace.entities(kind)
    )
    return set(paths[:ENTITIES_LABELLED_MAX])


def _entities(broker: Broker) -> list[Metric]:
    labelled = _labelled(broker)
    kinds: list[tuple[str, float]] = []
    messages, sizes, quotas = _Table(), _Table(), _Table()
    for kind in (QUEUE, TOPIC, SUBSCRIPTION):
        entities = broker.namespace.entities(kind)
        kinds.append((KIND_NAMES[kind], len(entities)))
        for entity in entities:
            label = entity.path if entity.path in labelled else THE_REST
            counts = entity.counts()
            messages.add(label, "active", counts.active)
            messages.add(label, "scheduled", counts.scheduled)
            messages.add(label, "deferred", counts.deferred)
            messages.add(label, "dead_letter", counts.dead_letter)
            messages.add(label, "transfer_dead_letter", counts.transfer_dead_letter)
            if kind != SUBSCRIPTION:  # what lies in a subscription counts against its topic
                sizes.add(label, "", entity.size_bytes)
                quotas.add(label, "", entity.settings.max_size_mb * 1_048_576)
    return [
        by_label("pairbus_entities", GAUGE, "Entities by kind.", "kind", kinds),
        messages.metric("pairbus_messages", GAUGE, "Messages by entity and state.", "entity", "state"),
        _one_label(sizes, "pairbus_entity_bytes", "Bytes held against an entity's size quota."),
        _one_label(quotas, "pairbus_entity_bytes_max", "An entity's size quota in bytes."),
    ]


def _one_label(table: _Table, name: str, text: str) -> Metric:
    return by_label(name, GAUGE, text, "entity", [(key[0], value) for key, value in table.values.items()])


def _operations(broker: Broker) -> list[Metric]:
    labelled = _labelled(broker)
    counts, sizes, units = _Table(), _Table(), _Table()
    for tally in broker.meter.tallies():
        count = tally.total + tally.count
        if not count:
            continue
        entity = tally.path.partition("/$")[0]
        label = entity if not entity or entity in labelled else THE_REST
        counts.add(label, tally.operation, count)
        sizes.add(label, tally.operation, tally.total_size + tally.size)
        units.add(label, tally.operation, tally.total_units + tally.units)
    labels = ("entity", "operation")
    return [
        counts.metric(
            "pairbus_operations_total", COUNTER, "Billed operations: sends, receives, settlements.", *labels
        ),
        sizes.metric(
            "pairbus_operation_bytes_total", COUNTER, "Bytes of messages in billed operations.", *labels
        ),
        units.metric("pairbus_operation_units_total", COUNTER, "Billed units of 64 KB begun.", *labels),
    ]


def _events(broker: Broker) -> list[Metric]:
    counters = broker.counters
    outcomes = [
        ("completed", counters.completed),
        ("abandoned", counters.abandoned),
        ("released", counters.released),
        ("deferred", counters.deferred),
        ("dead_lettered", counters.rejected),
    ]
    statuses = [(str(status), count) for status, count in sorted(counters.responses_by_status.items())]
    reasons = sorted(counters.dead_lettered_by_reason.items())
    causes = sorted(counters.dropped_by_cause.items())
    refusals = sorted(broker.tracker.refusals.items())
    return [
        by_label("pairbus_settlements_total", COUNTER, "Settlements by outcome.", "outcome", outcomes),
        by_label(
            "pairbus_dead_lettered_total", COUNTER, "Messages dead-lettered, by reason.", "reason", reasons
        ),
        by_label(
            "pairbus_dropped_total",
            COUNTER,
            "Messages gone without being received, by cause.",
            "cause",
            causes,
        ),
        single(
            "pairbus_locks_expired_total",
            COUNTER,
            "Locks of messages and sessions that ran out.",
            counters.locks_expired,
        ),
        single(
            "pairbus_forwarded_total", COUNTER, "Messages passed on by auto-forwarding.", counters.forwards
        ),
        by_label(
            "pairbus_refusals_total", COUNTER, "Refusals over AMQP, by condition.", "condition", refusals
        ),
        by_label(
            "pairbus_management_responses_total",
            COUNTER,
            "Management requests by HTTP status.",
            "status",
            statuses,
        ),
    ]


def _connections(broker: Broker) -> list[Metric]:
    links: dict[str, int] = {"sender": 0, "receiver": 0}
    sessions = transactions = 0
    for connection in broker.connections:
        sessions += len(connection.amqp.sessions)
        transactions += len(connection.transactions)
        for link in connection.links:
            links["receiver" if link.role_is_sender else "sender"] += 1
    locks = held = 0
    for queue in broker.namespace.all_queues():
        locks += len(queue.locks)
        if queue.sessions is not None:
            held += len(queue.sessions.held)
    return [
        by_label("pairbus_links", GAUGE, "Links by the client's role.", "role", list(links.items())),
        single("pairbus_amqp_sessions", GAUGE, "AMQP sessions.", sessions),
        single("pairbus_transactions", GAUGE, "Open transactions.", transactions),
        single("pairbus_locks", GAUGE, "Message locks held outside sessions.", locks),
        single("pairbus_sessions_held", GAUGE, "Message sessions held by receivers.", held),
    ]
