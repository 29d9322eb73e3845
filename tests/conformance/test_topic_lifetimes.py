"""Time on topics: lives, schedules, duplicates and idle entities, on a clock that the test moves."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from azure.core.exceptions import ResourceNotFoundError
from azure.servicebus import ServiceBusMessage
from azure.servicebus.management import SqlRuleFilter

from tests.conformance.haste import make_haste
from tests.conformance.sdk import RECEIVE_SECONDS_MAX, Bus, spec, texts
from tests.conformance.topic_kit import consume, look, peek, publish, reasons

SECOND, MINUTE, HOUR = dt.timedelta(seconds=1), dt.timedelta(minutes=1), dt.timedelta(hours=1)
MINUTE_MS = 60_000
IDLE = dt.timedelta(minutes=5)


@pytest.fixture
def clock() -> Any:
    from pairbus.testing import VirtualClock

    return VirtualClock()


@pytest.fixture
def namespace(clock: Any) -> Iterator[Any]:
    """A broker in a thread, on the test's own clock."""
    from pairbus.testing import Namespace

    make_haste()
    with Namespace("contoso", clock=clock) as running:
        yield running


@pytest.fixture
def wait(clock: Any, admin: Any) -> Callable[[int], None]:
    """Let so many milliseconds pass, and the broker do what fell due: it does that before it answers twice."""

    def pass_time(ms: int) -> None:
        clock.advance(ms)
        admin.get_namespace_properties()

    return pass_time


@pytest.mark.promise("B41")
@spec("time to live: the smallest of message, topic and subscription")
def test_smallest_of_three_lives(bus: Bus, admin: Any, wait: Callable[[int], None]) -> None:
    admin.create_topic("t", default_message_time_to_live=2 * MINUTE)
    admin.create_subscription("t", "long", default_message_time_to_live=HOUR)
    admin.create_subscription(
        "t", "short", default_message_time_to_live=MINUTE, dead_lettering_on_message_expiration=True
    )
    publish(
        bus,
        "t",
        ServiceBusMessage("brief", time_to_live=30 * SECOND),
        ServiceBusMessage("middling", time_to_live=90 * SECOND),
        ServiceBusMessage("endless", time_to_live=24 * HOUR),
        ServiceBusMessage("unset"),
    )
    assert [m.time_to_live for m in look(bus, "t", "long")] == [
        30 * SECOND,
        90 * SECOND,
        2 * MINUTE,
        2 * MINUTE,
    ]
    assert [m.time_to_live for m in look(bus, "t", "short")] == [30 * SECOND, MINUTE, MINUTE, MINUTE]

    wait(30_000)
    assert peek(bus, "t", "long") == ["middling", "endless", "unset"] == peek(bus, "t", "short")
    wait(29_999)
    assert peek(bus, "t", "short") == ["middling", "endless", "unset"]
    wait(1)
    assert peek(bus, "t", "short") == []
    assert peek(bus, "t", "long") == ["middling", "endless", "unset"]
    wait(30_000)
    assert peek(bus, "t", "long") == ["endless", "unset"]
    wait(30_000)
    assert peek(bus, "t", "long") == []

    graves = consume(bus, "t", "short", 4, sub_queue="deadletter")
    expired = "TTLExpiredException"
    assert reasons(graves) == [(text, expired) for text in ("brief", "middling", "endless", "unset")]
    assert peek(bus, "t", "long", sub_queue="deadletter") == []


