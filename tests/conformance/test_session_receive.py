"""Sessions: accepting, holding, ordering, state, listing."""

from __future__ import annotations

import datetime as dt
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusMessage, ServiceBusMessageState
from azure.servicebus.exceptions import (
    OperationTimeoutError,
    ServiceBusError,
    SessionCannotBeLockedError,
    SessionLockLostError,
)

from tests.conformance.sdk import Bus, endpoint_for, numbers, spec, take, texts, with_short_locks
from tests.waiting import wait_until

WAIT_SECONDS = 90
"""How long a receiver waits for what is sure to come: it ends the wait at once, and a machine may be busy."""
ENDING_SECONDS_MAX = 40
"""Waits that end early must end before this."""


def message(text: str, session: str) -> ServiceBusMessage:
    return ServiceBusMessage(text, session_id=session)


@pytest.mark.promise("B22")
@spec("a named session delivers its own messages in order")
def test_named_session_gets_its_messages_in_order(bus: Bus, session_queue: str) -> None:
    bus.send(session_queue, *(message(f"{s}{i}", s) for i in range(3) for s in "ab"))

    with bus.receiver(session_queue, session_id="b") as receiver:
        assert receiver.session.session_id == "b"
        messages = take(receiver, 3)
        for one in messages:
            receiver.complete_message(one)

    assert texts(messages) == ["b0", "b1", "b2"]
    assert {m.session_id for m in messages} == {"b"}
    assert texts(bus.peek(session_queue, session_id="a")) == ["a0", "a1", "a2"]


@spec("a named session without any message can be accepted")
def test_session_without_messages_can_be_accepted(bus: Bus, session_queue: str) -> None:
    with bus.receiver(session_queue, session_id="empty") as receiver:
        assert receiver.session.session_id == "empty"
        assert receiver.receive_messages(1, max_wait_time=0.3) == []
        bus.send(session_queue, message("late", "empty"))
        one = take(receiver, 1)[0]
        receiver.complete_message(one)


@spec("next available: one that has messages and no holder")
def test_next_available_takes_free_sessions_one_after_another(bus: Bus, session_queue: str) -> None:
    bus.send(session_queue, message("a", "s1"), message("b", "s2"))

    with (
        bus.receiver(session_queue, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=WAIT_SECONDS) as one,
        bus.receiver(session_queue, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=WAIT_SECONDS) as two,
    ):
        held = {one.session.session_id, two.session.session_id}
        for receiver in (one, two):
            receiver.complete_message(take(receiver, 1)[0])

    assert held == {"s1", "s2"}


@spec("none available: com.microsoft:timeout after the link's own time limit")
def test_next_available_times_out_as_asked(bus: Bus, session_queue: str) -> None:
    start = time.monotonic()

    with (
        pytest.raises(OperationTimeoutError),
        bus.receiver(session_queue, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=1.5) as receiver,
    ):
        receiver.receive_messages(1)

    assert 1 < time.monotonic() - start < ENDING_SECONDS_MAX


@pytest.mark.slow
@spec("without a time limit of the link's own: 65 seconds")
def test_next_available_times_out_after_65_seconds_by_default(namespace: Any, session_queue: str) -> None:
    bus = Bus("sync", endpoint_for("tcp", namespace.connection_string, str(namespace.ca_file)))
    start = time.monotonic()

    with pytest.raises(OperationTimeoutError):
        bus.receiver(session_queue, session_id=NEXT_AVAILABLE_SESSION).__enter__()

    assert 60 < time.monotonic() - start < 60 + ENDING_SECONDS_MAX
    bus.close()


@spec("the attach answer is held until a session appears")
def test_next_available_waits_for_a_session_to_appear(bus: Bus, session_queue: str) -> None:
    other = Bus("sync", bus.endpoint)
    with other.sender(session_queue) as sender:
        sender.create_message_batch()
        threading.Timer(0.7, sender.send_messages, [message("x", "born")]).start()
        start = time.monotonic()
        with bus.receiver(
            session_queue, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=WAIT_SECONDS
        ) as receiver:
            assert receiver.session.session_id == "born"
            assert time.monotonic() - start < ENDING_SECONDS_MAX
            receiver.complete_message(take(receiver, 1)[0])
    other.close()


