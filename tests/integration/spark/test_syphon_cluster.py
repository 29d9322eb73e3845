"""The Spark syphon on a cluster: a master and two workers as real processes, executors with PairBus from its wheel."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import signal
import subprocess
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from azure.servicebus import ServiceBusMessage

from pairbus.amqp.message.whole import decode_message
from pairbus.pairing.parking import park
from pairbus.sdk.messages import message_bytes
from pairbus.spark.connector.entity import Entity
from pairbus.spark.connector.options import parse_source
from pairbus.testing import Namespace, Pair, Queue
from tests.integration.spark.kit import copies, home, look_at, parked, passport, send_payloads, workers_of
from tests.spark_cluster import ROOT, SparkCluster, free_ports, packaged_environment
from tests.waiting import wait_until

pytestmark = [pytest.mark.timeout(2_000), pytest.mark.slow]

BACKLOG = [f"primary/x-servicebus-transfer/{index}" for index in range(3)]
DESTINATIONS = ("plain", "unique", "sessions", "events")
TOPICS = {
    "Topics": [{"Name": "events", "Properties": {}, "Subscriptions": [{"Name": "all", "Properties": {}}]}]
}
LOCK = timedelta(seconds=10)
RUN_SECONDS_MAX = 600
"""Generous: a run starts Spark, and others may be at work on the machine."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    python = packaged_environment(tmp_path_factory.mktemp("packaged"))
    with SparkCluster(tmp_path_factory.mktemp("cluster"), python) as running:
        yield running


@contextmanager
def brokers() -> Iterator[Pair]:
    queues: list[str | Queue] = [
        "plain",
        Queue("unique", requires_duplicate_detection=True),
        Queue("sessions", requires_session=True),
    ]
    primary = Namespace("primary", process=True, queues=queues, config=TOPICS)
    backlog = [Queue(name, lock_duration=LOCK) for name in BACKLOG]
    with Pair(primary, Namespace("secondary", process=True, queues=backlog)) as running:
        yield running


@pytest.fixture
def pair() -> Iterator[Pair]:
    with brokers() as running:
        yield running


def fill(pair: Pair, messages: int) -> None:
    """Messages of many kinds for every destination and one that is gone, the same each time."""
    by_queue: dict[str, list[bytes]] = {queue: [] for queue in BACKLOG}
    for index in range(messages):
        path = "gone" if index % 100 == 99 else DESTINATIONS[index % len(DESTINATIONS)]
        message = ServiceBusMessage(
            hashlib.sha256(str(index).encode()).digest() * (index % 5),
            message_id=f"{path}-{index}",
            session_id=f"s{index % 7}" if path == "sessions" else None,
            subject=f"subject {index}" if index % 2 else None,
            correlation_id=f"c{index}",
            content_type="application/octet-stream",
            application_properties={
                "index": index,
                "half": index / 2,
                "odd": bool(index % 2),
                "text": "é" * (index % 9),
            },
        )
        by_queue[BACKLOG[index % len(BACKLOG)]].append(park(message_bytes.encoded(message), path, passport()))
    with pair.secondary.client() as client:
        for queue, payloads in by_queue.items():
            send_payloads(client, queue, payloads)


def contents(pair: Pair) -> dict[str, Counter[str]]:
    """What is in each destination: everything of each message but what the broker adds, and how often."""
    found = {}
    for name in DESTINATIONS:
        entity = {"topic": name, "subscription": "all"} if name == "events" else {"queue": name}
        options = {"connectionString": pair.primary.connection_string, **entity}
        source = Entity(parse_source(options, is_stream=False))
        try:
            found[name] = Counter(_told(browsed.payload) for browsed in source.browse(1))
        finally:
            source.close()
    return found


def _told(payload: bytes) -> str:
    message = decode_message(payload)
    properties = message.properties
    body = hashlib.sha256(repr(message.body).encode()).hexdigest()
    names = [name for name in type(properties).__slots__ if not name.endswith("_raw")]
    set_ = {name: getattr(properties, name) for name in names}
    return repr((body, message.body_kind, set_, sorted(message.application_properties.items())))


def ledger(folder: Path) -> Counter[tuple[str, int, str, str, str]]:
    """What the ledger says became of each message, without times."""
    columns = ["backlog_queue", "sequence_number", "message_id", "destination", "outcome"]
    found: Counter[tuple[str, int, str, str, str]] = Counter()
    for file in folder.rglob("part-*.parquet"):
        rows = pyarrow.parquet.ParquetFile(file).read(columns).to_pylist()
        found.update(tuple(row[column] for column in columns) for row in rows)
    return found


