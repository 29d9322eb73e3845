"""A namespace on a real log over a simulated disk, watched at every step: what the engine machine drives."""

from __future__ import annotations

import random
from typing import Any

from pairbus.engine.context import Numbers
from pairbus.engine.entity import Entity
from pairbus.engine.namespace import Namespace
from pairbus.engine.ports import Outbox, RecordLog
from pairbus.engine.queues.consumer import Consumer, Lock
from pairbus.engine.queues.queue import Queue
from pairbus.engine.records import (
    EntityDeleted,
    MessageMoved,
    MessageRemoved,
    MessageStored,
    Record,
    entity_id_of,
)
from pairbus.model.message import ACTIVE, DEFERRED, SCHEDULED, Message
from pairbus.storage.log.store import LogStore
from tests.simulation.disk import SimulatedDisk

SEGMENT_BYTES = 4096


EXTRA_FIELDS = (
    "changed_properties",
    "dead_letter_description",
    "dead_letter_reason",
    "dead_letter_source",
    "enqueue_sequence_number",
    "hops",
    "scheduled_at",
    "ttl_ms",
)
"""Every fact of ``Extra``, named here because compiled classes keep no list of them."""


class CheckedLog(RecordLog):
    """The log of a life, which looks at each record first."""

    def __init__(self, life: Life) -> None:
        self._life = life

    def append(self, record: Record) -> None:
        self._life.check_record(record)
        self._life.store.append(record)

    def has_room(self, size: int) -> bool:
        return self._life.store.has_room(size)

    def read(self, location: int, size: int) -> bytes:
        return self._life.store.read(location, size)


