"""Topics and subscriptions whose status changes, or that go away, while clients are attached to them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import (
    MessagingEntityDisabledError,
    MessagingEntityNotFoundError,
    ServiceBusAuthenticationError,
    ServiceBusError,
)

from tests.conformance.sdk import RECEIVE_SECONDS_MAX, Bus, spec, take, texts
from tests.conformance.topic_kit import consume, peek, publish


def set_topic(admin: Any, topic: str, status: str) -> None:
    properties = admin.get_topic(topic)
    properties.status = status
    admin.update_topic(properties)


def set_subscription(admin: Any, topic: str, subscription: str, status: str) -> None:
    properties = admin.get_subscription(topic, subscription)
    properties.status = status
    admin.update_subscription(topic, properties)


@spec("a topic disabled under an attached sender; enabled, it goes on")
@pytest.mark.parametrize("status", ["Disabled", "SendDisabled"])
def test_disabled_topic_refuses_an_attached_sender(
    bus: Bus, admin: Any, make_topic: Callable[..., str], status: str
) -> None:
    topic = make_topic(one={})
    with bus.client().get_topic_sender(topic) as sender:
        sender.send_messages(ServiceBusMessage("before"))
        set_topic(admin, topic, status)
        with pytest.raises(MessagingEntityDisabledError):
            sender.send_messages(ServiceBusMessage("refused"))
        set_topic(admin, topic, "Active")
        sender.send_messages(ServiceBusMessage("after"))

    assert peek(bus, topic, "one") == ["before", "after"]


@spec("a topic that takes no sends still hands out what it has")
def test_send_disabled_topic_can_be_received_from(
    bus: Bus, admin: Any, make_topic: Callable[..., str]
) -> None:
    topic = make_topic(one={})
    publish(bus, topic, ServiceBusMessage("x"))
    set_topic(admin, topic, "SendDisabled")

    assert texts(consume(bus, topic, "one", 1)) == ["x"]


@spec("a subscription disabled under an attached receiver: detach with entity-disabled")
@pytest.mark.parametrize("status", ["Disabled", "ReceiveDisabled"])
def test_disabled_subscription_detaches_its_receivers(
    bus: Bus, admin: Any, make_topic: Callable[..., str], status: str
) -> None:
    topic = make_topic(one={}, two={})
    with bus.client().get_subscription_receiver(topic, "one") as receiver:
        publish(bus, topic, ServiceBusMessage("a"))
        receiver.complete_message(take(receiver, 1)[0])
        set_subscription(admin, topic, "one", status)
        with pytest.raises(MessagingEntityDisabledError):
            receiver.receive_messages(1, max_wait_time=RECEIVE_SECONDS_MAX)

    assert texts(consume(bus, topic, "two", 1)) == ["a"]
    publish(bus, topic, ServiceBusMessage("b"))
    set_subscription(admin, topic, "one", "Active")
    assert texts(consume(bus, topic, "one", 1)) == ["b"]


@spec("a subscription deleted under its receiver: detach with amqp:not-found; others live")
def test_deleted_subscription_detaches_its_receivers(
    bus: Bus, admin: Any, make_topic: Callable[..., str]
) -> None:
    topic = make_topic(one={}, two={})
    client = bus.client()
    with (
        client.get_subscription_receiver(topic, "one") as receiver,
        client.get_subscription_receiver(topic, "two") as other,
    ):
        assert receiver.peek_messages(1) == [] == other.peek_messages(1)
        admin.delete_subscription(topic, "one")
        with pytest.raises(MessagingEntityNotFoundError):
            receiver.receive_messages(1, max_wait_time=RECEIVE_SECONDS_MAX)

        publish(bus, topic, ServiceBusMessage("x"))
        assert texts(take(other, 1)) == ["x"]


@pytest.mark.promise("B16")
@spec("a topic deleted under its clients takes its subscriptions with it")
def test_deleted_topic_ends_everything_and_starts_empty_again(
    bus: Bus, admin: Any, make_topic: Callable[..., str]
) -> None:
    topic = make_topic(one={})
    publish(bus, topic, ServiceBusMessage("old"))
    client = bus.client(retry_total=1)
    with (
        client.get_topic_sender(topic) as sender,
        client.get_subscription_receiver(topic, "one") as receiver,
    ):
        sender.send_messages(ServiceBusMessage("old"))
        locked = take(receiver, 1)
        admin.delete_topic(topic)
        with pytest.raises(ServiceBusError):
            receiver.complete_message(locked[0])
        # The second attempt asks for a token of an entity that is not there.
        with pytest.raises((MessagingEntityNotFoundError, ServiceBusAuthenticationError)):
            sender.send_messages(ServiceBusMessage("refused"))

    admin.create_topic(topic)
    admin.create_subscription(topic, "one")
    assert peek(bus, topic, "one") == []
    publish(bus, topic, ServiceBusMessage("new"))
    (message,) = consume(bus, topic, "one", 1)
    assert (str(message), message.sequence_number) == ("new", 1)
