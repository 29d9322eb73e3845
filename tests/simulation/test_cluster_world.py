"""Several brokers on one database, on bad days: kills, pauses, clocks that run apart, lost connections, restarts and failovers."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter

import pytest

from tests.simulation.broker.checkers import PromiseBroken
from tests.simulation.broker.scene import NANOSECONDS_PER_MS
from tests.simulation.cluster.bugs import ClusterBugs
from tests.simulation.cluster.machine_loop import virtual_threads
from tests.simulation.cluster.world import ClusterWorld
from tests.simulation.seeds import ONE, seeds

HISTORY_SHOWN = 120
SEEDS_MAX = 60
"""Within so many terrible worlds a planted bug must be found."""


def live(
    seed: int, *, planted: ClusterBugs | None = None, inspects: bool = True, is_terrible: bool = False
) -> ClusterWorld:
    """One world; whoever fails tells how to see it again."""
    world = ClusterWorld(seed, planted=planted, inspects=inspects, is_terrible=is_terrible)
    try:
        world.run()
    except Exception as error:
        error.add_note(
            f"replay: PAIRBUS_SEED={seed} python -m pytest -s tests/simulation/test_cluster_world.py -k worlds\n"
            + "\n".join(world.history[-HISTORY_SHOWN:])
        )
        raise
    return world


@pytest.mark.promise("S1", "S2", "S3", "S4", "S5", "S6", "S7", "S8", "B1", "B2", "B3")
@pytest.mark.promise("B5", "B13", "B14", "B16", "B19", "B25", "B29", "B31", "B32", "B51", "B53")
@pytest.mark.parametrize("seed", seeds(16))
def test_worlds_keep_every_promise_over_takeovers(seed: int) -> None:
    world = live(seed)
    if ONE:
        print("\n".join(world.history))


@pytest.mark.skipif(ONE is not None, reason="one world is being replayed")
@pytest.mark.parametrize(
    ("seed", "is_terrible"),
    [
        pytest.param(20055, False, id="two clocks of one machine ran apart"),
        pytest.param(20048, False, id="a node that was paused already went on while all stood still"),
        pytest.param(35, True, id="the answer that gave a deferred message for good was lost"),
        pytest.param(40768, False, id="a replaced owner could not read what a client asked for"),
    ],
)
def test_worlds_that_once_failed_stay_whole(seed: int, is_terrible: bool) -> None:
    live(seed, is_terrible=is_terrible)


@pytest.mark.skipif(ONE is not None, reason="one world is being replayed")
class TestTheSimulator:
    """A simulator nobody has seen fail proves nothing."""

    def test_both_clocks_of_a_machine_run_equally_fast(self) -> None:
        node = ClusterWorld(0).nodes[0]
        node.rate = node.machine.rate = 1.04
        wall_ns, now_ns = node.wall_ns(), node.now_ns()

        node.world.run_until(10_000)

        assert node.wall_ns() - wall_ns == pytest.approx(node.now_ns() - now_ns)
        assert node.wall_ns() - wall_ns == pytest.approx(10_400 * NANOSECONDS_PER_MS)

    def test_all_nodes_stand_still_together_though_one_was_paused_before(self) -> None:
        world = ClusterWorld(0)
        with virtual_threads():
            for node in world.nodes:
                node.begin()
            world.nodes[0].pause(300)

            world.stand_still(2_000)
            world.run_until(world.time + 1_999)

            assert all(node.machine.is_paused for node in world.nodes)
            for node in world.nodes:
                node.machine.kill()

    @pytest.mark.long
    def test_worlds_are_cruel_enough(self) -> None:
        worlds = [live(seed, is_terrible=True) for seed in range(1_000, 1_012)]
        history = "\n".join(line for world in worlds for line in world.history)
        counts: Counter[str] = Counter()
        for world in worlds:
            counts.update(world.database.counts)

        assert sum(len(world.log_checker.epochs) for world in worlds) > 40
        for event in (
            "ends: it was killed",
            "ends: fenced",
            "is paused",
            "cannot reach the database",
            "is asked to move",
            "the former primary lives on",
            "the standby goes",
            "never learns",
        ):
            assert event in history, event
        for event in (
            "a statement was lost before it arrived",
            "a statement takes effect after its client gave up",
            "a statement was long on its way",
            "an answer was lost",
            "a restart revealed what the standby did not have",
            "a waiting commit became visible",
            "a failover lost what was never acknowledged",
            "a second look found another server",
            "a former primary went on with what it had been asked",
        ):
            assert counts[event], event

    def test_the_same_seed_gives_the_same_history_in_any_process(self) -> None:
        program = (
            "from tests.simulation.cluster.world import ClusterWorld\n"
            "w = ClusterWorld(7, is_terrible=True); w.run(); print(w.digest())"
        )
        world = live(7, is_terrible=True)
        environment = {**os.environ, "PYTHONHASHSEED": "2"}
        found = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
        )
        assert found.stdout.strip() == world.digest()

    @pytest.mark.parametrize(
        ("planted", "promise"),
        [
            pytest.param(ClusterBugs(no_fence_frame=True), "S1|S2|S3", id="no fence frame"),
            pytest.param(
                ClusterBugs(retries_with_a_new_number=True), "S1|S2|S5", id="a retry with a new number"
            ),
            pytest.param(ClusterBugs(assumes_committed=True), "S5|S7", id="assume-committed on unknown"),
            pytest.param(ClusterBugs(speaks_after_the_lease=True), "S4", id="speaking after the lease"),
            pytest.param(ClusterBugs(no_barrier=True), "S7", id="no barrier"),
            pytest.param(
                ClusterBugs(counts_from_the_answer=True), "S4", id="renewal counted from its answer"
            ),
            pytest.param(ClusterBugs(replays_without_order=True), "S1|S3", id="replay without order"),
            pytest.param(
                ClusterBugs(drops_a_live_range=True), "S3|S5", id="truncating a range with a live message"
            ),
            pytest.param(
                ClusterBugs(never_looks_twice=True),
                "B31, B37, B45",
                id="waiting for a server that never answers",
            ),
            pytest.param(
                ClusterBugs(ends_locks_early=True), "B25", id="a lock that ends before the date that was told"
            ),
        ],
    )
    def test_a_planted_bug_is_caught(self, planted: ClusterBugs, promise: str) -> None:
        with pytest.raises(PromiseBroken, match=promise):
            for seed in range(SEEDS_MAX):
                live(seed, planted=planted, is_terrible=True)
