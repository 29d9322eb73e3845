"""A private RabbitMQ node with one durable quorum queue: own ports, own files, nothing left behind.

Quorum queues answer a durable send only after the write-ahead log was flushed, which is the promise that our broker
makes too. The queue and the user come from a definitions file read at boot, so no command-line tool is needed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from bench.peer import BenchError, Peer, free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

SCRIPTS = Path("/usr/lib/rabbitmq/bin")  # the wrappers in /usr/sbin switch the user and clean the environment
QUEUE = "bench"
USER = "bench"
READY_TIMEOUT_S = 90
STOP_TIMEOUT_S = 30
INSTALL_TIMEOUT_S = 600


def ensure_installed() -> None:
    """Install the Debian package when we may; its system service is never started."""
    if (SCRIPTS / "rabbitmq-server").exists():
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise BenchError("rabbitmq-server is missing. Install it: sudo apt-get install rabbitmq-server")
    print("installing rabbitmq-server for comparison ...", file=sys.stderr)
    with _services_denied():
        done = subprocess.run(
            ["apt-get", "install", "-y", "--no-install-recommends", "rabbitmq-server"],
            env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
            capture_output=True,
            text=True,
            timeout=INSTALL_TIMEOUT_S,
            check=False,
        )
    if done.returncode != 0:
        raise BenchError(f"apt-get install rabbitmq-server failed: {done.stderr.strip().splitlines()[-1:]}")
    if shutil.which("systemctl") is not None:  # nor at the next boot
        subprocess.run(["systemctl", "disable", "rabbitmq-server"], capture_output=True, check=False)


@contextlib.contextmanager
def _services_denied() -> Iterator[None]:
    """Debian starts a service right after its installation unless policy-rc.d says no."""
    policy = Path("/usr/sbin/policy-rc.d")
    if policy.exists():
        yield
        return
    policy.write_text("#!/bin/sh\nexit 101\n")
    policy.chmod(0o755)
    try:
        yield
    finally:
        policy.unlink()


def version() -> str:
    """The installed version, for the table's heading."""
    plugins = sorted(Path("/usr/lib/rabbitmq/lib").glob("rabbitmq_server-*"))
    return plugins[-1].name.removeprefix("rabbitmq_server-") if plugins else "unknown"


class RabbitMQ:
    """One node under ``base``. Use as a context manager; it yields the ``Peer``."""

    def __init__(self, base: Path) -> None:
        self._home = Path(tempfile.mkdtemp(prefix="rabbitmq-", dir=base))
        self._password = secrets.token_hex(12)
        self._port = free_port()
        self._epmd_port = free_port()
        self._epmd: subprocess.Popen[bytes] | None = None
        self._node: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Peer:
        try:
            self._start()
            self._wait_ready()
        except BaseException:
            self._stop()
            raise
        assert self._node is not None
        return Peer(
            name="RabbitMQ quorum",
            host="127.0.0.1",
            port=self._port,
            user=USER,
            password=self._password,
            address=f"/amq/queue/{QUEUE}",
            pid=self._node.pid,
        )

    def __exit__(self, *_: object) -> None:
        self._stop()

    def _write_files(self) -> None:
        everything = {"configure": ".*", "write": ".*", "read": ".*"}
        definitions = {
            "vhosts": [{"name": "/"}],
            "users": [{"name": USER, "password": self._password, "tags": "administrator"}],
            "permissions": [{"user": USER, "vhost": "/", **everything}],
            "queues": [
                {
                    "name": QUEUE,
                    "vhost": "/",
                    "durable": True,
                    "auto_delete": False,
                    "arguments": {"x-queue-type": "quorum"},
                }
            ],
        }
        (self._home / "definitions.json").write_text(json.dumps(definitions))
        (self._home / "enabled_plugins").write_text("[rabbitmq_amqp1_0].\n")
        (self._home / "rabbitmq.conf").write_text(
            f"listeners.tcp.1 = 127.0.0.1:{self._port}\n"
            f"load_definitions = {self._home}/definitions.json\n"
            "log.console = false\n"
            "log.file.level = warning\n"
        )
        cookie = self._home / ".erlang.cookie"
        cookie.write_text(secrets.token_hex(16))
        cookie.chmod(0o400)

    def _environment(self) -> dict[str, str]:
        home = str(self._home)
        return {
            "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
            "LANG": "C.UTF-8",
            "HOME": home,
            "ERL_EPMD_PORT": str(self._epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": f"bench{os.getpid()}@localhost",
            "RABBITMQ_CONFIG_FILE": f"{home}/rabbitmq.conf",
            "RABBITMQ_CONF_ENV_FILE": f"{home}/absent-env.conf",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{home}/enabled_plugins",
            "RABBITMQ_MNESIA_BASE": f"{home}/mnesia",
            "RABBITMQ_LOG_BASE": f"{home}/log",
            "RABBITMQ_GENERATED_CONFIG_DIR": f"{home}/config",
            "RABBITMQ_PID_FILE": f"{home}/pid",
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        }

    def _start(self) -> None:
        self._write_files()
        environment = self._environment()
        epmd = shutil.which("epmd")
        if epmd is None:
            raise BenchError("epmd is missing. Install it: sudo apt-get install erlang-base")
        # Our own port mapper in the foreground: the node would otherwise start a daemon that outlives it.
        self._epmd = subprocess.Popen(
            [epmd, "-port", str(self._epmd_port), "-address", "127.0.0.1"],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        _wait_port(self._epmd_port, self._epmd, READY_TIMEOUT_S, "epmd")
        with (self._home / "output").open("wb") as output:
            self._node = subprocess.Popen(
                [str(SCRIPTS / "rabbitmq-server")],
                env=environment,
                cwd=self._home,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _wait_ready(self) -> None:
        """Listeners open after the definitions are loaded, so an open port means the queue exists."""
        assert self._node is not None
        try:
            _wait_port(self._port, self._node, READY_TIMEOUT_S, "RabbitMQ")
        except BenchError as error:
            tail = (self._home / "output").read_text(errors="replace")[-1500:]
            raise BenchError(f"{error}\n{tail}") from None

    def _stop(self) -> None:
        for process in (self._node, self._epmd):
            if process is None or process.poll() is not None:
                continue
            process.send_signal(signal.SIGTERM)  # the Erlang node shuts down in order on SIGTERM
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)  # each leads its own session, children included
                process.wait()
        shutil.rmtree(self._home, ignore_errors=True)


def _wait_port(port: int, process: subprocess.Popen[bytes], timeout_s: float, name: str) -> None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise BenchError(f"{name} ended with exit code {process.returncode} before it was ready")
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.1)
    raise BenchError(f"{name} was not ready after {timeout_s:.0f} s")


def main() -> int:
    """Start a node, say where it is, and keep it until Enter is pressed."""
    try:
        ensure_installed()
        with RabbitMQ(Path("/var/tmp")) as peer:
            print(json.dumps(dataclasses.asdict(peer)), flush=True)
            sys.stdin.readline()
    except BenchError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
