"""A namespace on a store in memory, an outbox that remembers, and short words for what clients do."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace

from pairbus.amqp.message.scan import Scanned, scan
from pairbus.amqp.message.whole import encode_message
from pairbus.amqp.types import Symbol, Timestamp, UInt
from pairbus.engine import ports
from pairbus.engine.entity import Entity
from pairbus.engine.namespace import Namespace
from pairbus.engine.queues.consumer import Consumer, Lock
from pairbus.engine.queues.queue import Queue
from pairbus.engine.records import Record, entity_id_of
from pairbus.engine.sessions import operations as session_ops
from pairbus.model.entity import QUEUE, SUBSCRIPTION, TOPIC, Settings
from pairbus.model.message import Message
from pairbus.storage.memory import MemoryDisk, MemoryStore

START = 1_700_000_000_000
SECOND = 1_000
TRUE_RULE = '{"name":"$Default","created_at":0,"filter":{"kind":"true"},"action":null}'


def incoming(
    body: object = "x",
    *,
    message_id: str | None = None,
    session_id: str | None = None,
    ttl_ms: int = 0,
    scheduled_at: int = 0,
    partition_key: str | None = None,
    properties: dict[str, object] | None = None,
    content_type: str | None = None,
    body_kind: str = "value",
) -> Scanned:
    """A message as the gateway hands it to the engine."""
    annotations: dict[str, object] = {}
    if scheduled_at:
        annotations[Symbol("x-opt-scheduled-enqueue-time")] = Timestamp(scheduled_at)
    if partition_key is not None:
        annotations[Symbol("x-opt-partition-key")] = partition_key
    payload = encode_message(
        message_id=message_id,
        group_id=session_id,
        content_type=content_type,
        header=[None, None, UInt(ttl_ms)] if ttl_ms else None,
        message_annotations=annotations or None,
        application_properties=properties,
        body=body,
        body_kind=body_kind,
    )
    return scan(payload, True)


def gone(queue: Queue) -> int:
    """How many messages have left a queue, for good or for its dead-letter queue."""
    return queue.stored_ever - len(queue.messages)


def ping() -> Scanned:
    return incoming(b"", content_type="application/vnd.ms-servicebus-ping", body_kind="data")


class Outbox(ports.Outbox):
    """Everything the engine said."""

    def __init__(self) -> None:
        self.delivered: list[tuple[Consumer, Message, Lock | None]] = []
        self.accepted: list[Consumer] = []
        self.detached: list[tuple[Consumer, str]] = []

    def deliver(self, consumer: Consumer, message: Message, lock: Lock | None) -> None:
        self.delivered.append((consumer, message, lock))

    def session_accepted(self, consumer: Consumer) -> None:
        self.accepted.append(consumer)

    def detach(self, consumer: Consumer, condition: str, description: str) -> None:
        self.detached.append((consumer, condition))

    def numbers(self) -> list[int]:
        return [message.sequence_number for _, message, _ in self.delivered]

    def last_lock(self) -> Lock:
        lock = self.delivered[-1][2]
        assert lock is not None
        return lock


class Journal(MemoryStore):
    """A real store that also remembers what was appended, and whose room can be taken away."""

    def __init__(self, disk: MemoryDisk | None = None) -> None:
        super().__init__(disk)
        self.records: list[Record] = []
        self.room = 1 << 40

    def append(self, record: Record) -> None:
        super().append(record)
        self.records.append(record)

    def has_room(self, size: int) -> bool:
        return size <= self.room


class Bench:
    """One life of a namespace. ``restart`` gives the next one on the same disk."""

    def __init__(self, disk: MemoryDisk | None = None, now: int = START) -> None:
        self.now = now
        self.journal = Journal(disk)
        self.outbox = Outbox()
        self.namespace = Namespace("contoso", self.journal, self.outbox)
        for record in self.journal.replay():
            self.namespace.fold(record)
        self.namespace.replayed(now)
        self.journal.live(self.namespace.live_messages())

    def restart(self, now: int | None = None) -> Bench:
        batch = self.journal.seal()
        if batch is not None:
            self.journal.commit(batch)
        return Bench(self.journal.disk, self.now if now is None else now)

    # -- entities

    def entity(self, path: str, kind: int = QUEUE, settings: Settings | None = None) -> Entity:
        return self.namespace.create(kind, path, settings or Settings(), self.now)

    def queue(self, path: str = "q", settings: Settings | None = None) -> Queue:
        return self.entity(path, QUEUE, settings).main

    def topic(self, path: str = "t", settings: Settings | None = None) -> Entity:
        return self.entity(path, TOPIC, settings)

    def subscription(
        self, path: str, settings: Settings | None = None, rules: Iterable[str] = (TRUE_RULE,)
    ) -> Entity:
        return self.entity(path, SUBSCRIPTION, replace(settings or Settings(), rules=tuple(rules)))

    def find(self, path: str) -> Entity:
        entity = self.namespace.find(path)
        assert entity is not None, path
        return entity

    # -- what clients do

    def send(self, queue: Queue | Entity, message: Scanned | object = "x", **fields: object) -> int:
        entity = queue if isinstance(queue, Entity) else self.namespace._by_id[entity_id_of(queue.queue_id)]
        scanned = message if isinstance(message, Scanned) else incoming(message, **fields)  # type: ignore[arg-type]
        self.namespace.check_send(entity, scanned, 0)
        return self.namespace.send(entity, scanned, self.now)

    def receiver(self, queue: Queue, credit: int = 0, *, deletes: bool = False) -> Consumer:
        consumer = Consumer(None, deletes)
        queue.attach(consumer, self.now)
        if credit:
            queue.set_credit(consumer, credit)
        return consumer

    def holder(
        self, queue: Queue, session_id: str | None, credit: int = 0, timeout_ms: int = 60_000
    ) -> Consumer:
        consumer = Consumer(None, False)
        session_ops.accept(queue, consumer, session_id, timeout_ms, self.now)
        if credit:
            queue.set_credit(consumer, credit)
        return consumer

    def pump(self) -> None:
        for _ in range(1_000):
            self.namespace.pump(self.now)
            if not self.namespace.context.dirty:
                return
        raise AssertionError("the pump does not come to rest")

    def wait(self, ms: int) -> None:
        """Let time pass, ticking whenever the namespace asked for it, and deliver."""
        until = self.now + ms
        while True:
            deadline = self.namespace.next_deadline()
            if deadline is None or deadline > until:
                break
            self.now = max(self.now, deadline)
            self.namespace.tick(self.now)
            self.pump()
        self.now = until
        self.pump()

    def receive(self, queue: Queue) -> Lock:
        """One message under a lock, by a receiver of its own."""
        before = len(self.outbox.delivered)
        consumer = self.receiver(queue, 1)
        self.pump()
        queue.detach(consumer, self.now)
        assert len(self.outbox.delivered) == before + 1, "nothing to receive"
        return self.outbox.last_lock()

    def receives_nothing(self, queue: Queue) -> bool:
        before = len(self.outbox.delivered)
        consumer = self.receiver(queue, 1)
        self.pump()
        queue.detach(consumer, self.now)
        return len(self.outbox.delivered) == before


def rule(name: str, expression: str, action: str | None = None) -> str:
    """A subscription's rule in the form its settings keep."""
    kept = None if action is None else {"expression": action, "parameters": {}}
    return json.dumps(
        {
            "name": name,
            "created_at": 0,
            "filter": {"kind": "sql", "expression": expression, "parameters": {}},
            "action": kept,
        }
    )
