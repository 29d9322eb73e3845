"""``pairbus serve`` as a process: the ready file, signals, exit codes, one clear line for what went wrong."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pairbus import __version__
from pairbus.form import FORM
from pairbus.server.assemble import assemble
from pairbus.server.config.options import Options
from pairbus.server.server import Server
from tests.waiting import wait_until

WAIT_SECONDS = 100
pytestmark = pytest.mark.timeout(300)
HEADER = b"AMQP\x03\x01\x00\x00"


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "pairbus", *arguments]


def fail(*arguments: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        command("serve", *arguments), capture_output=True, text=True, timeout=WAIT_SECONDS, check=False
    )
    assert "Traceback" not in done.stderr
    return done


@contextmanager
def served(data: Path, *more: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, str]]]:
    ready = data.parent / f"{data.name}-ready.json"
    ready.unlink(missing_ok=True)
    process = subprocess.Popen(
        command(
            "serve", "--namespace", "contoso", "--data", str(data), "--amqp", "127.0.0.1:0", "--http", "127.0.0.1:0",
            "--ready-file", str(ready), *more,
        ),
        stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if "serving" in line:
                break
        assert process.poll() is None, "the broker ended before it served"
        yield process, wait_ready(ready)
    finally:
        process.kill()
        process.communicate(timeout=WAIT_SECONDS)


def wait_ready(path: Path) -> dict[str, str]:
    """The log line comes a moment before the file."""
    wait_until(path.exists, "the ready file is there")
    found: dict[str, str] = json.loads(path.read_text())
    return found


def http_address(ready: dict[str, str]) -> str:
    return f"http://{ready['http']}"


def test_the_ready_file_tells_everything_and_sigterm_ends_in_good_order(tmp_path: Path) -> None:
    with served(tmp_path / "data") as (process, ready):
        assert set(ready) == {"namespace", "pid", "amqp", "http", "connection_string", "ca_file"}
        assert ready["namespace"] == "contoso"
        assert int(ready["pid"]) == process.pid
        assert ready["connection_string"].startswith(f"Endpoint=sb://{ready['amqp']}/;")
        assert ready["connection_string"].endswith(";UseDevelopmentEmulator=true;Namespace=contoso")
        own = tmp_path / "data" / "ready.json"
        assert json.loads(own.read_text()) == ready
        assert stat.S_IMODE(own.stat().st_mode) == 0o600
        assert stat.S_IMODE((tmp_path / "data-ready.json").stat().st_mode) == 0o600
        with urllib.request.urlopen(http_address(ready) + "/health", timeout=WAIT_SECONDS) as answer:
            assert json.load(answer)["status"] == "healthy"
        host, _, port = ready["amqp"].rpartition(":")
        with socket.create_connection((host, int(port)), timeout=WAIT_SECONDS) as client:
            client.sendall(HEADER)
            assert client.recv(8) == HEADER

        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=WAIT_SECONDS)

        assert process.returncode == 0
        key = ready["connection_string"].partition("SharedAccessKey=")[2].partition(";")[0]
        assert key not in log


@pytest.mark.promise("B1")
def test_the_root_key_and_the_authority_survive_a_kill(tmp_path: Path) -> None:
    with served(tmp_path / "data") as (process, first):
        process.kill()
        process.wait(WAIT_SECONDS)
    with served(tmp_path / "data") as (_, second):
        keys = [ready["connection_string"].partition("SharedAccessKey=")[2] for ready in (first, second)]
        assert keys[0] == keys[1]


def test_declared_entities_are_there_and_a_second_start_keeps_them(tmp_path: Path) -> None:
    config = tmp_path / "Config.json"
    queues = [{"Name": "a", "Properties": {"ForwardDeadLetteredMessagesTo": "b"}}, {"Name": "b"}]
    topics = [{"Name": "t", "Subscriptions": [{"Name": "s", "Properties": {"ForwardTo": "a"}}]}]
    namespace = {"Name": "contoso", "Queues": queues, "Topics": topics}
    config.write_text(json.dumps({"UserConfig": {"Namespaces": [namespace]}}))
    options = Options(namespace="contoso", data=tmp_path / "data")
    for _ in range(2):
        with served(tmp_path / "data", "--config", str(config)) as (process, _):
            process.send_signal(signal.SIGINT)
            assert process.wait(WAIT_SECONDS) == 0

    found = assemble(options, 0)

    try:
        assert found.broker.namespace.find("t/Subscriptions/s").settings.forward_to == "a"  # type: ignore[attr-defined]
        assert found.broker.namespace.find("a").settings.forward_dead_letters_to == "b"  # type: ignore[attr-defined]
    finally:
        found.close()


@pytest.mark.promise("B69")
def test_a_second_broker_on_the_same_data_refuses_and_writes_nothing(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with served(data):
        before = {path: path.stat().st_mtime_ns for path in (data / "tls").iterdir()}

        done = fail("--namespace", "contoso", "--data", str(data), "--amqp", "127.0.0.1:0", "--http", "off")

        assert done.returncode == 3
        assert len(done.stderr.strip().splitlines()) == 1
        assert str(data) in done.stderr
        assert {path: path.stat().st_mtime_ns for path in (data / "tls").iterdir()} == before


def test_data_of_another_namespace_is_refused_by_name(tmp_path: Path) -> None:
    with served(tmp_path / "data") as (process, _):
        process.send_signal(signal.SIGTERM)
        process.wait(WAIT_SECONDS)

    done = fail(
        "--namespace", "fabrikam", "--data", str(tmp_path / "data"), "--amqp", "127.0.0.1:0", "--http", "off"
    )

    assert done.returncode == 3
    assert "contoso" in done.stderr


def test_a_taken_port_is_one_clear_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"

        done = fail("--data", str(tmp_path / "data"), "--amqp", address, "--http", "off")

    assert done.returncode == 3
    assert done.stderr.startswith(f"pairbus: {address}: Address already in use")
    assert "choose another --amqp" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--amqp", "0.0.0.0:0", "--no-tls"), "needs TLS"),
        (("--amqp", "5672"), "--amqp needs HOST:PORT"),
        (("--namespace", "a b"), "--namespace 'a b'"),
        (
            ("--tls-cert", "/does/not/exist", "--tls-key", "/neither"),
            "--tls-cert /does/not/exist cannot be read",
        ),
        (("--config", "/does/not/exist"), "--config /does/not/exist cannot be read"),
        (("--store", "mysql://user:secret@host/db"), "--store mysql:… is not known"),
        (("--store", "mysql://user:secret@host/db", "--node", "a"), "--store mysql:… is not known"),
        (("--no-such-option",), "No such option"),
    ],
)
def test_wrong_usage_is_told_in_one_line_and_exits_2(
    tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    done = fail("--data", str(tmp_path / "data"), "--http", "off", *arguments)

    assert done.returncode == 2
    assert message in done.stderr
    assert "secret" not in done.stderr


def test_a_bad_configuration_names_file_key_and_line(tmp_path: Path) -> None:
    config = tmp_path / "c.json"
    config.write_text('{"UserConfig":\n {"Namespaces": [\n  {"Name": "n", "Queues": [{"Name": "q q"}]}]}}')

    done = fail("--data", str(tmp_path / "data"), "--config", str(config))

    assert done.returncode == 2
    assert f"{config}: UserConfig.Namespaces[0].Queues[0].Name (line 3)" in done.stderr


def test_help_and_version_are_quick_and_show_examples() -> None:
    shown = subprocess.run(
        command("serve", "--help"), capture_output=True, text=True, timeout=WAIT_SECONDS, check=True
    )
    assert "pairbus serve --namespace contoso" in shown.stdout
    assert "Exit codes" in shown.stdout
    version = subprocess.run(
        command("--version"), capture_output=True, text=True, timeout=WAIT_SECONDS, check=True
    )
    assert version.stdout == f"pairbus, version {__version__} ({FORM})\n"
    probe = "import sys, pairbus.cli.root as r; r.root.get_command(None, 'serve'); print('pairbus.server.server' in sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, timeout=WAIT_SECONDS, check=True
    )
    assert loaded.stdout.strip() == "False"


def test_a_broker_starts_without_the_clients_and_the_reports() -> None:
    """The official SDK alone would take longer to load than the broker."""
    modules = "pairbus.cli.broker.serve, pairbus.server.main, pairbus.server.assemble, pairbus.web.page"
    probe = f"import sys, {modules}; print(sorted({{'azure', 'psycopg', 'pyarrow', 'pyspark'}} & set(sys.modules)))"
    loaded = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, timeout=WAIT_SECONDS, check=True
    )
    assert loaded.stdout.strip() == "[]"


def test_a_server_runs_in_a_thread_of_its_own_and_stops(tmp_path: Path) -> None:
    started = threading.Event()
    stop: list[asyncio.Event] = []
    servers: list[Server] = []

    async def serve() -> None:
        options = Options(
            namespace="contoso", data=tmp_path, amqp=("127.0.0.1", 0), http=None, store="memory:", tls=False
        )
        server = Server(options, assemble=assemble)
        await server.start()
        servers.append(server)
        stop.append(asyncio.Event())
        loops.append(asyncio.get_running_loop())
        started.set()
        await stop[0].wait()
        await server.stop()

    loops: list[asyncio.AbstractEventLoop] = []
    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert started.wait(WAIT_SECONDS)
    host, _, port = servers[0].ready.amqp.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=WAIT_SECONDS) as client:
        client.sendall(HEADER)
        assert client.recv(8) == HEADER

    loops[0].call_soon_threadsafe(stop[0].set)
    thread.join(WAIT_SECONDS)

    assert not thread.is_alive()
    assert os.listdir(tmp_path) == []
