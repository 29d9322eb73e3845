"""The bill as a value: for the terminal, for programs, for a page. All views of it rest on the same rows and are held to add up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal

from pairbus.reports.bill.model import BACKLOG_SEND, PAIRING_PURPOSES, PURPOSES
from pairbus.reports.bill.money import shown, total
from pairbus.reports.bill.month import OPERATIONS, MonthBill, MonthUsage
from pairbus.reports.text import many
from pairbus.reports.views.bill_page import cost_page


@dataclass(frozen=True, slots=True)
class DayRow:
    """What was done on a day for one purpose."""

    day: date
    purpose: str
    count: int
    billed: int
    amount: Decimal | None


@dataclass(frozen=True, slots=True)
class PurposeRow:
    """What was done of one operation in one stage."""

    stage: str
    operation: str
    purpose: str
    count: int
    size: int
    billed: int
    amount: Decimal | None


@dataclass(frozen=True, slots=True)
class EntityRow:
    """What one entity was used for."""

    namespace: str
    entity: str
    stage: str
    count: int
    billed: int
    amount: Decimal | None


@dataclass(frozen=True, slots=True)
class Rows:
    """What became of the rows of the logs (D5)."""

    counted: int
    repeated: int
    repeated_parts: int
    damaged: dict[str, str] = field(default_factory=dict)
    quarantined: dict[str, int] = field(default_factory=dict)

    @property
    def read(self) -> int:
        """Every row that was found."""
        return self.counted + self.repeated + sum(self.quarantined.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class CostReport:
    currency: str
    bills: tuple[MonthBill, ...]
    usage: tuple[MonthUsage, ...]
    sources: tuple[str, ...]
    days: tuple[DayRow, ...]
    purposes: tuple[PurposeRow, ...]
    entities: tuple[EntityRow, ...]
    """Those with the most operations."""
    entity_count: int
    detour_minutes: int
    rows: Rows

    @property
    def operations(self) -> int:
        """Billed operations in units of 64 KB."""
        return sum(row.billed for row in self.purposes)

    @property
    def known(self) -> Decimal:
        """All that has a price."""
        return total([bill.known for bill in self.bills])

    @property
    def unknown(self) -> tuple[str, ...]:
        return tuple(f"{bill.month} {name}" for bill in self.bills for name in bill.unknown)

    def by_purpose(self) -> dict[str, tuple[int, int, Decimal | None]]:
        """Count, billed operations and amount of each purpose that occurs."""
        found = {}
        for purpose in PURPOSES:
            rows = [row for row in self.purposes if row.purpose == purpose and row.count]
            if rows:
                found[purpose] = (sum(row.count for row in rows), sum(row.billed for row in rows), _sum(rows))
        return found

    def pairing(self) -> tuple[int, Decimal | None, int, int]:
        """What the pairing cost in operations and money, and the messages and bytes that it took while the primary was away."""
        rows = [row for row in self.purposes if row.purpose in PAIRING_PURPOSES]
        saved = [row for row in self.purposes if row.purpose == BACKLOG_SEND]
        return (
            sum(row.billed for row in rows),
            _sum(rows),
            sum(row.count for row in saved),
            sum(row.size for row in saved),
        )

    def check(self) -> None:
        """Days, purposes and bills tell the same totals (D6). They rest on one table, so a difference is our fault."""
        assert sum(row.billed for row in self.days) == self.operations, "days and operations differ"
        assert sum(month.operations for month in self.usage) == self.operations, (
            "months and operations differ"
        )
        amounts = [bill.of(OPERATIONS) for bill in self.bills]
        if None not in amounts:
            billed = total([amount for amount in amounts if amount is not None])
            assert _sum(self.purposes) == billed, (billed, _sum(self.purposes))
            assert _sum(self.days) == billed, (billed, _sum(self.days))

    def as_json(self) -> dict[str, object]:
        """For programs. Amounts are text, so that they stay exact."""
        operations, amount, messages, size = self.pairing()
        return {
            "currency": self.currency,
            "total": _text(self.known),
            "unknown": list(self.unknown),
            "operations": self.operations,
            "months": [
                {
                    "month": bill.month,
                    "total": _text(bill.known),
                    "lines": [
                        {
                            "meter": line.meter,
                            "text": line.text,
                            "quantity": str(line.quantity),
                            "amount": _text(line.amount),
                        }
                        for line in bill.lines
                    ],
                }
                for bill in self.bills
            ],
            "pairing": {
                "operations": operations,
                "amount": _text(amount),
                "messages_saved": messages,
                "bytes_saved": size,
                "minutes_with_detours": self.detour_minutes,
            },
            "purposes": {
                name: {"count": count, "operations": billed, "amount": _text(cost)}
                for name, (count, billed, cost) in self.by_purpose().items()
            },
            "operations_by_stage": [
                {
                    "stage": row.stage,
                    "operation": row.operation,
                    "count": row.count,
                    "bytes": row.size,
                    "operations": row.billed,
                    "amount": _text(row.amount),
                }
                for row in self.purposes
            ],
            "days": [
                {
                    "day": row.day.isoformat(),
                    "purpose": row.purpose,
                    "count": row.count,
                    "operations": row.billed,
                    "amount": _text(row.amount),
                }
                for row in self.days
            ],
            "entities": [
                {
                    "namespace": row.namespace,
                    "entity": row.entity,
                    "stage": row.stage,
                    "count": row.count,
                    "operations": row.billed,
                    "amount": _text(row.amount),
                }
                for row in self.entities
            ],
            "entity_count": self.entity_count,
            "rows": {
                "read": self.rows.read,
                "counted": self.rows.counted,
                "repeated": self.rows.repeated,
                "repeated_parts": self.rows.repeated_parts,
                "quarantined": self.rows.quarantined,
                "damaged_files": self.rows.damaged,
            },
            "price_sources": list(self.sources),
        }

    def as_html(self) -> str:
        return cost_page(self)

    def pairing_text(self) -> str:
        """What the pairing cost against what it saved, as a sentence."""
        operations, amount, messages, size = self.pairing()
        return (
            f"The pairing cost {many(operations, 'operation')} ({shown(amount, self.currency)}) and took {many(messages, 'message')} "
            f"({many(size, 'byte')}) in {many(self.detour_minutes, 'minute')} in which the primary was away."
        )

    def rows_text(self) -> str:
        """What became of the rows."""
        return (
            f"{many(self.rows.read, 'row')} read: {self.rows.counted:,} counted, {self.rows.repeated:,} repeated, "
            f"{sum(self.rows.quarantined.values()):,} set apart; {many(self.rows.repeated_parts, 'copy', 'copies')} of parts passed over."
        )


def _sum(rows: Sequence[DayRow | PurposeRow]) -> Decimal | None:
    amounts = [row.amount for row in rows]
    return None if None in amounts else total([amount for amount in amounts if amount is not None])


def _text(amount: Decimal | None) -> str | None:
    return None if amount is None else f"{amount:f}"
