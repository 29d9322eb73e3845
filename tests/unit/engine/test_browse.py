"""Peek, deferred by number, batch delete."""

from __future__ import annotations

import pytest

from pairbus.engine.queues.browse import check_deferred, delete_batch, lock_deferred, peek
from pairbus.engine.queues.queue import Queue
from pairbus.errors import EntityDisabled, MessageNotFound
from pairbus.model.entity import RECEIVE_DISABLED, Settings
from pairbus.model.message import DEFERRED
from tests.unit.engine.engine_kit import SECOND, START, Bench

SESSIONS = Settings(requires_session=True)


@pytest.mark.promise("B33")
def test_peek_shows_every_state_and_changes_nothing(bench: Bench, queue: Queue) -> None:
    for _ in range(3):
        bench.send(queue)
    bench.send(queue, scheduled_at=START + SECOND)
    queue.defer(bench.receive(queue), b"", bench.now)
    bench.receive(queue)
    records = len(bench.journal.records)

    found = peek(queue, 1, 10, None)

    assert [message.sequence_number for message in found] == [1, 2, 3, 4]
    assert len(bench.journal.records) == records
    assert queue.messages[2].is_locked
    assert [message.delivery_count for message in found] == [1, 0, 0, 0]  # the first was deferred


def test_peek_begins_at_a_number_and_passes_over_what_left(bench: Bench, queue: Queue) -> None:
    for _ in range(4):
        bench.send(queue)
    queue.remove(queue.messages[3])

    assert [message.sequence_number for message in peek(queue, 2, 10, None)] == [2, 4]
    assert [message.sequence_number for message in peek(queue, -(1 << 63), 1, None)] == [1]
    assert peek(queue, 5, 10, None) == []


def test_peek_stays_within_an_answers_size_but_shows_at_least_one(bench: Bench) -> None:
    queue = bench.queue("q", Settings(max_message_kb=2_000))
    for _ in range(3):
        bench.send(queue, "y" * 700_000)
    assert len(peek(queue, 1, 10, None)) == 1


def test_peek_can_look_at_one_session(bench: Bench) -> None:
    queue = bench.queue("q", SESSIONS)
    for session_id in "abab":
        bench.send(queue, session_id=session_id)
    assert [message.sequence_number for message in peek(queue, 1, 10, "b")] == [2, 4]


@pytest.mark.promise("B34")
def test_deferred_messages_are_reached_by_number_only_also_after_a_restart(bench: Bench) -> None:
    queue = bench.queue()
    bench.send(queue)
    queue.defer(bench.receive(queue), b"", bench.now)
    assert bench.receives_nothing(queue)

    again = bench.restart()
    queue = again.find("q").main
    assert again.receives_nothing(queue)
    lock = lock_deferred(queue, [1], None, again.now)[0]
    queue.complete(lock, again.now)
    assert not queue.messages


@pytest.mark.promise("B34")
def test_an_abandoned_or_lapsed_deferred_message_stays_deferred(bench: Bench, queue: Queue) -> None:
    bench.send(queue)
    queue.defer(bench.receive(queue), b"", bench.now)
    queue.abandon(lock_deferred(queue, [1], None, bench.now)[0], b"", bench.now)
    lock_deferred(queue, [1], None, bench.now)
    bench.wait(60 * SECOND)

    message = queue.messages[1]
    assert message.state == DEFERRED
    assert message.delivery_count == 3
    queue.defer(lock_deferred(queue, [1], None, bench.now)[0], b"", bench.now)
    assert queue.deferred_count == 1


@pytest.mark.promise("B29")
def test_a_deferral_counts_as_a_delivery_and_the_count_is_durable(bench: Bench) -> None:
    queue = bench.queue("q", Settings(max_delivery_count=2))
    bench.send(queue)
    queue.defer(bench.receive(queue), b"", bench.now)
    assert queue.messages[1].delivery_count == 1
    queue.defer(lock_deferred(queue, [1], None, bench.now)[0], b"", bench.now)

    for life in (bench, bench.restart()):
        queue = life.find("q").main
        message = queue.messages[1]
        assert message.delivery_count == 2
        assert message.state == DEFERRED, "whoever defers wants it kept, however often it was delivered"
    # The limit counts when it is given back as failed.
    life.find("q").main.abandon(lock_deferred(queue, [1], None, life.now)[0], b"", life.now)
    assert life.find("q").dead_letter.messages[1].delivery_count == 3


def test_a_released_deferred_message_is_not_counted(bench: Bench, queue: Queue) -> None:
    bench.send(queue)
    queue.defer(bench.receive(queue), b"", bench.now)
    queue.release(lock_deferred(queue, [1], None, bench.now)[0], bench.now)

    assert queue.messages[1].delivery_count == 1


@pytest.mark.parametrize("numbers", [[1, 3], [1, 1], [1, 2], [9]])
def test_deferred_by_number_is_all_or_nothing(numbers: list[int], bench: Bench, queue: Queue) -> None:
    for _ in range(3):
        bench.send(queue)
    queue.defer(bench.receive(queue), b"", bench.now)
    queue.defer(bench.receive(queue), b"", bench.now)
    lock_deferred(queue, [2], None, bench.now)  # somebody holds it

    with pytest.raises(MessageNotFound):
        lock_deferred(queue, numbers, None, bench.now)
    with pytest.raises(MessageNotFound):
        check_deferred(queue, numbers, None)

    assert not queue.messages[1].is_locked


def test_a_deferred_message_belongs_to_its_session(bench: Bench) -> None:
    queue = bench.queue("q", SESSIONS)
    bench.send(queue, session_id="a")
    holder = bench.holder(queue, "a", 1)
    bench.pump()
    queue.defer(bench.outbox.last_lock(), b"", bench.now)
    other = bench.holder(queue, "b")
    with pytest.raises(MessageNotFound):
        lock_deferred(queue, [1], other.session, bench.now)

    lock = lock_deferred(queue, [1], holder.session, bench.now)[0]
    assert queue.find_lock(lock.token, "a") is lock
    queue.complete(lock, bench.now)


def test_receiving_by_number_obeys_the_entitys_status(bench: Bench) -> None:
    queue = bench.queue("q", Settings(status=RECEIVE_DISABLED))
    with pytest.raises(EntityDisabled):
        lock_deferred(queue, [1], None, bench.now)
    with pytest.raises(EntityDisabled):
        check_deferred(queue, [1], None)
    with pytest.raises(EntityDisabled):
        delete_batch(queue, 1, START, None, bench.now)


def test_batch_delete_takes_the_oldest_that_nobody_holds(bench: Bench, queue: Queue) -> None:
    for _ in range(3):
        bench.send(queue)
    bench.receive(queue)
    bench.now += SECOND
    bench.send(queue)
    bench.send(queue, scheduled_at=START + 60 * SECOND)

    assert delete_batch(queue, 1, bench.now, None, bench.now) == 1
    assert list(queue.messages) == [1, 3, 4, 5]
    assert delete_batch(queue, 10, bench.now, None, bench.now) == 1
    assert list(queue.messages) == [1, 4, 5]


def test_batch_delete_can_keep_to_one_session(bench: Bench) -> None:
    queue = bench.queue("q", SESSIONS)
    for session_id in "abab":
        bench.send(queue, session_id=session_id)

    assert delete_batch(queue, 10, bench.now + 1, "a", bench.now) == 2
    assert list(queue.messages) == [2, 4]
