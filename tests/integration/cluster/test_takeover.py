"""Real nodes over a real PostgreSQL: owners are killed, stopped, moved, and the database restarts, under the load of real clients."""

from __future__ import annotations

import datetime
import signal
import threading
import time
from collections.abc import Iterator

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from pairbus.server.main import EXIT_DONE, EXIT_FENCED
from tests.integration.cluster.kit import LEASE_SECONDS, Cluster, Recorder, load
from tests.postgres_kit import PostgresServer, own_server
from tests.waiting import wait_until

SLACK_SECONDS = 15.0
"""What a busy machine may add to a bound; what was measured is printed."""


@pytest.fixture(scope="module")
def database() -> Iterator[PostgresServer]:
    with own_server() as server:
        yield server


@pytest.fixture(scope="module")
def running(database: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("cluster"), database.url(), "a", "b")
    yield made
    made.kill()


@pytest.fixture
def cluster(running: Cluster) -> Cluster:
    """Two nodes, both up."""
    running.start()
    return running


@pytest.mark.promise("S3", "S6")
@pytest.mark.long
def test_an_owner_that_is_killed_under_load_loses_nothing(cluster: Cluster) -> None:
    owner, other = cluster.owner_and_other()
    with load(other) as traffic:
        killed = time.monotonic()
        owner.kill()
        wait_until(lambda: other.role == "owner", "the other node owns the namespace")
        served = time.monotonic() - killed
        count = len(traffic.completed)
        wait_until(lambda: len(traffic.completed) >= count + 20, "clients are served again")
        traffic.stop_sending()
        traffic.await_all_completed()
    print(f"served again after {served:.2f} s, senders waited {traffic.silence(killed):.2f} s")
    traffic.check([killed])
    assert served < LEASE_SECONDS + 1 + SLACK_SECONDS


@pytest.mark.promise("S4")
@pytest.mark.long
def test_an_owner_that_was_stopped_longer_than_its_lease_says_nothing_when_it_wakes(cluster: Cluster) -> None:
    owner, other = cluster.owner_and_other()
    recorder = Recorder(owner.port)
    through = owner.connection_string.replace(f":{owner.port}/", f":{recorder.port}/")
    received: list[str] = []
    with (
        ServiceBusClient.from_connection_string(through, retry_total=0) as client,
        client.get_queue_sender("later") as sender,
        client.get_queue_receiver("later", prefetch_count=50) as receiver,
    ):
        sender.send_messages(ServiceBusMessage("first"))
        for message in receiver.receive_messages(1, max_wait_time=30):
            received.append(str(message))
            receiver.complete_message(message)
        due = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=1)
        sender.schedule_messages([ServiceBusMessage(f"due {n}") for n in range(20)], due)
        owner.signal(signal.SIGSTOP)
        # These wait in the stopped process's sockets: a send to answer, and soon twenty messages to deliver.
        asking = threading.Thread(target=_try_to_send, args=(sender,))
        asking.start()
        wait_until(lambda: other.role == "owner", "the other node owns the namespace")
        with (
            ServiceBusClient.from_connection_string(other.connection_string) as second,
            second.get_queue_receiver("later") as taker,
        ):
            taken: list[str] = []

            def take() -> bool:
                for message in taker.receive_messages(20, max_wait_time=1):
                    taken.append(str(message))
                    taker.complete_message(message)
                return len([one for one in taken if one.startswith("due")]) >= 20

            wait_until(take, "the next owner delivers what became due")
        woken = time.monotonic()
        owner.signal(signal.SIGCONT)
        assert owner.wait() == EXIT_FENCED
        print(f"fenced {time.monotonic() - woken:.2f} s after waking")
        asking.join(60)
        assert not asking.is_alive()
    recorder.close()
    assert [count for at, count in recorder.sent if at >= woken] == []
    assert received == ["first"]
    assert sorted(taken) == sorted(f"due {n}" for n in range(20))
    assert "fenced" in owner.log()


def _try_to_send(sender: object) -> None:
    try:
        sender.send_messages(ServiceBusMessage("unanswered"), timeout=20)  # type: ignore[attr-defined]
    except Exception as error:  # noqa: BLE001 - whatever the SDK makes of a cut connection
        print(f"the send failed, as it should: {error!r}")
    else:
        raise AssertionError("a stopped owner answered")


@pytest.mark.promise("S3", "S6")
@pytest.mark.long
def test_a_planned_stop_moves_the_namespace_at_once(cluster: Cluster) -> None:
    owner, other = cluster.owner_and_other()
    with load(other) as traffic:
        asked = time.monotonic()
        owner.signal(signal.SIGTERM)
        wait_until(lambda: other.role == "owner", "the other node owns the namespace")
        moved = time.monotonic() - asked
        assert owner.wait() == EXIT_DONE
        count = len(traffic.completed)
        wait_until(lambda: len(traffic.completed) >= count + 20, "clients are served again")
        traffic.stop_sending()
        traffic.await_all_completed()
    print(f"moved in {moved:.2f} s, senders waited {traffic.silence(asked):.2f} s")
    traffic.check([asked + moved])
    assert moved < 1 + SLACK_SECONDS


@pytest.mark.promise("S5", "S7", "S8")
@pytest.mark.long
def test_a_database_that_restarts_interrupts_and_loses_nothing(
    cluster: Cluster, database: PostgresServer
) -> None:
    owner, other = cluster.owner_and_other()
    epoch = owner.health()["epoch"]
    with load(other) as traffic:
        stopped = time.monotonic()
        database.kill()
        database.start()
        back = time.monotonic() - stopped
        count = len(traffic.acknowledged)
        wait_until(lambda: len(traffic.acknowledged) >= count + 20, "sends are acknowledged again")
        traffic.stop_sending()
        traffic.await_all_completed()
        owners = {node.health()["epoch"] for node in cluster.nodes}
    print(f"database back after {back:.2f} s, senders waited {traffic.silence(stopped):.2f} s")
    traffic.check([] if owners == {epoch} else [stopped, time.monotonic()])


@pytest.mark.promise("S8")
@pytest.mark.long
def test_without_its_database_a_namespace_refuses_and_acknowledges_nothing(
    cluster: Cluster, database: PostgresServer
) -> None:
    owner, other = cluster.owner_and_other()
    with load(other) as traffic:
        database.kill()
        stopped = time.monotonic()
        try:
            wait_until(lambda: owner.role == "silent", "the owner is silent")
            last = len(traffic.acknowledged)
            wait_until(
                lambda: any(event.get("event") == "cluster.cut" for event in owner.events()),
                "the owner's clients are cut",
            )
            failures = len(traffic.errors)
            wait_until(lambda: len(traffic.errors) > failures, "clients are refused")
            assert len(traffic.acknowledged) == last
            assert owner.role == "silent"
            wait_until(lambda: other.role == "silent", "who relays knows that the lease has ended")
        finally:
            database.start()
        wait_until(lambda: len(traffic.acknowledged) > last, "sends are acknowledged again")
        traffic.stop_sending()
        traffic.await_all_completed()
    print(f"acknowledged again {traffic.silence(stopped):.2f} s after the database had gone")
    traffic.check([stopped, time.monotonic()])
