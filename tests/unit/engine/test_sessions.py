"""Sessions: one holder, order, state, waiting."""

from __future__ import annotations

import pytest

from pairbus.engine.queues.consumer import Consumer
from pairbus.engine.queues.queue import Queue
from pairbus.engine.records import SessionStateSet
from pairbus.engine.sessions import operations as session_ops
from pairbus.errors import ArgumentError, NotAllowed, QuotaExceeded, SessionCannotBeLocked, SessionLockLost
from pairbus.model.entity import Settings
from tests.unit.engine.engine_kit import SECOND, START, Bench, gone

MINUTE = 60 * SECOND
SESSIONS = Settings(requires_session=True)


@pytest.fixture
def queue(bench: Bench) -> Queue:
    return bench.queue("q", SESSIONS)


@pytest.mark.promise("B51")
def test_a_held_session_is_refused_to_others(bench: Bench, queue: Queue) -> None:
    holder = bench.holder(queue, "a")
    with pytest.raises(SessionCannotBeLocked):
        bench.holder(queue, "a")

    queue.detach(holder, bench.now)
    bench.holder(queue, "a")
    assert len(bench.outbox.accepted) == 2


@pytest.mark.promise("B51")
def test_all_deliveries_of_a_session_go_to_its_holder(bench: Bench, queue: Queue) -> None:
    one, two = bench.holder(queue, "a", 10), bench.holder(queue, "b", 10)
    for session_id in "abba":
        bench.send(queue, session_id=session_id)
    bench.pump()

    got = {id(one): [], id(two): []}  # type: ignore[var-annotated]
    for consumer, message, _ in bench.outbox.delivered:
        got[id(consumer)].append(message.sequence_number)
    assert got == {id(one): [1, 4], id(two): [2, 3]}


@pytest.mark.promise("B22", "B23")
def test_a_session_stays_in_order_over_abandon(bench: Bench, queue: Queue) -> None:
    for _ in range(3):
        bench.send(queue, session_id="a")
    bench.holder(queue, "a", 2)
    bench.pump()
    first, second = (lock for _, _, lock in bench.outbox.delivered)
    assert first is not None
    assert second is not None
    queue.abandon(second, b"", bench.now)
    queue.abandon(first, b"", bench.now)
    holder = bench.outbox.accepted[0]
    queue.set_credit(holder, 10)
    bench.pump()

    assert bench.outbox.numbers() == [1, 2, 1, 2, 3]


def test_a_session_without_credit_or_with_a_full_socket_waits(bench: Bench, queue: Queue) -> None:
    holder = bench.holder(queue, "a")
    bench.send(queue, session_id="a")
    bench.pump()
    assert not bench.outbox.delivered
    holder.is_suspended = True
    queue.set_credit(holder, 5)
    bench.pump()
    assert not bench.outbox.delivered

    holder.is_suspended = False
    queue.set_credit(holder, 5)
    bench.pump()
    assert bench.outbox.numbers() == [1]


@pytest.mark.promise("B54")
def test_accept_next_serves_sessions_in_turn(bench: Bench, queue: Queue) -> None:
    for session_id in "abc":
        bench.send(queue, session_id=session_id)
    seen = []
    for _ in range(6):
        holder = bench.holder(queue, None)
        assert holder.session is not None
        seen.append(holder.session.session_id)
        queue.detach(holder, bench.now)

    assert seen == list("abcabc")


def test_accept_next_waits_for_a_message_and_times_out(bench: Bench, queue: Queue) -> None:
    first = bench.holder(queue, None, timeout_ms=10 * SECOND)
    second = bench.holder(queue, None, timeout_ms=20 * SECOND)
    bench.wait(10 * SECOND)
    assert bench.outbox.detached == [(first, "com.microsoft:timeout")]

    bench.send(queue, session_id="a")
    bench.pump()
    assert bench.outbox.accepted == [second]


def test_who_stops_waiting_gets_nothing(bench: Bench, queue: Queue) -> None:
    waiting = bench.holder(queue, None)
    queue.detach(waiting, bench.now)
    bench.send(queue, session_id="a")
    bench.pump()

    assert not bench.outbox.accepted


def test_the_number_of_waiting_receivers_is_bounded(bench: Bench, queue: Queue) -> None:
    for _ in range(session_ops.WAITING_MAX):
        bench.holder(queue, None)
    with pytest.raises(NotAllowed, match="already wait"):
        bench.holder(queue, None)


