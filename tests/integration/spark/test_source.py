"""The contract of ``format("servicebus")`` as a source, against a real broker."""

from __future__ import annotations

import functools
import json
import urllib.request
from datetime import timedelta
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusReceiveMode, ServiceBusSubQueue
from pyspark import cloudpickle
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from pairbus.spark import settle
from tests.integration.spark import dying
from tests.integration.spark.contract import (
    STREAM_SECONDS,
    Bus,
    ids,
    key_is_nowhere_below,
    run_batches,
    run_to_files,
    to_the_end,
)
from tests.integration.spark.kit import event_log
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(900)


@pytest.mark.promise("D4")
def test_browsing_shows_every_message_once_in_order_whatever_the_partitions_and_takes_none(
    spark: SparkSession, bus: Bus
) -> None:
    queue = bus.queue(requires_session=True)
    bus.send(queue, 0, 100, sessions=3)

    one, two, seven = (bus.browse(spark, queue, partitions=parts).collect() for parts in ("1", "2", "7"))

    assert one == two == seven
    # As collected: partitions are consecutive, so sessions keep their order.
    assert [row["message_id"] for row in one] == ids(100)
    assert one[3]["application_properties"]["n"].asDict() == {"type": "int", "value": "3"}
    assert (one[3]["session_id"], one[3]["state"], one[3]["entity"]) == ("s0", "active", queue)
    assert bus.left(queue) == ids(100)
    assert bus.browse(spark, queue, startingSequence="91").count() == 10


@pytest.mark.promise("D4")
def test_a_stream_gives_the_same_in_the_same_order_whatever_the_partitions_and_batches(
    spark: SparkSession, bus: Bus, tmp_path: Path
) -> None:
    queue = bus.queue()
    bus.send(queue, 0, 40)

    for parts, size, batches in (("1", "100", 1), ("2", "15", 3), ("7", "20", 2)):
        seen: dict[int, list[str]] = {}

        def keep(rows: DataFrame, number: int, seen: dict[int, list[str]] = seen) -> None:
            seen[number] = [row["message_id"] for row in rows.select("message_id").collect()]

        stream = bus.stream(spark, queue, mode="browse", partitions=parts, maxMessagesPerTrigger=size)
        to_the_end(functools.partial(run_batches, stream, tmp_path / parts, keep))

        assert [message for number in sorted(seen) for message in seen[number]] == ids(40)
        assert len(seen) == batches
    assert bus.left(queue) == ids(40)


@pytest.mark.promise("D2")
def test_a_stream_ends_with_what_was_there_and_goes_on_from_its_checkpoint(
    spark: SparkSession, bus: Bus, tmp_path: Path
) -> None:
    """A subscription with sessions: what is settled there is settled session by session."""
    ordered = {"topic": "events", "subscription": "ordered"}
    bus.send("events", 0, 30, sessions=4)
    seen: dict[int, list[str]] = {}

    def keep(rows: DataFrame, number: int) -> None:
        seen[number] = [row["message_id"] for row in rows.select("message_id").collect()]
        if number == 0:
            assert len(bus.left(**ordered)) == 30
            bus.send("events", 30, 5, sessions=4)

    to_the_end(lambda: run_batches(bus.stream(spark, maxMessagesPerTrigger="20", **ordered), tmp_path, keep))
    assert {number: len(found) for number, found in seen.items()} == {0: 20, 1: 10}
    assert bus.left(**ordered) == ids(5, 30)

    to_the_end(lambda: run_batches(bus.stream(spark, maxMessagesPerTrigger="20", **ordered), tmp_path, keep))
    assert [message for number in sorted(seen) for message in seen[number]] == ids(35)
    assert bus.left(**ordered) == []


