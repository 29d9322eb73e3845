"""The machine's clock is two hours ahead for a moment. The official client, whose own clock is right, goes on afterwards."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient

from pairbus.server.assemble import assemble
from pairbus.server.clock import BrokerClock
from pairbus.server.config.declarations import read_declarations
from pairbus.server.config.options import Options
from pairbus.server.server import Server

pytestmark = pytest.mark.timeout(120)
HOURS_2_NS = 2 * 3_600 * 1_000_000_000


async def test_official_clients_are_not_locked_out_by_a_clock_that_was_ahead_for_a_moment(
    tmp_path: Path,
) -> None:
    ahead_ns = 0
    clock = BrokerClock(lambda: time.time_ns() + ahead_ns)
    declared = read_declarations(
        '{"UserConfig": {"Namespaces": [{"Name": "contoso", "Queues": [{"Name": "orders"}]}]}}',
        lambda _form, _name: "",
    )
    options = Options(
        namespace="contoso", data=tmp_path, amqp=("127.0.0.1", 0), http=None, tls=False, declarations=declared
    )
    server = Server(options, assemble=assemble, clock=clock)
    ready = await server.start()
    try:
        ahead_ns = HOURS_2_NS
        clock()
        ahead_ns = 0
        async with (
            ServiceBusClient.from_connection_string(ready.connection_string, retry_total=0) as client,
            client.get_queue_sender("orders") as sender,
            client.get_queue_receiver("orders", max_wait_time=60) as receiver,
        ):
            await sender.send_messages(ServiceBusMessage("after the slip"))
            (received,) = await receiver.receive_messages(1)
            await receiver.complete_message(received)
            assert str(received) == "after the slip"
    finally:
        await server.stop()
