"""A paired client in code that was written for the official one: annotations, isinstance, every public name.

``make types`` checks this file with ``mypy --strict``: the functions below are what a program of the SDK looks like.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceiver, ServiceBusSender
from azure.servicebus.aio import ServiceBusClient as AsyncClient
from azure.servicebus.aio import ServiceBusSender as AsyncSender

import pairbus
import pairbus.aio
from pairbus import (
    ClientClosedError,
    EntityReport,
    Event,
    Health,
    Kind,
    Listener,
    PairedSender,
    PairedServiceBusClient,
    SendAvailabilityOptions,
    Statistics,
    UsageError,
    WrongTypeError,
)
from tests.unit.drain.virtual_loop import VirtualLoop
from tests.unit.pairing.fake_sdk import Bench, text

KEY = "SharedAccessKeyName=n;SharedAccessKey=c2VjcmV0"
PRIMARY = f"Endpoint=sb://contoso.servicebus.windows.net/;{KEY}"
SECONDARY = f"Endpoint=sb://fabrikam.servicebus.windows.net/;{KEY}"

PAIRS = [
    (PairedServiceBusClient, ServiceBusClient),
    (PairedSender, ServiceBusSender),
    (pairbus.aio.PairedServiceBusClient, AsyncClient),
    (pairbus.aio.PairedSender, AsyncSender),
]


# --- a program of the SDK --------------------------------------------------------------------------


class Orders:
    """A typed class of a user: only the construction of its client changes."""

    def __init__(self, client: ServiceBusClient) -> None:
        self._sender: ServiceBusSender = client.get_queue_sender("orders", client_identifier="orders-1")
        self._receiver: ServiceBusReceiver = client.get_queue_receiver("orders", max_wait_time=5)

    def place(self, number: int) -> None:
        """Send one."""
        self._sender.send_messages(ServiceBusMessage(str(number)), timeout=10)


async def place_later(sender: AsyncSender) -> None:
    """Send one, asynchronously."""
    await sender.send_messages(ServiceBusMessage("1"))


def describe(client: PairedServiceBusClient, heard: list[Event]) -> dict[str, Any]:
    """What a health endpoint of a user returns: every name in it is public."""
    listener: Listener = heard.append
    sender: PairedSender = client.get_topic_sender("events")
    reports: dict[str, EntityReport] = client.health()
    counters: Statistics = client.statistics()
    since: datetime = reports["events"].since
    kinds: list[Kind] = [event.kind for event in client.events()]
    return {"since": since.isoformat(), "sends": counters.sends, "kinds": kinds, "of": (sender, listener)}


# --- tests -----------------------------------------------------------------------------------------


def make(**options: Any) -> PairedServiceBusClient:
    return PairedServiceBusClient.from_connection_strings(PRIMARY, SECONDARY, **options)


def test_a_typed_program_takes_a_paired_client() -> None:
    client = make()

    assert isinstance(client, ServiceBusClient)
    assert isinstance(client.get_queue_sender("orders"), ServiceBusSender)
    assert isinstance(Orders(client)._sender, PairedSender)
    assert describe(client, [])["sends"] == 0
    client.close()


async def test_a_typed_asynchronous_program_takes_a_paired_sender(loop: VirtualLoop) -> None:
    bench = Bench()
    client = bench.paired()
    sender = client.get_queue_sender("orders")
    assert isinstance(client, AsyncClient)
    assert isinstance(sender, AsyncSender)
    await place_later(sender)
    assert len(bench.primary.stored["orders"]) == 1
    await client.close()


@pytest.mark.parametrize(("ours", "official"), PAIRS, ids=lambda kind: f"{kind.__module__}.{kind.__name__}")
def test_no_method_of_the_sdk_is_inherited(ours: type, official: type) -> None:
    """An inherited one would run on an object whose official constructor was never run."""
    own = [name for kind in ours.__mro__[: ours.__mro__.index(official)] for name in vars(kind)]
    public = [name for name in dir(official) if not name.startswith("_")]
    special = [name for name in vars(official) if name.startswith("__") and callable(getattr(official, name))]

    assert [name for name in (*public, *special) if name not in own and name != "__init__"] == []


@pytest.mark.parametrize(("ours", "official"), PAIRS, ids=lambda kind: f"{kind.__module__}.{kind.__name__}")
def test_every_method_takes_the_arguments_that_the_sdk_names(ours: type, official: type) -> None:
    missing = []
    for name in dir(official):
        method = getattr(official, name)
        if name.startswith("_") or not callable(method) or name == "from_connection_string":
            continue
        taken = inspect.signature(getattr(ours, name)).parameters
        missing += [
            f"{name}({given})"
            for given in inspect.signature(method).parameters
            if given not in _names(taken, given)
        ]

    assert missing == []


def _names(taken: Any, given: str) -> list[str]:
    # What the SDK leaves open in ``**kwargs`` may have another name here.
    return [given] if given == "kwargs" else list(taken)


def test_a_paired_client_is_not_made_from_one_connection_string() -> None:
    with pytest.raises(UsageError, match="from_connection_strings"):
        PairedServiceBusClient.from_connection_string(PRIMARY)
    client = make()
    with pytest.raises(WrongTypeError, match="official client"):
        PairedServiceBusClient(client, ServiceBusClient.from_connection_string(SECONDARY))
    client.close()


def test_a_sender_for_another_entity_than_that_of_the_connection_string_is_refused() -> None:
    client = PairedServiceBusClient.from_connection_strings(f"{PRIMARY};EntityPath=orders", SECONDARY)
    client.get_queue_sender("orders")
    with pytest.raises(ValueError, match="EntityPath=orders"):
        client.get_queue_sender("invoices")
    client.close()


def test_names_and_states_are_shown_and_keys_are_not() -> None:
    client = make()
    sender = client.get_topic_sender("events")

    assert repr(client) == "<PairedServiceBusClient contoso with fabrikam.servicebus.windows.net: not paired>"
    assert repr(sender) == "<PairedSender of topic events in contoso: healthy>"
    sender.close()
    client.close()
    assert "closed" in repr(client)
    assert repr(sender).endswith("closed>")
    for shown in (repr(client), repr(sender), str(sender), repr(client.options)):
        assert "c2VjcmV0" not in shown


def test_a_closed_client_is_used_again_only_when_it_was_entered() -> None:
    client = make()
    client.close()
    for use in (
        client.get_queue_sender,
        client.get_topic_sender,
        client.get_queue_receiver,
        client.fail_over,
    ):
        with pytest.raises(ClientClosedError, match="enter it again"):
            use("orders")
    with pytest.raises(ValueError, match="closed"):
        client.get_queue_sender("orders")


def test_ledger_and_policy_are_arguments() -> None:
    client = make(ledger="notes", not_found="wait")

    assert (str(client.ledger), client.not_found) == ("notes", "wait")
    client.close()
    with pytest.raises(UsageError, match="not_found is 'drop'"):
        make(not_found="drop")


async def test_times_are_times_of_day(loop: VirtualLoop) -> None:
    bench = Bench()
    client = bench.paired()
    sender = client.get_queue_sender("orders")
    before = datetime.now(UTC)
    client.fail_over("orders")
    await sender.send_messages(text(1))
    report, event = client.health()["orders"], client.events()[-1]

    assert report.state is Health.FAILED_OVER
    for at in (report.since, report.next_ping, event.at):
        assert at is not None
        assert at.tzinfo is UTC
    assert abs((report.since - before).total_seconds()) < 60
    assert report.next_ping is not None
    assert report.next_ping > report.since
    assert report.failover_due is None
    await client.close()


@pytest.mark.parametrize("ask", [PairedServiceBusClient.explain, PairedServiceBusClient.mark_healthy])
def test_asking_about_an_unknown_entity_is_an_error_and_leaves_no_record(
    ask: Callable[[PairedServiceBusClient, str], object],
) -> None:
    client = make(options=SendAvailabilityOptions())
    client.get_queue_sender("orders")
    with pytest.raises(UsageError, match="'oders' is not known to this client; known are: orders"):
        ask(client, "oders")

    assert list(client.health()) == ["orders"]
    client.close()


def test_the_paired_client_logs_no_key(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        make().close()

    assert "c2VjcmV0" not in caplog.text
