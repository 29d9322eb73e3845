"""The types of the public interface, as a program that is checked with mypy meets them.

`make types` checks the ``assert_type`` lines: they fail when a type of the interface changes. The functions below take what they need as
arguments and are never called. The tests at the end compare the lists of names.
"""

from __future__ import annotations

import importlib
from datetime import datetime, timedelta
from pathlib import Path
from typing import Literal, assert_type

import pytest
from azure.servicebus import (
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusMessageBatch,
    ServiceBusReceiver,
    ServiceBusSender,
)
from azure.servicebus.aio import ServiceBusClient as AsyncServiceBusClient
from azure.servicebus.aio import ServiceBusReceiver as AsyncServiceBusReceiver
from azure.servicebus.aio import ServiceBusSender as AsyncServiceBusSender
from azure.servicebus.management import ServiceBusAdministrationClient

import pairbus
from pairbus import aio, errors, testing


def paired_client(client: pairbus.PairedServiceBusClient) -> None:
    # It can be passed where a program expects the official client.
    official: ServiceBusClient = client
    del official
    made = pairbus.PairedServiceBusClient.from_connection_strings(
        "primary",
        "secondary",
        options=pairbus.SendAvailabilityOptions(failover_interval=timedelta(seconds=30)),
    )
    assert_type(made, pairbus.PairedServiceBusClient)
    assert_type(client.get_queue_sender("orders"), pairbus.PairedSender)
    assert_type(client.get_topic_sender("events"), pairbus.PairedSender)
    assert_type(client.is_paired, bool)
    assert_type(client.health(), dict[str, pairbus.EntityReport])
    assert_type(client.events(), list[pairbus.Event])
    assert_type(client.explain("orders"), list[str])
    assert_type(client.headroom(ServiceBusMessage("body")), int)
    assert_type(client.statistics(), pairbus.Statistics)
    with client as entered:
        assert_type(entered, pairbus.PairedServiceBusClient)


def misspelt_names(
    client: pairbus.PairedServiceBusClient, asynchronous_client: aio.PairedServiceBusClient
) -> None:
    # `warn_unused_ignores` makes these errors when a type checker takes the names for attributes.
    client.heatlh()  # type: ignore[attr-defined]
    client.get_queue_sendr("orders")  # type: ignore[attr-defined]
    asynchronous_client.heatlh()  # type: ignore[attr-defined]
    # Everything of the official client is there.
    assert_type(client.fully_qualified_namespace, str)
    assert_type(client.get_queue_receiver("orders"), ServiceBusReceiver)
    assert_type(asynchronous_client.get_subscription_receiver("events", "audit"), AsyncServiceBusReceiver)


def paired_sender(sender: pairbus.PairedSender, when: datetime) -> None:
    official: ServiceBusSender = sender
    del official
    message = ServiceBusMessage("body")
    sender.send_messages(message)
    sender.send_messages([message], timeout=5)
    assert_type(sender.create_message_batch(), ServiceBusMessageBatch)
    assert_type(sender.schedule_messages(message, when), list[int])
    with sender as entered:
        assert_type(entered, pairbus.PairedSender)


async def asynchronous(client: aio.PairedServiceBusClient, sender: aio.PairedSender, when: datetime) -> None:
    official: AsyncServiceBusClient = client
    official_sender: AsyncServiceBusSender = sender
    del official, official_sender
    assert_type(client.get_queue_sender("orders"), aio.PairedSender)
    assert_type(await sender.create_message_batch(), ServiceBusMessageBatch)
    assert_type(await sender.schedule_messages(ServiceBusMessage("body"), when), list[int])
    assert_type(client.health(), dict[str, aio.EntityReport])
    async with client as entered:
        assert_type(entered, aio.PairedServiceBusClient)


def options(error: Exception) -> None:
    def counts(failure: BaseException) -> bool:
        return isinstance(failure, OSError)

    chosen = pairbus.SendAvailabilityOptions(trigger=counts, while_suspect="raise", time_to_live="deduct")
    assert_type(chosen.backlog_queue_count, int)
    assert_type(chosen.failover_interval, timedelta)
    assert_type(chosen.enable_syphon, bool)
    assert_type(pairbus.outcome_of(error), Literal["fail", "unknown"])
    if isinstance(error, errors.Refusal):
        assert_type(error.condition, str)
        assert_type(error.retryable, bool)


def reports(report: pairbus.EntityReport, event: pairbus.Event) -> None:
    assert_type(report.state, pairbus.Health)
    assert_type(report.parked, int)
    assert_type(event.kind, pairbus.Kind)


def kit(namespace: testing.Namespace, pair: testing.Pair, clock: testing.VirtualClock) -> None:
    assert_type(namespace.connection_string, str)
    assert_type(namespace.client(), ServiceBusClient)
    assert_type(namespace.aio_client(), AsyncServiceBusClient)
    assert_type(namespace.administration_client(), ServiceBusAdministrationClient)
    assert_type(namespace.data, Path)
    assert_type(namespace.faults, testing.FaultSwitchboard)
    assert_type(pair.primary, testing.Namespace)
    assert_type(clock.advance(1_000), int)
    with testing.Namespace(
        "contoso", queues=["orders", testing.Queue("baskets", requires_session=True)]
    ) as started:
        assert_type(started, testing.Namespace)


def test_the_asynchronous_module_has_the_same_names() -> None:
    assert sorted(aio.__all__) == sorted(pairbus.__all__)


@pytest.mark.parametrize(
    "module", ["pairbus", "pairbus.aio", "pairbus.errors", "pairbus.testing", "pairbus.spark"]
)
def test_every_public_name_is_there(module: str) -> None:
    loaded = importlib.import_module(module)

    names = getattr(loaded, "__all__", [])

    assert [name for name in names if not hasattr(loaded, name)] == []
