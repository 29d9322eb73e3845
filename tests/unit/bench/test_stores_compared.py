"""The comparison of stores: which ratios are printed, and against which target."""

from __future__ import annotations

import pytest

from bench import broker, ours, postgresql
from bench.loadgen import LoadResult
from bench.peer import BenchError


def run(peer: str, window: int, rate: float) -> broker.Run:
    load = LoadResult(
        messages=100,
        wall_s=1.0,
        msgs_per_s=rate,
        send_acked_per_s=rate,
        receive_settled_per_s=rate,
        ack_us_p50=1000.0,
        ack_us_p99=2000.0,
        ack_us_max=3000.0,
        rejected=0,
        duplicates=0,
        generator_cpu_s=0.1,
    )
    return broker.Run(
        peer=peer,
        scenario=broker.Scenario(window=window, connections=4),
        load=load,
        broker_cpu_us_per_message=20.0,
        commits=10,
        foreign_cpus=0.0,
    )


def test_each_round_is_compared_with_the_log_of_the_same_round() -> None:
    runs = [
        run("PairBus", 100, 1000),
        run(postgresql.ALONE, 100, 800),
        run(postgresql.ALONE, 100, 300),  # the second round goes the other way round
        run("PairBus", 100, 400),
        run("PairBus", 100, 1000),
        run(postgresql.ALONE, 100, 790),
    ]

    assert broker.verdict(runs) == [
        "PostgreSQL, window 100, 4 connections: 0.79 x the log on this disk (wanted: 0.75)"
    ]


def test_the_table_has_the_ratio_on_the_line_of_each_database() -> None:
    runs = [
        run("PairBus", 1000, 1000),
        run(postgresql.ALONE, 1000, 950),
        run(postgresql.WITH_STANDBY, 1000, 500),
    ]
    found = broker.rows(runs, ["PairBus", postgresql.ALONE, postgresql.WITH_STANDBY], "PairBus")
    assert [row[3] for row in found] == ["", "0.95 x", "0.50 x"]
    assert [row[7] for row in found] == ["10.0"] * 3
    lines = broker.table(found)
    assert "0.95 x" in lines[3]
    assert "0.50 x" in lines[4]
    assert " x  " not in lines[2].removeprefix(broker.SCENARIOS[-3].title)
    assert broker.markdown(found)[3].count("|") == len(broker.HEAD) + 1


def test_stores_are_compared_in_the_form_that_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ours, "forms", lambda: [ours.COMPILED, ours.PURE])
    assert broker.one_form("both") == ours.COMPILED
    assert broker.one_form(ours.PURE) == ours.PURE

    monkeypatch.setattr(ours, "forms", lambda: [ours.PURE])
    assert broker.one_form("both") == ours.PURE
    with pytest.raises(BenchError, match="make fast"):
        broker.one_form(ours.COMPILED)
