"""A process that sends numbered messages of several sessions in order, through a paired client, until it is told to stop.

Run as a program: ``python order_process.py name sessions log stop``. It writes a line for each send that has returned.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from datetime import timedelta
from pathlib import Path

from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

from pairbus import SendAvailabilityOptions
from pairbus.aio import PairedServiceBusClient

PAUSE_SECONDS = 0.2
SEND_SECONDS = 30


async def main(name: str, sessions: int, log: Path, stop: Path) -> None:
    """Send until ``stop`` exists, and then until no session is fenced, so that the last messages go direct."""
    logging.getLogger("azure").setLevel(logging.CRITICAL)
    client = PairedServiceBusClient.from_connection_strings(
        os.environ["PAIRBUS_PRIMARY"],
        os.environ["PAIRBUS_SECONDARY"],
        options=SendAvailabilityOptions(
            order="session",
            failover_interval=timedelta(seconds=1),
            ping_primary_interval=timedelta(seconds=1),
        ),
        retry_total=0,
    )
    is_over = stop.exists
    async with client:
        with log.open("a", buffering=1) as lines:
            sender = client.get_queue_sender("orders")

            async def send_all(session: str) -> None:
                number = 0
                while not is_over() or client.statistics().sessions_fenced:
                    number += 1
                    message = ServiceBusMessage(f"{session} {number}", session_id=session)
                    try:
                        await sender.send_messages(message, timeout=SEND_SECONDS)
                    except ServiceBusError:
                        continue
                    lines.write(f"{session} {number}\n")
                    await asyncio.sleep(PAUSE_SECONDS)

            await asyncio.gather(*(send_all(f"{name}-{index}") for index in range(sessions)))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), Path(sys.argv[4])))
