"""The whole broker with failures: crashes, lost power, broken networks, slow readers, clocks that are set."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.simulation.broker.checkers import PromiseBroken
from tests.simulation.broker.scene import Bugs
from tests.simulation.broker.world import World
from tests.simulation.seeds import ONE, seeds

HISTORY_SHOWN = 80


def live(seed: int, *, bugs: Bugs | None = None, inspects: bool = True) -> World:
    """One world; whoever fails tells how to see it again."""
    world = World(seed, bugs=bugs, inspects=inspects)
    try:
        world.run(messages=40, consumers=2)
    except Exception as error:
        error.add_note(
            f"replay: PAIRBUS_SEED={seed} python -m pytest -s tests/simulation/test_broker_world.py -k worlds\n"
            + "\n".join(world.history[-HISTORY_SHOWN:])
        )
        raise
    return world


@pytest.mark.promise("B1", "B2", "B3", "B5", "B13", "B14", "B16", "B19", "B22", "B25", "B29")
@pytest.mark.promise("B31", "B32", "B37", "B41", "B44", "B45", "B47", "B51", "B53", "B66", "M5")
@pytest.mark.parametrize("seed", seeds(320))
def test_worlds_keep_every_promise_on_bad_days(seed: int) -> None:
    world = live(seed)
    if ONE:
        print("\n".join(world.history))


@pytest.mark.parametrize(
    "seed",
    [
        1102,  # words that rest on no batch overtook those of a commit that had just ended
    ],
)
def test_worlds_that_once_failed_stay_whole(seed: int) -> None:
    live(seed)


@pytest.mark.skipif(ONE is not None, reason="one world is being replayed")
class TestTheSimulator:
    """A simulator nobody has seen fail proves nothing."""

    @pytest.mark.long
    def test_worlds_are_cruel_enough(self) -> None:
        worlds = [live(seed) for seed in range(1_000, 1_040)]
        history = "\n".join(line for world in worlds for line in world.history)

        assert sum(world.lives for world in worlds) > 80
        assert sum(world.restated for world in worlds) > 500
        for event in (
            "the power went",
            "it was killed",
            "a sync failed",
            "the network broke",
            "stops reading",
            "the clock is set",
            "never learns",
            "is told failed",
            "decides to defer",
            "decides to dead-letter",
            "gives session",
            "is not completed",
            "the transactor crashed",
            "rolls back",
            "is told ok for the transaction",
            "is told failed for the transaction",
            "is told unknown for the transaction",
            "administrator: never learns",
            ": Disabled",
            ": ReceiveDisabled",
            ": SendDisabled",
        ):
            assert event in history, event

    def test_the_same_seed_gives_the_same_history_in_any_process(self) -> None:
        program = "import sys; from tests.simulation.broker.world import World\nw = World(7); w.run(); print(w.digest())"
        world = World(7)
        world.run()
        for hash_seed in ("1", "2"):
            environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
            found = subprocess.run(
                [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
            )
            assert found.stdout.strip() == world.digest()

    @pytest.mark.parametrize(
        ("bugs", "promise"),
        [
            (Bugs(replies_before_sync=True), "B1|B5|B32|B53|B19"),
            (Bugs(loses_removals=True), "B5"),
            (Bugs(reuses_numbers=True), "B19|B25"),
            (Bugs(hands_out_twice=True), "B25"),
            (Bugs(commits_rollbacks=True), "B14"),
            (Bugs(forgets_changes=True), "B16"),
        ],
    )
    @pytest.mark.parametrize("inspects", [True, False])
    def test_a_planted_bug_is_caught(self, bugs: Bugs, promise: str, inspects: bool) -> None:
        with pytest.raises(PromiseBroken, match=promise):
            for seed in range(150):
                try:
                    live(seed, bugs=bugs, inspects=inspects)
                except PromiseBroken as broken:
                    if not str(broken).startswith(
                        "B9, B17"
                    ):  # the last kill finds most of them; clients must too
                        raise
