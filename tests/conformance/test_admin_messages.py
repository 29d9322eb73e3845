"""What the management API says of messages, and what its changes do to senders and receivers."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any

import pytest
from azure.core.exceptions import ClientAuthenticationError, ResourceNotFoundError
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError
from azure.servicebus.management import AccessRights, SqlRuleFilter

from tests.conformance.admin_cases import access_rule
from tests.conformance.admin_kit import Admin

WAIT_SECONDS = 45


@pytest.fixture
def admin(namespace: Any) -> Iterator[Admin]:
    opened = Admin(
        "sync", namespace.connection_string, lambda _: {"connection_verify": str(namespace.ca_file)}
    )
    yield opened
    opened.close()


@pytest.fixture
def client(namespace: Any) -> Iterator[ServiceBusClient]:
    with ServiceBusClient.from_connection_string(namespace.connection_string, retry_total=0) as opened:
        yield opened


def send(client: ServiceBusClient, queue: str, *bodies: str) -> None:
    with client.get_queue_sender(queue) as sender:
        sender.send_messages([ServiceBusMessage(body) for body in bodies])


def counts_of(admin: Admin, queue: str) -> tuple[int, int, int, int]:
    counts = admin.get_queue_runtime_properties(queue)
    return (
        counts.active_message_count,
        counts.scheduled_message_count,
        counts.dead_letter_message_count,
        counts.total_message_count,
    )


@pytest.mark.promise("B66")
def test_counts_follow_every_state_of_a_message(admin: Admin, client: ServiceBusClient) -> None:
    queue = admin.name("counted")
    admin.create_queue(queue)
    send(client, queue, "complete", "dead-letter", "defer", "keep")
    with client.get_queue_sender(queue) as sender:
        sender.schedule_messages(ServiceBusMessage("later"), dt.datetime.now(dt.UTC) + dt.timedelta(hours=1))
    assert counts_of(admin, queue) == (4, 1, 0, 5)

    with client.get_queue_receiver(queue) as receiver:
        received: list[Any] = []
        while len(received) < 4:
            batch = receiver.receive_messages(4 - len(received), max_wait_time=WAIT_SECONDS)
            assert batch, f"only {len(received)} of 4 came"
            received += batch
        receiver.complete_message(received[0])
        receiver.dead_letter_message(received[1])
        receiver.defer_message(received[2])
        receiver.abandon_message(received[3])

    # A deferred message has no number of its own and counts as active, as it does on Service Bus.
    assert counts_of(admin, queue) == (2, 1, 1, 4)
    assert admin.get_queue_runtime_properties(queue).size_in_bytes > 0
    assert admin.get_queue_runtime_properties(queue).accessed_at_utc.year > 2000


@pytest.mark.promise("B16")
def test_a_queue_made_again_starts_empty(admin: Admin, client: ServiceBusClient) -> None:
    queue = admin.name("again")
    admin.create_queue(queue)
    send(client, queue, "old")

    admin.delete_queue(queue)
    admin.create_queue(queue)

    assert counts_of(admin, queue) == (0, 0, 0, 0)
    assert admin.get_queue_runtime_properties(queue).size_in_bytes == 0


@pytest.mark.promise("B57")
def test_rules_made_by_the_administrator_choose_messages(admin: Admin, client: ServiceBusClient) -> None:
    topic = admin.name("chosen")
    admin.create_topic(topic)
    admin.create_subscription(topic, "s")
    admin.delete_rule(topic, "s", "$Default")
    admin.create_rule(topic, "s", "red", filter=SqlRuleFilter("colour = @c", parameters={"@c": "red"}))

    with client.get_topic_sender(topic) as sender:
        for colour in ("red", "blue", "red"):
            sender.send_messages(ServiceBusMessage("x", application_properties={"colour": colour}))

    assert admin.get_subscription_runtime_properties(topic, "s").active_message_count == 2


def test_disabled_queues_refuse_senders(admin: Admin, client: ServiceBusClient) -> None:
    queue = admin.name("disabled")
    properties = admin.create_queue(queue)
    properties.status = "SendDisabled"
    admin.update_queue(properties)

    with pytest.raises(ServiceBusError):
        send(client, queue, "no")

    properties.status = "Active"
    admin.update_queue(properties)
    send(client, queue, "yes")
    assert counts_of(admin, queue) == (1, 0, 0, 1)


@pytest.mark.promise("M5")
def test_a_replaced_key_fails_at_once(admin: Admin) -> None:
    queue = admin.name("rotated")
    everything = (AccessRights.MANAGE, AccessRights.SEND, AccessRights.LISTEN)
    admin.create_queue(queue, authorization_rules=[access_rule("mine", *everything, primary="b2xk")])
    properties = admin.get_queue(queue)
    old, new, second = (keyed(admin, queue, key) for key in ("b2xk", "bmV3", "c2Vjb25kYXJ5"))
    assert counts_with(old, queue) == 0

    admin.update_queue(properties, authorization_rules=[access_rule("mine", *everything, primary="bmV3")])

    with pytest.raises(ServiceBusError):
        counts_with(old, queue)
    assert counts_with(new, queue) == 0
    assert counts_with(second, queue) == 0


def keyed(admin: Admin, queue: str, key: str) -> str:
    """A connection string with an entity's own key."""
    endpoint = next(part for part in admin.connection_string.split(";") if part.startswith("Endpoint="))
    return f"{endpoint};SharedAccessKeyName=mine;SharedAccessKey={key};EntityPath={queue};UseDevelopmentEmulator=true"


