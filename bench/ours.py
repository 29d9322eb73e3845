"""Our broker as a peer: started from this checkout with one queue, stopped and deleted afterwards."""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

from bench.peer import BenchError, Peer
from pairbus.testing.entities import configuration

if TYPE_CHECKING:
    from collections.abc import Mapping

QUEUE = "bench"
READY_TIMEOUT_S = 120
STOP_TIMEOUT_S = 15
COMPILED = "compiled"
PURE = "pure"
FORM = "PAIRBUS_FORM"
PROBE = "import pairbus.engine.namespace as module; print(module.__file__)"
COMMITS = 'pairbus_commit_seconds_bucket{le="+Inf"}'


def form(wanted: str = "") -> str:
    """The form that a broker runs in if it is asked for this one; the table says which was measured."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE], env=_environment(wanted), capture_output=True, text=True, check=False
    )
    return COMPILED if done.stdout.strip().endswith((".so", ".pyd")) else PURE


def forms() -> list[str]:
    """The forms that this checkout can run in, the quick one first."""
    return [wanted for wanted in (COMPILED, PURE) if form(wanted) == wanted]


def _environment(wanted: str) -> dict[str, str]:
    return {**os.environ, FORM: wanted} if wanted else dict(os.environ)


class OurBroker:
    """One namespace under ``base``. Use as a context manager; it yields the ``Peer``."""

    def __init__(
        self,
        base: Path,
        *,
        options: tuple[str, ...] = (),
        name: str = "PairBus",
        beside: tuple[int, ...] = (),
        declared: Mapping[str, object] | None = None,
        module: str = "pairbus",
        form: str = "",
    ) -> None:
        """``declared``: more queues and topics, as the configuration file spells them. ``module``: run instead of ``pairbus``."""
        self._home = Path(tempfile.mkdtemp(prefix="pairbus-", dir=base))
        self._options = options
        self._name = name
        self._beside = beside
        self._module = module
        self._config = configuration("bench", [QUEUE], further=declared)
        self._form = form
        self._process: subprocess.Popen[bytes] | None = None
        self.http = ""
        self.connection_string = ""

    def __enter__(self) -> Peer:
        try:
            self._start()
            return self._wait_ready()
        except BaseException:
            self._stop()
            raise

    def __exit__(self, *_: object) -> None:
        self._stop()

    def _start(self) -> None:
        config = self._home / "config.json"
        config.write_text(json.dumps(self._config))
        serve = [
            sys.executable,
            "-m",
            self._module,
            "serve",
            "--namespace",
            "bench",
            "--amqp",
            "127.0.0.1:0",
            "--http",
            "127.0.0.1:0",
        ]
        home = str(self._home)
        files = ["--data", f"{home}/data", "--ready-file", f"{home}/ready.json", "--config", str(config)]
        with (self._home / "output").open("wb") as output:
            self._process = subprocess.Popen(
                [*serve, *files, *self._options],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=_environment(self._form),
            )

    def _wait_ready(self) -> Peer:
        assert self._process is not None
        ready_file = self._home / "ready.json"
        deadline = time.monotonic() + READY_TIMEOUT_S
        while not ready_file.exists():
            if self._process.poll() is not None or time.monotonic() > deadline:
                tail = (self._home / "output").read_text(errors="replace")[-1500:]
                raise BenchError(f"our broker did not become ready:\n{tail}")
            time.sleep(0.02)
        ready = json.loads(ready_file.read_text())
        self.http = str(ready.get("http") or "")
        host, _, port = str(ready["amqp"]).rpartition(":")
        self.connection_string = str(ready["connection_string"])
        parts = dict(part.split("=", 1) for part in self.connection_string.split(";") if part)
        return Peer(
            name=self._name,
            host=host,
            port=int(port),
            user=parts["SharedAccessKeyName"],
            password=parts["SharedAccessKey"],
            address=QUEUE,
            pid=self._process.pid,
            beside=self._beside,
            http=self.http,
        )

    def reopen(self) -> Peer:
        """Kill the process and start it again over the same store; returns when it is ready."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        (self._home / "ready.json").unlink()
        self._start()
        return self._wait_ready()

    def _stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        shutil.rmtree(self._home, ignore_errors=True)


def commits(peer: Peer) -> int:
    """How many commits our broker has made; 0 for another broker."""
    if not peer.http:
        return 0
    key = base64.b64encode(f"{peer.user}:{peer.password}".encode()).decode()
    request = urllib.request.Request(f"http://{peer.http}/metrics", headers={"Authorization": f"Basic {key}"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return next((int(float(line.rpartition(" ")[2])) for line in lines if line.startswith(COMMITS)), 0)
