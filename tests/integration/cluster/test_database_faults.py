"""Real nodes whose PostgreSQL loses commits in a promotion, or is frozen."""

from __future__ import annotations

import signal
import threading
import time
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from pairbus.errors import StoreUnavailable
from pairbus.server.main import EXIT_DONE, EXIT_FENCED, STOP_SECONDS_MAX
from pairbus.server.offline.move import move_to_files
from pairbus.storage.postgres.opening import named_database
from tests.integration.cluster.kit import QUEUE, Cluster, Load, NodeProcess, load
from tests.postgres_kit import own_server
from tests.swallowing import swallowing_way
from tests.waiting import wait_until

LOST = 5
SLACK_SECONDS = 8.0
"""What a busy machine may add to a bound; together they stay below the time that a service manager gives."""


@pytest.mark.promise("S1", "S3")
@pytest.mark.slow
def test_a_former_owner_tells_of_commits_that_a_promotion_lost_before_another_node_took_over(
    tmp_path: Path,
) -> None:
    with own_server(tcp=True) as primary:
        standby = primary.add_standby(is_synchronous=False)
        cluster = Cluster(tmp_path / "cluster", primary.url("postgres", standby), "a", "b")
        try:
            cluster.start()
            owner, other = cluster.owner_and_other()
            with (
                ServiceBusClient.from_connection_string(owner.connection_string) as client,
                client.get_queue_sender(QUEUE) as sender,
            ):
                sender.send_messages(ServiceBusMessage("kept"))
                sent = primary.run("select pg_current_wal_flush_lsn()")[0][0]
                wait_until(
                    lambda: standby.run(f"select pg_last_wal_replay_lsn() >= '{sent}'")[0][0],
                    "the standby has it",
                )
                standby.run("alter system set primary_conninfo = ''")
                standby.run("select pg_reload_conf()")
                wait_until(
                    lambda: not primary.run("select pid from pg_stat_replication"),
                    "the standby follows no more",
                )
                for number in range(LOST):
                    sender.send_messages(ServiceBusMessage(f"lost {number}"))
                owner.signal(signal.SIGSTOP)
            primary.kill()
            standby.promote()
            wait_until(lambda: other.role == "owner", "the other node owns the namespace")
            owner.signal(signal.SIGCONT)
            assert owner.wait() == EXIT_FENCED
            (told,) = (one for one in owner.events() if one.get("event") == "cluster.log_shortened")
            assert told["missing"] >= LOST
            assert f"lacks the last {told['missing']} frames" in owner.log().splitlines()[-1]
            with (
                ServiceBusClient.from_connection_string(other.connection_string) as client,
                client.get_queue_receiver(QUEUE) as receiver,
            ):
                received = [str(one) for one in receiver.receive_messages(20, max_wait_time=3)]
            assert received == ["kept"]
        finally:
            cluster.kill()
            standby.dispose()


@pytest.mark.promise("S8")
@pytest.mark.slow
@pytest.mark.parametrize("when", ["serving", "silent", "starting"])
def test_a_node_stops_in_time_although_its_database_is_frozen(when: str, tmp_path: Path) -> None:
    """A service manager would kill it otherwise, in the middle of whatever it does."""
    with own_server(tcp=True) as server:
        cluster = Cluster(tmp_path / "cluster", server.url(), "a")
        (node,) = cluster.nodes
        loads: list[Load] = []

        def traffic(node: NodeProcess) -> Load:
            """A commit is under way all the time."""
            if not loads:
                loads.append(Load(node.connection_string, receivers=0))
                loads[0].start()
            return loads[0]

        try:
            if when == "starting":
                server.pause()
                cluster.begin()
                wait_until(lambda: _connects(server.port), "it connects")
            else:
                cluster.start()
                wait_until(lambda: len(traffic(node).acknowledged) > 0, "sends are acknowledged")
                server.pause()
            if when == "silent":
                wait_until(lambda: node.role == "silent", "it is silent")
            asked = time.monotonic()
            node.signal(signal.SIGTERM)
            assert node.wait() == EXIT_DONE
            took = time.monotonic() - asked
            print(f"stopped after {took:.1f} s")
            assert took < STOP_SECONDS_MAX + SLACK_SECONDS
        finally:
            server.resume()
            cluster.kill()
            for load in loads:
                load.stop()


