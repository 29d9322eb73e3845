"""Where a message goes on to: auto-forwarding of messages and of dead letters, and a topic's due schedules.

A message that is to be forwarded arrives in its queue like any other and is relayed at the end of the same
turn, so one mechanism serves sends, activated schedules, dead letters and settings that change later. Each
hop is one engine call: it becomes durable whole or not at all (B50).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from pairbus.engine import topic
from pairbus.engine.records import SequenceAdvanced
from pairbus.engine.stored_message import incoming_of
from pairbus.errors import EntityNotFound, InvalidEntity, Refusal
from pairbus.model.entity import SUBSCRIPTION, TOPIC
from pairbus.model.message import NEVER, Extra, Message
from pairbus.model.names import canonical

if TYPE_CHECKING:
    from collections.abc import Callable

    from pairbus.amqp.message.scan import Scanned
    from pairbus.engine.entity import Entity
    from pairbus.engine.queues.queue import Queue
    from pairbus.model.entity import Settings

HOPS_MAX: Final = 4
"""Forwarding hops before a message is dead-lettered."""
REASON_HOPS: Final = "MaxTransferHopCountExceeded"


class Router:
    """Connects entities that pass messages on."""

    __slots__ = ("_find",)

    def __init__(self, find: Callable[[str], Entity | None]) -> None:
        self._find = find

    def connect(self, entity: Entity) -> None:
        """Give an entity's queues the relays its settings ask for."""
        if entity.kind == TOPIC:
            entity.main.relay = TopicRelay(entity)
            return
        if entity.kind == SUBSCRIPTION:
            topic.connect(entity)
        settings = entity.settings
        dead_letters_to = settings.forward_dead_letters_to
        entity.main.relay = Forwarder(self, entity, settings.forward_to) if settings.forward_to else None
        entity.dead_letter.relay = Forwarder(self, entity, dead_letters_to) if dead_letters_to else None
        for queue in (entity.main, entity.dead_letter):
            queue.context.dirty[queue.queue_id] = None

    def disconnect(self, entity: Entity) -> None:
        """An entity is gone."""
        if entity.kind == SUBSCRIPTION:
            topic.disconnect(entity)

    def with_checked_targets(self, kind: int, path: str, settings: Settings) -> Settings:
        """Settings with forwarding targets as they were given, but for slashes around them; refuses targets that cannot be."""
        return replace(
            settings,
            forward_to=self._checked_target("ForwardTo", kind, path, settings.forward_to),
            forward_dead_letters_to=self._checked_target(
                "ForwardDeadLetteredMessagesTo", kind, path, settings.forward_dead_letters_to
            ),
        )

    def _checked_target(self, setting: str, kind: int, path: str, target: str | None) -> str | None:
        if not target:
            return None
        # It may be the entity itself, also while that is being made: what it forwards comes back until its hops are used up.
        is_itself = canonical(target) == canonical(path)
        entity = self._find(target)
        found = kind if is_itself else SUBSCRIPTION if entity is None else entity.kind
        if found == SUBSCRIPTION:
            refusal = InvalidEntity(f"{setting} of '{path}' is '{target}': no queue or topic has this name.")
            refusal.setting = setting
            raise refusal
        return target.strip("/")

    def target(self, path: str) -> Entity:
        """The entity a forwarder sends to; it may have been deleted since."""
        entity = self._find(path)
        if entity is None:
            raise EntityNotFound(path)
        return entity


class TopicRelay:
    """A message that was scheduled at a topic fell due: fan it out."""

    __slots__ = ("_topic",)

    def __init__(self, entity: Entity) -> None:
        self._topic = entity

    def relay(self, queue: Queue, message: Message, now: int) -> bool:
        """Publish one message that was kept at the topic."""
        assert queue is self._topic.main, queue.path
        if not topic.has_disk_room(self._topic, message.size):
            return False
        topic.publish_due(self._topic, message, now)
        return True


