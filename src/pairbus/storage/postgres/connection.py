"""One connection to the database: how it is made, when it is made again, and what an error means for its caller.

Rule 1: every statement is a transaction of its own, sent in one piece. A node that is paused between two statements holds no lock.
Rule 2: no timeout and no cancel ever ends a statement of a durable connection. PostgreSQL answers a commit whose wait for the standby was
        cancelled with success and a warning: what was written may then be on one disk alone. A server that will never answer is left by
        hanging up (``look``), and then the outcome is unknown.
Rule 3: so a warning there means that the outcome is unknown.
Rule 4: the statement of a client that is gone must not take effect later. It may wait for a lock, or lie unread in a database that is frozen.
        So the database looks for its client while it works, and ends the statements of commands after a time (``waiting``). A statement that
        would do harm late holds its own deadline (``lease``).
Rule 5: whatever names a connection in an error names hosts and database only: the rest of a URL may hold a password.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import re
import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict

from pairbus.errors import UsageError
from pairbus.storage.postgres.look import SERVER, Call, Looker, shut_down
from pairbus.storage.postgres.meanings import MEANINGS
from pairbus.storage.postgres.waiting import Watch
from pairbus.storage.table.ports import OutcomeUnknown, SequenceTaken, TableFailed, TableFull
from pairbus.storage.table.second_look import SILENT_SECONDS

CONNECT_SECONDS_MAX: Final = 5
"""For each host of the list."""
CONNECT_SECONDS_MIN: Final = 2
"""The least that libpq takes."""
TCP_USER_TIMEOUT_MS: Final = 10_000
"""After so long without an acknowledgement of what was sent the connection is lost."""
KEEPALIVE_IDLE_SECONDS: Final = 5
KEEPALIVE_INTERVAL_SECONDS: Final = 2
KEEPALIVE_COUNT: Final = 3
ERROR_CHARACTERS_MAX: Final = 300
DEFAULT_PORT: Final = "5432"

_DEFAULTS: Final[dict[str, object]] = {
    # Of a list of hosts the one that takes writes: a standby, or a primary that was demoted, is passed over.
    "target_session_attrs": "read-write",
    "connect_timeout": CONNECT_SECONDS_MAX,
    "tcp_user_timeout": TCP_USER_TIMEOUT_MS,
    "keepalives": 1,
    "keepalives_idle": KEEPALIVE_IDLE_SECONDS,
    "keepalives_interval": KEEPALIVE_INTERVAL_SECONDS,
    "keepalives_count": KEEPALIVE_COUNT,
}
# As the settings of `meanings`, and only for those who write. `transaction_timeout` came with PostgreSQL 17.
_SESSION: Final = (
    MEANINGS
    + b"""
select set_config('synchronous_commit', 'on', false) where current_setting('synchronous_commit') <> 'remote_apply';
select set_config(name, '0', false) from pg_settings
  where name in ('statement_timeout', 'lock_timeout', 'transaction_timeout', 'idle_session_timeout',
                 'idle_in_transaction_session_timeout');
do $pairbus$ begin
  perform set_config('client_connection_check_interval', '1s', false);
