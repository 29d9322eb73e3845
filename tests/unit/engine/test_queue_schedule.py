"""Scheduled messages, cancel, and duplicate detection."""

from __future__ import annotations

import pytest

from pairbus.engine.queues.browse import cancel_scheduled
from pairbus.engine.queues.duplicates import FORGET_MAX, DuplicateHistory
from pairbus.engine.queues.queue import Queue
from pairbus.engine.records import DuplicateSeen, MessageStored
from pairbus.errors import MessageNotFound
from pairbus.model.entity import Settings
from pairbus.model.message import ACTIVE, SCHEDULED, Extra, Message
from tests.unit.engine.engine_kit import SECOND, START, Bench

MINUTE = 60 * SECOND
DETECTING = Settings(requires_duplicate_detection=True, duplicate_window_ms=MINUTE)


@pytest.mark.promise("B44")
def test_a_scheduled_message_is_not_delivered_before_its_time(bench: Bench, queue: Queue) -> None:
    bench.send(queue, scheduled_at=START + MINUTE)
    bench.receiver(queue, 5)
    bench.wait(MINUTE - 1)
    assert not bench.outbox.delivered
    assert (queue.active_count, queue.scheduled_count) == (0, 1)

    bench.wait(1)
    assert len(bench.outbox.delivered) == 1


@pytest.mark.promise("B24")
def test_activation_counts_as_arrival_with_a_new_number(bench: Bench, queue: Queue) -> None:
    scheduled = bench.send(queue, scheduled_at=START + MINUTE)
    later = bench.send(queue)
    bench.wait(MINUTE)

    assert scheduled not in queue.messages
    arrived = queue.messages[later + 1]
    assert arrived.state == ACTIVE
    assert arrived.enqueued_at == START + MINUTE
    assert arrived.extra is not None
    assert arrived.extra.scheduled_at == START + MINUTE


def test_time_to_live_counts_from_activation(bench: Bench, queue: Queue) -> None:
    bench.send(queue, scheduled_at=START + MINUTE, ttl_ms=10 * SECOND)
    bench.wait(MINUTE + 10 * SECOND - 1)
    assert queue.active_count == 1
    bench.wait(1)
    assert queue.active_count == 0


@pytest.mark.promise("B44", "B45")
def test_a_schedule_survives_a_restart_and_is_kept_late_but_not_lost(bench: Bench) -> None:
    bench.send(bench.queue(), scheduled_at=START + MINUTE)

    again = bench.restart()
    queue = again.find("q").main
    assert queue.messages[1].state == SCHEDULED
    again.wait(MINUTE - 1)
    assert queue.active_count == 0

    late = again.restart(now=START + 10 * MINUTE)
    late.wait(0)
    assert late.find("q").main.active_count == 1


@pytest.mark.promise("B46")
def test_a_cancelled_message_is_never_delivered(bench: Bench, queue: Queue) -> None:
    numbers = [bench.send(queue, scheduled_at=START + MINUTE) for _ in range(2)]
    cancel_scheduled(queue, numbers, bench.now)
    bench.wait(2 * MINUTE)

    assert not queue.messages
    assert not bench.restart().find("q").main.messages


@pytest.mark.promise("B46")
@pytest.mark.parametrize("numbers", [[1, 99], [1, 1], [1, 2]])
def test_cancel_is_all_or_nothing(numbers: list[int], bench: Bench, queue: Queue) -> None:
    bench.send(queue, scheduled_at=START + MINUTE)
    bench.send(queue)

    with pytest.raises(MessageNotFound):
        cancel_scheduled(queue, numbers, bench.now)

    assert queue.scheduled_count == 1


@pytest.mark.promise("B46")
def test_after_activation_there_is_nothing_to_cancel(bench: Bench, queue: Queue) -> None:
    number = bench.send(queue, scheduled_at=START + MINUTE)
    bench.wait(MINUTE)
    for wrong in (number, number + 1):
        with pytest.raises(MessageNotFound):
            cancel_scheduled(queue, [wrong], bench.now)


# -- duplicates


@pytest.mark.promise("B47")
def test_of_equal_ids_within_the_window_one_is_stored_and_all_are_accepted(bench: Bench) -> None:
    queue = bench.queue("q", DETECTING)

    assert [bench.send(queue, message_id="m"), bench.send(queue, message_id="m")] == [1, 0]
    assert len(queue.messages) == 1


@pytest.mark.promise("B47")
def test_scheduled_messages_take_part(bench: Bench) -> None:
    queue = bench.queue("q", DETECTING)
    bench.send(queue, message_id="m", scheduled_at=START + 10 * MINUTE)

    assert bench.send(queue, message_id="m") == 0


@pytest.mark.promise("B48")
def test_the_history_outlives_the_message_and_the_process(bench: Bench) -> None:
    queue = bench.queue("q", DETECTING)
    bench.send(queue, message_id="m")
    queue.complete(bench.receive(queue), bench.now)
    assert bench.send(queue, message_id="m") == 0

    again = bench.restart()
    assert again.send(again.find("q"), message_id="m") == 0


