"""Entities: create, change, delete, idle, recover, restate."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pairbus.engine.entity import Entity
from pairbus.engine.namespace import ENTITIES_MAX, SUBSCRIPTIONS_MAX
from pairbus.engine.queues.queue import Queue
from pairbus.engine.records import (
    DeliveryFailed,
    DuplicateSeen,
    EntityDeleted,
    EntityPut,
    MessageDeferred,
    MessageMoved,
    MessageRemoved,
    MessageStored,
    NamespacePut,
    Record,
    SequenceAdvanced,
    SessionStateSet,
)
from pairbus.engine.sessions import operations as session_ops
from pairbus.errors import (
    EntityAlreadyExists,
    EntityNotFound,
    InvalidEntity,
    InvalidRule,
    MessageLockLost,
    QuotaExceeded,
    SessionLockLost,
)
from pairbus.model.access import RIGHTS, AccessRule
from pairbus.model.entity import FOREVER_MS, QUEUE, SUBSCRIPTION, TOPIC, Settings
from pairbus.model.message import Extra, Message
from tests.unit.engine.engine_kit import SECOND, START, TRUE_RULE, Bench, rule

MINUTE = 60 * SECOND
IDLE = Settings(auto_delete_on_idle_ms=5 * MINUTE)


def fold_all(records: list[Record]) -> Bench:
    bench = Bench()
    for record in records:
        bench.namespace.fold(record)
    bench.namespace.replayed()
    return bench


def stored(queue_id: int, number: int) -> MessageStored:
    return MessageStored(queue_id, Message(number, START, 0, 3, None), b"abc", b"")


# -- configuration


def test_an_entity_is_found_in_any_spelling(bench: Bench) -> None:
    entity = bench.entity("/Orders/New/")
    assert entity.path == "Orders/New"
    assert entity.name == "Orders/New"
    assert bench.namespace.find("orders/NEW/") is entity
    assert bench.namespace.find("orders") is None
    assert bench.namespace.queue_of(entity.main.queue_id) is entity.main
    assert [e.path for e in bench.namespace.entities(QUEUE)] == ["Orders/New"]
    assert list(bench.namespace.all_queues()) == list(entity.queues)


@pytest.mark.promise("B16")
def test_configuration_survives_a_restart(bench: Bench) -> None:
    entity = bench.entity("q")
    bench.namespace.update(entity, Settings(lock_duration_ms=7 * SECOND), bench.now + 5)
    bench.topic()
    bench.subscription("t/Subscriptions/S")
    rule = AccessRule(name="r", rights=RIGHTS, primary_key="a", secondary_key="b")
    bench.namespace.set_access_rules((rule,), bench.now)
    again = bench.restart()

    settings = again.find("q").settings
    assert settings.lock_duration_ms == 7 * SECOND
    assert (settings.created_at, settings.updated_at) == (START, START + 5)
    assert again.find("T/subscriptions/s").topic is again.find("t")
    assert again.namespace.access_rules == (rule,)
    assert again.namespace.created_at == START


@pytest.mark.promise("B16")
def test_a_deleted_entity_does_not_come_back_and_its_successor_is_empty(bench: Bench) -> None:
    settings = Settings(requires_session=True, requires_duplicate_detection=True)
    entity = bench.entity("q", settings=settings)
    bench.send(entity, session_id="a", message_id="m")
    holder = bench.holder(entity.main, "a")
    assert holder.session is not None
    session_ops.set_state(entity.main, holder.session, b"s", bench.now)
    bench.namespace.delete(entity, bench.now)
    assert entity.is_deleted
    assert bench.restart().namespace.find("q") is None

    second = bench.entity("q", settings=settings)
    for life in (bench, bench.restart()):
        successor = life.find("q")
        assert successor.entity_id == second.entity_id != entity.entity_id
        assert successor.counts().total == 0
        assert session_ops.list_sessions(successor.main, None, 0, 10) == []
    assert bench.send(second, session_id="a", message_id="m") == 1


@pytest.mark.promise("B16")
def test_deleting_a_topic_deletes_its_subscriptions(bench: Bench, topic: Entity) -> None:
    bench.subscription("t/Subscriptions/s")
    bench.send(topic)
    bench.namespace.delete(topic, bench.now)

    for life in (bench, bench.restart()):
        assert life.namespace.find("t/Subscriptions/s") is None
        assert life.namespace.entities(SUBSCRIPTION) == []


def test_names_are_taken_once_whatever_their_spelling(bench: Bench) -> None:
    bench.entity("q")
    with pytest.raises(EntityAlreadyExists):
        bench.entity("Q", TOPIC)
    bench.topic()
    bench.subscription("t/Subscriptions/s")
    with pytest.raises(EntityAlreadyExists):
        bench.subscription("T/subscriptions/S")


def test_a_subscription_needs_a_topic(bench: Bench) -> None:
    bench.entity("q")
    for path in ("missing/Subscriptions/s", "q/Subscriptions/s"):
        with pytest.raises(EntityNotFound):
            bench.subscription(path)


def test_what_cannot_be_is_refused_and_leaves_no_record(bench: Bench) -> None:
    entity = bench.entity("q")
    bench.topic()
    subscription = bench.subscription("t/Subscriptions/s")
    records = len(bench.journal.records)
    with pytest.raises(InvalidEntity):
        bench.entity("a/../b")
    with pytest.raises(InvalidEntity):
        bench.entity("other", settings=Settings(lock_duration_ms=1))
    with pytest.raises(InvalidEntity, match="cannot be changed"):
        bench.namespace.update(entity, Settings(requires_session=True), bench.now)
    with pytest.raises(InvalidEntity, match="no queue or topic"):
        bench.entity("other", settings=Settings(forward_to="missing"))
    with pytest.raises(InvalidEntity, match="no queue or topic"):
        bench.namespace.update(entity, Settings(forward_dead_letters_to="t/Subscriptions/s"), bench.now)
    with pytest.raises(InvalidRule):
        bench.namespace.update(subscription, Settings(rules=('{"name":"x"}',)), bench.now)
    rule = AccessRule(name="r", rights=RIGHTS, primary_key="a", secondary_key="b")
    with pytest.raises(InvalidEntity, match="same name"):
        bench.namespace.set_access_rules((rule, rule), bench.now)

    assert len(bench.journal.records) == records


@pytest.mark.promise("M12")
@pytest.mark.long
def test_entities_and_subscriptions_are_bounded(bench: Bench) -> None:
    for number in range(ENTITIES_MAX):
        bench.namespace.fold(EntityPut(number + 1, QUEUE, f"q{number}", "{}"))
    with pytest.raises(QuotaExceeded):
        bench.entity("one-too-many")
    topic = Bench()
    entity = topic.topic()
    settings = Settings(rules=(TRUE_RULE,)).to_json()
    for number in range(SUBSCRIPTIONS_MAX):
        topic.namespace.fold(EntityPut(number + 2, SUBSCRIPTION, f"t/Subscriptions/s{number}", settings))
    with pytest.raises(QuotaExceeded):
        topic.subscription("t/Subscriptions/one-too-many")
    assert len(entity.subscriptions) == SUBSCRIPTIONS_MAX


def test_a_change_of_rules_alone_ends_no_locks(bench: Bench, topic: Entity) -> None:
    subscription = bench.subscription("t/Subscriptions/s")
    bench.send(topic)
    lock = bench.receive(subscription.main)
    bench.namespace.update(subscription, Settings(rules=()), bench.now)
    assert lock.is_held
    key = AccessRule(name="r", rights=RIGHTS, primary_key="a", secondary_key="b")
    bench.namespace.update(topic, Settings(access_rules=(key,)), bench.now)
    assert lock.is_held

    bench.namespace.update(subscription, Settings(rules=(), max_delivery_count=2), bench.now)
    assert not lock.is_held


def test_a_change_of_a_topic_ends_the_locks_of_its_subscriptions(bench: Bench, topic: Entity) -> None:
    plain = bench.subscription("t/Subscriptions/plain")
    with_sessions = bench.subscription("t/Subscriptions/sessions", Settings(requires_session=True))
    bench.send(topic, session_id="a")
    lock = bench.receive(plain.main)
    holder = bench.holder(with_sessions.main, "a", 1)
    bench.pump()
    session_lock = bench.outbox.last_lock()

    bench.namespace.update(topic, Settings(max_size_mb=5), bench.now)

    assert not lock.is_held
    assert not session_lock.is_held
    assert [consumer for consumer, _ in bench.outbox.detached] == [holder]
    again = bench.receive(plain.main)
    assert again.message.delivery_count == 0, "nobody failed"


@pytest.mark.promise("B27")
def test_locks_of_a_deleted_entity_are_lost_and_settling_changes_nothing(bench: Bench, topic: Entity) -> None:
    plain = bench.subscription("t/Subscriptions/plain")
    with_sessions = bench.subscription("t/Subscriptions/sessions", Settings(requires_session=True))
    bench.send(topic, session_id="a")
    lock = bench.receive(plain.main)
    holder = bench.holder(with_sessions.main, "a", 1)
    bench.pump()
    session_lock = bench.outbox.last_lock()
    bench.namespace.delete(plain, bench.now)
    bench.namespace.delete(with_sessions, bench.now)

    with pytest.raises(MessageLockLost):
        plain.main.complete(lock, bench.now)
    with pytest.raises(SessionLockLost):
        with_sessions.main.complete(session_lock, bench.now)
    with_sessions.main.detach(holder, bench.now)
    bench.pump()
    assert topic.size_bytes == 0


@pytest.mark.promise("B66")
def test_counts_and_size_equal_an_enumeration(bench: Bench) -> None:
    entity = bench.entity("q")
    bench.queue("target")
    for _ in range(4):
        bench.send(entity)
    bench.send(entity, scheduled_at=START + MINUTE)
    entity.main.defer(bench.receive(entity.main), b"", bench.now)
    entity.main.dead_letter(bench.receive(entity.main), None, None, b"", bench.now)

    for life in (bench, bench.restart()):
        counts = life.find("q").counts()
        assert (counts.active, counts.deferred, counts.scheduled, counts.dead_letter) == (2, 1, 1, 1)
        assert counts.total == 5
        sizes = sum(message.size for queue in life.find("q").queues for message in queue.messages.values())
        assert life.find("q").size_bytes == sizes


# -- idleness


def test_an_idle_entity_is_deleted_and_a_used_one_is_not(bench: Bench) -> None:
    idle, used = bench.entity("idle", settings=IDLE), bench.entity("used", settings=IDLE)
    bench.wait(4 * MINUTE)
    bench.send(used)
    assert used.accessed_at == bench.now
    bench.wait(MINUTE)

    assert idle.is_deleted
    assert not used.is_deleted
    bench.wait(5 * MINUTE)
    assert used.is_deleted


def test_a_receiver_that_waits_keeps_an_entity(bench: Bench) -> None:
    plain, sessions = (
        bench.entity("plain", settings=IDLE),
        bench.entity("sessions", settings=Settings(auto_delete_on_idle_ms=5 * MINUTE, requires_session=True)),
    )
    bench.receiver(plain.main, 1)
    bench.holder(sessions.main, None, timeout_ms=60 * MINUTE)
    bench.wait(20 * MINUTE)

    assert not plain.is_deleted
    assert not sessions.is_deleted


def test_an_entity_that_shall_live_on_is_not_deleted(bench: Bench) -> None:
    entity = bench.entity("q", settings=IDLE)
    gone = bench.entity("gone", settings=IDLE)
    bench.namespace.update(entity, Settings(auto_delete_on_idle_ms=FOREVER_MS), bench.now)
    bench.namespace.delete(gone, bench.now)
    bench.wait(10 * MINUTE)

    assert not entity.is_deleted


@pytest.mark.promise("B1")
def test_an_entity_that_forwards_is_never_idle(bench: Bench) -> None:
    bench.entity("target")
    topic = bench.topic(settings=IDLE)
    forwards = replace(IDLE, forward_to="target")
    subscription = bench.subscription("t/Subscriptions/s", forwards)
    queue = bench.entity("q", settings=forwards)
    bench.wait(20 * MINUTE)
    assert not any(entity.is_deleted for entity in (queue, subscription, topic))
    bench.send(topic)
    bench.pump()
    assert bench.find("target").main.active_count == 1

    again = bench.restart()
    again.wait(20 * MINUTE)
    again.namespace.update(again.find("q"), IDLE, again.now)
    again.wait(5 * MINUTE - 1)
    assert again.namespace.find("q") is not None
    again.wait(1)
    assert again.namespace.find("q") is None
    assert again.namespace.find("t/Subscriptions/s") is not None


@pytest.mark.promise("B1")
@pytest.mark.parametrize("kind", [QUEUE, TOPIC])
def test_an_entity_with_scheduled_messages_is_not_idle_until_they_are_due(kind: int, bench: Bench) -> None:
    entity = bench.entity("e", kind, IDLE)
    bench.send(entity, scheduled_at=START + 24 * MINUTE)
    bench.wait(24 * MINUTE - 1)
    assert not entity.is_deleted

    bench.wait(1)
    assert entity.main.scheduled_count == 0
    bench.wait(5 * MINUTE - 1)
    assert not entity.is_deleted
    bench.wait(1)
    assert entity.is_deleted


@pytest.mark.promise("B1")
def test_a_rule_that_is_added_to_a_subscription_is_use_of_its_topic(bench: Bench) -> None:
    topic = bench.topic(settings=IDLE)
    bench.wait(4 * MINUTE)
    subscription = bench.subscription("t/Subscriptions/s")
    bench.wait(4 * MINUTE)
    assert not topic.is_deleted
    with_rule = replace(subscription.settings, rules=(TRUE_RULE, rule("r", "a = 1")))
    bench.namespace.update(subscription, with_rule, bench.now)
    bench.wait(5 * MINUTE - 1)
    assert not topic.is_deleted
    bench.wait(1)
    assert topic.is_deleted


@pytest.mark.promise("B1")
def test_a_restart_does_not_take_an_entity_in_use_for_an_idle_one(bench: Bench) -> None:
    entity = bench.entity("q", settings=IDLE)
    for _ in range(10):
        bench.wait(MINUTE)
        bench.send(entity)

    again = bench.restart()
    again.wait(4 * MINUTE)
    assert not again.find("q").is_deleted
    again.wait(MINUTE)
    assert again.namespace.find("q") is None


@pytest.mark.parametrize("before_ms", [30_000, 4 * MINUTE, 20 * MINUTE])
def test_after_a_restart_an_idle_entity_is_deleted_when_its_time_has_passed_once(before_ms: int) -> None:
    bench = Bench()
    receiver = bench.receiver(bench.entity("q", settings=IDLE).main, 1)
    bench.wait(before_ms)
    bench.namespace.find("q").main.detach(receiver, bench.now)  # type: ignore[union-attr]

    again = bench.restart()
    again.wait(5 * MINUTE - 1)
    assert again.namespace.find("q") is not None
    again.wait(1)
    assert again.namespace.find("q") is None


# -- the fold


@pytest.mark.promise("B16")
def test_a_compacted_topics_subscription_does_not_join_the_topics_successor() -> None:
    subscription = Settings(rules=(TRUE_RULE,)).to_json()
    bench = fold_all(
        [
            EntityPut(
                2, SUBSCRIPTION, "t/Subscriptions/s", subscription
            ),  # its topic's record has been given back
            stored(8, 1),
            EntityDeleted(2),
            EntityDeleted(1),
            EntityPut(3, TOPIC, "t", "{}"),
        ]
    )

    assert bench.namespace.find("t/Subscriptions/s") is None
    assert bench.find("t").subscriptions == {}


@pytest.mark.promise("B9")
def test_records_may_stand_before_their_entitys() -> None:
    """Compaction moves an entity's own record on; its messages stay where they are."""
    subscription = Settings(rules=(TRUE_RULE,)).to_json()
    bench = fold_all(
        [
            stored(4, 1),
            stored(4, 2),
            MessageMoved(4, 2, 5, Extra()),
            stored(4, 3),
            MessageRemoved(4, 3, 0, 3),
            EntityPut(2, SUBSCRIPTION, "t/Subscriptions/s", subscription),
            stored(8, 1),
            EntityPut(1, QUEUE, "q", "{}"),
            EntityPut(3, TOPIC, "t", "{}"),
            stored(99, 1),  # of an entity that is gone altogether
        ]
    )

    assert list(bench.find("q").main.messages) == [1]
    assert list(bench.find("q").dead_letter.messages) == [2]
    assert list(bench.find("t/Subscriptions/s").main.messages) == [1]
    assert bench.entity("next").entity_id == 4


