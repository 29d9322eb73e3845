"""``pairbus cluster`` on a real cluster: status, a planned move, and draining a node."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from pairbus.cli.root import root
from pairbus.model.access import ROOT_RULE
from pairbus.sdk.connection_string import parse_connection_string
from pairbus.sdk.credentials import credentials_of, sas_token
from pairbus.storage.log.store import LogStore
from tests.integration.cluster.kit import Cluster, NodeProcess, load
from tests.postgres_kit import shared_server
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(
        tmp_path_factory.mktemp("commands"), shared_server().url(), "a", "b", namespace="commanded"
    )
    made.start()
    yield made
    made.kill()


def run(cluster: Cluster, *words: str) -> tuple[int, Any, str]:
    command = [sys.executable, "-m", "pairbus", "cluster", *words, "--store", cluster.url]
    done = subprocess.run(
        [*command, "--namespace", cluster.namespace, "--json"], capture_output=True, text=True, check=False
    )
    return done.returncode, json.loads(done.stdout) if done.stdout else None, done.stderr


def page(node: NodeProcess, name: str) -> dict[str, Any]:
    """What the page of a node answers to somebody with the root key."""
    who = credentials_of(node.connection_string)
    address = f"http://127.0.0.1:{node.port}"
    token = sas_token(address, who.key_name, who.key, int(time.time()) + 60)
    request = urllib.request.Request(f"{address}/$page/api/{name}", headers={"authorization": token})
    with urllib.request.urlopen(request, timeout=30) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


@pytest.mark.long
def test_the_page_of_every_node_shows_the_cluster(cluster: Cluster) -> None:
    owner, other = cluster.owner_and_other()
    wait_until(lambda: len(page(owner, "cluster").get("nodes", [])) == 2, "both nodes have reported")
    seen = [page(node, "cluster") for node in (owner, other)]
    for found in seen:
        assert found["owner"] == owner.name
        assert {one["node"]: one["role"] for one in found["nodes"]} == {
            owner.name: "owner",
            other.name: "relay",
        }
        assert 0 < found["lease_seconds_left"] <= found["lease_seconds"] == 2
        assert found["database"] == {"synchronous_standby_names": "", "standbys": []}
    assert seen[0]["epoch"] == seen[1]["epoch"] == run(cluster, "status")[1]["epoch"]
    assert page(other, "overview")["namespace"] == cluster.namespace


@pytest.mark.long
def test_the_connection_string_of_a_cluster_and_of_a_node(cluster: Cluster) -> None:
    owner, other = cluster.owner_and_other()
    wait_until(lambda: len(page(owner, "cluster").get("nodes", [])) == 2, "both nodes have reported")

    def told(*words: str) -> str:
        command = [sys.executable, "-m", "pairbus", "connection-string", *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    named = ("--store", cluster.url, "--namespace", cluster.namespace)
    hosts = {f"127.0.0.1:{node.port}" for node in (owner, other)}
    assert set(parse_connection_string(told(*named), "given").hosts) == hosts
    assert told(*named, "--node", other.name) == other.connection_string
    assert told("--data", str(cluster.directory / other.name / "data")) == other.connection_string


@pytest.mark.long
@pytest.mark.promise("M5")
def test_the_root_key_of_a_cluster_is_rotated_through_any_node(cluster: Cluster, tmp_path: Path) -> None:
    owner, other = cluster.owner_and_other()
    before = other.connection_string
    old_key = tmp_path / "old.key"
    old_key.write_text(credentials_of(before).key)
    named = ["--store", cluster.url, "--namespace", cluster.namespace, "--node", other.name]

    def access(text: str, *words: str) -> int:
        return CliRunner().invoke(root, ["access", *words], env={"PAIRBUS_PRIMARY": text}).exit_code

    def told() -> str:
        return CliRunner().invoke(root, ["connection-string", *named]).stdout.strip()

    assert access(before, "rotate", ROOT_RULE) == 0
    wait_until(lambda: told() != before, "the database has the new root key")
    after = told()
    assert access(before, "list") == 3
    assert access(after, "list") == 0
    ready = json.loads((cluster.directory / owner.name / "data" / "ready.json").read_text())
    assert credentials_of(ready["connection_string"]).key == credentials_of(after).key

    assert access(after, "rotate", ROOT_RULE, "--key-file", str(old_key)) == 0
    wait_until(lambda: told() == before, "the database has the old root key again")


@pytest.mark.long
def test_status_move_and_drain(cluster: Cluster) -> None:
    owner, other = cluster.owner_and_other()
    code, found, _ = run(cluster, "status")
    assert code == 0
    assert found["owner"] == owner.name
    assert {one["node"]: one["role"] for one in found["nodes"]} == {owner.name: "owner", other.name: "relay"}
    assert 0 < found["lease_seconds_left"] <= 2

    with load(other) as traffic:
        code, moved, errors = run(cluster, "move")
        assert (code, errors) == (0, "")
        assert moved == {"owner": other.name, "epoch": found["epoch"] + 1, "before": owner.name}
        count = len(traffic.completed)
        wait_until(lambda: len(traffic.completed) >= count + 20, "clients are served again")
    assert owner.is_running
    wait_until(lambda: owner.role == "relay", "the former owner relays")

    code, drained, _ = run(cluster, "drain", other.name)
    assert code == 0
    assert drained["owner"] == owner.name
    code, _, errors = run(cluster, "move")
    assert code == 1
    assert "only node" in errors
    code, undone, _ = run(cluster, "drain", other.name, "--undo")
    assert (code, undone) == (0, {"node": other.name, "done": "takes part again"})

    code, _, errors = run(cluster, "drain", "nobody")
    assert code == 1
    assert "nobody" in errors


def test_mistakes_are_explained_in_one_sentence() -> None:
    for words, sentence in (
        (("status", "--store", "memory:"), "--store must name a database"),
        (
            ("status", "--store", shared_server().url(), "--namespace", "unheard-of"),
            "has no namespace 'unheard-of'",
        ),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "pairbus", "cluster", *words], capture_output=True, text=True, check=False
        )
        assert done.returncode == 2
        assert sentence in done.stderr
        assert len(done.stderr.splitlines()) == 1


@pytest.mark.promise("B69")
def test_a_node_takes_no_directory_of_another_node_and_none_that_holds_a_namespace(
    cluster: Cluster, tmp_path: Path
) -> None:
    held = tmp_path / "held"
    store = LogStore.open(held / "store", namespace=cluster.namespace)
    store.close()
    serve = [
        sys.executable,
        "-m",
        "pairbus",
        "serve",
        "--store",
        cluster.url,
        "--namespace",
        cluster.namespace,
    ]
    for data, sentence in (
        (
            cluster.directory / "a" / "data",
            f"is in use by process {cluster.nodes[0].pid}: stop that broker",
        ),
        (held, "holds a namespace that was not moved into the database"),
    ):
        command = [*serve, "--node", "c", "--amqp", "127.0.0.1:0", "--http", "off", "--data", str(data)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 3
        assert sentence in done.stderr


@pytest.mark.long
@pytest.mark.promise("S3", "S6")
def test_nodes_that_run_while_their_namespace_is_moved_out_serve_it_no_more(tmp_path: Path) -> None:
    """One was drained, the owner was paused: both meet the mark and end as a node does that starts afterwards."""
    cluster = Cluster(tmp_path / "cluster", shared_server().new_database("moved-out"), "a", "b")
    try:
        cluster.start()
        owner, other = cluster.owner_and_other()
        assert run(cluster, "drain", other.name)[0] == 0
        owner.signal(signal.SIGSTOP)
        back = tmp_path / "back"
        move = [sys.executable, "-m", "pairbus", "store", "move", "--data", str(back), "--from", cluster.url]
        command = [*move, "--namespace", cluster.namespace]
        wait_until(
            lambda: subprocess.run(command, check=False, capture_output=True).returncode == 0, "it is moved"
        )
        assert other.wait() == 3
        owner.signal(signal.SIGCONT)
        assert owner.wait() == 3
        sentence = f"namespace {cluster.namespace} was moved from"
        assert sentence in other.log()
        owner.begin()
        assert owner.wait() == 3
        assert sentence in owner.log()
        code, _, errors = run(cluster, "status")
        assert code == 3
        assert sentence in errors
    finally:
        cluster.kill()


@pytest.mark.long
def test_a_node_that_cannot_reach_the_owner_says_so(tmp_path: Path) -> None:
    nobody = ("--advertise", "127.0.0.1:1")
    cluster = Cluster(tmp_path / "cluster", shared_server().new_database("advertised"), "a", options=nobody)
    try:
        cluster.start()
        cluster.options = ()
        cluster.nodes.append(NodeProcess(cluster, "b"))
        relay = cluster.nodes[1]
        relay.begin()
        relay.await_ready()
        wait_until(lambda: relay.role == "silent", "it knows that the owner cannot be reached")
        found = relay.health()
        assert (found["status"], found["owner"]) == ("unhealthy", "a")
        assert "127.0.0.1:1 cannot be reached" in found["reason"]
        assert [one["event"] for one in relay.events()].count("cluster.relay_failed") == 1
        code, _, errors = run(cluster, "drain", "b", "--forget")
        assert code == 1
        assert "b runs" in errors
        relay.signal(signal.SIGTERM)
        assert relay.wait() == 0
        states = {one["node"]: one["state"] for one in run(cluster, "status")[1]["nodes"]}
        assert states == {"a": "serving", "b": "stopped"}
        code, _, errors = run(cluster, "drain", "a")
        assert code == 1
        assert "only node" in errors
    finally:
        cluster.kill()
