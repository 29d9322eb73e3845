"""What the page shows of a namespace, from the same counts that the management API reports (M15)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pairbus.gateway.telemetry.meter import BACKLOG, PING, PRIMARY, RECEIVE, SCHEDULE, SEND, stage_of
from pairbus.model.entity import DURATION, FOREVER_MS, KIND_NAMES, QUEUE, SUBSCRIPTION, TOPIC, settings_of
from pairbus.web.sessions import rights_of

if TYPE_CHECKING:
    from pairbus.engine.entity import Entity
    from pairbus.engine.queues.queue import Queue
    from pairbus.gateway.broker import Broker
    from pairbus.gateway.rights.access import Grant
    from pairbus.model.entity import Setting, Settings

_TITLES: Final = {
    "status": "Status",
    "lock_duration_ms": "Lock duration",
    "max_delivery_count": "Max delivery count",
    "requires_session": "Requires session",
    "dead_letter_on_expiration": "Dead-letter on expiration",
    "forward_to": "Forward to",
    "forward_dead_letters_to": "Forward dead letters to",
    "default_ttl_ms": "Default time to live",
    "duplicate_window_ms": "Duplicate detection",
    "max_size_mb": "Max size",
    "max_message_kb": "Max message size",
    "auto_delete_on_idle_ms": "Delete when idle",
    "access_rules": "Access rules",
    "user_metadata": "Metadata",
}
"""The settings that the page shows, those first that explain most."""
_UNITS: Final = {"mb": "MB", "kb": "KB"}
ENTITIES_SHOWN_MAX: Final = 1_000
"""Entities in one overview; the page says when there are more."""


def overview(broker: Broker, grant: Grant, now: int) -> dict[str, object]:
    """Every entity that the asker may see, with its counts; sums of the whole namespace only for who may see it all."""
    totals = _totals(broker)
    rows: list[dict[str, object]] = []
    hidden = 0
    sees_all = bool(rights_of(broker.access, grant, "", now))
    namespace = broker.namespace
    for kind in (QUEUE, TOPIC, SUBSCRIPTION):
        if sees_all:  # a right on the whole namespace is one on every path
            room = ENTITIES_SHOWN_MAX - len(rows)
            shown = namespace.entity_page(kind, 0, room)
            hidden += namespace.entity_count(kind) - len(shown)
        else:  # anything less is held against each
            allowed = [
                entity
                for entity in namespace.entities(kind)
                if rights_of(broker.access, grant, entity.path, now)
            ]
            shown = allowed[: ENTITIES_SHOWN_MAX - len(rows)]
            hidden += len(allowed) - len(shown)
        rows += [entity_row(entity, totals) for entity in shown]
    return {
        "namespace": broker.namespace.name,
        "at_ms": now,
        "entities": rows,
        "not_shown": hidden,
        "connections": len(broker.connections) if sees_all else None,
        "links": sum(len(connection.links) for connection in broker.connections) if sees_all else None,
        "operations": operations(broker) if sees_all else None,
    }


def _totals(broker: Broker) -> dict[tuple[str, str], int]:
    return {(tally.path, tally.operation): tally.total + tally.count for tally in broker.meter.tallies()}


def entity_row(entity: Entity, totals: dict[tuple[str, str], int]) -> dict[str, object]:
    counts = entity.counts()
    path = entity.path
    is_backlog = stage_of(path) == BACKLOG
    if entity.kind == SUBSCRIPTION:
        arrived = entity.main.stored_ever  # a subscription is never sent to; its topic is
    else:
        arrived = totals.get((path, SEND), 0) + totals.get((path, SCHEDULE), 0)
    return {
        "path": path,
        "kind": KIND_NAMES[entity.kind],
        "backlog": is_backlog,
        "sessions": entity.settings.requires_session,
        "status": entity.settings.status,
        # As the management API counts: what is deferred is among the active.
        "active": counts.active + counts.deferred,
        "scheduled": counts.scheduled,
        "deferred": counts.deferred,
        "dead_letter": counts.dead_letter,
        "transfer": counts.transfer,
        "transfer_dead_letter": counts.transfer_dead_letter,
        "size_bytes": None if entity.kind == SUBSCRIPTION else entity.size_bytes,
        "size_bytes_max": None if entity.kind == SUBSCRIPTION else entity.settings.max_size_mb * 1_048_576,
        "sent": arrived,
        "received": totals.get((path, RECEIVE), 0),
        "pings": totals.get((path, PING), 0),
        "accessed_at": entity.accessed_at or None,
        "oldest_at": _oldest_at(entity) if is_backlog else None,
    }


def _oldest_at(entity: Entity) -> int | None:
    """Since when the first message of a backlog queue waits for delivery to the primary."""
    first = next(iter(entity.main.messages.values()), None)
    return None if first is None else first.enqueued_at


def operations(broker: Broker) -> dict[str, object]:
    """Billed units of 64 KB since the start, by stage and operation: the cost meter."""
    stages: dict[str, dict[str, int]] = {PRIMARY: {}, BACKLOG: {}}
    for tally in broker.meter.tallies():
        units = tally.total_units + tally.units
        if units:
            stage = stages[broker.meter.stage(tally)]
            stage[tally.operation] = stage.get(tally.operation, 0) + units
    return {name: {"units": sum(stage.values()), "by_operation": stage} for name, stage in stages.items()}


def entity_view(
    broker: Broker, entity: Entity, rights: list[str], *, with_settings: bool
) -> dict[str, object]:
    """One entity: counts for a caller with any right on it, settings for a caller who may manage it."""
    row = entity_row(entity, _totals(broker))
    row["rights"] = rights
    row["locks"] = len(entity.main.locks)
    row["dead_letter_locks"] = len(entity.dead_letter.locks)
    row["transfer_dead_letter_locks"] = len(entity.transfer_dead_letter.locks)
    row["receivers"], row["receivers_waiting"] = _receivers(entity.main)
    row["sessions_held"] = len(entity.main.sessions.held) if entity.main.sessions is not None else None
    row["subscriptions"] = [subscription.path for subscription in entity.subscriptions.values()]
    row["topic"] = entity.topic.path if entity.topic is not None else None
    row["settings"] = _settings(entity.kind, entity.settings) if with_settings else None
    return row


def _receivers(queue: Queue) -> tuple[int, int]:
    """How many are attached, and how many of them wait for messages or for a session. The holder of a session is one of them."""
    if queue.sessions is None:
        return queue.receiver_count, len(queue.rotation)
    waiting = len(queue.sessions.waiting)
    return len(queue.sessions.held) + waiting, waiting


def _settings(kind: int, settings: Settings) -> list[dict[str, object]]:
    """The settings that an entity of this kind has, as a person reads them."""
    known = {one.field: one for one in settings_of(kind)}
    shown = {field: title for field, title in _TITLES.items() if field in known or field == "access_rules"}
    return [{"name": title, "value": _value(known.get(field), settings)} for field, title in shown.items()]


def _value(setting: Setting | None, settings: Settings) -> object:
    if setting is None:
        return len(settings.access_rules)
    if setting.field == "duplicate_window_ms" and not settings.requires_duplicate_detection:
        return None
    value = getattr(settings, setting.field)
    if setting.holds == DURATION:
        return _duration(value)
    unit = _UNITS.get(setting.field.rpartition("_")[2])
    return f"{value:,} {unit}" if unit else value


def _duration(milliseconds: int) -> str | None:
    """The longest units that divide it; None for no limit."""
    if milliseconds >= FOREVER_MS:
        return None
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000)):
        if milliseconds % size == 0:
            return f"{milliseconds // size:,} {unit}"
    return f"{milliseconds:,} ms"
