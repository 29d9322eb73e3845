"""What a second reading of the engine found: each of these went wrong once."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from pairbus.amqp.types import ULong
from pairbus.engine.records import DuplicateSeen, EntityPut, NamespacePut, Record
from pairbus.engine.sessions import operations as session_ops
from pairbus.errors import ArgumentError, QuotaExceeded
from pairbus.model.access import RIGHTS, AccessRule
from pairbus.model.entity import Settings
from tests.unit.engine.engine_kit import SECOND, START, Bench, rule

HUGE = 2**64 - 1


def _restated(bench: Bench, records: list[Record]) -> list[Record]:
    """What compaction writes anew of these."""
    before = len(bench.journal.records)
    for record in records:
        bench.namespace.restate(record, bench.now)
    return bench.journal.records[before:]


@pytest.mark.promise("B15")
def test_publish_with_an_unsigned_property_and_an_action_reaches_every_subscription() -> None:
    bench = Bench()
    topic = bench.topic()
    plain = bench.subscription("t/Subscriptions/a")
    acting = bench.subscription("t/Subscriptions/b", rules=[rule("r", "1=1", "SET copy = wide")])

    bench.send(topic, "x", properties={"wide": ULong(HUGE)})

    assert plain.main.active_count == 1
    assert acting.main.active_count == 1


@pytest.mark.promise("B59")
def test_scheduled_message_with_an_unsigned_property_does_not_stop_the_pump() -> None:
    bench = Bench()
    topic = bench.topic()
    acting = bench.subscription("t/Subscriptions/b", rules=[rule("r", "1=1", "SET copy = wide")])
    bench.send(topic, "x", properties={"wide": ULong(HUGE)}, scheduled_at=START + SECOND)

    bench.wait(2 * SECOND)

    assert acting.main.active_count == 1


@pytest.mark.promise("B58")
def test_more_fresh_ids_than_two_bytes_count_do_not_stop_a_publish() -> None:
    bench = Bench()
    topic = bench.topic()
    many = {"expression": "; ".join(f"SET p{i} = newid()" for i in range(32)), "parameters": {}}
    texts = [
        json.dumps({"name": f"r{i}", "created_at": 0, "filter": {"kind": "true"}, "action": many})
        for i in range(70)
    ]
    for i in range(30):
        bench.subscription(f"t/Subscriptions/s{i}", rules=texts)

    bench.send(topic, "x")

    assert all(s.main.active_count == 70 for s in topic.subscriptions.values())


@pytest.mark.promise("M11")
def test_a_refused_subscription_leaves_nothing_and_the_broker_starts_again() -> None:
    bench = Bench()
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
def test_messages_that_expire_behind_a_waiting_one_leave_nothing_in_their_session() -> None:
    bench = Bench()
    queue = bench.queue(settings=Settings(requires_session=True))
    bench.send(queue, "first", session_id="s")
    for _ in range(40):
        for _ in range(200):
            bench.send(queue, "x", session_id="s", ttl_ms=10)
        bench.wait(20)
    assert queue.sessions is not None
    assert queue.active_count == 1

    held = queue.sessions.sessions["s"].ready
    assert len(held._fresh) + len(held._returned) < 2_500


@pytest.mark.promise("B62")
def test_deleted_entities_leave_no_timers_behind() -> None:
    bench = Bench()
    for _ in range(2_000):
        queue = bench.queue(settings=Settings(auto_delete_on_idle_ms=10**12))
        bench.send(queue, "x", scheduled_at=START + 10**11)
        bench.namespace.delete(bench.find("q"), bench.now)

    assert len(bench.namespace.context._timers) < 1_000
    assert len(bench.namespace.context._armed) == 0


@pytest.mark.promise("B62")
def test_old_settings_of_an_entity_are_not_written_anew() -> None:
    bench = Bench()
    entity = bench.entity("q")
    for number in range(50):
        bench.now += 1
        bench.namespace.update(entity, replace(entity.settings, user_metadata=str(number)), bench.now)
    told = [record for record in bench.journal.records if isinstance(record, EntityPut)]
    assert len(told) == 51

    kept = _restated(bench, list(told))

    assert len(kept) == 1
    assert isinstance(kept[0], EntityPut)
    assert '"49"' in kept[0].settings


@pytest.mark.promise("B62")
def test_old_access_rules_of_the_namespace_are_not_written_anew() -> None:
    bench = Bench()
    for number in range(20):
        key = f"key-{number}"
        rules = (AccessRule(name="root", rights=RIGHTS, primary_key=key, secondary_key=key),)
        bench.namespace.set_access_rules(rules, bench.now)
    told = [record for record in bench.journal.records if isinstance(record, NamespacePut)]

    kept = _restated(bench, list(told))

    assert len(kept) == 1
    assert isinstance(kept[0], NamespacePut)
    assert "key-19" in kept[0].settings


@pytest.mark.promise("B62")
def test_an_id_that_comes_again_and_again_is_restated_once() -> None:
    window = 20 * SECOND
    bench = Bench()
    settings = Settings(requires_duplicate_detection=True, duplicate_window_ms=window)
    queue = bench.queue(settings=settings)
    for _ in range(30):
        bench.send(queue, "x", message_id="again")
        bench.now += window + 1
    bench.now -= window
    told = [record for record in bench.journal.records if getattr(record, "duplicate_key", b"")]
    assert len(told) == 30

    kept = [record for record in _restated(bench, list(told)) if isinstance(record, DuplicateSeen)]

    assert len(kept) == 1
    assert bench.send(queue, "x", message_id="again") == 0


@pytest.mark.promise("B12")
def test_session_state_leaves_the_reserve_of_a_full_disk_alone() -> None:
    bench = Bench()
    queue = bench.queue(settings=Settings(requires_session=True))
    holder = bench.holder(queue, "s")
    assert holder.session is not None
    session_ops.set_state(queue, holder.session, b"before", bench.now)
    bench.journal.room = 0

    with pytest.raises(QuotaExceeded):
        session_ops.set_state(queue, holder.session, bytes(1_000), bench.now)

    assert holder.session.state == b"before"
    session_ops.set_state(queue, holder.session, None, bench.now)


@pytest.mark.promise("B62")
def test_session_states_count_against_the_size_of_their_entity() -> None:
    bench = Bench()
    queue = bench.queue(settings=Settings(requires_session=True, max_size_mb=1))
    state = bytes(200_000)
    with pytest.raises(QuotaExceeded):
        for number in range(20):
            holder = bench.holder(queue, f"s{number}")
            assert holder.session is not None
            session_ops.set_state(queue, holder.session, state, bench.now)
            queue.detach(holder, bench.now)

    after = bench.restart()
    again = after.find("q").main
    holder = after.holder(again, "another")
    assert holder.session is not None
    with pytest.raises(QuotaExceeded):
        session_ops.set_state(again, holder.session, state, after.now)
    # Room comes back when a state goes.
    first = after.holder(again, "s0")
    assert first.session is not None
    session_ops.set_state(again, first.session, None, after.now)
    session_ops.set_state(again, holder.session, state, after.now)


@pytest.mark.promise("M12")
def test_session_id_of_a_receiver_is_as_short_as_that_of_a_message() -> None:
    bench = Bench()
    queue = bench.queue(settings=Settings(requires_session=True))

    with pytest.raises(ArgumentError):
        bench.holder(queue, "s" * 129)

    assert queue.sessions is not None
    assert not queue.sessions.sessions


@pytest.mark.promise("B1")
def test_topic_whose_subscriptions_are_used_is_not_deleted_as_idle() -> None:
    bench = Bench()
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
