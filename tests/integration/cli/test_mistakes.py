"""A user's mistakes: each gets one clear line with the way out, and the exit code that the documents promise (M15)."""

from __future__ import annotations

import json
import os
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from pairbus.cli.bench import BENCHMARKS
from pairbus.testing import Namespace
from tests.small_disk import mount_command, own_mounts

WAIT_SECONDS = 120
pytestmark = pytest.mark.timeout(300)
WRONG_USAGE = 2
REFUSED = 3
NOBODY = (
    "Endpoint=sb://127.0.0.1:1/;SharedAccessKeyName=R;SharedAccessKey=c2VjcmV0;UseDevelopmentEmulator=true"
)
"""Port 1 of this machine: nobody listens there."""


def mistake(
    *arguments: str | Path, code: int, says: tuple[str, ...], environment: Mapping[str, str] | None = None
) -> str:
    """Run a command that must fail in the promised way; what it said."""
    done = subprocess.run(
        [sys.executable, "-m", "pairbus", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
        check=False,
        env={**clean_environment(), **(environment or {})},
    )
    return judge(done, code, says)


def judge(done: subprocess.CompletedProcess[str], code: int, says: tuple[str, ...]) -> str:
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    [line] = done.stderr.splitlines()
    assert line.startswith("pairbus: "), line
    for part in says:
        assert part in line, f"{part!r} is not in {line!r}"
    return line


def clean_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("PAIRBUS_")}


def serve(data: Path, *more: str, code: int, says: tuple[str, ...]) -> str:
    return mistake(
        "serve", "--data", data, "--namespace", "contoso", "--amqp", "127.0.0.1:0", "--http", "off", *more,
        code=code, says=says,
    )  # fmt: skip


@pytest.fixture(scope="module")
def namespace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Namespace]:
    data = tmp_path_factory.mktemp("mistakes") / "data"
    with Namespace("contoso", data=data, queues=["orders"]) as running:
        yield running


@pytest.fixture
def wrong_key(namespace: Namespace) -> dict[str, str]:
    wrong = namespace.connection_string.replace("SharedAccessKey=", "SharedAccessKey=wrong")
    return {
        "PAIRBUS_PRIMARY": wrong.replace("Namespace=contoso", "Namespace=other"),
        "PAIRBUS_SECONDARY": wrong,
    }


@pytest.fixture
def left(tmp_path: Path) -> Path:
    """Data of namespace contoso that nobody uses."""
    with Namespace("contoso", data=tmp_path / "data", queues=["orders"]):
        pass
    return tmp_path / "data"


@pytest.mark.parametrize("options", [[""], ["--only", " "], ["--master="]])
def test_a_benchmark_is_not_given_an_empty_option(options: list[str]) -> None:
    mistake(
        "bench", "topics", *options, code=WRONG_USAGE, says=("bench topics: ", "is empty: give it a value")
    )


@pytest.mark.parametrize("name", sorted(BENCHMARKS))
def test_a_benchmark_refuses_what_it_does_not_know(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pairbus", "bench", name, "--no-such-option"],
        capture_output=True,
        text=True,
        check=False,
        timeout=WAIT_SECONDS,
    )
    assert done.returncode == WRONG_USAGE
    assert "--no-such-option" in done.stderr


# --- keys and addresses -----------------------------------------------------------------------------


@pytest.mark.promise("M15")
@pytest.mark.parametrize(
    "command",
    [
        ["backlog", "list"],
        ["backlog", "purge", "a/x-servicebus-transfer/0", "--yes"],
        ["backlog", "redrive", "a/x-servicebus-transfer/0"],
        ["backlog", "drain", "a/x-servicebus-transfer/0"],
        ["syphon", "--engine", "local", "--once"],
    ],
)
def test_an_unreachable_namespace_of_a_pair_is_named_with_its_address(command: list[str]) -> None:
    environment = {"PAIRBUS_PRIMARY": f"{NOBODY};Namespace=a", "PAIRBUS_SECONDARY": NOBODY}

    mistake(
        *command,
        code=REFUSED,
        says=("the secondary 127.0.0.1:1: the namespace could not be reached", "is it running"),
        environment=environment,
    )


@pytest.mark.promise("M15")
@pytest.mark.parametrize(
    "command",
    [
        ["send", "orders", "hello"],
        ["peek", "orders"],
        ["receive", "orders"],
        ["entity", "list"],
        ["access", "list"],
    ],
)
def test_an_unreachable_namespace_is_named_with_its_address(command: list[str]) -> None:
    mistake(*command, code=REFUSED, says=("127.0.0.1:1",), environment={"PAIRBUS_PRIMARY": NOBODY})


