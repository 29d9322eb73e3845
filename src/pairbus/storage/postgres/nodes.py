"""The nodes that serve a shard, and what holds up their calls: see ``storage.table.ports.NodeTable``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pairbus.storage.postgres.binary import INT4, TEXT, int4, number, optional_number, text
from pairbus.storage.postgres.connection import NotAnswered, Session
from pairbus.storage.postgres.waiting import IS_COMMITTING, IS_HERE, IS_WAITED_FOR
from pairbus.storage.table.ports import DatabaseCopies, HeldUp, NodeEntry, StandbyEntry, TableFailed

if TYPE_CHECKING:
    from pairbus.storage.postgres.connection import Address

_REPORT: Final = (
    b"insert into pairbus_node (shard, node, address, names, state, version, seen) "
    b"values ($1, $2, $3, $4, $5, $6, clock_timestamp()) on conflict (shard, node) do update set address = excluded.address, "
    b"names = excluded.names, state = excluded.state, version = excluded.version, seen = excluded.seen returning asked"
)
_NODES: Final = (
    b"select node, address, names, state, version, asked, "
    b"greatest(floor(extract(epoch from clock_timestamp() - seen) * 1000), 0)::bigint "
    b"from pairbus_node where shard = $1 order by node"
)
_ASK: Final = b"update pairbus_node set asked = $3 where shard = $1 and node = $2 returning node"
_ANSWERED: Final = b"update pairbus_node set asked = '' where shard = $1 and node = $2 and asked = $3"
_FORGET: Final = (
    b"delete from pairbus_node where shard = $1 and node = $2 "
    b"and clock_timestamp() - seen >= $3 * interval '1 millisecond' returning node"
)
_COPIES: Final = (
    b"select current_setting('synchronous_standby_names'), coalesce(application_name, ''), coalesce(sync_state, ''), "
    b"pg_wal_lsn_diff(pg_current_wal_lsn(), flush_lsn)::bigint, floor(extract(epoch from flush_lag) * 1000)::bigint, pid "
    b"from (select 1) as one left join pg_stat_replication on true order by 2, pid"
)
# Of those that a process waits for, some wait themselves, in the queue before it: only the others hold anything up.
# A commit that waits for the standby keeps its locks: it is the standby that is waited for, and nobody should end that session.
# Commits wait for the standby for milliseconds all the time, so only a long wait counts, and one behind which others wait.
_HELD_UP: Final = (
    "with waiting as (select distinct pid from pg_locks where not granted), "
    f"committing as (select pid, query_start from pg_stat_activity where {IS_COMMITTING}), "
    "place as (select distinct pid, relation from pg_locks where pid in (select pid from waiting) "
    f"and {IS_HERE} and {IS_WAITED_FOR}), "
    "held as (select relname::text as name, holder, holder in (select pid from committing) as commits "
    "from place join pg_class on oid = relation left join lateral unnest(pg_blocking_pids(pid)) as holder "
    "on holder not in (select pid from waiting) where starts_with(relname::text, 'pairbus_') "
    "and relnamespace = (select relnamespace from pg_class where oid = 'pairbus_node'::regclass)) "
    "select name, coalesce(string_agg(distinct holder::text, ' ') filter (where not commits), '') from held group by name "
    "having count(*) filter (where not commits) > 0 or count(*) filter (where commits) = 0 "
    "union all select '', '' where exists (select from held where commits) "
    "or exists (select from committing where query_start < clock_timestamp() - interval '3 seconds') order by 1"
).encode()
AGE_MS_MAX: Final = 2**31 - 1
"""The oldest age that a number of the database's statement holds: 24 days."""


def held_up(session: Session) -> tuple[HeldUp, ...]:
    """See ``storage.table.ports.NodeTable``. Every role may read ``pg_locks``, unless an administrator has taken that right."""
    try:
        found = session.execute(b"held_up", _HELD_UP, (), ())
    except NotAnswered:
        raise
    except TableFailed:
        return ()  # somebody has taken the right to look from this role
    return tuple(
        HeldUp(text(found, row, 0), tuple(int(one) for one in text(found, row, 1).split()))
        for row in range(found.ntuples)
    )


class PostgresNodes:
    """See ``storage.table.ports.NodeTable``."""

    def __init__(self, address: Address, shard: int) -> None:
        self._session = Session(address, "nodes")
        self._shard = int4(shard)

    def report(self, entry: NodeEntry) -> str:
        given = (entry.node, entry.address, " ".join(entry.names), entry.state, entry.version)
        values = (self._shard, *(value.encode() for value in given))
        return text(self._session.execute(b"report", _REPORT, (INT4, *(TEXT,) * 5), values), 0, 0)

    def nodes(self) -> list[NodeEntry]:
        found = self._session.execute(b"nodes", _NODES, (INT4,), (self._shard,))
        return [
            NodeEntry(
                node=text(found, row, 0),
                address=text(found, row, 1),
                names=tuple(text(found, row, 2).split()),
                state=text(found, row, 3),
                version=text(found, row, 4),
                asked=text(found, row, 5),
                age_ms=number(found, row, 6),
            )
            for row in range(found.ntuples)
        ]

    def ask(self, node: str, request: str) -> bool:
        values = (self._shard, node.encode(), request.encode())
        return bool(self._session.execute(b"ask", _ASK, (INT4, TEXT, TEXT), values).ntuples)

    def answered(self, node: str, request: str) -> None:
        values = (self._shard, node.encode(), request.encode())
        self._session.execute(b"answered", _ANSWERED, (INT4, TEXT, TEXT), values)

    def forget(self, node: str, age_ms: int) -> bool:
        values = (self._shard, node.encode(), int4(min(age_ms, AGE_MS_MAX)))
        return bool(self._session.execute(b"forget", _FORGET, (INT4, TEXT, INT4), values).ntuples)

    def held_up(self) -> tuple[HeldUp, ...]:
        return held_up(self._session)

    def copies(self) -> DatabaseCopies:
        found = self._session.execute(b"copies", _COPIES, (), ())
        standbys = (
            StandbyEntry(
                name=text(found, row, 1),
                state=text(found, row, 2),
                behind_bytes=optional_number(found, row, 3),
                behind_ms=optional_number(found, row, 4),
            )
            for row in range(found.ntuples)
            if optional_number(found, row, 5) is not None
        )
        return DatabaseCopies(text(found, 0, 0), tuple(standbys))

    def close(self) -> None:
        self._session.close()
