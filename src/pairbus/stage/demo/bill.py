"""Prices what both namespaces counted, by purpose, with the published prices. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal

from pairbus.reports.bill.marginal import operations_cost
from pairbus.reports.bill.model import PAIRING_PURPOSES, PURPOSES, UNBILLED_DEFAULT, purpose
from pairbus.reports.bill.money import shares, shown, total
from pairbus.reports.bill.prices import PriceTable

Counts = Mapping[tuple[str, str], int]
"""Units of 64 KB by stage and operation."""


@dataclass(frozen=True, slots=True)
class Line:
    purpose: str
    operations: int
    amount: Decimal


@dataclass(frozen=True, slots=True)
class Bill:
    """Every operation of the story, what it was for and what it costs beyond the operations that the base charge includes."""

    lines: tuple[Line, ...]
    currency: str
    price_source: str

    @property
    def operations(self) -> int:
        return sum(line.operations for line in self.lines)

    @property
    def amount(self) -> Decimal:
        return total([line.amount for line in self.lines])

    def for_pairing(self) -> tuple[int, Decimal]:
        """Operations that a single namespace would not have seen, and their cost."""
        own = [line for line in self.lines if line.purpose in PAIRING_PURPOSES]
        return sum(line.operations for line in own), total([line.amount for line in own])

    def as_json(self) -> list[dict[str, object]]:
        """Plain values; amounts are text, so that they stay exact."""
        return [
            {"purpose": line.purpose, "operations": line.operations, "cost": shown(line.amount)}
            for line in self.lines
        ]


def billed(counts: Counts) -> Counter[str]:
    """Billed operations by purpose; settling is part of receiving, as in ``pairbus cost report``."""
    found: Counter[str] = Counter()
    for (stage, operation), units in counts.items():
        if operation not in UNBILLED_DEFAULT:
            found[purpose(stage, operation)] += units
    return found


def bill_of(counts: Counts, table: PriceTable) -> Bill:
    """The bill of these counts, all in the first paid band: no operation counts as free."""
    found = billed(counts)
    purposes = [name for name in PURPOSES if found[name]]
    operations = [found[name] for name in purposes]
    amounts = shares(operations_cost(sum(operations), table), operations)
    lines = zip(purposes, operations, amounts, strict=True)
    return Bill(
        lines=tuple(Line(*line) for line in lines),
        currency=table.currency,
        price_source=f"{table.tier} tier, {table.region}, {table.source_date}; no free operations",
    )
