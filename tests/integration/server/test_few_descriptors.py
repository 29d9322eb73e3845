"""A broker with few file descriptors and many connections: it lives, says little, and serves when they are gone."""

from __future__ import annotations

import json
import resource
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from tests.waiting import wait_until

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]
WAIT_SECONDS = 100
DESCRIPTORS = 64
CONNECTIONS = 150
LOG_BYTES_MAX = 20_000


def test_more_connections_than_descriptors_neither_end_the_broker_nor_fill_its_log(tmp_path: Path) -> None:
    config = tmp_path / "Config.json"
    config.write_text('{"UserConfig": {"Namespaces": [{"Name": "contoso", "Queues": [{"Name": "orders"}]}]}}')
    ready, log = tmp_path / "ready.json", tmp_path / "log"
    command = [
        sys.executable, "-m", "pairbus", "serve", "--config", str(config), "--data", str(tmp_path / "data"),
        "--amqp", "127.0.0.1:0", "--http", "off", "--no-tls", "--ready-file", str(ready),
    ]  # fmt: skip
    with log.open("wb") as sink:
        process = subprocess.Popen(command, stderr=sink)
    # The interpreter has not begun to listen yet, so nothing is open that would be over the limit.
    resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
    try:
        wait_until(lambda: ready.exists() or process.poll() is not None, "the broker is ready")
        assert process.poll() is None, log.read_text()
        told = json.loads(ready.read_text())
        host, _, port = told["amqp"].rpartition(":")
        with ExitStack() as held:
            for _ in range(CONNECTIONS):
                held.enter_context(socket.create_connection((host, int(port)), timeout=WAIT_SECONDS))
            wait_until(
                lambda: log.read_text().count("listener.paused") >= 2, "two rounds without descriptors"
            )
        assert process.poll() is None
        with (
            ServiceBusClient.from_connection_string(told["connection_string"]) as client,
            client.get_queue_sender("orders") as sender,
        ):
            sender.send_messages(ServiceBusMessage("still there"))
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_SECONDS) == 0
    finally:
        process.kill()
        process.wait()
    assert log.stat().st_size < LOG_BYTES_MAX
