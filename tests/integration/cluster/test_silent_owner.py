"""Real nodes where something is silent and nothing fails: the way to the owner, or the answer to a report."""

from __future__ import annotations

import socket
from pathlib import Path

import psycopg
import pytest

from tests.integration.cluster.kit import Cluster, load
from tests.postgres_kit import shared_server
from tests.swallowing import swallowing_way
from tests.waiting import wait_until


@pytest.mark.long
@pytest.mark.parametrize("closes", [False, True])
def test_a_relay_is_unhealthy_while_the_owner_takes_connections_and_says_nothing(
    tmp_path: Path, closes: bool
) -> None:
    """A balancer would go on sending clients to it. The database answers both nodes, so the owner keeps its lease."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    with swallowing_way(("127.0.0.1", port)) as way:
        cluster = Cluster(tmp_path / "cluster", shared_server().url(), "a", "b", namespace="swallowed")
        owner, relay = cluster.nodes
        owner.listen(port, "--advertise", f"127.0.0.1:{way.port}")
        try:
            owner.begin()
            owner.await_ready()
            wait_until(lambda: owner.role == "owner", "the first node serves")
            relay.begin()
            relay.await_ready()
            wait_until(lambda: relay.health().get("status") == "healthy", "it relays")
            epoch = owner.health()["epoch"]
            way.close_each() if closes else way.swallow()
            wait_until(lambda: relay.health()["status"] == "unhealthy", "it says that it serves nobody")
            for _ in range(20 if closes else 1):
                reason = relay.health().get("reason", "it is healthy")
                does = "cannot be reached: " if closes else "takes connections and has said nothing for "
                assert reason.startswith(f"the owner at 127.0.0.1:{way.port} {does}")
                with socket.create_connection(("127.0.0.1", relay.port)) as client:
                    client.sendall(b"AMQP\x03\x01\x00\x00")  # relayed as far as TCP goes
                    assert closes is False or not _received(client)
            assert owner.health()["role"] == "owner"
            way.pass_on()
            wait_until(lambda: relay.health()["status"] == "healthy", "it serves again")
            assert owner.health()["epoch"] == epoch
        finally:
            cluster.kill()


def _received(client: socket.socket) -> bytes:
    """Empty: the connection has ended."""
    try:
        return client.recv(64)
    except ConnectionError:
        return b""


@pytest.mark.long
def test_an_owner_whose_report_waits_keeps_its_lease_and_says_that_its_report_waits(tmp_path: Path) -> None:
    """Another session holds the row of the node. The row of the lease is free."""
    cluster = Cluster(tmp_path / "cluster", shared_server().url(), "a", namespace="reporting")
    (node,) = cluster.nodes
    try:
        cluster.start()
        with shared_server().connect() as other, other.transaction():
            other.execute(
                "select from pairbus_node where node = 'a' and shard = "
                "(select shard from pairbus_shard where name = 'reporting') for update"
            )
            renewals = node.metric("pairbus_cluster_lease_renewals_total")
            warning = wait_until(lambda: node.health().get("warning", ""), "it tells of its report")
            assert warning.startswith("the database has not answered this node's report for "), warning
            wait_until(
                lambda: node.metric("pairbus_cluster_lease_renewals_total") > renewals + 15, "it renews"
            )
            assert node.health()["role"] == "owner"
        wait_until(lambda: "warning" not in node.health(), "its report was answered")
        assert node.metric("pairbus_cluster_silences_total") == 0
    finally:
        cluster.kill()


@pytest.mark.long
@pytest.mark.promise("S8")
def test_owner_and_relay_are_unhealthy_while_commits_wait_and_renewals_do_not(tmp_path: Path) -> None:
    """Another session holds a lock on the table of frames. The row of the lease is free."""
    url = shared_server().new_database("commits-wait")
    cluster = Cluster(tmp_path / "cluster", url, "a", "b", namespace="waiting")
    try:
        cluster.start()
        owner, relay = cluster.owner_and_other()
        with load(relay) as traffic:
            wait_until(lambda: len(traffic.acknowledged) > 0, "sends are acknowledged")
            with psycopg.connect(url) as other:
                other.execute("lock table pairbus_frame in share mode")
                wait_until(lambda: owner.health()["status"] == "unhealthy", "the owner answers nobody")
                said = "the database has not answered a commit for "
                assert owner.health()["reason"].startswith(said)
                assert owner.health()["role"] == owner.role == "silent"
                wait_until(lambda: relay.health()["status"] == "unhealthy", "the relay serves nobody either")
                told = relay.health()["reason"]
                assert told.startswith("the owner at ")
                assert f" serves nobody: {said}" in told
                wait_until(lambda: " lock" in owner.health()["reason"], "it says what for")
                wait_until(lambda: _state_of(url, owner.name) == "waiting", "the others see it")
            wait_until(lambda: owner.role == "owner" and relay.role == "relay", "both serve again")
            wait_until(lambda: _state_of(url, owner.name) == "serving", "the others see it")
            assert "reason" not in owner.health()
    finally:
        cluster.kill()


def _state_of(url: str, node: str) -> str:
    with psycopg.connect(url) as connection:
        found = connection.execute("select state from pairbus_node where node = %s", [node]).fetchone()
    assert found is not None
    return str(found[0])
