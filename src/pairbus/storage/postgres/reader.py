"""Reads frames: see ``storage.table.ports.FrameReader``. Used at the start, then by the thread that reads ahead."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from pairbus.storage.postgres.binary import (
    INT4,
    INT8,
    INT8_ARRAY,
    int4,
    int8,
    int8_array,
    number,
    raw,
    unsigned,
)
from pairbus.storage.postgres.connection import Session
from pairbus.storage.table.ports import FrameHead, FrameMark

if TYPE_CHECKING:
    from pairbus.storage.postgres.connection import Address

HEADS_AT_ONCE: Final = 512
"""Frames of one answer: a frame's head has about 60 bytes for each message."""
_HEADS: Final = (
    b"select seq, epoch, crc, head, octet_length(body) from pairbus_frame "
    b"where shard = $1 and seq >= $2 and seq < $3 order by seq limit " + str(HEADS_AT_ONCE).encode()
)
OLDEST: Final = b"select seq from pairbus_frame where shard = $1 order by seq limit 1"
_BODIES: Final = b"select seq, body from pairbus_frame where shard = $1 and seq = any($2)"


class PostgresReader:
    """See ``storage.table.ports.FrameReader``."""

    def __init__(self, address: Address, shard: int) -> None:
        self._session = Session(address, "read")
        self._shard = int4(shard)

    def oldest(self) -> int:
        found = self._session.execute(b"oldest", OLDEST, (INT4,), (self._shard,))
        return number(found, 0, 0) if found.ntuples else 1

    def heads(self, first: int, end: int) -> Iterator[FrameHead]:
        while first < end:
            found = self._session.execute(
                b"heads", _HEADS, (INT4, INT8, INT8), (self._shard, int8(first), int8(end))
            )
            for row in range(found.ntuples):
                first = number(found, row, 0)
                mark = FrameMark(number(found, row, 1), unsigned(found, row, 2))
                yield FrameHead(first, mark, raw(found, row, 3), number(found, row, 4))
                first += 1
            if found.ntuples < HEADS_AT_ONCE:
                return

    def bodies(self, sequences: Sequence[int]) -> dict[int, bytes]:
        found = self._session.execute(
            b"bodies", _BODIES, (INT4, INT8_ARRAY), (self._shard, int8_array(list(sequences)))
        )
        return {number(found, row, 0): raw(found, row, 1) for row in range(found.ntuples)}

    def reconnect(self) -> None:
        self._session.hang_up()

    def close(self) -> None:
        self._session.close()
