"""`make soak-spark`: a big backlog comes home over Spark while drivers, Python workers and executors are killed.

Two brokers, ten backlog queues, twenty destinations (queues, queues with duplicate detection, with sessions, topics), a
standalone Spark master with two workers as processes of their own, executors with PairBus from its wheel. Who is killed
next, and when, is the seed's choice; each kind is killed as often as the others. Then every destination is read to the
last message: nothing lost or changed, copies within P36, exactly one where the destination detects duplicates.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import pyarrow.parquet

from pairbus.spark.drain.rows import LOCK_LOST
from pairbus.testing import Namespace, Pair, Queue
from tests.integration.spark.kit import look_at, parked, send_payloads
from tests.spark_cluster import ROOT, SparkCluster, packaged_environment

BACKLOG = [f"primary/x-servicebus-transfer/{index}" for index in range(10)]
PLAIN = [f"plain-{index}" for index in range(8)]
UNIQUE = [f"unique-{index}" for index in range(4)]
SESSIONS = [f"sessions-{index}" for index in range(4)]
TOPICS = [f"topic-{index}" for index in range(4)]
DESTINATIONS = PLAIN + UNIQUE + SESSIONS + TOPICS
PAGE, WINDOW, TASKS = 50, 150, 2
LOCK = timedelta(seconds=15)
STALL_SECONDS = 300
DRIVER, WORKER, EXECUTOR = KINDS = ("driver", "python worker", "executor")


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


@dataclass
class Sent:
    """What was parked, by destination: message id to session and body."""

    messages: dict[str, dict[str, tuple[str | None, bytes]]] = field(
        default_factory=lambda: {name: {} for name in DESTINATIONS}
    )


def fill(running: Pair, messages: int, chooser: random.Random) -> Sent:
    """Park the messages; the first backlog queue gets half of them, as a hot one."""
    sent = Sent()
    by_queue: dict[str, list[bytes]] = {queue: [] for queue in BACKLOG}
    for index in range(messages):
        path = DESTINATIONS[index % len(DESTINATIONS)]
        session = f"s{chooser.randrange(50)}" if path in SESSIONS else None
        message_id = f"{path}/{index}"
        body = (message_id * 60).encode()[: chooser.randrange(100, 1000)]
        # ``look_at`` shows a body as Python writes it.
        sent.messages[path][message_id] = (session, str(body).encode())
        queue = BACKLOG[0] if index % 2 else chooser.choice(BACKLOG)
        by_queue[queue].append(parked(path, message_id, body, session))
    with running.secondary.client() as client:
        for queue, payloads in by_queue.items():
            send_payloads(client, queue, payloads)
    return sent


def left(running: Pair) -> int:
    with running.secondary.administration_client() as client:
        return sum(int(queue.active_message_count or 0) for queue in client.list_queues_runtime_properties())


class Drivers:
    """One driver at a time, started anew after each death."""

    def __init__(self, running: Pair, cluster: SparkCluster, ledger: Path) -> None:
        self._environment = {
            **cluster.environment,
            "PAIRBUS_PRIMARY": running.primary.connection_string,
            "PAIRBUS_SECONDARY": running.secondary.connection_string,
        }
        python = cluster.environment["PYSPARK_PYTHON"]
        self._command = [python, "-m", "tests.integration.spark.driver", "--master", cluster.url]
        self._command += [
            "--slice",
            "10",
            "--page",
            str(PAGE),
            "--window",
            str(WINDOW),
            "--ledger",
            str(ledger),
        ]
        self.restart()

    def restart(self) -> None:
        """A new one."""
        self.process = subprocess.Popen(
            self._command, cwd=ROOT, env=self._environment, start_new_session=True
        )

    def kill(self) -> None:
        """The driver with everything it started."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


