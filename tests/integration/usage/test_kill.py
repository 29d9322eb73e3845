"""A broker that is killed with SIGKILL: usage counts nothing twice, the audit of messages is exact (D6)."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from tests.waiting import wait_until

WAIT_SECONDS = 90.0


class BrokerProcess:
    """``pairbus serve --audit`` on a directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._ready = directory / "ready.json"
        self._ready.unlink(missing_ok=True)
        config = directory / "config.json"
        config.write_text(
            json.dumps({"UserConfig": {"Namespaces": [{"Name": "audited", "Queues": [{"Name": "orders"}]}]}})
        )
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pairbus", "serve", "--data", str(directory / "data"), "--amqp", "127.0.0.1:0",
             "--http", "off", "--config", str(config), "--ready-file", str(self._ready), "--audit"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        wait_until(self._ready.exists)

    def client(self) -> ServiceBusClient:
        return ServiceBusClient.from_connection_string(
            json.loads(self._ready.read_text())["connection_string"]
        )

    def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        return self.process.wait(WAIT_SECONDS)


def rows(directory: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for file in directory.glob("hour=*/part-*.parquet"):
        found += pyarrow.parquet.ParquetFile(file).read().to_pylist()
    return found


def usage(data: Path) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for row in rows(data / "usage"):
        counts[row["operation"]] += row["count"]
    return dict(counts)


def work(client: ServiceBusClient, names: list[str], completes: int) -> list[str]:
    """Send by these ids, complete so many; the ids that were completed."""
    with client.get_queue_sender("orders") as sender:
        for name in names:
            sender.send_messages(ServiceBusMessage(name.encode(), message_id=name))
    done: list[str] = []
    with client.get_queue_receiver("orders") as receiver:
        while len(done) < completes:  # one by one: no message comes that nobody asked for
            for message in receiver.receive_messages(1, max_wait_time=45):
                receiver.complete_message(message)
                done.append(str(message.message_id))
    return done


@pytest.mark.promise("D6")
@pytest.mark.timeout(300)
def test_a_killed_broker_counts_nothing_twice_and_audits_everything(tmp_path: Path) -> None:
    data = tmp_path / "data"
    first, second = [f"a{n}" for n in range(20)], [f"b{n}" for n in range(10)]

    broker = BrokerProcess(tmp_path)
    with broker.client() as client:
        completed = work(client, first, 7)
    # The writer's turn comes every ten seconds; what it has written before the kill stays and is never written again.
    wait_until(lambda: usage(data).get("settle") == 7)
    broker.end(signal.SIGKILL)
    assert usage(data) == {"connections": 0, "send": 20, "receive": 7, "settle": 7}

    broker = BrokerProcess(tmp_path)
    with broker.client() as client:
        completed += work(client, second, 9)
    assert broker.end(signal.SIGTERM) == 0

    assert usage(data) == {"connections": 0, "send": 30, "receive": 16, "settle": 16}
    audit = rows(data / "messages-audit")
    assert sorted(row["message_id"] for row in audit if row["kind"] == "sent") == sorted(first + second)
    assert sorted(row["message_id"] for row in audit if row["kind"] == "completed") == sorted(completed)
    assert list((data / "messages-audit").glob("journal-*")) == []
    parts = list((data / "usage").glob("hour=*/*"))
    assert len({part.name for part in parts}) == 2