@pytest.mark.promise("D1", "D2")
def test_a_batch_that_failed_is_read_again_and_nothing_of_it_was_settled(
    spark: SparkSession, bus: Bus, tmp_path: Path
) -> None:
    queue = bus.queue()
    bus.send(queue, 0, 60)
    seen: dict[int, list[str]] = {}

    def fail_at_second(rows: DataFrame, number: int) -> None:
        seen[number] = [row["message_id"] for row in rows.select("message_id").collect()]
        if number == 1 and not (tmp_path / "mended").exists():
            raise RuntimeError("the sink is down")

    def run() -> None:
        stream = bus.stream(spark, queue, maxMessagesPerTrigger="20")
        to_the_end(lambda: run_batches(stream, tmp_path / "checkpoint", fail_at_second))

    with pytest.raises(StreamingQueryException):
        run()
    assert len(bus.left(queue)) == 40
    failed = seen[1]
    (tmp_path / "mended").touch()
    run()

    assert seen[1] == failed
    assert [message for number in sorted(seen) for message in seen[number]] == ids(60)
    assert bus.left(queue) == []


@pytest.mark.promise("D2", "D3")
def test_a_python_worker_killed_in_the_middle_of_reading_changes_nothing(
    spark: SparkSession, bus: Bus, tmp_path: Path
) -> None:
    cloudpickle.register_pickle_by_value(dying)  # type: ignore[no-untyped-call]
    spark.dataSource.register(dying.DyingDataSource)
    queue = bus.queue()
    bus.send(queue, 0, 50)
    marker = tmp_path / "died"

    run_to_files(bus.stream(spark, queue, format=dying.FORMAT, marker=str(marker)), tmp_path)

    assert marker.exists()
    rows = spark.read.parquet(str(tmp_path / "files")).select("message_id").collect()
    assert sorted(row["message_id"] for row in rows) == sorted(ids(50))
    assert bus.left(queue) == []


def test_the_source_says_so_when_it_finds_another_consumer_and_settles_what_is_left_when_told(
    spark: SparkSession, bus: Bus, tmp_path: Path
) -> None:
    queue = bus.queue(lock_duration=timedelta(minutes=5))
    bus.send(queue, 0, 10)
    with bus.ns.client() as client, client.get_queue_receiver(queue) as other:
        (held,) = other.receive_messages(max_message_count=1, max_wait_time=45)

        def take_one(rows: DataFrame, number: int) -> None:
            assert rows.count() == 10
            thief = client.get_queue_receiver(queue, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE)
            with thief:
                assert len(thief.receive_messages(max_message_count=1, max_wait_time=45)) == 1

        query = run_batches(bus.stream(spark, queue), tmp_path, take_one, processingTime="1 second")

        def told() -> dict[str, object]:
            progress = query.lastProgress
            report = None if progress is None else json.loads(progress.json)["sources"][0]["latestOffset"]
            return dict(report or {})

        try:
            wait_until(lambda: told().get("owed") == told().get("taken") == 1, "it says so", STREAM_SECONDS)
        finally:
            query.stop()
        assert told()["entity"] == queue
        assert bus.left(queue) == ["m0"]
        other.abandon_message(held)
    # The query is over: the last of its batch is settled by hand.
    assert settle(str(tmp_path), bus.options(queue)) == 0
    assert bus.left(queue) == []


@pytest.mark.slow
def test_the_last_progress_of_available_now_tells_what_stays(
    spark: SparkSession, bus: Bus, tmp_path: Path
) -> None:
    queue = bus.queue(lock_duration=timedelta(minutes=5))
    bus.send(queue, 0, 10)
    with bus.ns.client() as client, client.get_queue_receiver(queue) as other:
        held = other.receive_messages(max_message_count=4, max_wait_time=45)
        stream = bus.stream(spark, queue, maxMessagesPerTrigger="6")

        query = to_the_end(lambda: run_batches(stream, tmp_path, lambda rows, number: None))

        progress = query.lastProgress
        assert progress is not None
        report = dict(json.loads(progress.json)["sources"][0]["latestOffset"])
        assert (report["owed"], report["waiting"]) == (len(held), 0)
        assert bus.left(queue) == [message.message_id for message in held]


