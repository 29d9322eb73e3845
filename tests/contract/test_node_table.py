"""The table of a cluster's nodes, on a real PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner

from pairbus.cli.root import root
from pairbus.storage.postgres.connection import Address, NotAnswered
from pairbus.storage.postgres.database import Database
from pairbus.storage.postgres.nodes import PostgresNodes
from pairbus.storage.table.ports import (
    REQUEST_DRAIN,
    REQUEST_MOVE,
    DatabaseCopies,
    HeldUp,
    NodeEntry,
    TableFailed,
)
from tests.contract.table_kinds import new_name
from tests.postgres_kit import own_server, shared_server
from tests.waiting import wait_until

A = NodeEntry(
    node="a", address="10.0.0.1:5671", names=("a.example.com", "10.0.0.1"), state="serving", version="1"
)


HOUR_MS = 3_600_000


@pytest.fixture
def table() -> Iterator[PostgresNodes]:
    database = Database(shared_server().url(), new_name("nodes"))
    database.prepare()
    made = database.nodes()
    yield made
    made.close()


def test_nodes_are_listed_by_name_as_they_last_reported(table: PostgresNodes) -> None:
    b = NodeEntry(node="b", address="10.0.0.2:5671", state="idle", version="1")
    assert table.report(b) == ""
    table.report(A)
    table.report(NodeEntry(node="b", address="10.0.0.2:5671", state="replaying", version="2"))
    found = table.nodes()
    assert [(one.node, one.state, one.version, one.names) for one in found] == [
        ("a", "serving", "1", A.names),
        ("b", "replaying", "2", ()),
    ]
    assert 0 <= found[0].age_ms < 60_000


def test_a_report_for_a_shard_that_is_gone_says_so() -> None:
    database = Database(shared_server().new_database(new_name("gone")), "contoso")
    database.prepare()
    assert database.remove(0)
    table = database.nodes()
    with pytest.raises(TableFailed, match=r"^the shard is gone from .*moved away and back, or removed$"):
        table.report(A)
    table.close()


def test_a_request_stays_over_reports_until_it_was_answered(table: PostgresNodes) -> None:
    assert not table.ask("a", REQUEST_MOVE)
    table.report(A)
    assert table.ask("a", REQUEST_MOVE)
    assert table.report(A) == REQUEST_MOVE
    assert table.report(A) == REQUEST_MOVE
    table.answered("a", REQUEST_MOVE)
    assert table.report(A) == ""


def test_an_answer_takes_no_newer_request_away(table: PostgresNodes) -> None:
    table.report(A)
    table.ask("a", REQUEST_DRAIN)
    table.answered("a", REQUEST_MOVE)
    assert table.report(A) == REQUEST_DRAIN


def test_a_node_can_be_forgotten(table: PostgresNodes) -> None:
    table.report(A)
    assert table.forget("a", 0)
    assert not table.forget("a", 0)
    assert table.nodes() == []


def test_a_node_that_has_reported_since_it_was_looked_at_is_not_forgotten(table: PostgresNodes) -> None:
    table.report(A)
    assert not table.forget("a", HOUR_MS)
    assert not table.forget("a", 2**40)
    assert [one.node for one in table.nodes()] == ["a"]


def test_the_database_tells_about_its_standbys(table: PostgresNodes) -> None:
    assert table.copies() == DatabaseCopies("", ())


HOLDS = [
    ("lock table pairbus_node in share mode", "pairbus_node"),
    ("lock table pairbus_node in access exclusive mode", "pairbus_node"),
    ("select from pairbus_node for update", "pairbus_node"),
    ("lock table pairbus_shard in exclusive mode", "pairbus_shard"),
]


@pytest.mark.parametrize(("lock", "locked"), HOLDS)
def test_what_nodes_wait_for_is_named_with_the_process_that_holds_it(lock: str, locked: str) -> None:
    """Two wait: the second one stands behind the first, which holds nothing up itself."""
    url = shared_server().new_database(new_name("held"))
    database = Database(url, "contoso")
    database.prepare()
    table = database.nodes()
    table.report(A)
    with psycopg.connect(url) as holder, ThreadPoolExecutor(2) as pool:
        holder.execute(lock.encode())
        assert table.held_up() == (), "nobody waits"
        waiting = [pool.submit(_write, url, f"update {locked} set address = ''") for _ in range(2)]
        wait_until(lambda: _waiting_count(url) == len(waiting), "both wait")
        assert table.held_up() == (HeldUp(locked, (holder.info.backend_pid,)),)
        holder.rollback()
        for one in waiting:
            one.result()
    assert table.held_up() == ()
    table.close()


@pytest.mark.parametrize("may_look", [True, False])
def test_a_role_without_rights_sees_who_waits_unless_that_was_taken_from_it(may_look: bool) -> None:
    url, role = shared_server().new_database(new_name("held")), new_name("role").replace("-", "_")
    database = Database(url, "contoso")
    database.prepare()
    _write(
        url,
        f"create role {role} login; grant select, insert, update on all tables in schema public to {role}",
    )
    if not may_look:
        _write(url, "revoke select on pg_locks from public")
    nodes = PostgresNodes(Address(f"{url}&user={role}"), database.shard)
    with psycopg.connect(url) as holder, ThreadPoolExecutor(1) as pool:
        holder.execute("lock table pairbus_node in share mode")
        waiting = pool.submit(_write, url, "update pairbus_node set address = ''")
        wait_until(lambda: _waiting_count(url) == 1, "it waits")
        seen = (HeldUp("pairbus_node", (holder.info.backend_pid,)),)
        assert nodes.held_up() == (seen if may_look else ())
        assert nodes.nodes() == []
        holder.rollback()
        waiting.result()
    nodes.close()


def test_a_lock_on_a_table_of_others_holds_no_node_up() -> None:
    url = shared_server().new_database(new_name("held"))
    database = Database(url, "contoso")
    database.prepare()
    table = database.nodes()
    _write(url, "create schema other; create table other.pairbus_node (one int)")
    with psycopg.connect(url) as holder, ThreadPoolExecutor(1) as pool:
        holder.execute("lock table other.pairbus_node in exclusive mode")
        waiting = pool.submit(_write, url, "insert into other.pairbus_node values (1)")
        wait_until(lambda: _waiting_count(url) == 1, "it waits")
        assert table.held_up() == ()
        holder.rollback()
        waiting.result()
    table.close()


@pytest.mark.long
def test_a_commit_that_waits_long_for_the_standby_holds_nodes_up() -> None:
    with own_server(settings={"synchronous_standby_names": "gone"}) as server, ThreadPoolExecutor(1) as pool:
        url = server.url()
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("set synchronous_commit = local")
            for statement in ("create table pairbus_node (one int)", "create table pairbus_shard (one int)"):
                connection.execute(statement.encode())
        nodes = PostgresNodes(Address(url), 1)
        waiting = pool.submit(_write, url, "insert into pairbus_node values (1)")
        wait_until(lambda: nodes.held_up() == (HeldUp(""),), "it waits")
        server.run("select pg_terminate_backend(pid) from pg_stat_activity where wait_event = 'SyncRep'")
        with pytest.raises(psycopg.OperationalError):
            waiting.result()
        nodes.close()


@pytest.mark.long
@pytest.mark.parametrize("others", [1, 3])
def test_who_waits_behind_a_commit_that_waits_for_the_standby_waits_for_the_standby(others: int) -> None:
    """The commit holds its locks meanwhile. To end its session would leave the outcome open, and bring nothing back."""
    with own_server() as server, ThreadPoolExecutor(1 + others) as pool:
        url = server.url()
        database = Database(url, "contoso")
        database.prepare()
        first, nodes = database.nodes(), database.nodes()
        first.report(A)
        server.run("alter system set synchronous_standby_names = 'gone'")
        server.run("select pg_reload_conf()")
        wait_until(lambda: server.run("show synchronous_standby_names")[0][0] == "gone")
        try:
            waiting: list[Future[Any]] = [pool.submit(first.report, A)]
            wait_until(lambda: _count(url, "wait_event = 'SyncRep'") == 1, "the commit waits")
            waiting += [
                pool.submit(_write, url, "update pairbus_node set address = ''") for _ in range(others)
            ]
            wait_until(lambda: _waiting_count(url) == others, "the others wait behind it")
            assert nodes.held_up() == (HeldUp(""),)
            command = Database(url, "contoso", answer_seconds_max=4.0)
            assert command.find()
            with pytest.raises(
                NotAnswered, match="behind a commit that waits for a synchronous standby"
            ) as told:
                command.nodes().report(A)
            assert "process" not in str(told.value)
            done = CliRunner().invoke(root, ["cluster", "status", "--store", url, "--namespace", "contoso"])
            assert "Calls wait in the database for the synchronous standby" in done.stdout
            assert "pg_terminate_backend" not in done.output
        finally:
            server.run("alter system reset synchronous_standby_names")
            server.run("select pg_reload_conf()")
        for one in waiting:
            one.result()
        for table in (first, nodes):
            table.close()


def _write(url: str, statement: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(statement.encode())


def _waiting_count(url: str) -> int:
    return _count(url, "wait_event_type = 'Lock'")


def _count(url: str, which: str) -> int:
    with psycopg.connect(url) as connection:
        found = connection.execute(
            f"select count(*) from pg_stat_activity where {which} and datname = current_database()".encode()
        ).fetchone()
    assert found is not None
    return int(found[0])
