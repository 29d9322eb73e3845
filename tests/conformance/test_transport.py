"""The same few behaviours over every transport of the client: TCP, TLS, WebSocket and secure WebSocket."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential
from azure.servicebus import ServiceBusClient, ServiceBusMessage, TransportType
from azure.servicebus.exceptions import ServiceBusError

from tests.conformance.sdk import Bus, connection_part, endpoint_for, sas_token, spec, take, texts

# The asynchronous client asks aiohttp for a plain WebSocket in an old way.
pytestmark = pytest.mark.filterwarnings("ignore:ssl=None is deprecated:DeprecationWarning")


@spec("send, receive and all four settlements")
def test_queue_round_trip(any_bus: Bus, queue: str) -> None:
    any_bus.send(queue, *(ServiceBusMessage(text) for text in ("complete", "abandon", "defer", "dead")))

    with any_bus.receiver(queue) as receiver:
        complete, abandon, defer, dead = take(receiver, 4)
        receiver.complete_message(complete)
        receiver.abandon_message(abandon)
        receiver.defer_message(defer)
        receiver.dead_letter_message(dead, reason="r")
        again = take(receiver, 1)[0]
        deferred = receiver.receive_deferred_messages(defer.sequence_number)[0]
        receiver.complete_message(again)
        receiver.complete_message(deferred)

    assert (str(again), str(deferred)) == ("abandon", "defer")
    assert texts(any_bus.peek(queue, sub_queue="deadletter")) == ["dead"]
    assert any_bus.peek(queue) == []


@spec("large messages: frame and WebSocket boundaries carry no meaning")
def test_large_message_round_trip(any_bus: Bus, queue: str) -> None:
    body = bytes(range(256)) * 1000
    any_bus.send(queue, ServiceBusMessage(body))

    assert b"".join(any_bus.take(queue, 1)[0].body) == body


@spec("sessions and management requests")
def test_session_round_trip(any_bus: Bus, session_queue: str) -> None:
    any_bus.send(session_queue, ServiceBusMessage("x", session_id="s"))
    with any_bus.sender(session_queue) as sender:
        due = dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)
        sender.cancel_scheduled_messages(
            sender.schedule_messages(ServiceBusMessage("y", session_id="s"), due)
        )

    with any_bus.receiver(session_queue, session_id="s") as receiver:
        receiver.session.set_state("state")
        receiver.session.renew_lock()
        assert receiver.session.get_state() == b"state"
        receiver.complete_message(take(receiver, 1)[0])


@pytest.mark.parametrize("face", ["sync", "async"])
@spec("a certificate of an unknown authority is refused by the client")
def test_client_that_does_not_trust_us_stays_away(face: str, namespace: Any, queue: str) -> None:
    endpoint = endpoint_for("tls", namespace.connection_string, str(namespace.ca_file))
    endpoint.options.pop("connection_verify")
    stranger = Bus(face, endpoint)

    with pytest.raises(ServiceBusError), stranger.sender(queue) as sender:
        sender.send_messages(ServiceBusMessage("x"), timeout=5)
    stranger.close()


@pytest.mark.parametrize("kind", ["named key", "signature"])
@spec("a program keeps the name of its namespace and reaches us all the same")
def test_credential_objects_with_the_name_of_the_real_namespace(
    namespace: Any, queue: str, kind: str
) -> None:
    host = "contoso.servicebus.windows.net"
    text = namespace.connection_string
    rule, key = connection_part(text, "SharedAccessKeyName"), connection_part(text, "SharedAccessKey")
    credential = (
        AzureNamedKeyCredential(rule, key)
        if kind == "named key"
        else AzureSasCredential(sas_token(text, f"sb://{host}/{queue}", 600))
    )
    options = endpoint_for("tls", text, str(namespace.ca_file)).options

    with (
        ServiceBusClient(host, credential, retry_total=0, **options) as client,
        client.get_queue_sender(queue) as sender,
    ):
        sender.send_messages(ServiceBusMessage("x"))
        assert texts(client.get_queue_receiver(queue).peek_messages(1)) == ["x"]


@spec("the client's own choice for a custom endpoint is a secure WebSocket")
def test_custom_endpoint_without_transport_type(namespace: Any, queue: str) -> None:
    endpoint = endpoint_for("wss", namespace.connection_string, str(namespace.ca_file))
    assert endpoint.options.pop("transport_type") is TransportType.AmqpOverWebsocket
    bus = Bus("sync", endpoint)

    bus.send(queue, ServiceBusMessage("x"))

    assert texts(bus.take(queue, 1)) == ["x"]
    bus.close()