def environment_of(pair: Pair, cluster: SparkCluster) -> dict[str, str]:
    return {
        **cluster.environment,
        "PAIRBUS_PRIMARY": pair.primary.connection_string,
        "PAIRBUS_SECONDARY": pair.secondary.connection_string,
    }


def syphon(
    pair: Pair,
    cluster: SparkCluster,
    master: str,
    *arguments: str,
    expected: int = 0,
    more: dict[str, str] | None = None,
) -> dict[str, Any]:
    """``pairbus syphon --once`` as a person runs it, from the packaged environment; its report."""
    environment = {**environment_of(pair, cluster), **(more or {})}
    command = [
        environment["PYSPARK_PYTHON"],
        "-m",
        "pairbus",
        "syphon",
        "--once",
        "--json",
        "--master",
        master,
    ]
    done = subprocess.run(
        [*command, "--ledger", str(own_place(pair)), *arguments],
        cwd=cluster.work.parent,
        env=environment,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS_MAX,
        check=False,
    )
    assert done.returncode == expected, done.stderr[-3_000:]
    report = json.loads(done.stdout.splitlines()[-1])
    assert isinstance(report, dict)
    return report


def own_place(pair: Pair) -> Path:
    """A directory that goes when the brokers go."""
    return pair.primary.data.parent / "ledger"


def is_home(pair: Pair, count: int) -> bool:
    return home(pair) >= count


# --- the same everywhere --------------------------------------------------------------------------


@pytest.mark.promise("D4")
def test_one_machine_and_a_cluster_bring_home_the_same(cluster: SparkCluster) -> None:
    found, told = {}, {}
    for name, master in (("here", "local[2]"), ("there", cluster.url)):
        with brokers() as pair:
            fill(pair, 400)
            # Messages for a destination that is gone are set aside: exit code 1, and no more than these.
            report = syphon(pair, cluster, master, expected=1)
            assert (report["moved"], report["set_aside"]) == (396, {"DestinationNotFound": 4}), report
            found[name], told[name] = contents(pair), ledger(own_place(pair))

    assert found["here"] == found["there"]
    assert {name: sum(counted.values()) for name, counted in found["there"].items()} == {
        "plain": 100,
        "unique": 100,
        "sessions": 100,
        "events": 96,
    }
    assert told["here"] == told["there"]
    assert sum(told["there"].values()) == 400
    # It was the cluster's executors that worked, with PairBus as it is installed there.
    assert list(cluster.work.rglob("stderr")), "an executor leaves its log"


@dataclass
class Killed:
    """A drain in which something was killed: what had been sent, and what the driver told at its end."""

    sent: dict[str, set[str]]
    report: dict[str, Any]
    kills: int

    def judge(self, pair: Pair, bound: int) -> None:
        """Nothing lost, repeats within a bound."""
        assert self.report["exit_code"] == 0, self.report
        found = {
            name: copies(
                look_at(
                    pair.primary.connection_string,
                    **({"topic": name, "subscription": "all"} if name == "events" else {"queue": name}),
                )
            )
            for name in DESTINATIONS
        }
        for name, sent in self.sent.items():
            assert set(found[name]) == sent, f"{name}: lost {sorted(sent - set(found[name]))[:5]}"
        assert max(found["unique"].values()) == 1
        repeats = sum(counted.total() - len(counted) for counted in found.values())
        # P36: what was in flight at a kill, and messages whose locks lapsed on a busy machine, which the report counts.
        assert repeats <= bound + self.report["possible_repeats"]


