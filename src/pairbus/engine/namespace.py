"""All entities of a namespace: find, create, change, delete; fold the log; let time pass.

Rule 1: configuration is records like messages are, so it is as durable as they are (B16).
Rule 2: ids of entities are never reused: a recreated entity starts empty.
"""

from __future__ import annotations

import gc
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from pairbus.engine import routing, uses
from pairbus.engine import topic as topics
from pairbus.engine.context import DUE_BURST_MAX, Context, Timers
from pairbus.engine.directory import Directory
from pairbus.engine.discard import Discard
from pairbus.engine.entity import Entity
from pairbus.engine.records import (
    AuditMarked,
    DuplicateSeen,
    EntityDeleted,
    EntityPut,
    EntityUsed,
    MessageStored,
    NamespacePut,
    NamespaceRecord,
    QueueRecord,
    Record,
    SessionStateSet,
    entity_id_of,
)
from pairbus.engine.routing import HOPS_MAX, Router
from pairbus.engine.sessions import operations as session_ops
from pairbus.errors import EntityAlreadyExists, EntityNotFound, InvalidEntity, QuotaExceeded
from pairbus.model.access import ROOT_RULE, AccessRule
from pairbus.model.entity import (
    FOREVER_MS,
    QUEUE,
    SUBSCRIPTION,
    TOPIC,
    Settings,
    check_settings,
    check_update,
)
from pairbus.model.message import NEVER, Message
from pairbus.model.names import canonical, check_entity_name, check_subscription_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pairbus.amqp.message.scan import Scanned
    from pairbus.engine.ports import Outbox, RecordLog
    from pairbus.engine.queues.queue import Queue

ENTITIES_MAX: Final = 10_000
SUBSCRIPTIONS_MAX: Final = 2_000
SMALL_RECORD_BYTES: Final = 4_096
"""A change of settings up to this long needs no room on a full disk: disabling an entity, rotating keys and the like are ways out."""
_OBJECTS_PER_MESSAGE: Final = 1 if gc.is_tracked(Message(0, 0, NEVER, 0, None)) else 0
"""Compiled, messages are out of the garbage collector's sight: they form no cycles (``model.message``)."""
_OBJECTS_PER_SESSION: Final = 6
"""A session with what is ready in it, and its numbers in order."""
_SUBSCRIPTIONS: Final = "/subscriptions/"


