"""A topic's fan-out: every subscription whose rules match gets a copy of its own, all in one engine call (B15).

One copy for all matching rules without an action, and one for each matching rule with one (B55). A copy has
its own number in its subscription; the topic's number travels as ``x-opt-enqueue-sequence-number``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pairbus.amqp.message.layout import header_size
from pairbus.engine.records import DuplicateSeen, SequenceAdvanced
from pairbus.engine.rules.codec import rules_of
from pairbus.engine.rules.index import TopicIndex
from pairbus.engine.rules.sql.nodes import PUBLISH_STEPS_MAX, STEPS_PER_COPY
from pairbus.engine.stored_message import MessageFacts, incoming_of, with_changes
from pairbus.errors import FilterFailed, QuotaExceeded
from pairbus.model.message import Extra, Message

if TYPE_CHECKING:
    from pairbus.amqp.message.scan import Scanned
    from pairbus.engine.entity import Entity
    from pairbus.engine.rules.sql.nodes import RuleBudget
    from pairbus.engine.rules.subscription import Verdict
    from pairbus.model.entity import Settings

REASON_NO_SESSION: Final = "Session id is null."
REASON_FILTER: Final = "FilterException"


def check_rules(topic: Entity, entity_id: int, settings: Settings) -> None:
    """Refuse rules that cannot be, or that the topic has no room for, before a record says that they are (M11)."""
    rules = rules_of(settings)
    if topic.index is None:
        topic.index = TopicIndex()
    topic.index.check(entity_id, rules)


def connect(subscription: Entity) -> None:
    """Let a topic know a subscription's rules as they are now (B57)."""
    topic = subscription.topic
    assert topic is not None, subscription.path
    if topic.index is None:
        topic.index = TopicIndex()
    topic.index.put(subscription.entity_id, rules_of(subscription.settings))


def disconnect(subscription: Entity) -> None:
    """A subscription is gone."""
    if subscription.topic is not None and subscription.topic.index is not None:
        subscription.topic.index.remove(subscription.entity_id)


def check_room(topic: Entity, size: int) -> None:
    """Refuse what the disk could not take once for each subscription (B12, B15)."""
    copies = len(topic.subscriptions)
    if copies > 1 and not has_disk_room(topic, size):
        raise topic.main.context.no_room(f"{copies} copies of a message to '{topic.path}'")


def has_disk_room(entity: Entity, size: int) -> bool:
    """Whether the disk can take a message to an entity, once for each subscription of a topic."""
    copies = len(entity.subscriptions)
    return entity.main.context.log.has_room(size * copies if copies > 1 else size)


def check_rules_cost(topic: Entity, incoming: Scanned, budget: RuleBudget) -> None:
    """Refuse a message that the topic's filters would take too long to judge, alone or with the rest of its batch (B58, B63).

    What they take at most is known beforehand, and nearly always little enough; otherwise they are tried.
    """
    index = topic.index
    if index is None or incoming.is_ping:
        return
    characters = header_size(incoming.blob)
    if budget.left >= (most := index.steps_max(characters)):
        budget.left -= most
        return
    facts = MessageFacts(incoming, topic.numbers.next_sequence_number, topic.numbers.last_enqueued_at)
    index.spend(facts, characters, budget)
    if budget.left < 0:
        raise QuotaExceeded(
            f"The rules of '{topic.path}' take more than {PUBLISH_STEPS_MAX} steps on this message and those sent with it: "
            "send shorter properties or fewer messages at a time, or make the LIKE filters and actions of its subscriptions simpler."
        )


def publish(topic: Entity, incoming: Scanned, extra: Extra | None, now: int) -> int:
    """Take one message (``check_send`` has passed). Its number; 0 for a ping or a duplicate."""
    main, numbers = topic.main, topic.numbers
    numbers.accessed_at = now
    if incoming.is_ping:
        return 0
    if incoming.scheduled_at and main.context.is_ahead(incoming.scheduled_at, now):
        return main.send(incoming, now)
    enqueued_at = max(now, numbers.last_enqueued_at)
    key = incoming.message_id if main.duplicates is not None else b""
    if key and main.duplicates is not None:
        if main.duplicates.holds(key, now, topic.settings.duplicate_window_ms):
            return 0
        main.record(DuplicateSeen(main.queue_id, key, now))
    number = numbers.next_sequence_number
    main.record(SequenceAdvanced(main.queue_id, number + 1, enqueued_at))
    _fan_out(topic, incoming, number, enqueued_at, extra, now)
    return number


