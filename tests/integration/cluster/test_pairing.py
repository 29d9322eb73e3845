"""A pair of clusters: a machine of the primary dies, then all of it with its database, and everything comes back."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

from pairbus import PairedServiceBusClient, SendAvailabilityOptions
from pairbus.sdk import client_settings
from tests.integration.cluster.kit import QUEUE, Cluster
from tests.postgres_kit import PostgresServer, own_server
from tests.waiting import wait_until

SEND_SECONDS = 30.0
FAILOVER_SECONDS = 8
"""Longer than a takeover: the loss of one machine is no outage of the namespace."""


@pytest.fixture
def clusters(tmp_path: Path) -> Iterator[tuple[Cluster, Cluster, PostgresServer]]:
    """The primary, the secondary, and the primary's database."""
    with own_server() as first, own_server() as second, contextlib.ExitStack() as stack:
        primary = Cluster(tmp_path / "primary", first.url(), "p1", "p2", namespace="contoso")
        secondary = Cluster(tmp_path / "secondary", second.url(), "s1", "s2", namespace="fabrikam")
        for cluster in (primary, secondary):
            stack.callback(cluster.kill)
            cluster.begin()
        for cluster in (primary, secondary):
            cluster.start()
        yield primary, secondary, first


@pytest.mark.promise("S3", "P1", "P26", "P41")
@pytest.mark.long
def test_a_pair_survives_a_machine_of_its_primary_and_then_all_of_it(
    clusters: tuple[Cluster, Cluster, PostgresServer],
) -> None:
    primary, secondary, database = clusters
    owner, other = primary.owner_and_other()
    accepted: list[str] = []
    unknown: set[str] = set()
    options = SendAvailabilityOptions(
        backlog_queue_count=1,
        failover_interval=timedelta(seconds=FAILOVER_SECONDS),
        ping_primary_interval=timedelta(seconds=1),
        enable_syphon=True,
    )
    with PairedServiceBusClient.from_connection_strings(
        [owner.connection_string, other.connection_string],
        [node.connection_string for node in secondary.nodes],
        options=options,
        retry_total=0,
    ) as client:

        def send(first: int, count: int) -> None:
            with client.get_queue_sender(QUEUE) as sender:
                for number in range(first, first + count):
                    try:
                        sender.send_messages(ServiceBusMessage(str(number)), timeout=SEND_SECONDS)
                    except ServiceBusError as error:
                        print(f"{number}: {error}")
                        unknown.add(str(number))
                    else:
                        accepted.append(str(number))

        send(0, 10)
        assert client_settings.addresses_of(client.primary)[0] in owner.connection_string
        owner.kill()  # the node that the client is connected to
        killed = time.monotonic()
        send(10, 1)
        print(
            f"a machine of the primary died: the next send was accepted after {time.monotonic() - killed:.2f} s"
        )
        send(11, 19)
        parked = client.statistics().to_backlog
        assert other.role == "owner"
        assert parked == 0, "the loss of one machine is not an outage"

        other.kill()
        database.kill()
        send(30, 10)
        parked = client.statistics().to_backlog
        assert parked >= 8
        print(f"all of the primary died: {parked} messages were parked")

        database.start()
        primary.start()
        wait_until(lambda: client.statistics().restored >= parked, "the backlog is delivered to the primary")
        send(40, 5)
    found = received(primary.await_owner().connection_string, len(accepted))
    assert set(accepted) <= set(found)
    assert set(found) <= set(accepted) | unknown
    assert len(accepted) >= 40


def received(connection_string: str, count: int) -> Counter[str]:
    """Receive and complete everything in the queue: at least so many messages."""
    found: Counter[str] = Counter()
    with (
        ServiceBusClient.from_connection_string(connection_string) as client,
        client.get_queue_receiver(QUEUE) as receiver,
    ):
        until = time.monotonic() + 90
        while time.monotonic() < until:
            messages = receiver.receive_messages(100, max_wait_time=20 if len(found) < count else 1)
            if not messages and len(found) >= count:
                break
            for message in messages:
                found[str(message)] += 1
                receiver.complete_message(message)
    return found