def test_accept_next_passes_over_sessions_whose_messages_have_expired(bench: Bench, queue: Queue) -> None:
    bench.send(queue, session_id="old", ttl_ms=SECOND)
    bench.send(queue, session_id="new")
    bench.now += SECOND
    holder = bench.holder(queue, None)

    assert holder.session is not None
    assert holder.session.session_id == "new"
    assert gone(queue) == 1


@pytest.mark.promise("B41")
def test_a_held_session_delivers_nothing_expired(bench: Bench, queue: Queue) -> None:
    bench.send(queue, session_id="a", ttl_ms=SECOND)
    bench.send(queue, session_id="a")
    bench.now += SECOND
    bench.holder(queue, "a", 5)
    bench.pump()

    assert bench.outbox.numbers() == [2]


@pytest.mark.promise("B29")
def test_closing_a_session_does_not_raise_the_count(bench: Bench, queue: Queue) -> None:
    bench.send(queue, session_id="a")
    holder = bench.holder(queue, "a", 1)
    bench.pump()
    queue.detach(holder, bench.now)

    assert queue.messages[1].delivery_count == 0
    with pytest.raises(SessionLockLost):
        queue.complete(bench.outbox.last_lock(), bench.now)
    bench.holder(queue, None, 1)
    bench.pump()
    assert bench.outbox.numbers() == [1, 1]


@pytest.mark.promise("B29")
def test_a_session_lock_that_expires_raises_the_count_and_detaches(bench: Bench, queue: Queue) -> None:
    bench.send(queue, session_id="a")
    holder = bench.holder(queue, "a", 1)
    bench.pump()
    bench.wait(MINUTE)

    assert queue.messages[1].delivery_count == 1
    assert bench.outbox.detached == [(holder, "com.microsoft:session-lock-lost")]
    assert holder.session is None
    queue.set_credit(holder, 5)
    queue.detach(holder, bench.now)
    assert not queue.rotation


@pytest.mark.promise("B30")
def test_a_session_lock_that_expires_too_often_dead_letters(bench: Bench) -> None:
    entity = bench.entity("q", settings=Settings(requires_session=True, max_delivery_count=1))
    bench.send(entity, session_id="a")
    bench.holder(entity.main, "a", 1)
    bench.pump()
    bench.wait(MINUTE)

    assert list(entity.dead_letter.messages) == [1]
    assert not entity.main.sessions.sessions  # type: ignore[union-attr]


@pytest.mark.promise("B29")
def test_a_change_of_the_entity_loses_sessions_without_counting(bench: Bench) -> None:
    entity = bench.entity("q", settings=SESSIONS)
    bench.send(entity, session_id="a")
    holder = bench.holder(entity.main, "a", 1)
    bench.pump()
    bench.namespace.update(entity, Settings(requires_session=True, max_delivery_count=3), bench.now)

    assert bench.outbox.detached == [(holder, "com.microsoft:session-lock-lost")]
    assert entity.main.messages[1].delivery_count == 0
    bench.holder(entity.main, "a", 1)
    bench.pump()
    assert bench.outbox.numbers() == [1, 1]


@pytest.mark.promise("B51")
def test_an_expired_hold_is_taken_over_even_before_a_tick(bench: Bench, queue: Queue) -> None:
    bench.send(queue, session_id="a")
    holder = bench.holder(queue, "a", 1)
    bench.pump()
    bench.now += MINUTE
    other = bench.holder(queue, "a", 1)

    assert other.session is not None
    assert bench.outbox.detached == [(holder, "com.microsoft:session-lock-lost")]
    assert queue.messages[1].delivery_count == 1


@pytest.mark.promise("B28")
def test_renewing_a_session_extends_it(bench: Bench, queue: Queue) -> None:
    bench.send(queue, session_id="a")
    holder = bench.holder(queue, "a", 1)
    bench.pump()
    bench.wait(30 * SECOND)
    session = session_ops.held_session(queue, holder, "a", bench.now)
    assert session_ops.renew(queue, session, bench.now) == bench.now + MINUTE
    lock = bench.outbox.last_lock()
    assert queue.renew(lock, bench.now) == bench.now + MINUTE
    bench.wait(MINUTE - 1)
    queue.complete(lock, bench.now)
    bench.wait(1)
    assert bench.outbox.detached


