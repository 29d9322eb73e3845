"""What a role, a database or a server has set may not change what our statements mean, nor what commands say."""

from __future__ import annotations

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner

from pairbus.cli.root import root
from pairbus.server.offline.move import move_to_database, move_to_files
from pairbus.storage.postgres.database import Database
from pairbus.storage.table.ports import NodeEntry, SequenceTaken
from pairbus.testing import Namespace
from tests.contract.table_kinds import new_name
from tests.integration.cluster.kit import QUEUE, Cluster, load
from tests.postgres_kit import shared_server
from tests.waiting import wait_until

HOSTILE = (
    "standard_conforming_strings = off",
    "client_min_messages = debug5",
    "client_min_messages = error",
    "client_encoding = 'LATIN1'",
    "bytea_output = escape",
    "quote_all_identifiers = on",
    "array_nulls = off",
    "transform_null_equals = on",
    "row_security = off",
    "datestyle = 'SQL, DMY'",
    "intervalstyle = sql_standard",
    "timezone = 'Asia/Kolkata'",
    "extra_float_digits = -15",
    "default_transaction_isolation = serializable",
    "default_transaction_isolation = 'repeatable read'",
    "default_transaction_deferrable = on",
    "synchronous_commit = off",
    "statement_timeout = '200ms'",
    "lock_timeout = '1ms'",
    "idle_in_transaction_session_timeout = '1ms'",
    "enable_partition_pruning = off",
    "plan_cache_mode = force_generic_plan",
)
TOGETHER = (
    "standard_conforming_strings = off",
    "client_min_messages = debug5",
    "quote_all_identifiers = on",
    "timezone = 'Asia/Kolkata'",
    "default_transaction_isolation = serializable",
)


def with_role(*settings: str) -> str:
    """The URL of an empty database whose role has these settings."""
    server, name = shared_server(), new_name("settings")
    role = name.replace("-", "_")
    server.new_database(name)
    server.run(f'create role {role} login; alter database "{name}" owner to {role}')
    server.run(f"grant all on schema public to {role}", name)
    for one in settings:
        server.run(f"alter role {role} set {one}")
    return server.url(name).replace("pairbus@", f"{role}@")


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a namespace that a broker has served."""
    directory = tmp_path_factory.mktemp("filled") / "data"
    with Namespace("contoso", queues=[QUEUE], data=directory):
        pass
    return directory


def ask(*words: str, url: str) -> Any:
    done = CliRunner().invoke(root, [*words, "--store", url, "--namespace", "contoso", "--json"])
    assert done.exit_code in (0, 1), done.output
    assert not done.stderr
    return json.loads(done.stdout)


@pytest.mark.long
@pytest.mark.promise("S1", "S3")
@pytest.mark.parametrize("setting", HOSTILE)
def test_what_a_role_has_set_changes_nothing(filled: Path, tmp_path: Path, setting: str) -> None:
    """A move into the database, a takeover, reports, what they wait for, and a move out of it."""
    url = with_role(setting)
    shutil.copytree(filled, data := tmp_path / "data")
    database = Database(url, "contoso")
    moved = move_to_database(data, database, 0, lambda *_: None)
    database = Database(url, "contoso")
    database.prepare()
    lease, nodes = database.lease(), database.nodes()
    for _ in range(3):
        try:
            held = lease.acquire("a", "a:1", 60_000)
            break
        except SequenceTaken:
            continue
    assert held is not None
    nodes.report(NodeEntry(node="a", address="a:1", names=("a",), state="ready", version="1"))
    assert lease.renew(held.epoch, "a:1", 60_000)
    found = ask("cluster", "status", url=url)
    assert (found["owner"], [one["node"] for one in found["nodes"]], found["held_up"]) == ("a", ["a"], [])
    waits_in_the_view(url, nodes)
    lease.release(held.epoch)
    for one in (lease, nodes):
        one.close()
    assert move_to_files(Database(url, "contoso"), tmp_path / "out", 0, lambda *_: None) == moved


def waits_in_the_view(url: str, nodes: Any) -> None:
    """A lock is named with its table and its holder, however the role likes names."""
    administrator = url.replace(url.partition("//")[2].partition("@")[0], "pairbus", 1)
    with psycopg.connect(administrator) as holder, ThreadPoolExecutor(1) as pool:
        holder.execute("lock table pairbus_node in share mode")
        waiting = pool.submit(nodes.report, NodeEntry(node="a", address="", names=(), state="", version=""))
        wait_until(lambda: ask("cluster", "status", url=url)["held_up"], "it waits")
        found = ask("cluster", "status", url=url)["held_up"]
        assert found == [{"table": "pairbus_node", "processes": [holder.info.backend_pid]}]
        holder.rollback()
        waiting.result()


@pytest.mark.long
@pytest.mark.promise("S1", "S3")
def test_nodes_serve_and_take_over_whatever_the_role_has_set(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "cluster", with_role(*TOGETHER), "a", "b")
    try:
        cluster.start()
        owner, other = cluster.owner_and_other()
        with load(owner) as traffic:
            assert ask("connection-string", url=cluster.url)["running"]
            assert ask("cluster", "move", url=cluster.url)["owner"] == other.name
            other.kill()
            cluster.await_owner(but=other)
            count = len(traffic.completed)
            wait_until(lambda: len(traffic.completed) >= count + 20, "clients are served again")
        assert owner.is_running
        assert not [one for one in owner.events() if one.get("event") == "cluster.database_failed"]
    finally:
        cluster.kill()
