from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.cli.reports.cost import cost
from pairbus.errors import UsageError
from pairbus.local.options import UpSettings
from pairbus.pairing.options import SendAvailabilityOptions, milliseconds
from pairbus.pairing.rules.ping import PingSchedule
from pairbus.reports.bill import model
from pairbus.reports.bill.estimate import Scenario, estimate
from pairbus.reports.bill.money import (
    SCALE,
    divided,
    from_quanta,
    parsed,
    quanta,
    rounded,
    shares,
    shown,
    total,
)
from pairbus.reports.bill.what_if import Change, Minute, Recorded, Settings, away_of, replay
from pairbus.reports.text import duration_ms, duration_text, many
from pairbus.stage.drill.plan import DrillSettings


def test_ten_queues_idle_make_40_receives_an_hour_960_a_day_28800_in_30_days() -> None:
    told = estimate(Scenario(queues=10, days=30))

    assert told.value("idle receives an hour") == 40
    assert told.value("idle receives a day") == 960
    assert told.value("idle receives") == 28_800
    assert told.operations == told.pairing_operations == 28_800


@pytest.mark.promise("D6")
def test_a_detoured_message_counts_four_operations() -> None:
    assert model.DETOUR_OPERATIONS == 4
    told = estimate(
        Scenario(queues=0, days=1, outage_ms=model.HOUR_MS, rate_per_1000s=1_000, failover_interval_ms=0)
    )
    assert told.value("messages through the backlog") == 3_600
    assert told.value("operations of detoured messages") == 14_400
    assert told.value("pings") == 61
    assert told.pairing_operations == 3_600 * 2 + 61


def test_a_day_away_makes_1440_pings_and_the_first() -> None:
    assert model.pings(1, model.DAY_MS, model.MINUTE_MS) == 1_440 + 1
    assert model.pings(3, model.DAY_MS, model.MINUTE_MS) == 3 * 1_441


LENGTHS = (
    1, 999, 3_000, 5_000, 5_001, 59_999, 60_000, 65_000, 65_001, 600_000, 605_000, model.HOUR_MS, model.HOUR_MS + 5_000, model.DAY_MS
)  # fmt: skip


@pytest.mark.parametrize("outage_ms", LENGTHS)
@pytest.mark.parametrize("while_suspect", ["wait", "raise"])
def test_an_estimate_a_what_if_and_a_client_agree_about_an_outage(
    outage_ms: int, while_suspect: Literal["wait", "raise"]
) -> None:
    """One message a second. The client is the schedule of pings that ships."""
    failover, ping = 5_000, 60_000
    scenario = Scenario(
        queues=0, days=2, outage_ms=outage_ms, rate_per_1000s=1_000_000, entities=3, while_suspect=while_suspect
    )  # fmt: skip
    told = estimate(scenario)
    sends = [Minute(at, 60_000, 60_000) for at in range(0, outage_ms, model.MINUTE_MS)]
    away = away_of(sends, 3, 0, outage_ms, failover)
    nothing = Recorded(operations=0, idle_receives=0, pings=0, queues=0)
    (supposed,) = replay(nothing, Settings(while_suspect=while_suspect), Change(away=(away,))).differences
    schedule, now = PingSchedule(ping), failover
    if outage_ms > failover:
        schedule.start(now)
        while schedule.next_ms is not None:
            now = schedule.next_ms
            schedule.sending(now)
            schedule.answered(now)
            if now >= outage_ms:
                schedule.stop()

    assert told.value("pings") == 3 * schedule.sent == model.pings(3, max(0, outage_ms - failover), ping)
    assert told.value("messages through the backlog") == supposed.messages
    assert told.value("sends refused before failover") == supposed.refused
    assert f"{many(3 * schedule.sent, 'ping')} of 3 entities" in supposed.why


def test_an_outage_within_the_failover_interval_sends_nothing_through_the_backlog() -> None:
    told = estimate(Scenario(days=1, messages=86_400, outage_ms=3_000))

    assert told.value("messages through the backlog") == told.value("pings") == 0
    assert told.value("looks and renewals of the syphon") == 0
    assert told.value("operations of direct messages") == 2 * 86_400
    assert any("failover interval of 5s" in figure.why for figure in told.figures)
    with pytest.raises(UsageError, match="3h is too long: 1h at most"):
        Scenario(failover_interval_ms=3 * model.HOUR_MS)


def test_the_page_about_cost_has_the_figures_of_the_model() -> None:
    page = (Path(__file__).parents[3] / "docs/explanation/cost.md").read_text()
    looks = estimate(Scenario(queues=10, days=1, outage_ms=model.HOUR_MS))
    away = estimate(Scenario(days=1, outage_ms=model.DAY_MS))

    assert looks.value("looks and renewals of the syphon") == 1_320
    assert "10 queues and an entity away for an hour: 1,320 |" in page
    assert away.value("pings") == 1_441
    assert "an entity away for a day, one a minute: 1,440 and the first |" in page
    for figure in looks.figures:
        if figure.name == "looks and renewals of the syphon":
            assert "1 outage × 120: 59m55s" in figure.why


@pytest.mark.parametrize(("size", "billed"), [(0, 1), (1, 1), (65_536, 1), (65_537, 2), (262_144, 4)])
def test_an_operation_is_billed_for_every_64_KB_begun(size: int, billed: int) -> None:
    assert model.units(size) == billed