@pytest.mark.promise("B51")
@spec("held by another: session-cannot-be-locked")
def test_held_session_cannot_be_accepted_twice(bus: Bus, session_queue: str) -> None:
    second = bus.receiver(session_queue, session_id="s")
    with bus.receiver(session_queue, session_id="s"), pytest.raises(SessionCannotBeLockedError):
        second.__enter__()

    with bus.receiver(session_queue, session_id="s") as receiver:
        assert receiver.session.session_id == "s"


@pytest.mark.promise("B29")
@spec("closing the link frees the session at once, counts stay")
def test_closed_session_gives_messages_back_uncounted(bus: Bus, session_queue: str) -> None:
    bus.send(session_queue, message("a", "s"), message("b", "s"))
    with bus.receiver(session_queue, session_id="s") as receiver:
        take(receiver, 2)

    again = bus.take(session_queue, 2, session_id="s")

    assert [(str(m), m.delivery_count) for m in again] == [("a", 0), ("b", 0)]


@pytest.mark.promise("B23")
@spec("abandon puts the same message first again")
def test_abandoned_message_comes_first_again_in_its_session(bus: Bus, session_queue: str) -> None:
    bus.send(session_queue, *(message(str(i), "s") for i in range(3)))

    with bus.receiver(session_queue, session_id="s") as receiver:
        first = take(receiver, 1)[0]
        receiver.abandon_message(first)
        again = take(receiver, 3)
        for one in again:
            receiver.complete_message(one)

    assert [(str(m), m.delivery_count) for m in again] == [("0", 1), ("1", 0), ("2", 0)]


@spec("all four settlements inside a session; DLQ is an ordinary queue")
def test_every_settlement_works_inside_a_session(bus: Bus, session_queue: str) -> None:
    bus.send(session_queue, *(message(text, "s") for text in ("complete", "abandon", "defer", "dead")))

    with bus.receiver(session_queue, session_id="s") as receiver:
        complete, abandon, defer, dead = take(receiver, 4)
        receiver.complete_message(complete)
        receiver.defer_message(defer)
        receiver.dead_letter_message(dead, reason="r", error_description="d")
        receiver.abandon_message(abandon)
        again = take(receiver, 1)[0]
        assert (str(again), again.delivery_count) == ("abandon", 1)
        receiver.complete_message(again)
        deferred = receiver.receive_deferred_messages(defer.sequence_number)[0]
        assert deferred.state is ServiceBusMessageState.DEFERRED
        receiver.complete_message(deferred)
        assert receiver.peek_messages(5, sequence_number=1) == []

    buried = bus.take(session_queue, 1, sub_queue="deadletter")[0]
    assert (str(buried), buried.session_id, buried.dead_letter_reason) == ("dead", "s", "r")


@spec("receive-and-delete inside a session")
def test_receive_and_delete_inside_a_session(bus: Bus, session_queue: str) -> None:
    bus.send(session_queue, [message(str(i), "s") for i in range(5)])

    assert texts(bus.take(session_queue, 5, session_id="s")) == ["0", "1", "2", "3", "4"]
    assert bus.peek(session_queue, session_id="s") == []


@spec("iterator and prefetch inside a session")
def test_iterating_over_a_session_with_prefetch(bus: Bus, session_queue: str) -> None:
    bus.send(session_queue, [message(str(i), "s") for i in range(12)])

    seen: list[Any] = []
    with bus.receiver(session_queue, session_id="s", prefetch_count=5, max_wait_time=1) as receiver:
        while (
            len(seen) < 12
        ):  # a second of silence ends it, so on a busy machine it may have to be asked again
            for one in receiver:
                seen.append(str(one))
                receiver.complete_message(one)

    assert seen == [str(i) for i in range(12)]


@spec("peek with a session id sees that session only")
def test_peek_sees_one_session(bus: Bus, session_queue: str) -> None:
    bus.send(session_queue, message("a0", "a"), message("b0", "b"), message("a1", "a"))

    with bus.receiver(session_queue, session_id="a") as receiver:
        seen = receiver.peek_messages(10)

    assert [(str(m), m.sequence_number) for m in seen] == [("a0", 1), ("a1", 3)]