def drain_and_kill(
    pair: Pair, cluster: SparkCluster, master: str, window: int, *victims: Callable[[int], list[int]]
) -> Killed:
    """Drain with small pages, killing one of each kind of victims on the way; the driver goes on to the end."""
    messages = 1_600
    sent: dict[str, set[str]] = {name: set() for name in DESTINATIONS}
    by_queue: dict[str, list[bytes]] = {queue: [] for queue in BACKLOG}
    for index in range(messages):
        path = DESTINATIONS[index % len(DESTINATIONS)]
        session = f"s{index % 7}" if path == "sessions" else None
        sent[path].add(f"{path}-{index}")
        by_queue[BACKLOG[index % 3]].append(parked(path, f"{path}-{index}", b"x" * 200, session))
    with pair.secondary.client() as client:
        for queue, payloads in by_queue.items():
            send_payloads(client, queue, payloads)
    environment = environment_of(pair, cluster)
    command = [environment["PYSPARK_PYTHON"], "-m", "tests.integration.spark.driver", "--master", master]
    command += ["--window", str(window), "--ledger", str(own_place(pair))]
    driver = subprocess.Popen(
        command, cwd=ROOT, env=environment, start_new_session=True, stdout=subprocess.PIPE, text=True
    )
    try:
        for number, of in enumerate(victims):
            enough = 20 + number * messages // 8
            wait_until(functools.partial(is_home, pair, enough), "some are home", RUN_SECONDS_MAX, pause=0.1)
            wait_until(lambda of=of: bool(of(driver.pid)), "somebody pumps", RUN_SECONDS_MAX)  # type: ignore[misc]
            os.kill(of(driver.pid)[0], signal.SIGKILL)
        told, _ = driver.communicate(timeout=RUN_SECONDS_MAX)
    finally:
        with_everything(driver)
    return Killed(sent, json.loads(told.splitlines()[-1]), len(victims))


@pytest.mark.promise("D2", "P35", "P36")
def test_a_python_worker_and_an_executor_die_and_the_drain_goes_on(pair: Pair, cluster: SparkCluster) -> None:
    window = 8
    done = drain_and_kill(
        pair,
        cluster,
        cluster.url,
        window,
        lambda driver: cluster.python_workers(),
        lambda driver: cluster.executors(),
    )

    done.judge(pair, done.kills * window)


@pytest.mark.promise("D3")
def test_a_task_that_fails_in_the_middle_is_tried_again_and_repeats_its_window_at_most(
    pair: Pair, cluster: SparkCluster
) -> None:
    window = 8
    done = drain_and_kill(pair, cluster, "local[2,3]", window, workers_of)

    assert done.report["failed_slices"] == 0, "it was Spark that tried again"
    done.judge(pair, window)


def with_everything(driver: subprocess.Popen[str]) -> None:
    """End a driver and what it started."""
    if driver.poll() is None:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()


# --- copies of tasks ------------------------------------------------------------------------------

SPECULATION = (
    "spark.speculation=true",
    "spark.speculation.interval=100ms",
    "spark.speculation.quantile=0.5",
    "spark.speculation.multiplier=1.01",
    "spark.speculation.minTaskRuntime=0",
)


@pytest.mark.promise("D3")
def test_a_speculative_copy_of_a_pump_has_no_effect(
    pair: Pair, cluster: SparkCluster, tmp_path: Path
) -> None:
    # One queue with slow work, all of it locked by its task, and one that is empty at once: Spark takes the first task for
    # a straggler, and a copy that pumped would find nothing, end first, and have the other killed between send and settle.
    messages = 250
    with pair.secondary.client() as client:
        send_payloads(client, BACKLOG[0], [parked("plain", f"m{n}", b"x") for n in range(messages)])
        send_payloads(client, BACKLOG[1], [parked("unique", "other", b"x")])
    pair.primary.faults.delay(4_000, "plain")
    log = tmp_path / "events"
    log.mkdir()
    settings = [*SPECULATION, "spark.eventLog.enabled=true", "spark.eventLog.compress=false"]
    settings += [f"spark.eventLog.dir=file://{log}"]

    report = syphon(pair, cluster, cluster.url, *(f"--conf={setting}" for setting in settings))

    events = "".join(file.read_text(errors="replace") for file in log.rglob("*") if file.is_file())
    assert '"Speculative":true' in events, "Spark started a second attempt"
    assert report["failed_slices"] == 0
    found = copies(look_at(pair.primary.connection_string, queue="plain"))
    assert set(found) == {f"m{n}" for n in range(messages)}
    assert found.total() - messages <= report["possible_repeats"], "nothing twice but for a lock that lapsed"


# --- secrets --------------------------------------------------------------------------------------

PAGES = ("environment", "executors", "jobs", "stages", "SQL", "storage")
REDACTIONS = (
    "spark.redaction.regex",
    "spark.redaction.string.regex",
    "spark.sql.redaction.string.regex",
    "spark.sql.redaction.options.regex",
)
QUESTIONS = ("environment", "allexecutors", "jobs", "stages", "sql?details=true&planDescription=true")