@pytest.mark.promise("B49")
def test_other_ids_other_entities_and_later_ones_are_stored(bench: Bench) -> None:
    queue = bench.queue("q", DETECTING)
    other = bench.queue("other", DETECTING)
    assert bench.send(queue, "same body", message_id="m")
    assert bench.send(queue, "same body", message_id="n")
    assert bench.send(other, "same body", message_id="m")
    assert bench.send(queue, "same body")
    assert bench.send(queue, "same body")

    bench.wait(MINUTE)
    assert bench.send(queue, message_id="m")


@pytest.mark.promise("B47", "B49", "B65")
def test_the_window_is_as_long_as_ever_after_a_restart_with_an_earlier_clock(bench: Bench) -> None:
    bench.send(bench.queue("q", DETECTING), message_id="ahead")

    again = bench.restart(now=START - 60 * MINUTE)
    queue = again.find("q").main
    assert again.send(queue, message_id="ahead") == 0
    assert again.send(queue, message_id="m")
    again.wait(MINUTE - 1)
    assert [again.send(queue, message_id="ahead"), again.send(queue, message_id="m")] == [0, 0]
    again.wait(1)
    assert again.send(queue, message_id="ahead")
    assert again.send(queue, message_id="m")


@pytest.mark.promise("B48", "B65")
def test_what_a_clock_that_was_ahead_has_noted_outlives_compaction_and_the_process(bench: Bench) -> None:
    bench.send(bench.queue("q", DETECTING), message_id="ahead")

    again = bench.restart(now=START - 60 * MINUTE)
    again.send(again.find("q"), message_id="m")
    told = [*bench.journal.records, *again.journal.records]
    before = len(again.journal.records)
    for record in told:
        again.namespace.restate(record, again.now)

    kept = [record for record in again.journal.records[before:] if isinstance(record, DuplicateSeen)]
    assert [record.at for record in kept] == [again.now, again.now]
    assert len({record.duplicate_key for record in kept}) == 2


@pytest.mark.promise("B49")
def test_without_detection_equal_ids_are_stored(bench: Bench, queue: Queue) -> None:
    assert bench.send(queue, message_id="m")
    assert bench.send(queue, message_id="m")


@pytest.mark.promise("B62")
def test_the_history_forgets_what_left_the_window() -> None:
    history = DuplicateHistory()
    for at in range(100):
        history.add(b"%d" % at, at)
    assert not history.holds(b"0", 90, 50)
    assert history.holds(b"41", 90, 50)
    assert len(history) == 59
    assert history.accepted_at(b"41") == 41


@pytest.mark.promise("B48", "B62", "B63")
def test_a_history_that_left_the_window_at_once_is_forgotten_a_little_at_each_send() -> None:
    history = DuplicateHistory()
    count = 10 * FORGET_MAX
    for number in range(count):
        history.add(b"%d" % number, START)
    now = START + MINUTE

    assert not history.holds(b"new", now, MINUTE)
    assert len(history) == count - FORGET_MAX, "one send does a bounded part of the work"
    assert not history.holds(b"%d" % (count - 1), now, MINUTE), "what is still here is known to be too old"
    history.add(b"%d" % (count - 1), now)
    for _ in range(10):
        history.holds(b"new", now, MINUTE)
    assert len(history) == 1
    assert history.holds(b"%d" % (count - 1), now, MINUTE)


@pytest.mark.promise("B48")
def test_an_id_told_again_with_an_earlier_time_keeps_the_later() -> None:
    history = DuplicateHistory()
    history.add(b"m", 50)
    history.add(b"m", 20)
    assert history.accepted_at(b"m") == 50
    history.add(b"m", 70)
    history.forget(60)
    assert history.accepted_at(b"m") == 70


@pytest.mark.promise("B9")
def test_a_message_that_compaction_told_several_times_is_there_once(bench: Bench, queue: Queue) -> None:
    """Recovery may read a message and its restatements, while later ones have taken their place."""
    for _ in range(3):
        bench.send(queue)
    for _ in range(3):
        message = Message(1, START, 0, 10, None)
        message.delivery_count = 4
        bench.namespace.fold(MessageStored(queue.queue_id, message, None, b""))

    assert queue.active_count == 3
    assert queue.stored_ever == 3
    consumer = bench.receiver(queue, 10)
    bench.pump()
    assert bench.outbox.numbers() == [1, 2, 3]
    assert queue.messages[1].delivery_count == 4
    assert consumer.credit == 7


@pytest.mark.promise("B34")
def test_a_restated_deferred_or_scheduled_message_keeps_its_state(bench: Bench, queue: Queue) -> None:
    bench.send(queue)
    queue.defer(bench.receive(queue), b"", bench.now)
    bench.send(queue, scheduled_at=START + MINUTE)
    for number in (1, 2):
        old = queue.messages[number]
        again = Message(number, old.enqueued_at, 0, old.size, None)
        again.state = old.state
        again.extra = old.extra.copy() if old.extra is not None else Extra()
        bench.namespace.fold(MessageStored(queue.queue_id, again, None, b""))

    assert (queue.active_count, queue.deferred_count, queue.scheduled_count) == (0, 1, 1)
