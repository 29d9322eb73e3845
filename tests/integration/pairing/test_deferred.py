"""End to end with real brokers: a parked message that somebody deferred in its backlog queue comes home all the same."""

from __future__ import annotations

import pytest
from azure.servicebus import ServiceBusReceivedMessage

from pairbus.testing import Pair
from tests.integration.pairing.kit import by_hand, paired, take, text
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(300)
BACKLOG = "contoso/x-servicebus-transfer/0"


def parked_and_deferred(pair: Pair, deferred: int) -> None:
    """Park messages 1 to 4 of one session, and let somebody defer the first of them."""
    with (
        paired(pair, by_hand(backlog_queue_count=1, order="session")) as client,
        client.get_queue_sender("orders") as sender,
    ):
        client.fail_over("orders")
        for number in range(1, 5):
            sender.send_messages(text(number, session_id="s"))
    with pair.secondary.client() as official, official.get_queue_receiver(BACKLOG) as receiver:
        for message in take(receiver, deferred):
            receiver.defer_message(message)


def at_home(pair: Pair) -> list[ServiceBusReceivedMessage]:
    with pair.primary.client() as official, official.get_queue_receiver("orders") as receiver:
        return list(receiver.peek_messages(10))


@pytest.mark.promise("P41", "P14")
@pytest.mark.parametrize("deferred", [1, 4])
def test_deferred_messages_come_home_in_order_and_end_the_fence_of_their_session(
    pair: Pair, deferred: int
) -> None:
    parked_and_deferred(pair, deferred)
    with (
        paired(pair, by_hand(backlog_queue_count=1, order="session", enable_syphon=True)) as client,
        client.get_queue_sender("orders") as sender,
    ):
        # With the session fenced it is parked, too: a reason for the drain to look at what is missing before it.
        sender.send_messages(text(5, session_id="s"))
        wait_until(lambda: client.statistics().restored == 5, "all messages are delivered")
        wait_until(lambda: client.health()["orders"].fenced_sessions == 0, "the fence is lifted")
        sender.send_messages(text(6, session_id="s"))
        assert client.statistics().to_primary == 1
    assert [str(message) for message in at_home(pair)] == ["1", "2", "3", "4", "5", "6"]
    with pair.secondary.client() as official, official.get_queue_receiver(BACKLOG) as receiver:
        assert receiver.peek_messages(10) == []
