"""A process with a paired client that keeps sessions in order: it sends numbered messages until it is told to stop, or hosts the drain.

Run as a program: ``python order_process.py name sessions pause log stop``. It writes a line for each send that has returned. With no
sessions it hosts the pumps (``enable_syphon``), and runs until it is killed.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import sys
import time
from datetime import timedelta
from pathlib import Path

from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

from pairbus import SendAvailabilityOptions
from pairbus.aio import PairedServiceBusClient

QUEUES = 4
SEND_SECONDS = 30
LAST_SECONDS = 240
"""How long fences may stand after the end, while a drain runs."""


def paired(*, hosts_syphon: bool) -> PairedServiceBusClient:
    return PairedServiceBusClient.from_connection_strings(
        os.environ["PAIRBUS_PRIMARY"],
        os.environ["PAIRBUS_SECONDARY"],
        options=SendAvailabilityOptions(
            order="session",
            backlog_queue_count=QUEUES,
            failover_interval=timedelta(seconds=1),
            ping_primary_interval=timedelta(seconds=1),
            enable_syphon=hosts_syphon,
        ),
        retry_total=0,
    )


async def main(name: str, sessions: int, pause: float, log: Path, stop: Path) -> int:
    """Send until ``stop`` exists, and then until no session is fenced, so that the last messages go direct. Returns the exit code."""
    logging.getLogger("azure").setLevel(logging.CRITICAL)
    async with paired(hosts_syphon=not sessions) as client:
        if not sessions:
            await asyncio.Event().wait()
        with log.open("a", buffering=1) as lines:
            sender = client.get_queue_sender("orders")
            ended = 0.0

            def is_over() -> bool:
                nonlocal ended
                if not ended and stop.exists():
                    ended = time.monotonic()
                if not ended:
                    return False
                return not client.statistics().sessions_fenced or time.monotonic() > ended + LAST_SECONDS

            async def send_all(session: str) -> None:
                number = 0
                is_last = False
                while not is_last:
                    is_last = is_over()
                    number += 1
                    message = ServiceBusMessage(f"{session} {number}", session_id=session)
                    try:
                        await sender.send_messages(message, timeout=SEND_SECONDS)
                    except ServiceBusError:
                        is_last = False
                    else:
                        lines.write(f"{session} {number}\n")
                    await asyncio.sleep(pause * random.uniform(0.5, 1.5))

            await asyncio.gather(*(send_all(f"{name}-{index}") for index in range(sessions)))
        if client.statistics().sessions_fenced:
            print(client.health(), *client.explain("orders"), client.statistics(), sep="\n", file=sys.stderr)
            return 1
        return 0


if __name__ == "__main__":
    sys.exit(
        asyncio.run(
            main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), Path(sys.argv[4]), Path(sys.argv[5]))
        )
    )