class Forwarder:
    """Takes messages of one queue to another entity of the namespace."""

    __slots__ = ("_entity", "_router", "_target")

    def __init__(self, router: Router, entity: Entity, target: str) -> None:
        self._router = router
        self._entity = entity
        self._target = target

    def relay(self, queue: Queue, message: Message, now: int) -> bool:
        """One hop: out of here and into the target, or dead-lettered with the reason."""
        extra = message.extra.copy() if message.extra is not None else Extra()
        transfer_dead_letter = self._entity.transfer_dead_letter
        if extra.hops >= HOPS_MAX:
            text = f"The message was forwarded {HOPS_MAX} times already, which is the most that is allowed."
            queue.move(message, queue.dead_letter_queue or transfer_dead_letter, REASON_HOPS, text, b"", now)
            return True
        extra.hops += 1
        extra.enqueue_sequence_number = message.sequence_number
        incoming = incoming_of(queue.context.log.read(message.location, message.size))
        incoming.scheduled_at = 0  # it has been due here already
        if queue.is_sub_queue or extra.dead_letter_source is not None:
            incoming.ttl_ms = (
                0  # a dead letter does not expire by its own time again, however far it is sent (B40)
            )
        try:
            target = self._router.target(self._target)
            if not topic.has_disk_room(target, len(incoming.blob)):
                return False  # an entity that is full refuses it for good; a full disk passes (B12)
            target.main.check_send(incoming, 0)
        except Refusal as refusal:
            queue.move(message, transfer_dead_letter, type(refusal).__name__, refusal.description, b"", now)
            return True
        if queue.context.watcher is not None:
            queue.context.watcher.forwarded(queue, message, target.path, now)
        queue.remove(message)
        if target is self._entity:
            incoming.message_id = (
                b""  # it comes back to where it is known already, and is no duplicate of itself
            )
        if target.kind == TOPIC:
            topic.publish(target, incoming, extra, now)
        else:
            target.main.send(incoming, now, extra)
        return True


def check_via(via: Entity, target: Entity | None, incoming: Scanned, more_bytes: int) -> None:
    """Refuse a message that could neither go on to the target nor be dead-lettered at the via entity."""
    via.main.check_transfer(incoming, more_bytes)
    if target is not None and not topic.has_disk_room(target, more_bytes + len(incoming.blob)):
        raise target.main.context.no_room(f"a message to '{target.path}'")


def send_via(via: Entity, path: str, target: Entity | None, incoming: Scanned, now: int) -> int:
    """Take a message at the via entity and transfer it to the target, in one step (``check_via`` has passed). Its number at
    the via entity; 0 for a ping.

    The target may refuse it, or be gone: then it lies in the via entity's transfer dead-letter queue, as a message does that
    cannot be forwarded.
    """
    main, numbers = via.main, via.numbers
    numbers.accessed_at = now
    if incoming.is_ping:
        return 0
    enqueued_at = max(now, numbers.last_enqueued_at)
    number = numbers.next_sequence_number
    try:
        if target is None:
            raise EntityNotFound(path)
        target.main.check_send(incoming, 0)
    except Refusal as refusal:
        message = Message(number, enqueued_at, NEVER, len(incoming.blob), None)
        message.extra = extra = Extra()
        extra.dead_letter_reason = reason = type(refusal).__name__
        extra.dead_letter_description = refusal.description
        extra.dead_letter_source = via.path
        via.transfer_dead_letter.store(message, incoming.blob)
        if main.context.watcher is not None:
            main.context.watcher.dead_lettered(main, message, reason, now)
        return number
    main.record(SequenceAdvanced(main.queue_id, number + 1, enqueued_at))
    extra = Extra()
    extra.enqueue_sequence_number = number
    extra.hops = 1
    if target.kind == TOPIC:
        topic.publish(target, incoming, extra, now)
    else:
        target.main.send(incoming, now, extra)
    return number
