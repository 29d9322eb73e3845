"""B63: however much falls due at one instant, one tick does a bounded part of it and asks for the next at once."""

from __future__ import annotations

import pytest

from pairbus.engine.context import DUE_BURST_MAX
from pairbus.engine.discard import Discard
from pairbus.engine.queues.queue import Queue
from pairbus.model.entity import Settings
from tests.unit.engine.engine_kit import SECOND, START, Bench, gone

COUNT = 3 * DUE_BURST_MAX + 7


def _tick(bench: Bench) -> None:
    bench.now = START + 10 * SECOND
    bench.namespace.tick(bench.now)
    deadline = bench.namespace.next_deadline()
    assert deadline is not None
    assert deadline <= bench.now, "the rest is asked for at once, without other traffic"


@pytest.mark.promise("B43", "B63")
def test_messages_that_expire_together_go_a_burst_at_a_time(bench: Bench) -> None:
    queue = bench.queue(settings=Settings(dead_letter_on_expiration=True))
    for _ in range(COUNT):
        bench.send(queue, ttl_ms=SECOND)

    _tick(bench)
    assert gone(queue) == DUE_BURST_MAX

    bench.wait(0)
    assert bench.find("q").counts().dead_letter == COUNT
    assert gone(queue) == COUNT


@pytest.mark.promise("B41")
def test_what_is_left_for_the_next_burst_is_not_delivered(bench: Bench, queue: Queue) -> None:
    for _ in range(COUNT):
        bench.send(queue, ttl_ms=SECOND)
    _tick(bench)

    assert bench.receives_nothing(queue)


@pytest.mark.promise("B43", "B63")
def test_a_receiver_passes_over_expired_messages_a_burst_at_a_time(bench: Bench, queue: Queue) -> None:
    for _ in range(COUNT):
        bench.send(queue, ttl_ms=SECOND)
    alive = bench.send(queue)
    bench.receiver(queue, 10)
    bench.now = START + 10 * SECOND

    queue.deliver(bench.now)
    assert gone(queue) == DUE_BURST_MAX
    assert bench.namespace.next_deadline() == 0

    bench.pump()
    assert bench.outbox.numbers() == [alive]


@pytest.mark.promise("B43", "B63")
def test_the_holder_of_a_session_passes_over_expired_messages_a_burst_at_a_time(bench: Bench) -> None:
    queue = bench.queue(settings=Settings(requires_session=True))
    for _ in range(COUNT):
        bench.send(queue, session_id="s", ttl_ms=SECOND)
    alive = bench.send(queue, session_id="s")
    bench.holder(queue, "s", 10)
    bench.now = START + 10 * SECOND

    queue.deliver(bench.now)
    assert gone(queue) == DUE_BURST_MAX

    bench.pump()
    assert bench.outbox.numbers() == [alive]


@pytest.mark.promise("B43", "B63")
def test_a_receiver_that_waits_for_a_session_passes_over_expired_messages_a_burst_at_a_time() -> None:
    bench = Bench()
    queue = bench.queue(settings=Settings(requires_session=True))
    for number in range(COUNT):
        bench.send(queue, session_id=f"s{number}", ttl_ms=SECOND)
    bench.send(queue, session_id="alive")
    bench.now = START + 10 * SECOND

    waiting = bench.holder(queue, None, 10)
    assert gone(queue) == DUE_BURST_MAX
    assert queue.sessions is not None
    assert waiting in queue.sessions.waiting

    bench.pump()
    assert waiting.session is not None
    assert waiting.session.session_id == "alive"


@pytest.mark.promise("B45", "B63")
def test_messages_that_fall_due_together_arrive_a_burst_at_a_time_and_in_order(bench: Bench) -> None:
    queue = bench.queue()
    for _ in range(COUNT):
        bench.send(queue, scheduled_at=START + SECOND)

    _tick(bench)
    assert queue.active_count == DUE_BURST_MAX

    bench.wait(0)
    assert queue.active_count == COUNT
    assert sorted(queue.messages) == list(range(COUNT + 1, 2 * COUNT + 1))


@pytest.mark.promise("B31", "B63")
def test_locks_that_expire_together_end_a_burst_at_a_time(bench: Bench) -> None:
    queue = bench.queue(settings=Settings(lock_duration_ms=5 * SECOND))
    for _ in range(COUNT):
        bench.send(queue)
    consumer = bench.receiver(queue, COUNT)
    bench.pump()
    queue.detach(consumer, bench.now)
    assert len(queue.locks) == COUNT

    _tick(bench)
    assert len(queue.locks) == COUNT - DUE_BURST_MAX

    bench.wait(0)
    assert not queue.locks
    assert all(message.delivery_count == 1 for message in queue.messages.values())


@pytest.mark.promise("B63", "B66")
@pytest.mark.parametrize("kind", ["queue", "sessions", "subscription"])
def test_what_a_deleted_entity_held_is_freed_a_part_at_a_time(kind: str, bench: Bench) -> None:
    bench.namespace._discard = Discard(100)
    topic = bench.topic("t")
    if kind == "subscription":
        entity = bench.subscription("t/subscriptions/s")
        for _ in range(350):
            bench.send(topic)
    else:
        settings = Settings(requires_session=kind == "sessions", requires_duplicate_detection=True)
        for number in range(350):
            queue = bench.queue("q", settings) if number == 0 else bench.find("q").main
            session_id = f"s{number}" if kind == "sessions" else None
            bench.send(queue, session_id=session_id, message_id=f"m{number}", ttl_ms=SECOND)
        entity = bench.find("q")
    place, space = entity.main, entity.space
    size = space.stored_bytes

    bench.namespace.delete(entity, bench.now)

    left = [len(place.messages)]
    assert bench.namespace.find(entity.path) is None, "it is gone at once"
    while bench.namespace.next_deadline() == 0:
        bench.namespace.tick(bench.now)
        left.append(len(place.messages))
    assert left[:4] == [250, 150, 50, 0]
    assert size > space.stored_bytes == 0
    assert (list(place.messages), place.expiring, place.ready.first()) == ([], [], None)
    assert place.sessions is None or not place.sessions.sessions
    assert place.duplicates is None or not len(place.duplicates)
    assert bench.restart().namespace.find(entity.path) is None


@pytest.mark.promise("B43", "B63")
def test_messages_of_many_queues_that_expire_together_go_a_burst_at_a_time(bench: Bench) -> None:
    """As do the copies of one message in a thousand subscriptions whose receivers are away."""
    each, count = DUE_BURST_MAX // 20, 60
    queues = [bench.queue(f"q{number}") for number in range(count)]
    for queue in queues:
        for _ in range(each):
            bench.send(queue, ttl_ms=SECOND)

    _tick(bench)
    done = sum(gone(queue) for queue in queues)
    assert 0 < done <= DUE_BURST_MAX + each

    bench.wait(0)
    assert sum(gone(queue) for queue in queues) == count * each
