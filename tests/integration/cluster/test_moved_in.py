"""Real nodes that wait while their namespace is moved into the database: they serve it once it is there, without a restart."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from pairbus.server.offline.move import move_to_database
from pairbus.storage.postgres.database import Database
from pairbus.testing import Namespace
from tests.contract.table_kinds import new_name
from tests.integration.cluster.kit import QUEUE, Cluster
from tests.postgres_kit import shared_server
from tests.waiting import wait_until

SECONDS_MAX = 60


class HeldMove:
    """A move into a database that stands still after a part of its copy, and again before the copy gets its name."""

    def __init__(self, data: Path, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
        self.copies, self.goes_on, self.marked, self.ends = (threading.Event() for _ in range(4))
        replace_with = Database.replace_with

        def replace(own: Database, other: Database) -> None:
            self.marked.set()
            assert self.ends.wait(SECONDS_MAX)
            replace_with(own, other)

        monkeypatch.setattr(Database, "replace_with", replace)
        self._thread = threading.Thread(target=move_to_database, args=(data, database, 0, self._progress))
        self._thread.start()

    def _progress(self, done: int, total: int) -> None:
        if not self.copies.is_set() and done:
            self.copies.set()
            assert self.goes_on.wait(SECONDS_MAX)

    def close(self) -> None:
        self.goes_on.set()
        self.ends.set()
        self._thread.join(SECONDS_MAX)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    with (
        Namespace("contoso", queues=[QUEUE], data=tmp_path / "own") as namespace,
        ServiceBusClient.from_connection_string(namespace.connection_string) as client,
        client.get_queue_sender(QUEUE) as sender,
    ):
        sender.send_messages([ServiceBusMessage(str(number)) for number in range(3)])
    return tmp_path / "own"


@pytest.mark.long
@pytest.mark.promise("S3", "S6")
def test_nodes_that_wait_while_their_namespace_is_moved_in_serve_it_then(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One was started while the move copied, another one after it had marked its source."""
    url = shared_server().new_database(new_name("in"))
    cluster = Cluster(tmp_path / "cluster", url, "a", "b")
    first, second = cluster.nodes
    move = HeldMove(data, Database(url, cluster.namespace), monkeypatch)
    try:
        assert move.copies.wait(SECONDS_MAX)
        first.begin()
        wait_until(lambda: "cluster.started" in first.log() or not first.is_running, "the first node waits")
        move.goes_on.set()
        assert move.marked.wait(SECONDS_MAX)
        second.begin()
        for node in cluster.nodes:
            wait_until(
                lambda node=node: "cluster.moving_in" in node.log() or not node.is_running,  # type: ignore[misc]
                "it knows that the namespace is moved in",
            )
            assert node.is_running, node.log()
        move.close()
        for node in cluster.nodes:
            node.await_ready()
        owner, _ = cluster.owner_and_other()
        with (
            ServiceBusClient.from_connection_string(owner.connection_string) as client,
            client.get_queue_receiver(QUEUE) as receiver,
        ):
            received = receiver.receive_messages(3, max_wait_time=10)
            assert [str(one) for one in received] == ["0", "1", "2"]
            assert [one.sequence_number for one in received] == [1, 2, 3]
    finally:
        move.close()
        cluster.kill()
