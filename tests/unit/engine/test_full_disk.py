"""B12: on a full disk nothing that moves by itself, and no new entity, takes from what settlements need."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pairbus.engine.namespace import SMALL_RECORD_BYTES
from pairbus.engine.queues.due import ROOM_RETRY_MS
from pairbus.engine.queues.queue import Queue
from pairbus.engine.records import MessageStored
from pairbus.engine.sessions import operations as session_ops
from pairbus.errors import QuotaExceeded
from pairbus.model.entity import QUEUE, SEND_DISABLED, SUBSCRIPTION, TOPIC, Settings
from tests.unit.engine.engine_kit import SECOND, START, TRUE_RULE, Bench, incoming, rule

MINUTE = 60 * SECOND


def stored(bench: Bench) -> int:
    return sum(1 for record in bench.journal.records if isinstance(record, MessageStored))


@pytest.mark.promise("B12")
@pytest.mark.parametrize("kind", [QUEUE, TOPIC, SUBSCRIPTION])
def test_a_disk_without_room_refuses_new_entities_in_words(kind: int, bench: Bench) -> None:
    bench.topic("t")
    path = {QUEUE: "new", TOPIC: "new", SUBSCRIPTION: "t/Subscriptions/new"}[kind]
    settings = Settings(rules=(TRUE_RULE,)) if kind == SUBSCRIPTION else Settings()
    bench.journal.room = 0
    count = len(bench.journal.records)

    with pytest.raises(QuotaExceeded, match=rf"disk has no room for '{path}'.*Free some space"):
        bench.namespace.create(kind, path, settings, bench.now)

    assert len(bench.journal.records) == count
    assert bench.namespace.find(path) is None
    bench.journal.room = 1 << 30
    bench.namespace.create(kind, path, settings, bench.now)


@pytest.mark.promise("B12")
def test_a_limit_that_was_reached_is_named(bench: Bench) -> None:
    queue = bench.entity("q")
    bench.journal.room = 0
    limit = "--store-max-mb 64"
    bench.namespace.context.room_limit = lambda: limit
    with pytest.raises(QuotaExceeded, match="message to 'q': it has reached its limit, --store-max-mb 64. "):
        queue.main.check_send(incoming("x"), 0)
    with pytest.raises(
        QuotaExceeded, match="'new' .*--store-max-mb 64. Receive messages, or raise the limit"
    ):
        bench.namespace.create(QUEUE, "new", Settings(), bench.now)
    limit = ""
    with pytest.raises(QuotaExceeded, match="The disk has no room for a message to 'q'"):
        queue.main.check_send(incoming("x"), 0)


@pytest.mark.promise("B12")
def test_small_changes_of_settings_need_no_room_and_long_ones_do(bench: Bench) -> None:
    queue = bench.entity("q")
    bench.topic("t")
    subscription = bench.subscription("t/Subscriptions/s")
    bench.journal.room = 0

    bench.namespace.update(queue, replace(queue.settings, status=SEND_DISABLED), bench.now)
    many = tuple(rule(f"r{number}", f"n = {number}") for number in range(100))
    assert sum(map(len, many)) > SMALL_RECORD_BYTES
    with pytest.raises(QuotaExceeded, match="disk"):
        bench.namespace.update(subscription, replace(subscription.settings, rules=many), bench.now)

    assert queue.settings.status == SEND_DISABLED
    assert subscription.settings.rules == (TRUE_RULE,)
    bench.journal.room = 1 << 30
    bench.namespace.update(subscription, replace(subscription.settings, rules=many), bench.now)
    bench.journal.room = 0
    bench.namespace.update(subscription, replace(subscription.settings, rules=many[:-1]), bench.now)
    bench.namespace.delete(subscription, bench.now)


@pytest.mark.promise("B12", "B45")
def test_scheduled_messages_wait_for_room_and_arrive_when_it_is_back(bench: Bench, queue: Queue) -> None:
    for number in range(3):
        bench.send(queue, number, scheduled_at=START + SECOND)
    bench.journal.room = 0
    before = stored(bench)

    bench.wait(10 * SECOND)

    assert stored(bench) == before
    assert (queue.scheduled_count, queue.active_count) == (3, 0)
    deadline = bench.namespace.next_deadline()
    assert deadline is not None, "it is asked for again without other traffic"
    assert bench.now < deadline <= bench.now + ROOM_RETRY_MS
    bench.journal.room = 1 << 30
    bench.wait(ROOM_RETRY_MS)
    assert (queue.scheduled_count, queue.active_count) == (0, 3)


@pytest.mark.promise("B12")
def test_a_schedule_that_waits_for_room_holds_up_no_other_deadline(bench: Bench) -> None:
    queue = bench.queue(settings=Settings(lock_duration_ms=5 * SECOND))
    bench.send(queue, "locked")
    bench.receive(queue)
    bench.send(queue, "due", scheduled_at=START + SECOND)
    bench.journal.room = 0

    bench.wait(5 * SECOND)

    assert queue.messages[1].delivery_count == 1
    assert queue.scheduled_count == 1


@pytest.mark.promise("B12", "B50")
@pytest.mark.parametrize("target", ["queue", "topic"])
def test_forwarding_waits_for_room_and_sets_nothing_aside(target: str, bench: Bench) -> None:
    if target == "topic":
        bench.topic("target")
        for name in "ab":
            bench.subscription(f"target/Subscriptions/{name}")
    else:
        bench.queue("target")
    source = bench.entity("source", settings=Settings(forward_to="target"))
    bench.send(source)
    bench.journal.room = len(incoming().blob) * (2 if target == "topic" else 1) - 1
    bench.pump()
    bench.wait(MINUTE)
    assert source.counts().active == 1
    assert source.counts().transfer_dead_letter == 0

    bench.journal.room = 1 << 30
    bench.wait(ROOM_RETRY_MS)

    assert source.counts().total == 0
    places = bench.find("target").subscriptions.values() if target == "topic" else [bench.find("target")]
    assert [place.counts().active for place in places] == [1] * len(list(places))


@pytest.mark.promise("B12", "B15")
def test_what_falls_due_at_a_topic_waits_for_room_for_all_copies(bench: Bench) -> None:
    topic = bench.topic("t")
    for name in "abc":
        bench.subscription(f"t/Subscriptions/{name}")
    bench.send(topic, scheduled_at=START + SECOND)
    bench.journal.room = 3 * len(incoming().blob) - 1

    bench.wait(MINUTE)
    assert [s.counts().active for s in topic.subscriptions.values()] == [0, 0, 0]

    bench.journal.room = 1 << 30
    bench.wait(ROOM_RETRY_MS)
    assert [s.counts().active for s in topic.subscriptions.values()] == [1, 1, 1]
    assert not topic.main.messages


@pytest.mark.promise("B12")
def test_session_state_leaves_the_reserve_of_a_full_disk_alone(bench: Bench) -> None:
    queue = bench.queue(settings=Settings(requires_session=True))
    holder = bench.holder(queue, "s")
    assert holder.session is not None
    session_ops.set_state(queue, holder.session, b"before", bench.now)
    bench.journal.room = 0

    with pytest.raises(QuotaExceeded):
        session_ops.set_state(queue, holder.session, bytes(1_000), bench.now)

    assert holder.session.state == b"before"
    session_ops.set_state(queue, holder.session, None, bench.now)