class Namespace:
    """The engine's root: everything one broker holds."""

    def __init__(self, name: str, log: RecordLog, outbox: Outbox, token_seed: bytes = b"") -> None:
        """``token_seed``: what lock tokens are made from; a server gives a secret one, new at each start."""
        self.name = name
        self.context = Context(log, outbox, token_seed)
        self.created_at = 0
        self.version = 0
        """Rises with every change that may end a link or take a right away; new entities and other filters do not."""
        self.access_rules: tuple[AccessRule, ...] = ()
        self.declared_rules: tuple[str, ...] = ()
        """Names of access rules that the last configuration file declared; one that a later file does not declare is removed."""
        self._next_entity_id = 1
        self._directory = Directory()
        self._discard = Discard()
        self._by_id: dict[int, Entity] = {}
        self._orphans: dict[int, list[QueueRecord | EntityUsed]] = {}
        """While replaying: records that stand before their entity's, which compaction has moved on."""
        self._orphan_subscriptions: dict[str, list[EntityPut]] = {}
        self._router = Router(self.find)
        self._idle_timers = Timers()
        """When each entity with AutoDeleteOnIdle may have been idle for long enough, by its id."""
        self._use_rounds = uses.Rounds()
        self.audited_batch = 0
        """The number of the last batch with rows in the message audit; 0: none."""
        self.audit_stopped_at = 0
        """Since when the namespace is served without a message audit, although it had one; 0: it is audited, or never was."""

    # -- finding -------------------------------------------------------------------------------

    def find(self, path: str) -> Entity | None:
        """The entity of this path in any spelling."""
        return self._directory.find(path)

    def queue_of(self, queue_id: int) -> Queue | None:
        """A place by its id."""
        return self.context.queues.get(queue_id)

    def entities(self, kind: int) -> list[Entity]:
        """All entities of a kind, by name."""
        return self._directory.entities(kind, 0, self._directory.count(kind))

    def entity_page(self, kind: int, first: int, last: int) -> list[Entity]:
        """Entities of a kind from the place ``first`` to before ``last`` in the order of names."""
        return self._directory.entities(kind, first, last)

    def entity_count(self, kind: int) -> int:
        return self._directory.count(kind)

    def paths(self) -> Iterator[str]:
        """The paths of all entities, in no order."""
        for entity in self._directory.all():
            yield entity.path

    def all_queues(self) -> Iterator[Queue]:
        """Every place that may hold messages."""
        yield from self.context.queues.values()

    def held_objects(self) -> int:
        """About how many objects messages and sessions take in memory: what the garbage collector need not look at."""
        messages = sessions = 0
        for entity in self._directory.all():
            main = entity.main
            # Copies of a topic, dead letters and scheduled messages have an Extra each.
            each = 2 if entity.kind == SUBSCRIPTION else 1
            messages += each * len(main.messages) + main.scheduled_count
            messages += 2 * (len(entity.dead_letter.messages) + len(entity.transfer_dead_letter.messages))
            if main.sessions is not None:
                sessions += len(main.sessions.sessions)
        return messages * _OBJECTS_PER_MESSAGE + sessions * _OBJECTS_PER_SESSION

    # -- configuration -------------------------------------------------------------------------

    def create(self, kind: int, path: str, settings: Settings, now: int) -> Entity:
        """Make an entity; it is empty."""
        path = path.strip("/")
        self._check_new(kind, path)
        check_settings(settings)
        settings = replace(settings, created_at=now, updated_at=now)
        settings = self._router.with_checked_targets(kind, path, settings)
        if kind == SUBSCRIPTION:
            topics.check_rules(self._topic_of(path), self._next_entity_id, settings)
        record = EntityPut(self._next_entity_id, kind, path, settings.to_json())
        self._check_room(record, 0)
        self._record(record)
        entity = self._by_id[record.entity_id]
        entity.idle_since = now
        return entity

    def _check_new(self, kind: int, path: str) -> None:
        if kind == SUBSCRIPTION:
            topic_path, _, name = path.rpartition("/")
            topic_path = topic_path.rpartition("/")[0]
            check_subscription_name(name)
            topic = self.find(topic_path)
            if topic is None or topic.kind != TOPIC:
                raise EntityNotFound(topic_path)
            if len(topic.subscriptions) >= SUBSCRIPTIONS_MAX:
                raise QuotaExceeded(
                    f"Topic '{topic_path}' has {SUBSCRIPTIONS_MAX} subscriptions already: delete one first."
                )
        else:
            check_entity_name(path)
            if self._directory.count(QUEUE) + self._directory.count(TOPIC) >= ENTITIES_MAX:
                raise QuotaExceeded(
                    f"The namespace has {ENTITIES_MAX} queues and topics already: delete one first."
                )
        if self.find(path) is not None:
            raise EntityAlreadyExists(path)

    def _check_room(self, record: EntityPut, unasked_bytes: int) -> None:
        """Refuse what the disk has no room for; the reserve is for settlements (B12)."""
        size = len(record.settings) + len(record.path)
        if size > unasked_bytes and not self.context.log.has_room(size):
            raise self.context.no_room(f"'{record.path}' with these settings")

    def update(self, entity: Entity, settings: Settings, now: int) -> None:
        """Change settings. Locks of the entity are lost, and with a topic those of its subscriptions, as Service Bus documents."""
        check_update(entity.settings, settings)
        settings = replace(settings, created_at=entity.settings.created_at, updated_at=now)
        settings = self._router.with_checked_targets(entity.kind, entity.path, settings)
        if entity.topic is not None:
            topics.check_rules(entity.topic, entity.entity_id, settings)
        record = EntityPut(entity.entity_id, entity.kind, entity.path, settings.to_json())
        # Filters and keys change while clients work, and cost nobody a lock (B57, M5).
        only_rules = replace(entity.settings, rules=(), access_rules=(), updated_at=0) == replace(
            settings, rules=(), access_rules=(), updated_at=0
        )
        self._check_room(record, max(SMALL_RECORD_BYTES, len(entity.settings.to_json()) + len(entity.path)))
        is_stricter = settings.max_delivery_count < entity.settings.max_delivery_count
        self._record(record)
        if only_rules:
            return
        for changed in (entity, *entity.subscriptions.values()):
            self._lose_locks(changed, now)
        if is_stricter and entity.kind != TOPIC:
            entity.main.enforce_delivery_limit(now)

    def _lose_locks(self, entity: Entity, now: int) -> None:
        for queue in entity.queues:
            queue.lose_locks()
        if entity.main.sessions is not None:
            session_ops.lose_all(entity.main, now)

    def delete(self, entity: Entity, now: int) -> None:
        """Remove an entity with everything in it; a topic with its subscriptions."""
        for subscription in list(entity.subscriptions.values()):
            self.delete(subscription, now)
        self._record(EntityDeleted(entity.entity_id))
        if self.context.watcher is not None:
            self.context.watcher.entity_deleted(entity.path, now)

    def set_access_rules(
        self, rules: tuple[AccessRule, ...], now: int, declared: tuple[str, ...] | None = None
    ) -> None:
        """Replace the namespace's own access rules (M5). ``declared``: those that a configuration file declares; None: as before."""
        if len({rule.name for rule in rules}) != len(rules):
            raise InvalidEntity("Two authorization rules have the same name: names must differ.")
        names = self.declared_rules if declared is None else declared
        self._record(self._namespace_record(rules, names, self.created_at or now, self.audit_stopped_at))

    def set_audit_stopped(self, at: int, now: int) -> None:
        """Note since when there is no message audit; 0: from now on there is one."""
        created_at = self.created_at or now
        self._record(self._namespace_record(self.access_rules, self.declared_rules, created_at, at))

    def _namespace_record(
        self, rules: tuple[AccessRule, ...], declared: tuple[str, ...], created_at: int, audit_stopped_at: int
    ) -> NamespacePut:
        settings = {
            "created_at": created_at,
            "access_rules": [rule.to_dict() for rule in rules],
            "declared_rules": list(declared),
        }
        if audit_stopped_at:
            settings["audit_stopped_at"] = audit_stopped_at
        return NamespacePut(self._next_entity_id, json.dumps(settings, separators=(",", ":")))

    # -- messages ------------------------------------------------------------------------------

    def check_send(self, entity: Entity, incoming: Scanned, more_bytes: int) -> None:
        """Refuse what the entity could not take."""
        if entity.kind == SUBSCRIPTION:
            raise EntityNotFound(entity.path)
        entity.main.check_send(incoming, more_bytes)
        if entity.kind == TOPIC:
            topics.check_room(entity, more_bytes + len(incoming.blob))
            if not more_bytes:
                self.context.budget.renew()  # the first of a publish; those sent with it share its budget
            topics.check_rules_cost(entity, incoming, self.context.budget)

    def send(self, entity: Entity, incoming: Scanned, now: int) -> int:
        """Store one message, or publish it (``check_send`` has passed). Its number; 0 if nothing was stored."""
        if entity.kind == TOPIC:
            return topics.publish(entity, incoming, None, now)
        return entity.main.send(incoming, now)

    def check_send_via(self, via: Entity, path: str, incoming: Scanned, more_bytes: int) -> None:
        """Refuse what could not be taken at ``via`` to be transferred to the entity of this path."""
        routing.check_via(via, self.find(path), incoming, more_bytes)

    def send_via(self, via: Entity, path: str, incoming: Scanned, now: int) -> int:
        """Take one message at ``via`` and transfer it to the entity of this path (``check_send_via`` has passed)."""
        return routing.send_via(via, path, self.find(path), incoming, now)

    def pump(self, now: int) -> None:
        """End of a turn: deliver what became deliverable. Forwarding may make further queues busy."""
        dirty = self.context.dirty
        self.context.budget.taken_in_burst = 0
        for _ in range(HOPS_MAX + 2):
            if not dirty:
                return
            ids = list(dirty)
            dirty.clear()
            for queue_id in ids:
                queue = self.context.queues.get(queue_id)
                if queue is not None:
                    queue.deliver(now)

    def fetched(self, queue_ids: Iterable[int], now: int) -> None:
        """Blobs that these queues asked for are here (``ports.ReadAhead``)."""
        for queue_id in queue_ids:
            queue = self.context.queues.get(queue_id)
            if queue is not None:
                queue.fetched(now)

    # -- time ----------------------------------------------------------------------------------

    def next_deadline(self) -> int | None:
        """When ``tick`` should be called next; asked after every turn. 0: at once, a long relay or deletion goes on."""
        if self.context.dirty or not self._discard.is_empty:
            return 0
        first, idle = self.context.timers.next_deadline(), self._idle_timers.next_deadline()
        return idle if first is None or (idle is not None and idle < first) else first

    def tick(self, now: int) -> None:
        """Let time pass: what fell due happens now."""
        self._discard.tick()
        done = 0
        while done < DUE_BURST_MAX and (queue_id := self.context.timers.pop_due(now)) is not None:
            queue = self.context.queues.get(queue_id)
            done += 1 if queue is None else 1 + queue.tick(now)
        for entity_id in self._idle_timers.due(now):
            self._delete_if_idle(entity_id, now)

    def _watch_idleness(self, entity: Entity) -> None:
        idle_ms = entity.settings.auto_delete_on_idle_ms
        if idle_ms < FOREVER_MS:
            self._idle_timers.arm(uses.used_at(entity) + idle_ms, entity.entity_id)

    def _delete_if_idle(self, entity_id: int, now: int) -> None:
        entity = self._by_id.get(entity_id)
        if entity is None or entity.settings.auto_delete_on_idle_ms >= FOREVER_MS:
            return
        # What is done with a topic's subscriptions is use of the topic: deleting the topic would delete them.
        if uses.is_in_use(entity) or any(uses.is_in_use(one) for one in entity.subscriptions.values()):
            entity.idle_since = now
        if uses.used_at(entity) + entity.settings.auto_delete_on_idle_ms > now:
            self._watch_idleness(entity)
            return
        self.delete(entity, now)
        if self.context.watcher is not None:
            self.context.watcher.idle_deleted(entity.kind, entity.path)

    def record_uses(self, now: int, *, is_last: bool = False) -> None:
        """Housekeeping: record the last use of entities that were used since theirs was recorded; a part at a time, or the last one
        of this life. A disk that is full keeps its room for settlements (B12).
        """
        part = self._use_rounds.next_part(self._by_id, now, is_last)
        if not part or not self.context.log.has_room(uses.RECORD_BYTES_MAX * len(part)):
            return
        for entity_id in part:
            entity = self._by_id.get(entity_id)
            if entity is not None and entity.numbers.accessed_at > entity.numbers.use_recorded_at:
                self._record(EntityUsed(entity_id, entity.numbers.accessed_at))

    # -- the fold ------------------------------------------------------------------------------

    def _record(self, record: NamespaceRecord) -> None:
        """Append a record to the log and fold it: the only way in which a command changes configuration."""
        self.context.log.append(record)
        self.fold(record)

    def fold(self, record: Record) -> None:
        """Change state by one record: the only way state comes back after a restart."""
        # A restart folds a million stored messages and few others: they are asked for first.
        if isinstance(record, MessageStored) or not isinstance(
            record, (EntityPut, EntityDeleted, NamespacePut, AuditMarked, EntityUsed)
        ):
            queue = self.context.queues.get(record.queue_id)
            if queue is not None:
                queue.fold(record)
            else:
                self._orphans.setdefault(entity_id_of(record.queue_id), []).append(record)
        elif isinstance(record, EntityPut):
            self._put(record)
        elif isinstance(record, EntityDeleted):
            self._deleted(record.entity_id)
        elif isinstance(record, NamespacePut):
            self._namespace_put(record)
        elif isinstance(record, EntityUsed):
            self._used(record)
        else:
            self.audited_batch = max(self.audited_batch, record.number)

    def fold_all(self, records: Iterator[Record]) -> int:
        """Fold records in their order; how many there were."""
        count = 0
        for record in records:
            self.fold(record)
            count += 1
        return count

    def _used(self, record: EntityUsed) -> None:
        entity = self._by_id.get(record.entity_id)
        if entity is None:
            self._orphans.setdefault(record.entity_id, []).append(record)
            return
        numbers = entity.numbers
        numbers.accessed_at = max(numbers.accessed_at, record.at)
        numbers.use_recorded_at = max(numbers.use_recorded_at, record.at)

    def replayed(self, now: int | None = None) -> None:
        """The log has been folded to its end: what is left without an entity belongs to deleted ones.

        ``now``: when this life begins; None: it only shows what is stored.
        """
        self._orphans.clear()
        self._orphan_subscriptions.clear()
        self._discard.finish()
        for entity in self._by_id.values():
            entity.accessed_by_senders()
        self.context.dirty.clear()
        self.context.dirty.update((queue_id, None) for queue_id in self.context.queues)
        if now is not None:
            for queue in self.context.queues.values():
                if queue.duplicates is not None:
                    queue.duplicates.begin(now)
            for entity in self._by_id.values():
                # Not every use is recorded: after a restart the time starts again (B1).
                entity.idle_since = now
                self._watch_idleness(entity)

    def _put(self, record: EntityPut) -> None:
        self._next_entity_id = max(self._next_entity_id, record.entity_id + 1)
        topic_path = canonical(record.path).rpartition(_SUBSCRIPTIONS)[0]
        if record.kind == SUBSCRIPTION and self._directory.find(topic_path) is None:
            self._orphan_subscriptions.setdefault(topic_path, []).append(record)
            return
        settings = Settings.from_json(record.settings)
        entity = self._by_id.get(record.entity_id)
        if entity is None:
            entity = self._add(record, settings)
        else:
            if not _differ_in_rules_only(entity.settings, settings):
                self.version += 1
            entity.use(settings)
        self._router.connect(entity)
        self._watch_idleness(entity)
        for orphan in self._orphans.pop(record.entity_id, ()):
            self.fold(orphan)
        for subscription in self._orphan_subscriptions.pop(canonical(record.path), ()):
            self.fold(subscription)

    def _topic_of(self, path: str) -> Entity:
        """The topic of a subscription's path; it is known to exist."""
        topic = self._directory.find(canonical(path).rpartition(_SUBSCRIPTIONS)[0])
        assert topic is not None, path
        return topic

    def _add(self, record: EntityPut, settings: Settings) -> Entity:
        topic = self._topic_of(record.path) if record.kind == SUBSCRIPTION else None
        entity = Entity(self.context, record.entity_id, record.kind, record.path, settings, topic)
        self._directory.add(entity)
        self._by_id[record.entity_id] = entity
        for queue in entity.queues:
            self.context.queues[queue.queue_id] = queue
        if topic is not None:
            topic.subscriptions[canonical(entity.name)] = entity
            topic.subscriptions_by_id[entity.entity_id] = entity
        return entity

    def _deleted(self, entity_id: int) -> None:
        self._next_entity_id = max(self._next_entity_id, entity_id + 1)
        # While replaying: a subscription whose topic's record has gone must not find the topic's successor (B16).
        self._orphans.pop(entity_id, None)
        for records in self._orphan_subscriptions.values():
            records[:] = [record for record in records if record.entity_id != entity_id]
        entity = self._by_id.pop(entity_id, None)
        if entity is None:
            return
        self.version += 1
        entity.is_deleted = True
        self._directory.remove(entity)
        for queue in entity.queues:
            del self.context.queues[queue.queue_id]
            self.context.dirty.pop(queue.queue_id, None)
            self.context.timers.disarm(queue.queue_id)
        self._idle_timers.disarm(entity_id)
        for queue in entity.queues:
            queue.abolish()
            self._discard.add(queue)
        if entity.topic is not None:
            entity.topic.subscriptions.pop(canonical(entity.name), None)
            entity.topic.subscriptions_by_id.pop(entity.entity_id, None)
        self._router.disconnect(entity)

    def _namespace_put(self, record: NamespacePut) -> None:
        self.version += 1
        self._next_entity_id = max(self._next_entity_id, record.next_entity_id)
        self.created_at = json.loads(record.settings)["created_at"]
        self.audit_stopped_at = _audit_stopped_at(record)
        self.access_rules, self.declared_rules = _access_rules_of(record)

    # -- compaction ----------------------------------------------------------------------------

    def restate(self, record: Record, now: int) -> None:
        """Append what of an old record is still true, so that its segment can be deleted."""
        if isinstance(record, MessageStored):
            self._restate_message(record, now)
        elif isinstance(record, EntityPut):
            entity = self._by_id.get(record.entity_id)
            # Settings that have changed since are in a later record: restating every old record as the present one would
            # keep a record for each change for ever.
            if entity is not None and Settings.from_json(record.settings) == entity.settings:
                settings = entity.settings.to_json()
                self.context.log.append(EntityPut(entity.entity_id, entity.kind, entity.path, settings))
        elif isinstance(record, NamespacePut):
            is_present = _access_rules_of(record) == (self.access_rules, self.declared_rules)
            if is_present and _audit_stopped_at(record) == self.audit_stopped_at:
                # It carries the next entity id as it is now, so ids of deleted entities never come back.
                self.context.log.append(
                    self._namespace_record(
                        self.access_rules, self.declared_rules, self.created_at, self.audit_stopped_at
                    )
                )
        elif isinstance(record, SessionStateSet):
            self._restate_session(record)
        elif isinstance(record, DuplicateSeen):
            self._restate_duplicate(record.queue_id, record.duplicate_key, record.at, now)

    def _restate_message(self, record: MessageStored, now: int) -> None:
        queue = self.context.queues.get(record.queue_id)
        if queue is None:
            return
        number, location = record.message.sequence_number, record.message.location
        log = self.context.log
        for place in self._by_id[entity_id_of(queue.queue_id)].queues:  # it may have been dead-lettered since
            message = place.messages.get(number)
            if message is not None and message.location == location:
                blob = log.read(location, message.size)
                log.append(MessageStored(place.queue_id, message, blob, b""))
        if record.duplicate_key:
            self._restate_duplicate(record.queue_id, record.duplicate_key, record.message.enqueued_at, now)

    def _restate_session(self, record: SessionStateSet) -> None:
        queue = self.context.queues.get(record.queue_id)
        if queue is None or queue.sessions is None:
            return
        session = queue.sessions.sessions.get(record.session_id)
        if session is not None and session.state_at == record.at:
            self.context.log.append(
                SessionStateSet(record.queue_id, session.session_id, session.state, session.state_at)
            )

    def _restate_duplicate(self, queue_id: int, key: bytes, at: int, now: int) -> None:
        queue = self.context.queues.get(queue_id)
        if queue is None or queue.duplicates is None:
            return
        known = queue.duplicates.accepted_at(key)
        # An id that was accepted again since is in a later record. What a clock that was ahead has noted is known for earlier.
        if known is not None and now - queue.settings.duplicate_window_ms < known <= at:
            self.context.log.append(DuplicateSeen(queue_id, key, known))

    def message_count(self) -> int:
        """How many messages are stored. Any thread may ask; while messages come and go, the answer is about right."""
        return sum(len(queue.messages) for queue in list(self.context.queues.values()))

    def live_messages(self) -> Iterator[tuple[int, int, int]]:
        """Queue id, location and size of every stored message, for the store's space accounting."""
        for queue in self.context.queues.values():
            for message in queue.messages.values():
                yield queue.queue_id, message.location, message.size


def _differ_in_rules_only(old: Settings, new: Settings) -> bool:
    return replace(old, rules=(), updated_at=0) == replace(new, rules=(), updated_at=0)


def _audit_stopped_at(record: NamespacePut) -> int:
    """Since when there is no message audit; earlier versions did not note it."""
    return int(json.loads(record.settings).get("audit_stopped_at", 0))


def _access_rules_of(record: NamespacePut) -> tuple[tuple[AccessRule, ...], tuple[str, ...]]:
    """The access rules, and the names of those that a configuration file declared."""
    settings = json.loads(record.settings)
    rules = tuple(AccessRule.from_dict(rule) for rule in settings["access_rules"])
    declared = settings.get("declared_rules")
    if declared is None:
        # Before the names were recorded, nothing but a file could make a rule of the namespace beside the root rule.
        return rules, tuple(rule.name for rule in rules if rule.name != ROOT_RULE)
    return rules, tuple(declared)
