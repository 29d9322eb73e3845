from __future__ import annotations

import json
from dataclasses import replace
from datetime import date
from decimal import Decimal

import pytest

from pairbus.errors import UsageError
from pairbus.reports.bill.catalogue import builtin_tables, tables_of
from pairbus.reports.bill.estimate import Scenario, estimate
from pairbus.reports.bill.month import BASE, CONNECTIONS, DATA_OUT, OPERATIONS, MonthUsage, month_bill
from pairbus.reports.bill.prices import PriceTable, choose, parse_tables
from pairbus.reports.bill.what_if import (
    Away,
    Change,
    Detour,
    Recorded,
    RecordedMonth,
    Settings,
    by_month,
    replay,
)

DAY = date(2026, 11, 15)


def standard() -> PriceTable:
    return choose(builtin_tables(), DAY, "standard", "uksouth", "USD")


def bill_of(**usage: int) -> dict[str, Decimal | None]:
    bill = month_bill(MonthUsage(month="2026-11", **usage), standard())
    return {meter: bill.of(meter) for meter in (BASE, OPERATIONS, CONNECTIONS, DATA_OUT)}


@pytest.mark.promise("D7")
@pytest.mark.parametrize(
    ("operations", "amount"),
    [
        (0, "0"),
        (13_000_000, "0"),
        (13_000_001, "0.0000008"),
        (100_000_000, "69.6"),  # 87 million × 0.80
        (100_000_001, "69.6000005"),
        (2_500_000_000, "1269.6"),  # + 2,400 million × 0.50
        (2_500_000_010, "1269.600002"),  # + 10 × 0.20 / million
    ],
)
def test_operations_are_billed_in_the_published_bands(operations: int, amount: str) -> None:
    assert bill_of(operations=operations)[OPERATIONS] == Decimal(amount)


def test_the_base_charge_goes_by_the_hour() -> None:
    assert bill_of(hours=720)[BASE] == Decimal("9.67752")


def test_connections_are_hourly_peaks_prorated_by_730_less_those_included() -> None:
    # Microsoft's example: 5,000 connections, 12 hours on 30.5 days, are 2,507 connections of a month, not 2,500: it rounds.
    peak_hours = 5_000 * 12 * 61 // 2
    billed = Decimal(peak_hours) / 730 - 1_000
    found = bill_of(peak_hours=peak_hours)[CONNECTIONS]
    assert found is not None
    assert abs(found - billed * Decimal("0.03")) < Decimal("1e-9")
    assert bill_of(peak_hours=1_000 * 730)[CONNECTIONS] == 0


def test_what_has_no_published_price_is_unknown_and_not_free() -> None:
    china = choose(builtin_tables(), DAY, "standard", "china", "CNY")
    bill = month_bill(MonthUsage(month="2026-11", hours=1, peak_hours=730 * 1_001, data_out_bytes=5), china)
    assert bill.of(CONNECTIONS) is None
    assert bill.of(DATA_OUT) is None
    assert len(bill.unknown) == 2
    assert bill.known == Decimal("0.0851")


def test_every_table_that_comes_along_names_its_source() -> None:
    tables = builtin_tables()
    assert len(tables) == 2
    assert all(table.source and table.source_date for table in tables)


