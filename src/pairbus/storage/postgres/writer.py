"""Appends frames: see ``storage.table.ports.FrameWriter``. Used by the commit thread."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from pairbus.storage.postgres.binary import BYTEA, INT4, INT8, int4, int8, number, unsigned, unsigned8
from pairbus.storage.postgres.connection import LockTimedOut, NoRange, Session
from pairbus.storage.postgres.schema import make_range, range_name
from pairbus.storage.table.ports import FrameMark, SequenceTaken, TableFailed, TableFull

if TYPE_CHECKING:
    from pairbus.storage.postgres.connection import Address

DROP_LOCK_MS: Final = 100
"""How long a range that is dropped may wait for a reader, such as a backup: commits wait behind it."""
RESERVE_PART_BYTES: Final = 1 << 20
RESERVE_PARTS_AT_ONCE: Final = 1
"""On a full database the last step fails: how much is held before it is all that is known of the space that is left."""

INSERT: Final = (
    b"insert into pairbus_frame (shard, seq, epoch, crc, head, body) values ($1, $2, $3, $4, $5, $6)"
)
INSERT_TYPES: Final = (INT4, INT8, INT8, INT8, BYTEA, BYTEA)
_MARK: Final = b"select epoch, crc from pairbus_frame where shard = $1 and seq = $2"
_BARRIER: Final = b"insert into pairbus_barrier values ($1, 1) on conflict (shard) do update set passed = pairbus_barrier.passed + 1"


class PostgresWriter:
    """See ``storage.table.ports.FrameWriter``.

    Args:
        address: Where the database is.
        shard: The number of the shard.
        range_frames: Frames in each of its ranges.
    """

    def __init__(self, address: Address, shard: int, range_frames: int) -> None:
        self._session = Session(address, "commit")
        self._shard = shard
        self._shard_value = int4(shard)
        self._range_frames = range_frames
        self._writable_below = 0
        """Frames below this number have their range."""

    def insert(self, sequence: int, mark: FrameMark, head: bytes, body: Sequence[bytes]) -> None:
        if sequence >= self._writable_below:
            self._make_ranges(sequence)
        values = (
            self._shard_value,
            int8(sequence),
            int8(mark.epoch),
            unsigned8(mark.checksum),
            head,
            body[0] if len(body) == 1 else b"".join(body),
        )
        try:
            self._session.execute(b"insert", INSERT, INSERT_TYPES, values)
        except NoRange as error:
            raise SequenceTaken(f"frame {sequence} was written long ago, and dropped") from error

    def fill(self, first: int, end: int, epoch: int) -> None:
        if first >= self._writable_below:
            self._make_ranges(first)
        try:
            self._session.run(
                "insert into pairbus_frame (shard, seq, epoch, crc, head, body) "
                f"select {self._shard}, number, {epoch}, 0, '', '' from generate_series({first}, {end - 1}) number"
            )
        except NoRange as error:
            raise SequenceTaken(f"frame {first} was written long ago, and dropped") from error

    def range_end(self, sequence: int) -> int:
        return (sequence // self._range_frames + 1) * self._range_frames

    def _make_ranges(self, sequence: int) -> None:
        place = sequence // self._range_frames
        # One ahead: so a node that takes the shard over finds its range, and needs no further step.
        for one in (place, place + 1):
            make_range(self._session, self._shard, one, self._range_frames)
        self._writable_below = (place + 1) * self._range_frames

    def mark_of(self, sequence: int) -> FrameMark | None:
        found = self._session.execute(b"mark", _MARK, (INT4, INT8), (self._shard_value, int8(sequence)))
        return FrameMark(number(found, 0, 0), unsigned(found, 0, 1)) if found.ntuples else None

    def barrier(self) -> None:
        self._session.execute(b"barrier", _BARRIER, (INT4,), (self._shard_value,))

    def drop_below(self, sequence: int) -> bool:
        ended = [place for place in self._places() if (place + 1) * self._range_frames <= sequence]
        for place in ended:
            try:
                # Nothing depends on it, so it need not wait for a standby: if a range comes back, it is dropped again.
                self._session.run(
                    f"set local synchronous_commit = local; set local lock_timeout = {DROP_LOCK_MS};"
                    f"drop table if exists pairbus_frame_{self._shard}_{place}"
                )
            except LockTimedOut:
                return False
        return True

    def _places(self) -> list[int]:
        found = self._session.run(
            "select inhrelid::regclass::text from pg_inherits "
            f"where inhparent = 'pairbus_frame_{self._shard}'::regclass"
        )
        names = [(found.get_value(row, 0) or b"").decode() for row in range(found.ntuples)]
        return sorted(int(match[1]) for name in names if (match := re.search(r"_(\d+)\"?$", name)))

    def hold_reserve(self, size: int) -> int:
        name = f"pairbus_reserve_{self._shard}"
        if size == 0:
            self._session.run(f"drop table if exists {name}")
            self._clear_away()
            return 0
        wanted = -(-size // RESERVE_PART_BYTES)
        self._session.run(
            f"create table if not exists {name} (filling bytea not null) with (autovacuum_enabled = false);"
            f"alter table {name} alter column filling set storage external"
        )
        held = int(self._session.run(f"select count(*)::text from {name}").get_value(0, 0) or b"0")
        parts = min(wanted - held, RESERVE_PARTS_AT_ONCE)
        if parts > 0:
            # Not compressed, or it would take less space than it says.
            self._session.run(
                f"insert into {name} select convert_to(repeat('x', {RESERVE_PART_BYTES}), 'UTF8') "
                f"from generate_series(1, {parts})"
            )
            held += parts
        return held * RESERVE_PART_BYTES

    def _clear_away(self) -> None:
        """A row that found no space leaves the pages behind that it had got already. Without this every repetition would need new ones."""
        if not self._writable_below:
            return
        name = range_name(self._shard, self._writable_below // self._range_frames - 1)
        # As it is only housekeeping, whatever hinders it does.
        with contextlib.suppress(TableFailed, TableFull):
            self._session.run(f"vacuum {name}")

    def close(self) -> None:
        self._session.close()
