"""Decides which rows the bytes of an audit journal hold, and whether bytes behind them are damaged. No I/O.

A journal is a row of blocks, ``magic, number, length, CRC-32`` and lines of JSON. Their numbers follow one another; the first is in the name of the
file. Behind the last block there is one of three things:

- an end mark, if the journal was closed;
- zeros, if it is being written or its broker was killed: its space is reserved before a block is written;
- a torn block, if the machine stopped during a write: its end, or a whole sector of it, is still zero, and nothing follows it.

Anything else is damage. A journal without an end mark and without reserved space was cut (decision 0205).
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

MAGIC: Final = b"PBA1"
END_MAGIC: Final = b"PBAE"
BLOCK: Final = struct.Struct("<4sQII")
FILLER: Final = b"\n"
"""The contents of a block without rows. It stands for a block that is lost."""
SECTOR_BYTES: Final = 512
"""What a disk writes whole or not at all."""
_NAME: Final = re.compile(r"journal-([0-9]{16})-")


@dataclass(frozen=True, slots=True)
class Block:
    """A whole block: its checksum is right."""

    number: int
    start: int
    end: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Found:
    """What the bytes of a journal hold."""

    blocks: list[Block]
    """Every whole block, also behind damage."""
    damage: int | None
    """Where the first damaged byte may be; None: nothing is damaged."""
    is_torn: bool
    """Something that is no block, and no damage, stands behind the last block."""
    is_end_damaged: bool = False
    """Bytes behind the last block are damaged: it need not have been the last one."""
    is_closed: bool = False
    """The end mark is there: the batches of all blocks were durable (decision 0212)."""


def block(number: int, data: bytes) -> bytes:
    """The bytes of a block."""
    return BLOCK.pack(MAGIC, number, len(data), zlib.crc32(data)) + data


def end_mark(number: int) -> bytes:
    """What a closed journal ends with; ``number`` is that of its last block."""
    return BLOCK.pack(END_MAGIC, number, 0, zlib.crc32(number.to_bytes(8, "little")))


def first_number(name: str) -> int | None:
    """The number of the first block, by the name of the file; None if another program named it."""
    found = _NAME.match(name)
    return int(found[1]) if found else None


def whole_blocks(data: bytes, first: int | None) -> Iterator[Block]:
    """The blocks up to the first bytes that are none."""
    at, expected = 0, first
    while (found := _block_at(data, at)) is not None and expected in (None, found.number):
        yield found
        at, expected = found.end, found.number + 1


def scan(data: bytes, first: int | None) -> Found:
    """Read a journal. ``first`` is the number of its first block, if that is known."""
    blocks = list(whole_blocks(data, first))
    end, expected = _end_of(blocks, first)
    behind = list(_behind(data, end, expected))
    if not behind:
        is_closed = _is_closed(data, blocks)
        is_whole = is_closed or _is_torn(data, end, expected)
        is_torn = is_whole and not is_closed and bool(data[end:].strip(b"\0"))
        return Found(blocks, None if is_whole else end, is_torn, not is_whole, is_closed)
    blocks += behind
    is_closed = _is_closed(data, blocks)
    is_whole = is_closed or _is_torn(data, *_end_of(blocks, first))
    return Found(blocks, end, is_torn=False, is_end_damaged=not is_whole, is_closed=is_closed)


def _end_of(blocks: list[Block], first: int | None) -> tuple[int, int | None]:
    """Where the last block ends, and the number of a following one."""
    return (blocks[-1].end, blocks[-1].number + 1) if blocks else (0, first)


def _is_closed(data: bytes, blocks: list[Block]) -> bool:
    """Whether the end mark follows the last block, and nothing follows the end mark."""
    return bool(blocks) and data[blocks[-1].end :].rstrip(b"\0") == end_mark(blocks[-1].number).rstrip(b"\0")


def _block_at(data: bytes, at: int) -> Block | None:
    if at + BLOCK.size > len(data):
        return None
    magic, number, length, checksum = BLOCK.unpack_from(data, at)
    start = at + BLOCK.size
    if magic != MAGIC or not length or start + length > len(data):
        return None
    contents = data[start : start + length]
    return Block(number, at, start + length, contents) if zlib.crc32(contents) == checksum else None


def _behind(data: bytes, at: int, expected: int | None) -> Iterator[Block]:
    """Whole blocks behind bytes that are none. Their numbers rise; where two do not, the earlier number is the damaged one."""
    found: list[Block] = []
    start = at
    while (start := data.find(MAGIC, start)) >= 0:
        one = _block_at(data, start)
        if one is not None:
            found.append(one)
        start = one.end if one is not None else start + 1
    least = expected or 0
    # No message can contain a block of any number: there is not more room than for so many.
    most = least + (len(data) - at) // BLOCK.size
    for place, one in enumerate(found):
        is_bound = expected is None or least <= one.number <= most
        if is_bound and all(one.number < following.number for following in found[place + 1 : place + 2]):
            yield one
            least = one.number + 1


def _is_torn(data: bytes, end: int, expected: int | None) -> bool:
    """Whether the bytes behind the last block can be reserved space, with or without a write that a crash cut short."""
    rest = data[end:]
    if not rest:
        return False
    written = rest.rstrip(b"\0")
    if not written:
        return True
    head = MAGIC if expected is None else MAGIC + expected.to_bytes(8, "little")
    if len(written) <= BLOCK.size and written[: len(head)] == head[: len(written)]:
        return len(rest) > BLOCK.size
    if rest[: len(head)] == head:
        _, _, length, checksum = BLOCK.unpack_from(rest)
        stop = BLOCK.size + length
        contents = rest[BLOCK.size : stop]
        if stop > len(rest) or len(written) > stop or zlib.crc32(contents.rstrip(b"\0")) == checksum:
            return False
        return contents[-1:] == b"\0" or _has_empty_sector(contents, end + BLOCK.size)
    return not rest[: SECTOR_BYTES - end % SECTOR_BYTES].strip(b"\0")


def _has_empty_sector(contents: bytes, offset: int) -> bool:
    at = 0
    while at < len(contents):
        following = at + SECTOR_BYTES - (offset + at) % SECTOR_BYTES
        if not contents[at:following].strip(b"\0"):
            return True
        at = following
    return False
