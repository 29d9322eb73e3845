"""Message bytes that were stored last: the newest stay, and nothing that is not durable goes."""

from __future__ import annotations

import pytest

from pairbus.storage.recent import RecentBlobs

BLOB = b"x" * 100


@pytest.mark.promise("B62")
def test_the_newest_stay_and_the_older_ones_are_gone() -> None:
    recent = RecentBlobs(1_000)
    for location in range(100, 3_100, 100):
        recent.add(location, BLOB, durable=10_000)

    held = [location for location in range(100, 3_100, 100) if recent.get(location) is not None]

    assert held == list(range(held[0], 3_100, 100)), "no gaps, up to the newest"
    assert recent.recent_bytes == len(held) * len(BLOB) <= 1_000


def test_forgetting_changes_the_count_only_where_something_was() -> None:
    recent = RecentBlobs(1_000)
    for location in range(100, 3_100, 100):
        recent.add(location, BLOB, durable=10_000)
    before = recent.recent_bytes

    recent.forget(100)
    assert recent.recent_bytes == before, "it had gone before"
    recent.forget(3_000)
    recent.forget(3_000)
    assert recent.recent_bytes == before - len(BLOB)
    assert recent.get(3_000) is None


def test_what_is_not_durable_stays_however_much_it_is() -> None:
    recent = RecentBlobs(1_000)
    for location in range(100, 5_100, 100):
        recent.add(location, BLOB, durable=600)

    assert [recent.get(location) is not None for location in (100, 500, 600, 700, 5_000)] == [
        False,
        False,
        True,
        True,
        True,
    ]


def test_when_all_has_gone_the_next_one_is_kept() -> None:
    recent = RecentBlobs(0)
    recent.add(100, BLOB, durable=1_000)
    assert recent.get(100) is None
    recent.add(1_000, BLOB, durable=1_000)
    assert recent.get(1_000) == BLOB