class Killer:
    """Kills something each time another part of the backlog is home."""

    def __init__(self, cluster: SparkCluster, messages: int, kills: int, chooser: random.Random) -> None:
        self._cluster = cluster
        self._chooser = chooser
        self._kinds = [KINDS[number % len(KINDS)] for number in range(kills)]
        chooser.shuffle(self._kinds)
        # Somewhere within its own part of the drain.
        part = messages / (kills + 1)
        self._marks = [
            messages - round(part * (number + chooser.uniform(0.5, 1.4))) for number in range(kills)
        ]
        self.done: Counter[str] = Counter()

    def strike(self, drivers: Drivers, now_left: int) -> None:
        """Kill who is next, when it is time and somebody of the kind is at work."""
        if not self._marks or now_left > self._marks[0]:
            return
        kind = self._kinds[0]
        workers = self._cluster.python_workers()
        victims = {DRIVER: [drivers.process.pid], WORKER: workers, EXECUTOR: self._cluster.executors()}[kind]
        if not victims or not workers or drivers.process.poll() is not None:
            return
        self._marks.pop(0)
        self._kinds.pop(0)
        if kind == DRIVER:
            drivers.kill()
            drivers.restart()
        else:
            with suppress(ProcessLookupError):
                os.kill(self._chooser.choice(sorted(victims)), signal.SIGKILL)
        self.done[kind] += 1
        print(f"kill {sum(self.done.values())}: {kind}, with {now_left:,} left", flush=True)


def drain(running: Pair, drivers: Drivers, killer: Killer, messages: int) -> int:
    """Run drivers to the end. Returns how many there were."""
    started, moved_at, last = 1, time.monotonic(), messages
    while True:
        now_left = left(running)
        if now_left < last:
            moved_at, last = time.monotonic(), now_left
        assert time.monotonic() - moved_at < STALL_SECONDS, f"nothing moved with {now_left} left"
        before = drivers.process
        killer.strike(drivers, now_left)
        if drivers.process.poll() is not None:
            if drivers.process.returncode == 0 and left(running) == 0:
                return started
            drivers.restart()
        started += drivers.process is not before
        time.sleep(0.3)


def lapsed_locks(ledger: Path) -> int:
    """Messages whose lock had ended when they were completed, as the ledger has them: each may come twice (P36)."""
    files = [pyarrow.parquet.ParquetFile(file) for file in ledger.rglob("part-*.parquet")]
    return sum(file.read(["outcome"])["outcome"].to_pylist().count(LOCK_LOST) for file in files)


def judge(running: Pair, sent: Sent, done: Counter[str], lapsed: int) -> int:
    lost = changed = repeats = 0
    for name in DESTINATIONS:
        entity = {"topic": name, "subscription": "all"} if name in TOPICS else {"queue": name}
        found = look_at(running.primary.connection_string, **entity)
        wanted = sent.messages[name]
        missing = set(wanted) - {message_id for message_id, _, _ in found}
        wrong = [message_id for message_id, *rest in found if wanted.get(message_id) != tuple(rest)]
        extra = len(found) - len({message_id for message_id, _, _ in found})
        lost, changed, repeats = lost + len(missing), changed + len(wrong), repeats + extra
        if missing or wrong or (name in UNIQUE and extra):
            print(f"{name}: lost {sorted(missing)[:10]}, changed {wrong[:10]}, copies {extra}")
        if name in UNIQUE and extra:
            changed += extra
    # A driver takes the windows of all its tasks with it, a worker or an executor of one core that of one.
    bound = done[DRIVER] * TASKS * WINDOW + (done[WORKER] + done[EXECUTOR]) * WINDOW
    print(
        f"lost {lost}, changed {changed}, repeats {repeats} (P36: at most {bound} by kills, {lapsed} by lapsed locks)"
    )
    return 0 if not lost and not changed and repeats <= bound + lapsed else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--kills", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    chooser = random.Random(given.seed)
    folder = Path(tempfile.mkdtemp(prefix="pairbus-soak-spark-"))
    try:
        python = packaged_environment(folder / "packaged")
        with pair() as running, SparkCluster(folder / "cluster", python) as cluster:
            sent = fill(running, given.messages, chooser)
            print(f"{given.messages:,} messages are parked; draining on {cluster.url}", flush=True)
            killer = Killer(cluster, given.messages, given.kills, chooser)
            began = time.monotonic()
            drivers = Drivers(running, cluster, folder / "ledger")
            try:
                started = drain(running, drivers, killer, given.messages)
            finally:
                drivers.kill()
            took = time.monotonic() - began
            told = ", ".join(f"{killer.done[kind]} {kind}s" for kind in KINDS)
            print(f"drained in {took:,.0f} s by {started} drivers; killed {told}", flush=True)
            if sum(killer.done.values()) != given.kills:
                print(f"only {sum(killer.done.values())} of {given.kills} kills found their victims")
                return 1
            return judge(running, sent, killer.done, lapsed_locks(folder / "ledger"))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