def test_a_fold_ignores_what_it_does_not_know(bench: Bench) -> None:
    entity = bench.entity("q")
    main = entity.main.queue_id
    for record in (
        MessageRemoved(main, 7, 0, 0),
        MessageMoved(main, 7, main + 1, Extra()),
        SessionStateSet(main, "s", b"x", START),
        DuplicateSeen(main, b"k", START),
        DeliveryFailed(main, 7, 1),
        MessageDeferred(main, 7, 1),
        EntityDeleted(99),
    ):
        bench.namespace.fold(record)

    assert entity.counts().total == 0
    bench.namespace.fold(SequenceAdvanced(main, 50, START + MINUTE))
    assert bench.send(entity) == 50
    assert entity.main.messages[50].enqueued_at == START + MINUTE


# -- compaction


def restate(bench: Bench, record: Record) -> list[Record]:
    before = len(bench.journal.records)
    bench.namespace.restate(record, bench.now)
    return bench.journal.records[before:]


def test_restating_tells_what_is_still_true_and_nothing_else(bench: Bench) -> None:
    settings = Settings(requires_session=True, requires_duplicate_detection=True, duplicate_window_ms=MINUTE)
    entity = bench.entity("q", settings=settings)
    bench.send(entity, session_id="a", message_id="m")
    holder = bench.holder(entity.main, "a", 1)
    assert holder.session is not None
    session_ops.set_state(entity.main, holder.session, b"s", bench.now)
    first = list(bench.journal.records)
    message_record = next(record for record in first if isinstance(record, MessageStored))

    again = [type(record).__name__ for record in first for record in restate(bench, record)]
    assert again == ["EntityPut", "MessageStored", "DuplicateSeen", "SessionStateSet"]

    bench.pump()
    entity.main.complete(bench.outbox.last_lock(), bench.now)
    session_ops.set_state(entity.main, holder.session, None, bench.now + 1)
    bench.now += MINUTE
    again = [type(record).__name__ for record in first for record in restate(bench, record)]
    assert again == ["EntityPut"]
    bench.namespace.delete(entity, bench.now)
    assert not [record for record in first for record in restate(bench, record)]
    assert not restate(bench, message_record)