@pytest.mark.promise("B44")
@spec("scheduled at the topic, counted there; fans out by the rules of that time")
def test_schedule_waits_at_the_topic(bus: Bus, admin: Any, clock: Any, wait: Callable[[int], None]) -> None:
    admin.create_topic("t")
    for name in ("one", "two"):
        admin.create_subscription("t", name)
    due = dt.datetime.fromtimestamp(clock.now() / 1000, dt.UTC) + HOUR / 2
    with bus.client().get_topic_sender("t") as sender:
        numbers = sender.schedule_messages(
            [ServiceBusMessage("a", time_to_live=MINUTE), ServiceBusMessage("gone"), ServiceBusMessage("b")],
            due,
        )
        sender.cancel_scheduled_messages(numbers[1])
    assert admin.get_topic_runtime_properties("t").scheduled_message_count == 2
    admin.delete_rule("t", "two", "$Default")
    admin.create_rule("t", "two", "none", filter=SqlRuleFilter("1=0"))

    wait(30 * MINUTE_MS - 1000)
    assert peek(bus, "t", "one") == []
    wait(1000)
    first, second = look(bus, "t", "one")
    assert texts([first, second]) == ["a", "b"]
    assert first.enqueued_time_utc >= due - SECOND
    assert peek(bus, "t", "two") == []
    assert admin.get_topic_runtime_properties("t").scheduled_message_count == 0

    wait(MINUTE_MS)  # a life counts from the activation
    assert peek(bus, "t", "one") == ["b"]


@pytest.mark.promise("B47")
@spec("duplicates are detected at the topic, for all subscriptions, within the window")
def test_duplicates_at_a_topic(bus: Bus, admin: Any, wait: Callable[[int], None]) -> None:
    admin.create_topic("t", requires_duplicate_detection=True, duplicate_detection_history_time_window=MINUTE)
    for name in ("one", "two"):
        admin.create_subscription("t", name)
    publish(bus, "t", ServiceBusMessage("a", message_id="1"), ServiceBusMessage("again", message_id="1"))
    publish(bus, "t", [ServiceBusMessage("b", message_id="2"), ServiceBusMessage("again", message_id="1")])
    assert texts(consume(bus, "t", "one", 2)) == ["a", "b"]
    admin.create_subscription("t", "late")
    publish(bus, "t", ServiceBusMessage("again", message_id="2"))

    assert peek(bus, "t", "one") == []
    assert peek(bus, "t", "two") == ["a", "b"]
    assert peek(bus, "t", "late") == []
    wait(MINUTE_MS)
    publish(bus, "t", ServiceBusMessage("c", message_id="1"))
    assert peek(bus, "t", "two") == ["a", "b", "c"]


