"""From the sums of each day to the bills of its months. Both engines end here, so both bill alike.

Rule 1: one table of (day, namespace, entity, stage, operation) is the basis of every figure, so all of them add up (D6).
Rule 2: a month's amount is computed once, from its sums, and divided among its rows; nothing is priced row by row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Final

from pairbus.errors import UsageError
from pairbus.reports.bill.model import BACKLOG, HOUR_MS, RECEIVE
from pairbus.reports.bill.money import total
from pairbus.reports.bill.month import OPERATIONS, MonthBill, MonthUsage, hours_by_month, month_bill
from pairbus.reports.bill.prices import PriceTable, choose
from pairbus.reports.bill.what_if import Recorded, by_month

DAYS_MAX: Final = 4_000
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
KEY: Final = ("day", "namespace", "entity", "stage", "operation")
ALL_DATA: Final = "all"
BACKLOG_DATA: Final = "backlog"
NO_DATA: Final = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pricing:
    """Which prices, and what is billed."""

    tables: Sequence[PriceTable]
    tier: str | None = None
    region: str | None = None
    currency: str | None = None
    unbilled: tuple[str, ...] = ()
    """Operations that are counted and cost nothing."""
    data_out: str = BACKLOG_DATA
    """Whose receives leave the region: the backlog's (the syphon's), all, none."""

    def table(self, day: date) -> PriceTable:
        """The prices of a day. Raises UsageError when none, or more than one, fits."""
        return choose(self.tables, day, self.tier, self.region, self.currency)

    def leaves_region(self, stage: str, operation: str) -> bool:
        """Whether the bytes of an operation are billed as data out."""
        if operation != RECEIVE or self.data_out == NO_DATA:
            return False
        return self.data_out == ALL_DATA or stage == BACKLOG


@dataclass(frozen=True, slots=True, kw_only=True)
class Day:
    """The sums of one day (UTC)."""

    number: int
    """Days since 1970."""
    billed: int
    data_out: int
    peak_hours: int
    detour_minutes: int
    rows: int
    copies: int
    """Rows, with those that were found more than once."""
    first_hour: int
    """Hours since 1970."""
    last_hour: int

    @property
    def day(self) -> date:
        return (EPOCH + timedelta(days=self.number)).date()

    @property
    def month(self) -> str:
        return f"{self.day:%Y-%m}"


@dataclass(frozen=True, slots=True)
class Billing:
    """What each month was used for, and its bill."""

    usage: tuple[MonthUsage, ...]
    bills: tuple[MonthBill, ...]
    sources: tuple[str, ...]

    def operations_amount(self, month: str) -> Decimal | None:
        """What the operations of a month cost; None where a price is unknown."""
        return next(bill for bill in self.bills if bill.month == month).of(OPERATIONS)


def check_span(first_day: int, last_day: int) -> None:
    """Refuse logs that span too many days: every month from the first day to the last is billed.

    Raises:
        UsageError: More than ``DAYS_MAX`` days.
    """
    if last_day - first_day > DAYS_MAX:
        begin, end = (f"{EPOCH + timedelta(days=number):%Y-%m-%d}" for number in (first_day, last_day))
        raise UsageError(
            f"the logs span more than {DAYS_MAX:,} days, from {begin} to {end}: narrow them with --from and --to"
        )


def bill_days(days: Sequence[Day], start: datetime | None, end: datetime | None, pricing: Pricing) -> Billing:
    """Bill every month from ``start`` (or the first hour of the logs) to ``end`` (or the last).

    Raises:
        UsageError: No price table fits.
    """
    if not days:
        return Billing((), (), ())
    start = start or EPOCH + timedelta(milliseconds=min(day.first_hour for day in days) * HOUR_MS)
    end = end or EPOCH + timedelta(milliseconds=(max(day.last_hour for day in days) + 1) * HOUR_MS)
    usage, bills, sources = [], [], []
    for month, hours in hours_by_month(start, end).items():
        inside = [day for day in days if day.month == month]
        # A month has one set of bands: the prices of its first day that is billed.
        table = pricing.table(min((day.day for day in inside), default=date.fromisoformat(f"{month}-01")))
        usage.append(
            MonthUsage(
                month=month,
                hours=hours,
                operations=sum(day.billed for day in inside),
                peak_hours=sum(day.peak_hours for day in inside),
                data_out_bytes=sum(day.data_out for day in inside),
            )
        )
        bills.append(month_bill(usage[-1], table))
        sources.append(f"{table.described}. {table.note}".strip())
    return Billing(tuple(usage), tuple(bills), tuple(dict.fromkeys(sources)))


def operations_amount(
    recorded: Recorded, pricing: Pricing, supposed: int
) -> tuple[Decimal | None, Decimal | None]:
    """What the recorded and a supposed number of operations cost, month by month; None where a price is unknown."""
    paid: list[Decimal | None] = []
    would: list[Decimal | None] = []
    for month, operations in by_month(recorded, supposed):
        table = pricing.table((EPOCH + timedelta(milliseconds=month.first_ms)).date())
        for number, amounts in ((month.operations, paid), (operations, would)):
            usage = MonthUsage(month=month.month, operations=number)
            amounts.append(month_bill(usage, table).of(OPERATIONS))
    return _sum_known(paid), _sum_known(would)


def _sum_known(amounts: list[Decimal | None]) -> Decimal | None:
    known = [amount for amount in amounts if amount is not None]
    return total(known) if len(known) == len(amounts) else None
