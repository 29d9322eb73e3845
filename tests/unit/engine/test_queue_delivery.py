"""Deliveries, locks and settlement of a queue without sessions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from pairbus.engine.queues.browse import lock_deferred
from pairbus.engine.queues.queue import REASON_EXPIRED, REASON_MAX_DELIVERY_COUNT, Queue
from pairbus.engine.records import MessageRemoved
from pairbus.errors import ArgumentError, EntityDisabled, MessageLockLost, NotAllowed
from pairbus.model.entity import RECEIVE_DISABLED, Settings
from pairbus.model.message import ACTIVE, DEFERRED
from tests.unit.engine.engine_kit import SECOND, Bench, gone

MINUTE = 60 * SECOND


@pytest.mark.promise("B21")
def test_one_consumer_gets_messages_in_order(bench: Bench, queue: Queue) -> None:
    for _ in range(5):
        bench.send(queue)
    bench.receiver(queue, 10)
    bench.pump()

    assert bench.outbox.numbers() == [1, 2, 3, 4, 5]


@pytest.mark.promise("B35")
def test_no_more_is_delivered_than_there_is_credit(bench: Bench, queue: Queue) -> None:
    for _ in range(5):
        bench.send(queue)
    consumer = bench.receiver(queue, 2)
    bench.pump()
    assert bench.outbox.numbers() == [1, 2]
    assert consumer.credit == 0

    queue.set_credit(consumer, 1)
    bench.pump()
    assert bench.outbox.numbers() == [1, 2, 3]


def test_consumers_take_turns(bench: Bench, queue: Queue) -> None:
    one, two = bench.receiver(queue, 10), bench.receiver(queue, 10)
    for _ in range(4):
        bench.send(queue)
    bench.pump()

    assert [consumer for consumer, _, _ in bench.outbox.delivered] == [one, two, one, two]


@pytest.mark.promise("B63")
def test_a_suspended_consumer_gets_nothing_and_delays_nobody(bench: Bench, queue: Queue) -> None:
    slow, other = bench.receiver(queue, 10), bench.receiver(queue, 10)
    slow.is_suspended = True
    bench.send(queue)
    bench.send(queue)
    bench.pump()
    assert [consumer for consumer, _, _ in bench.outbox.delivered] == [other, other]

    slow.is_suspended = False
    queue.set_credit(slow, slow.credit)
    queue.set_credit(other, 0)
    bench.send(queue)
    bench.pump()
    assert bench.outbox.delivered[-1][0] is slow


def test_a_detached_consumer_gets_nothing(bench: Bench, queue: Queue) -> None:
    gone = bench.receiver(queue, 10)
    queue.detach(gone, bench.now)
    idle = bench.receiver(queue)
    queue.detach(idle, bench.now)
    bench.send(queue)
    bench.pump()

    assert not bench.outbox.delivered
    assert not queue.rotation


@pytest.mark.promise("B25")
def test_a_locked_message_goes_to_nobody_else(bench: Bench, queue: Queue) -> None:
    bench.send(queue)
    bench.receive(queue)

    assert bench.receives_nothing(queue)


@pytest.mark.promise("B26")
def test_a_lock_lasts_for_the_lock_duration(bench: Bench) -> None:
    queue = bench.queue("q", Settings(lock_duration_ms=30 * SECOND))
    bench.send(queue)
    lock = bench.receive(queue)
    assert lock.locked_until == bench.now + 30 * SECOND

    bench.wait(30 * SECOND - 1)
    assert bench.receives_nothing(queue)
    bench.wait(1)
    assert bench.receive(queue).message is lock.message


@pytest.mark.promise("B31")
def test_an_expired_lock_frees_the_message_without_other_traffic(bench: Bench, queue: Queue) -> None:
    bench.send(queue)
    bench.receive(queue)
    bench.receiver(queue, 1)
    bench.wait(MINUTE)

    assert bench.outbox.numbers() == [1, 1]


@pytest.mark.promise("B5")
def test_a_completed_message_is_gone_also_after_a_restart(bench: Bench, queue: Queue) -> None:
    bench.send(queue)
    queue.complete(bench.receive(queue), bench.now)

    assert not queue.messages
    assert not bench.restart().find("q").main.messages


@pytest.mark.promise("B27")
@pytest.mark.parametrize("how", ["complete", "abandon", "release", "defer", "dead_letter", "renew"])
def test_a_stale_token_does_nothing(how: str, bench: Bench, queue: Queue) -> None:
    bench.send(queue)
    lock = bench.receive(queue)
    bench.now = lock.locked_until  # no tick has noticed yet
    records = len(bench.journal.records)
    calls: dict[str, Callable[[], object]] = {
        "complete": lambda: queue.complete(lock, bench.now),
        "abandon": lambda: queue.abandon(lock, b"", bench.now),
        "release": lambda: queue.release(lock, bench.now),
        "defer": lambda: queue.defer(lock, b"", bench.now),
        "dead_letter": lambda: queue.dead_letter(lock, None, None, b"", bench.now),
        "renew": lambda: queue.renew(lock, bench.now),
    }

    with pytest.raises(MessageLockLost):
        calls[how]()

    assert len(bench.journal.records) == records
    assert queue.messages[1].state == ACTIVE


@pytest.mark.promise("B27")
def test_a_used_token_is_stale(bench: Bench, queue: Queue) -> None:
    bench.send(queue)
    lock = bench.receive(queue)
    queue.abandon(lock, b"", bench.now)

    with pytest.raises(MessageLockLost):
        queue.complete(lock, bench.now)


def test_a_lock_is_found_by_its_token_and_no_other(bench: Bench, queue: Queue) -> None:
    bench.send(queue)
    lock = bench.receive(queue)

    assert queue.find_lock(lock.token, None) is lock
    assert queue.find_lock(lock.token + 1, None) is None


@pytest.mark.promise("B28")
def test_renewing_only_extends_and_keeps_the_order_of_expiry(bench: Bench, queue: Queue) -> None:
    bench.send(queue)
    bench.send(queue)
    first = bench.receive(queue)
    bench.now += 10 * SECOND
    second = bench.receive(queue)
    bench.now += 10 * SECOND
    assert queue.renew(first, bench.now) == bench.now + MINUTE

    bench.wait(50 * SECOND)  # the second has expired, the first has not
    assert not second.is_held
    assert first.is_held
    bench.wait(10 * SECOND)
    assert not first.is_held


@pytest.mark.promise("B29")
def test_the_count_rises_with_abandon_and_expiry_and_nothing_else(bench: Bench, queue: Queue) -> None:
    bench.send(queue)
    counts = []
    queue.abandon(bench.receive(queue), b"", bench.now)
    counts.append(queue.messages[1].delivery_count)
    queue.release(bench.receive(queue), bench.now)
    counts.append(queue.messages[1].delivery_count)
    bench.receive(queue)
    bench.wait(MINUTE)
    counts.append(queue.messages[1].delivery_count)

    assert counts == [1, 1, 2]
    assert bench.restart().find("q").main.messages[1].delivery_count == 2


@pytest.mark.promise("B29")
def test_a_change_of_the_entity_ends_locks_without_counting(bench: Bench) -> None:
    entity = bench.entity("q")
    bench.send(entity)
    lock = bench.receive(entity.main)
    bench.namespace.update(entity, Settings(lock_duration_ms=10 * SECOND), bench.now)

    assert not lock.is_held
    assert entity.main.messages[1].delivery_count == 0
    assert bench.receive(entity.main).message.sequence_number == 1


@pytest.mark.promise("B30")
def test_the_last_allowed_failure_moves_to_the_dead_letter_queue_with_the_fixed_reason(bench: Bench) -> None:
    entity = bench.entity("q", settings=Settings(max_delivery_count=2))
    bench.send(entity)
    for _ in range(2):
        entity.main.abandon(bench.receive(entity.main), b"", bench.now)

    assert not entity.main.messages
    dead = entity.dead_letter.messages[1]
    assert dead.extra is not None
    assert dead.extra.dead_letter_reason == REASON_MAX_DELIVERY_COUNT
    assert dead.extra.dead_letter_source == "q"
    assert dead.delivery_count == 2


@pytest.mark.promise("B30")
def test_a_lowered_limit_counts_for_what_has_failed_already(bench: Bench) -> None:
    entity = bench.entity("q")
    for _ in range(3):
        bench.send(entity)
    for _ in range(2):
        entity.main.abandon(bench.receive(entity.main), b"", bench.now)
    entity.main.defer(bench.receive(entity.main), b"", bench.now)  # deferred ones are not handed out in turn
    entity.main.abandon(bench.receive(entity.main), b"", bench.now)
    assert entity.main.messages[1].delivery_count == 3
    bench.namespace.update(entity, Settings(max_delivery_count=1), bench.now)

    assert list(entity.dead_letter.messages) == [2]
    assert list(entity.main.messages) == [1, 3]
    assert bench.receive(entity.main).message.sequence_number == 3
    for life in (bench, bench.restart()):
        assert life.find("q").counts().dead_letter == 1


@pytest.mark.promise("B29")
def test_a_dead_letter_keeps_its_delivery_count_and_is_counted_no_more(bench: Bench) -> None:
    entity = bench.entity("q", settings=Settings(max_delivery_count=9, lock_duration_ms=5_000))
    bench.send(entity)
    for _ in range(3):
        entity.main.abandon(bench.receive(entity.main), b"", bench.now)
    entity.main.dead_letter(bench.receive(entity.main), "why", None, b"", bench.now)
    assert entity.dead_letter.messages[1].delivery_count == 3

    dead_letters = entity.dead_letter
    dead_letters.abandon(bench.receive(dead_letters), b"", bench.now)
    dead_letters.abandon(bench.receive(dead_letters), b"\xc1\x03\x02\x40\x40", bench.now)
    bench.receive(dead_letters)
    bench.wait(5_000)  # a lock that expires
    dead_letters.defer(bench.receive(dead_letters), b"", bench.now)
    for life in (bench, bench.restart()):
        dead = life.find("q").dead_letter.messages[1]
        assert dead.delivery_count == 3
        assert dead.extra is not None
        assert dead.extra.changed_properties


@pytest.mark.promise("B30")
@pytest.mark.parametrize("how", ["abandon", "expiry"])
def test_the_last_failure_itself_is_counted_and_durable(how: str, bench: Bench) -> None:
    entity = bench.entity("q", settings=Settings(max_delivery_count=2, lock_duration_ms=5_000))
    bench.send(entity)
    for _ in range(2):
        lock = bench.receive(entity.main)
        if how == "abandon":
            entity.main.abandon(lock, b"", bench.now)
        else:
            bench.wait(5_000)

    for life in (bench, bench.restart()):
        dead = life.find("q").dead_letter.messages[1]
        assert dead.delivery_count == 2
        assert dead.extra is not None
        assert "2 delivery attempts" in str(dead.extra.dead_letter_description)


@pytest.mark.promise("B32")
def test_receive_and_delete_removes_in_the_same_breath(bench: Bench, queue: Queue) -> None:
    bench.send(queue)
    bench.receiver(queue, 1, deletes=True)
    bench.pump()

    assert bench.outbox.delivered[0][2] is None
    assert isinstance(bench.journal.records[-1], MessageRemoved)
    assert not queue.messages


@pytest.mark.promise("B23")
def test_what_comes_back_is_delivered_before_what_came_later(bench: Bench, queue: Queue) -> None:
    for _ in range(4):
        bench.send(queue)
    locks = [bench.receive(queue) for _ in range(3)]
    for lock in reversed(locks):
        queue.abandon(lock, b"", bench.now)
    bench.receiver(queue, 10)
    bench.pump()

    assert bench.outbox.numbers() == [1, 2, 3, 1, 2, 3, 4]


def test_changed_properties_stay_with_the_message(bench: Bench, queue: Queue) -> None:
    bench.send(queue)
    queue.abandon(bench.receive(queue), b"\xc1\x01\x00", bench.now)
    queue.defer(bench.receive(queue), b"\xc1\x03\x02AB", bench.now)

    message = bench.restart().find("q").main.messages[1]
    assert message.extra is not None
    assert message.extra.changed_properties == b"\xc1\x03\x02AB"
    assert message.state == DEFERRED


@pytest.mark.promise("B38", "B39")
def test_dead_lettering_keeps_number_time_and_bytes(bench: Bench) -> None:
    entity = bench.entity("q")
    bench.send(entity, "hello")
    before = entity.main.messages[1]
    entity.main.dead_letter(bench.receive(entity.main), "tired", "of it", b"\xc1\x01\x00", bench.now)

    for life in (bench, bench.restart()):
        place = life.find("q").dead_letter
        dead = place.messages[1]
        assert dead.enqueued_at == before.enqueued_at
        assert life.journal.read(dead.location, dead.size) == bench.journal.read(before.location, before.size)
        assert dead.extra is not None
        assert (dead.extra.dead_letter_reason, dead.extra.dead_letter_description) == ("tired", "of it")
        assert dead.extra.changed_properties == b"\xc1\x01\x00"
        place.complete(life.receive(place), life.now)
        assert life.find("q").counts().total == 0


@pytest.mark.promise("B40")
def test_a_dead_letter_neither_dies_again_nor_expires(bench: Bench) -> None:
    entity = bench.entity("q", settings=Settings(default_ttl_ms=10 * SECOND, max_delivery_count=1))
    bench.send(entity)
    entity.main.abandon(bench.receive(entity.main), b"", bench.now)
    place = entity.dead_letter
    for _ in range(3):
        place.abandon(bench.receive(place), b"", bench.now)
    bench.wait(3_600 * SECOND)

    assert list(place.messages) == [1]
    with pytest.raises(NotAllowed, match="again"):
        place.dead_letter(bench.receive(place), None, None, b"", bench.now)


@pytest.mark.promise("B40")
@pytest.mark.parametrize("how", ["abandon", "release", "lock expiry", "change of settings"])
def test_a_dead_letter_whose_time_is_over_survives_every_end_of_a_delivery(how: str, bench: Bench) -> None:
    settings = Settings(
        default_ttl_ms=10 * SECOND, dead_letter_on_expiration=True, lock_duration_ms=5 * SECOND
    )
    entity = bench.entity("q", settings=settings)
    bench.send(entity)
    bench.wait(20 * SECOND)
    place = entity.dead_letter
    lock = bench.receive(place)
    if how == "abandon":
        place.abandon(lock, b"", bench.now)
    elif how == "release":
        place.release(lock, bench.now)
    elif how == "change of settings":
        bench.namespace.update(entity, replace(entity.settings, user_metadata="x"), bench.now)
    bench.wait(10 * SECOND)

    assert list(place.messages) == [1]
    place.complete(bench.receive(place), bench.now)


def test_dead_letter_texts_have_a_limit(bench: Bench, queue: Queue) -> None:
    bench.send(queue)
    lock = bench.receive(queue)
    with pytest.raises(ArgumentError):
        queue.dead_letter(lock, "r" * 5_000, None, b"", bench.now)
    with pytest.raises(ArgumentError):
        queue.dead_letter(lock, None, "d" * 5_000, b"", bench.now)
    queue.complete(lock, bench.now)


def test_receiving_is_refused_where_nothing_may_leave(bench: Bench) -> None:
    with pytest.raises(EntityDisabled):
        bench.receiver(bench.queue("closed", Settings(status=RECEIVE_DISABLED)))
    bench.queue("target")
    with pytest.raises(NotAllowed, match="passes its messages on"):
        bench.receiver(bench.queue("relay", Settings(forward_to="target")))
    with pytest.raises(NotAllowed, match="non-sessionful"):
        bench.receiver(bench.queue("sessions", Settings(requires_session=True)))


# -- expiry


@pytest.mark.promise("B41")
def test_nothing_is_delivered_at_or_after_expiry(bench: Bench, queue: Queue) -> None:
    bench.send(queue, ttl_ms=10 * SECOND)
    bench.send(queue)
    bench.now += 10 * SECOND  # nobody has ticked

    assert bench.receive(queue).message.sequence_number == 2
    assert gone(queue) == 1


@pytest.mark.promise("B42")
def test_nothing_expires_early(bench: Bench, queue: Queue) -> None:
    bench.send(queue, ttl_ms=10 * SECOND)
    bench.wait(10 * SECOND - 1)
    assert queue.messages
    bench.wait(1)
    assert not queue.messages


@pytest.mark.promise("B43")
def test_expiry_without_dead_lettering_drops_and_counts(bench: Bench) -> None:
    entity = bench.entity("q")
    bench.send(entity, ttl_ms=SECOND)
    bench.wait(SECOND)

    assert entity.counts().total == 0
    assert gone(entity.main) == 1
    assert bench.restart().find("q").counts().total == 0


@pytest.mark.promise("B43")
def test_expiry_with_dead_lettering_moves_with_the_reason(bench: Bench) -> None:
    entity = bench.entity("q", settings=Settings(dead_letter_on_expiration=True))
    bench.send(entity, ttl_ms=SECOND)
    bench.wait(SECOND)

    dead = entity.dead_letter.messages[1]
    assert dead.extra is not None
    assert dead.extra.dead_letter_reason == REASON_EXPIRED


@pytest.mark.promise("B41")
def test_a_message_locked_before_its_expiry_may_still_be_settled(bench: Bench, queue: Queue) -> None:
    bench.send(queue, ttl_ms=10 * SECOND)
    lock = bench.receive(queue)
    bench.wait(20 * SECOND)
    assert queue.messages

    queue.complete(lock, bench.now)
    assert gone(queue) == 1


@pytest.mark.promise("B41")
@pytest.mark.parametrize("end", ["abandon", "release", "lapse", "change"])
def test_a_lock_that_ends_unsettled_after_expiry_lets_the_message_expire_at_once(end: str) -> None:
    bench = Bench()
    entity = bench.entity("q", settings=Settings(dead_letter_on_expiration=True))
    queue = entity.main
    bench.send(queue, ttl_ms=10 * SECOND)
    lock = bench.receive(queue)
    bench.wait(20 * SECOND)
    if end == "abandon":
        queue.abandon(lock, b"", bench.now)
    elif end == "release":
        queue.release(lock, bench.now)
    elif end == "change":
        bench.namespace.update(
            entity, Settings(dead_letter_on_expiration=True, max_delivery_count=3), bench.now
        )
        bench.wait(0)
    else:
        bench.wait(40 * SECOND)

    assert not queue.messages
    assert list(entity.dead_letter.messages) == [1]


@pytest.mark.promise("B34")
def test_a_deferred_message_does_not_expire(bench: Bench, queue: Queue) -> None:
    bench.send(queue, ttl_ms=10 * SECOND)
    queue.defer(bench.receive(queue), b"", bench.now)
    bench.wait(20 * SECOND)

    assert queue.messages[1].state == DEFERRED
    assert bench.receives_nothing(queue)
    (lock,) = lock_deferred(queue, [1], None, bench.now)
    queue.complete(lock, bench.now)
    assert not queue.messages


@pytest.mark.promise("B8")
def test_stored_ever_equals_what_left_and_what_is_left(bench: Bench) -> None:
    entity = bench.entity("q", settings=Settings(max_delivery_count=1))
    queue = entity.main
    for _ in range(5):
        bench.send(queue)
    bench.send(queue, ttl_ms=SECOND)
    queue.complete(bench.receive(queue), bench.now)
    queue.abandon(bench.receive(queue), b"", bench.now)
    bench.wait(SECOND)

    moved = entity.dead_letter.stored_ever
    assert moved == 1
    removed = sum(isinstance(record, MessageRemoved) for record in bench.journal.records)
    assert queue.stored_ever == removed + moved + len(queue.messages) == 6


@pytest.mark.promise("B62")
@pytest.mark.long
def test_indexes_follow_what_is_stored(bench: Bench, queue: Queue) -> None:
    kept = bench.send(queue)
    bench.receive(queue)
    for _ in range(4_100):
        for number in [bench.send(queue, ttl_ms=3_600 * SECOND) for _ in range(2)]:
            queue.remove(queue.messages[number])
        queue.remove(queue.messages[bench.send(queue, scheduled_at=bench.now + 3_600 * SECOND)])

    assert list(queue.messages) == [kept]
    assert len(queue.expiring) < 9_000
    assert len(queue.due) < 9_000
    assert len(bench.namespace.context.timers._heap) < 300


def test_a_receiver_that_let_a_lock_lapse_in_silence_comes_after_the_others(
    bench: Bench, queue: Queue
) -> None:
    silent = bench.receiver(queue, 10)
    bench.send(queue)
    bench.pump()
    other = bench.receiver(queue, 10)
    bench.wait(MINUTE)
    for _ in range(5):
        bench.send(queue)
    bench.pump()

    assert [consumer for consumer, _, _ in bench.outbox.delivered] == [silent, *[other] * 6]


@pytest.mark.promise("B31")
def test_a_silent_receiver_beside_another_gets_one_message_at_a_time(bench: Bench, queue: Queue) -> None:
    silent, other = bench.receiver(queue, 500), bench.receiver(queue)
    for _ in range(5):
        bench.send(queue)
    bench.pump()
    assert [consumer for consumer, _, _ in bench.outbox.delivered] == [silent] * 5
    del bench.outbox.delivered[:]
    bench.wait(MINUTE)

    for _ in range(4):
        queue.set_credit(other, 1)
        bench.pump()
    given = [consumer for consumer, _, _ in bench.outbox.delivered]
    assert given == [silent, *[other] * 4]
    bench.wait(MINUTE)
    assert [consumer for consumer, _, _ in bench.outbox.delivered[5:]] == [silent]

    queue.detach(other, bench.now)
    bench.pump()
    assert {consumer for consumer, _, _ in bench.outbox.delivered[6:]} == {silent}, "it is alone"


def test_silent_receivers_take_turns(bench: Bench, queue: Queue) -> None:
    one, two = bench.receiver(queue, 10), bench.receiver(queue, 10)
    for _ in range(4):
        bench.send(queue)
    bench.pump()
    bench.wait(MINUTE)
    del bench.outbox.delivered[:]
    bench.wait(MINUTE)

    assert {consumer for consumer, _, _ in bench.outbox.delivered} == {one, two}
    one.heard()
    queue.set_credit(one, 10)
    bench.pump()
    assert queue.ready.first() is None, "one that is heard takes the rest"


@pytest.mark.parametrize("sign", ["it asks for more", "it has settled in time"])
def test_a_receiver_that_is_heard_takes_its_turn(bench: Bench, queue: Queue, sign: str) -> None:
    one = bench.receiver(queue, 10)
    bench.send(queue)
    bench.pump()
    if sign == "it has settled in time":
        queue.complete(bench.outbox.last_lock(), bench.now)
    bench.wait(MINUTE)
    other = bench.receiver(queue, 10)
    if sign == "it asks for more":
        one.heard()
    del bench.outbox.delivered[:]
    for _ in range(4):
        bench.send(queue)
    bench.pump()

    assert [consumer for consumer, _, _ in bench.outbox.delivered] == [one, other, one, other]
