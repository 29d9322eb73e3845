"""What holds up the calls of others in the database, as its own views tell. Every role may read ``pg_locks``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pairbus.storage.postgres.binary import text
from pairbus.storage.postgres.connection import NotAnswered
from pairbus.storage.postgres.waiting import IS_COMMITTING, IS_HERE, IS_WAITED_FOR
from pairbus.storage.table.ports import HeldUp, TableFailed

if TYPE_CHECKING:
    from pairbus.storage.postgres.connection import Session

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
