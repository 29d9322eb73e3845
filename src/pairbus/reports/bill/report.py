"""The bill as a value. All of its figures rest on the same rows, and ``check`` holds them to add up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from typing import Final

from pairbus.reports.bill.days import Billing, Day
from pairbus.reports.bill.model import BACKLOG_SEND, PAIRING_PURPOSES, PURPOSES
from pairbus.reports.bill.money import total
from pairbus.reports.bill.month import OPERATIONS, MonthBill, MonthUsage

ENTITIES_SHOWN: Final = 20
"""Entities that a report names, the busiest first; the table of the bill names all."""


@dataclass(frozen=True, slots=True)
class DayRow:
    """What was done on a day for one purpose."""

    day: date
    purpose: str
    count: int
    operations: int
    """Billed ones, as in all rows of a report."""
    amount: Decimal | None


@dataclass(frozen=True, slots=True)
class PurposeRow:
    """What was done of one operation in one stage."""

    stage: str
    operation: str
    purpose: str
    count: int
    bytes: int
    operations: int
    amount: Decimal | None


@dataclass(frozen=True, slots=True)
class EntityRow:
    """What one entity was used for."""

    namespace: str
    entity: str
    stage: str
    count: int
    operations: int
    amount: Decimal | None


@dataclass(frozen=True, slots=True)
class PurposeSum:
    """What was done for one purpose."""

    count: int
    operations: int
    amount: Decimal | None


@dataclass(frozen=True, slots=True)
class PairingCost:
    """What the pairing cost, and what it took while the primary was away."""

    operations: int
    amount: Decimal | None
    messages_saved: int
    bytes_saved: int
    minutes_with_detours: int


@dataclass(frozen=True, slots=True)
class Rows:
    """What became of the rows of the logs (D5)."""

    counted: int
    repeated: int
    repeated_parts: int
    quarantined: Mapping[str, int] = field(default_factory=dict)
    """How many rows were quarantined, by reason."""
    damaged_files: Mapping[str, str] = field(default_factory=dict)
    """Files that cannot be read, and why."""

    @property
    def read(self) -> int:
        """All rows that were found."""
        return self.counted + self.repeated + sum(self.quarantined.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class CostReport:
    billing: Billing
    days: tuple[DayRow, ...]
    purposes: tuple[PurposeRow, ...]
    entities: tuple[EntityRow, ...]
    """Those with the most operations."""
    entity_count: int
    detour_minutes: int
    rows: Rows

    @property
    def bills(self) -> tuple[MonthBill, ...]:
        return self.billing.bills

    @property
    def usage(self) -> tuple[MonthUsage, ...]:
        return self.billing.usage

    @property
    def currency(self) -> str:
        return self.bills[0].currency if self.bills else ""

    @property
    def operations(self) -> int:
        """Billed operations in units of 64 KB."""
        return sum(row.operations for row in self.purposes)

    @property
    def known(self) -> Decimal:
        """The sum of everything that has a price."""
        return total([bill.known for bill in self.bills])

    @property
    def unknown(self) -> tuple[str, ...]:
        """Lines without a known price."""
        return tuple(f"{bill.month} {name}" for bill in self.bills for name in bill.unknown)

    def by_purpose(self) -> dict[str, PurposeSum]:
        """The sums of each purpose that occurs."""
        found = {}
        for purpose in PURPOSES:
            rows = [row for row in self.purposes if row.purpose == purpose and row.count]
            if rows:
                found[purpose] = PurposeSum(
                    sum(row.count for row in rows), sum(row.operations for row in rows), sum_amounts(rows)
                )
        return found

    def pairing(self) -> PairingCost:
        """What the pairing cost against what it saved."""
        rows = [row for row in self.purposes if row.purpose in PAIRING_PURPOSES]
        saved = [row for row in self.purposes if row.purpose == BACKLOG_SEND]
        return PairingCost(
            sum(row.operations for row in rows),
            sum_amounts(rows),
            sum(row.count for row in saved),
            sum(row.bytes for row in saved),
            self.detour_minutes,
        )

    def check(self) -> None:
        """Assert that days, purposes and bills have the same totals (D6). They rest on one table, so a difference is a bug."""
        operations = self.operations
        assert sum(row.operations for row in self.days) == operations, "days and operations differ"
        assert sum(month.operations for month in self.usage) == operations, "months and operations differ"
        amounts = [bill.of(OPERATIONS) for bill in self.bills]
        if None not in amounts:
            billed = total([amount for amount in amounts if amount is not None])
            assert sum_amounts(self.purposes) == billed, (billed, sum_amounts(self.purposes))
            assert sum_amounts(self.days) == billed, (billed, sum_amounts(self.days))


def cost_report(
    days: Sequence[Day],
    billing: Billing,
    rows: Rows,
    *,
    by_day: Iterable[DayRow],
    by_purpose: Iterable[PurposeRow],
    entities: Iterable[EntityRow],
    entity_count: int,
) -> CostReport:
    """Put a report together from the sums of an engine, in a fixed order, and check it."""
    report = CostReport(
        billing=billing,
        days=tuple(sorted(by_day, key=lambda row: (row.day, row.purpose))),
        purposes=tuple(sorted(by_purpose, key=lambda row: (row.stage, row.operation))),
        entities=tuple(entities),
        entity_count=entity_count,
        detour_minutes=sum(day.detour_minutes for day in days),
        rows=rows,
    )
    report.check()
    return report


def sum_amounts(rows: Sequence[DayRow | PurposeRow]) -> Decimal | None:
    """The amounts of rows added up; None where one is unknown."""
    amounts = [row.amount for row in rows]
    return None if None in amounts else total([amount for amount in amounts if amount is not None])
