"""The official Python client on uAMQP, its AMQP stack in C: stricter about the order of frames, and with habits of its own."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

pytest.importorskip("uamqp", reason="needs uamqp, see requirements/conformance.lock")

from azure.servicebus import (
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusMessageState,
    ServiceBusReceiveMode,
    ServiceBusSubQueue,
)

from tests.conformance.sdk import endpoint_for, spec

SECONDS_MAX = 20


@pytest.fixture(params=["tls", "wss"])
def client(namespace: Any, request: pytest.FixtureRequest) -> Iterator[ServiceBusClient]:
    """It knows TLS only, whatever the connection string says. Its WebSocket's path ends with a slash."""
    endpoint = endpoint_for(request.param, namespace.connection_string, namespace.ca_file)
    with ServiceBusClient.from_connection_string(
        endpoint.connection_string, uamqp_transport=True, retry_total=0, **endpoint.options
    ) as opened:
        yield opened


def receive(receiver: Any, count: int) -> list[Any]:
    found: list[Any] = []
    while len(found) < count:
        more = receiver.receive_messages(max_message_count=count - len(found), max_wait_time=SECONDS_MAX)
        assert more, f"only {len(found)} of {count} came"
        found += more
    return found


@spec("the token's answer comes after the settlement of its request, or the client cannot log in")
def test_every_settlement(client: ServiceBusClient, queue: str) -> None:
    with client.get_queue_sender(queue) as sender:
        sender.send_messages([ServiceBusMessage(text) for text in "abcd"])

    with client.get_queue_receiver(queue) as receiver:
        a, b, c, d = receive(receiver, 4)
        receiver.complete_message(a)
        receiver.abandon_message(b)
        receiver.defer_message(c)
        receiver.dead_letter_message(d, reason="why")
        (deferred,) = receiver.receive_deferred_messages([c.sequence_number])
        receiver.complete_message(deferred)
        (again,) = receive(receiver, 1)
        receiver.renew_message_lock(again)
        receiver.complete_message(again)
        assert (str(again), again.delivery_count) == ("b", 1)
        assert receiver.peek_messages(max_message_count=10) == []
    with client.get_queue_receiver(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER) as receiver:
        (dead,) = receive(receiver, 1)
        receiver.complete_message(dead)
    assert (str(dead), dead.dead_letter_reason) == ("d", "why")


@spec("receive-and-delete")
def test_receive_and_delete(client: ServiceBusClient, queue: str) -> None:
    with client.get_queue_sender(queue) as sender:
        batch = sender.create_message_batch()
        batch.add_message(ServiceBusMessage("a"))
        batch.add_message(ServiceBusMessage(b"b" * 200_000))
        sender.send_messages(batch)

    mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE
    with client.get_queue_receiver(queue, receive_mode=mode) as receiver:
        first, second = receive(receiver, 2)
        assert receiver.peek_messages() == []

    assert (str(first), first.lock_token) == ("a", None)
    assert b"".join(second.body) == b"b" * 200_000


@spec("annotations whose keys are strings: a message is scheduled all the same")
def test_schedule_and_cancel(client: ServiceBusClient, queue: str) -> None:
    at = datetime.now(UTC) + timedelta(hours=1)
    with client.get_queue_sender(queue) as sender, client.get_queue_receiver(queue) as receiver:
        kept, cancelled = sender.schedule_messages([ServiceBusMessage("a"), ServiceBusMessage("b")], at)
        sender.cancel_scheduled_messages(cancelled)

        (peeked,) = receiver.peek_messages(max_message_count=10)

    assert (peeked.sequence_number, peeked.state) == (kept, ServiceBusMessageState.SCHEDULED)


@spec("a session by its id: state, lock, order")
def test_session(client: ServiceBusClient, session_queue: str) -> None:
    with client.get_queue_sender(session_queue) as sender:
        sender.send_messages([ServiceBusMessage(text, session_id="s") for text in "ab"])

    with client.get_queue_receiver(session_queue, session_id="s") as receiver:
        receiver.session.set_state(b"state")
        receiver.session.renew_lock()
        assert receiver.session.get_state() == b"state"
        found = receive(receiver, 2)
        for message in found:
            receiver.complete_message(message)

    assert [str(message) for message in found] == ["a", "b"]
