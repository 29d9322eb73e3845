"""Whose backlog is it? Two primaries with one name, topics and unsuitable queues under backlog names, chains of pairs."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from azure.servicebus import ServiceBusSubQueue

from pairbus import AlreadyPairedError, NoBacklogQueuesError, PairedServiceBusClient, SameNamespaceError
from pairbus.errors import OtherPrimaryError
from pairbus.pairing.events import Event, Kind
from pairbus.sdk.connection_string import parse_connection_string
from pairbus.testing import Namespace, Pair
from tests.integration.pairing.kit import bodies, by_hand, options, paired, text
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(300)
BACKLOG = "contoso/x-servicebus-transfer/{}"


def unusable(events: list[Event]) -> list[tuple[str, bool]]:
    return [(event.subject, event.is_loud) for event in events if event.kind is Kind.QUEUE_UNUSABLE]


def test_a_second_primary_of_the_same_name_cannot_pair_with_the_secondary_of_the_first(pair: Pair) -> None:
    with paired(pair, by_hand()):
        pass
    with Namespace("contoso", queues=["orders"]) as twin:
        address = parse_connection_string(pair.primary.connection_string, "primary").host
        client = PairedServiceBusClient.from_connection_strings(
            twin.connection_string, pair.secondary.connection_string, options=by_hand()
        )
        with pytest.raises(OtherPrimaryError, match=address.rpartition(":")[2]):
            client.pair()
        client.close()
        moved = PairedServiceBusClient.from_connection_strings(
            twin.connection_string,
            pair.secondary.connection_string,
            options=by_hand(),
            primary_aliases=[address],
        )
        moved.pair()
        assert moved.is_paired
        moved.close()


def test_a_message_parked_for_another_primary_of_the_same_name_is_dead_lettered_not_delivered(
    pair: Pair,
) -> None:
    # The queues exist already and say nothing of their owner, as those of the retired SDK.
    for index in range(2):
        pair.secondary.create_queue(BACKLOG.format(index))
    with paired(pair, by_hand()) as first, first.get_queue_sender("orders") as sender:
        first.fail_over("orders")
        sender.send_messages(text(1))
        assert first.statistics().to_backlog == 1
    with Namespace("contoso", queues=["orders"]) as twin:
        second = PairedServiceBusClient.from_connection_strings(
            twin.connection_string, pair.secondary.connection_string, options=by_hand(enable_syphon=True)
        )
        with second, second.get_queue_sender("orders") as sender:
            wait_until(lambda: second.statistics().set_aside == 1, "the stranger's message is dead-lettered")
            second.fail_over("orders")
            sender.send_messages(text(2))
            second.mark_healthy("orders")
            wait_until(lambda: second.statistics().restored == 1, "its own message is delivered")
        assert bodies(twin, "orders", 1) == {"2": 1}
    reasons = []
    with pair.secondary.client() as official:
        for index in range(2):
            with official.get_queue_receiver(
                BACKLOG.format(index), sub_queue=ServiceBusSubQueue.DEAD_LETTER
            ) as reader:
                reasons += [message.dead_letter_reason for message in reader.peek_messages(10)]
    assert reasons == ["OtherPrimary"]


def test_a_topic_with_the_name_of_a_backlog_queue_is_not_used(pair: Pair) -> None:
    with pair.secondary.administration_client() as management:
        management.create_topic(BACKLOG.format(1))
    with paired(pair, by_hand(backlog_queue_count=3)) as client, client.get_queue_sender("orders") as sender:
        assert client.backlog_queue_count == 2
        assert unusable(client.events()) == [(BACKLOG.format(1), True)]
        told = [event.text for event in client.events() if event.kind is Kind.QUEUE_UNUSABLE]
        assert f"the topic '{BACKLOG.format(1)}'" in told[0]
        assert "delete that topic and pair again" in told[0]
        client.fail_over("orders")
        sender.send_messages([text(number) for number in range(4)])
    assert client._runtime.limits.watcher is None, "no thread outlives the client"  # type: ignore[attr-defined]
    found = 0
    with pair.secondary.client() as official:
        for index in (0, 2):
            with official.get_queue_receiver(BACKLOG.format(index)) as reader:
                found += len(reader.peek_messages(10))
    assert found == 4


def test_without_any_real_queue_pairing_is_refused(pair: Pair) -> None:
    with pair.secondary.administration_client() as management:
        management.create_topic(BACKLOG.format(0))
    pair.secondary.create_queue(BACKLOG.format(1), requires_duplicate_detection=True)
    client = paired(pair, by_hand(backlog_queue_count=2))
    with pytest.raises(NoBacklogQueuesError):
        client.pair()
    client.close()


def test_a_queue_that_detects_duplicates_is_drained_and_not_used(pair: Pair) -> None:
    pair.secondary.create_queue(BACKLOG.format(0), requires_duplicate_detection=True)
    with (
        paired(pair, by_hand(backlog_queue_count=2, enable_syphon=True)) as client,
        client.get_queue_sender("orders") as sender,
    ):
        assert client.backlog_queue_count == 1
        assert unusable(client.events()) == [(BACKLOG.format(0), True)]
        client.fail_over("orders")
        for _ in range(2):
            sender.send_messages(text(1, message_id="same"))
        assert client.statistics().to_backlog == 2
        client.mark_healthy("orders")
        wait_until(lambda: client.statistics().restored == 2, "both messages are delivered")
    assert bodies(pair.primary, "orders", 2) == {"1": 2}


def test_a_chain_of_pairs_is_refused_at_either_end(pair: Pair) -> None:
    first, second = pair.primary.connection_string, pair.secondary.connection_string
    with Namespace("third") as third, paired(pair, options()):
        onward = PairedServiceBusClient.from_connection_strings(second, third.connection_string)
        with pytest.raises(AlreadyPairedError, match="secondary of another"):
            onward.pair()
        backward = PairedServiceBusClient.from_connection_strings(third.connection_string, first)
        with pytest.raises(AlreadyPairedError, match="primary of another"):
            backward.pair()
        onward.close()
        backward.close()


def test_all_spellings_of_this_machine_are_one_host(pair: Pair) -> None:
    first = pair.primary.connection_string
    for host in ("localhost", "[::1]"):
        with pytest.raises(SameNamespaceError):
            PairedServiceBusClient.from_connection_strings(first, first.replace("127.0.0.1", host))


def test_a_backlog_queue_that_is_deleted_during_an_outage_is_created_again(pair: Pair) -> None:
    with (
        paired(pair, by_hand(backlog_queue_count=1)) as client,
        client.get_queue_sender("orders") as sender,
        pair.secondary.administration_client() as management,
    ):
        client.fail_over("orders")
        sender.send_messages(text(1))
        management.delete_queue(BACKLOG.format(0))
        with ThreadPoolExecutor(4) as threads:
            sends = [threads.submit(sender.send_messages, text(number), timeout=60) for number in range(4)]
            for send in sends:
                send.result()
        assert client.backlog_queue_count == 1
        created = [event.subject for event in client.events() if event.kind is Kind.QUEUE_CREATED]
        assert created == [BACKLOG.format(0)] * 2
        again = management.get_queue(BACKLOG.format(0))
        assert (again.max_delivery_count, again.max_size_in_megabytes) == (2147483647, 5120)
    with pair.secondary.client() as official, official.get_queue_receiver(BACKLOG.format(0)) as reader:
        assert len(reader.peek_messages(10)) == 4
