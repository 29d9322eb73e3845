"""Backlog queues that somebody changes after pairing, so that they do not keep what they accept, or cannot be drained."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from azure.servicebus.management import EntityStatus

from pairbus import PairedServiceBusClient
from pairbus.aio import PairedServiceBusClient as AsyncClient
from pairbus.pairing.client.backlog.queue_checks import LEAKS, REFUSES
from pairbus.pairing.events import Kind
from pairbus.testing import Namespace, Pair
from tests.integration.pairing.kit import by_hand, options, paired, text
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(300)
BACKLOG = "contoso/x-servicebus-transfer/"


def replace_by_topic(pair: Pair, queue: str) -> None:
    with pair.secondary.administration_client() as management:
        management.delete_queue(queue)
        management.create_topic(queue)


def change(pair: Pair, queue: str, **values: Any) -> None:
    with pair.secondary.administration_client() as management:
        properties = management.get_queue(queue)
        for name, value in values.items():
            setattr(properties, name, value)
        management.update_queue(properties)


def loud(client: Any, kind: Kind) -> list[str]:
    return [event.subject for event in client.events() if event.kind is kind and event.is_loud]


def unusable(client: Any) -> list[str]:
    return [event.text for event in client.events() if event.kind is Kind.QUEUE_UNUSABLE]


def refused(client: Any) -> list[str]:
    return [event.subject for event in client.events() if event.kind is Kind.SYPHON_REFUSED]


def queue_of(client: PairedServiceBusClient) -> str:
    queue = client.health()["orders"].backlog_queue
    assert queue
    return str(queue)


def in_queue(namespace: Namespace, queue: str) -> list[str]:
    with namespace.client() as official, official.get_queue_receiver(queue) as receiver:
        return [str(message) for message in receiver.peek_messages(50)]


def other_of(queue: str) -> str:
    return next(f"{BACKLOG}{index}" for index in range(2) if f"{BACKLOG}{index}" != queue)


@pytest.mark.promise("P4", "P33")
def test_a_topic_in_place_of_a_backlog_queue_swallows_no_message(pair: Pair) -> None:
    with paired(pair, by_hand()) as client, client.get_queue_sender("orders") as sender:
        client.fail_over("orders")
        sender.send_messages(text(1))
        queue = queue_of(client)
        replace_by_topic(pair, queue)

        sender.send_messages(text(2))
        with client.get_queue_sender("orders") as another:
            another.send_messages([text(3), text(4)])

        assert sorted(in_queue(pair.secondary, other_of(queue))) == ["2", "3", "4"]
        assert loud(client, Kind.QUEUE_UNUSABLE) == [queue]
        assert unusable(client)[0].startswith(LEAKS)
        assert client._state.usable_queues == [other_of(queue)]


@pytest.mark.promise("P33")
def test_a_queue_that_requires_sessions_now_is_not_said_to_accept_messages(pair: Pair) -> None:
    with paired(pair, by_hand(enable_syphon=True)) as client:
        client.fail_over("orders")
        with pair.secondary.administration_client() as management:
            management.delete_queue(f"{BACKLOG}1")
            management.create_queue(f"{BACKLOG}1", requires_session=True)

        wait_until(lambda: loud(client, Kind.QUEUE_UNUSABLE) == [f"{BACKLOG}1"], "the drain finds it")

        assert unusable(client)[0].startswith(REFUSES)
        assert "requires sessions to create a non-sessionful" in unusable(client)[0]


@pytest.mark.promise("P4", "P33")
def test_coroutines_that_share_a_sender_lose_nothing_to_a_topic(pair: Pair) -> None:
    async def work() -> None:
        async with AsyncClient.from_connection_strings(
            pair.primary.connection_string, pair.secondary.connection_string, options=by_hand()
        ) as client:
            client.fail_over("orders")
            async with client.get_queue_sender("orders") as sender:
                await asyncio.gather(*(sender.send_messages(text(number)) for number in range(8)))
                queue = str(client.health()["orders"].backlog_queue)
                await asyncio.to_thread(replace_by_topic, pair, queue)
                await asyncio.gather(*(sender.send_messages(text(number)) for number in range(8, 24)))
            assert sorted(map(int, in_queue(pair.secondary, other_of(queue)))) == list(range(8, 24))
            assert loud(client, Kind.QUEUE_UNUSABLE) == [queue]

    asyncio.run(work())


@pytest.mark.promise("P33")
def test_a_queue_that_forwards_leaves_the_rotation_and_comes_back_when_it_does_not() -> None:
    with (
        Pair(Namespace("contoso", queues=["orders"], process=True), Namespace("fabrikam")) as pair,
        paired(pair, options()) as client,
        client.get_queue_sender("orders") as sender,
    ):
        pair.primary.kill()
        client.fail_over("orders")
        sender.send_messages(text("first"))
        queue = queue_of(client)
        pair.secondary.create_queue("elsewhere")
        change(pair, queue, forward_to="elsewhere")

        def is_told() -> bool:
            sender.send_messages(text("more"))
            return loud(client, Kind.QUEUE_UNUSABLE) == [queue]

        wait_until(is_told, "the client finds that the queue forwards", pause=0.2)
        leaked = len(in_queue(pair.secondary, "elsewhere"))
        before = len(in_queue(pair.secondary, other_of(queue)))
        for _ in range(5):
            sender.send_messages(text("after"))
        assert len(in_queue(pair.secondary, other_of(queue))) == before + 5
        assert len(in_queue(pair.secondary, "elsewhere")) == leaked

        change(pair, queue, forward_to=None)

        def is_back() -> bool:
            sender.send_messages(text("again"))
            return queue in client._state.usable_queues

        wait_until(is_back, "the queue is used again", pause=0.2)


@pytest.mark.parametrize("values", [{"forward_to": "elsewhere"}, {"status": EntityStatus.RECEIVE_DISABLED}])
def test_a_drain_says_that_nothing_can_be_received_from_a_queue(pair: Pair, values: dict[str, Any]) -> None:
    pair.secondary.create_queue("elsewhere")
    with paired(pair, by_hand(enable_syphon=True)) as client:
        change(pair, f"{BACKLOG}1", **values)
        wait_until(lambda: refused(client) == [f"{BACKLOG}1"], "the drain says it")
        if "forward_to" in values:
            wait_until(lambda: loud(client, Kind.QUEUE_UNUSABLE) == [f"{BACKLOG}1"])
            assert client._state.usable_queues == [f"{BACKLOG}0"]


@pytest.mark.promise("P29")
def test_a_queue_that_forwards_at_pairing_is_told_by_client_and_drain(pair: Pair) -> None:
    pair.secondary.create_queue("elsewhere")
    pair.secondary.create_queue(f"{BACKLOG}1", forward_to="elsewhere")
    with paired(pair, by_hand(enable_syphon=True)) as client:
        assert loud(client, Kind.QUEUE_UNUSABLE) == [f"{BACKLOG}1"]
        wait_until(lambda: refused(client) == [f"{BACKLOG}1"], "the drain says it")
