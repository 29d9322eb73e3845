"""A paired client with a spool, in worlds where both namespaces go away and the client is closed or killed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import NamedTuple

import pytest

from tests.simulation.pair.spool_world import PLANTED, SpoolWorld, directories
from tests.simulation.seeds import groups, seeds

Make = Callable[..., SpoolWorld]

_GROUPS = groups(seeds(40, least=500), 20)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Make]:
    """Makes worlds, each with an empty directory."""
    with directories(tmp_path_factory.mktemp("worlds")) as new:
        yield lambda seed, bug="": SpoolWorld(seed, new(), bug)


class Lived(NamedTuple):
    spooled: int
    kills: int
    closes: int
    outcomes: frozenset[str]


@pytest.fixture(scope="module")
def lived(world: Make) -> Callable[[int], Lived]:
    """What happened in a world, which is run once."""

    @cache
    def live(seed: int) -> Lived:
        run = world(seed)
        run.run()
        assert run.left == [], f"seed {seed}: an empty spool was not deleted"
        return Lived(len(run.checks.spooled), run.kills, run.closes, frozenset(run.checks.outcome.values()))

    return live


@pytest.mark.promise("P1", "P2", "P5", "P8", "P36", "P38", "P44", "P50", "P51")
@pytest.mark.parametrize("group", _GROUPS)
def test_spooled_sends_survive_both_namespaces_and_kills(
    group: list[int], lived: Callable[[int], Lived]
) -> None:
    for seed in group:
        lived(seed)


def test_the_same_seed_gives_the_same_spool(world: Make) -> None:
    assert world(3).run().digest() == world(3).run().digest()


@pytest.mark.long
def test_the_worlds_use_the_spool(lived: Callable[[int], Lived]) -> None:
    worlds = [lived(seed) for seed in range(20)]

    assert sum(run.spooled for run in worlds) > 150
    assert sum(run.kills for run in worlds) > 10
    assert sum(run.closes for run in worlds) > 5
    assert {outcome for run in worlds for outcome in run.outcomes} >= {"ok", "unknown"}


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_of_the_spool_is_caught(bug: str, world: Make) -> None:
    with pytest.raises(AssertionError, match=f"{PLANTED[bug]}:"):
        for seed in range(60):
            world(seed, bug).run()
