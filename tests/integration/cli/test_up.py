"""`pairbus up` when two meet, when an address is taken, and with the logs that a proof needs."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
from pathlib import Path
from uuid import uuid4

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.management import ServiceBusAdministrationClient

from pairbus.local.pair import Member
from pairbus.sdk.addresses import connect
from pairbus.testing import Namespace
from tests.integration.cli.test_demo import FREE, config, is_alive, pairbus, send, up
from tests.postgres_kit import shared_server
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(180)


def refused(*arguments: str) -> str:
    done = subprocess.run(pairbus("up", *arguments), capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 3, done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert "SharedAccessKey" not in done.stderr, "M7"
    return done.stderr


def test_a_second_up_leaves_the_first_alone_and_audits_are_written(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with up(data, *FREE, "--config", config(tmp_path), "--audit", "--restart-after", "1") as (process, told):
        line = refused("--data", str(data), *FREE)
        assert f"process {process.pid}" in line
        assert "--data another directory" in line
        assert all(is_alive(pid) for pid in told["pids"].values())

        assert told.keys() == {
            "primary", "secondary", "page", "journal", "data", "primary_data", "secondary_data",
            "primary_ca_file", "secondary_ca_file", "audit", "pids",
        }  # fmt: skip
        assert told["audit"] is True
        for role in ("primary", "secondary"):
            with ServiceBusAdministrationClient.from_connection_string(
                told[role], connection_verify=told[f"{role}_ca_file"]
            ) as administration:
                assert [queue.name for queue in administration.list_queues()]
        send(told["primary"], "orders", "written down")
        os.kill(told["pids"]["primary"], signal.SIGKILL)
        log = tmp_path / "up.log"
        wait_until(lambda: "serves again" in log.read_text(), "the primary is started again")
        assert "the primary ended (killed by signal 9)" in log.read_text()
        assert "primary primary" not in log.read_text()
        folder = Path(told["primary_data"])
    found = [
        file for file in folder.rglob("*") if file.is_file() and "messages" in str(file.relative_to(folder))
    ]
    assert found, sorted(str(file) for file in folder.rglob("*"))


@pytest.mark.parametrize("option", ["--primary-address", "--secondary-address", "--page"])
def test_an_address_that_is_taken_is_named_by_its_option(option: str, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        arguments = [*FREE]
        arguments[arguments.index(option) + 1] = address

        line = refused("--data", str(tmp_path / "data"), *arguments)

    assert (
        line
        == f"pairbus: {option} {address}: another program listens there; choose another address, or port 0\n"
    )


def test_what_is_printed_for_people_names_the_proof(tmp_path: Path) -> None:
    process = subprocess.Popen(
        pairbus("up", "--data", str(tmp_path / "data"), "--queues", "1", "--audit", *FREE),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    said = ""
    for line in process.stdout:
        said += line
        if line.startswith("Ctrl-C"):
            break
    process.send_signal(signal.SIGINT)
    process.stdout.close()

    assert process.wait(60) == 0
    assert (
        f"pairbus reconcile --sent {tmp_path}/data/primary/data --sent {tmp_path}/data/secondary/data" in said
    )
    assert "export PAIRBUS_PRIMARY='Endpoint=" in said


@pytest.mark.long
def test_a_pair_in_a_database_goes_on_without_one_of_its_nodes(tmp_path: Path) -> None:
    url = shared_server().new_database(f"up_{uuid4().hex}")
    arguments = ("--store", url, *FREE, "--config", config(tmp_path))
    with up(tmp_path / "data", *arguments, "--nodes", "2") as (_, told):
        assert told["pids"].keys() == {"primary", "primary-2", "secondary", "secondary-2"}
        assert not (Path(told["primary_data"]) / "store").exists(), "the database keeps the messages"
        with (
            connect(ServiceBusClient, told["primary"]) as client,
            client.get_queue_sender("orders") as sender,
        ):
            sender.send_messages(ServiceBusMessage("first"))
            os.kill(told["pids"]["primary"], signal.SIGKILL)
            wait_until(lambda: not is_alive(told["pids"]["primary"]), "the node is gone")
            sender.send_messages(ServiceBusMessage("second"), timeout=60)


@pytest.mark.long
def test_a_pair_in_a_database_goes_on_with_new_files_once_it_knows_where_it_was(tmp_path: Path) -> None:
    url = shared_server().new_database(f"up_{uuid4().hex}")
    arguments = ("--store", url, *FREE)
    with up(tmp_path / "data", *arguments):
        pass
    line = refused("--data", str(tmp_path / "new"), *arguments)
    alias = re.search(r"--primary-alias ([\w.:]+)", line)
    assert alias is not None, line
    with up(tmp_path / "new", *arguments, "--primary-alias", alias[1]):
        pass
    (tmp_path / "new" / "primary" / "addresses").unlink()
    with up(tmp_path / "new", *arguments):
        pass


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("--nodes", "2"), "--nodes 2: several nodes need a database"),
        (("--store", "memory:"), "--store must name a database"),
    ],
)
def test_nodes_need_a_database(arguments: tuple[str, ...], error: str, tmp_path: Path) -> None:
    done = subprocess.run(
        pairbus("up", "--data", str(tmp_path), *arguments), capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert error in done.stderr


def test_a_database_that_the_environment_names_is_not_used_by_the_test_kit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PAIRBUS_STORE", "postgresql://nobody@127.0.0.1:1/nothing")
    with (
        Namespace("contoso", process=True, queues=["orders"]) as namespace,
        namespace.client() as client,
        client.get_queue_sender("orders") as sender,
    ):
        sender.send_messages(ServiceBusMessage("kept in files"))


def test_a_node_of_several_is_named_with_its_number(tmp_path: Path) -> None:
    def title(role: str, name: str, number: int, nodes: int) -> str:
        return Member(role, name, address="127.0.0.1:0", work=tmp_path, number=number, nodes=nodes).title

    assert [title("primary", "primary", number, 2) for number in (1, 2)] == [
        "node 1 of the primary",
        "node 2 of the primary",
    ]
    assert title("secondary", "fabrikam", 1, 1) == "the secondary fabrikam"
