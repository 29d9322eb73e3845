"""What holds up the calls of others in the database, as its own views tell. Every role may read ``pg_locks``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pairbus.storage.postgres.binary import text
from pairbus.storage.postgres.connection import NotAnswered
from pairbus.storage.postgres.waiting import IS_HERE, IS_WAITED_FOR
from pairbus.storage.table.ports import HeldUp, TableFailed

if TYPE_CHECKING:
    from pairbus.storage.postgres.connection import Session

# Of those that a process waits for, some wait themselves, in the queue before it: only the others hold anything up.
# Commits wait for the standby for milliseconds all the time, so only a long wait counts.
_HELD_UP: Final = (
    "with waiting as (select distinct pid from pg_locks where not granted), "
    "place as (select distinct pid, relation from pg_locks where pid in (select pid from waiting) "
    f"and {IS_HERE} and {IS_WAITED_FOR}) "
    "select relname::text, coalesce(string_agg(distinct holder::text, ' ') "
    "filter (where holder not in (select pid from waiting)), '') "
    "from place join pg_class on oid = relation left join lateral unnest(pg_blocking_pids(pid)) as holder on true "
    "where starts_with(relname::text, 'pairbus_') "
    "and relnamespace = (select relnamespace from pg_class where oid = 'pairbus_node'::regclass) group by relname "
    "union all select '', '' where exists (select from pg_stat_activity where datname = current_database() "
    "and wait_event = 'SyncRep' and query_start < clock_timestamp() - interval '3 seconds') order by 1"
).encode()


def held_up(session: Session) -> tuple[HeldUp, ...]:
    """See ``storage.table.ports.NodeTable``."""
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