@pytest.mark.promise("B40")
@spec("a dead letter does not expire a second time where it was sent on")
def test_forwarded_dead_letter_keeps(bus: Bus, admin: Any, wait: Callable[[int], None]) -> None:
    admin.create_queue("graves")
    admin.create_topic("t")
    admin.create_subscription(
        "t", "s", dead_lettering_on_message_expiration=True, forward_dead_lettered_messages_to="graves"
    )
    publish(bus, "t", ServiceBusMessage("expired", time_to_live=SECOND))

    wait(1_000)
    assert reasons(bus.peek("graves")) == [("expired", "TTLExpiredException")]
    wait(60 * MINUTE_MS // 2)
    assert texts(bus.take("graves", 1)) == ["expired"]


def exists(admin: Any, *path: str) -> bool:
    get = {1: admin.get_queue, 2: admin.get_subscription}[len(path)]
    try:
        get(*path)
    except ResourceNotFoundError:
        return False
    return True


@spec("auto-delete on idle: a queue or subscription that nobody uses goes")
def test_idle_entities_are_deleted(admin: Any, wait: Callable[[int], None]) -> None:
    admin.create_queue("idle", auto_delete_on_idle=IDLE)
    admin.create_queue("stays")
    admin.create_topic("t")
    admin.create_subscription("t", "idle", auto_delete_on_idle=IDLE)
    admin.create_subscription("t", "stays")

    wait(5 * MINUTE_MS - 1)
    assert exists(admin, "idle")
    assert exists(admin, "t", "idle")
    wait(1)
    assert not exists(admin, "idle")
    assert not exists(admin, "t", "idle")
    assert exists(admin, "stays")
    assert exists(admin, "t", "stays")


@spec("sends, receives, updates and rule changes are use")
def test_use_keeps_an_entity_alive(namespace: Any, admin: Any, wait: Callable[[int], None]) -> None:
    admin.create_queue("q", auto_delete_on_idle=IDLE)
    admin.create_topic("t")
    admin.create_subscription("t", "s", auto_delete_on_idle=IDLE)

    def send() -> None:
        with namespace.client() as client, client.get_queue_sender("q") as sender:
            sender.send_messages(ServiceBusMessage("x"))
        with (
            namespace.client() as client,
            client.get_subscription_receiver("t", "s", max_wait_time=0.1) as receiver,
        ):
            receiver.receive_messages(1)

    def update() -> None:
        admin.update_queue(admin.get_queue("q"), user_metadata="touched")
        admin.create_rule("t", "s", "r", filter=SqlRuleFilter("a = 1"))

    for use in (send, update):
        wait(4 * MINUTE_MS)
        use()
    wait(4 * MINUTE_MS)
    assert exists(admin, "q")
    assert exists(admin, "t", "s")
    wait(5 * MINUTE_MS)
    assert not exists(admin, "q")
    assert not exists(admin, "t", "s")


@spec("a receiver that waits uses its subscription; messages alone do not")
def test_waiting_receiver_keeps_a_subscription_alive(
    namespace: Any, admin: Any, wait: Callable[[int], None]
) -> None:
    admin.create_topic("t")
    admin.create_subscription("t", "watched", auto_delete_on_idle=IDLE)
    admin.create_subscription("t", "full", auto_delete_on_idle=IDLE)
    with namespace.client() as client:
        with client.get_topic_sender("t") as sender:
            sender.send_messages(ServiceBusMessage("x"))
        with client.get_subscription_receiver("t", "watched", prefetch_count=5) as receiver:
            assert texts(receiver.receive_messages(1, max_wait_time=RECEIVE_SECONDS_MAX)) == ["x"]
            for _ in range(4):
                # Looking is a sign of life of the connection, which would else be closed as idle.
                wait(2 * MINUTE_MS)
                receiver.peek_messages(1)
            assert exists(admin, "t", "watched")
            assert not exists(admin, "t", "full")


@spec("a receiver that stays open and takes a message now and then uses its queue and its subscription")
@pytest.mark.promise("B1")
@pytest.mark.parametrize("mode", ["peeklock", "receiveanddelete"])
def test_open_receiver_keeps_what_it_receives_from(
    namespace: Any, admin: Any, wait: Callable[[int], None], mode: str
) -> None:
    admin.create_queue("q", auto_delete_on_idle=IDLE)
    admin.create_topic("t")
    admin.create_subscription("t", "s", auto_delete_on_idle=IDLE)
    with namespace.client() as client:
        with client.get_queue_sender("q") as sender:
            sender.send_messages([ServiceBusMessage(str(number)) for number in range(10)])
        with client.get_topic_sender("t") as publisher:
            publisher.send_messages([ServiceBusMessage(str(number)) for number in range(10)])
        queue = client.get_queue_receiver("q", receive_mode=mode)
        subscription = client.get_subscription_receiver("t", "s", receive_mode=mode)
        with queue, subscription:
            for number in range(8):
                for receiver in (queue, subscription):
                    (found,) = receiver.receive_messages(1, max_wait_time=RECEIVE_SECONDS_MAX)
                    assert str(found) == str(number)
                    if mode == "peeklock":
                        receiver.complete_message(found)
                wait(MINUTE_MS)
            used_at = admin.get_queue_runtime_properties("q").accessed_at_utc
            assert used_at > admin.get_queue_runtime_properties("q").created_at_utc + 6 * MINUTE
        wait(4 * MINUTE_MS)
        assert admin.get_queue_runtime_properties("q").active_message_count == 2
        assert admin.get_subscription_runtime_properties("t", "s").active_message_count == 2
        wait(MINUTE_MS)
        assert not exists(admin, "q")
        assert not exists(admin, "t", "s")
