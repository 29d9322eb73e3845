"""Runs a broker as a child process, which can be killed."""

from __future__ import annotations

import atexit
import errno
import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from pairbus.errors import BrokerNotReady
from pairbus.server.ready import ReadyInfo

STORE_ENVIRONMENT: Final = "PAIRBUS_STORE"
START_SECONDS_MAX: Final = 90.0
STOP_SECONDS_MAX: Final = 60.0
FREE_SECONDS_MAX: Final = 10.0
_POLL_SECONDS: Final = 0.01
_LOG_CHARACTERS_SHOWN: Final = 2_000


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What a host needs to know to start a broker. Port 0 picks a free one."""

    namespace: str
    data: Path
    work: Path
    """The kit's own directory: configuration, ready file, log."""
    config: Path
    amqp: str
    http: str
    faults: bool
    audit: bool = False
    """Whether it writes the audit log of messages."""
    store: str | None = None
    """URL of the database that keeps the namespace; None: files in ``data``."""
    node: str | None = None
    """The broker's name among the nodes that serve the namespace from this database."""


class Host(Protocol):
    """Starts and ends one broker."""

    def start(self, setup: Setup) -> ReadyInfo:
        """Return once the broker serves; BrokerNotReady when it does not."""

    def stop(self) -> None:
        """End it in order. Nothing happens when it is down."""

    def kill(self) -> None:
        """End it without a last word. Nothing happens when it is down."""


class ProcessHost:
    """A broker in a process of its own: ``python -m pairbus serve``."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._has_run = False

    @property
    def pid(self) -> int:
        return self._running().pid

    def start(self, setup: Setup) -> ReadyInfo:
        """Start the process and wait for its ready file."""
        ready_file = setup.work / "ready.json"
        ready_file.unlink(missing_ok=True)
        command = [
            sys.executable,
            "-m",
            "pairbus",
            "serve",
            "--namespace",
            setup.namespace,
            "--data",
            str(setup.data),
        ]
        command += ["--amqp", setup.amqp, "--http", setup.http, "--config", str(setup.config)]
        command += ["--ready-file", str(ready_file), *(["--faults"] if setup.faults else [])]
        command += ["--audit"] if setup.audit else []
        command += ["--node", setup.node] if setup.node is not None else []
        # The URL may hold a password, and everybody on this machine can read a command line. A variable of the caller's own environment
        # must not move a namespace into a database.
        environment = {name: value for name, value in os.environ.items() if name != STORE_ENVIRONMENT}
        if setup.store is not None:
            environment[STORE_ENVIRONMENT] = setup.store
        log_file = setup.work / "broker.log"
        if self._has_run:
            _await_free(setup.amqp, setup.http)
        self._has_run = True
        with log_file.open("ab") as log:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment
            )
        self._process = process
        _children.append(process)
        try:
            return _wait_until_ready(process, ready_file, log_file)
        except BaseException:
            self.kill()
            raise

    def stop(self) -> None:
        """SIGTERM, and SIGKILL if the process does not end in time."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGCONT)
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.kill()
            raise BrokerNotReady(f"the broker did not stop within {STOP_SECONDS_MAX} s of SIGTERM") from None
        self._forget()

    def kill(self) -> None:
        """SIGKILL: no last word. Nothing happens when it is down."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._forget()

    def pause(self) -> None:
        """SIGSTOP: the sockets stay open and nobody answers."""
        self._running().send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        self._running().send_signal(signal.SIGCONT)

    def wait_ended(self, seconds: float) -> int:
        """The exit code of a broker that ends by itself."""
        process = self._running()
        code = process.wait(seconds)
        self._forget()
        return code

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise BrokerNotReady("the broker is down: start() or restart() it first")
        return self._process

    def _forget(self) -> None:
        assert self._process is not None
        _children.remove(self._process)
        self._process = None


_children: list[subprocess.Popen[bytes]] = []
"""Brokers that must not outlive the test run."""


@atexit.register
def _end_children() -> None:
    for process in _children:
        with suppress(OSError):
            os.kill(process.pid, signal.SIGKILL)


def _await_free(*addresses: str) -> None:
    """Wait a while for addresses to be free: while a broker is down, its port may be the near end of somebody's connection."""
    give_up_at = time.monotonic() + FREE_SECONDS_MAX
    for address in addresses:
        host, _, port = address.rpartition(":")
        while port.isdigit() and not _is_free(host.strip("[]"), int(port)) and time.monotonic() < give_up_at:
            time.sleep(_POLL_SECONDS)


def _is_free(host: str, port: int) -> bool:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return error.errno != errno.EADDRINUSE
    return True


def _wait_until_ready(process: subprocess.Popen[bytes], ready_file: Path, log_file: Path) -> ReadyInfo:
    give_up_at = time.monotonic() + START_SECONDS_MAX
    while time.monotonic() < give_up_at:
        if ready_file.exists():
            return ReadyInfo(**json.loads(ready_file.read_text()))
        if process.poll() is not None:
            raise BrokerNotReady(f"the broker ended with code {process.returncode}:\n{_tail_of(log_file)}")
        time.sleep(_POLL_SECONDS)
    raise BrokerNotReady(f"the broker was not ready within {START_SECONDS_MAX} s:\n{_tail_of(log_file)}")


def _tail_of(log_file: Path) -> str:
    return log_file.read_text(errors="replace")[-_LOG_CHARACTERS_SHOWN:]
