"""Pairs that keep the order of sessions. ``PAIRBUS_SEEDS=n`` runs more worlds, ``PAIRBUS_SEED=n`` replays one."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import pytest

from pairbus.pairing.events import Kind
from tests.simulation.pair.ordered import PLANTED, OrderedWorld
from tests.simulation.seeds import groups, seeds


@cache
def lived(seed: int) -> Mapping[Kind, int]:
    """How many events of each kind there were in a world, which is run once."""
    world = OrderedWorld(seed)
    world.run()
    return world.events


@pytest.mark.promise("P15")
@pytest.mark.parametrize("group", groups(seeds(24, least=2_000), 8))
def test_sessions_arrive_in_order_across_outages_kills_and_evictions(group: list[int]) -> None:
    for seed in group:
        lived(seed)


@pytest.mark.promise("P15")
@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(59, id="a_session_goes_on_behind_the_last_message_that_a_look_has_shown"),
        pytest.param(196, id="a_message_has_a_lower_number_than_one_behind_those_of_the_client_before"),
        pytest.param(1606, id="a_message_has_a_lower_number_than_the_one_that_follows_the_session_for_it"),
    ],
)
def test_worlds_that_failed_once(seed: int) -> None:
    lived(seed)


@pytest.mark.long
def test_the_worlds_are_cruel_enough_for_the_order() -> None:
    events: dict[Kind, int] = {}
    for seed in range(40):
        for kind, count in lived(seed).items():
            events[kind] = events.get(kind, 0) + count

    assert events[Kind.FENCE_STANDS] > 20
    assert events[Kind.FENCE_LIFTED] > 20
    assert events[Kind.FENCE_TIMED_OUT] > 5
    assert events[Kind.QUEUE_EVICTED] > 10


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_of_the_order_is_caught(bug: str) -> None:
    with pytest.raises(AssertionError, match="order:"):
        for seed in range(200):
            OrderedWorld(seed, bug=bug, is_plain=True).run()
