"""Damage to a journal of the message audit: it is noticed wherever it is, and what a crash or a running broker leaves is none (decision 0205)."""

from __future__ import annotations

import json

import pytest

from pairbus.server.logs.journal_blocks import BLOCK, SECTOR_BYTES, block, end_mark, scan

ROWS = [
    b"".join(
        json.dumps([at, "sent", "orders", number, f"id of {number}"]).encode() + b"\n" for at in range(rows)
    )
    for number, rows in enumerate((1, 4, 40, 2, 3), 5)
]
BLOCKS = [block(number, data) for number, data in enumerate(ROWS, 5)]
WRITTEN = b"".join(BLOCKS)
LAST = len(WRITTEN) - len(BLOCKS[-1])
OPEN = WRITTEN + bytes(4_096)
CLOSED = WRITTEN + end_mark(9)


def numbers(data: bytes) -> list[int]:
    return [one.number for one in scan(data, 5).blocks]


def is_damaged(data: bytes) -> bool:
    return scan(data, 5).damage is not None


@pytest.mark.promise("B10")
@pytest.mark.parametrize("whole", [OPEN, CLOSED], ids=["open", "closed"])
def test_every_flipped_bit_of_a_journal_is_noticed(whole: bytes) -> None:
    assert not is_damaged(whole)
    for at in range(len(WRITTEN)):
        for bit in range(8):
            flipped = bytearray(whole)
            flipped[at] ^= 1 << bit
            found = scan(bytes(flipped), 5)
            assert found.damage is not None, (at, bit)
            assert found.damage <= at
            assert {one.data for one in found.blocks} <= set(ROWS)
            assert len(found.blocks) >= len(ROWS) - 1, "the blocks behind the damage are found"


@pytest.mark.promise("B10")
def test_a_journal_that_was_cut_is_noticed_at_every_length() -> None:
    for length in range(len(WRITTEN) + 1):
        assert is_damaged(OPEN[:length]), length
    for length in range(len(WRITTEN) + 1, len(CLOSED)):
        found = scan(CLOSED[:length], 5)
        assert found.damage is not None or numbers(CLOSED[:length]) == [5, 6, 7, 8, 9]


@pytest.mark.promise("B10")
@pytest.mark.parametrize("size", [1, 20, 200, 600])
def test_zeroed_bytes_are_noticed_unless_they_look_like_a_write_that_was_cut_short(size: int) -> None:
    """If nothing but zeros follows, the store alone can tell that more was written."""
    for at in range(len(WRITTEN)):
        zeroed = WRITTEN[:at] + bytes(len(WRITTEN[at : at + size])) + OPEN[at + size :]
        zeroed = zeroed[: len(OPEN)].ljust(len(OPEN), b"\0")
        if zeroed == OPEN or is_damaged(zeroed):
            continue
        assert at + size >= len(WRITTEN)
        assert numbers(zeroed) == [5, 6, 7, 8, 9][: len(numbers(zeroed))]


def test_a_journal_without_its_beginning_is_damaged_and_its_other_blocks_are_found() -> None:
    for at in range(1, LAST, 7):
        found = scan(OPEN[at:], 5)
        assert found.damage == 0
        assert [one.data for one in found.blocks] == [
            data for number, data in enumerate(ROWS) if sum(map(len, BLOCKS[:number])) >= at
        ]


def test_a_write_that_was_cut_short_is_no_damage() -> None:
    """By a kill, which leaves a beginning, or by loss of power, which leaves any sectors of it."""
    assert scan(OPEN, 5).is_torn is False
    for length in range(1, len(BLOCKS[-1])):
        found = scan(WRITTEN[: LAST + length] + bytes(4_096), 5)
        assert (found.damage, len(found.blocks)) == (None, 4), length
    data = b"x" * 4_000 + b"\n"
    whole = WRITTEN + block(10, data)
    for sector in range(len(WRITTEN) // SECTOR_BYTES, len(whole) // SECTOR_BYTES):
        start, stop = max(sector * SECTOR_BYTES, len(WRITTEN)), (sector + 1) * SECTOR_BYTES
        torn = whole[:start] + bytes(stop - start) + whole[stop:] + bytes(1_000)
        assert (scan(torn, 5).damage, len(scan(torn, 5).blocks)) == (None, 5), sector
    assert scan(bytes(4_096), 5).damage is None


def test_what_a_message_says_is_no_block() -> None:
    """A block of any number in the text of a row, in a block that is damaged."""
    forged = block(2**40, b'[1,"sent"]\n')
    data = bytearray(block(5, b"[" + forged + b"]\n") + block(6, ROWS[0]) + bytes(100))
    data[BLOCK.size] ^= 1
    assert [one.number for one in scan(bytes(data), 5).blocks] == [6]
