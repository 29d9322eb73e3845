"""A database that Patroni keeps: two members with etcd beside them. Patroni decides when a standby is promoted, as it would in production.

It stands where ``cluster_parts.DatabasePair`` stands. To kill a member is to lose its machine: Patroni and PostgreSQL end together.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import urllib.request
from http import HTTPStatus
from typing import Any, Final

import psycopg

from tests.postgres_kit import (
    ADMINISTRATOR,
    PostgresServer,
    _as_user,
    _children,
    _die_with_parent,
    _free_port,
    _give,
    _temporary_directory,
    programs,
)
from tests.soak.ways import NamespaceWays, NodeWays
from tests.waiting import wait_until

DATABASE: Final = "pairbus"
PROMOTED_SECONDS_MAX: Final = 120.0
TTL_SECONDS: Final = 20
"""The least that Patroni allows."""
SETTINGS: Final = {
    "ttl": TTL_SECONDS,
    "loop_wait": 2,
    "retry_timeout": 3,
    "primary_start_timeout": 0,
    "synchronous_mode": True,
    "synchronous_mode_strict": True,
}
"""As the how-to advises, with the shortest pauses."""


def is_installed() -> bool:
    """Whether this machine has Patroni and etcd."""
    return all(shutil.which(name) for name in ("patroni", "etcd"))


class Member(PostgresServer):
    """One PostgreSQL with its Patroni."""

    def __init__(self, name: str, etcd: str) -> None:
        super().__init__(_temporary_directory(name), {}, tcp=True)
        self.name = name
        self._rest = _free_port()
        self._etcd = etcd

    def start(self) -> None:
        """Start Patroni, which makes, copies or starts the database as it sees fit."""
        self.directory.mkdir(exist_ok=True)
        _give(self.directory)
        file = self.directory / "patroni.json"
        file.write_text(json.dumps(self._configuration()))
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [str(shutil.which("patroni")), str(file)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.directory,
                env={**os.environ, "PYTHONPATH": "", "HOME": str(self.directory)},
                preexec_fn=_die_with_parent,  # noqa: PLW1509 - nothing here holds a lock while it starts a server
                **_as_user(),
            )

    def _configuration(self) -> dict[str, Any]:
        address = f"127.0.0.1:{self.port}"
        parameters = {
            "fsync": "off",
            "shared_buffers": "16MB",
            "max_connections": "80",
            "max_wal_size": "256MB",
            "wal_retrieve_retry_interval": "100ms",
            "dynamic_shared_memory_type": "mmap",
            "unix_socket_directories": str(self.directory),
        }
        who = {"username": ADMINISTRATOR, "password": "trusted"}
        return {
            "scope": "pairbus",
            "name": self.name,
            "restapi": {"listen": f"127.0.0.1:{self._rest}", "connect_address": f"127.0.0.1:{self._rest}"},
            "etcd3": {"host": self._etcd},
            "bootstrap": {
                "dcs": {
                    **SETTINGS,
                    "postgresql": {"use_pg_rewind": True, "parameters": {"wal_log_hints": "on"}},
                },
                "initdb": [{"encoding": "UTF8"}, {"auth": "trust"}, "no-locale", "no-sync"],
                "pg_hba": [
                    "local all all trust",
                    "host all all 127.0.0.1/32 trust",
                    "host replication all 127.0.0.1/32 trust",
                ],
            },
            "postgresql": {
                "listen": address,
                "connect_address": address,
                "data_dir": str(self.data),
                "bin_dir": str(programs()),
                "parameters": parameters,
                "authentication": {"superuser": who, "replication": who, "rewind": who},
            },
        }

    def _processes(self) -> list[int]:
        """Patroni, PostgreSQL, and all that they have started."""
        found = [] if self._process is None else [self._process.pid]
        with contextlib.suppress(OSError, ValueError, IndexError):
            found.append(int((self.data / "postmaster.pid").read_text().split()[0]))
        for pid in found:  # grows while it is read
            found += [child for child in _children(pid) if child not in found]
        return list(dict.fromkeys(found))

    def kill(self) -> None:
        """End everything of this machine at once."""
        processes = self._processes()
        self._signal_all(processes, signal.SIGKILL)
        process, self._process = self._process, None
        if process is not None:
            process.wait()
        # A child that was being started meanwhile.
        self._signal_all(self._processes(), signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        self._signal_all(self._processes(), number)

    @staticmethod
    def _signal_all(processes: list[int], number: signal.Signals) -> None:
        for pid in processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def stop(self) -> None:
        self.kill()

    def asked(self, statement: str) -> list[tuple[Any, ...]]:
        """What it answers; empty: it does not answer."""
        with contextlib.suppress(psycopg.Error, OSError):
            url = f"{self.url()}?connect_timeout=2&options=-c%20statement_timeout%3D2000"
            with psycopg.connect(url, autocommit=True) as connection:
                return connection.execute(statement.encode()).fetchall()
        return []

    @property
    def is_synchronous(self) -> bool:
        """Whether Patroni would promote it without losing anything."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._rest}/synchronous", timeout=3) as answer:
                return bool(answer.status == HTTPStatus.OK)
        except OSError:
            return False

    @property
    def is_primary(self) -> bool:
        return self.asked("select pg_is_in_recovery()") == [(False,)]


