"""`make soak-spark`: a big backlog comes home over Spark while drivers, executors and Python workers are killed.

Two brokers, ten backlog queues, twenty destinations (queues, queues with duplicate detection, with sessions, topics), a
standalone Spark master with two workers (or ``--master local[2,4]``). Then every destination is read to the last message:
nothing lost, copies within P36, exactly one where the destination detects duplicates.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path

from pairbus.spark.java import find_java
from pairbus.testing import Namespace, Pair, Queue
from tests.integration.spark_kit import copies, look_at, parked, send_payloads, workers_of

ROOT = Path(__file__).parents[2]
BACKLOG = [f"primary/x-servicebus-transfer/{index}" for index in range(10)]
PLAIN = [f"plain-{index}" for index in range(8)]
UNIQUE = [f"unique-{index}" for index in range(4)]
SESSIONS = [f"sessions-{index}" for index in range(4)]
TOPICS = [f"topic-{index}" for index in range(4)]
DESTINATIONS = PLAIN + UNIQUE + SESSIONS + TOPICS
PAGE, WINDOW, TASKS = 50, 150, 2
LOCK = timedelta(seconds=15)
STALL_SECONDS = 240


def pair() -> Pair:
    queues: list[str | Queue] = [*PLAIN]
    queues += [Queue(name, requires_duplicate_detection=True) for name in UNIQUE]
    queues += [Queue(name, requires_session=True) for name in SESSIONS]
    topics = [
        {"Name": name, "Properties": {}, "Subscriptions": [{"Name": "all", "Properties": {}}]}
        for name in TOPICS
    ]
    primary = Namespace("primary", process=True, queues=queues, config={"Topics": topics})
    return Pair(
        primary,
        Namespace("secondary", process=True, queues=[Queue(name, lock_duration=LOCK) for name in BACKLOG]),
    )


def fill(running: Pair, messages: int, chooser: random.Random) -> dict[str, set[str]]:
    """Park the messages; the first backlog queue gets half of them, as a hot one."""
    sent: dict[str, set[str]] = {name: set() for name in DESTINATIONS}
    by_queue: dict[str, list[bytes]] = {queue: [] for queue in BACKLOG}
    for index in range(messages):
        path = DESTINATIONS[index % len(DESTINATIONS)]
        session = f"s{chooser.randrange(50)}" if path in SESSIONS else None
        message_id = f"{path}/{index}"
        sent[path].add(message_id)
        queue = BACKLOG[0] if index % 2 else chooser.choice(BACKLOG)
        by_queue[queue].append(parked(path, message_id, b"x" * chooser.randrange(100, 1000), session))
    with running.secondary.client() as client:
        for queue, payloads in by_queue.items():
            send_payloads(client, queue, payloads)
    return sent


@contextmanager
def cluster(master: str) -> Iterator[tuple[str, list[int]]]:
    """A Spark master: as given, or one of our own with two workers."""
    if master != "standalone":
        yield master, []
        return
    import pyspark

    home = Path(pyspark.__file__).parent
    environment = {
        **os.environ,
        "JAVA_HOME": str(find_java(os.environ)),
        "SPARK_HOME": str(home),
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": f"{ROOT}",
        "SPARK_WORKER_DIR": tempfile.mkdtemp(prefix="pairbus-spark-work-"),
    }
    port = 17077
    url = f"spark://127.0.0.1:{port}"
    start = [str(home / "bin" / "spark-class")]
    commands = [
        [
            "org.apache.spark.deploy.master.Master",
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
            "--webui-port",
            "0",
        ],
        *[
            [
                "org.apache.spark.deploy.worker.Worker",
                "--cores",
                "1",
                "--memory",
                "900m",
                "--webui-port",
                "0",
                url,
            ]
        ]
        * 2,
    ]
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for command in commands:
            process = subprocess.Popen(
                [*start, *command],
                env=environment,
                start_new_session=True,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            processes.append(process)
            time.sleep(4)
        yield url, [process.pid for process in processes]
    finally:
        for process in reversed(processes):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def start_driver(running: Pair, master: str) -> subprocess.Popen[bytes]:
    environment = {
        **os.environ,
        "PAIRBUS_PRIMARY": running.primary.connection_string,
        "PAIRBUS_SECONDARY": running.secondary.connection_string,
    }
    command = [sys.executable, "-m", "tests.integration.spark_driver", "--master", master, "--slice", "10"]
    command += ["--page", str(PAGE), "--window", str(WINDOW)]
    return subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True)


def left(running: Pair) -> int:
    with running.secondary.administration_client() as client:
        return sum(int(queue.active_message_count or 0) for queue in client.list_queues_runtime_properties())


def victims(driver: int, roots: list[int]) -> list[int]:
    """Python workers below our own executors (in local mode the driver's), and nobody else's."""
    return [worker for root in roots or [driver] for worker in workers_of(root)]


class Drivers:
    """One driver at a time, started anew after each death."""

    def __init__(self, running: Pair, master: str) -> None:
        self._running = running
        self._master = master
        self.process = start_driver(running, master)

    def kill(self) -> None:
        """The driver with everything it started."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def restart(self) -> None:
        """A new one."""
        self.process = start_driver(self._running, self._master)


def kill_and_drain(
    running: Pair, drivers: Drivers, roots: list[int], messages: int, kills: int, chooser: random.Random
) -> Counter[str]:
    """Run drivers to the end, killing something each time another part of the backlog is home."""
    done: Counter[str] = Counter()
    marks = [messages - messages * (n + 1) // (kills + 1) for n in range(kills)]
    moved_at, last = time.monotonic(), messages
    while True:
        now_left = left(running)
        if now_left < last:
            moved_at, last = time.monotonic(), now_left
        assert time.monotonic() - moved_at < STALL_SECONDS, f"nothing moved with {now_left} left"
        if marks and now_left <= marks[0]:
            marks.pop(0)
            workers = victims(drivers.process.pid, roots)
            # As many of the one as of the other; which comes next is the chooser's.
            if workers and (done["worker"] < done["driver"] or chooser.random() < 0.5):
                with suppress(ProcessLookupError):
                    os.kill(chooser.choice(workers), signal.SIGKILL)
                done["worker"] += 1
            else:
                drivers.kill()
                done["driver"] += 1
                drivers.restart()
            print(f"kill {sum(done.values())} of {kills} with {now_left:,} left: {dict(done)}", flush=True)
        if drivers.process.poll() is not None:
            if drivers.process.returncode == 0 and left(running) == 0:
                return done
            drivers.restart()
        time.sleep(0.3)


def judge(running: Pair, sent: dict[str, set[str]], kills: int) -> int:
    lost = repeats = 0
    for name in DESTINATIONS:
        entity = {"topic": name, "subscription": "all"} if name in TOPICS else {"queue": name}
        found = copies(look_at(running.primary.connection_string, **entity))
        missing = sent[name] - set(found)
        strange = set(found) - sent[name]
        extra = sum(found.values()) - len(found)
        lost, repeats = lost + len(missing), repeats + extra
        if missing or strange or (name in UNIQUE and extra):
            print(f"{name}: lost {sorted(missing)[:10]}, unknown {sorted(strange)[:10]}, copies {extra}")
            if name in UNIQUE and extra:
                lost += extra
    bound = kills * TASKS * WINDOW
    print(f"lost {lost}, repeats {repeats} (at most {bound} by P36)")
    return 0 if not lost and repeats <= bound else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--master", default="standalone", help="standalone (two workers of our own) or a Spark master"
    )
    given = parser.parse_args()
    chooser = random.Random(given.seed)
    with pair() as running, cluster(given.master) as (master, roots):
        sent = fill(running, given.messages, chooser)
        print(f"{given.messages:,} messages are parked; draining on {master}", flush=True)
        began = time.monotonic()
        drivers = Drivers(running, master)
        try:
            done = kill_and_drain(running, drivers, roots, given.messages, given.kills, chooser)
        finally:
            drivers.kill()
        print(
            f"drained in {time.monotonic() - began:,.0f} s over {sum(done.values())} kills: {dict(done)}",
            flush=True,
        )
        return judge(running, sent, sum(done.values()))


if __name__ == "__main__":
    sys.exit(main())
