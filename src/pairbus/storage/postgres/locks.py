"""What the database's own views tell of waiting: on which table a process waits, and what holds up the calls of others.

Every role may read ``pg_locks``. A process that waits for a table waits for a lock on it; one that waits for a row holds a place in the queue
at that row (``tuple``), or waits for one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pairbus.storage.postgres.binary import text
from pairbus.storage.table.ports import HeldUp

if TYPE_CHECKING:
    from pairbus.storage.postgres.connection import Session

_IS_WAITED_FOR: Final = "relation is not null and (not granted or locktype = 'tuple')"
_IS_HERE: Final = "database = (select oid from pg_database where datname = current_database())"


def table_waited_for(process: str) -> str:
    """The expression for the tables that a process, given by an expression, waits for a lock on; empty: none is known."""
    return (
        "coalesce((select string_agg(distinct relation::regclass::text, ', ') from pg_locks "
        f"where pg_locks.pid = {process} and {_IS_HERE} and {_IS_WAITED_FOR}), '')"
    )


# Of those that a process waits for, some wait themselves, in the queue before it: only the others hold anything up.
# Commits wait for the standby for milliseconds all the time, so only a long wait counts.
_HELD_UP: Final = (
    "with waiting as (select distinct pid from pg_locks where not granted), "
    "place as (select distinct pid, relation from pg_locks where pid in (select pid from waiting) "
    f"and {_IS_HERE} and {_IS_WAITED_FOR}) "
    "select relname::text, coalesce(string_agg(distinct holder::text, ' ') "
    "filter (where holder not in (select pid from waiting)), '') "
    "from place join pg_class on oid = relation left join lateral unnest(pg_blocking_pids(pid)) as holder on true "
    r"where relname like 'pairbus\_%' "
    "and relnamespace = (select relnamespace from pg_class where oid = 'pairbus_node'::regclass) group by relname "
    "union all select '', '' where exists (select from pg_stat_activity where datname = current_database() "
    "and wait_event = 'SyncRep' and query_start < clock_timestamp() - interval '3 seconds') order by 1"
).encode()


def held_up(session: Session) -> tuple[HeldUp, ...]:
    """See ``storage.table.ports.NodeTable``."""
    found = session.execute(b"held_up", _HELD_UP, (), ())
    return tuple(
        HeldUp(text(found, row, 0), tuple(int(one) for one in text(found, row, 1).split()))
        for row in range(found.ntuples)
    )