def counts_with(connection_string: str, queue: str) -> int:
    """How many messages a fresh client with this key sees."""
    with (
        ServiceBusClient.from_connection_string(connection_string, retry_total=0) as client,
        client.get_queue_receiver(queue) as receiver,
    ):
        return len(receiver.peek_messages(10))


@pytest.mark.promise("M1")
def test_a_wrong_key_is_refused(admin: Admin) -> None:
    parts = [part for part in admin.connection_string.split(";") if not part.startswith("SharedAccessKey=")]
    stranger = admin.with_connection_string(";".join([*parts, "SharedAccessKey=d3Jvbmc="]))

    for name in (admin.name("missing"), "any"):
        with pytest.raises(ClientAuthenticationError):
            stranger.get_queue(name)


@pytest.mark.promise("B16")
@pytest.mark.slow
def test_acknowledged_configuration_survives_a_kill() -> None:
    from pairbus.testing import Namespace

    with Namespace("contoso", process=True) as running:
        options = {"connection_verify": str(running.ca_file)}
        admin = Admin("sync", running.connection_string, lambda _: options)
        admin.create_queue(
            "kept", user_metadata="here", authorization_rules=[access_rule("k", AccessRights.SEND)]
        )
        admin.create_queue("gone")
        admin.delete_queue("gone")
        admin.create_topic("t")
        admin.create_subscription("t", "s")
        admin.create_rule("t", "s", "r", filter=SqlRuleFilter("a = 1"))
        admin.delete_rule("t", "s", "$Default")

        running.kill()
        running.restart()

        kept = admin.get_queue("kept")
        assert kept.user_metadata == "here"
        assert [rule.key_name for rule in kept.authorization_rules] == ["k"]
        with pytest.raises(ResourceNotFoundError):
            admin.get_queue("gone")
        assert [rule.name for rule in admin.list_rules("t", "s")] == ["r"]
        admin.close()


def test_accessed_at_survives_a_restart() -> None:
    from pairbus.testing import Namespace

    with Namespace("contoso", queues=["q", "unused"], topics=["t"]) as running:
        options = {"connection_verify": str(running.ca_file)}
        admin = Admin("sync", running.connection_string, lambda _: options)
        admin.create_subscription("t", "s")

        def times() -> list[dt.datetime]:
            return [
                admin.get_queue_runtime_properties("q").accessed_at_utc,
                admin.get_topic_runtime_properties("t").accessed_at_utc,
                admin.get_subscription_runtime_properties("t", "s").accessed_at_utc,
                admin.get_queue_runtime_properties("unused").accessed_at_utc,
            ]

        with running.client() as client:
            with client.get_queue_sender("q") as sender, client.get_topic_sender("t") as publisher:
                sender.send_messages(ServiceBusMessage("x"))
                publisher.send_messages(ServiceBusMessage("x"))
            with (
                client.get_queue_receiver("q") as queue,
                client.get_subscription_receiver("t", "s") as subscription,
            ):
                for receiver in (queue, subscription):
                    (message,) = receiver.receive_messages(1, max_wait_time=WAIT_SECONDS)
                    receiver.complete_message(message)
        before = times()
        running.restart()

        after = times()
        assert before[0].year > 2000
        # The end of the links, which comes with the end of the broker, is use as well.
        for old, new in zip(before, after, strict=True):
            assert old <= new <= old + dt.timedelta(minutes=1)
        assert after[3].year == 1
        admin.close()