@pytest.mark.promise("M15")
@pytest.mark.parametrize(
    "command", [["send", "orders", "hello"], ["peek", "orders"], ["receive", "orders", "--wait", "1"]]
)
def test_a_wrong_key_on_messages(command: list[str], wrong_key: dict[str, str]) -> None:
    line = mistake(
        *command,
        code=REFUSED,
        says=("key was refused", "pairbus entity list", "the namespace other at 127.0.0.1:"),
        environment=wrong_key,
    )

    assert "wrong" not in line  # the key itself is never shown (M7)


@pytest.mark.promise("M15")
def test_a_wrong_key_on_management(namespace: Namespace, wrong_key: dict[str, str], tmp_path: Path) -> None:
    ready = tmp_path / "ready.json"
    ready.write_text(
        json.dumps({"connection_string": wrong_key["PAIRBUS_SECONDARY"], "ca_file": namespace.ca_file})
    )

    mistake(
        "entity",
        "--ready-file",
        ready,
        "list",
        code=REFUSED,
        says=("the key was refused",),
    )


@pytest.mark.promise("M15")
def test_a_certificate_that_nobody_vouches_for(namespace: Namespace) -> None:
    # Without the word that it is on this machine the namespace is asked by TLS.
    secure = namespace.connection_string.replace("UseDevelopmentEmulator=true;", "")
    environment = {"PAIRBUS_PRIMARY": secure}

    mistake("entity", "list", code=REFUSED, says=("not trusted", "--ready-file"), environment=environment)


@pytest.mark.promise("M15")
@pytest.mark.parametrize(
    "command", [["send", "orders", "hello"], ["peek", "orders"], ["entity", "list"], ["backlog", "list"]]
)
def test_an_unreachable_namespace(command: list[str]) -> None:
    environment = {"PAIRBUS_PRIMARY": f"{NOBODY};Namespace=a", "PAIRBUS_SECONDARY": f"{NOBODY};Namespace=b"}

    line = mistake(
        *command, code=REFUSED, says=("could not be reached", "is it running"), environment=environment
    )

    assert "c2VjcmV0" not in line


@pytest.mark.promise("M15")
def test_no_namespace_is_named() -> None:
    mistake("send", "orders", "hello", code=WRONG_USAGE, says=("PAIRBUS_PRIMARY", "--ready-file"))


@pytest.mark.promise("M15")
def test_a_connection_string_that_is_none() -> None:
    mistake(
        "peek",
        "orders",
        code=WRONG_USAGE,
        says=("SharedAccessKeyName",),
        environment={"PAIRBUS_PRIMARY": "rubbish"},
    )


