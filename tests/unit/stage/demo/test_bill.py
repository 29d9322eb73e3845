"""The demo's bill by hand."""

from __future__ import annotations

from decimal import Decimal

import pytest

from pairbus.reports.bill.marginal import standard_table
from pairbus.stage.demo.bill import bill_of, billed

COUNTS = {
    ("primary", "send"): 1_000,
    ("primary", "receive"): 1_000,
    ("primary", "settle"): 1_000,
    ("primary", "ping"): 20,
    ("backlog", "send"): 400,
    ("backlog", "receive"): 400,
    ("backlog", "empty_receive"): 4,
}


@pytest.mark.promise("D6")
def test_a_detoured_message_is_four_operations_and_settling_none() -> None:
    found = billed(
        {
            ("backlog", "send"): 1,
            ("backlog", "receive"): 1,
            ("backlog", "settle"): 1,
            ("primary", "send"): 1,
            ("primary", "receive"): 1,
            ("primary", "settle"): 1,
        }
    )

    assert found.total() == 4


@pytest.mark.promise("D6")
def test_the_lines_add_up_to_what_the_operations_cost() -> None:
    table = standard_table()
    bill = bill_of(COUNTS, table)

    assert bill.operations == 2_824
    paid = next(band.price for band in table.operations if band.price)
    assert bill.amount == Decimal(2_824) * paid / 1_000_000
    assert sum((line.amount for line in bill.lines), Decimal(0)) == bill.amount


def test_what_the_pairing_cost_is_backlog_and_pings() -> None:
    operations, amount = bill_of(COUNTS, standard_table()).for_pairing()

    assert operations == 824
    assert amount > 0


def test_nothing_counted_is_nothing_to_pay() -> None:
    bill = bill_of({}, standard_table())

    assert not bill.lines
    assert (bill.operations, bill.amount) == (0, Decimal(0))