@pytest.mark.promise("S3", "S8")
@pytest.mark.slow
@pytest.mark.parametrize("how", ["frozen", "swallowed"])
def test_nodes_leave_a_primary_that_is_silent_for_the_standby_that_was_promoted(
    how: str, tmp_path: Path
) -> None:
    """Its connections stay up. Owner and relay serve again, with everything that was acknowledged, and the old one is of no harm later."""
    with own_server(tcp=True) as primary, swallowing_way(("127.0.0.1", primary.port)) as way:
        standby = primary.add_standby()
        url = (
            primary.url("postgres", standby).replace(f":{primary.port}", f":{way.port}")
            + "?connect_timeout=2"
        )
        cluster = Cluster(tmp_path / "cluster", url, "a", "b")
        try:
            cluster.start()
            _, relay = cluster.owner_and_other()
            with load(relay) as traffic:
                if how == "frozen":
                    primary.pause()
                else:
                    way.swallow()
                struck = time.monotonic()
                wait_until(
                    lambda: cluster.nodes[0].role == cluster.nodes[1].role == "silent", "both are silent"
                )
                assert "the database has not answered for" in relay.health()["reason"]
                standby.run("alter system set synchronous_standby_names = ''")
                standby.promote()
                cluster.await_owner()
                # Which of the two owns it is left open. A former owner that comes second ends, and is started again.
                cluster.start()
                owner, relay = cluster.owner_and_other()
                taken = time.monotonic()
                count = len(traffic.acknowledged)
                wait_until(lambda: len(traffic.acknowledged) > count + 50, "sends are acknowledged again")
                primary.resume()
                way.pass_on()
                count = len(traffic.acknowledged)
                wait_until(lambda: len(traffic.acknowledged) > count + 200, "it goes on beside the old one")
                assert (owner.role, relay.role) == ("owner", "relay")
                traffic.stop_sending()
                traffic.await_all_completed()
            traffic.check([struck, taken])
            for node in cluster.nodes:
                assert node.metric("pairbus_cluster_database_failures_total") > 0
                assert "cluster.database_left" in node.log()
        finally:
            primary.resume()
            cluster.kill()
            standby.dispose()


def _connects(port: int) -> bool:
    """Whether a connection to this port of the loopback address is open (Linux)."""
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    return any(line.split()[2:4] == [f"0100007F:{port:04X}", "01"] for line in lines)


@pytest.mark.promise("S4", "S8")
@pytest.mark.slow
def test_a_move_while_the_standby_is_away_leaves_the_owner_alone(tmp_path: Path) -> None:
    """The owner's renewal waits for the standby and holds the row of the lease. The move does not wait for that row."""
    with own_server(tcp=True) as primary:
        standby = primary.add_standby()
        cluster = Cluster(tmp_path / "cluster", primary.url(), "a")
        (node,) = cluster.nodes
        try:
            cluster.start()
            epoch = node.health()["epoch"]
            standby.pause()
            wait_until(lambda: node.role == "silent", "it is silent")
            database = named_database(primary.url(), cluster.namespace, 60.0)
            assert database.find()
            lease = database.lease()
            wait_until(lambda: lease.look().remaining_ms <= 0, "its lease has ended")
            lease.close()
            back = threading.Timer(3.0, standby.resume)  # while a move that waits would wait
            back.start()
            with pytest.raises(StoreUnavailable, match="waits for the database to renew its lease"):
                move_to_files(database, tmp_path / "back", 0, lambda *_: None)
            back.join()
            wait_until(lambda: node.role == "owner" or not node.is_running, "it serves again")
            assert node.is_running, node.log()
            renewals = node.metric("pairbus_cluster_lease_renewals_total")
            wait_until(
                lambda: (
                    not node.is_running
                    or node.metric("pairbus_cluster_lease_renewals_total") >= renewals + 10
                ),
                "it goes on",
            )
            assert node.health()["epoch"] == epoch
            assert not (tmp_path / "back").exists()
        finally:
            standby.resume()
            cluster.kill()
            standby.dispose()