def test_sends_within_the_failover_interval_are_refused_and_not_detoured() -> None:
    told = estimate(
        Scenario(
            queues=0,
            days=1,
            messages=86_400,
            outage_ms=2 * model.HOUR_MS,
            failover_interval_ms=60_000,
            while_suspect="raise",
            size=100_000,
        )
    )
    assert told.value("sends during the outage") == 7_200
    assert told.value("sends refused before failover") == 60
    assert told.value("messages through the backlog") == 7_140
    assert told.value("operations of direct messages") == (86_400 - 7_200) * 2 * 2
    assert told.value("operations of detoured messages") == 7_140 * 4 * 2
    assert told.value("pings") == 1 + 119


def test_by_default_sends_wait_for_the_failover_and_none_is_refused() -> None:
    told = estimate(Scenario(days=1, messages=86_400, outage_ms=2 * model.HOUR_MS))

    assert told.value("sends refused before failover") == 0
    assert told.value("messages through the backlog") == 7_200
    assert "5s" in next(
        figure.why for figure in told.figures if figure.name == "sends refused before failover"
    )


def test_every_default_is_that_of_the_paired_client() -> None:
    options = SendAvailabilityOptions()
    failover, ping = options.failover_interval, options.ping_primary_interval
    defaults = {
        option.name: option.default for command in cost.commands.values() for option in command.params
    }
    scenario = Scenario()

    assert (scenario.failover_interval_ms, scenario.while_suspect) == (milliseconds(failover), "wait")
    assert (scenario.ping_interval_ms, scenario.queues) == (milliseconds(ping), options.backlog_queue_count)
    assert Settings().failover_interval_ms == milliseconds(failover)
    for name, value in (("failover_interval_ms", failover), ("ping_interval_ms", ping)):
        assert duration_ms(str(defaults[name])) == milliseconds(value), name
    assert duration_ms(str(defaults["recorded_failover_interval"])) == milliseconds(failover)
    assert defaults["while_suspect"] == options.while_suspect
    assert UpSettings().failover_interval == failover.total_seconds()
    assert DrillSettings().failover_interval == failover
    assert UpSettings().queues == DrillSettings().queues == options.backlog_queue_count


@pytest.mark.parametrize("purposes", [model.PAIRING_PURPOSES])
def test_every_operation_has_one_purpose(purposes: tuple[str, ...]) -> None:
    for stage in model.STAGES:
        for operation in model.OPERATIONS:
            found = model.purpose(stage, operation)
            assert found in model.PURPOSES
            assert (found in purposes) == (stage == model.BACKLOG or operation == model.PING)


@pytest.mark.promise("D6")
@given(st.integers(0, 10**24), st.lists(st.integers(0, 10**9), min_size=1, max_size=50))
def test_shares_add_up_exactly_and_are_within_a_quantum_of_their_due(whole: int, weights: list[int]) -> None:
    amount = from_quanta(whole)
    given_ = shares(amount, weights)
    weight = sum(weights)
    assert total(given_) == (amount if weight else 0)
    for share, own in zip(given_, weights, strict=True):
        if weight:
            assert abs(quanta(share) * weight - whole * own) < weight


@pytest.mark.promise("D7")
def test_amounts_are_decimal_text_of_a_stated_scale() -> None:
    assert parsed("0.80", "x") == Decimal("0.80")
    for wrong in (0.8, 1, None, "0.8e", "-1", "NaN", "1e-11", "1e16"):
        with pytest.raises(UsageError):
            parsed(wrong, "x")
    assert SCALE == 10
    assert rounded(Decimal("0.00000000005")) == Decimal("0.0000000001")
    assert divided(Decimal(2), 3) == Decimal("0.6666666667")


def test_nothing_is_rounded_away_when_shown() -> None:
    assert shown(Decimal("1234.5")) == "1,234.50"
    assert shown(Decimal("0.0000008"), "USD") == "0.0000008 USD"
    assert shown(None) == "unknown"


def test_durations_read_as_people_write_them() -> None:
    assert duration_ms("1h30m") == 5_400_000
    assert duration_ms("2h") == 7_200_000
    assert duration_ms("0") == 0
    assert duration_text(duration_ms("1d2h3m4s")) == "1d2h3m4s"
    assert duration_text(0) == "0s"
    for wrong in ("", "2", "h", "2x", "-1h", "999999d"):
        with pytest.raises(UsageError):
            duration_ms(wrong)


def test_a_scenario_that_cannot_be_is_refused() -> None:
    with pytest.raises(UsageError, match="longer than 1 days"):
        Scenario(days=1, outage_ms=2 * model.DAY_MS)
    with pytest.raises(UsageError, match="ping interval"):
        Scenario(ping_interval_ms=1)


def test_a_syphon_that_cannot_deliver_looks_and_renews_every_half_minute() -> None:
    assert model.drain_while_away(10, 1, 1, model.HOUR_MS) == 11 * 120
    assert model.drain_while_away(0, 1, 1, model.HOUR_MS) == 0
    told = estimate(
        Scenario(queues=10, days=1, outage_ms=model.HOUR_MS, rate_per_1000s=1_000, failover_interval_ms=0)
    )
    assert told.value("looks and renewals of the syphon") == 1_320
    assert told.value("receives of messages given back") == 3_600
    assert told.pairing_operations == 960 + 61 + 1_320 + 3_600 + 2 * 3_600


def test_the_model_knows_the_figures_of_the_drain() -> None:
    from pairbus.drain.rules import message, plan

    assert model.AWAY_INTERVAL_MS == plan.BROWSE_INTERVAL_MS
    assert model.AWAY_INTERVAL_MS == message.LOCK_MS_DEFAULT - message.RENEW_BEFORE_MS
    assert model.WINDOW == plan.WINDOW
