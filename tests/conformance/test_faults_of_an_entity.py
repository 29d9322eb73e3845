"""A fault of one entity as the official clients meet it: on all links of the entity, and on no other."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

import pytest
from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusMessage
from azure.servicebus.exceptions import (
    MessageLockLostError,
    OperationTimeoutError,
    ServiceBusConnectionError,
    ServiceBusError,
    ServiceBusQuotaExceededError,
    ServiceBusServerBusyError,
    SessionLockLostError,
)

from tests.conformance.sdk import Bus, take, texts
from tests.waiting import wait_until

MINUTES = 5
SOON_SECONDS = 1.5
"""How long an answer is waited for that must not come."""


def later() -> dt.datetime:
    return dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)


def test_a_cut_ends_every_link_of_the_entity_and_no_other(
    bus: Bus, make_queue: Callable[..., str], faults: Any
) -> None:
    struck, spared = make_queue(), make_queue()
    client, other = bus.client(), bus.client()
    with (
        client.get_queue_sender(struck) as sender,
        client.get_queue_receiver(struck) as receiver,
        other.get_queue_receiver(struck) as elsewhere,
        client.get_queue_sender(spared) as spared_sender,
        client.get_queue_receiver(spared) as spared_receiver,
    ):
        sender.send_messages([ServiceBusMessage("a"), ServiceBusMessage("b")])
        take(receiver, 1)
        take(elsewhere, 1)
        spared_sender.send_messages(ServiceBusMessage("c"))
        held = take(spared_receiver, 1)[0]
        faults.cut(struck, seconds=MINUTES * 60)

        for use in (
            lambda: sender.send_messages(ServiceBusMessage("d")),
            lambda: receiver.receive_messages(1, max_wait_time=30),
            lambda: elsewhere.receive_messages(1, max_wait_time=30),
            receiver.peek_messages,
            lambda: sender.schedule_messages(ServiceBusMessage("e"), later()),
        ):
            with pytest.raises(ServiceBusConnectionError):
                use()
        # A lock of another link of this connection lives on only if the connection does.
        spared_receiver.complete_message(held)
        spared_sender.send_messages(ServiceBusMessage("f"))
        assert texts(take(spared_receiver, 1)) == ["f"]
        faults.clear()

        sender.send_messages(ServiceBusMessage("g"))
        assert texts(take(receiver, 1)) == ["g"]


def test_a_counted_cut_ends_what_is_open_once_and_the_client_goes_on(
    bus: Bus, queue: str, faults: Any
) -> None:
    client = bus.client(retry_total=3)
    with client.get_queue_sender(queue) as sender, client.get_queue_receiver(queue) as receiver:
        sender.send_messages(ServiceBusMessage("a"))
        take(receiver, 1)
        faults.cut(queue, count=1)
        sender.send_messages(ServiceBusMessage("b"))
        assert texts(take(receiver, 1)) == ["b"]


def test_a_black_hole_holds_deliveries_settlements_and_requests_of_the_entity_only(
    bus: Bus, make_queue: Callable[..., str], faults: Any
) -> None:
    struck, spared = make_queue(), make_queue()
    client = bus.client()
    with (
        client.get_queue_sender(struck) as sender,
        client.get_queue_receiver(struck) as receiver,
        client.get_queue_sender(spared) as spared_sender,
        client.get_queue_receiver(spared) as spared_receiver,
    ):
        sender.send_messages([ServiceBusMessage("a"), ServiceBusMessage("b")])
        held = take(receiver, 1)[0]
        receiver.peek_messages()  # its link to the management node is open
        faults.black_hole(struck, seconds=MINUTES * 60)

        with pytest.raises(OperationTimeoutError):
            sender.send_messages(ServiceBusMessage("c"), timeout=SOON_SECONDS)
        assert receiver.receive_messages(1, max_wait_time=SOON_SECONDS) == []
        with pytest.raises(ServiceBusError):
            receiver.peek_messages(timeout=SOON_SECONDS)
        with pytest.raises(ServiceBusError):
            receiver.renew_message_lock(held, timeout=SOON_SECONDS)
        spared_sender.send_messages(ServiceBusMessage("d"))
        assert texts(take(spared_receiver, 1)) == ["d"]
        faults.clear()

    assert sorted(texts(bus.peek(struck))) == ["a", "b"]


def test_what_waits_for_a_link_or_a_message_gets_it_when_the_black_hole_ends(
    bus: Bus, make_queue: Callable[..., str], faults: Any
) -> None:
    plain, sessions = make_queue(), make_queue(requires_session=True)
    bus.send(plain, ServiceBusMessage("a"))
    bus.send(sessions, ServiceBusMessage("b", session_id="s"))
    faults.black_hole(plain, seconds=SOON_SECONDS)
    faults.black_hole(sessions, seconds=SOON_SECONDS)

    with bus.receiver(plain) as receiver:
        assert texts(receiver.receive_messages(1, max_wait_time=60)) == ["a"]
    with bus.receiver(sessions, session_id=NEXT_AVAILABLE_SESSION) as receiver:
        assert texts(receiver.receive_messages(1, max_wait_time=60)) == ["b"]


def test_a_black_hole_of_a_subscription_meets_its_receivers_and_not_the_topic(
    bus: Bus, make_topic: Callable[..., str], faults: Any
) -> None:
    topic = make_topic(quiet={}, spared={})
    client = bus.client()
    with (
        client.get_topic_sender(topic) as sender,
        client.get_subscription_receiver(topic, "quiet") as quiet,
        client.get_subscription_receiver(topic, "spared") as spared,
    ):
        assert quiet.peek_messages() == []
        faults.black_hole(f"{topic}/Subscriptions/quiet", seconds=MINUTES * 60)
        sender.send_messages(ServiceBusMessage("a"))

        assert texts(take(spared, 1)) == ["a"]
        assert quiet.receive_messages(1, max_wait_time=SOON_SECONDS) == []
        faults.clear()
        assert texts(take(quiet, 1)) == ["a"]


def test_a_settlement_is_never_quicker_than_the_loss_of_its_lock(bus: Bus, queue: str, faults: Any) -> None:
    faults.lose_locks(queue, seconds=MINUTES * 60)
    bus.send(queue, ServiceBusMessage("a"))

    with bus.receiver(queue) as receiver:
        for _ in range(10):
            message = take(receiver, 1)[0]
            with pytest.raises(MessageLockLostError):
                receiver.complete_message(message)
    faults.clear()

    assert wait_until(lambda: texts(bus.peek(queue)) == ["a"])


def test_a_session_is_lost_with_the_locks_of_its_messages(bus: Bus, session_queue: str, faults: Any) -> None:
    bus.send(session_queue, ServiceBusMessage("a", session_id="s"))
    with bus.receiver(session_queue, session_id="s") as receiver:
        message = take(receiver, 1)[0]
        faults.lose_locks(session_queue, count=1)
        with pytest.raises(SessionLockLostError):
            receiver.complete_message(message)

    assert texts(bus.take(session_queue, 1, session_id="s")) == ["a"]


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("fill", ServiceBusQuotaExceededError),
        ("throttle", ServiceBusServerBusyError),
        ("refuse", ServiceBusError),
    ],
)
def test_to_schedule_is_to_send(kind: str, error: type[Exception], bus: Bus, queue: str, faults: Any) -> None:
    with bus.sender(queue) as sender, bus.receiver(queue) as receiver:
        sender.send_messages(ServiceBusMessage("a"))
        getattr(faults, kind)(queue)
        with pytest.raises(error):
            sender.schedule_messages(ServiceBusMessage("b"), later())
        receiver.complete_message(take(receiver, 1)[0])  # what empties an entity goes on
        faults.clear()

    assert bus.peek(queue) == []
