"""A broker with few file descriptors and many connections: it lives, says little, and serves when they are gone."""

from __future__ import annotations

import json
import resource
import signal
import socket
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

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
        for _ in range(WAIT_SECONDS * 100):
            if ready.exists():
                break
            assert process.poll() is None, log.read_text()
            threading.Event().wait(0.01)
        told = json.loads(ready.read_text())
        host, _, port = told["amqp"].rpartition(":")
        with ExitStack() as held:
            for _ in range(CONNECTIONS):
                held.enter_context(socket.create_connection((host, int(port)), timeout=WAIT_SECONDS))
            threading.Event().wait(3.0)  # three rounds of what was once an endless one
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
