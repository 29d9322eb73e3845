"""A namespace whose part of the database is used up: sends are refused, everything else goes on, and sends come back."""

from __future__ import annotations

from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceiveMode
from azure.servicebus.exceptions import ServiceBusQuotaExceededError

from tests.integration.cluster.kit import QUEUE, Cluster
from tests.postgres_kit import shared_server
from tests.waiting import wait_until

MESSAGE_BYTES = 250_000
QUOTA_MB = 64


@pytest.mark.promise("B12")
@pytest.mark.long
def test_sends_are_refused_at_the_quota_and_accepted_again_when_there_is_room(tmp_path: Path) -> None:
    cluster = Cluster(
        tmp_path / "cluster",
        shared_server().url(),
        "a",
        namespace="quota",
        options=("--store-max-mb", str(QUOTA_MB)),
    )
    try:
        cluster.start()
        node = cluster.await_owner()
        with ServiceBusClient.from_connection_string(node.connection_string, retry_total=0) as client:
            sent = 0
            with client.get_queue_sender(QUEUE) as sender, pytest.raises(ServiceBusQuotaExceededError):
                while sent * MESSAGE_BYTES < QUOTA_MB << 20:
                    sender.send_messages(ServiceBusMessage(bytes(MESSAGE_BYTES)))
                    sent += 1
            assert sent * MESSAGE_BYTES >= (QUOTA_MB << 20) // 3, "refused long before the quota"
            received = 0
            with client.get_queue_receiver(
                QUEUE, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE
            ) as receiver:
                while received < sent:
                    taken = receiver.receive_messages(50, max_wait_time=30)
                    assert taken, f"{received} of {sent}"
                    received += len(taken)
            assert received == sent

            def accepts() -> bool:
                try:
                    with client.get_queue_sender(QUEUE) as sender:
                        sender.send_messages(ServiceBusMessage("there is room"))
                except ServiceBusQuotaExceededError:
                    return False
                return True

            wait_until(accepts, "sends are accepted again")
    finally:
        cluster.kill()
