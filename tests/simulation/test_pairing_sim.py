"""Pairs with failures. ``PAIRBUS_SEEDS=n`` runs at least 2,000 worlds, ``PAIRBUS_SEED=n`` replays one."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import pytest

from tests.simulation.pair.world import PLANTED, World
from tests.simulation.seeds import groups, seeds

# `make test` runs 200 worlds; `make sim`, which names a number, at least 2,000: a world takes milliseconds.
_GROUPS = groups(seeds(200, least=2_000), 50)


class Lived(NamedTuple):
    parked: int
    pings: int
    changes: int
    outcomes: frozenset[str]


@cache
def lived(seed: int) -> Lived:
    """What happened in a world, which is run once."""
    checks = World(seed).run()
    return Lived(checks.parked, checks.pings, checks.changes, frozenset(checks.outcome.values()))


@pytest.mark.promise(
    "P1", "P2", "P4", "P5", "P8", "P12", "P17", "P18", "P21", "P22", "P25", "P27", "P32", "P34", "P36", "P38"
)
@pytest.mark.parametrize("group", _GROUPS)
def test_accepted_sends_survive_outages_crashes_and_flapping(group: list[int]) -> None:
    for seed in group:
        lived(seed)


def test_the_same_seed_gives_the_same_history() -> None:
    assert World(11).run().digest() == World(11).run().digest()


@pytest.mark.long
def test_the_worlds_are_cruel_enough() -> None:
    worlds = [lived(seed) for seed in range(40)]

    assert sum(world.parked for world in worlds) > 100
    assert sum(world.pings for world in worlds) > 50
    assert sum(world.changes for world in worlds) > 50
    assert {outcome for world in worlds for outcome in world.outcomes} == {"ok", "fail", "unknown"}


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_caught(bug: str) -> None:
    promises = {
        "complete_before_send": "P34",
        "rotation_not_shared": "P32",
        "alias_lost": "P8",
        "ping_counts_after_gone": "P25",
        "timer_restarted": "P18",
        "copies_not_known": "P36",
    }
    with pytest.raises(AssertionError, match=f"{promises[bug]}:"):
        for seed in range(200):
            World(seed, bug=bug).run()