def deleting_holder(bench: Bench, queue: Queue, session_id: str = "a", credit: int = 10) -> Consumer:
    """A receiver that deletes what it receives, holds a session and waits for messages."""
    consumer = Consumer(None, receives_and_deletes=True)
    assert session_ops.accept(queue, consumer, session_id, MINUTE, bench.now)
    queue.set_credit(consumer, credit)
    bench.pump()
    return consumer


def test_a_receiver_that_deletes_may_wait_as_long_as_its_session_lock_lasts(bench: Bench) -> None:
    queue = bench.queue("q", SESSIONS)
    holder = deleting_holder(bench, queue)
    bench.send(queue, session_id="a")
    bench.pump()
    bench.wait(MINUTE + session_ops.END_GRACE_MS - 1)
    assert bench.outbox.detached == [], "its wait may have begun a moment after the lock did"
    with pytest.raises(SessionLockLost):
        session_ops.held_session(queue, holder, "a", bench.now)

    bench.wait(1)
    assert [text for _, text in bench.outbox.detached] == ["com.microsoft:session-lock-lost"]
    assert bench.namespace.next_deadline() is None


def test_the_grace_of_a_session_ends_when_somebody_else_asks_for_it(bench: Bench, queue: Queue) -> None:
    old = deleting_holder(bench, queue)
    bench.wait(MINUTE)
    new = bench.holder(queue, "a", 1)
    assert [consumer for consumer, _ in bench.outbox.detached] == [old]

    bench.wait(MINUTE - 1)
    assert new.session is not None, "the new lock lasts as long as any"


def test_the_grace_of_a_session_ends_when_a_message_comes_and_the_next_receiver_gets_it(bench: Bench) -> None:
    queue = bench.queue("q", SESSIONS)
    old = deleting_holder(bench, queue)
    bench.wait(MINUTE)
    new = Consumer(None, receives_and_deletes=True)
    assert not session_ops.accept(queue, new, None, MINUTE, bench.now)
    queue.set_credit(new, 10)
    bench.send(queue, session_id="a")
    bench.pump()

    assert [consumer for consumer, _ in bench.outbox.detached] == [old]
    assert [consumer for consumer, _, _ in bench.outbox.delivered] == [new]


@pytest.mark.parametrize("case", ["peek-lock", "no credit", "a message it cannot get"])
def test_a_session_lock_ends_without_grace_for_a_receiver_that_does_not_only_wait(case: str) -> None:
    bench = Bench()
    queue = bench.queue("q", SESSIONS)
    if case == "peek-lock":
        bench.holder(queue, "a", 10)
    else:
        holder = deleting_holder(bench, queue, credit=0 if case == "no credit" else 1)
        holder.is_suspended = True
        if case != "no credit":
            bench.send(queue, session_id="a")
    bench.wait(MINUTE)

    assert len(bench.outbox.detached) == 1


@pytest.mark.promise("B53")
def test_state_is_kept_for_the_next_holder_also_without_messages(bench: Bench, queue: Queue) -> None:
    holder = bench.holder(queue, "a")
    assert holder.session is not None
    session_ops.set_state(queue, holder.session, b"progress", bench.now)
    queue.detach(holder, bench.now)

    again = bench.restart()
    queue = again.find("q").main
    holder = again.holder(queue, "a")
    assert holder.session is not None
    assert holder.session.state == b"progress"
    session_ops.set_state(queue, holder.session, None, again.now)
    queue.detach(holder, again.now)
    assert not again.restart().find("q").main.sessions.sessions  # type: ignore[union-attr]


@pytest.mark.promise("B53")
@pytest.mark.parametrize("empty", [None, b""])
def test_an_empty_state_clears_it_and_forgets_the_session(empty: bytes | None, bench: Bench) -> None:
    queue = bench.queue("q", SESSIONS)
    holder = bench.holder(queue, "a")
    assert holder.session is not None
    session_ops.set_state(queue, holder.session, b"progress", bench.now)
    session_ops.set_state(queue, holder.session, empty, bench.now)
    assert holder.session.state is None
    queue.detach(holder, bench.now)
    for each in (bench, bench.restart()):
        assert session_ops.list_sessions(each.find("q").main, None, 0, 10) == []


@pytest.mark.promise("B53")
def test_an_empty_state_in_an_older_log_is_none(bench: Bench, queue: Queue) -> None:
    queue.record(SessionStateSet(queue.queue_id, "a", b"", bench.now))
    assert session_ops.list_sessions(bench.restart().find("q").main, None, 0, 10) == []


