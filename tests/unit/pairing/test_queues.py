"""How an existing backlog queue differs, and what of that is dangerous."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from pairbus.pairing.rules.queues import SETTINGS, UNLIMITED, BacklogQueue, mark_of, read, take_census


def queue(name: str = "p/x-servicebus-transfer/3", **changes: Any) -> Any:
    usual = {**SETTINGS, "requires_session": False, "status": "Active", "forward_to": None}
    usual |= {"requires_duplicate_detection": False, "user_metadata": None}
    return SimpleNamespace(name=name, **{**usual, **changes})


def test_a_queue_as_pairing_makes_it_has_no_differences() -> None:
    assert read("p", queue()) == BacklogQueue(3, "p/x-servicebus-transfer/3")
    longest = timedelta(days=10_675_199, hours=2, minutes=48, seconds=5, microseconds=477_581)
    assert read("p", queue(default_message_time_to_live=longest)) == read("p", queue())
    assert read("p", queue(name="orders")) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_size_in_megabytes", 1024),
        ("max_delivery_count", 10),
        ("default_message_time_to_live", timedelta(days=14)),
        ("auto_delete_on_idle", timedelta(minutes=5)),
        ("lock_duration", timedelta(seconds=30)),
        ("dead_lettering_on_message_expiration", False),
        ("enable_batched_operations", False),
    ],
)
def test_each_difference_is_told_by_itself_with_what_was_expected(name: str, value: Any) -> None:
    found = read("p", queue(**{name: value}))

    assert found is not None
    assert len(found.differences) == 1
    assert name in found.differences[0]
    assert str(value) in found.differences[0]
    assert "expected" in found.differences[0]
    assert found.dangers == ()


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"requires_session": True}, "sessions"),
        ({"status": "Disabled"}, "sends there fail"),
        ({"status": "SendDisabled"}, "sends there fail"),
        ({"forward_to": "elsewhere"}, "leak"),
    ],
)
def test_a_queue_where_sends_fail_or_leak_is_not_used(changes: dict[str, Any], word: str) -> None:
    found = read("p", queue(**changes))

    assert found is not None
    assert word in found.obstacle
    assert "pair again" in found.obstacle, "the way out"
    assert found.dangers == ()


def test_a_queue_that_cannot_be_drained_is_used_and_told_of() -> None:
    found = read("p", queue(status="ReceiveDisabled"))

    assert found is not None
    assert found.obstacle == ""
    assert "cannot drain" in found.dangers[0]


@pytest.mark.promise("P29")
def test_the_census_sorts_used_missing_and_extra() -> None:
    found = [BacklogQueue(index, f"q{index}") for index in (9, 0, 2, 7)]

    census = take_census(found, 4)

    assert list(census.existing) == [0, 2]
    assert census.missing == (1, 3)
    assert [extra.index for extra in census.extra] == [7, 9]
    assert UNLIMITED == "P10675199DT2H48M5.4775807S"


def test_a_queue_that_detects_duplicates_could_lose_a_message() -> None:
    found = read("p", queue(requires_duplicate_detection=True))

    assert found is not None
    assert "detects duplicates" in found.obstacle


@pytest.mark.parametrize(
    ("metadata", "owner"),
    [(None, ""), ("the team's notes", ""), (mark_of("broker.internal:5699"), "broker.internal:5699")],
)
def test_a_queue_says_which_primary_it_was_created_for(metadata: str | None, owner: str) -> None:
    found = read("p", queue(user_metadata=metadata))

    assert found is not None
    assert found.owner == owner
