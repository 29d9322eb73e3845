"""Appends frames: see ``storage.table.ports.FrameWriter``. Used by the commit thread."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from pairbus.storage.postgres.binary import (
    BYTEA,
    INT4,
    INT8,
    int4,
    int8,
    number,
    signed,
    unsigned,
    unsigned8,
)
from pairbus.storage.postgres.connection import LockTimedOut, NoRange, NoTable, Session
from pairbus.storage.postgres.schema import (
    DROP_LOCK_MS,
    last_frame,
    make_range,
    range_name,
    reserve_name,
    run_drop,
)
from pairbus.storage.table.ports import FrameMark, LogShortened, SequenceTaken, TableFailed, TableFull

if TYPE_CHECKING:
    from pairbus.storage.postgres.connection import Address

RESERVE_PART_BYTES: Final = 1 << 20
RESERVE_PARTS_AT_ONCE: Final = 1
"""On a full database the last step fails: how much is held before it is all that is known of the space that is left."""

# The frame before is of the same owner and was visible before this statement began: if it is not there, this database is not the one that
# acknowledged it. It is looked up by its key in its own range, because a plan over all ranges would lock each of them.
INSERT: Final = (
    "insert into pairbus_frame (shard, seq, epoch, crc, head, body) select $1, $2, $3, $4, $5, $6 "
    "where exists (select from {range} where shard = $1 and seq = $2 - 1 and epoch = $3 and crc = coalesce($7, crc))"
)
INSERT_TYPES: Final = (INT4, INT8, INT8, INT8, BYTEA, BYTEA, INT8)
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
        self._place_before = -1
        """The range of the frame before the next one: the prepared statement names it."""

    def insert(
        self, sequence: int, mark: FrameMark, head: bytes, body: Sequence[bytes], after: int | None = None
    ) -> None:
        if sequence >= self._writable_below:
            self._make_ranges(sequence)
        values = (
            self._shard_value,
            int8(sequence),
            int8(mark.epoch),
            unsigned8(mark.checksum),
            head,
            body[0] if len(body) == 1 else b"".join(body),
            None if after is None else unsigned8(after),
        )
        place = (sequence - 1) // self._range_frames
        if place != self._place_before:
            self._session.forget(b"insert")
            self._place_before = place
        statement = INSERT.format(range=range_name(self._shard, place)).encode()
        try:
            result = self._session.execute(b"insert", statement, INSERT_TYPES, values)
        except NoTable:
            raise self._why_not(sequence) from None
        except NoRange as error:
            raise SequenceTaken(f"frame {sequence} was written long ago, and dropped") from error
        if not result.command_tuples:
            raise self._why_not(sequence)

    def _why_not(self, sequence: int) -> SequenceTaken | LogShortened:
        """The frame before is not there, or not ours."""
        last = last_frame(self._session, self._shard_value)
        if last >= sequence:
            return SequenceTaken(f"frame {sequence} was written by another, and frame {last} is the last one")
        if self.mark_of(sequence - 1) is None:
            return LogShortened(last)
        # Another owner's, who will write this number next.
        return SequenceTaken(f"frame {sequence - 1} was written by another")

    def fill(self, first: int, end: int, epoch: int, after: int | None = None) -> None:
        if first >= self._writable_below:
            self._make_ranges(first)
        checksum = "" if after is None else f" and crc = {signed(after)}"
        try:
            result = self._session.run(
                "insert into pairbus_frame (shard, seq, epoch, crc, head, body) "
                f"select {self._shard}, number, {epoch}, 0, '', '' from generate_series({first}, {end - 1}) number "
                f"where exists (select from pairbus_frame where shard = {self._shard} and seq = {first - 1} and epoch = {epoch}{checksum})"
            )
        except NoRange as error:
            raise SequenceTaken(f"frame {first} was written long ago, and dropped") from error
        if not result.command_tuples:
            raise self._why_not(first)

    def range_end(self, sequence: int) -> int:
        return (sequence // self._range_frames + 1) * self._range_frames

    def _make_ranges(self, sequence: int) -> None:
        if self.mark_of(sequence - 1) is None:
            # Ranges are made in order: one that is made too early would keep the next owner from those before it.
            raise self._why_not(sequence)
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
                run_drop(
                    self._session,
                    f"set local synchronous_commit = local; set local lock_timeout = {DROP_LOCK_MS};"
                    f"drop table if exists pairbus_frame_{self._shard}_{place}",
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
        name = reserve_name(self._shard)
        if size == 0:
            run_drop(self._session, f"drop table if exists {name}")
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
