"""Sends: what a queue takes, what it refuses, and under which number and time it keeps it."""

from __future__ import annotations

import pytest

from pairbus.amqp.message.layout import header_size
from pairbus.amqp.message.scan import Scanned, scan
from pairbus.amqp.message.whole import encode_message
from pairbus.amqp.types import ULong, Uuid
from pairbus.engine.entity import Entity
from pairbus.engine.queues.queue import Queue
from pairbus.errors import (
    ArgumentError,
    EntityDisabled,
    EntityNotFound,
    HeaderTooLarge,
    MessageTooLarge,
    NotAllowed,
    QuotaExceeded,
)
from pairbus.model.entity import DISABLED, RECEIVE_DISABLED, SEND_DISABLED, Settings
from pairbus.model.message import HEADER_BYTES_MAX, SCHEDULED
from tests.unit.engine.engine_kit import SECOND, START, Bench, incoming, ping


@pytest.mark.promise("B19")
def test_numbers_rise_by_acceptance_and_are_never_reused(bench: Bench, queue: Queue) -> None:
    assert [bench.send(queue) for _ in range(3)] == [1, 2, 3]
    for _ in range(3):
        queue.complete(bench.receive(queue), bench.now)

    assert bench.send(queue) == 4


@pytest.mark.promise("B19")
def test_numbers_go_on_after_a_restart_although_every_message_is_gone(bench: Bench, queue: Queue) -> None:
    bench.send(queue)
    queue.complete(bench.receive(queue), bench.now)

    again = bench.restart()

    assert again.send(again.find("q")) == 2


@pytest.mark.promise("B19")
def test_each_entity_counts_for_itself(bench: Bench) -> None:
    one, two = bench.queue("one"), bench.queue("two")

    assert [bench.send(one), bench.send(two), bench.send(one)] == [1, 1, 2]


@pytest.mark.promise("B20", "B65")
def test_enqueued_time_does_not_run_back_after_a_restart_with_an_earlier_clock(bench: Bench) -> None:
    queue = bench.queue()
    bench.send(queue)

    again = bench.restart(now=START - 3_600 * SECOND)
    again.send(again.find("q"))

    times = [message.enqueued_at for message in again.find("q").main.messages.values()]
    assert times == [START, START]


@pytest.mark.promise("B41", "B65")
@pytest.mark.parametrize("schedules", [False, True])
def test_a_life_after_a_restart_with_an_earlier_clock_lasts_as_long_as_any(schedules: bool) -> None:
    bench = Bench()
    bench.send(bench.queue())

    again = bench.restart(now=START - 3_600 * SECOND)
    queue = again.find("q").main
    again.send(queue, ttl_ms=5 * SECOND, scheduled_at=again.now + SECOND if schedules else 0)
    if schedules:
        again.wait(SECOND)
    message = max(queue.messages.values(), key=lambda message: message.sequence_number)
    assert message.enqueued_at == START
    assert message.expires_at == again.now + 5 * SECOND

    again.wait(5 * SECOND)
    assert list(queue.messages) == [1]


@pytest.mark.promise("B20")
def test_a_scheduled_message_holds_the_time_as_well(bench: Bench, queue: Queue) -> None:
    bench.send(queue, scheduled_at=START + 60 * SECOND)

    again = bench.restart(now=START - 10 * SECOND)
    number = again.send(again.find("q"))

    assert again.find("q").main.messages[number].enqueued_at == START


@pytest.mark.promise("B3")
def test_a_refused_send_leaves_no_record(bench: Bench) -> None:
    queue = bench.queue("q", Settings(max_message_kb=1))
    records = len(bench.journal.records)

    with pytest.raises(MessageTooLarge):
        bench.send(queue, "y" * 2_000)

    assert len(bench.journal.records) == records
    assert bench.send(queue) == 1


@pytest.mark.parametrize("status", [DISABLED, SEND_DISABLED])
def test_a_disabled_entity_takes_no_messages(status: str, bench: Bench) -> None:
    with pytest.raises(EntityDisabled):
        bench.send(bench.queue("q", Settings(status=status)))


def test_an_entity_that_only_sends_nothing_out_still_takes_messages(bench: Bench) -> None:
    assert bench.send(bench.queue("q", Settings(status=RECEIVE_DISABLED))) == 1


@pytest.mark.promise("B52")
def test_an_entity_with_sessions_wants_a_session_id(bench: Bench) -> None:
    queue = bench.queue("q", Settings(requires_session=True))
    with pytest.raises(NotAllowed, match="SessionId was not set"):
        bench.send(queue)


@pytest.mark.promise("B52")
def test_an_entity_without_sessions_ignores_a_session_id(bench: Bench, queue: Queue) -> None:
    number = bench.send(queue, session_id="s")

    assert queue.messages[number].session_id is None


@pytest.mark.promise("B52", "P23", "P24")
def test_a_ping_needs_no_session_and_is_never_seen(bench: Bench) -> None:
    queue = bench.queue("q", Settings(requires_session=True))

    assert bench.send(queue, ping()) == 0
    assert not queue.messages


def test_ids_have_a_length_limit(bench: Bench) -> None:
    queue = bench.queue("q", Settings(requires_session=True, requires_duplicate_detection=True))
    for fields in (
        {"session_id": "s" * 129},
        {"session_id": "s", "message_id": "m" * 600},
        {"session_id": "s", "partition_key": "p" * 129},
        {"session_id": "s", "partition_key": "other"},
    ):
        with pytest.raises(ArgumentError):
            bench.send(queue, **fields)

    assert bench.send(queue, session_id="s", partition_key="s") == 1