@pytest.mark.promise("B53")
@spec("state: unset is null, opaque bytes, null and no bytes clear, survives")
def test_session_state_is_set_read_and_cleared(bus: Bus, session_queue: str) -> None:
    with bus.receiver(session_queue, session_id="s") as receiver:
        assert receiver.session.get_state() is None
        receiver.session.set_state("text")
        assert receiver.session.get_state() == b"text"
        receiver.session.set_state(b"\x00\xff" * 1000)

    with bus.receiver(session_queue, session_id="s") as receiver:
        assert receiver.session.get_state() == b"\x00\xff" * 1000
        receiver.session.set_state(b"")  # what the Go client writes for nil
        assert receiver.session.get_state() is None
        receiver.session.set_state(b"again")
        receiver.session.set_state(None)
        assert receiver.session.get_state() is None


@spec("state belongs to one session of one queue")
def test_session_state_is_apart_for_each_session(bus: Bus, session_queue: str) -> None:
    for session in ("a", "b"):
        with bus.receiver(session_queue, session_id=session) as receiver:
            receiver.session.set_state(session * 3)

    for session in ("a", "b"):
        with bus.receiver(session_queue, session_id=session) as receiver:
            assert receiver.session.get_state() == (session * 3).encode()


@spec("the session's lock is renewed")
def test_session_lock_is_renewed(bus: Bus, session_queue: str) -> None:
    start = dt.datetime.now(dt.UTC)
    with bus.receiver(session_queue, session_id="s") as receiver:
        before = receiver.session.locked_until_utc
        opened = dt.datetime.now(dt.UTC)
        time.sleep(0.05)  # the lock's end is given in milliseconds, so a renewal at once might not move it
        answer = receiver.session.renew_lock()

        minute, millisecond = dt.timedelta(minutes=1), dt.timedelta(milliseconds=1)
        assert start + minute <= before + millisecond
        assert before <= opened + minute + millisecond
        assert answer == receiver.session.locked_until_utc > before


@pytest.mark.promise("B29", "B51")
@spec("expiry: detach session-lock-lost, free again, count +1")
def test_expired_session_lock_frees_the_session_and_counts(bus: Bus, make_queue: Callable[..., str]) -> None:
    def scenario(duration: dt.timedelta) -> None:
        queue = make_queue(requires_session=True, lock_duration=duration)
        bus.send(queue, message("a", "s"))

        with bus.receiver(queue, session_id="s") as holder:
            held = take(holder, 1)[0]
            with bus.receiver(queue, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=WAIT_SECONDS) as other:
                again = take(other, 1)[0]
                assert (other.session.session_id, str(again), again.delivery_count) == ("s", "a", 1)
                with pytest.raises(SessionLockLostError):
                    holder.complete_message(held)
                with pytest.raises(SessionLockLostError):
                    holder.session.get_state()
                other.complete_message(again)

    with_short_locks(scenario, SessionLockLostError)


@spec("the link of a lost session ends with session-lock-lost")
def test_waiting_on_a_lost_session_raises(bus: Bus, make_queue: Callable[..., str]) -> None:
    queue = make_queue(requires_session=True, lock_duration=dt.timedelta(seconds=5))

    with bus.receiver(queue, session_id="s") as holder, pytest.raises(SessionLockLostError):
        holder.receive_messages(1, max_wait_time=WAIT_SECONDS)


@spec("an automatically renewed session outlives its first lock")
def test_auto_renewed_session_outlives_its_first_lock(bus: Bus, make_queue: Callable[..., str]) -> None:
    def scenario(duration: dt.timedelta) -> None:
        queue = make_queue(requires_session=True, lock_duration=duration)
        bus.send(queue, message("a", "s"))
        renewer = bus.renewer()

        with bus.receiver(queue, session_id="s") as receiver:
            first = receiver.session.locked_until_utc
            renewer.register(receiver, receiver.session)
            wait_until(
                lambda: dt.datetime.now(dt.UTC) > first + dt.timedelta(seconds=0.5), seconds=WAIT_SECONDS
            )

            one = take(receiver, 1)[0]
            receiver.complete_message(one)
            assert receiver.session.locked_until_utc > first

    with_short_locks(scenario, SessionLockLostError)