class Life(Outbox):
    """One process: store, namespace, outbox. Checks what the engine says as it says it."""

    def __init__(self, disk: SimulatedDisk, now: int, history: History) -> None:
        self.disk = disk
        self.now = now
        self.history = history
        self.consumers: list[tuple[Queue, Consumer]] = []
        self.locks: list[tuple[Queue, Lock]] = []
        self.flow: dict[int, list[int]] = {}
        """Queue id to [came in, went out] in this life (B8)."""
        self.began_at = now
        self.used: dict[int, int] = {}
        """Entity id to when a client last did something with it in this life."""
        self.is_ticking = False
        """What is deleted meanwhile was idle, as the engine has it."""
        self.idle_deletions = 0
        self.store = LogStore.open(
            "simulated",
            segment_bytes=SEGMENT_BYTES,
            cache_bytes=16_384,
            reserve_bytes=0,
            file_system=disk,
            make_marker=lambda: history.chance.randbytes(8),
            is_background=False,
        )
        self.namespace = Namespace("contoso", CheckedLog(self), self)
        for record in self.store.replay():
            self.namespace.fold(record)
        self.namespace.replayed(now)
        self.store.live(self.namespace.live_messages())
        self.found = {queue.queue_id: len(queue.messages) for queue in self.namespace.all_queues()}

    # -- the journal

    def check_record(self, record: Record) -> None:
        if isinstance(record, MessageStored) and not record.message.location:
            self._check_number(record)
            self._count(record.queue_id, 0)
        elif isinstance(record, MessageRemoved):
            self.history.removed[record.queue_id, record.sequence_number] = None
            self._count(record.queue_id, 1)
        elif isinstance(record, MessageMoved):
            # A dead letter keeps the count it had (B29).
            key = (record.queue_id, record.sequence_number)
            self.history.fails[record.to_queue_id, record.sequence_number] = self.history.fails.get(key, 0)
            self._count(record.queue_id, 1)
            self._count(record.to_queue_id, 0)
        elif isinstance(record, EntityDeleted) and self.is_ticking:
            self._check_idle(self.namespace._by_id[record.entity_id])
            self.idle_deletions += 1

    def use(self, queue: Queue) -> None:
        """A client does something with a queue, or what it held there ends."""
        self.used[entity_id_of(queue.queue_id)] = self.now

    def _check_idle(self, entity: Entity) -> None:
        """Nothing that is in use, or was a while ago, is deleted by itself."""
        idle_ms = entity.settings.auto_delete_on_idle_ms
        if entity.topic is not None:
            idle_ms = min(idle_ms, entity.topic.settings.auto_delete_on_idle_ms)
        used_at = max(self.used.get(entity.entity_id, 0), entity.settings.updated_at, self.began_at)
        assert self.now >= used_at + idle_ms, f"B1: {entity.path} was used {self.now - used_at} ms ago"
        receivers = [consumer for queue, consumer in self.consumers if queue in entity.queues]
        assert not receivers, f"B1: somebody receives from {entity.path}"
        held = [lock for queue, lock in self.locks if queue in entity.queues and lock.is_held]
        assert not held, f"B1: somebody holds messages of {entity.path}"

    def _check_number(self, record: MessageStored) -> None:
        entity_id, message = entity_id_of(record.queue_id), record.message
        number, at = self.history.last.get(entity_id, (0, 0))
        assert message.sequence_number > number, f"B19: {message.sequence_number} after {number}"
        assert message.enqueued_at >= at, f"B20: {message.enqueued_at} after {at}"
        self.history.last[entity_id] = (message.sequence_number, message.enqueued_at)

    def _count(self, queue_id: int, way: int) -> None:
        self.flow.setdefault(queue_id, [0, 0])[way] += 1

    # -- the outbox

    def deliver(self, consumer: Consumer, message: Message, lock: Lock | None) -> None:
        queue = consumer.owner
        assert isinstance(queue, Queue)
        key = (queue.queue_id, message.sequence_number)
        assert key not in self.history.removed, f"B5: {key} was removed"
        assert message.state == ACTIVE, f"B34, B44: {key} has state {message.state}"
        if not queue.is_sub_queue:
            assert not message.expires_at or message.expires_at > self.now, f"B41: {key}"
            assert message.delivery_count < queue.settings.max_delivery_count, f"B30: {key}"
        assert message.extra is None or message.extra.scheduled_at <= self.now, f"B44: {key}"
        for other, held in self.locks:
            if other is queue and held is not lock and held.is_held:
                assert held.message.sequence_number != message.sequence_number, f"B25: {key} is held"
        if queue.sessions is not None:
            self._check_session(queue, consumer, message)
        self.check_count(queue, message)
        self.use(queue)
        if lock is not None:
            self.locks.append((queue, lock))

    def check_count(self, queue: Queue, message: Message) -> None:
        """What every receiver sees, whichever way it gets the message."""
        key = (queue.queue_id, message.sequence_number)
        assert message.delivery_count == self.history.fails.get(key, 0), f"B29: {key}"

    def count(self, queue: Queue, lock: Lock) -> None:
        """A delivery ends by an abandon, a deferral or a lock's expiry; in a dead-letter queue that counts for nothing."""
        if not queue.is_sub_queue:
            key = (queue.queue_id, lock.message.sequence_number)
            self.history.fails[key] = self.history.fails.get(key, 0) + 1

    def _check_session(self, queue: Queue, consumer: Consumer, message: Message) -> None:
        assert consumer.session is not None, "B51: a delivery without a session"
        assert consumer.session.session_id == message.session_id, "B51"
        assert consumer.session.holder is consumer, "B51: another one holds it"
        assert consumer.session.locked_until > self.now, "B51: a delivery after the lock has ended"
        for other in queue.messages.values():
            if other.session_id == message.session_id and other.state == ACTIVE and not other.is_locked:
                assert other.sequence_number >= message.sequence_number, "B22: an earlier one waits"

    def session_accepted(self, consumer: Consumer) -> None:
        assert consumer.session is not None
        assert consumer.session.holder is consumer

    def detach(self, consumer: Consumer, condition: str, description: str) -> None:
        if isinstance(consumer.owner, Queue):
            self.use(consumer.owner)
        self.consumers = [(queue, one) for queue, one in self.consumers if one is not consumer]

    # -- checks

    def check(self) -> None:
        for entity in list(self.namespace._by_id.values()):
            sizes = 0
            for queue in entity.queues:
                self._check_queue(queue)
                sizes += sum(message.size for message in queue.messages.values())
            for subscription in entity.subscriptions.values():
                sizes += sum(message.size for q in subscription.queues for message in q.messages.values())
            if entity.topic is None:
                assert entity.size_bytes == sizes, f"B66: {entity.path}"
        for queue, lock in self.locks:
            if lock.is_held and not lock.session:
                assert queue.locks.get(lock.token) is lock, "B25: a held lock is not known"

    def _check_queue(self, queue: Queue) -> None:
        states = [message.state for message in queue.messages.values()]
        assert queue.active_count == states.count(ACTIVE), f"B66: {queue.path}"
        assert queue.deferred_count == states.count(DEFERRED), f"B66: {queue.path}"
        assert queue.scheduled_count == states.count(SCHEDULED), f"B66: {queue.path}"
        came, went = self.flow.get(queue.queue_id, [0, 0])
        found = self.found.get(queue.queue_id, 0)
        assert found + came == went + len(queue.messages), f"B8: {queue.path}"
        entity = self.namespace._by_id[entity_id_of(queue.queue_id)]
        for number in queue.messages:
            places = [place for place in entity.queues if number in place.messages]
            assert places == [queue], f"B7: {number} of {entity.path} is in {[p.path for p in places]}"
            assert (queue.queue_id, number) not in self.history.removed, f"B5: {number}"
        locked = [message.sequence_number for message in queue.messages.values() if message.is_locked]
        known = [lock.message.sequence_number for lock in queue.locks.values()]
        if queue.sessions is not None:
            for session in queue.sessions.sessions.values():
                known += [lock.message.sequence_number for lock in session.locks.values()]
                members = [m for m in queue.messages.values() if m.session_id == session.session_id]
                assert session.message_count == len(members), f"B62: session {session.session_id}"
        assert locked == sorted(known), f"B25: locks of {queue.path}"

    def commit(self) -> None:
        batch = self.store.seal()
        if batch is not None:
            self.store.commit(batch)

    def snapshot(self) -> dict[str, Any]:
        """Everything that must be the same after a restart."""
        return {
            entity.path: {
                "id": entity.entity_id,
                "settings": entity.settings,
                "next": entity.numbers.next_sequence_number,
                "bytes": entity.size_bytes,
                "queues": [self._queue_values(queue) for queue in entity.queues],
            }
            for entity in self.namespace._by_id.values()
        } | {"next_entity_id": self.namespace._next_entity_id, "rules": self.namespace.access_rules}

    def times(self) -> dict[str, int]:
        """How far each entity's time has come."""
        return {entity.path: entity.numbers.last_enqueued_at for entity in self.namespace._by_id.values()}

    def numbers(self) -> dict[int, Numbers]:
        """Numbers and times of each entity."""
        return {entity_id: entity.numbers for entity_id, entity in self.namespace._by_id.items()}

    def _queue_values(self, queue: Queue) -> dict[str, Any]:
        sessions: dict[str, bytes] = {}
        if queue.sessions is not None:
            sessions = {
                s.session_id: s.state for s in queue.sessions.sessions.values() if s.state is not None
            }
        duplicates: dict[bytes, int] = {}
        if queue.duplicates is not None:
            after = self.now - queue.settings.duplicate_window_ms
            duplicates = {key: at for key, at in queue.duplicates._seen.items() if at > after}
        return {
            "messages": {number: self._message_values(message) for number, message in queue.messages.items()},
            "counts": (queue.active_count, queue.deferred_count, queue.scheduled_count),
            "sessions": sessions,
            "duplicates": duplicates,
        }

    def _message_values(self, message: Message) -> tuple[Any, ...]:
        extra = message.extra
        values = None if extra is None else tuple(getattr(extra, name) for name in EXTRA_FIELDS)
        return (
            message.enqueued_at,
            message.expires_at,
            message.session_id,
            message.state,
            message.delivery_count,
            values,
            self.store.read(message.location, message.size),
        )


class History:
    """What outlives a process, as the test remembers it."""

    def __init__(self) -> None:
        self.chance = random.Random(7)
        """Salts for the log: no two uses of a file may share one."""
        self.last: dict[int, tuple[int, int]] = {}
        self.removed: dict[tuple[int, int], None] = {}
        self.fails: dict[tuple[int, int], int] = {}


def difference(before: Any, after: Any, where: str = "") -> str:
    """Where two snapshots part, for people."""
    if isinstance(before, dict) and isinstance(after, dict):
        parted = [key for key in before.keys() | after.keys() if before.get(key) != after.get(key)]
        return "; ".join(
            sorted(difference(before.get(key), after.get(key), f"{where}/{key}") for key in parted)
        )
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        pairs = enumerate(zip(before, after, strict=True))
        return "; ".join(difference(one, two, f"{where}[{at}]") for at, (one, two) in pairs if one != two)
    return f"{where}: {before!r} became {after!r}"
