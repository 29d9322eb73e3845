"""Ends a call of a command that the database does not answer in time, and says what it waits for.

Only commands are bounded so; the head of ``connection`` says why the broker is not. A timeout of the database would not do, because a
commit that waits for a standby ignores it. So the client hangs up. The database goes on, and what was asked may still take effect.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from types import TracebackType

    import psycopg

DIAGNOSIS_MS_MAX: Final = 2_000
_ACTIVITY: Final = (
    "select coalesce(wait_event_type, ''), coalesce(wait_event, ''), array_to_string(pg_blocking_pids(pid), ', '), "
    "current_setting('synchronous_standby_names') from pg_stat_activity where pid = %s"
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
        self._timer: threading.Timer | None = None
        self.overdue = ""
        """Why the last call was ended; empty: it was not."""

    def __enter__(self) -> None:
        self.overdue = ""
        self._timer = timer = threading.Timer(self._seconds_max, self._fire)
        timer.daemon = True
        timer.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    def _fire(self) -> None:
        connection = self._connection()
        if connection is None:
            return
        reason = self._diagnosis(connection.info.backend_pid)
        if self._timer is None:
            return  # it was answered meanwhile
        self.overdue = (
            f"no answer within {self._seconds_max:g} s: {reason}. What was asked may still take effect there"
        )
        self._cut()

    def _diagnosis(self, process: int) -> str:
        with contextlib.suppress(Exception), self._connect() as second:
            second.execute(f"set statement_timeout = {DIAGNOSIS_MS_MAX}")
            row = second.execute(_ACTIVITY, (process,)).fetchone()
            if row is not None:
                return waits_for(*row)
        return "what it waits for is not known, because a second connection was not answered either"


def waits_for(kind: str, event: str, blockers: str, standbys: str) -> str:
    """What the database's view of a process means."""
    if event == "SyncRep":
        return f"the commit waits for a synchronous standby (synchronous_standby_names is {standbys!r})"
    if kind == "Lock":
        return f"it waits for a lock that another session holds (process {blockers or 'unknown'})"
    return f"the database is at work ({kind}: {event})" if kind else "the database is at work"