@pytest.mark.promise("M7")
def test_connection_strings_are_in_no_page_log_plan_or_command_line(
    pair: Pair, cluster: SparkCluster, tmp_path: Path
) -> None:
    fill(pair, 100)
    log = tmp_path / "events"
    log.mkdir()
    environment = environment_of(pair, cluster)
    command = [environment["PYSPARK_PYTHON"], "-m", "pairbus", "syphon", "--master", cluster.url, "--json"]
    [page] = free_ports(1)
    settings = ["spark.ui.enabled=true", f"spark.ui.port={page}", "spark.eventLog.enabled=true"]
    settings += ["spark.eventLog.compress=false", f"spark.eventLog.dir=file://{log}"]
    # Without Spark's own blackening, as in a session of somebody else: there is nothing to blacken.
    settings += [f"{name}=^$" for name in REDACTIONS]
    with (tmp_path / "driver.log").open("wb") as printed:
        driver = subprocess.Popen(
            [*command, f"--ledger={own_place(pair)}", *(f"--conf={setting}" for setting in settings)],
            cwd=cluster.work.parent,
            env=environment,
            start_new_session=True,
            stdout=printed,
            stderr=printed,
            text=True,
        )
    try:
        wait_until(lambda: is_home(pair, 50), "the backlog is home", RUN_SECONDS_MAX, pause=0.1)
        shown = read_all_pages(f"http://127.0.0.1:{page}")
        commands = "".join(
            file.read_bytes().replace(b"\0", b" ").decode(errors="replace") for file in command_lines()
        )
        driver.terminate()
        driver.wait(60)
    finally:
        with_everything(driver)

    assert "CoarseGrainedExecutorBackend" in commands
    assert "spark.redaction.regex" in shown
    places = {
        "Spark's pages": shown,
        "command lines": commands,
        "the event log": _texts(log),
        "the cluster's logs": _texts(cluster.work.parent),
        "the driver's output": (tmp_path / "driver.log").read_text(errors="replace"),
    }
    assert "pairbus-pump" in places["the event log"]
    for namespace in (pair.primary, pair.secondary):
        key = re.search("SharedAccessKey=([^;]+)", namespace.connection_string)
        assert key is not None
        assert [place for place, text in places.items() if key[1] in text] == []


def read_all_pages(address: str) -> str:
    """Everything that Spark shows of a running application, to people and to programs."""
    applications = json.loads(_read(f"{address}/api/v1/applications"))
    questions = [f"{address}/api/v1/applications/{applications[0]['id']}/{name}" for name in QUESTIONS]
    addresses = questions + [f"{address}/{name}/" for name in PAGES]
    addresses += [f"{address}/SQL/execution/?id=0", f"{address}/stages/stage/?id=0&attempt=0"]
    return "".join(_read(address) for address in addresses)


def _read(address: str) -> str:
    with urllib.request.urlopen(address, timeout=30) as answer:
        return str(answer.read().decode(errors="replace"))


def _texts(folder: Path) -> str:
    files = [file for file in folder.rglob("*") if file.is_file() and file.suffix != ".jar"]
    return "".join(file.read_text(errors="replace") for file in files)


def command_lines() -> list[Path]:
    """The command lines of every process, as everybody on the machine can see them; the brokers' are no part of this."""
    return [file for file in Path("/proc").glob("[0-9]*/cmdline") if b"java" in _bytes(file)]


def _bytes(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:
        return b""


# --- private authorities --------------------------------------------------------------------------


def over_tls(namespace: Namespace) -> str:
    """The connection string of one that is reached with TLS only."""
    return namespace.connection_string.replace(";UseDevelopmentEmulator=true", "")


def test_brokers_with_authorities_of_their_own_are_reached_from_executors(
    pair: Pair, cluster: SparkCluster
) -> None:
    fill(pair, 60)
    strings = {"PAIRBUS_PRIMARY": over_tls(pair.primary), "PAIRBUS_SECONDARY": over_tls(pair.secondary)}
    authorities = [f"--ca-file={namespace.ca_file}" for namespace in (pair.primary, pair.secondary)]

    report = syphon(pair, cluster, cluster.url, *authorities, more=strings)

    assert report["moved"] == 60
    assert sum(sum(counted.values()) for counted in contents(pair).values()) == 60