@spec("sessions with active messages or stored state")
def test_sessions_are_listed(bus: Bus, session_queue: str) -> None:
    assert bus.sessions(session_queue) == []
    bus.send(session_queue, message("x", "with message"), message("y", "emptied"))
    bus.take(session_queue, 1, session_id="emptied")
    with bus.receiver(session_queue, session_id="with state") as receiver:
        receiver.session.set_state("kept")

    assert sorted(bus.sessions(session_queue)) == ["with message", "with state"]


@spec("pages of 100 are full while there are more")
def test_sessions_are_listed_over_several_pages(bus: Bus, session_queue: str) -> None:
    wanted = [f"s{i:03}" for i in range(230)]
    with bus.sender(session_queue) as sender:
        sender.send_messages([message("x", session) for session in wanted])

    assert sorted(bus.sessions(session_queue)) == wanted


@spec("a time: sessions whose state was written after it")
def test_sessions_are_listed_by_the_time_of_their_state(bus: Bus, session_queue: str) -> None:
    bus.send(session_queue, message("x", "only a message"))
    with bus.receiver(session_queue, session_id="old") as receiver:
        receiver.session.set_state("1")
    time.sleep(
        0.02
    )  # times are given in milliseconds: this one is neither that of the first state nor that of the second
    moment = dt.datetime.now(dt.UTC)
    time.sleep(0.02)
    with bus.receiver(session_queue, session_id="new") as receiver:
        receiver.session.set_state("2")

    assert bus.sessions(session_queue, state_updated_after=moment) == ["new"]


@spec("the empty string is a legal session id")
def test_empty_session_id_is_a_session(bus: Bus, session_queue: str) -> None:
    bus.send(session_queue, message("x", ""))

    with bus.receiver(
        session_queue, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=WAIT_SECONDS
    ) as receiver:
        assert receiver.session.session_id == ""
        receiver.complete_message(take(receiver, 1)[0])


@pytest.mark.promise("B52")
@spec("a session queue refuses a message without a session id")
def test_message_without_session_is_refused(bus: Bus, session_queue: str) -> None:
    with bus.sender(session_queue) as sender:
        with pytest.raises(ServiceBusError, match="amqp:not-allowed"):
            sender.send_messages(ServiceBusMessage("no session"))
        sender.send_messages(message("fine", "s"))

    assert texts(bus.take(session_queue, 1, session_id="s")) == ["fine"]


@pytest.mark.promise("B52")
@pytest.mark.parametrize("session", [None, "s", NEXT_AVAILABLE_SESSION], ids=["plain", "named", "next"])
@spec("session receivers and session queues belong together")
def test_wrong_kind_of_receiver_is_refused(bus: Bus, queue: str, session_queue: str, session: Any) -> None:
    wrong = session_queue if session is None else queue

    with (
        pytest.raises(ServiceBusError, match="amqp:not-allowed"),
        bus.receiver(wrong, session_id=session, max_wait_time=WAIT_SECONDS) as receiver,
    ):
        receiver.receive_messages(1, max_wait_time=WAIT_SECONDS)


@spec("several sessions at once, each with its own holder and order")
def test_sessions_are_worked_in_parallel(bus: Bus, session_queue: str) -> None:
    sessions = [f"s{i}" for i in range(4)]
    bus.send(session_queue, *([message(str(n), s) for s in sessions] for n in range(5)))

    receivers = [bus.receiver(session_queue, session_id=s) for s in sessions]
    for receiver in receivers:
        receiver.__enter__()
    got = {r.session.session_id: take(r, 5) for r in receivers}
    for receiver in receivers:
        for one in got[receiver.session.session_id]:
            receiver.complete_message(one)
        receiver.close()

    assert {s: texts(m) for s, m in got.items()} == {s: ["0", "1", "2", "3", "4"] for s in sessions}
    assert all(numbers(m) == sorted(numbers(m)) for m in got.values())
    assert bus.sessions(session_queue) == []