def test_a_full_quota_refuses_sends_until_something_leaves(bench: Bench) -> None:
    queue = bench.queue("q", Settings(max_size_mb=1))
    big = "y" * 200_000
    while True:
        try:
            bench.send(queue, big)
        except QuotaExceeded:
            break

    queue.complete(bench.receive(queue), bench.now)

    assert bench.send(queue, big)


def test_the_quota_counts_the_messages_before_in_the_same_batch(bench: Bench) -> None:
    entity = bench.entity("q", settings=Settings(max_size_mb=1))
    bench.namespace.check_send(entity, incoming(), 0)
    with pytest.raises(QuotaExceeded):
        bench.namespace.check_send(entity, incoming(), 1_048_576)


@pytest.mark.promise("B12")
def test_a_disk_without_room_refuses_sends_and_nothing_else(bench: Bench, queue: Queue) -> None:
    bench.send(queue)
    bench.journal.room = 0

    with pytest.raises(QuotaExceeded, match="disk"):
        bench.send(queue)

    queue.complete(bench.receive(queue), bench.now)
    bench.journal.room = 1 << 30
    assert bench.send(queue) == 2


@pytest.mark.promise("B12")
def test_a_topic_needs_room_for_every_copy(bench: Bench, topic: Entity) -> None:
    for name in "abc":
        bench.subscription(f"t/Subscriptions/{name}")
    size = len(incoming().blob)
    bench.journal.room = 3 * size - 1

    with pytest.raises(QuotaExceeded, match="3 copies"):
        bench.send(topic)

    bench.journal.room = 3 * size
    assert bench.send(topic) == 1


def test_a_subscription_is_not_sent_to(bench: Bench) -> None:
    bench.topic()
    subscription = bench.subscription("t/Subscriptions/s")
    with pytest.raises(EntityNotFound):
        bench.send(subscription)


def test_time_to_live_is_the_shorter_of_message_and_entity(bench: Bench) -> None:
    queue = bench.queue("q", Settings(default_ttl_ms=10 * SECOND))
    own = bench.send(queue, ttl_ms=3 * SECOND)
    longer = bench.send(queue, ttl_ms=30 * SECOND)
    none = bench.send(queue)
    forever = bench.send(bench.queue("f"))

    assert queue.messages[own].expires_at == START + 3 * SECOND
    assert queue.messages[longer].expires_at == START + 10 * SECOND
    assert queue.messages[none].expires_at == START + 10 * SECOND
    assert bench.find("f").main.messages[forever].expires_at == 0


def test_a_schedule_in_the_past_is_an_ordinary_send(bench: Bench, queue: Queue) -> None:
    number = bench.send(queue, scheduled_at=START - SECOND)

    message = queue.messages[number]
    assert message.state != SCHEDULED
    assert message.extra is None, "it never was a scheduled message"


def test_an_empty_session_id_agrees_with_any_partition_key(bench: Bench, queue: Queue) -> None:
    bench.send(queue, session_id="", partition_key="a")
    bench.send(queue, session_id="a", partition_key="a")
    with pytest.raises(ArgumentError, match="differs from the session id"):
        bench.send(queue, session_id="b", partition_key="a")

    assert len(queue.messages) == 2


@pytest.mark.parametrize(
    ("message_id", "is_taken"),
    [
        ("x" * 128, True),
        ("x" * 129, False),
        ("é" * 128, True),
        ("é" * 129, False),
        ("\U0001f97e" * 128, True),
        (b"x" * 128, True),
        (b"x" * 129, False),
        (Uuid(bytes(16)), True),
        (ULong((1 << 64) - 1), True),
    ],
)
@pytest.mark.parametrize("is_wanted", [True, False])
def test_a_message_id_has_at_most_128_characters(message_id: object, is_taken: bool, is_wanted: bool) -> None:
    """With duplicate detection and without: the limit is the message's, not the history's."""
    bench = Bench()
    queue = bench.queue("q", Settings(requires_duplicate_detection=is_wanted))
    message = scan(encode_message(message_id=message_id, body="x"), is_wanted)
    if is_taken:
        bench.send(queue, message)
    else:
        with pytest.raises(ArgumentError, match="129 characters: at most 128"):
            bench.send(queue, message)
    assert len(queue.messages) == is_taken


def test_properties_and_annotations_have_at_most_64_kb_together(bench: Bench) -> None:
    queue = bench.queue("q", Settings(max_message_kb=1_024))
    bench.send(queue, "b" * 500_000, properties={"p": "x" * 60_000})
    with pytest.raises(HeaderTooLarge, match="at most 65536 are allowed beside the body"):
        bench.send(queue, "b", properties={"p": "x" * 40_000, "q": "x" * 30_000})
    with pytest.raises(HeaderTooLarge):
        bench.send(queue, "b", content_type="x" * 66_000)
    assert len(queue.messages) == 1


def test_the_header_limit_is_to_the_byte(bench: Bench, queue: Queue) -> None:
    def sized(length: int) -> Scanned:
        return incoming("b", message_id="m", properties={"p": "x" * length})

    room = HEADER_BYTES_MAX - (header_size(sized(1_000).blob) - 1_000)
    bench.send(queue, sized(room))
    with pytest.raises(HeaderTooLarge, match="65537 bytes"):
        bench.send(queue, sized(room + 1))