@pytest.mark.promise("B19")
def test_ids_of_entities_are_kept_by_restating_the_namespace(bench: Bench) -> None:
    bench.namespace.set_access_rules((), bench.now)
    bench.namespace.delete(bench.entity("q"), bench.now)
    record = restate(bench, bench.journal.records[0])[0]

    assert isinstance(record, NamespacePut)
    again = fold_all([record])
    assert again.entity("q").entity_id == 2


def test_restating_finds_a_message_that_was_dead_lettered_since(bench: Bench) -> None:
    entity = bench.entity("q")
    bench.send(entity)
    location = entity.main.messages[1].location
    old = Message(1, START, 0, entity.main.messages[1].size, None)
    old.location = location
    entity.main.dead_letter(bench.receive(entity.main), "r", None, b"", bench.now)
    records = restate(bench, MessageStored(entity.main.queue_id, old, None, b""))

    assert isinstance(records[0], MessageStored)
    assert records[0].queue_id == entity.dead_letter.queue_id
    assert entity.dead_letter.messages[1].location != location
    assert restate(bench, MessageStored(entity.main.queue_id, old, None, b"")) == []


def test_duplicates_and_states_of_entities_without_either_are_not_restated(bench: Bench) -> None:
    main = bench.entity("q").main.queue_id
    for record in (
        DuplicateSeen(main, b"k", START),
        DuplicateSeen(99, b"k", START),
        SessionStateSet(main, "s", b"x", START),
        SessionStateSet(99, "s", b"x", START),
        EntityPut(99, QUEUE, "gone", "{}"),
        MessageRemoved(main, 1, 0, 0),
    ):
        assert restate(bench, record) == []


