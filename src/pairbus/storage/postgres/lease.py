"""Says who owns a shard: see ``storage.table.ports.LeaseTable``. Used by the lease thread.

Each call is one statement, so a node that is paused in the middle of a call holds no lock on the shard's row. The lease begins
and ends by the database's clock; no other clock is compared with it.

A command that takes the shard gives up after a while. Its statement may lie unread until then, in a database that is frozen, so it holds a deadline by
the database's clock: no owner is fenced, and no node is kept waiting, by a command that has ended. And it never waits for the row: an owner
whose renewal waits for a standby holds it, and would be fenced by the command once the standby is back (decision 0138).

A namespace that was moved elsewhere has an owner that no node is, for ever. That is part of the shard's row, which every statement here
locks: a setting in another table would not be seen by an acquisition that began before it was written and waited for the row.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from pairbus.storage.postgres.binary import BYTEA, INT4, INT8, TEXT, int4, int8, number, raw, text, unsigned
from pairbus.storage.postgres.connection import NoRange, Session
from pairbus.storage.postgres.nodes import held_up
from pairbus.storage.postgres.reader import OLDEST
from pairbus.storage.postgres.schema import (
    DROP_LOCK_MS,
    last_frame,
    make_range,
    reserve_name,
    run_drop,
)
from pairbus.storage.postgres.settings import MOVED
from pairbus.storage.table.ports import (
    Acquired,
    FrameMark,
    LogShortened,
    Ownership,
    SequenceTaken,
    ShardMoved,
    TableFailed,
    TableFull,
)

if TYPE_CHECKING:
    from pairbus.storage.postgres.connection import Address
    from pairbus.storage.table.ports import LastFrame

NEWLINE: Final = "\n"
"""Ends the place in the mark of a shard that was moved; which move it was follows."""
LEFT_SECONDS: Final = 1.0
"""So long a command watches a lease that has ended and was not given back. An owner tries to renew it more often."""
_MOVED_OWNER: Final = "(moved)"
"""Owns a shard that was moved; the names of nodes hold no parentheses."""
_MOVED_UNTIL: Final = "9999-12-31T00:00:00Z"
"""The end of its lease."""
_LATER: Final = b"clock_timestamp() + $%d * interval '1 millisecond'"
_NOW: Final = b"select floor(extract(epoch from clock_timestamp()) * 1000)::bigint"
# The statement sees the frames as they were when it began. If the owner adds one meanwhile, the fence finds its number taken, and
# everything is undone. So max(seq) need not be locked.
_ACQUIRE: Final = (
    b"with taken as (update pairbus_shard set epoch = epoch + 1, owner = $2, address = $3, until = "
    + _LATER % 4
    + b" where shard = $1 and (owner = '' or until <= clock_timestamp()) "
    b"and ($5 = 0 or extract(epoch from clock_timestamp()) * 1000 <= $5) "
    # Earlier versions left only this mark.
    b"and not exists (select from pairbus_setting where shard = $1 and name = 'moved') returning epoch), "
    b"fence as (insert into pairbus_frame (shard, seq, epoch, crc, head, body) "
    b"select $1, 1 + coalesce((select seq from pairbus_frame where shard = $1 order by seq desc limit 1), 0), epoch, 0, '', '' "
    b"from taken returning epoch, seq) select epoch, seq from fence"
)
_LOCK_FREE: Final = b"(select shard from pairbus_shard where shard = $1 for update skip locked)"
_TAKE: Final = _ACQUIRE.replace(
    b" where shard = $1 and (owner", b" where shard = " + _LOCK_FREE + b" and (owner"
)
_LEFT: Final = (
    b"select owner from pairbus_shard where shard = $1 and until <= clock_timestamp() for update skip locked"
)
_RENEW: Final = (
    b"update pairbus_shard set address = $3, until = "
    + _LATER % 4
    # The name too: of two nodes that a failover gave the same epoch only one is the owner.
    + b" where shard = $1 and epoch = $2 and owner <> '' and owner = coalesce(nullif($5, ''), owner) "
    b"and ($6 = 0 or exists (select from pairbus_frame where shard = $1 and seq = $6 and epoch = $2)) returning epoch"
)
_RELEASE: Final = (
    b"update pairbus_shard set owner = '', address = '', until = 'epoch' where shard = $1 and epoch = $2"
)
_MOVE_AWAY: Final = (
    f"with ended as (update pairbus_shard set epoch = epoch + 1, owner = '{_MOVED_OWNER}', address = '', until = '{_MOVED_UNTIL}' "
    "where shard = $1 and epoch = $2 and owner <> '' returning shard) "
    f"insert into pairbus_setting (shard, name, value) select shard, '{MOVED}', $3 from ended "
    "on conflict (shard, name) do update set value = excluded.value returning shard"
).encode()
_LOOK: Final = (
    b"select epoch, owner, address, "
    b"greatest(ceil(extract(epoch from until - clock_timestamp()) * 1000), -1)::bigint, one.name, value from pairbus_shard as one "
    b"left join pairbus_setting as setting on setting.shard = one.shard and setting.name = 'moved' where one.shard = $1"
)
_KEPT: Final = b"select seq, epoch, crc from pairbus_frame where shard = $1 and seq <= $2 and epoch <= $3 order by seq desc limit 1"
_BEGAN: Final = (
    b"select seq from pairbus_frame where shard = $1 and seq <= $2 and epoch = $3 order by seq limit 1"
)
_HOLDS: Final = b"select from pairbus_shard where shard = $1 and epoch = $2 and owner <> '' and owner = coalesce(nullif($3, ''), owner)"


def moved_error(namespace: str, address: Address, target: bytes) -> ShardMoved:
    """What everybody is told who wants to serve a namespace that was moved elsewhere."""
    return ShardMoved(
        f"namespace {namespace} was moved from {address} to {target.decode().partition(NEWLINE)[0]}: serve it from there, or move it back with "
        "`pairbus store move`"
    )


class PostgresLease:
    """See ``storage.table.ports.LeaseTable``."""

    def __init__(self, address: Address, shard: int, range_frames: int) -> None:
        self._session = Session(address, "lease")
        self._shard = shard
        self._shard_value = int4(shard)
        self._range_frames = range_frames
        self._owner = b""
        """Who acquired the shard through this connection; empty: nobody yet."""

    def acquire(self, owner: str, address: str, lease_ms: int) -> Acquired | None:
        if not owner:
            raise TableFailed("a node that takes a shard needs a name")
        is_command = self._session.address.answer_seconds_max is not None
        if is_command and not self._is_left():
            return None
        values = (self._shard_value, owner.encode(), address.encode(), int8(lease_ms), int8(self._deadline()))
        name, statement = (b"take", _TAKE) if is_command else (b"acquire", _ACQUIRE)
        try:
            found = self._session.execute(name, statement, (INT4, TEXT, TEXT, INT8, INT8), values)
        except NoRange as error:
            # The fence would be the first frame of a range that nobody has made yet.
            self._make_next_range()
            raise SequenceTaken("the range of the next frame was made just now: try again") from error
        except TableFull as error:
            if not self._gave_up_reserve():
                raise
            raise SequenceTaken("the reserve that the former owner left was given up: try again") from error
        if not found.ntuples:
            return None
        self._owner = owner.encode()
        return Acquired(number(found, 0, 0), number(found, 0, 1))

    def _is_left(self) -> bool:
        """Whether nobody renews a lease that has ended. An owner that runs has either a renewal under way, which locks the row, or makes one
        within the pause."""
        found = self._session.execute(b"left", _LEFT, (INT4,), (self._shard_value,))
        if not found.ntuples:
            return False
        if text(found, 0, 0):
            time.sleep(LEFT_SECONDS)
            # A renewal that waits for the table has not locked the row yet.
            return not held_up(self._session)
        return True

    def _gave_up_reserve(self) -> bool:
        """Whether a reserve was there and is gone. It stays where its owner still has the lease, or renews it now."""
        reserve = reserve_name(self._shard)
        is_there = f"select to_regclass('{reserve}') is not null"
        if self._session.run(is_there).get_value(0, 0) != b"t":
            return False
        run_drop(
            self._session,
            f"""set local lock_timeout = {DROP_LOCK_MS};
            do $pairbus$ begin
            if exists (select from pairbus_shard where shard = {self._shard} and (owner = '' or until <= clock_timestamp())
                       for update skip locked) then
              drop table if exists {reserve};
            end if;
            end $pairbus$""",
        )
        return self._session.run(is_there).get_value(0, 0) != b"t"

    def _deadline(self) -> int:
        """By the database's clock, in milliseconds; 0: none, because a node waits as long as it takes."""
        seconds = self._session.address.answer_seconds_max
        if seconds is None:
            return 0
        return number(self._session.execute(b"now", _NOW, (), ()), 0, 0) + int(seconds * 1000)

    def _make_next_range(self) -> None:
        following = 1 + last_frame(self._session, self._shard_value)
        make_range(self._session, self._shard, following // self._range_frames, self._range_frames)

    def renew(self, epoch: int, address: str, lease_ms: int, newest: int = 0) -> bool:
        held = (self._shard_value, int8(epoch))
        values = (*held, address.encode(), int8(lease_ms), self._owner, int8(newest))
        types = (INT4, INT8, TEXT, INT8, TEXT, INT8)
        if self._session.execute(b"renew", _RENEW, types, values).ntuples:
            return True
        if (
            newest
            and self._session.execute(b"holds", _HOLDS, (INT4, INT8, TEXT), (*held, self._owner)).ntuples
        ):
            last = last_frame(self._session, self._shard_value)
            if last > newest:
                # The renewal was long on its way, and the owner has dropped that frame meanwhile: what came after it is there.
                return self.renew(epoch, address, lease_ms, last)
            raise LogShortened(last)
        return False

    def last_kept(self, last: LastFrame) -> int | None:
        session, shard, mark = self._session, self._shard_value, last.mark
        values = (shard, int8(last.sequence), int8(mark.epoch))
        # Epochs never fall: what lies up to there and is of a later one has replaced what the owner knew.
        found = session.execute(b"kept", _KEPT, (INT4, INT8, INT8), values)
        if not found.ntuples:
            oldest = session.execute(b"oldest", OLDEST, (INT4,), (shard,))
            first = number(oldest, 0, 0) if oldest.ntuples else 1
            return first - 1 if first <= last.sequence else None
        sequence = number(found, 0, 0)
        if sequence < last.sequence:
            return sequence
        if FrameMark(number(found, 0, 1), unsigned(found, 0, 2)) == mark:
            return None
        # The acquisition was lost too, and another owner got the same epoch.
        again = session.execute(b"again", _BEGAN, (INT4, INT8, INT8), values)
        return (number(again, 0, 0) if again.ntuples else sequence) - 1

    def release(self, epoch: int) -> None:
        self._session.execute(b"release", _RELEASE, (INT4, INT8), (self._shard_value, int8(epoch)))

    def move_away(self, epoch: int, target: str) -> bool:
        values = (self._shard_value, int8(epoch), target.encode())
        return bool(self._session.execute(b"move_away", _MOVE_AWAY, (INT4, INT8, BYTEA), values).ntuples)

    def look(self) -> Ownership:
        found = self._session.execute(b"look", _LOOK, (INT4,), (self._shard_value,))
        if not found.ntuples:
            raise ShardMoved(
                f"shard {self._shard} is gone from {self._session.address}: its namespace was moved away and back, or removed; "
                "start this node again"
            )
        if found.get_value(0, 5) is not None:
            raise moved_error(text(found, 0, 4), self._session.address, raw(found, 0, 5))
        return Ownership(
            number(found, 0, 0), text(found, 0, 1), text(found, 0, 2), max(0, number(found, 0, 3))
        )

    def close(self) -> None:
        self._session.close()
