"""What some operations cost beyond those that a month's base charge includes: nothing counts as free."""

from __future__ import annotations

from decimal import Decimal
from typing import Final

from pairbus.reports.bill.catalogue import builtin_tables
from pairbus.reports.bill.money import total
from pairbus.reports.bill.month import OPERATIONS, MonthUsage, month_bill
from pairbus.reports.bill.prices import PriceTable

ANY_MONTH: Final = "2000-01"
"""The bands of a table do not depend on the month."""


def standard_table() -> PriceTable:
    """The published prices of the standard tier, in US dollars."""
    return next(table for table in builtin_tables() if table.tier == "standard" and table.currency == "USD")


def operations_cost(operations: int, table: PriceTable) -> Decimal:
    """The price of these operations, all in the first band that is paid for."""
    included = table.operations[0].up_to or 0
    whole = month_bill(MonthUsage(month=ANY_MONTH, operations=included + operations), table)
    return total(
        [line.amount for line in whole.lines if line.meter == OPERATIONS and line.amount is not None]
    )