def table_text(**changes: object) -> str:
    table: dict[str, object] = {
        "tier": "t", "region": "r", "currency": "EUR", "source": "s", "source_date": "2026-01-01",
        "operations": {"bands": [{"up_to": None, "per_million": "1"}]},
    }  # fmt: skip
    return json.dumps({"format": 1, "tables": [{**table, **changes}]})


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "not JSON"),
        ("[]", "must be an object"),
        ('{"format": 2}', "format is 2"),
        ('{"format": 1, "tables": []}', "tables must be"),
        (table_text(base={"per_hour": 0.5}), "binary fraction"),
        (table_text(base={"per_hour": 1}), "write amounts as text"),
        (table_text(price="1"), "unknown field 'price'"),
        (table_text(valid_from="soon"), "YYYY-MM-DD"),
        (table_text(valid_from="2026-02-01", valid_to="2026-01-01"), "lies before"),
        (table_text(tier=""), "tier"),
        (table_text(operations={"bands": [{"up_to": 5, "per_million": "1"}]}), "must end with a band"),
        (
            table_text(
                operations={"bands": [{"up_to": 5, "per_million": "1"}, {"up_to": 5, "per_million": "1"}]}
            ),
            "above the band before",
        ),
        (table_text(connections={"hours_in_month": 0}), "hours_in_month"),
    ],
)
def test_a_price_file_that_cannot_be_right_is_refused_with_the_place(text: str, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        parse_tables(text, "prices.json")


def test_the_table_of_the_day_is_chosen() -> None:
    old = parse_tables(table_text(valid_to="2025-12-31"), "old")[0]
    new = parse_tables(table_text(valid_from="2026-01-01"), "new")[0]
    assert choose([old, new], date(2025, 12, 31), None, None, None) is old
    assert choose([old, new], date(2026, 1, 1), "t", "r", "EUR") is new
    with pytest.raises(UsageError, match="no price table of premium is valid on .* among t/r/EUR"):
        choose([old, new], DAY, "premium", None, None)
    with pytest.raises(UsageError, match="more than one"):
        choose([new, new], DAY, None, None, None)


def test_a_price_file_that_is_not_there_is_a_mistake_of_the_user() -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        tables_of("/nowhere/prices.json")


def test_an_estimate_bills_what_the_pairing_adds() -> None:
    told = estimate(Scenario(queues=10, days=30, messages=10_000_000), standard())
    # 20,000,000 operations of messages and 28,800 idle receives: 7 million and 28,800 above what is included.
    assert told.bill is not None
    assert told.bill.of(OPERATIONS) == Decimal("5.62304")
    assert told.pairing_amount == Decimal("0.02304")
    assert estimate(Scenario()).pairing_amount is None


RAISING = Settings(while_suspect="raise")


def test_what_if_says_what_each_setting_changes_where_sends_fail_until_the_failover() -> None:
    detour = Detour(start_ms=0, end_ms=600_000, messages=100, units=200, early_messages=10, early_units=20)
    recorded = Recorded(operations=1_000, idle_receives=960, pings=60, queues=10, detours=(detour,))
    away = Away(
        start_ms=0, end_ms=3_600_000, entities=2, early_messages=5, early_units=5, messages=100, units=100
    )
    change = Change(failover_interval_ms=120_000, queues=20, ping_interval_ms=30_000, away=(away,))

    longer, queues, pinged, supposed = replay(recorded, RAISING, change).differences

    assert (longer.messages, longer.refused, longer.operations) == (-10, 10, -80)
    assert queues.operations == 960
    assert pinged.operations == 60
    assert supposed.operations == 200 - 10 + 2 * 121
    shorter = replay(recorded, RAISING, Change(failover_interval_ms=0)).differences[0]
    assert (shorter.messages, shorter.refused, shorter.operations) == (10, -10, 80)
    assert replay(recorded, RAISING, Change()).differences == ()
    assert (
        "nothing to compare"
        in replay(Recorded(operations=0, idle_receives=0, pings=0, queues=0), RAISING, Change(queues=3))
        .differences[0]
        .why
    )


def test_what_if_counts_no_refusals_where_sends_wait_for_the_failover() -> None:
    detour = Detour(start_ms=0, end_ms=600_000, messages=100, units=200, early_messages=10, early_units=20)
    recorded = Recorded(operations=1_000, idle_receives=960, pings=60, queues=10, detours=(detour,))
    away = Away(
        start_ms=0, end_ms=3_600_000, entities=2, early_messages=5, early_units=6, messages=100, units=100
    )
    short = replace(away, end_ms=30_000, messages=0, units=0, failover_interval_ms=30_000)
    for interval, told in ((120_000, "longer"), (0, "less")):
        change = Change(failover_interval_ms=interval, away=(away, short))

        failover, supposed, waited = replay(recorded, Settings(), change).differences

        assert (failover.messages, failover.refused, failover.operations) == (0, 0, 0)
        assert told in failover.why
        assert (supposed.messages, supposed.refused, supposed.operations) == (105, 0, 2 * 106 + 2 * 61)
        assert (waited.messages, waited.refused, waited.operations) == (0, 0, 0)


def test_supposed_operations_are_spread_over_the_months_as_the_recorded_ones_are() -> None:
    months = tuple(
        RecordedMonth(month=f"2026-{number:02}", operations=operations, first_ms=0)
        for number, operations in ((9, 100), (10, 0), (11, 201))
    )
    recorded = Recorded(operations=301, idle_receives=0, pings=0, queues=0, months=months)

    for supposed in (0, 150, 301, 1_000):
        assert sum(number for _, number in by_month(recorded, supposed)) == supposed
    assert [number for _, number in by_month(recorded, 301)] == [100, 0, 201]
    assert [number for _, number in by_month(recorded, 602)] == [200, 0, 402]
