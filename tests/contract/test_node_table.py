"""The table of a cluster's nodes, on a real PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pairbus.storage.postgres.database import Database
from pairbus.storage.postgres.nodes import PostgresNodes
from pairbus.storage.table.ports import REQUEST_DRAIN, REQUEST_MOVE, DatabaseCopies, NodeEntry, TableFailed
from tests.contract.table_kinds import new_name
from tests.postgres_kit import shared_server

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
