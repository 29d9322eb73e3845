"""The bill as a value: for the terminal, for programs, for a page. All views of it rest on the same rows and are held to add up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal

from pairbus.cost.bill import OPERATIONS, MonthBill, MonthUsage
from pairbus.cost.model import BACKLOG_SEND, PAIRING_PURPOSES, PURPOSES
from pairbus.cost.money import shown, total
from pairbus.spark.report_page import bars, columns, heading, page, paragraph, table


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
    """A bill."""

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
        """What has none."""
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
        """One page."""
        parts = [paragraph(f"Total: {shown(self.known, self.currency)}", "verdict good"), *self._html_notes()]
        lines = [
            (bill.month, line.meter, line.text, shown(line.amount))
            for bill in self.bills
            for line in bill.lines
        ]
        parts += [
            heading("The bill"),
            table(
                ("month", "meter", "how", self.currency), lines, (3,), ("", "total", "", shown(self.known))
            ),
            heading("Over time"),
            self._html_days(),
            heading("By stage"),
            bars(
                [
                    (name, billed, f"{billed:,} · {shown(cost)}")
                    for name, (_, billed, cost) in self.by_purpose().items()
                ],
                "operations by stage",
            ),
            table(
                ("stage", "operation", "count", "bytes", "billed", self.currency),
                [
                    (
                        row.stage,
                        row.operation,
                        f"{row.count:,}",
                        f"{row.size:,}",
                        f"{row.billed:,}",
                        shown(row.amount),
                    )
                    for row in self.purposes
                ],
                (2, 3, 4, 5),
            ),
            heading("What the pairing cost, and what it saved"),
            *self._html_pairing(),
            heading(f"Entities: the {len(self.entities)} busiest of {self.entity_count:,}"),
            table(
                ("namespace", "entity", "stage", "count", "billed", self.currency),
                [
                    (
                        row.namespace,
                        row.entity,
                        row.stage,
                        f"{row.count:,}",
                        f"{row.billed:,}",
                        shown(row.amount),
                    )
                    for row in self.entities
                ],
                (3, 4, 5),
            ),
            heading("Prices"),
            *[paragraph(source, "note") for source in self.sources],
        ]
        return page("What the namespaces cost", parts)

    def _html_notes(self) -> list[str]:
        notes = [paragraph(f"No known price: {name}", "verdict unsure") for name in self.unknown]
        notes.append(paragraph(self.rows_text(), "note"))
        notes += [
            paragraph(f"{count:,} rows set apart: {reason}", "note")
            for reason, count in self.rows.quarantined.items()
        ]
        notes += [paragraph(f"damaged: {path}: {why}", "note") for path, why in self.rows.damaged.items()]
        return notes

    def _html_days(self) -> str:
        days = sorted({row.day for row in self.days})
        purposes = [purpose for purpose in PURPOSES if any(row.purpose == purpose for row in self.days)]
        has_money = all(row.amount is not None for row in self.days) and any(row.amount for row in self.days)
        values: dict[tuple[date, str], Decimal] = {
            (row.day, row.purpose): (row.amount or Decimal(0)) if has_money else Decimal(row.billed)
            for row in self.days
        }
        series = [(purpose, [values.get((day, purpose), Decimal(0)) for day in days]) for purpose in purposes]
        unit = self.currency if has_money else "operations"
        caption = (
            ""
            if has_money
            else paragraph("All operations lie within what is included: the plot shows their number.", "note")
        )
        return caption + columns([day.isoformat() for day in days], series, "cost over time", unit)

    def _html_pairing(self) -> list[str]:
        operations, amount, messages, _ = self.pairing()
        base = self.operations - operations
        return [
            bars(
                [
                    ("operations without the pairing", base, f"{base:,}"),
                    (
                        "operations of the pairing",
                        operations,
                        f"{operations:,} · {shown(amount, self.currency)}",
                    ),
                    ("messages it saved", messages, f"{messages:,}"),
                ],
                "what the pairing cost and saved",
            ),
            paragraph(self.pairing_text()),
        ]

    def pairing_text(self) -> str:
        """What the pairing cost against what it saved, as a sentence."""
        operations, amount, messages, size = self.pairing()
        return (
            f"The pairing cost {operations:,} operations ({shown(amount, self.currency)}) and took {messages:,} messages "
            f"({size:,} bytes) in {self.detour_minutes:,} minutes in which the primary was away."
        )

    def rows_text(self) -> str:
        """What became of the rows."""
        return (
            f"{self.rows.read:,} rows read: {self.rows.counted:,} counted, {self.rows.repeated:,} repeated, "
            f"{sum(self.rows.quarantined.values()):,} set apart; {self.rows.repeated_parts:,} copies of parts passed over."
        )


def _sum(rows: Sequence[DayRow | PurposeRow]) -> Decimal | None:
    amounts = [row.amount for row in rows]
    return None if None in amounts else total([amount for amount in amounts if amount is not None])


def _text(amount: Decimal | None) -> str | None:
    return None if amount is None else f"{amount:f}"
