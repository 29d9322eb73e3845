from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.errors import UsageError
from pairbus.spark.connector.offsets import (
    Offset,
    mark_of,
    numbers_of,
    runs_of,
    size_of,
    split,
    split_range,
)

NUMBERS = st.sets(st.integers(1, 500), max_size=200).map(sorted)


@given(NUMBERS)
def test_runs_hold_exactly_their_numbers(numbers: list[int]) -> None:
    runs = runs_of(numbers)

    assert list(numbers_of(runs)) == numbers
    assert size_of(runs) == len(numbers)


@pytest.mark.promise("D4")
@given(NUMBERS, st.integers(1, 20))
def test_any_number_of_pieces_holds_every_number_once_and_in_order(numbers: list[int], parts: int) -> None:
    pieces = split(runs_of(numbers), parts)

    assert [number for piece in pieces for number in numbers_of(piece)] == numbers
    assert len(pieces) == min(parts, len(numbers))
    sizes = [size_of(piece) for piece in pieces]
    assert not sizes or max(sizes) - min(sizes) <= 1


def test_a_range_is_cut_into_consecutive_ranges() -> None:
    assert split_range(1, 10, 3) == [(1, 3), (4, 6), (7, 10)]
    assert split_range(5, 4, 3) == []


@given(NUMBERS, NUMBERS)
def test_an_offset_comes_back_from_its_json(runs: list[int], owed: list[int]) -> None:
    offset = Offset(
        "orders",
        500,
        runs_of(runs),
        runs_of(owed),
        namespace="contoso:5671",
        created_ms=7,
        last_ms=9,
        marks=bytes(number % 256 for number in runs),
        owed_marks=bytes(number % 7 for number in owed),
    )

    assert Offset.parse(json.loads(json.dumps(offset.as_json())), "orders") == offset
    assert set(offset.marked()) == {*runs, *owed}


def test_a_checkpoint_of_another_entity_or_version_is_refused() -> None:
    value = Offset("orders", 1).as_json()

    with pytest.raises(UsageError, match="belongs to 'orders', but 'bills' is read"):
        Offset.parse(value, "bills")
    with pytest.raises(UsageError, match="version 3"):
        Offset.parse({**value, "v": 3}, "orders")
    # Service Bus does not tell names apart by case.
    assert Offset.parse(value, "Orders").sequence == 1


def test_an_offset_of_version_1_settles_nothing() -> None:
    old = Offset.parse({"v": 1, "entity": "orders", "seq": 9, "runs": [[1, 9]], "owed": []}, "orders")

    assert (old.sequence, old.runs, old.is_marked) == (9, ((1, 9),), False)
    assert old.marked() == {}


def test_a_mark_depends_on_the_time_and_the_id() -> None:
    marks = {mark_of(ms, name) for ms in range(1_700_000_000_000, 1_700_000_000_100) for name in (b"a", b"b")}

    assert len(marks) > 90
    assert mark_of(5, b"a") == mark_of(5, b"a")
