"""Sessions are found without passing by all others, and the next end of a hold or wait is known at once (B62, B63)."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator

import pytest

from pairbus.engine.queues.browse import delete_batch, peek
from pairbus.engine.queues.consumer import Consumer
from pairbus.engine.queues.table import MessageTable
from pairbus.engine.sessions.operations import list_sessions
from pairbus.engine.sessions.table import SessionTable
from pairbus.model.entity import Settings
from pairbus.model.message import Message
from tests.unit.engine.engine_kit import SECOND, Bench

SESSIONS = Settings(requires_session=True)
OTHERS = 3_000
FAR = 1 << 60


class Counted(MessageTable):
    """Messages that count how often they are looked at."""

    def __init__(self, messages: MessageTable) -> None:
        super().__init__()
        self.looks = 0
        for message in messages.values():
            self.add(message)

    def get(self, number: int) -> Message | None:
        self.looks += 1
        return super().get(number)

    def values_from(self, number: int) -> Iterator[Message]:
        self.looks += len(self)
        return super().values_from(number)


def numbers(messages: Iterable[Message]) -> list[int]:
    return [message.sequence_number for message in messages]


def _queue_of_others(bench: Bench) -> Counted:
    queue = bench.queue("q", SESSIONS)
    for number in range(OTHERS):
        bench.send(queue, session_id=f"other-{number % 7}")
    for _ in range(3):
        bench.send(queue, session_id="mine")
    counted = Counted(queue.messages)
    queue.messages = counted
    return counted


@pytest.mark.uncompiled
@pytest.mark.promise("B63")
@pytest.mark.parametrize("place", ["main", "dead letters"])
def test_peek_at_one_session_looks_at_no_message_of_others(place: str) -> None:
    bench = Bench()
    counted = _queue_of_others(bench)
    queue = bench.find("q").main
    if place == "dead letters":
        for message in list(queue.messages.values()):
            queue.move_to_dead_letter(message, "why", None, b"", bench.now)
        queue = bench.find("q").dead_letter
        counted = Counted(queue.messages)
        queue.messages = counted
    counted.looks = 0

    assert numbers(peek(queue, 1, 10, "mine")) == [OTHERS + 1, OTHERS + 2, OTHERS + 3]
    assert numbers(peek(queue, OTHERS + 2, 1, "mine")) == [OTHERS + 2]
    assert peek(queue, 1, 10, "nobody") == []

    assert counted.looks <= 8


@pytest.mark.uncompiled
@pytest.mark.promise("B63")
def test_deleting_from_one_session_looks_at_no_message_of_others() -> None:
    bench = Bench()
    counted = _queue_of_others(bench)
    queue = bench.find("q").main
    counted.looks = 0

    assert delete_batch(queue, 2, FAR, "mine", bench.now) == 2

    assert counted.looks < 50
    assert numbers(peek(queue, 1, 10, "mine")) == [OTHERS + 3]


def test_a_place_without_sessions_shows_nothing_of_any() -> None:
    bench = Bench()
    queue = bench.queue()
    bench.send(queue, session_id="s")

    assert peek(queue, 1, 10, "s") == []
    assert delete_batch(queue, 10, FAR, "s", bench.now) == 0


@pytest.mark.promise("B62")
def test_order_by_session_follows_what_is_stored() -> None:
    bench = Bench()
    queue = bench.queue("q", SESSIONS)
    assert queue.session_order is not None
    stays = bench.send(queue, session_id="long")
    for _ in range(2_000):
        queue.remove(queue.messages[bench.send(queue, session_id="long")])
        queue.remove(queue.messages[bench.send(queue, session_id="short")])

    assert len(queue.session_order) == 1
    assert len(queue.session_order.numbers("long")) < 100
    assert numbers(peek(queue, 1, 10, "long")) == [stays]
    after = bench.restart()
    assert numbers(peek(after.find("q").main, 1, 10, "long")) == [stays]


def _naive(table: SessionTable) -> int:
    ends = [session.locked_until for session in table.held.values()]
    ends += [consumer.accept_deadline for consumer in table.waiting]
    return min(ends, default=0)


@pytest.mark.promise("B31")
@pytest.mark.parametrize("seed", range(30))
def test_the_next_end_is_the_earliest_whatever_was_held_renewed_or_left(seed: int) -> None:
    chance = random.Random(seed)
    table = SessionTable()
    now = 1_000
    for _ in range(1_500):
        now += chance.randrange(3)
        name = f"s{chance.randrange(40)}"
        session = table.get(name)
        action = chance.randrange(6)
        if session.holder is None and action < 2:
            # A shorter lock duration than before comes with a change of settings.
            table.hold(session, Consumer(None, False), now + chance.choice((50, 500, 5_000)))
        elif session.holder is not None and action == 2:
            table.release(session)
        elif session.holder is not None and action == 3:
            session.locked_until = max(session.locked_until, now + 500)
        elif action == 4:
            consumer = Consumer(None, False)
            consumer.accept_deadline = now + chance.choice((10, 300, 4_000))
            table.wait(consumer)
        elif table.waiting and action == 5:
            table.waiting.pop(chance.choice(list(table.waiting)))
        if chance.random() < 0.3:
            assert table.next_deadline() == _naive(table)
    assert table.next_deadline() == _naive(table)


@pytest.mark.promise("B62")
def test_ends_of_holds_and_waits_do_not_pile_up() -> None:
    table = SessionTable()
    for number in range(5_000):
        session = table.get(f"s{number}")
        table.hold(session, Consumer(None, False), 1_000_000 + number)
        table.release(session)
        consumer = Consumer(None, False)
        consumer.accept_deadline = 1_000_000 + number
        table.wait(consumer)
        table.waiting.pop(consumer)

    assert len(table._hold_ends) < 300
    assert len(table._wait_ends) < 300
    assert table.next_deadline() == 0


@pytest.mark.promise("B51", "B63")
def test_holds_that_end_together_are_lost_a_burst_at_a_time() -> None:
    bench = Bench()
    queue = bench.queue("q", Settings(requires_session=True, lock_duration_ms=5 * SECOND))
    for number in range(1_500):
        bench.holder(queue, f"s{number}")
    assert queue.sessions is not None
    bench.now += 5 * SECOND

    bench.namespace.tick(bench.now)
    assert len(queue.sessions.held) == 500

    bench.wait(0)
    assert not queue.sessions.held
    assert len(bench.outbox.detached) == 1_500


def test_sessions_are_listed_in_pages() -> None:
    bench = Bench()
    queue = bench.queue("q", SESSIONS)
    for number in range(10):
        bench.send(queue, session_id=f"s{number}")

    assert list_sessions(queue, None, 0, 3) == ["s0", "s1", "s2"]
    assert list_sessions(queue, None, 8, 3) == ["s8", "s9"]
