"""The broker's part of ``GET /metrics``. Names and meanings are in the reference; a test compares them.

A new metric is a row of ``METRICS`` and its values in one of the functions below. Only names of entities, of which at most
``ENTITIES_LABELLED_MAX`` have a label of their own, and the broker's own terms become labels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pairbus.engine.entity import Counts
from pairbus.gateway.telemetry.exposition import COUNTER, GAUGE, Family, Metric, Values, metrics_of
from pairbus.model.entity import KIND_NAMES, QUEUE, SUBSCRIPTION, TOPIC
from pairbus.model.names import canonical

if TYPE_CHECKING:
    from pairbus.gateway.broker import Broker

ENTITIES_LABELLED_MAX: Final = 500
"""Beyond this many entities, those last by name are counted together, under ``THE_REST``."""
THE_REST: Final = "…"

METRICS: Final[dict[str, Family]] = {
    "pairbus_entities": (GAUGE, "Entities by kind.", ("kind",)),
    "pairbus_messages": (
        GAUGE,
        "Messages by entity and state. Deferred ones have a state of their own; the management API counts them as active.",
        ("entity", "state"),
    ),
    "pairbus_entity_bytes": (GAUGE, "Bytes held against an entity's size quota.", ("entity",)),
    "pairbus_entity_bytes_max": (GAUGE, "An entity's size quota in bytes.", ("entity",)),
    "pairbus_operations_total": (
        COUNTER,
        "Billed operations: sends, receives, settlements.",
        ("entity", "operation"),
    ),
    "pairbus_operation_bytes_total": (
        COUNTER,
        "Bytes of messages in billed operations.",
        ("entity", "operation"),
    ),
    "pairbus_operation_units_total": (COUNTER, "Billed units of 64 KB begun.", ("entity", "operation")),
    "pairbus_settlements_total": (COUNTER, "Settlements by outcome.", ("outcome",)),
    "pairbus_dead_lettered_total": (COUNTER, "Messages dead-lettered, by reason.", ("reason",)),
    "pairbus_dropped_total": (COUNTER, "Messages gone without being received, by cause.", ("cause",)),
    "pairbus_locks_expired_total": (COUNTER, "Locks of messages and sessions that ran out.", ()),
    "pairbus_forwarded_total": (COUNTER, "Messages passed on by auto-forwarding.", ()),
    "pairbus_refusals_total": (COUNTER, "Refusals over AMQP, by condition.", ("condition",)),
    "pairbus_management_responses_total": (COUNTER, "Management requests by HTTP status.", ("status",)),
    "pairbus_links": (GAUGE, "Links by the client's role.", ("role",)),
    "pairbus_amqp_sessions": (GAUGE, "AMQP sessions.", ()),
    "pairbus_transactions": (GAUGE, "Open transactions.", ()),
    "pairbus_locks": (GAUGE, "Message locks held outside sessions.", ()),
    "pairbus_sessions_held": (GAUGE, "Message sessions held by receivers.", ()),
}


def broker_metrics(broker: Broker) -> list[Metric]:
    """Every metric, those without samples too."""
    labelled = _labelled(broker)
    values = {
        **_entities(broker, labelled),
        **_operations(broker, labelled),
        **_events(broker),
        **_connections(broker),
    }
    return metrics_of(METRICS, values)


def _add(values: dict[tuple[str, ...], float], key: tuple[str, ...], value: int) -> None:
    values[key] = values.get(key, 0) + value


def _add_counts(messages: dict[tuple[str, ...], float], label: str, counts: Counts) -> None:
    _add(messages, (label, "active"), counts.active)
    _add(messages, (label, "scheduled"), counts.scheduled)
    _add(messages, (label, "deferred"), counts.deferred)
    _add(messages, (label, "dead_letter"), counts.dead_letter)
    _add(messages, (label, "transfer_dead_letter"), counts.transfer_dead_letter)


def _labelled(broker: Broker) -> set[str]:
    """Paths that have a label of their own."""
    kinds = (QUEUE, TOPIC, SUBSCRIPTION)
    first = [
        entity.path
        for kind in kinds
        for entity in broker.namespace.entity_page(kind, 0, ENTITIES_LABELLED_MAX)
    ]
    return set(sorted(first, key=canonical)[:ENTITIES_LABELLED_MAX])


def _entities(broker: Broker, labelled: set[str]) -> dict[str, Values]:
    kinds: dict[tuple[str, ...], float] = {}
    messages: dict[tuple[str, ...], float] = {}
    sizes: dict[tuple[str, ...], float] = {}
    quotas: dict[tuple[str, ...], float] = {}
    rest_size = rest_quota = 0
    for kind in (QUEUE, TOPIC, SUBSCRIPTION):
        kinds[KIND_NAMES[kind],] = broker.namespace.entity_count(kind)
        for entity in broker.namespace.entities(kind):
            has_label = entity.path in labelled
            if has_label or entity.holds_messages:
                _add_counts(messages, entity.path if has_label else THE_REST, entity.counts())
            if kind == SUBSCRIPTION:
                continue  # what lies in it counts against its topic
            # Of ten thousand entities most have no label and hold nothing: little is done for those.
            quota = entity.settings.max_size_mb * 1_048_576
            if has_label:
                sizes[entity.path,] = entity.size_bytes
                quotas[entity.path,] = quota
            else:
                rest_size += entity.size_bytes
                rest_quota += quota
    if sum(kinds.values()) > len(labelled):
        _add_counts(messages, THE_REST, Counts(0, 0, 0, 0, 0, 0))
        sizes[THE_REST,] = rest_size
        quotas[THE_REST,] = rest_quota
    return {
        "pairbus_entities": kinds,
        "pairbus_messages": messages,
        "pairbus_entity_bytes": sizes,
        "pairbus_entity_bytes_max": quotas,
    }


def _operations(broker: Broker, labelled: set[str]) -> dict[str, Values]:
    sums: dict[tuple[str, str], list[int]] = {}
    for tally in broker.meter.tallies():
        count = tally.total + tally.count
        if not count:
            continue
        entity = tally.path.partition("/$")[0]
        key = (entity if not entity or entity in labelled else THE_REST, tally.operation)
        found = sums.get(key)
        if found is None:
            found = sums[key] = [0, 0, 0]
        found[0] += count
        found[1] += tally.total_size + tally.size
        found[2] += tally.total_units + tally.units
    return {
        "pairbus_operations_total": {key: found[0] for key, found in sums.items()},
        "pairbus_operation_bytes_total": {key: found[1] for key, found in sums.items()},
        "pairbus_operation_units_total": {key: found[2] for key, found in sums.items()},
    }


def _events(broker: Broker) -> dict[str, Values]:
    counters = broker.counters
    statuses = sorted(counters.responses_by_status.items())
    return {
        "pairbus_settlements_total": {
            ("completed",): counters.completed,
            ("abandoned",): counters.abandoned,
            ("released",): counters.released,
            ("deferred",): counters.deferred,
            ("dead_lettered",): counters.rejected,
        },
        "pairbus_dead_lettered_total": _by_label(counters.dead_lettered_by_reason),
        "pairbus_dropped_total": _by_label(counters.dropped_by_cause),
        "pairbus_locks_expired_total": {(): counters.locks_expired},
        "pairbus_forwarded_total": {(): counters.forwards},
        "pairbus_refusals_total": _by_label(broker.tracker.refusals),
        "pairbus_management_responses_total": {(str(status),): count for status, count in statuses},
    }


def _by_label(counts: dict[str, int]) -> Values:
    return {(label,): count for label, count in sorted(counts.items())}


def _connections(broker: Broker) -> dict[str, Values]:
    senders = receivers = sessions = transactions = 0
    for connection in broker.connections:
        sessions += len(connection.amqp.sessions)
        transactions += len(connection.transactions)
        sending = sum(1 for link in connection.links if link.role_is_sender)  # we send: the client receives
        receivers += sending
        senders += len(connection.links) - sending
    locks = held = 0
    for queue in broker.namespace.all_queues():
        if queue.locks:
            locks += len(queue.locks)
        if queue.sessions is not None:
            held += len(queue.sessions.held)
    return {
        "pairbus_links": {("sender",): senders, ("receiver",): receivers},
        "pairbus_amqp_sessions": {(): sessions},
        "pairbus_transactions": {(): transactions},
        "pairbus_locks": {(): locks},
        "pairbus_sessions_held": {(): held},
    }