@pytest.mark.promise("B53")
def test_state_has_a_size_limit(bench: Bench, queue: Queue) -> None:
    holder = bench.holder(queue, "a")
    assert holder.session is not None
    with pytest.raises(ArgumentError, match="session state"):
        session_ops.set_state(queue, holder.session, bytes(300_000), bench.now)


@pytest.mark.promise("B53")
def test_only_the_holder_is_given_the_session(bench: Bench, queue: Queue) -> None:
    holder = bench.holder(queue, "a")
    assert session_ops.held_session(queue, holder, "a", bench.now) is holder.session
    assert session_ops.held_session(queue, None, "a", bench.now) is holder.session
    for consumer, session_id in ((Consumer(None, False), "a"), (holder, "unknown")):
        with pytest.raises(SessionLockLost):
            session_ops.held_session(queue, consumer, session_id, bench.now)
    with pytest.raises(SessionLockLost):
        session_ops.held_session(queue, holder, "a", bench.now + MINUTE)


@pytest.mark.promise("B52")
def test_an_entity_without_sessions_gives_none(bench: Bench) -> None:
    with pytest.raises(NotAllowed, match="does not require sessions"):
        bench.holder(bench.queue(), "a")


def test_sessions_are_listed_by_messages_or_by_state_written_since(bench: Bench, queue: Queue) -> None:
    bench.send(queue, session_id="messages")
    for session_id in ("old", "new"):
        holder = bench.holder(queue, session_id)
        assert holder.session is not None
        session_ops.set_state(queue, holder.session, b"s", bench.now)
        queue.detach(holder, bench.now)
        bench.now += SECOND
    bench.holder(queue, "empty")

    assert session_ops.list_sessions(queue, None, 0, 10) == ["messages", "old", "new"]
    assert session_ops.list_sessions(queue, None, 1, 1) == ["old"]
    assert session_ops.list_sessions(queue, START, 0, 10) == ["new"]


@pytest.mark.promise("B62")
def test_a_session_with_nothing_left_is_forgotten(bench: Bench, queue: Queue) -> None:
    bench.send(queue, session_id="a")
    holder = bench.holder(queue, "a", 1)
    bench.pump()
    queue.complete(bench.outbox.last_lock(), bench.now)
    queue.detach(holder, bench.now)

    assert queue.sessions is not None
    assert not queue.sessions.sessions
    assert not queue.sessions.available


def test_a_deferred_message_keeps_its_session_but_does_not_offer_it(bench: Bench, queue: Queue) -> None:
    bench.send(queue, session_id="a")
    holder = bench.holder(queue, "a", 1)
    bench.pump()
    queue.defer(bench.outbox.last_lock(), b"", bench.now)
    queue.detach(holder, bench.now)

    again = bench.restart()
    queue = again.find("q").main
    assert queue.sessions is not None
    assert not queue.sessions.available
    assert session_ops.list_sessions(queue, None, 0, 10) == ["a"]


def test_a_scheduled_message_waits_in_its_session(bench: Bench, queue: Queue) -> None:
    bench.send(queue, session_id="a", scheduled_at=START + MINUTE)
    waiting = bench.holder(queue, None, timeout_ms=10 * MINUTE)
    bench.wait(MINUTE)

    assert bench.outbox.accepted == [waiting]


def test_the_dead_letter_queue_of_an_entity_with_sessions_has_none(bench: Bench) -> None:
    entity = bench.entity("q", settings=SESSIONS)
    bench.send(entity, session_id="a")
    bench.holder(entity.main, "a", 1)
    bench.pump()
    entity.main.dead_letter(bench.outbox.last_lock(), None, None, b"", bench.now)

    lock = bench.receive(entity.dead_letter)
    assert lock.message.session_id == "a"
    entity.dead_letter.release(lock, bench.now)
    entity.dead_letter.complete(bench.receive(entity.dead_letter), bench.now)
    assert entity.main.find_lock(99, None) is None
    assert entity.main.find_lock(99, "nobody") is None


@pytest.mark.promise("B62")
def test_messages_that_expire_behind_a_waiting_one_leave_nothing_in_their_session(bench: Bench) -> None:
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
def test_session_states_count_against_the_size_of_their_entity(bench: Bench) -> None:
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
def test_session_id_of_a_receiver_is_as_short_as_that_of_a_message(bench: Bench) -> None:
    queue = bench.queue(settings=Settings(requires_session=True))

    with pytest.raises(ArgumentError):
        bench.holder(queue, "s" * 129)

    assert queue.sessions is not None
    assert not queue.sessions.sessions