def test_the_dead_letter_queue_is_read_with_its_reasons(spark: SparkSession, bus: Bus) -> None:
    queue = bus.queue()
    bus.send(queue, 0, 2)
    with bus.ns.client() as client, client.get_queue_receiver(queue) as receiver:
        for _ in range(2):
            (message,) = receiver.receive_messages(max_message_count=1, max_wait_time=45)
            receiver.dead_letter_message(message, reason="Tired", error_description="of it")

    rows = bus.browse(spark, queue, subQueue="deadletter").collect()

    assert [
        (row["message_id"], row["dead_letter_reason"], row["dead_letter_description"]) for row in rows
    ] == [("m0", "Tired", "of it"), ("m1", "Tired", "of it")]
    assert rows[0]["entity"] == f"{queue}/$DeadLetterQueue"
    with (
        bus.ns.client() as client,
        client.get_queue_receiver(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER) as dead,
    ):
        assert len(dead.peek_messages(max_message_count=5)) == 2


def test_a_bad_option_fails_at_once_with_its_name_and_what_is_allowed(spark: SparkSession, bus: Bus) -> None:
    for change, named in (
        ({"mode": "steal"}, "option mode is 'steal': expected one of browse, consume"),
        ({"colour": "red"}, "option 'colour' is unknown to the source: expected one of connectionString"),
    ):
        for load in (bus.browse, bus.stream):
            with pytest.raises(PySparkException) as caught:
                load(spark, "queue", **change)
            assert named in str(caught.value)
            assert bus.key not in str(caught.value)
    with pytest.raises(PySparkException, match="option mode is 'consume': a batch read leaves"):
        bus.browse(spark, "queue", mode="consume").count()


def test_the_format_is_found_without_registering_it(spark: SparkSession, bus: Bus) -> None:
    queue = bus.queue()
    bus.send(queue, 0, 3)

    assert bus.browse(spark.newSession(), queue).count() == 3


# --- secrets --------------------------------------------------------------------------------------


@pytest.mark.promise("M7")
def test_no_key_is_in_plans_event_logs_checkpoints_progress_or_pages(
    spark: SparkSession, bus: Bus, tmp_path: Path
) -> None:
    queue, out = bus.queue(), bus.queue()
    bus.send(queue, 0, 5)
    query = to_the_end(
        bus.stream(spark, queue)
        .writeStream.format("servicebus")
        .options(**bus.options(out))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start
    )
    rows = bus.browse(spark, out)
    assert rows.count() == 5

    said = {
        "plan": rows._jdf.queryExecution().toString(),
        "stream's plan": query._jsq.explainInternal(True),
        "progress": "".join(progress.json for progress in query.recentProgress),
        "events": event_log(),
        **pages(spark),
    }
    shown = [place for place, text in said.items() if "servicebus" in text.lower()]
    assert {"plan", "stream's plan", "events"} <= set(shown)
    assert any(place.startswith("/SQL/") for place in shown), shown
    assert any("/sql?" in place for place in shown), shown
    assert "spark.redaction" in said["/environment/"]
    assert "SparkListenerSQLExecutionStart" in said["events"]
    assert [place for place, text in said.items() if bus.key in text or "SharedAccessKey=" in text] == []
    key_is_nowhere_below(tmp_path, bus.key)


def pages(spark: SparkSession) -> dict[str, str]:
    """What Spark shows of itself over HTTP, pages and REST."""
    root = spark.sparkContext.uiWebUrl
    assert root is not None
    rest = f"/api/v1/applications/{spark.sparkContext.applicationId}"

    def read(path: str) -> str:
        with urllib.request.urlopen(root + path, timeout=30) as answer:
            return bytes(answer.read()).decode(errors="replace")

    found = {
        path: read(path)
        for path in (
            "/SQL/",
            "/environment/",
            "/jobs/",
            "/stages/",
            "/StreamingQuery/",
            f"{rest}/environment",
            f"{rest}/sql?details=true&planDescription=true&length=1000",
            f"{rest}/jobs",
            f"{rest}/stages",
        )
    }
    executions = [
        entry["id"]
        for entry in json.loads(found[f"{rest}/sql?details=true&planDescription=true&length=1000"])
    ]
    for number in executions[-3:]:
        found[f"/SQL/{number}"] = read(f"/SQL/execution/?id={number}")
    return found
