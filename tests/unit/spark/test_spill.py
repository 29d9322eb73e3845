from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.spark.connector.spill import Record, Spill

RECORDS = st.builds(
    Record,
    session=st.text(st.characters(codec="utf-8"), max_size=5),
    number=st.integers(-(2**63), 2**63 - 1),
    head=st.text(st.characters(codec="utf-8"), max_size=20),
    body=st.binary(max_size=50),
)


@pytest.mark.promise("D4")
@given(st.lists(st.lists(RECORDS, max_size=20), max_size=6))
def test_runs_come_back_as_one_in_order_and_equal_ones_as_they_came(runs: list[list[Record]]) -> None:
    def order(record: Record) -> tuple[str, int]:
        return record.session, record.number

    with Spill() as spill:
        for run in runs:
            spill.add(sorted(run, key=order))

        assert spill.is_empty == (not any(runs))
        assert list(spill.merged()) == sorted((record for run in runs for record in run), key=order)
