"""A paired client that keeps an order and has a spool. ``PAIRBUS_SEEDS=n`` runs more worlds, ``PAIRBUS_SEED=n`` replays one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import NamedTuple

import pytest

from pairbus.pairing.events import Kind
from tests.simulation.pair.ordered_spool import PLANTED, OrderedSpoolWorld
from tests.simulation.pair.spool_world import directories
from tests.simulation.seeds import groups, seeds

Make = Callable[..., OrderedSpoolWorld]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Make]:
    """Makes worlds, each with an empty directory."""
    with directories(tmp_path_factory.mktemp("worlds")) as new:
        yield lambda seed, bug="", **more: OrderedSpoolWorld(seed, new(), bug, **more)


class Lived(NamedTuple):
    spooled: int
    kills: int
    by_hand: int
    stays_behind: int
    keeps: str
    events: Mapping[Kind, int]


@pytest.fixture(scope="module")
def lived(world: Make) -> Callable[[int], Lived]:
    """What happened in a world, which is run once."""

    @cache
    def live(seed: int) -> Lived:
        run = world(seed)
        run.run()
        assert run.left == [], f"seed {seed}: an empty spool was not deleted"
        return Lived(len(run.checks.spooled), run.kills, run.by_hand, run.stays_behind, run.keeps, run.events)

    return live


@pytest.mark.promise("P1", "P2", "P5", "P8", "P15", "P36", "P50", "P51")
@pytest.mark.parametrize("group", groups(seeds(24, least=1_000), 12))
def test_parked_spooled_and_direct_messages_of_a_session_arrive_in_order(
    group: list[int], lived: Callable[[int], Lived]
) -> None:
    for seed in group:
        lived(seed)


@pytest.mark.promise("P50")
@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(144, id="a_replay_has_copies_in_two_backlog_queues"),
        pytest.param(627, id="the_owner_of_a_spool_is_killed_just_before_the_calm"),
        pytest.param(1821, id="another_client_parks_what_a_tracked_session_follows"),
        pytest.param(3483, id="a_session_leaves_a_queue_that_another_client_has_parked_in"),
    ],
)
def test_worlds_that_failed_once(seed: int, lived: Callable[[int], Lived]) -> None:
    lived(seed)


def test_the_same_seed_gives_the_same_ordered_spool(world: Make) -> None:
    assert world(3).run().digest() == world(3).run().digest()


@pytest.mark.long
def test_the_worlds_mix_the_backlog_and_the_spool(lived: Callable[[int], Lived]) -> None:
    worlds = [lived(seed) for seed in range(24)]

    def count(kind: Kind) -> int:
        return sum(run.events.get(kind, 0) for run in worlds)

    assert sum(run.spooled for run in worlds) > 150
    assert sum(run.kills for run in worlds) > 20
    assert sum(run.by_hand for run in worlds) > 10
    assert sum(run.stays_behind for run in worlds) > 1
    assert {run.keeps for run in worlds} == {"session", "partition"}
    assert count(Kind.FENCE_STANDS) > 20
    assert count(Kind.FENCE_LIFTED) > 20
    assert count(Kind.SPOOL_REPLAYED) > 20


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_of_order_and_spool_is_caught(bug: str, world: Make) -> None:
    with pytest.raises(AssertionError, match=f"{PLANTED[bug]}:"):
        for seed in range(100):
            world(seed, bug, is_plain=True).run()
