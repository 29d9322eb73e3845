from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.errors import UsageError
from pairbus.spark.offsets import Offset, merged, numbers_of, runs_of, size_of, split, split_range

NUMBERS = st.sets(st.integers(1, 500), max_size=200).map(sorted)


@given(NUMBERS)
def test_runs_hold_exactly_their_numbers(numbers: list[int]) -> None:
    runs = runs_of(numbers)

    assert list(numbers_of(runs)) == numbers
    assert size_of(runs) == len(numbers)


@given(NUMBERS, st.integers(1, 20))
def test_D4_any_number_of_pieces_holds_every_number_once_and_in_order(numbers: list[int], parts: int) -> None:
    pieces = split(runs_of(numbers), parts)

    assert [number for piece in pieces for number in numbers_of(piece)] == numbers
    assert len(pieces) == min(parts, len(numbers))
    sizes = [size_of(piece) for piece in pieces]
    assert not sizes or max(sizes) - min(sizes) <= 1


@given(NUMBERS, NUMBERS)
def test_merging_keeps_each_number_once(left: list[int], right: list[int]) -> None:
    assert list(numbers_of(merged(runs_of(left), runs_of(right)))) == sorted({*left, *right})


def test_a_range_is_cut_into_consecutive_ranges() -> None:
    assert split_range(1, 10, 3) == [(1, 3), (4, 6), (7, 10)]
    assert split_range(5, 4, 3) == []


@given(NUMBERS, NUMBERS)
def test_an_offset_comes_back_from_its_json(runs: list[int], owed: list[int]) -> None:
    offset = Offset("orders", 500, runs_of(runs), runs_of(owed))

    assert Offset.parse(offset.as_json(), "orders") == offset


def test_a_checkpoint_of_another_entity_or_version_is_refused() -> None:
    value = Offset("orders", 1).as_json()

    with pytest.raises(UsageError, match="belongs to 'orders', but 'bills' is read"):
        Offset.parse(value, "bills")
    with pytest.raises(UsageError, match="version 2"):
        Offset.parse({**value, "v": 2}, "orders")
