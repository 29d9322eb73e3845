"""A standalone Spark cluster for tests: a master and workers as real processes on loopback, and PairBus as it is installed.

Executors run a packaged environment: the built wheel in a virtual environment of its own, started far from the source
tree, so that nothing works by accident of where the tests are.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import urllib.request
import venv
import zipfile
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import pyspark

from pairbus.spark.java import find_java
from tests.integration.spark.kit import descendants, workers_of
from tests.waiting import wait_until

ROOT: Final = Path(__file__).parents[1]
START_SECONDS_MAX: Final = 90
STOP_SECONDS_MAX: Final = 20
BUILD_SECONDS_MAX: Final = 600
WORKER_MEMORY: Final = "2g"
EXECUTOR: Final = "CoarseGrainedExecutorBackend"
_QUICK_JAVA: Final = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"


def packaged_environment(folder: Path) -> Path:
    """An environment with PairBus installed from its wheel, and what it needs from ours. Returns its Python."""
    source = folder / "source"
    source.mkdir(parents=True)
    for name in ("pyproject.toml", "README.md", "LICENSE", "MANIFEST.in"):
        shutil.copy(ROOT / name, source / name)
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    command = [str(Path(sys.executable).parent / "uv"), "build", "--wheel", "--quiet", "--offline"]
    command += ["--no-build-isolation", "--python", sys.executable, "--out-dir", str(folder), str(source)]
    subprocess.run(command, check=True, timeout=BUILD_SECONDS_MAX, capture_output=True)
    shutil.rmtree(source)
    home = folder / "environment"
    venv.create(home, with_pip=False)
    place = Path(sysconfig.get_path("purelib", vars={"base": str(home), "platbase": str(home)}))
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        wheel.extractall(place)
    # A path of ours, not a site directory: what is installed there as a link to the source tree does not count.
    (place / "others.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    return home / "bin" / "python"


class SparkCluster:
    """A master and some workers of one core each. Executors are the workers' children, Python workers theirs."""

    def __init__(self, folder: Path, python: Path, workers: int = 2) -> None:
        self._folder = folder
        self._python = python
        self._count = workers
        self._processes: list[subprocess.Popen[bytes]] = []
        port, self._page = free_ports(2)
        self.url = f"spark://127.0.0.1:{port}"

    @property
    def environment(self) -> dict[str, str]:
        """What the cluster's processes get, and a driver that uses it."""
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PAIRBUS_"))
        }
        return {
            **kept,
            "JAVA_HOME": str(find_java(os.environ)),
            "SPARK_HOME": str(Path(pyspark.__file__).parent),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(self._folder / "local"),
            "SPARK_WORKER_DIR": str(self.work),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": _QUICK_JAVA,
            "PYSPARK_PYTHON": str(self._python),
        }

    @property
    def work(self) -> Path:
        """Where executors run, and what they print."""
        return self._folder / "work"

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        host, port = "127.0.0.1", self.url.rpartition(":")[2]
        try:
            page = ["--webui-port", str(self._page)]
            self._start("org.apache.spark.deploy.master.Master", "--host", host, "--port", port, *page)
            for _ in range(self._count):
                self.start_worker()
            wait_until(
                lambda: self.status().get("aliveworkers") == self._count,
                "the cluster is up",
                START_SECONDS_MAX,
                pause=0.1,
            )
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start_worker(self) -> None:
        """One more machine."""
        # Each has an address of its own: Spark copies a task to another host only, never to another executor of one.
        host = f"127.0.0.{len(self._processes) + 1}"
        size = ["--cores", "1", "--memory", WORKER_MEMORY]
        place = ["--host", host, "--webui-port", "0"]
        self._start("org.apache.spark.deploy.worker.Worker", *place, *size, self.url, host=host)

    def close(self) -> None:
        """End everything."""
        for process in reversed(self._processes):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(STOP_SECONDS_MAX)
        self._processes.clear()

    def status(self) -> dict[str, Any]:
        """What the master tells of itself; nothing while it starts."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._page}/json/", timeout=5) as answer:
                status = json.load(answer)
        except (OSError, ValueError):
            return {}
        assert isinstance(status, dict)
        return status

    def executors(self) -> list[int]:
        """The Java processes that run tasks."""
        return [
            pid
            for process in self._processes
            for pid, command in descendants(process.pid)
            if EXECUTOR in command and "java" in command.split(" ", 1)[0]
        ]

    def python_workers(self) -> list[int]:
        """The Python processes that run tasks."""
        return [worker for executor in self.executors() for worker in workers_of(executor)]

    def _start(self, name: str, *arguments: str, host: str = "127.0.0.1") -> None:
        environment = {**self.environment, "SPARK_LOCAL_IP": host}
        command = [str(Path(environment["SPARK_HOME"]) / "bin" / "spark-class"), name, *arguments]
        with (self._folder / f"{name.rpartition('.')[2]}-{len(self._processes)}.log").open("wb") as log:
            self._processes.append(
                subprocess.Popen(
                    command,
                    cwd=self._folder,
                    env=environment,
                    start_new_session=True,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
            )


def free_ports(count: int) -> list[int]:
    """Ports that nobody uses now."""
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [int(listener.getsockname()[1]) for listener in listeners]
    finally:
        for listener in listeners:
            listener.close()