exception when others then null;  -- it came with PostgreSQL 14, and not for every system
end $pairbus$;
"""
    + SERVER
)

_UNIQUE: Final = b"23505"
_DISK_FULL: Final = b"53100"
_NO_SPACE: Final = re.compile("no space left on device|disk quota exceeded", re.IGNORECASE)
"""A quota of the file system has no SQLSTATE of its own."""
_PASSING_CLASSES: Final = (b"08", b"40", b"53", b"57", b"58")
"""Classes of SQLSTATE that may be gone at the next try: the connection, a deadlock, resources, a restart, the system."""
_READ_ONLY: Final = b"25006"
"""A primary that was demoted: the next connection finds the new one."""
_NO_PARTITION: Final = b"23514"
DROPPED: Final = "PB001"
"""Our own: a range that is to be written was dropped."""
_DROPPED: Final = DROPPED.encode()
_LOCK_TIMED_OUT: Final = b"55P03"
_CANCELLED: Final = b"57014"
_NO_TABLE: Final = b"42P01"
_NO_SHARD: Final = b"23503"
"""Only the row of a shard is referred to."""


class Address:
    """Where the database is.

    Args:
        url: ``postgresql://user:password@host[,host…]/database?…``, as libpq takes it.
        answer_seconds_max: How long a call may take, for commands (``waiting``); None: as long as it takes, for the broker (rule 2).
        silent_seconds: After so long without an answer a second look is taken at a call of the broker.
    """

    def __init__(
        self, url: str, answer_seconds_max: float | None = None, *, silent_seconds: float = SILENT_SECONDS
    ) -> None:
        self.answer_seconds_max = answer_seconds_max
        self._sessions: weakref.WeakSet[Session] = weakref.WeakSet()
        self._guard = threading.Lock()
        self._is_cut = False
        try:
            found = conninfo_to_dict(url)
        except psycopg.ProgrammingError:
            # Its text repeats the part that it did not understand, which may be the password.
            raise UsageError(
                "--store postgresql:… cannot be understood: the form is postgresql://user@host[,host…]/database, with special "
                "characters of a password as %xx"
            ) from None
        self._settings: dict[str, Any] = {**_DEFAULTS, **found}
        if answer_seconds_max is not None and "connect_timeout" not in found:
            seconds = min(CONNECT_SECONDS_MAX, math.ceil(answer_seconds_max))
            self._settings["connect_timeout"] = max(CONNECT_SECONDS_MIN, seconds)
        self._shown = f"database {found.get('dbname') or found.get('user') or ''!r} on {_places(found)}"
        self.answered_by = ""
        """The host and port of the last connection that was made; empty: none was."""
        self._hosts = _hosts(found)
        self._last: dict[str, str] | None = None
        """The one of several hosts that took writes when last asked; None: not known."""
        self.looker = Looker(self._open_sessions, lambda: self.connect("look"), silent_seconds)

    def __str__(self) -> str:
        """For people: hosts and database, nothing else."""
        return self._shown

    def __repr__(self) -> str:
        return f"Address({self._shown})"

    def add(self, session: Session) -> None:
        with self._guard:
            self._sessions.add(session)

    def _open_sessions(self) -> list[Session]:
        with self._guard:
            return [session for session in self._sessions if session.is_connected]

    def cut(self) -> None:
        """Close every connection, from any thread: calls under way end, and none is made any more. One that is being made has its own bound."""
        self.looker.stop()
        with self._guard:
            self._is_cut = True
            sessions = list(self._sessions)
        for session in sessions:
            session.close()

    @property
    def is_cut(self) -> bool:
        return self._is_cut

    def connect(self, purpose: str) -> psycopg.Connection[Any]:
        """A new connection. Raises OutcomeUnknown."""
        settings = {"application_name": f"pairbus-{purpose}", **self._settings, **self._ordered_hosts()}
        try:
            connection = psycopg.connect(autocommit=True, **settings)
        except psycopg.Error as error:
            raise OutcomeUnknown(f"{self} cannot be reached: {_brief(error)}") from None
        info = connection.info
        self.answered_by = _place(info.host or info.hostaddr, str(info.port))
        for one in self._hosts:
            shown = {"host": info.host, "hostaddr": info.hostaddr, "port": str(info.port)}
            if all(shown[name] == value for name, value in one.items()):
                self._last = one
                break
        return connection

    def _ordered_hosts(self) -> dict[str, str]:
        """Of several hosts the one first that took writes last: one that is silent costs each connection its whole timeout, and a former primary
        that comes back may not know yet that it was replaced."""
        last = self._last
        if last is None:
            return {}
        ordered = [last, *(one for one in self._hosts if one is not last)]
        return {name: ",".join(one[name] for one in ordered) for name in last}


def _hosts(found: Mapping[str, Any]) -> list[dict[str, str]]:
    """The settings that differ between the hosts of a list; empty: there is one host."""
    lists = {name: str(found[name]).split(",") for name in ("host", "hostaddr") if found.get(name)}
    count = max(map(len, lists.values()), default=0)
    ports = [one or DEFAULT_PORT for one in str(found.get("port") or DEFAULT_PORT).split(",")]
    lists["port"] = ports * count if len(ports) == 1 else ports
    if count < 2 or any(len(values) != count for values in lists.values()):
        return []  # or libpq refuses it
    return [{name: values[place] for name, values in lists.items()} for place in range(count)]


def _places(found: Mapping[str, Any]) -> str:
    """Every host with its port, for people: two servers may share a host."""
    hosts = str(found.get("host") or found.get("hostaddr") or "localhost").split(",")
    ports = [one or DEFAULT_PORT for one in str(found.get("port") or DEFAULT_PORT).split(",")]
    if len(ports) == 1:
        ports *= len(hosts)
    return ",".join(itertools.starmap(_place, itertools.zip_longest(hosts, ports, fillvalue="?")))


def _place(host: str, port: str) -> str:
    """Of a Unix socket the host is its directory."""
    return f"[{host}]:{port}" if ":" in host and not host.startswith("/") else f"{host}:{port}"


def _brief(error: BaseException) -> str:
    return " ".join(str(error).split())[:ERROR_CHARACTERS_MAX] or type(error).__name__


class Session:
    """A connection that is made when it is needed and made again after it was lost. Used by one thread at a time.

    Args:
        address: Where.
        purpose: Shown as the name of the application in the database's own views.
    """

    def __init__(self, address: Address, purpose: str) -> None:
        self.address = address
        self.purpose = purpose
        self.server = ""
        """Which server it leads to: see ``look``."""
        self.backend = 0
        """The process that serves it there."""
        self._why_left = ""
        self._connection: psycopg.Connection[Any] | None = None
        self._warning = ""
        self._prepared: set[bytes] = set()
        seconds = address.answer_seconds_max
        self._watch = (
            None
            if seconds is None
            else Watch(
                seconds,
                lambda: self._connection,
                lambda: address.connect("diagnosis"),
                self._cut,
            )
        )
        self._call = Call()
        self._bound: contextlib.AbstractContextManager[None] = self._watch or self._call
        self._in_use = threading.Lock()
        """Held during a call: libpq's connection must not go while it is used."""
        self._is_closed = False
        address.add(self)

    def close(self) -> None:
        """Hang up, from any thread. A call under way ends with an unknown outcome. Idempotent."""
        self._is_closed = True
        self._hang_up_now()

    def _hang_up_now(self) -> None:
        if self._in_use.acquire(blocking=False):
            try:
                self.hang_up()
            finally:
                self._in_use.release()
            return
        self._cut()

    def _cut(self) -> None:
        """End the call under way, from another thread."""
        connection = self._connection
        if connection is not None:
            # Its own thread closes the connection.
            shut_down(connection)

    # Asked by ``look``, from its thread.

    @property
    def is_connected(self) -> bool:
        return self._connection is not None

    @property
    def waits_since(self) -> float | None:
        """See ``second_look.Line``. A connection that is being made has a bound of its own."""
        return self._call.since if self._connection is not None else None

    def leave(self, why: str) -> None:
        """See ``second_look.Line``."""
        self._why_left = why
        self._hang_up_now()

    def is_beside(self, other: object) -> bool:
        """See ``second_look.Line``."""
        return isinstance(other, Session) and self.server == other.server

    def hang_up(self) -> None:
        """The next call connects again."""
        connection, self._connection = self._connection, None
        self._prepared.clear()
        if connection is not None:
            with contextlib.suppress(psycopg.Error):
                connection.close()

    def _wire(self) -> pq.abc.PGconn:
        """The connection as libpq has it: its calls give the interpreter free while they wait."""
        self._check_open()
        connection = self._connection
        if connection is None:
            connection = self.address.connect(self.purpose)
            self._why_left, self.server, self.backend = "", "", connection.info.backend_pid
            if self._watch is None:
                self._call.since = time.monotonic()
                self.address.looker.start()
            self._connection = connection
            self._check_open()
            # What is said until these are set proves nothing: a role may ask for every word of the server's.
            self._warning = ""
            found = self._check(connection.pgconn.exec_(_SESSION), "could not be set up")
            connection.pgconn.notice_handler = self._warned
            self.server = (found.get_value(0, 0) or b"").decode()
            if self._watch is not None:
                timeout = f"set statement_timeout = {self._watch.statement_ms_max}"
                self._check(connection.pgconn.exec_(timeout.encode()), "could not be set up")
        return connection.pgconn

    def _check_open(self) -> None:
        if self._is_closed or self.address.is_cut:
            self.hang_up()
            raise TableFailed(f"the connection to {self.address} is closed")

    def _warned(self, notice: pq.abc.PGresult) -> None:
        self._warning = notice.error_message.decode(errors="replace").strip() or "a warning without text"

    def run(self, script: str) -> pq.abc.PGresult:
        """Send statements without parameters, as one transaction. Returns the last result."""
        with self._in_use, self._bound, self._translated():
            wire = self._wire()
            self._warning = ""
            return self._check(wire.exec_(script.encode()), "")

    def execute(
        self, name: bytes, statement: bytes, types: Sequence[int], values: Sequence[bytes | None]
    ) -> pq.abc.PGresult:
        """Send one statement, prepared under a name, with values and results in binary form.

        Raises SequenceTaken, OutcomeUnknown, TableFull or TableFailed.
        """
        with self._in_use, self._bound, self._translated():
            wire = self._wire()
            if name not in self._prepared:
                self._check(wire.prepare(name, statement, types), "")
                self._prepared.add(name)
            self._warning = ""
            # psycopg passes an empty value on as it is, only its types do not say so.
            given: Sequence[Any] = values
            return self._check(wire.exec_prepared(name, given, (1,) * len(values), 1), "")

    def forget(self, name: bytes) -> None:
        """The next call under this name brings another statement. Raises as ``run`` does."""
        if name in self._prepared:
            self.run(f'deallocate "{name.decode()}"')
            self._prepared.discard(name)

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        """Some failures have no result to look at: libpq gives none when it cannot send, and psycopg raises."""
        try:
            yield
        except psycopg.Error as error:
            raise self._lost(_brief(error)) from None

    def _lost(self, text: str) -> OutcomeUnknown | TableFailed:
        """Nothing more is known of the call: the next one connects again."""
        self.hang_up()
        if self._watch is not None and self._watch.overdue:
            return NotAnswered(f"{self.address}: {self._watch.overdue}")
        return OutcomeUnknown(f"the connection to {self.address} was lost: {self._why_left or text}")

    def _check(self, result: pq.abc.PGresult, what: str) -> pq.abc.PGresult:
        status = result.status
        if status not in (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK):
            raise self._refused(result, what)
        if self._warning:
            warning = self._warning
            self.hang_up()
            raise OutcomeUnknown(f"{self.address} warned, so its answer proves nothing: {warning}")
        return result

    def _refused(
        self, result: pq.abc.PGresult, what: str
    ) -> SequenceTaken | OutcomeUnknown | TableFull | TableFailed:
        state = result.error_field(pq.DiagnosticField.SQLSTATE) or b""
        text = " ".join(result.error_message.decode(errors="replace").split())[:ERROR_CHARACTERS_MAX]
        lost = self._connection is None or self._connection.pgconn.status == pq.ConnStatus.BAD
        if not lost:
            if state in (_UNIQUE, _DROPPED):
                return SequenceTaken(text)
            if state == _NO_PARTITION:
                return NoRange(text)
            if state == _NO_TABLE:
                return NoTable(f"{self.address} refused: {text} (SQLSTATE {state.decode()})")
            if state == _NO_SHARD:
                return TableFailed(
                    f"the shard is gone from {self.address}: its namespace was moved away and back, or removed"
                )
            if state == _DISK_FULL or _NO_SPACE.search(text):
                return TableFull(f"{self.address} has no space left: {text}")
            if state == _LOCK_TIMED_OUT:
                return LockTimedOut(text)
            if state == _CANCELLED and self._watch is not None:
                return NotAnswered(f"{self.address}: {self._watch.ended()}")
        if lost or not state or state == _READ_ONLY or state.startswith(_PASSING_CLASSES):
            return self._lost(text)
        if what:
            self.hang_up()
        return TableFailed(f"{self.address} {what or 'refused'}: {text} (SQLSTATE {state.decode()})")


class LockTimedOut(TableFailed):
    """Somebody else uses a table that was to be dropped; nothing was changed."""


class NoRange(TableFailed):
    """The frame's range is not there: not made yet, or dropped."""


class NoTable(TableFailed):
    """A table that the statement names is not there."""


class NotAnswered(TableFailed):
    """The database took too long for a command. Its text says whether what was asked may still take effect."""