def test_every_stored_message_is_listed_for_the_store(bench: Bench) -> None:
    entity = bench.entity("q")
    bench.send(entity)
    message = entity.main.messages[1]
    assert list(bench.namespace.live_messages()) == [(entity.main.queue_id, message.location, message.size)]


# -- time


@pytest.mark.promise("B62")
def test_timers_follow_what_is_waited_for(bench: Bench, queue: Queue) -> None:
    """A far deadline behind many near ones must not be asked for again and again."""
    bench.send(queue, ttl_ms=1_000_000 * SECOND)
    for _ in range(2_000):
        bench.receive(queue)
        bench.wait(MINUTE)
        queue.messages[1].delivery_count = 0

    assert len(bench.namespace.context.timers._heap) < 600
    assert bench.namespace.next_deadline() == START + 1_000_000 * SECOND


def test_without_anything_to_wait_for_there_is_no_deadline(bench: Bench) -> None:
    bench.pump()
    assert bench.namespace.next_deadline() is None
    bench.namespace.tick(bench.now)


@pytest.mark.promise("M11")
def test_a_refused_subscription_leaves_nothing_and_the_broker_starts_again(bench: Bench) -> None:
    bench.topic()
    full = [rule(f"r{i}", f"a = {i}") for i in range(2_000)]
    bench.subscription("t/Subscriptions/full", rules=full)
    other = bench.subscription("t/Subscriptions/other")

    with pytest.raises(QuotaExceeded):
        bench.subscription("t/Subscriptions/more", rules=[rule("r", "a = 1")])
    with pytest.raises(QuotaExceeded):
        settings = replace(other.settings, rules=(rule("r", "a = 1"),))
        bench.namespace.update(other, settings, bench.now)

    assert bench.namespace.find("t/Subscriptions/more") is None
    after = bench.restart()
    assert after.namespace.find("t/Subscriptions/more") is None
    assert after.find("t/Subscriptions/other").settings.rules == other.settings.rules


@pytest.mark.promise("B62")
def test_deleted_entities_leave_no_timers_behind(bench: Bench) -> None:
    for _ in range(2_000):
        queue = bench.queue(settings=Settings(auto_delete_on_idle_ms=10**12))
        bench.send(queue, "x", scheduled_at=START + 10**11)
        bench.namespace.delete(bench.find("q"), bench.now)

    for timers in (bench.namespace.context.timers, bench.namespace._idle_timers):
        assert len(timers._heap) < 1_000
        assert len(timers._armed) == 0


@pytest.mark.promise("B1")
def test_topic_whose_subscriptions_are_used_is_not_deleted_as_idle(bench: Bench) -> None:
    topic = bench.topic(settings=Settings(auto_delete_on_idle_ms=300 * SECOND))
    subscription = bench.subscription("t/Subscriptions/s")
    bench.send(topic, "x")
    consumer = bench.receiver(subscription.main)

    bench.wait(200 * SECOND)
    subscription.main.detach(consumer, bench.now)
    bench.wait(200 * SECOND)
    assert bench.namespace.find("t") is not None
    assert subscription.main.active_count == 1

    bench.wait(200 * SECOND)
    assert bench.namespace.find("t") is None
