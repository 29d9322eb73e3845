"""A cluster as people read it."""

from __future__ import annotations

from dataclasses import replace

from pairbus.server.cluster.status import LATE_MS, STALE_MS, STOPPED, describe, is_reporting
from pairbus.storage.table.ports import MOVER, DatabaseCopies, NodeEntry, Ownership, StandbyEntry


def node(name: str, age_ms: int = 0) -> NodeEntry:
    return NodeEntry(node=name, address=f"{name}:5671", state="idle", version="1", age_ms=age_ms)


def test_owner_relay_and_a_node_that_is_gone() -> None:
    found = describe(
        "contoso",
        Ownership(3, "a", "a:5671", 1_940),
        [node("a"), node("b"), node("c", STALE_MS), node("d", LATE_MS)],
        None,
    )
    assert (found["owner"], found["epoch"], found["lease_seconds_left"]) == ("a", 3, 1.9)
    assert [(one["role"], one["state"]) for one in found["nodes"]] == [
        ("owner", "idle"),
        ("relay", "idle"),
        (None, "gone"),
        (None, "late"),
    ]
    assert found["database"] is None


def test_a_lease_that_has_ended_has_no_owner() -> None:
    found = describe("contoso", Ownership(3, "a", "a:5671", -5), [node("a")], None)
    assert (found["owner"], found["address"], found["lease_seconds_left"]) == (None, None, 0)
    assert found["nodes"][0]["role"] is None  # there is nobody to relay to


def test_an_owner_whose_reports_wait_is_late_and_owns_it_all_the_same() -> None:
    found = describe("contoso", Ownership(3, "a", "a:5671", 1_940), [node("a", 2 * STALE_MS)], None)
    assert [(one["role"], one["state"]) for one in found["nodes"]] == [("owner", "late")]


def test_a_move_that_holds_the_lease_is_no_node() -> None:
    found = describe("contoso", Ownership(3, MOVER, "", 1_940), [node("a")], None)
    assert (found["owner"], found["is_moved"], found["lease_seconds_left"]) == (None, True, 1.9)
    assert not describe("contoso", Ownership(3, MOVER, "", 0), [node("a")], None)["is_moved"]


def test_a_node_that_was_stopped_is_shown_so_and_does_not_count() -> None:
    stopped = replace(node("b"), state=STOPPED)
    found = describe("contoso", Ownership(3, "a", "a:5671", 1_940), [node("a"), stopped], None)
    assert [(one["role"], one["state"]) for one in found["nodes"]] == [("owner", "idle"), (None, "stopped")]
    assert [is_reporting(one) for one in (node("a"), stopped, node("c", STALE_MS))] == [True, False, False]


def test_standbys_are_shown_as_far_as_the_role_may_see_them() -> None:
    copies = DatabaseCopies(
        "ANY 1 (db-2)",
        (
            StandbyEntry(name="db-2", state="quorum", behind_bytes=512, behind_ms=1_500),
            StandbyEntry(name="", state="", behind_bytes=None, behind_ms=None),
        ),
    )
    found = describe("contoso", Ownership(1, "", "", 0), [], copies)["database"]
    assert found["synchronous_standby_names"] == "ANY 1 (db-2)"
    assert found["standbys"] == [
        {"standby": "db-2", "state": "quorum", "behind_bytes": 512, "behind_seconds": 1.5},
        {"standby": None, "state": None, "behind_bytes": None, "behind_seconds": None},
    ]
