"""Auto-forwarding through real clients: queues, topics and subscriptions in chains, and what cannot be passed on."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError
from azure.servicebus.management import SqlRuleFilter

from tests.conformance.sdk import RECEIVE_SECONDS_MAX, Bus, spec, take, texts
from tests.conformance.topic_kit import consume, peek, publish, reasons

TRANSFER = {"sub_queue": "transferdeadletter"}
DEAD = {"sub_queue": "deadletter"}
_numbers = count(1)


@pytest.fixture
def make_chain(admin: Any) -> Callable[..., list[str]]:
    """Create queues of which each forwards to the next; their names, first to last."""

    def make(length: int, **settings: Any) -> list[str]:
        names = [f"chain{next(_numbers)}-{i}" for i in range(length)]
        for place in reversed(range(length)):
            target = {"forward_to": names[place + 1]} if place + 1 < length else {}
            admin.create_queue(names[place], **target, **settings)
        return names

    return make


def reroute(admin: Any, queue: str, **changes: Any) -> None:
    properties = admin.get_queue(queue)
    for name, value in changes.items():
        setattr(properties, name, value)
    admin.update_queue(properties)


@pytest.mark.promise("B50")
@spec("forwarding through queue, topic and subscription, in order")
def test_chain_over_queue_topic_and_subscription(bus: Bus, admin: Any, queue: str) -> None:
    topic = f"relay{next(_numbers)}"
    admin.create_topic(topic)
    admin.create_subscription(topic, "onward", forward_to=queue)
    admin.create_subscription(topic, "kept")
    entrance = f"entrance{next(_numbers)}"
    admin.create_queue(entrance, forward_to=topic)

    sent = ServiceBusMessage("a", message_id="id", subject="s", application_properties={"p": 1})
    bus.send(entrance, sent, [ServiceBusMessage("b"), ServiceBusMessage("c")])

    moved = bus.take(queue, 3)
    assert texts(moved) == ["a", "b", "c"]
    assert (moved[0].message_id, moved[0].subject, moved[0].application_properties) == ("id", "s", {b"p": 1})
    assert [(m.sequence_number, m.enqueued_sequence_number) for m in moved] == [(1, 1), (2, 2), (3, 3)]
    assert peek(bus, topic, "kept") == ["a", "b", "c"]
    counts = admin.get_subscription_runtime_properties(topic, "onward")
    assert (counts.total_message_count, counts.transfer_dead_letter_message_count) == (0, 0)


@spec("a source that forwards refuses receivers, also one that was attached before")
def test_forwarding_source_refuses_receivers(
    bus: Bus, admin: Any, make_chain: Callable[..., list[str]]
) -> None:
    source, target = make_chain(2)
    with pytest.raises(ServiceBusError), bus.receiver(source) as receiver:
        receiver.receive_messages(1, max_wait_time=RECEIVE_SECONDS_MAX)

    with bus.receiver(target) as attached:
        assert attached.peek_messages(1) == []
        reroute(admin, target, forward_to=make_chain(1)[0])
        with pytest.raises(ServiceBusError):
            attached.receive_messages(1, max_wait_time=RECEIVE_SECONDS_MAX)


@pytest.mark.promise("B50")
@spec("forwarding set later moves what is there; cleared, messages stay")
def test_forwarding_can_be_set_and_cleared(
    bus: Bus, admin: Any, make_chain: Callable[..., list[str]]
) -> None:
    (source,), (target,) = make_chain(1), make_chain(1)
    bus.send(source, ServiceBusMessage("a"))
    reroute(admin, source, forward_to=target)
    bus.send(source, ServiceBusMessage("b"))
    assert texts(bus.take(target, 2)) == ["a", "b"]

    reroute(admin, source, forward_to=None)
    bus.send(source, ServiceBusMessage("c"))
    assert texts(bus.take(source, 1)) == ["c"]


@pytest.mark.promise("B50")
@spec("four hops; the fifth is refused with MaxTransferHopCountExceeded")
def test_fifth_hop_is_dead_lettered(bus: Bus, admin: Any, make_chain: Callable[..., list[str]]) -> None:
    names = make_chain(6)
    bus.send(names[1], ServiceBusMessage("four hops"))
    bus.send(names[0], ServiceBusMessage("five hops"))

    assert texts(bus.take(names[5], 1)) == ["four hops"]
    with bus.receiver(names[4], **DEAD) as receiver:
        (buried,) = take(receiver, 1)
        assert reasons([buried]) == [("five hops", "MaxTransferHopCountExceeded")]
        receiver.complete_message(buried)
    assert [admin.get_queue_runtime_properties(name).total_message_count for name in names] == [0] * 6


@pytest.mark.promise("B50")
@spec("destination missing: transfer dead-letter queue of the source")
def test_missing_target(bus: Bus, admin: Any, make_chain: Callable[..., list[str]]) -> None:
    source, target = make_chain(2)
    admin.delete_queue(target)
    bus.send(source, ServiceBusMessage("lost"))

    with bus.receiver(source, **TRANSFER) as receiver:
        (buried,) = take(receiver, 1)
        assert str(buried) == "lost"
        assert buried.dead_letter_reason
        assert target in buried.dead_letter_error_description
        assert admin.get_queue_runtime_properties(source).transfer_dead_letter_message_count == 1
        receiver.complete_message(buried)
    assert admin.get_queue_runtime_properties(source).transfer_dead_letter_message_count == 0


@pytest.mark.promise("B50")
@spec("destination disabled: transfer dead-letter queue of the subscription")
@pytest.mark.parametrize("status", ["Disabled", "SendDisabled"])
def test_disabled_target(
    bus: Bus, admin: Any, queue: str, make_topic: Callable[..., str], status: str
) -> None:
    topic = make_topic(onward={"forward_to": queue}, kept={})
    reroute(admin, queue, status=status)
    publish(bus, topic, ServiceBusMessage("first"))
    reroute(admin, queue, status="Active")
    publish(bus, topic, ServiceBusMessage("second"))

    assert texts(bus.take(queue, 1)) == ["second"]
    (buried,) = consume(bus, topic, "onward", 1, **TRANSFER)
    assert str(buried) == "first"
    assert buried.dead_letter_reason
    assert peek(bus, topic, "kept") == ["first", "second"]


@pytest.mark.promise("B50")
@spec("destination full or over its size: transfer dead-letter queue")
def test_full_target_and_message_too_large_for_it(
    bus: Bus, admin: Any, namespace: Any, make_queue: Callable[..., str]
) -> None:
    target = make_queue(max_size_in_megabytes=1)
    source = make_queue(max_size_in_megabytes=1024, max_message_size_in_kilobytes=2048, forward_to=target)
    bus.send(source, ServiceBusMessage(b"l" * 400_000))
    bus.send(source, *(ServiceBusMessage(bytes([48 + i]) * 250_000) for i in range(5)))

    arrived = bus.peek(target)
    assert [str(m)[0] for m in arrived] == ["0", "1", "2", "3"]
    with bus.receiver(source, **TRANSFER) as receiver:
        buried = take(receiver, 2)
        assert [str(m)[0] for m in buried] == ["l", "4"]
        assert all(m.dead_letter_reason for m in buried)


@pytest.mark.promise("B50")
@spec("a destination that requires sessions takes no message without one")
def test_session_target(bus: Bus, admin: Any, make_queue: Callable[..., str], session_queue: str) -> None:
    source = make_queue(forward_to=session_queue)
    bus.send(source, ServiceBusMessage("with", session_id="s"), ServiceBusMessage("without"))

    assert texts(bus.take(session_queue, 1, session_id="s")) == ["with"]
    with bus.receiver(source, **TRANSFER) as receiver:
        assert texts(take(receiver, 1)) == ["without"]


@pytest.mark.promise("B38")
@spec("dead letters go on to another queue with their reason and source")
def test_dead_letters_are_forwarded(bus: Bus, admin: Any, queue: str, make_topic: Callable[..., str]) -> None:
    topic = make_topic(one={"forward_dead_lettered_messages_to": queue, "max_delivery_count": 1})
    publish(bus, topic, ServiceBusMessage("told", subject="s"), ServiceBusMessage("abandoned"))
    with bus.client().get_subscription_receiver(topic, "one") as receiver:
        told, abandoned = take(receiver, 2)
        receiver.dead_letter_message(told, reason="r", error_description="d")
        receiver.abandon_message(abandoned)

    first, second = bus.take(queue, 2)
    assert reasons([first, second]) == [("told", "r"), ("abandoned", "MaxDeliveryCountExceeded")]
    assert (first.subject, first.dead_letter_error_description) == ("s", "d")
    assert first.dead_letter_source.lower() == f"{topic}/subscriptions/one"
    assert admin.get_subscription_runtime_properties(topic, "one").dead_letter_message_count == 0


@pytest.mark.promise("B8", "B50")
@spec("a rule chooses before forwarding; each copy goes its own way")
def test_filtered_subscriptions_forward_their_own_copies(
    bus: Bus, admin: Any, make_topic: Callable[..., str], make_queue: Callable[..., str]
) -> None:
    reds, all_of_them = make_queue(), make_queue()
    topic = make_topic(red={"forward_to": reds}, all={"forward_to": all_of_them})
    admin.delete_rule(topic, "red", "$Default")
    admin.create_rule(topic, "red", "r", filter=SqlRuleFilter("colour = 'red'"))

    publish(
        bus,
        topic,
        *(ServiceBusMessage(c, application_properties={"colour": c}) for c in ("red", "blue", "red")),
    )

    assert texts(bus.take(reds, 2)) == ["red", "red"]
    assert texts(bus.take(all_of_them, 3)) == ["red", "blue", "red"]


@pytest.mark.promise("B44", "B50")
@spec("a scheduled message is forwarded when it falls due, not before")
def test_scheduled_message_is_forwarded_at_its_time(
    bus: Bus, queue: str, make_queue: Callable[..., str]
) -> None:
    source = make_queue(forward_to=queue)
    due = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=5)  # both are there before, on a busy machine too
    bus.send(source, ServiceBusMessage("later", scheduled_enqueue_time_utc=due), ServiceBusMessage("now"))

    first, second = bus.take(queue, 2)
    assert texts([first, second]) == ["now", "later"]
    assert dt.datetime.now(dt.UTC) >= due


@spec("a target must be a queue or topic that is there")
def test_missing_target_is_refused(admin: Any, make_chain: Callable[..., list[str]]) -> None:
    (name,) = make_chain(1)
    with pytest.raises(HttpResponseError) as caught:
        reroute(admin, name, forward_to="no-such-entity")
    assert caught.value.status_code == 400


@pytest.mark.promise("B50")
@spec(
    "an update may name the queue itself; sessions may forward",
    source="azure-sdk-for-python, test_mgmt_queues",
)
def test_forwarding_to_itself_ends_at_the_hop_limit(
    bus: Bus, admin: Any, make_chain: Callable[..., list[str]]
) -> None:
    (name,) = make_chain(1)
    reroute(admin, name, forward_to=name.upper())
    assert admin.get_queue(name).forward_to.endswith(f"/{name.upper()}"), "in the case it was given"
    bus.send(name, ServiceBusMessage("round and round"))

    with bus.receiver(name, **DEAD) as receiver:
        (buried,) = take(receiver, 1)
        assert reasons([buried]) == [("round and round", "MaxTransferHopCountExceeded")]


@pytest.mark.promise("B50")
@spec("a queue with sessions may forward", source="azure-sdk-for-python, test_mgmt_queues")
def test_queue_with_sessions_forwards(
    bus: Bus, make_queue: Callable[..., str], make_chain: Callable[..., list[str]]
) -> None:
    (target,) = make_chain(1)
    source = make_queue(requires_session=True, forward_to=target)
    bus.send(source, *(ServiceBusMessage(text, session_id="s") for text in "abc"))

    arrived = bus.take(target, 3)
    assert [(str(m), m.session_id) for m in arrived] == [("a", "s"), ("b", "s"), ("c", "s")]