@pytest.mark.promise("M15")
def test_a_port_that_is_taken(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"

        mistake(
            "serve", "--data", tmp_path / "data", "--amqp", address, "--http", "off",
            code=REFUSED, says=(address, "another program listens there", "port 0"),
        )  # fmt: skip


# --- the data directory -----------------------------------------------------------------------------


@pytest.mark.promise("B69")
def test_data_in_use(left: Path) -> None:
    with Namespace("contoso", data=left):
        serve(left, code=REFUSED, says=(str(left), "in use by process", "another data directory"))
        mistake(
            "store", "check", "--data", left, code=REFUSED, says=("in use by process", "stop that broker")
        )


@pytest.mark.promise("M15")
def test_data_of_another_namespace(left: Path) -> None:
    mistake(
        "serve", "--data", left, "--namespace", "fabrikam", "--amqp", "127.0.0.1:0", "--http", "off",
        code=REFUSED, says=("'contoso'", "'fabrikam'", "start with that name"),
    )  # fmt: skip


@pytest.mark.promise("M15")
def test_data_of_a_newer_version(left: Path) -> None:
    identity = left / "store" / "format"
    # Without a checksum of the form that this version writes: a newer one may have another.
    identity.write_text(
        json.dumps({"format": 99, "namespace": json.loads(identity.read_text())["namespace"]})
    )

    serve(left, code=REFUSED, says=("format 99", "newer PairBus"))
    mistake(
        "store", "export", "--data", left, left / "out", code=REFUSED, says=("format 99", "newer PairBus")
    )


@pytest.mark.promise("M15")
def test_a_data_directory_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")

    serve(tmp_path / "file", code=REFUSED, says=("cannot be used", "--data"))


@pytest.mark.promise("B12", "M15")
@pytest.mark.parametrize(
    ("size", "option", "says"),
    [
        ("64k", "", ("needs 80 MB", "0 MB are free", "80 MB for its log. Free some space", "--data")),
        ("100m", "--audit", ("needs 112 MB", "100 MB are free", "32 MB for the audit log", "--data")),
    ],
)
def test_a_disk_with_too_little_room_for_a_new_namespace(
    tmp_path: Path, size: str, option: str, says: tuple[str, ...]
) -> None:
    mount = shlex.join(mount_command(tmp_path, size))
    broker = f"{sys.executable} -m pairbus serve --data {tmp_path} --amqp 127.0.0.1:0 --http off {option}"

    done = subprocess.run(
        [*own_mounts(), "sh", "-c", f"{mount} && exec {broker}"],
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
        check=False,
    )

    judge(done, REFUSED, says)


@pytest.mark.promise("M15")
def test_an_export_that_is_not_whole(tmp_path: Path) -> None:
    mistake(
        "store", "import", tmp_path, "--data", tmp_path / "new",
        code=REFUSED, says=("no whole export", "manifest.json", "export again"),
    )  # fmt: skip


# --- options and configuration ----------------------------------------------------------------------


@pytest.mark.promise("M15")
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["sirve"], ("'sirve'", "pairbus --help")),
        (["serve", "--nmespace", "x"], ("--nmespace", "pairbus serve --help")),
        (["serve", "--log-level", "loud"], ("'loud'", "'debug'")),
        (["serve", "--amqp", "nowhere"], ("--amqp needs HOST:PORT", "127.0.0.1:5672")),
        (["serve", "--namespace", "-"], ("--namespace '-'", "letters")),
        (["serve", "--amqp", "0.0.0.0:0", "--no-tls"], ("needs TLS", "leave out --no-tls")),
        (["serve", "--ready-file", "/no/such/place/ready.json"], ("/no/such/place", "make it first")),
        (["send"], ("ENTITY", "pairbus send --help")),
        (["receive", "orders", "--count", "0"], ("--count", "1<=x")),
        (["completion", "tcsh"], ("'tcsh'", "'bash'")),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_option(arguments: list[str], says: tuple[str, ...]) -> None:
    mistake(*arguments, code=WRONG_USAGE, says=says)


@pytest.mark.promise("M15")
def test_a_configuration_with_an_unknown_key(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    queue = '{"Name": "orders",\n "Properties": {"LockDuratio": "PT1M"}}'
    config.write_text('{"UserConfig": {"Namespaces": [{"Name": "contoso",\n "Queues": [' + queue + "]}]}}")

    serve(
        tmp_path / "data",
        "--config",
        str(config),
        code=WRONG_USAGE,
        says=(str(config), "LockDuratio", "line 3", "LockDuration,"),
    )


@pytest.mark.promise("M15")
def test_a_configuration_that_is_no_json(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text('{"UserConfig": {\n,')

    serve(
        tmp_path / "data", "--config", str(config), code=WRONG_USAGE, says=(str(config), "line 2", "column 1")
    )


# --- Spark ------------------------------------------------------------------------------------------


@pytest.mark.promise("M15")
def test_no_java(tmp_path: Path) -> None:
    """Where a Java came along as a wheel there is always one; the search itself is tested by its own room."""
    script = (
        "from pairbus.spark import java; from pairbus.cli import main\n"
        "java._homes = lambda *_: []; java._wheel_home = lambda *_: None\n"
        "main(['syphon', '--once'])"
    )
    environment = {
        "PAIRBUS_PRIMARY": f"{NOBODY};Namespace=a",
        "PAIRBUS_SECONDARY": NOBODY.replace(":1/", ":2/"),
    }

    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
        check=False,
        env={**clean_environment(), **environment},
    )

    judge(done, WRONG_USAGE, ("Spark needs Java 17", "JAVA_HOME"))


def test_a_pair_of_one_namespace_is_wrong_usage(namespace: Namespace) -> None:
    both = dict.fromkeys(("PAIRBUS_PRIMARY", "PAIRBUS_SECONDARY"), namespace.connection_string)

    mistake("drill", "--for", "30s", code=WRONG_USAGE, says=("two different namespaces",), environment=both)
