"""Capture: each message exactly once in the files, whatever is killed, and compaction that no reader notices."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from pyarrow import dataset
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from pairbus.cli.capture import _capture
from pairbus.errors import UsageError
from pairbus.spark import compact, settle
from pairbus.spark.capture.compaction import Compacted
from pairbus.spark.capture.stream import Captured, CaptureOptions, run_capture
from tests.integration.spark.contract import Bus, ids
from tests.integration.spark.kit import despite_slow_workers
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(900)

ROOT = Path(__file__).parents[3]
CAPTURE_SECONDS = 180
QUICK_JAVA = "-XX:TieredStopAtLevel=1"


def captured(path: Path) -> list[str]:
    """The ids in the files as a reader finds them that knows nothing of Spark."""
    found = dataset.dataset(path, format="parquet", partitioning="hive")
    return sorted(found.to_table(["message_id"])["message_id"].to_pylist())


def lose_commit(checkpoint: Path) -> None:
    """As after a kill between the files and the commit: the batch is replayed."""
    last = max((file for file in (checkpoint / "commits").glob("[0-9]*")), key=lambda file: int(file.name))
    last.unlink()
    (last.parent / f".{last.name}.crc").unlink(missing_ok=True)


@pytest.mark.slow
def test_a_capture_directory_of_a_queue_that_was_replaced_destroys_nothing(
    spark: SparkSession, bus: Bus, tmp_path: Path
) -> None:
    """The directory remembers the queue by more than its name: the new queue's messages are neither skipped nor completed."""
    queue, out = bus.queue(), tmp_path / "captured"
    source = bus.options(queue, maxMessagesPerTrigger="40")
    bus.send(queue, 0, 50)
    despite_slow_workers(lambda: run_capture(CaptureOptions(source=source, path=str(out), once=True), spark))
    assert bus.left(queue) == []
    with bus.ns.administration_client() as management:
        management.delete_queue(queue)
        management.create_queue(queue)
    bus.send(queue, 100, 80)

    with pytest.raises(PySparkException, match="belongs to another .*failOnDataLoss"):
        run_capture(CaptureOptions(source=source, path=str(out), once=True), spark)
    assert bus.left(queue) == ids(80, 100)

    lenient = {**source, "failOnDataLoss": "false"}
    despite_slow_workers(lambda: run_capture(CaptureOptions(source=lenient, path=str(out), once=True), spark))
    assert captured(out) == sorted(ids(50) + ids(80, 100))
    assert bus.left(queue) == []


@pytest.mark.promise("D1")
def test_capture_holds_each_message_once_by_entity_and_hour_and_compaction_changes_only_files(
    spark: SparkSession, bus: Bus, tmp_path: Path
) -> None:
    queue, out = bus.queue(), tmp_path / "captured"
    options = CaptureOptions(
        source=bus.options(queue, maxMessagesPerTrigger="30", mode="browse"), path=str(out), once=True
    )
    bus.send(queue, 0, 50)
    first = despite_slow_workers(lambda: run_capture(options, spark))
    lose_commit(out / "_checkpoint")
    bus.send(queue, 50, 10)
    despite_slow_workers(lambda: run_capture(options, spark))

    assert (first.messages, first.batches) == (50, 2)
    assert captured(out) == sorted(ids(60))
    before = spark.read.parquet(str(out))
    assert {"entity", "date", "hour"} <= set(before.columns)
    rows = sorted(before.drop("batch").collect(), key=lambda row: int(row["sequence_number"]))
    hours = len({(row["date"], row["hour"]) for row in rows})

    done = compact(str(out), spark)

    assert done.hours == done.files_after == hours
    assert done.files_before > hours
    assert captured(out) == sorted(ids(60))
    after = spark.read.parquet(str(out)).drop("batch").collect()
    assert sorted(after, key=lambda row: int(row["sequence_number"])) == rows
    assert compact(str(out), spark) == Compacted()

    # And on it goes, beside the files that were joined.
    bus.send(queue, 60, 5)
    despite_slow_workers(lambda: run_capture(options, spark))
    assert captured(out) == sorted(ids(65))
    assert settle(options.checkpoint_location, options.source) == 0


