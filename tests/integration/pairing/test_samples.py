"""Programs in the shape of the official SDK's own samples run on the paired client with only its construction changed.

Each sample is a function of an open client; it runs on the official client, on the paired one, and on the paired one
while its entities are failed over, and must leave the same messages behind.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import MessageSizeExceededError

from pairbus import PairedServiceBusClient, SendAvailabilityOptions, aio
from pairbus.testing import Namespace, Pair, Queue

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def pair() -> Iterator[Pair]:
    topics = {"Topics": [{"Name": "news", "Subscriptions": [{"Name": "all"}]}]}
    queues: list[str | Queue] = ["queue", Queue("sessions", requires_session=True)]
    with Pair(Namespace("contoso", queues=queues, config=topics), Namespace("fabrikam")) as started:
        yield started


# --- the samples, as the SDK's repository has them ------------------------------------------------


def send_single_list_and_batch(client: Any) -> None:
    with client.get_queue_sender(queue_name="queue") as sender:
        sender.send_messages(ServiceBusMessage("Single Message"))
        sender.send_messages([ServiceBusMessage("Message in list") for _ in range(3)])
        batch = sender.create_message_batch()
        for _ in range(3):
            try:
                batch.add_message(ServiceBusMessage("Message inside a ServiceBusMessageBatch"))
            except MessageSizeExceededError:
                break
        sender.send_messages(batch)
        sender.send_messages({"body": "a mapping", "subject": "of a message"})


def send_to_a_topic(client: Any) -> None:
    with client.get_topic_sender(topic_name="news") as sender:
        sender.send_messages(ServiceBusMessage("DATA" * 8, subject="news"))
        sender.send_messages([ServiceBusMessage("one"), ServiceBusMessage("two")])


def send_to_sessions(client: Any) -> None:
    with client.get_queue_sender("sessions") as sender:
        for number in range(3):
            sender.send_messages(ServiceBusMessage(f"Message {number}", session_id="<your session id>"))


def schedule_and_cancel(client: Any) -> None:
    with client.get_queue_sender("queue") as sender:
        soon = datetime.now(UTC) + timedelta(seconds=1)
        sender.schedule_messages(ServiceBusMessage("scheduled"), soon)
        cancelled = sender.schedule_messages(
            [ServiceBusMessage("never") for _ in range(2)], soon + timedelta(hours=1)
        )
        sender.cancel_scheduled_messages(cancelled)


SAMPLES: dict[str, tuple[Callable[[Any], None], str, list[str]]] = {
    "single, list, batch": (
        send_single_list_and_batch,
        "queue",
        [
            "Single Message",
            *["Message in list"] * 3,
            *["Message inside a ServiceBusMessageBatch"] * 3,
            "a mapping",
        ],
    ),
    "topic": (send_to_a_topic, "news", ["DATA" * 8, "one", "two"]),
    "session": (send_to_sessions, "sessions", ["Message 0", "Message 1", "Message 2"]),
    "scheduled": (schedule_and_cancel, "queue", ["scheduled"]),
}


def read(client: Any, entity: str, count: int) -> list[str]:
    if entity == "news":
        receiver = client.get_subscription_receiver("news", "all")
    elif entity == "sessions":
        receiver = client.get_queue_receiver("sessions", session_id="<your session id>")
    else:
        receiver = client.get_queue_receiver("queue")
    found: list[str] = []
    with receiver:
        while len(found) < count:
            messages = receiver.receive_messages(max_message_count=count, max_wait_time=60)
            assert messages, f"only {found} of {count} came"
            for message in messages:
                found.append(str(message))
                receiver.complete_message(message)
    return found


def options() -> SendAvailabilityOptions:
    return SendAvailabilityOptions(
        backlog_queue_count=2,
        failover_interval=timedelta(0),
        ping_primary_interval=timedelta(minutes=5),
        enable_syphon=True,
    )


def test_samples_run_unchanged_on_the_official_and_on_the_paired_client(pair: Pair) -> None:
    paired = PairedServiceBusClient.from_connection_strings(
        pair.primary.connection_string, pair.secondary.connection_string, options=options()
    )
    with pair.primary.client() as official, paired:
        for name, (sample, entity, expected) in SAMPLES.items():
            for client in (official, paired):
                sample(client)
                assert sorted(read(client, entity, len(expected))) == sorted(expected), name
        assert paired.statistics().to_backlog == 0


def test_samples_run_unchanged_while_everything_is_failed_over(pair: Pair) -> None:
    paired = PairedServiceBusClient.from_connection_strings(
        pair.primary.connection_string, pair.secondary.connection_string, options=options()
    )
    entities = ("queue", "news", "sessions")
    with paired:
        for name, (sample, entity, expected) in SAMPLES.items():
            for path in entities:
                paired.fail_over(path)
            before = paired.statistics().to_primary
            sample(paired)
            assert paired.statistics().to_primary == before, "P21"
            for path in entities:
                paired.mark_healthy(path)
            assert sorted(read(paired, entity, len(expected))) == sorted(expected), name


async def test_the_asynchronous_shape_is_the_same(pair: Pair) -> None:
    client = aio.PairedServiceBusClient.from_connection_strings(
        primary=pair.primary.connection_string, secondary=pair.secondary.connection_string, options=options()
    )
    async with client:
        async with client.get_queue_sender(queue_name="queue") as sender:
            await sender.send_messages(ServiceBusMessage("one"))
            batch = await sender.create_message_batch()
            batch.add_message(ServiceBusMessage("two"))
            await sender.send_messages(batch)
            client.fail_over("queue")
            batch = await sender.create_message_batch()
            batch.add_message(ServiceBusMessage("three"))
            await sender.send_messages(batch)
            client.mark_healthy("queue")
        found: list[str] = []
        async with client.get_queue_receiver("queue") as receiver:
            async with asyncio.timeout(90):
                while len(found) < 3:
                    for message in await receiver.receive_messages(max_message_count=5, max_wait_time=20):
                        found.append(str(message))
                        await receiver.complete_message(message)
    assert sorted(found) == ["one", "three", "two"]
