"""The contract of ``format("servicebus")``: source, sink and capture against a real broker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusMessage

pytest.importorskip("pyspark")

from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from pairbus.spark import settle
from pairbus.spark.capture import CaptureOptions, run_capture
from pairbus.testing import Namespace, Queue
from tests.integration.spark_kit import copies, event_log, look_at, read_queue, small_session

pytestmark = pytest.mark.timeout(300)
STREAM_SECONDS = 120


@pytest.fixture(scope="module")
def spark() -> SparkSession:
    return small_session()


@pytest.fixture
def ns() -> Iterator[Namespace]:
    queues: list[str | Queue] = ["in", "out", Queue("unique", requires_duplicate_detection=True)]
    with Namespace("contoso", process=True, queues=queues) as running:
        yield running


def send(ns: Namespace, first: int, count: int, queue: str = "in") -> None:
    with ns.client() as client, client.get_queue_sender(queue) as sender:
        sender.send_messages(
            [
                ServiceBusMessage(
                    f"body {n}", message_id=f"m{n}", application_properties={"n": n, "half": n / 2}
                )
                for n in range(first, first + count)
            ]
        )


def options(ns: Namespace, **more: str) -> dict[str, str]:
    return {"connectionString": ns.connection_string, "queue": "in", **more}


def browse(spark: SparkSession, ns: Namespace, **more: str) -> DataFrame:
    return spark.read.format("servicebus").options(**options(ns, **more)).load()


def run_stream(spark: SparkSession, ns: Namespace, out: Path, **more: str) -> None:
    """Everything that is there now into Parquet."""
    stream = spark.readStream.format("servicebus").options(**options(ns, **more)).load()
    query = (
        stream.writeStream.format("parquet")
        .option("path", str(out / "files"))
        .option("checkpointLocation", str(out / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(STREAM_SECONDS)


def left(ns: Namespace, queue: str = "in") -> int:
    return len(look_at(ns.connection_string, queue=queue))


# --- source ---------------------------------------------------------------------------------------


def test_D4_browsing_shows_every_message_once_whatever_the_partitions_and_takes_none(
    spark: SparkSession, ns: Namespace
) -> None:
    send(ns, 0, 300)

    one, seven = (
        browse(spark, ns, partitions=parts).orderBy("sequence_number").collect() for parts in ("1", "7")
    )

    assert one == seven
    assert [row["message_id"] for row in one] == [f"m{n}" for n in range(300)]
    assert one[3]["application_properties"]["n"].asDict() == {"type": "int", "value": "3"}
    assert left(ns) == 300
    assert browse(spark, ns, startingSequence="291").count() == 10


def test_D2_a_stream_ends_with_what_was_there_consumes_it_after_commit_and_goes_on_from_its_checkpoint(
    spark: SparkSession, ns: Namespace, tmp_path: Path
) -> None:
    send(ns, 0, 250)
    run_stream(spark, ns, tmp_path, maxMessagesPerTrigger="100")
    assert left(ns) == 0

    send(ns, 250, 50)
    run_stream(spark, ns, tmp_path, maxMessagesPerTrigger="100")

    rows = spark.read.parquet(str(tmp_path / "files"))
    assert rows.count() == rows.select("message_id").distinct().count() == 300
    assert left(ns) == 0


def test_D1_D2_a_batch_that_failed_is_read_again_and_nothing_of_it_was_settled(
    spark: SparkSession, ns: Namespace, tmp_path: Path
) -> None:
    send(ns, 0, 60)
    seen: dict[int, list[str]] = {}

    def fail_at_second(rows: DataFrame, number: int) -> None:
        seen[number] = [row["message_id"] for row in rows.select("message_id").collect()]
        if number == 1 and not (tmp_path / "mended").exists():
            raise RuntimeError("the sink is down")

    def run() -> None:
        stream = (
            spark.readStream.format("servicebus").options(**options(ns, maxMessagesPerTrigger="20")).load()
        )
        writer = stream.writeStream.foreachBatch(fail_at_second).trigger(availableNow=True)
        writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination(
            STREAM_SECONDS
        )

    with pytest.raises(StreamingQueryException):
        run()
    assert left(ns) == 40
    failed = seen[1]
    (tmp_path / "mended").touch()
    run()

    assert seen[1] == failed
    assert [message for number in sorted(seen) for message in seen[number]] == [f"m{n}" for n in range(60)]
    assert left(ns) == 0


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"mode": "steal"}, "option mode is 'steal': expected one of browse"),
        ({"colour": "red"}, "option 'colour' is unknown"),
    ],
)
def test_a_bad_option_fails_at_once_with_its_name(
    spark: SparkSession, ns: Namespace, change: dict[str, str], named: str
) -> None:
    with pytest.raises(PySparkException) as caught:
        browse(spark, ns, **change).count()

    assert named in str(caught.value)
    assert ns.connection_string.split("SharedAccessKey=")[1].split(";")[0] not in str(caught.value)


# --- sink -----------------------------------------------------------------------------------------


def test_a_copy_is_equal_bit_for_bit(spark: SparkSession, ns: Namespace) -> None:
    send(ns, 0, 50)
    source = browse(spark, ns)
    source.write.format("servicebus").options(**options(ns, queue="out")).mode("append").save()

    raw = [row["raw"] for row in source.orderBy("sequence_number").select("raw").collect()]
    copied = browse(spark, ns, queue="out").select("raw").collect()
    assert sorted(raw) == sorted(row["raw"] for row in copied)


def test_D3_rows_without_ids_are_the_same_messages_when_they_are_sent_again(
    spark: SparkSession, ns: Namespace
) -> None:
    send(ns, 0, 40)
    rows = browse(spark, ns).select("body", "entity", "sequence_number")

    for _ in range(2):
        rows.write.format("servicebus").options(**options(ns, queue="unique")).mode("append").save()

    with ns.client() as client:
        found = copies(read_queue(client, "unique", 40))
    assert len(found) == sum(found.values()) == 40
    assert "in:1" in found


def test_D5_a_poisoned_row_is_quarantined_with_its_reason_and_the_rest_is_sent(
    spark: SparkSession, ns: Namespace, tmp_path: Path
) -> None:
    rows: list[tuple[str | None, str, str]] = [("out", f"good {n}", f"g{n}") for n in range(20)]
    rows += [("nowhere", "lost", "p1"), ("out", "x" * 300_000, "p2"), (None, "no path", "p3")]
    table = spark.createDataFrame(rows, "where string, body string, id string").coalesce(1)

    table.write.format("servicebus").options(
        connectionString=ns.connection_string,
        pathColumn="where",
        messageIdColumn="id",
        onError="quarantine",
        quarantinePath=str(tmp_path / "bad"),
    ).mode("append").save()

    with ns.client() as client:
        assert len(copies(read_queue(client, "out", 20))) == 20
    bad = {
        json.loads(row["row"])["id"]: row["reason"]
        for row in spark.read.parquet(str(tmp_path / "bad")).collect()
    }
    assert set(bad) == {"p1", "p2", "p3"}
    assert "not found" in bad["p1"]
    assert "too large" in bad["p2"]
    assert "path is None" in bad["p3"]


def test_a_poisoned_row_fails_the_job_unless_told_otherwise(spark: SparkSession, ns: Namespace) -> None:
    table = spark.createDataFrame([("nowhere", "x")], "path string, body string")

    with pytest.raises(PySparkException, match="entity not found"):
        table.write.format("servicebus").option("connectionString", ns.connection_string).mode(
            "append"
        ).save()


def test_a_stream_flows_from_queue_to_queue(spark: SparkSession, ns: Namespace, tmp_path: Path) -> None:
    send(ns, 0, 120)
    stream = spark.readStream.format("servicebus").options(**options(ns, maxMessagesPerTrigger="50")).load()
    query = (
        stream.writeStream.format("servicebus")
        .options(**options(ns, queue="unique"))
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(STREAM_SECONDS)

    with ns.client() as client:
        found = copies(read_queue(client, "unique", 120))
    assert len(found) == sum(found.values()) == 120
    assert left(ns) == 0


# --- capture --------------------------------------------------------------------------------------


def test_capture_holds_each_message_once_by_entity_date_and_hour(
    spark: SparkSession, ns: Namespace, tmp_path: Path
) -> None:
    out = str(tmp_path / "captured")
    capture = CaptureOptions(source=options(ns, maxMessagesPerTrigger="60"), path=out, once=True)
    send(ns, 0, 100)
    first = run_capture(capture, spark)
    # The checkpoint loses its last commit, as after a kill between the files and the commit: the batch is replayed.
    commits = sorted(
        (tmp_path / "captured" / "_checkpoint" / "commits").glob("[0-9]*"), key=lambda file: int(file.name)
    )
    commits[-1].unlink()
    (commits[-1].parent / f".{commits[-1].name}.crc").unlink(missing_ok=True)
    send(ns, 100, 20)
    run_capture(capture, spark)

    rows = spark.read.parquet(out)
    ids = [row["message_id"] for row in rows.select("message_id").collect()]
    assert first.messages == 100
    assert len(ids) == len(set(ids))
    assert set(ids) == {f"m{n}" for n in range(120)}
    assert {"entity", "date", "hour"} <= set(rows.columns)
    assert left(ns) == 0
    assert settle(f"{out}/_checkpoint", capture.source) == 0


# --- secrets --------------------------------------------------------------------------------------


def test_no_key_is_in_plans_event_logs_or_checkpoints(
    spark: SparkSession, ns: Namespace, tmp_path: Path
) -> None:
    send(ns, 0, 5)
    key = ns.connection_string.split("SharedAccessKey=")[1].split(";")[0]
    run_stream(spark, ns, tmp_path)
    rows = browse(spark, ns, queue="out")
    rows.count()
    plan = rows._jdf.queryExecution().toString()

    logged = event_log()
    assert "servicebus" in plan.lower()
    assert "SparkListenerSQLExecutionStart" in logged
    assert "servicebus" in logged
    assert key not in plan
    assert key not in logged
    for file in (tmp_path / "checkpoint").rglob("*"):
        assert not file.is_file() or key.encode() not in file.read_bytes()
