"""Ends a call of a command that the database does not answer in time, and says what it waits for.

Only commands are bounded so; the head of ``connection`` says why the broker is not. What was given up must not take effect later, so the
database itself ends the statement first (``statement_timeout``): then it is certain that nothing was changed. A commit is past that: a wait for a
standby ignores the timeout, and cannot be taken back. Then the client hangs up, and says that what was asked may still take effect.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import psycopg

from pairbus.storage.postgres.meanings import MEANINGS

if TYPE_CHECKING:
    from types import TracebackType

DIAGNOSIS_MS_MAX: Final = 2_000
DIAGNOSIS_PART: Final = 0.5
"""After this part of the time the database is asked what the call waits for."""
STATEMENT_PART: Final = 0.9
"""After this part of it the database ends the statement."""
CONNECT_POLL_SECONDS: Final = 0.1
STANDBY: Final = "SyncRep"
"""The wait of a commit for the synchronous standby."""
IS_COMMITTING: Final = f"datname = current_database() and wait_event = '{STANDBY}'"
# What a process waits for in the end: the first in the queue for a row waits for the one that holds it, the others for the first.
WAIT_EVENT: Final = (
    "case when exists (with recursive before (process) as (select unnest(pg_blocking_pids(one.pid)) "
    "union select unnest(pg_blocking_pids(process)) from before) "
    f"select from before join pg_stat_activity as other on other.pid = process where {IS_COMMITTING.replace('datname', 'other.datname')}) "
    f"then '{STANDBY}' else coalesce(one.wait_event, '') end"
)
_ACTIVITY: Final = (
    f"select coalesce(wait_event_type, ''), {WAIT_EVENT}, array_to_string(pg_blocking_pids(pid), ', '), "
    "current_setting('synchronous_standby_names') from pg_stat_activity as one where pid = %s"
)
LOCK: Final = "Lock"
"""The kind of a wait for what another session holds."""
# Who waits for a table waits for a lock on it; who waits for a row has a place in the queue at that row (`tuple`), or waits for one.
IS_WAITED_FOR: Final = "relation is not null and (not granted or locktype = 'tuple')"
IS_HERE: Final = "database = (select oid from pg_database where datname = current_database())"
_TABLES: Final = (
    "select coalesce(string_agg(distinct relation::regclass::text, ', '), '') from pg_locks "
    f"where pid = %s and {IS_HERE} and {IS_WAITED_FOR}"
)


class Watch:
    """Used with ``with`` around each call.

    Args:
        seconds_max: How long a call may take.
        connection: The one in use; None: it is being made, which has its own bound.
        connect: Makes a second one, to ask what the first one waits for.
        cut: Ends the call under way.
    """

    def __init__(
        self,
        seconds_max: float,
        connection: Callable[[], psycopg.Connection[Any] | None],
        connect: Callable[[], psycopg.Connection[Any]],
        cut: Callable[[], None],
    ) -> None:
        self._seconds_max = seconds_max
        self._connection = connection
        self._connect = connect
        self._cut = cut
        self._call: threading.Event | None = None
        """Set when the call under way has ended; None: there is none."""
        self._reason = ""
        self.overdue = ""
        """Why the last call was ended; empty: it was not."""

    @property
    def statement_ms_max(self) -> int:
        """For ``statement_timeout``."""
        return max(1, int(self._seconds_max * 1000 * STATEMENT_PART))

    def __enter__(self) -> None:
        self.overdue = self._reason = ""
        self._call = call = threading.Event()
        threading.Thread(target=self._run, args=(call,), name="pairbus-watch", daemon=True).start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        call, self._call = self._call, None
        if call is not None:
            call.set()

    def _run(self, call: threading.Event) -> None:
        until = time.monotonic() + self._seconds_max
        if call.wait(self._seconds_max * DIAGNOSIS_PART):
            return
        while (connection := self._connection()) is None:
            if call.wait(CONNECT_POLL_SECONDS):
                return
        reason = self._diagnosis(connection.info.backend_pid)
        if self._call is call:
            self._reason = reason
        if call.wait(max(0.0, until - time.monotonic())):
            return
        self.overdue = f"{self._not_answered(reason)}. What was asked may still take effect there"
        self._cut()

    def ended(self) -> str:
        """What to say when the database itself has ended the statement."""
        return f"{self._not_answered(self._reason or 'what it waited for is not known')}. Nothing was changed"

    def _not_answered(self, reason: str) -> str:
        return f"no answer within {self._seconds_max:g} s: {reason}"

    def _diagnosis(self, process: int) -> str:
        with contextlib.suppress(Exception), self._connect() as second:
            second.execute(MEANINGS + b"set statement_timeout = %d" % DIAGNOSIS_MS_MAX)
            row = second.execute(_ACTIVITY, (process,)).fetchone()
            if row is not None:
                kind, event, blockers, standbys = row
                tables = tables_waited_for(second, process) if kind == LOCK else ""
                return waits_for(kind, event, blockers, standbys, tables)
        return "what it waits for is not known, because a second connection was not answered either"


def tables_waited_for(connection: psycopg.Connection[Any], process: int) -> str:
    """The names of the tables that a process waits for; empty: they are not known, or somebody has taken the right to look from this role."""
    with contextlib.suppress(psycopg.errors.InsufficientPrivilege):
        row = connection.execute(_TABLES, (process,)).fetchone()
        return "" if row is None else str(row[0])
    return ""


def waits_for(kind: str, event: str, blockers: str, standbys: str, tables: str = "") -> str:
    """What the database's view of a process means."""
    if event == STANDBY and kind == LOCK:
        return f"it waits behind a commit that waits for a synchronous standby (synchronous_standby_names is {standbys!r})"
    if event == STANDBY:
        return f"the commit waits for a synchronous standby (synchronous_standby_names is {standbys!r})"
    if kind == LOCK:
        place = f" on {tables}" if tables else ""
        return f"it waits for a lock{place} that another session holds (process {blockers or 'unknown'})"
    return f"the database is at work ({kind}: {event})" if kind else "the database is at work"
