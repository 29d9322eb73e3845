"""Looks at calls that have had no answer for long from a second connection, in a thread: see ``storage.table.second_look``.

A server is known by the instant at which it was started. Its address says too little: one name may lead to another server after a
promotion, and two names to the same one.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import psycopg

from pairbus.errors import StorageError
from pairbus.storage.postgres.meanings import MEANINGS
from pairbus.storage.postgres.waiting import LOCK, WAIT_EVENT, tables_waited_for, waits_for
from pairbus.storage.table.second_look import SILENT_SECONDS, Finding, Found, SecondLooks

if TYPE_CHECKING:
    from types import TracebackType

    from pairbus.storage.postgres.connection import Session

LOOK_SECONDS_MAX: Final = 2.0
"""How long the look's question may take, once it is connected; connecting has a bound of its own."""
SERVER: Final = b"select pg_postmaster_start_time()::text"
_LOOK: Final = (
    f"select coalesce(state, ''), coalesce(wait_event_type, ''), {WAIT_EVENT}, "
    "array_to_string(pg_blocking_pids(wanted), ', '), current_setting('synchronous_standby_names'), pg_postmaster_start_time()::text "
    "from unnest(%s::int[]) with ordinality as asked (wanted, place) left join pg_stat_activity as one on one.pid = wanted order by place"
)


class Call:
    """Used with ``with`` around each call of one connection: since when there has been no answer."""

    __slots__ = ("since",)

    def __init__(self) -> None:
        self.since: float | None = None

    def __enter__(self) -> None:
        self.since = time.monotonic()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.since = None


class Looker:
    """Takes second looks while there is anything to look at.

    Args:
        sessions: The connections of this process.
        connect: Makes a connection to the server that takes writes.
        silent_seconds: See ``second_look``.
    """

    def __init__(
        self,
        sessions: Callable[[], Sequence[Session]],
        connect: Callable[[], psycopg.Connection[Any]],
        silent_seconds: float = SILENT_SECONDS,
    ) -> None:
        self.report: Callable[[str, str], None] = _ignore
        """See ``SecondLooks``; called by the thread."""
        self._connect = connect
        self._looks = SecondLooks(sessions, self._look, self._tell, time.monotonic, silent_seconds)
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Idempotent."""
        if self._thread is None:
            # It must not keep the database's object, which nobody may close.
            self._thread = threading.Thread(
                target=_run, args=(weakref.ref(self), self._ended), name="pairbus-look", daemon=True
            )
            self._thread.start()

    def stop(self) -> None:
        self._ended.set()

    def step(self) -> float:
        """One step. Returns the seconds until the next one."""
        self._looks.step()
        return self._looks.step_seconds

    def _tell(self, purpose: str, text: str) -> None:
        self.report(purpose, text)

    def _look(self, sessions: Sequence[Session]) -> list[Finding]:
        try:
            rows = self._ask([session.backend for session in sessions])
        except (StorageError, psycopg.Error) as error:
            why = (
                " ".join(str(error).split()) if isinstance(error, StorageError) else "no answer there either"
            )
            nobody = Finding(Found.NOBODY, f"a second connection finds no server that takes writes ({why})")
            return [nobody] * len(sessions)
        return [_finding(session, *row) for session, row in zip(sessions, rows, strict=True)]

    def _ask(self, backends: list[int]) -> list[tuple[str, ...]]:
        connection = self._connect()
        cut = threading.Timer(LOOK_SECONDS_MAX, shut_down, (connection,))
        cut.daemon = True
        cut.start()
        try:
            connection.execute(MEANINGS + b"set statement_timeout = %d" % int(LOOK_SECONDS_MAX * 1000))
            rows = connection.execute(_LOOK, (backends,)).fetchall()
            return [
                (*row, tables_waited_for(connection, backend) if row[1] == LOCK else "")
                for backend, row in zip(backends, rows, strict=True)
            ]
        finally:
            cut.cancel()
            connection.close()


def _finding(
    session: Session,
    state: str,
    kind: str,
    event: str,
    blockers: str,
    standbys: str,
    server: str,
    tables: str,
) -> Finding:
    if session.server not in ("", server):
        return Finding(Found.ELSEWHERE, "another server takes writes now")
    if not state:
        return Finding(Found.ELSEWHERE, "the server does not know this connection")
    if state == "idle":
        return Finding(
            Found.IDLE, "what was asked or its answer is lost on its way: the server waits for a call"
        )
    return Finding(Found.AT_WORK, waits_for(kind, event, blockers, standbys, tables))


def shut_down(connection: psycopg.Connection[Any]) -> None:
    """Shut the socket down below a call, which then ends. From any thread; who uses the connection closes it."""
    with (
        contextlib.suppress(OSError, psycopg.Error),
        socket.socket(fileno=os.dup(connection.fileno())) as wire,
    ):
        wire.shutdown(socket.SHUT_RDWR)


def _run(looker: weakref.ref[Looker], ended: threading.Event) -> None:
    seconds = 0.0
    while not ended.wait(seconds):
        found = looker()
        if found is None:
            return
        seconds = found.step()
        del found


def _ignore(_purpose: str, _text: str) -> None:
    """Nobody wants to know."""