class PatroniPair:
    """See ``cluster_parts.DatabasePair``."""

    def __init__(self, nodes: int, *, uses_namespaces: bool = False) -> None:
        self._directory = _temporary_directory("etcd")
        client, peer = _free_port(), _free_port()
        self._etcd = self._start_etcd(client, peer)
        _wait_port(client)
        self._members = [Member(f"db{number}", f"127.0.0.1:{client}") for number in (1, 2)]
        self._known = self._members[0]
        self.ways: list[NodeWays] = []
        try:
            for member in self._members:
                member.start()
            wait_until(lambda: self._find() is not None, "Patroni has a primary", PROMOTED_SECONDS_MAX)
            self.wait_streaming()
            self.primary.new_database(DATABASE)
            for number in range(nodes):
                self.ways.append(NamespaceWays(number) if uses_namespaces else NodeWays())
        except BaseException:
            print(self.log())
            self.dispose()
            raise
        for ways in self.ways:
            ways.lead(*(member.port for member in self._members))

    def _start_etcd(self, client: int, peer: int) -> subprocess.Popen[bytes]:
        urls = f"http://127.0.0.1:{client}", f"http://127.0.0.1:{peer}"
        command = [str(shutil.which("etcd")), "--data-dir", str(self._directory / "data"), "--name", "etcd"]
        command += ["--listen-client-urls", urls[0], "--advertise-client-urls", urls[0]]
        command += ["--listen-peer-urls", urls[1], "--initial-advertise-peer-urls", urls[1]]
        command += ["--initial-cluster", f"etcd={urls[1]}"]
        with (self._directory / "log").open("ab") as log:
            return subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                preexec_fn=_die_with_parent,  # noqa: PLW1509 - nothing here holds a lock while it starts a server
                **_as_user(),
            )

    def _find(self) -> Member | None:
        return next((one for one in self._members if one.is_running and one.is_primary), None)

    @property
    def primary(self) -> Member:
        """The member that accepts writes; while there is none, the one that did."""
        self._known = self._find() or self._known
        return self._known

    @property
    def standby(self) -> Member | None:
        primary = self.primary
        return next((one for one in self._members if one is not primary and one.is_running), None)

    def url(self, node: int) -> str:
        return f"postgresql://{ADMINISTRATOR}@{self.ways[node].hosts()}/{DATABASE}?connect_timeout=2"

    def owner(self) -> tuple[int, str]:
        """Epoch and name of the owner."""
        found: list[tuple[Any, ...]] = []

        def is_told() -> bool:
            primary = self._find()
            if primary is not None:
                with contextlib.suppress(psycopg.Error):
                    found[:] = primary.run("select epoch, owner from pairbus_shard", DATABASE)
            return bool(found)

        wait_until(is_told, "the database answers", PROMOTED_SECONDS_MAX)
        return int(found[0][0]), str(found[0][1])

    def fail_over(self, former: PostgresServer) -> None:
        """Wait until Patroni has promoted the other member."""
        other = next(one for one in self._members if one is not former)
        wait_until(lambda: other.is_primary, f"Patroni promotes {other.name}", PROMOTED_SECONDS_MAX)
        self._known = other

    def add_standby(self) -> None:
        """Start the members that are gone. Patroni lets them follow, with what they have or with a new copy."""
        for member in self._members:
            if not member.is_running:
                member.start()

    def restart_primary(self) -> None:
        primary = self.primary
        primary.kill()
        primary.start()

    def wait_streaming(self) -> None:
        """Wait until a synchronous standby follows: only then may the primary be lost."""

        def is_followed() -> bool:
            primary = self._find()
            if primary is None:
                return False
            found = primary.asked("select sync_state from pg_stat_replication where state = 'streaming'")
            standby = next(one for one in self._members if one is not primary)
            # Patroni promotes whom it has written down as synchronous, which comes a little later than PostgreSQL's own view.
            return found in ([("sync",)], [("quorum",)]) and standby.is_synchronous

        wait_until(is_followed, "the standby follows", PROMOTED_SECONDS_MAX)

    def dispose(self) -> None:
        for ways in self.ways:
            ways.close()
        for member in self._members:
            member.dispose()
        self._etcd.kill()
        self._etcd.wait()
        shutil.rmtree(self._directory, ignore_errors=True)

    def log(self) -> str:
        """The end of what Patroni said, for a run that cannot begin."""
        return "\n".join(member.log() for member in self._members)


def _wait_port(port: int) -> None:
    def answers() -> bool:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            return False
        return True

    wait_until(answers, "etcd listens", 60, pause=0.1)
