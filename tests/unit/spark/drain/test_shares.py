from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.spark.drain.shares import share_out

BACKLOGS = st.dictionaries(
    st.sampled_from([f"q{i}" for i in range(12)]), st.none() | st.integers(0, 100_000), min_size=1
)


@pytest.mark.promise("P41")
@given(BACKLOGS, st.integers(1, 16))
def test_every_queue_is_in_some_share_and_no_task_has_a_queue_twice(
    backlog: dict[str, int | None], tasks: int
) -> None:
    shares = share_out(backlog, tasks)

    assert {queue for share in shares for queue in share} == set(backlog)
    assert len(shares) <= tasks
    assert all(len(set(share)) == len(share) for share in shares)


@given(BACKLOGS, st.integers(1, 16))
def test_an_ordered_drain_gives_each_queue_to_one_task(backlog: dict[str, int | None], tasks: int) -> None:
    counts = Counter(queue for share in share_out(backlog, tasks, is_ordered=True) for queue in share)

    assert set(counts.values()) == {1}


def test_a_hot_queue_gets_several_tasks() -> None:
    shares = share_out({"hot": 90_000, "cold": 1_000}, 4)

    assert sum("hot" in share for share in shares) >= 3


def test_small_queues_share_a_task() -> None:
    shares = share_out({f"q{i}": 10 for i in range(10)}, 2)

    assert [len(share) for share in shares] == [5, 5]


def test_nothing_to_do_needs_no_task() -> None:
    assert share_out({}, 4) == []