def test_a_capture_that_ends_says_how_many_messages_are_deferred(
    spark: SparkSession, bus: Bus, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No stream takes them: they are neither in the files nor forgotten."""
    queue = bus.queue()
    bus.send(queue, 0, 5)
    with bus.ns.client() as client, client.get_queue_receiver(queue) as receiver:
        for message in receiver.receive_messages(2, max_wait_time=30):
            receiver.defer_message(message)
    options = CaptureOptions(source=bus.options(queue), path=str(tmp_path / "out"), once=True)

    def run(*, as_json: bool) -> str:
        despite_slow_workers(lambda: _capture(options, queue, spark, threading.Event(), as_json=as_json))
        return capsys.readouterr().out.splitlines()[-1]

    assert f"3 messages of {queue} are in" in (told := run(as_json=False))
    assert "Deferred in the entity: 2 messages; a capture takes active messages only" in told
    assert len(captured(tmp_path / "out")) == 3
    assert (json.loads(run(as_json=True))["deferred"], len(bus.left(queue))) == (2, 2)


def test_a_second_capture_with_the_same_checkpoint_is_refused(
    spark: SparkSession, bus: Bus, tmp_path: Path
) -> None:
    queue = bus.queue()
    bus.send(queue, 0, 3)
    options = CaptureOptions(source=bus.options(queue), path=str(tmp_path / "out"), once=True)
    others: list[BaseException] = []

    def start_another(_done: Captured) -> None:
        with pytest.raises(
            UsageError, match="another capture runs with the checkpoint .*_checkpoint"
        ) as told:
            run_capture(options, spark)
        others.append(told.value)

    despite_slow_workers(lambda: run_capture(options, spark, on_progress=start_another))

    assert others
    assert captured(tmp_path / "out") == ids(3)


@pytest.mark.promise("D2")
def test_a_capture_whose_driver_is_killed_for_real_holds_each_message_once(bus: Bus, tmp_path: Path) -> None:
    kill_and_restart(bus, tmp_path, kills=1)


@pytest.mark.promise("D2")
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_capture_whose_driver_is_killed_again_and_again_holds_each_message_once(
    bus: Bus, tmp_path: Path
) -> None:
    kill_and_restart(bus, tmp_path, kills=3)


def kill_and_restart(bus: Bus, tmp_path: Path, kills: int) -> None:
    """``pairbus capture`` as people run it; a kill takes Java and Python together, as the death of a machine would."""
    queue, out = bus.queue(), tmp_path / "captured"
    count = 20 * (kills + 1)
    bus.send(queue, 0, count)
    command = [sys.executable, "-m", "pairbus", "capture", queue, "--to", str(out), "--batch", "10", "--json"]
    environment = {**os.environ, "PAIRBUS_PRIMARY": bus.ns.connection_string, "JAVA_TOOL_OPTIONS": QUICK_JAVA}
    for kill in range(kills):
        seen = len(captured(out)) if out.exists() else 0
        process = subprocess.Popen(
            [*command, "--every", "0 seconds"],
            cwd=ROOT,
            env=environment,
            start_new_session=True,
            stdout=subprocess.DEVNULL,
        )
        try:
            wait_until(lambda: has_more(out, seen), f"it captures, {kill}", CAPTURE_SECONDS)  # noqa: B023
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        in_files = captured(out)
        assert len(in_files) == len(set(in_files))
        # Nothing leaves the entity that is not in the files.
        assert set(in_files) | set(bus.left(queue)) == set(ids(count))

    last = subprocess.run(
        [*command, "--once", "--compact"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=CAPTURE_SECONDS,
        check=True,
    )

    assert captured(out) == sorted(ids(count))
    assert bus.left(queue) == []
    told = [json.loads(line) for line in last.stdout.splitlines()]
    assert told[-2]["done"]
    assert told[-1]["files_after"] == told[-1]["hours"]
    assert last.stderr == ""
    assert not list(out.glob(".spark-staging-*"))


def has_more(path: Path, than: int) -> bool:
    """Whether there are more messages in the files; a replayed batch replaces files under our eyes."""
    try:
        return any(path.glob("entity=*/*/*/*/*.parquet")) and len(captured(path)) > than
    except FileNotFoundError:
        return False
