"""The power goes at any instant; nothing acknowledged is lost and nothing comes from nowhere."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import pytest

from pairbus.storage.log import recovery
from tests.simulation.power_loss import STATES_PER_WORLD, World
from tests.simulation.seeds import seeds

WORLDS = 40
"""Times STATES_PER_WORLD: 12,000 crashes, each recovered from and looked through."""


class Lived(NamedTuple):
    crashes: int
    retired: int
    restated: int
    epochs: int
    refused: int
    damaged: int
    repaired: int


@cache
def lived(seed: int) -> Lived:
    """What happened in a world, which is run once."""
    world = World(seed)
    world.run()
    return Lived(*(getattr(world, name) for name in Lived._fields))


@pytest.mark.promise("B1", "B5", "B9", "B13", "B17", "B19")
@pytest.mark.parametrize("seed", seeds(WORLDS))
def test_worlds_survive_power_loss(seed: int) -> None:
    assert lived(seed).crashes >= STATES_PER_WORLD


@pytest.mark.long
def test_the_worlds_roll_recycle_compact_and_restart() -> None:
    """Otherwise the test above would prove less than it says."""
    worlds = [lived(seed) for seed in range(6)]
    assert sum(world.retired for world in worlds) > 50
    assert sum(world.restated for world in worlds) > 50
    assert sum(world.epochs for world in worlds) > 20
    assert sum(world.refused for world in worlds) > 50
    assert sum(world.damaged - world.refused for world in worlds) > 10
    assert sum(world.repaired for world in worlds) > 20


@pytest.mark.promise("B10")
def test_a_lost_end_that_goes_unnoticed_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "find", lambda files, expects_mark: recovery.look(files, None, None))
    with pytest.raises(AssertionError, match="recovery gives none of"):
        for seed in range(5):
            World(seed).run()


@pytest.mark.promise("B4")
def test_a_reply_before_the_sync_is_caught() -> None:
    """A simulator nobody has seen fail proves nothing."""
    with pytest.raises(AssertionError, match="recovery gives none of"):
        for seed in range(5):
            World(seed, replies_before_sync=True).run()
