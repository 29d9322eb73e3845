"""The model of many cells: its parts against arithmetic, and the small form of its report."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from pathlib import Path

import pytest

from bench.cells import fleet, scenarios
from bench.cells.cell import Cell, Samples, Shape, poisson
from bench.cells.costs import Line, derive, frame_bytes, line, load
from bench.cells.events import GroupFlush, Processors, Simulation
from bench.cells.picture import bars
from bench.scale import FULL, SMALL, costs_lines, fleet_lines, one_cell_lines, report

ROOT = Path(__file__).resolve().parents[3]
COSTS = load()


def test_a_line_goes_through_points_that_lie_on_one() -> None:
    found = line((n, 200 + 5 * n) for n in (1, 10, 100, 1000))

    assert [found.fixed, found.each] == pytest.approx([200, 5])
    assert line([(10, 5), (20, 11)]).fixed == 0.0, "nothing costs less than nothing"


def test_a_flush_serves_everybody_who_waits_when_it_begins() -> None:
    simulation = Simulation()
    disk = GroupFlush(simulation, Line(1.0, 0.0))
    ended: list[tuple[str, float]] = []
    for name in "abc":
        disk.write(10, lambda name=name: ended.append((name, simulation.now)))  # type: ignore[misc]
    simulation.run(10)

    assert ended == [("a", 1.0), ("b", 2.0), ("c", 2.0)]
    assert (disk.flushes, disk.written_bytes) == (2, 30)


def test_jobs_wait_for_a_processor_in_their_order() -> None:
    simulation = Simulation()
    processors = Processors(simulation, 2)
    ended: list[tuple[int, float]] = []
    for number in range(4):
        processors.run(1.0, lambda number=number: ended.append((number, simulation.now)))  # type: ignore[misc]
    simulation.run(10)

    assert ended == [(0, 1.0), (1, 1.0), (2, 2.0), (3, 2.0)]
    assert processors.busy_s == 4.0


def test_a_percentile_counts_weights() -> None:
    samples = Samples([(1.0, 1), (2.0, 98), (9.0, 1)])

    assert (samples.percentile(0.5), samples.percentile(0.995)) == (2.0, 9.0)
    assert math.isnan(Samples().percentile(0.5))


@pytest.mark.parametrize("mean", [0.0, 0.3, 5.0, 200.0])
def test_draws_of_arrivals_have_their_mean(mean: float) -> None:
    source = random.Random(5)

    assert sum(poisson(source, mean) for _ in range(4000)) / 4000 == pytest.approx(mean, rel=0.06)


@pytest.mark.parametrize("rate", [5.0, 100.0, 1000.0])
def test_a_cell_answers_all_that_arrives_with_the_commits_that_the_arithmetic_expects(rate: float) -> None:
    shape, seconds = Shape(renews_together=True), 6.0 if rate < 10 else 0.5
    found = scenarios.normal(COSTS, shape, scenarios.Load(shards=4, messages_per_s=rate), seconds)

    assert found.answered_per_s == pytest.approx(4 * rate, rel=0.2)
    assert found.commits_per_s == pytest.approx(4 * fleet.commits_per_s(COSTS, rate), rel=0.3)
    assert found.silent_shards == 0


def test_a_closed_loop_has_no_more_unanswered_than_its_window() -> None:
    cell = Cell(COSTS, Shape(nodes=1))
    shard = cell.add(window=10)
    cell.run(0.5)

    # Ten in flight, and a commit for each answer.
    assert 0 < shard.answered <= shard.commits * 10


def test_shards_of_a_dead_node_come_back_after_their_leases_and_the_others_serve_on() -> None:
    shape = Shape(nodes=3, lease_s=2.0, renews_together=True)
    death = scenarios.node_dies(COSTS, shape, scenarios.Load(shards=6, messages_per_s=50.0, queued=2000))

    assert death.shards_lost == 2
    renewal = shape.lease_s / shape.renewals_per_lease
    assert shape.lease_s - renewal - 0.1 <= death.silence_s_first <= death.silence_s_last
    assert death.silence_s_last <= shape.lease_s + shape.look_s + 0.5


def test_replay_adds_to_the_silence() -> None:
    shape = Shape(nodes=3, lease_s=2.0, renews_together=True)
    few, many = (
        scenarios.node_dies(COSTS, shape, scenarios.Load(shards=3, messages_per_s=20.0, queued=queued))
        for queued in (0, 300_000)
    )

    replay = 600_000 * (COSTS.replay_s + COSTS.heads_s)
    assert many.silence_s_last - few.silence_s_last == pytest.approx(replay, rel=0.1)


def test_leases_end_while_the_database_is_away_for_longer() -> None:
    shape = Shape(lease_s=2.0)
    one = scenarios.Load(shards=4, messages_per_s=50.0)

    assert scenarios.database_fails_over(COSTS, shape, one, 1.0).leases_ended == 0
    assert scenarios.database_fails_over(COSTS, shape, one, 2.5).leases_ended == 4


def test_nothing_is_answered_outside_the_lease() -> None:
    """Renewals that never come through: the database answers commits, and the owner falls silent all the same."""
    cell = Cell(COSTS, Shape(lease_s=1.0, renewals_per_lease=0.01))
    shard = cell.add(200.0)
    cell.run(0.7)
    answered = shard.answered
    cell.run(1.0)
    silent = shard.answered
    cell.run(1.0)

    assert answered > 0
    assert shard.answered == silent


def test_namespaces_are_laid_on_shards_without_losing_any_load() -> None:
    rates = fleet.zipf(1000, 50_000.0)
    limit = fleet.shard_limit(COSTS)
    shards = fleet.shards_of(rates, fleet.PACKED, limit)

    assert sum(rates) == pytest.approx(50_000.0)
    assert sum(shards) == pytest.approx(50_000.0)
    assert max(shards) <= max(limit, 2 * fleet.PACKED.shard_messages_per_s)
    assert len(shards) < 60
    assert fleet.shards_of(rates, fleet.AS_BUILT, limit) == rates


def test_every_change_of_the_design_needs_no_more_machines() -> None:
    hardware = fleet.Hardware()
    plans = [fleet.plan(COSTS, design, hardware, 5000, 50_000.0) for design in fleet.DESIGNS]

    assert [plan.cells for plan in plans] == sorted((plan.cells for plan in plans), reverse=True)
    assert plans[0].first.resource == "database: connections"


def test_costs_follow_the_measurements() -> None:
    dearer = replace(COSTS, insert=Line(COSTS.insert.fixed * 2, COSTS.insert.each * 2))
    one = scenarios.Load(shards=4, messages_per_s=100.0)
    cheap, dear = (scenarios.normal(costs, Shape(), one, 0.5) for costs in (COSTS, dearer))

    assert dear.database_processors > 1.4 * cheap.database_processors
    assert frame_bytes(2, 1) == 2 * (1024 + 48) + 16
    assert derive.__doc__


def test_the_report_is_the_same_each_time() -> None:
    first, second = list(report(COSTS, SMALL)), list(report(COSTS, SMALL))

    assert first == second
    assert any("a node dies" in text for text in first)


def test_the_document_shows_what_the_model_calculates() -> None:
    """`python -m bench.scale --measure` changes the costs: then the page and its picture are to be written again."""
    page = (ROOT / "docs" / "explanation" / "scale.md").read_text()
    hardware = fleet.Hardware()
    lines = [*costs_lines(COSTS), *one_cell_lines(COSTS, hardware), *fleet_lines(COSTS, hardware, FULL)]

    assert [text for text in lines if text not in page] == []
    plans = [fleet.plan(COSTS, design, hardware) for design in fleet.DESIGNS]
    assert (ROOT / "docs" / "images" / "scale-cells.svg").read_text() == bars(plans)
