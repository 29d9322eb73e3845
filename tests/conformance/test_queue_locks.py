"""Locks in time: renewing, letting expire, losing. The shortest lock a queue can have is five seconds."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import MessageLockLostError, MessageNotFoundError

from tests.conformance.sdk import LOCK_END_SECONDS_MAX, LOCK_SECONDS, Bus, spec, take, texts, with_short_locks
from tests.waiting import wait_until


def now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


@pytest.mark.promise("B28")
@spec("locked until = now + lock duration; only extends")
def test_renewed_lock_lasts_longer(bus: Bus, queue: str) -> None:
    bus.send(queue, ServiceBusMessage("a"))

    with bus.receiver(queue) as receiver:
        message = take(receiver, 1)[0]
        before = message.locked_until_utc
        time.sleep(0.05)  # the lock's end is given in milliseconds, so a renewal at once might not move it
        answer = receiver.renew_message_lock(message)

        assert answer == message.locked_until_utc > before
        receiver.complete_message(message)


@pytest.mark.promise("B27", "B31")
@spec("expiry: available again, count +1, the old token does nothing")
def test_expired_lock_frees_the_message_and_its_token_is_void(
    bus: Bus, make_queue: Callable[..., str]
) -> None:
    def scenario(duration: dt.timedelta) -> None:
        queue = make_queue(lock_duration=duration)
        bus.send(queue, ServiceBusMessage("a"))

        with bus.receiver(queue) as holder, bus.receiver(queue) as other:
            lost = take(holder, 1)[0]
            locked_until = lost.locked_until_utc
            again = take(other, 1, seconds=LOCK_END_SECONDS_MAX)[0]

            assert (str(again), again.delivery_count) == ("a", 1)
            assert now() >= locked_until
            assert again.lock_token != lost.lock_token
            with pytest.raises(MessageLockLostError):
                holder.complete_message(lost)
            # The client refuses by its own clock; the broker must refuse as well.
            lost.raw_amqp_message.annotations[b"x-opt-locked-until"] = int((now().timestamp() + 60) * 1000)
            lost._expiry = None
            with pytest.raises(MessageLockLostError):
                holder.complete_message(lost)
            with pytest.raises(MessageLockLostError):
                holder.renew_message_lock(lost)
            other.complete_message(again)
        assert bus.peek(queue) == []

    with_short_locks(scenario, MessageLockLostError)


@pytest.mark.promise("B26")
@spec("a renewed message is still ours after its first lock would have ended")
def test_auto_renewed_message_outlives_its_first_lock(bus: Bus, make_queue: Callable[..., str]) -> None:
    def scenario(duration: dt.timedelta) -> None:
        queue = make_queue(lock_duration=duration)
        bus.send(queue, ServiceBusMessage("a"))
        renewer = bus.renewer()

        with bus.receiver(queue, auto_lock_renewer=renewer) as receiver:
            message = take(receiver, 1)[0]
            first = message.locked_until_utc
            wait_until(lambda: now() > first + dt.timedelta(seconds=0.5), seconds=LOCK_END_SECONDS_MAX)

            renewed = message.locked_until_utc
            receiver.complete_message(message)
            assert message.auto_renew_error is None
            assert renewed > first
        assert bus.peek(queue) == []

    with_short_locks(scenario, MessageLockLostError)


@pytest.mark.promise("B27")
@spec("a token settled elsewhere is lost: on the link and by management")
def test_token_settled_elsewhere_is_lost(bus: Bus, queue: str) -> None:
    bus.send(queue, ServiceBusMessage("a"), ServiceBusMessage("b"))

    with bus.receiver(queue) as holder, bus.receiver(queue) as other:
        for message in take(holder, 2):
            other.complete_message(message)
            message._settled = False  # as a second process with a copy of the token would see it
            for settle in (holder.complete_message, holder.abandon_message, other.dead_letter_message):
                with pytest.raises(MessageLockLostError):
                    settle(message)
            with pytest.raises(MessageLockLostError):
                holder.renew_message_lock(message)

    assert bus.peek(queue) == []
    assert bus.peek(queue, sub_queue="deadletter") == []


@pytest.mark.promise("B30")
@spec("lock expiry counts towards the maximum")
def test_expired_lock_counts_towards_the_maximum(bus: Bus, make_queue: Callable[..., str]) -> None:
    queue = make_queue(lock_duration=dt.timedelta(seconds=LOCK_SECONDS[0]), max_delivery_count=1)
    bus.send(queue, ServiceBusMessage("a"))

    with bus.receiver(queue) as receiver:
        take(receiver, 1)
        dead = bus_take_dead(bus, queue)

    assert (str(dead), dead.dead_letter_reason) == ("a", "MaxDeliveryCountExceeded")


def bus_take_dead(bus: Bus, queue: str) -> Any:
    with bus.receiver(queue, sub_queue="deadletter", receive_mode="receiveanddelete") as receiver:
        return take(receiver, 1, seconds=LOCK_END_SECONDS_MAX)[0]


@spec("the lock of a deferred message expires too and leaves it deferred")
def test_deferred_message_stays_deferred_when_its_lock_expires(
    bus: Bus, make_queue: Callable[..., str]
) -> None:
    def scenario(duration: dt.timedelta) -> None:
        queue = make_queue(lock_duration=duration)
        bus.send(queue, ServiceBusMessage("a"))
        with bus.receiver(queue) as receiver:
            receiver.defer_message(take(receiver, 1)[0])
            receiver.receive_deferred_messages(1)

            def free() -> Any:
                try:
                    return receiver.receive_deferred_messages(1)
                except MessageNotFoundError:  # still locked
                    return None

            again = wait_until(free, seconds=LOCK_END_SECONDS_MAX, pause=0.3)[0]
            assert texts([again]) == ["a"]
            receiver.complete_message(again)
        assert bus.peek(queue) == []

    with_short_locks(scenario, MessageLockLostError)
