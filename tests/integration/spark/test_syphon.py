"""The Spark syphon between two real brokers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusSubQueue

from pairbus.spark.drain.driver import SyphonOptions, run_syphon
from pairbus.testing import Namespace, Pair, Queue
from tests.integration.spark.kit import (
    copies,
    event_log,
    home,
    look_at,
    parked,
    read_queue,
    read_subscription,
    send_payloads,
    small_session,
    workers_of,
)
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(900)

ROOT = Path(__file__).parents[3]
BACKLOG = [f"primary/x-servicebus-transfer/{index}" for index in range(3)]
LOCK = timedelta(seconds=8)
TOPICS = {
    "Topics": [{"Name": "events", "Properties": {}, "Subscriptions": [{"Name": "all", "Properties": {}}]}]
}
DESTINATIONS = ("plain", "unique", "sessions", "events")


@pytest.fixture
def pair() -> Iterator[Pair]:
    primary = Namespace(
        "primary",
        process=True,
        queues=[
            "plain",
            Queue("unique", requires_duplicate_detection=True),
            Queue("sessions", requires_session=True),
            Queue("closed", status="SendDisabled"),
        ],
        config=TOPICS,
    )
    secondary = Namespace(
        "secondary", process=True, queues=[Queue(name, lock_duration=LOCK) for name in BACKLOG]
    )
    with Pair(primary, secondary) as running:
        yield running


def options(pair: Pair, **more: object) -> SyphonOptions:
    return SyphonOptions(
        primary=pair.primary.connection_string,
        secondary=pair.secondary.connection_string,
        ledger=str(pair.primary.data.parent / "ledger"),
        **more,  # type: ignore[arg-type]
    )


def fill(pair: Pair, messages: int) -> dict[str, set[str]]:
    """Park messages for every destination over all backlog queues; their ids by destination."""
    sent: dict[str, set[str]] = {name: set() for name in DESTINATIONS}
    by_queue: dict[str, list[bytes]] = {queue: [] for queue in BACKLOG}
    for index in range(messages):
        path = DESTINATIONS[index % len(DESTINATIONS)]
        session = f"s{index % 7}" if path == "sessions" else None
        message_id = f"{path}-{index}"
        sent[path].add(message_id)
        by_queue[BACKLOG[index % len(BACKLOG)]].append(parked(path, message_id, b"x" * 200, session))
    with pair.secondary.client() as client:
        for queue, payloads in by_queue.items():
            send_payloads(client, queue, payloads)
    return sent


def arrived(pair: Pair, expected: int) -> dict[str, dict[str, int]]:
    with pair.primary.client() as client:
        return {
            "plain": copies(read_queue(client, "plain", expected)),
            "unique": copies(read_queue(client, "unique", expected)),
            "sessions": copies(look_at(pair.primary.connection_string, queue="sessions")),
            "events": copies(read_subscription(client, "events", "all", expected)),
        }


@pytest.mark.promise("P35", "P36")
def test_workers_and_driver_are_killed_and_everything_comes_home(pair: Pair) -> None:
    messages, window = 1_000, 8
    sent = fill(pair, messages)
    environment = {
        **os.environ,
        "PAIRBUS_PRIMARY": pair.primary.connection_string,
        "PAIRBUS_SECONDARY": pair.secondary.connection_string,
    }
    command = [sys.executable, "-m", "tests.integration.spark.driver", "--window", str(window)]
    command += ["--ledger", str(pair.primary.data.parent / "ledger")]
    # A group of its own: the kill takes Java and Python together, as the death of a machine would.
    driver = subprocess.Popen(
        command, cwd=ROOT, env=environment, start_new_session=True, stdout=subprocess.DEVNULL
    )
    try:
        wait_until(lambda: home(pair) > 20, "the first messages are home", 300, pause=0.1)
        victim = workers_of(driver.pid)[0]
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda: victim not in workers_of(driver.pid), "the worker that pumps is dead", 60)
        before = home(pair)
        wait_until(
            lambda: home(pair) > min(before + 100, messages // 2 - 100),
            "the syphon goes on without its worker",
            300,
            pause=0.1,
        )
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()

    report = run_syphon(options(pair, once=True), spark=small_session())

    assert report.exit_code == 0, report.as_json()
    found = arrived(pair, messages // 4)
    for name in DESTINATIONS:
        assert set(found[name]) == sent[name], f"{name}: lost {sorted(sent[name] - set(found[name]))[:5]}"
    assert max(found["unique"].values()) == 1
    repeats = sum(sum(counts.values()) for counts in found.values()) - messages
    # P36: what was in flight at a kill, and room for locks that lapse on a busy machine.
    kills, tasks, lapsed = 2, 2, 32
    assert repeats <= kills * tasks * window + lapsed


@pytest.mark.promise("P38", "P39")
def test_one_run_tells_what_could_not_be_brought_home_and_why(pair: Pair) -> None:
    with pair.secondary.client() as client:
        send_payloads(client, BACKLOG[0], [parked("plain", f"good-{n}", b"x") for n in range(50)])
        send_payloads(client, BACKLOG[0], [parked("gone", "nowhere", b"x"), parked("closed", "waits", b"x")])
        send_payloads(client, BACKLOG[0], [parked("plain", f"late-{n}", b"x") for n in range(50)])

    report = run_syphon(options(pair, once=True, patience_seconds=1, slice_seconds=2), spark=small_session())

    assert report.exit_code == 1
    assert report.moved == 100
    assert report.set_aside == {"DestinationNotFound": 1}
    assert list(report.left) == [BACKLOG[0]]
    assert "disabled" in report.waiting["closed"]
    with (
        pair.secondary.client() as client,
        client.get_queue_receiver(
            BACKLOG[0], sub_queue=ServiceBusSubQueue.DEAD_LETTER, max_wait_time=45
        ) as receiver,
    ):
        message = next(receiver)
        assert message.dead_letter_reason == "DestinationNotFound"
        assert "'gone'" in str(message.dead_letter_error_description)
    rows = small_session().read.parquet(report.ledger)
    counted = {row["outcome"]: row["count"] for row in rows.groupBy("outcome").count().collect()}
    assert (counted["moved"], counted["set_aside"]) == (100, 1)
    logged = event_log()
    assert "pairbus-pump" in logged
    for namespace in (pair.primary, pair.secondary):
        assert namespace.connection_string.split("SharedAccessKey=")[1].split(";")[0] not in logged


def test_a_continuous_syphon_waits_on_long_polls_and_stops_cleanly(pair: Pair) -> None:
    spark, stop = small_session(), threading.Event()
    runner = threading.Thread(
        target=lambda: run_syphon(options(pair, slice_seconds=2), stop=stop, spark=spark)
    )
    runner.start()
    try:
        with pair.secondary.client() as client:
            send_payloads(client, BACKLOG[1], [parked("plain", f"m{n}", b"x") for n in range(20)])
        wait_until(lambda: home(pair) == 20, "the backlog is home", 300, pause=0.1)
        with pair.secondary.client() as client:
            send_payloads(client, BACKLOG[2], [parked("plain", "later", b"x")])
        wait_until(
            lambda: home(pair) == 21, "a message that came while all was quiet is home", 300, pause=0.1
        )
    finally:
        stop.set()
        runner.join(200)
    assert not runner.is_alive()


@pytest.mark.promise("P14")
def test_an_ordered_drain_keeps_each_session_in_order(pair: Pair) -> None:
    with pair.secondary.client() as client:
        payloads = [parked("sessions", f"m{n:04d}", b"x", f"s{n % 5}") for n in range(500)]
        send_payloads(client, BACKLOG[0], payloads)

    report = run_syphon(options(pair, once=True, order="session", window=40), spark=small_session())

    assert report.exit_code == 0
    found = look_at(pair.primary.connection_string, queue="sessions")
    assert len(found) == 500
    for session in {session for _, session, _ in found}:
        ids = [message_id for message_id, of, _ in found if of == session]
        assert ids == sorted(ids)
