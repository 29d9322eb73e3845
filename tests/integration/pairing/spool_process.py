"""A program that sends through a pair with a spool and can be killed: it writes what returned, and nothing else."""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path

from azure.servicebus import ServiceBusMessage

from pairbus import PairedServiceBusClient, SendAvailabilityOptions

BACKLOG_QUEUES = 2


def is_drained(client: PairedServiceBusClient) -> bool:
    """Whether the backlog is empty, of messages from programs that were killed too."""
    for index in range(BACKLOG_QUEUES):
        with client.secondary.get_queue_receiver(f"primary/x-servicebus-transfer/{index}") as receiver:
            if receiver.peek_messages(max_message_count=1):
                return False
    return True


def main(root: str, name: str, threads: int, rate: float) -> None:
    """Send until ``root/stop`` exists, and wait until the spool is empty; each send that returns is a line of a ledger."""
    logging.disable(logging.CRITICAL)
    place = Path(root)
    stop = place / "stop"
    ledger = os.open(place / f"sent-{name}.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    client = PairedServiceBusClient.from_connection_strings(
        os.environ["PAIRBUS_PRIMARY"],
        os.environ["PAIRBUS_SECONDARY"],
        options=SendAvailabilityOptions(
            backlog_queue_count=BACKLOG_QUEUES,
            failover_interval=timedelta(seconds=0.5),
            ping_primary_interval=timedelta(seconds=1),
            enable_syphon=True,
            spool=place / "spool",
        ),
        ledger=place / "state",
        retry_total=0,
    )
    errors: list[str] = []

    def send(thread: int) -> None:
        with client.get_queue_sender("orders") as sender:
            number = 0
            while not stop.exists():
                message_id = f"{name}-{thread}-{number}"
                body = f"body of {message_id}".encode()
                begun = time.monotonic()
                try:
                    sender.send_messages(ServiceBusMessage(body, message_id=message_id), timeout=30)
                except Exception as error:  # noqa: BLE001 - told, and the test looks
                    errors.append(f"{message_id}: {error!r}")
                else:
                    row = {
                        "message_id": message_id,
                        "entity": "orders",
                        "time": datetime.now(UTC).isoformat(),
                        "sha256": sha256(body).hexdigest(),
                    }
                    os.write(ledger, json.dumps(row).encode() + b"\n")
                number += 1
                time.sleep(max(0.0, threads / rate - (time.monotonic() - begun)))

    with client:
        workers = [threading.Thread(target=send, args=(thread,)) for thread in range(threads)]
        for worker in workers:
            worker.start()
        (place / f"ready-{name}").touch()
        for worker in workers:
            worker.join()
        until = time.monotonic() + 120
        while client.statistics().spool_messages and time.monotonic() < until:
            time.sleep(0.05)
        while not is_drained(client) and time.monotonic() < until:
            time.sleep(0.1)
        found = client.statistics()
    (place / f"end-{name}.json").write_text(
        json.dumps(
            {
                "spooled": found.spooled,
                "left": found.spool_messages,
                "replayed": [found.replayed_to_primary, found.replayed_to_backlog],
                "errors": errors[:10],
            }
        )
    )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
