"""A relay with few places, and strangers that take all of them and never close."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusSender

from pairbus.amqp.transport.framing import SASL_HEADER
from tests.integration.cluster.kit import QUEUE, Cluster, NodeProcess
from tests.postgres_kit import shared_server
from tests.waiting import wait_until

pytestmark = pytest.mark.long
DESCRIPTORS = 600
"""So that a node has 150 places."""
STRANGERS = 300


@contextlib.contextmanager
def sending(node: NodeProcess) -> Iterator[ServiceBusSender]:
    """A client with the key that does not connect again by itself."""
    with (
        ServiceBusClient.from_connection_string(
            node.connection_string, retry_total=0, socket_timeout=20
        ) as client,
        client.get_queue_sender(QUEUE) as sender,
    ):
        send(sender)
        yield sender


def send(sender: ServiceBusSender) -> None:
    sender.send_messages(ServiceBusMessage("with the key"), timeout=20)


def test_strangers_that_never_close_keep_no_client_with_a_key_out(tmp_path: Path) -> None:
    cluster = Cluster(
        tmp_path / "nodes", shared_server().url(), "a", "b", namespace="crowded", descriptors=DESCRIPTORS
    )
    with contextlib.ExitStack() as stack:
        stack.callback(cluster.kill)
        cluster.start()
        _, relay = cluster.owner_and_other()
        early = stack.enter_context(sending(relay))
        for _ in range(STRANGERS):
            stranger = stack.enter_context(socket.create_connection(("127.0.0.1", relay.port), timeout=20))
            with contextlib.suppress(OSError):  # it may be refused
                stranger.sendall(SASL_HEADER)
        late = stack.enter_context(sending(relay))
        assert relay.metric('pairbus_cluster_refused_connections_total{reason="made_room"}') > 0
        told = [event for event in relay.events() if event.get("event") == "cluster.relay_full"]
        assert len(told) in (1, 2), "at most once a minute"
        # The strangers still have their sockets open; the relay has closed its own.
        wait_until(
            lambda: relay.metric("pairbus_cluster_relayed_connections") == 2,
            "only the clients are left",
            pause=0.5,
        )
        for sender in (early, late):
            send(sender)
