"""Topics and subscriptions as the messaging client meets them; their configuration is tested by the admin client."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

import pytest
from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError
from azure.servicebus.management import CorrelationRuleFilter, SqlRuleAction, SqlRuleFilter

from tests.conformance.sdk import RECEIVE_SECONDS_MAX, Bus, spec, take, texts
from tests.conformance.topic_kit import consume, peek, publish
from tests.waiting import wait_until


@spec("every subscription gets its own copy with its own number")
def test_every_subscription_gets_a_copy(bus: Bus, make_topic: Callable[..., str]) -> None:
    topic = make_topic(one={}, two={})
    publish(bus, topic, ServiceBusMessage("a"), [ServiceBusMessage("b"), ServiceBusMessage("c")])

    first = consume(bus, topic, "one", 3)

    assert texts(first) == ["a", "b", "c"]
    assert [m.sequence_number for m in first] == [1, 2, 3]
    assert peek(bus, topic, "one") == []
    assert peek(bus, topic, "two") == ["a", "b", "c"]


@pytest.mark.promise("B55")
@spec("correlation and SQL filters choose")
def test_filters_choose(bus: Bus, admin: Any, make_topic: Callable[..., str]) -> None:
    topic = make_topic(red={}, large={}, none={})
    for subscription in ("red", "large", "none"):
        admin.delete_rule(topic, subscription, "$Default")
    admin.create_rule(topic, "red", "r", filter=CorrelationRuleFilter(properties={"colour": "red"}))
    admin.create_rule(topic, "large", "r", filter=SqlRuleFilter("size > 5 AND colour IN ('red', 'blue')"))

    for colour, size in (("red", 1), ("red", 9), ("blue", 8), ("green", 7)):
        publish(
            bus,
            topic,
            ServiceBusMessage(f"{colour}{size}", application_properties={"colour": colour, "size": size}),
        )

    assert peek(bus, topic, "red") == ["red1", "red9"]
    assert peek(bus, topic, "large") == ["red9", "blue8"]
    assert peek(bus, topic, "none") == []


@pytest.mark.promise("B56")
@spec("a rule with an action makes a copy of its own")
def test_action_changes_its_own_copy(bus: Bus, admin: Any, make_topic: Callable[..., str]) -> None:
    topic = make_topic(acted={}, plain={})
    admin.create_rule(
        topic, "acted", "mark", filter=SqlRuleFilter("1=1"), action=SqlRuleAction("SET marked = 'yes'")
    )

    publish(bus, topic, ServiceBusMessage("x", application_properties={"p": 1}))

    properties = [m.application_properties for m in consume(bus, topic, "acted", 2)]
    assert {b"p": 1} in properties
    assert {b"p": 1, b"marked": b"yes", b"RuleName": b"mark"} in properties
    assert [m.application_properties for m in consume(bus, topic, "plain", 1)] == [{b"p": 1}]


@spec("a subscription has a dead-letter queue and settles like a queue")
def test_subscription_settles_like_a_queue(bus: Bus, make_topic: Callable[..., str]) -> None:
    topic = make_topic(one={"max_delivery_count": 2})
    publish(bus, topic, *(ServiceBusMessage(text) for text in ("dead", "defer", "abandon")))

    with bus.client().get_subscription_receiver(topic, "one") as receiver:
        dead, defer, abandon = take(receiver, 3)
        receiver.dead_letter_message(dead, reason="r")
        receiver.defer_message(defer)
        receiver.abandon_message(abandon)
        receiver.abandon_message(take(receiver, 1)[0])
        receiver.complete_message(receiver.receive_deferred_messages(defer.sequence_number)[0])

    graves = consume(bus, topic, "one", 2, sub_queue="deadletter")
    assert [(str(m), m.dead_letter_reason) for m in graves] == [
        ("dead", "r"),
        ("abandon", "MaxDeliveryCountExceeded"),
    ]
    assert peek(bus, topic, "one") == []


@spec("a scheduled message waits at the topic and fans out at its time")
def test_scheduled_message_fans_out_at_its_time(bus: Bus, make_topic: Callable[..., str]) -> None:
    topic = make_topic(one={}, two={})
    with bus.client().get_topic_sender(topic) as sender:
        due = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=5)  # time to cancel, on a busy machine too
        gone, _ = sender.schedule_messages([ServiceBusMessage("gone"), ServiceBusMessage("kept")], due)
        sender.cancel_scheduled_messages(gone)

    wait_until(lambda: peek(bus, topic, "one") == ["kept"] == peek(bus, topic, "two"))

    assert dt.datetime.now(dt.UTC) >= due


@spec("sessions on a subscription, and their listing")
def test_sessions_on_a_subscription(bus: Bus, make_topic: Callable[..., str]) -> None:
    topic = make_topic(one={"requires_session": True})
    publish(bus, topic, *(ServiceBusMessage(f"{s}{i}", session_id=s) for i in range(2) for s in "ab"))

    assert sorted(bus.client().list_subscription_sessions(topic, "one")) == ["a", "b"]
    with bus.client().get_subscription_receiver(
        topic, "one", session_id=NEXT_AVAILABLE_SESSION, max_wait_time=RECEIVE_SECONDS_MAX
    ) as receiver:
        session = receiver.session.session_id
        receiver.session.set_state("seen")
        assert texts(take(receiver, 2)) == [f"{session}0", f"{session}1"]


@pytest.mark.promise("B52")
@spec("a copy without a session for a subscription that requires one is dead-lettered")
def test_copy_without_a_session_is_dead_lettered(bus: Bus, make_topic: Callable[..., str]) -> None:
    topic = make_topic(strict={"requires_session": True}, plain={})
    publish(bus, topic, ServiceBusMessage("without"), ServiceBusMessage("with", session_id="s"))

    assert texts(consume(bus, topic, "strict", 1, session_id="s")) == ["with"]
    (buried,) = consume(bus, topic, "strict", 1, sub_queue="deadletter")
    assert (str(buried), buried.dead_letter_reason) == ("without", "Session id is null.")
    assert peek(bus, topic, "plain") == ["without", "with"]


@spec("a topic itself cannot be received from, a subscription not sent to")
def test_topic_and_subscription_are_not_queues(bus: Bus, make_topic: Callable[..., str]) -> None:
    topic = make_topic(one={})

    with pytest.raises(ServiceBusError), bus.receiver(topic) as receiver:
        receiver.receive_messages(1, max_wait_time=RECEIVE_SECONDS_MAX)
    with pytest.raises(ServiceBusError):
        bus.send(f"{topic}/Subscriptions/one", ServiceBusMessage("x"))


@pytest.mark.promise("B50")
@spec("forwarding moves messages and keeps their properties")
def test_forwarded_message_arrives_with_a_new_number(
    bus: Bus, queue: str, make_queue: Callable[..., str]
) -> None:
    source = make_queue(forward_to=queue)
    bus.send(queue, ServiceBusMessage("first"))
    bus.send(source, ServiceBusMessage("moved", message_id="id", subject="s"))

    first, moved = bus.take(queue, 2)

    assert (str(first), str(moved), moved.message_id, moved.subject) == ("first", "moved", "id", "s")
    assert (moved.sequence_number, moved.enqueued_sequence_number) == (2, 1)
