"""A namespace with several addresses, of which some do not serve: clients find the one that does, and nothing is parked."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from pairbus import PairedServiceBusClient, SendAvailabilityOptions
from pairbus.aio import PairedServiceBusClient as AioPairedClient
from pairbus.cli.kit.namespace import administration_client
from pairbus.drain.backlog import Backlog
from pairbus.sdk.addresses import connect
from pairbus.sdk.links.browsing import Browser, open_without_link
from pairbus.testing import Namespace

OPTIONS = SendAvailabilityOptions(
    backlog_queue_count=1,
    failover_interval=timedelta(seconds=8),
    ping_primary_interval=timedelta(seconds=30),
    enable_syphon=False,
)


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[Namespace, Namespace]]:
    with Namespace("contoso", queues=["orders"]) as primary, Namespace("fabrikam") as secondary:
        yield primary, secondary


@pytest.fixture(params=["refuses", "is silent"])
def other(request: pytest.FixtureRequest) -> Iterator[str]:
    """An address at which nobody serves."""
    with closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        if request.param == "is silent":
            listener.listen()  # connections are made, and nothing is ever answered
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture
def refusing() -> Iterator[str]:
    with closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def name_of(address: str) -> str:
    """A name of the primary, so that tests do not find each other's backlog queues."""
    return f"contoso-{address.rpartition(':')[2]}"


def listed(first: str, namespace: Namespace) -> str:
    """The namespace's connection string with another address before its own."""
    return namespace.connection_string.replace("Endpoint=sb://", f"Endpoint=sb://{first},")


@pytest.mark.promise("P1")
def test_sends_and_receives_go_on_at_the_next_address(
    pair: tuple[Namespace, Namespace], other: str, refusing: str
) -> None:
    primary, secondary = pair
    with PairedServiceBusClient.from_connection_strings(
        listed(other, primary), listed(refusing, secondary), options=OPTIONS, primary_namespace=name_of(other)
    ) as client:
        with client.get_queue_sender("orders") as sender:
            sender.send_messages(ServiceBusMessage(b"one"), timeout=30)
        with client.get_queue_receiver("orders", max_wait_time=20) as receiver:
            for message in receiver:
                receiver.complete_message(message)
                break
        statistics = client.statistics()
    assert (statistics.to_primary, statistics.to_backlog) == (1, 0)


@pytest.mark.promise("P1")
def test_the_asynchronous_client_goes_on_at_the_next_address(
    pair: tuple[Namespace, Namespace], other: str, refusing: str
) -> None:
    primary, secondary = pair

    async def run() -> tuple[int, int]:
        async with AioPairedClient.from_connection_strings(
            listed(other, primary),
            listed(refusing, secondary),
            options=OPTIONS,
            primary_namespace=name_of(other),
        ) as client:
            async with client.get_queue_sender("orders") as sender:
                await sender.send_messages(ServiceBusMessage(b"one"), timeout=30)
            async with client.get_queue_receiver("orders", max_wait_time=20) as receiver:
                async for message in receiver:
                    await receiver.complete_message(message)
                    break
            statistics = client.statistics()
            return statistics.to_primary, statistics.to_backlog

    assert asyncio.run(run()) == (1, 0)


def test_commands_take_a_connection_string_that_lists_addresses(
    pair: tuple[Namespace, Namespace], refusing: str
) -> None:
    primary, secondary = pair
    assert asyncio.run(Backlog(listed(refusing, primary), secondary.connection_string, None).queues()) == []
    backlog = Backlog(primary.connection_string, listed(refusing, secondary), None)
    assert asyncio.run(backlog.queues()) == []
    text = listed("127.0.0.1:1", primary).replace("sb://", f"sb://{refusing},")
    with connect(ServiceBusClient, text, retry_total=0) as client:
        browser = Browser(open_without_link(client.get_queue_receiver("orders")))
        assert browser.first() is None, "the queue is empty, and was found at the third address"
        browser.close()
    with administration_client(listed(refusing, primary), None, {}) as management:
        assert management.get_queue("orders").name == "orders"