def publish_due(topic: Entity, message: Message, now: int) -> None:
    """A message that was scheduled at the topic fell due and lies in its main queue: fan it out."""
    main = topic.main
    incoming = incoming_of(main.context.log.read(message.location, message.size))
    main.remove(message)
    _fan_out(topic, incoming, message.sequence_number, max(now, message.enqueued_at), message.extra, now)


def _fan_out(
    topic: Entity, incoming: Scanned, number: int, enqueued_at: int, extra: Extra | None, now: int
) -> None:
    if topic.index is None:
        return
    facts = MessageFacts(incoming, number, enqueued_at)
    by_id = topic.subscriptions_by_id
    # What a sender brings has been checked. What comes by itself (a schedule, a forward) has nobody to refuse it to:
    # filters that come after the budget is spent have failed, and their subscriptions dead-letter it.
    budget = topic.main.context.budget
    budget.renew()
    found = topic.index.match(facts, budget)
    # A copy is work too: a thousand subscriptions that want everything cost no steps of rules, and a thousand times as much.
    budget.taken_in_burst += STEPS_PER_COPY * len(found)
    for entity_id, verdict in found:
        _copy_to(by_id[entity_id], verdict, facts, incoming, _copy_extra(extra, number), now)


def _copy_extra(extra: Extra | None, number: int) -> Extra:
    copy = Extra() if extra is None else extra.copy()
    copy.enqueue_sequence_number = number
    return copy


def _copy_to(
    subscription: Entity, verdict: Verdict, facts: MessageFacts, incoming: Scanned, extra: Extra, now: int
) -> None:
    failure = verdict.failure
    if verdict.plain:
        _store(subscription, incoming, incoming.blob, incoming.session_id, facts.enqueued_at, extra, now)
    for rule in verdict.actions:
        try:
            changes = rule.changes(facts)
            changed = with_changes(incoming.blob, changes)
        except FilterFailed as error:
            failure = failure or error
            continue
        # Of what the broker must know an action can change nothing but the session: the copy need not be read again.
        session_id = changes.system_properties().get("sessionid", incoming.session_id)
        _store(subscription, incoming, changed, session_id, facts.enqueued_at, extra.copy(), now)
    if failure is not None and subscription.settings.dead_letter_on_filter_error:
        _dead_letter(
            subscription, incoming.blob, facts.enqueued_at, extra, REASON_FILTER, failure.description, now
        )


def _store(
    subscription: Entity,
    incoming: Scanned,
    blob: bytes,
    session_id: str | None,
    enqueued_at: int,
    extra: Extra,
    now: int,
) -> None:
    main = subscription.main
    if main.sessions is not None and session_id is None:
        text = "Session enabled entity doesn't allow a message whose session identifier is null."
        _dead_letter(subscription, blob, enqueued_at, extra, REASON_NO_SESSION, text, now)
        return
    topic = subscription.topic
    assert topic is not None, subscription.path
    ttl_ms = _shorter(incoming.ttl_ms, topic.settings.default_ttl_ms)
    at = max(enqueued_at, subscription.numbers.last_enqueued_at)
    message = Message(
        subscription.numbers.next_sequence_number,
        at,
        main.expiry(ttl_ms, now),
        len(blob),
        session_id if main.sessions is not None else None,
    )
    message.extra = extra
    main.store(message, blob)


def _dead_letter(
    subscription: Entity,
    blob: bytes,
    enqueued_at: int,
    extra: Extra,
    reason: str,
    description: str,
    now: int,
) -> None:
    at = max(enqueued_at, subscription.numbers.last_enqueued_at)
    message = Message(subscription.numbers.next_sequence_number, at, 0, len(blob), None)
    message.extra = extra.copy()
    message.extra.dead_letter_reason = reason
    message.extra.dead_letter_description = description
    message.extra.dead_letter_source = subscription.path
    subscription.dead_letter.store(message, blob)
    watcher = subscription.main.context.watcher
    if watcher is not None:
        watcher.dead_lettered(subscription.main, message, reason, now)


def _shorter(ttl_ms: int, default_ms: int) -> int:
    return default_ms if not ttl_ms else min(ttl_ms, default_ms)
