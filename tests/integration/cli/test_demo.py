"""`pairbus demo` and `pairbus up` as a person runs them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from tests.waiting import wait_until

KEYS = {
    "sent", "accepted", "parked", "home", "lost", "duplicated", "failover_seconds", "failback_seconds", "drain_seconds",
    "pings", "operations", "cost",
}  # fmt: skip
FREE = ("--primary-address", "127.0.0.1:0", "--secondary-address", "127.0.0.1:0", "--page", "127.0.0.1:0")


def pairbus(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "pairbus", *arguments]


@pytest.mark.timeout(400)
def test_the_demo_tells_the_whole_story_and_proves_it() -> None:
    command = pairbus("demo", "--messages", "400", "--engine", "local", "--json")
    done = subprocess.run(command, capture_output=True, text=True, timeout=390, check=False)

    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result.keys() >= KEYS
    assert result["holds"] is True
    assert (result["sent"], result["lost"], result["duplicated"]) == (400, 0, 0)
    assert result["accepted"] + result["unknown"] == 400
    assert 0 < result["parked"] == result["home"]
    assert result["failover_seconds"] >= 2
    assert result["pings"] > 0
    assert result["operations"] > 400
    assert float(result["cost"]) > 0
    # Calm when nobody watches: lines, no cursor movements.
    assert "was killed (SIGKILL)" in done.stderr
    assert "\x1b[" not in done.stderr


@pytest.mark.timeout(400)
def test_a_demo_that_is_stopped_leaves_nothing_behind(tmp_path: Path) -> None:
    command = pairbus("demo", "--engine", "local", "--messages", "100000")
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": str(tmp_path)}
    )
    assert process.stdout is not None
    assert process.stdout.readline()
    assert list(tmp_path.iterdir())
    process.terminate()

    process.communicate(timeout=150)

    assert process.returncode == 128 + signal.SIGTERM
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_demo_drains_on_spark_and_spark_proves_it() -> None:
    command = pairbus("demo", "--engine", "spark", "--json")
    done = subprocess.run(command, capture_output=True, text=True, timeout=590, check=False)

    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["spark_certificate"]["verdict"] == "holds"
    assert result["spark_certificate"]["lost"] == 0
    assert result["parked"] == result["home"] > 0
    assert result["spark_certificate"]["detoured"] == result["parked"]


@contextmanager
def up(data: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    command = pairbus("up", "--data", str(data), "--queues", "2", "--json", *arguments)
    with (data.parent / "up.log").open("a") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line, (data.parent / "up.log").read_text()
        yield process, json.loads(line)
    finally:
        process.send_signal(signal.SIGTERM)
        code = process.wait(100)
        process.stdout.close()
        assert code == 0


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def send(connection_string: str, queue: str, text: str) -> None:
    with (
        ServiceBusClient.from_connection_string(connection_string) as client,
        client.get_queue_sender(queue) as sender,
    ):
        sender.send_messages(ServiceBusMessage(text))


def config(tmp_path: Path) -> str:
    file = tmp_path / "config.json"
    file.write_text(
        json.dumps({"UserConfig": {"Namespaces": [{"Name": "any", "Queues": [{"Name": "orders"}]}]}})
    )
    return str(file)


@pytest.mark.timeout(400)
def test_up_survives_its_own_restart_and_stops_cleanly(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with up(data, *FREE, "--config", config(tmp_path)) as (_, first):
        send(first["primary"], "orders", "kept")
        with urllib.request.urlopen(first["page"], timeout=60) as answer:
            assert b"PairBus" in answer.read()
        pids = list(first["pids"].values())
        assert all(is_alive(pid) for pid in pids)
    assert not any(is_alive(pid) for pid in pids)

    with up(data, *FREE) as (_, second):
        keys = [told["primary"].split("SharedAccessKey=")[1].split(";")[0] for told in (first, second)]
        assert keys[0] == keys[1]
        with (
            ServiceBusClient.from_connection_string(second["primary"]) as client,
            client.get_queue_receiver("orders") as receiver,
        ):
            assert [str(message) for message in receiver.receive_messages(max_wait_time=60)] == ["kept"]


@pytest.mark.timeout(400)
def test_up_starts_a_namespace_again_that_died(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with up(data, *FREE, "--config", config(tmp_path), "--restart-after", "1") as (_, told):
        os.kill(told["pids"]["primary"], signal.SIGKILL)
        log = tmp_path / "up.log"
        wait_until(lambda: "serves again" in log.read_text(), "the primary is started again")
        send(told["primary"], "orders", "after")


@pytest.mark.timeout(400)
def test_up_ends_what_an_up_that_was_killed_left_behind(tmp_path: Path) -> None:
    data = tmp_path / "data"
    command = pairbus("up", "--data", str(data), "--queues", "2", "--json", *FREE)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    left_over = json.loads(process.stdout.readline())["pids"]
    process.kill()
    process.wait()
    process.stdout.close()
    assert any(is_alive(pid) for pid in left_over.values())
    with up(data, *FREE):
        assert not any(is_alive(pid) for pid in left_over.values())


@pytest.mark.timeout(400)
def test_up_says_what_to_do_when_an_address_is_taken(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        for option in ("--primary-address", "--page"):
            arguments = [*FREE]
            arguments[arguments.index(option) + 1] = address
            done = subprocess.run(
                pairbus("up", "--data", str(tmp_path / "data"), *arguments),
                capture_output=True,
                text=True,
                timeout=150,
                check=False,
            )
            assert done.returncode == 3
            assert done.stderr.count("\n") == 1, done.stderr
            assert "choose another" in done.stderr
            assert "SharedAccessKey" not in done.stderr, "M7"


@pytest.mark.timeout(400)
def test_up_refuses_what_cannot_work(tmp_path: Path) -> None:
    for arguments in (("--primary", "a", "--secondary", "A"), ("--page", "0.0.0.0:5300")):
        done = subprocess.run(
            pairbus("up", "--data", str(tmp_path), *arguments),
            capture_output=True,
            text=True,
            timeout=150,
            check=False,
        )
        assert done.returncode == 2, done.stderr
