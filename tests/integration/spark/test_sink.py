"""The contract of ``format("servicebus")`` as a sink, against a real broker."""

from __future__ import annotations

import json
import re
import threading
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, functions

from pairbus.spark.connector.options import COLUMN_OPTIONS, parse_sink
from pairbus.spark.connector.sink import ServiceBusWriter
from tests.integration.spark import dying
from tests.integration.spark.contract import Bus, ids, to_the_end
from tests.integration.spark.kit import look_at

pytestmark = pytest.mark.timeout(900)


def test_a_copy_over_tls_with_an_authority_of_ones_own_is_equal_bit_for_bit(
    spark: SparkSession, bus: Bus
) -> None:
    queue = bus.queue()
    bus.send(queue, 0, 50)
    tls = bus.ns.connection_string.replace(";UseDevelopmentEmulator=true", "")
    trusted = {"connectionString": tls, "caFile": bus.ns.ca_file}
    whole = {**trusted, "includeRaw": "true"}
    source = bus.browse(spark, queue, **whole)

    bus.save(source, topic="events", **trusted)

    raw = [row["raw"] for row in source.orderBy("sequence_number").select("raw").collect()]
    copied = bus.browse(spark, topic="events", subscription="all", **whole).select("raw").collect()
    assert tls != bus.ns.connection_string
    assert sorted(raw) == sorted(row["raw"] for row in copied)
    assert len(raw) == 50


def test_a_masked_column_never_lets_the_original_out(spark: SparkSession, bus: Bus) -> None:
    queue, plain, with_raw, renamed, unsent = (bus.queue() for _ in range(5))
    bus.send(queue, 0, 10, subject="secret")
    masked = {"body": functions.lit("MASKED"), "subject": functions.lit("MASKED")}

    bus.save(bus.browse(spark, queue).withColumns(masked), plain)
    bus.save(bus.browse(spark, queue, includeRaw="true").withColumns(masked), with_raw)
    # Spark ignores the case of names: these take the place of body and subject.
    spelt = {name.title(): column for name, column in masked.items()}
    bus.save(bus.browse(spark, queue, includeRaw="true").withColumns(spelt), renamed)
    with pytest.raises(Exception, match="no column for subject"):
        bus.save(bus.browse(spark, queue, includeRaw="true").drop("subject"), unsent)
    assert bus.browse(spark, unsent).count() == 0

    for out in (plain, with_raw, renamed):
        rows = bus.browse(spark, out, includeRaw="true").collect()
        assert sorted(row["message_id"] for row in rows) == sorted(ids(10))
        assert {(bytes(row["body"]), row["subject"]) for row in rows} == {(b"MASKED", "MASKED")}
        assert not any(b"secret" in row["raw"] or b"body " in row["raw"] for row in rows)


def test_overwriting_is_refused_and_nothing_is_sent(spark: SparkSession, bus: Bus) -> None:
    queue = bus.queue()
    table = spark.createDataFrame([("x",)], "body string")

    with pytest.raises(PySparkException, match="overwrite"):
        table.write.format("servicebus").options(**bus.options(queue)).mode("overwrite").save()

    assert bus.left(queue) == []


def test_properties_of_a_plain_type_arrive_with_it(spark: SparkSession, bus: Bus) -> None:
    queue = bus.queue()
    table = spark.createDataFrame([("x", {"n": 5})], "body string, application_properties map<string, int>")

    bus.save(table, queue)

    (row,) = bus.browse(spark, queue).collect()
    assert row["application_properties"]["n"].asDict() == {"type": "int", "value": "5"}


@pytest.mark.promise("D3")
def test_rows_without_ids_are_the_same_messages_when_they_are_sent_again(
    spark: SparkSession, bus: Bus
) -> None:
    queue, unique = bus.queue(), bus.queue(requires_duplicate_detection=True)
    bus.send(queue, 0, 20)
    rows = bus.browse(spark, queue).select("body", "entity", "sequence_number")

    for _ in range(2):
        bus.save(rows, unique)

    assert sorted(bus.left(unique)) == sorted(f"{queue}:{n}" for n in range(1, 21))


def test_every_field_can_be_taken_from_a_column_of_another_name(spark: SparkSession, bus: Bus) -> None:
    queue = bus.queue()
    due = datetime(2099, 1, 1, tzinfo=UTC)
    values: dict[str, object] = {
        "body": b"text",
        "body_type": "data",
        "message_id": "m1",
        "session_id": "s1",
        "correlation_id": "c1",
        "subject": "hello",
        "content_type": "text/plain",
        "to": "you",
        "reply_to": "me",
        "reply_to_session_id": "s2",
        "partition_key": "s1",
        "application_properties": {"n": {"type": "long", "value": "7"}},
        "time_to_live_ms": 60_000,
        "scheduled_enqueue_time": due,
        "path": queue,
        "sequence_number": 5,
        "entity": "elsewhere",
        "enqueued_time": due,
    }
    fields = {field: option for option, field in COLUMN_OPTIONS.items() if field != "raw"}
    assert set(fields) == set(values)
    types = {
        "body": "binary",
        "application_properties": "map<string, struct<type: string, value: string>>",
        "time_to_live_ms": "long",
        "scheduled_enqueue_time": "timestamp",
        "sequence_number": "long",
        "enqueued_time": "timestamp",
    }
    schema = ", ".join(f"my_{field} {types.get(field, 'string')}" for field in values)
    table = spark.createDataFrame([tuple(values.values())], schema)

    bus.save(table, **{option: f"my_{field}" for field, option in fields.items()})

    row = bus.browse(spark, queue).collect()[0].asDict(recursive=True)
    ours = ("path", "sequence_number", "entity", "scheduled_enqueue_time", "enqueued_time")
    assert {field: row[field] for field in values if field not in ours} == {
        field: value for field, value in values.items() if field not in ours
    }
    assert row["scheduled_enqueue_time"].astimezone(UTC) == due
    assert row["state"] == "scheduled"


@pytest.mark.promise("D5")
def test_a_poisoned_row_is_quarantined_with_its_reason_and_the_rest_is_sent(
    spark: SparkSession, bus: Bus, tmp_path: Path
) -> None:
    out = bus.queue()
    rows: list[tuple[str | None, str, str]] = [(out, f"good {n}", f"g{n}") for n in range(20)]
    rows += [("nowhere", "lost", "p1"), (out, "x" * 300_000, "p2"), (None, "no path", "p3")]
    table = spark.createDataFrame(rows, "where string, body string, id string").coalesce(1)
    columns = {"pathColumn": "where", "messageIdColumn": "id"}

    bus.save(table, onError="quarantine", quarantinePath=str(tmp_path / "bad"), **columns)

    assert len(bus.left(out)) == 20
    bad = {
        json.loads(row["row"])["id"]: row["reason"]
        for row in spark.read.parquet(str(tmp_path / "bad")).collect()
    }
    assert set(bad) == {"p1", "p2", "p3"}
    assert "not found" in bad["p1"]
    assert "too large" in bad["p2"]
    assert "path is None" in bad["p3"]
    with pytest.raises(PySparkException, match="entity not found.*onError=quarantine it is kept"):
        bus.save(table.where("id = 'p1'"), **columns)


@pytest.mark.promise("D5")
def test_a_stream_quarantines_a_row_of_each_batch_and_repeats_none(
    spark: SparkSession, bus: Bus, tmp_path: Path
) -> None:
    """Equal rows of two batches are two rows; a batch that is replayed writes the same file again."""
    queue, out = bus.queue(), bus.queue()
    bus.send(queue, 0, 4)
    checkpoint = tmp_path / "checkpoint"

    def run() -> None:
        rows = bus.stream(spark, queue, maxMessagesPerTrigger="2", partitions="1")
        writer = rows.selectExpr("cast(null as string) path", "'same' body").writeStream.format("servicebus")
        options = {"connectionString": bus.ns.connection_string, "onError": "quarantine"}
        writer = writer.options(**options, quarantinePath=str(tmp_path / "bad"))
        to_the_end(writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start)

    run()
    (checkpoint / "commits" / "1").unlink()
    (checkpoint / "commits" / ".1.crc").unlink(missing_ok=True)
    bus.send(queue, 4, 1)
    run()

    found = [
        [row["reason"] for row in spark.read.parquet(str(file)).collect()]
        for file in sorted((tmp_path / "bad").glob("*.parquet"))
    ]
    # Numbers 2 and 3 were settled before the commit was lost: the replayed batch is empty and writes nothing.
    assert Counter(map(len, found)) == {2: 2, 1: 1}
    assert all("path is None" in reason for reasons in found for reason in reasons)
    assert bus.left(out) == []


@pytest.mark.promise("D4")
def test_sessions_arrive_in_order_from_a_stream_over_many_partitions(
    spark: SparkSession, bus: Bus, tmp_path: Path
) -> None:
    queue = bus.queue(requires_session=True)
    unique = bus.queue(requires_session=True, requires_duplicate_detection=True)
    bus.send(queue, 0, 120, sessions=5)

    rows = bus.stream(spark, queue, maxMessagesPerTrigger="70", partitions="7").repartition(3, "session_id")
    writer = rows.writeStream.format("servicebus").options(**bus.options(unique, batchSize="4", inFlight="3"))
    to_the_end(writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start)

    arrived: dict[str | None, list[str]] = {}
    for message_id, session, _ in look_at(bus.ns.connection_string, queue=unique):
        arrived.setdefault(session, []).append(message_id)
    assert arrived == {f"s{s}": [f"m{n}" for n in range(s, 120, 5)] for s in range(5)}
    assert bus.left(queue) == []


@pytest.mark.promise("D3")
def test_a_python_worker_killed_in_the_middle_of_sending_repeats_no_more_than_it_had_sent(
    spark: SparkSession, bus: Bus, tmp_path: Path
) -> None:
    cloudpickle.register_pickle_by_value(dying)  # type: ignore[no-untyped-call]
    spark.dataSource.register(dying.DyingDataSource)
    table = spark.createDataFrame([(f"m{n}", "x") for n in range(60)], "message_id string, body string")

    for settings, repeats in (
        ({}, 2 * dying.ROWS_AT_ONCE),
        ({"requires_duplicate_detection": True}, 0),
    ):
        queue = bus.queue(**settings)
        marker = tmp_path / queue
        bus.save(table.coalesce(1), queue, format=dying.FORMAT, marker=str(marker))

        assert marker.exists()
        found = Counter(bus.left(queue))
        assert set(found) == set(ids(60))
        assert sum(found.values()) - 60 == repeats


@pytest.mark.promise("D3")
def test_two_copies_of_a_task_send_each_row_once_per_copy_and_once_where_it_counts(
    bus: Bus,
) -> None:
    """What speculation does: the whole cluster form of it is in test_spark_submit.py."""
    rows = [{"body": b"x", "message_id": f"m{n}"} for n in range(300)]
    for settings, bound in (({}, 2), ({"requires_duplicate_detection": True}, 1)):
        queue = bus.queue(**settings)
        options = parse_sink(bus.options(queue, batchSize="7"), ["body", "message_id"])
        copies = [threading.Thread(target=ServiceBusWriter(options).send, args=(rows,)) for _ in range(2)]
        for copy in copies:
            copy.start()
        for copy in copies:
            copy.join(60)
            assert not copy.is_alive()

        assert Counter(bus.left(queue)) == dict.fromkeys(ids(300), bound)


def test_the_blocks_of_the_page_about_spark_run(
    spark: SparkSession, bus: Bus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).parents[3] / "docs" / "how-to" / "spark.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    for queue in ("orders", "bills"):
        bus.ns.create_queue(queue)
    bus.send("orders", 0, 5)
    spark.range(3).selectExpr("id", "'13' hour").write.parquet(str(tmp_path / "captured"))
    monkeypatch.setenv("ORDERS_CONNECTION", bus.ns.connection_string)
    names: dict[str, object] = {}

    for block in blocks:
        exec(block.replace('"/data/', f'"{tmp_path}/'), names)

    assert len(blocks) == 3
    assert sorted(bus.left("bills")) == ids(5)
    captured = names["captured"]
    assert isinstance(captured, DataFrame)
    assert captured.count() == 3


def test_times_arrive_as_they_were_whatever_the_zones_of_session_and_worker_are(
    spark: SparkSession, bus: Bus, tmp_path: Path
) -> None:
    """In the hour that is repeated when summer time ends, local times do not tell which of two they are."""
    queue, copy = bus.queue(), bus.queue()
    moments = [datetime(2037, 10, 25, hour, 30, tzinfo=UTC) for hour in (0, 1, 2)]
    expected = {str(number): int(moment.timestamp() * 1000) for number, moment in enumerate(moments)}
    # The first instant of the calendar is one; the one before it is none.
    expected["first"] = -62_135_596_800_000
    rows = [*expected.items(), ("beyond", expected["first"] - 1)]
    table = spark.createDataFrame(rows, "message_id string, ms long").selectExpr(
        "'x' AS body",
        "message_id",
        "timestamp_millis(ms) AS scheduled_enqueue_time",
        "map('p', timestamp_millis(ms)) AS application_properties",
    )
    before = str(spark.conf.get("spark.sql.session.timeZone"))
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        bus.save(table, queue, onError="quarantine", quarantinePath=str(tmp_path))
        bus.save(bus.browse(spark, queue, includeRaw="true"), copy)
        found = [
            bus.browse(spark, one).selectExpr(
                "message_id",
                "unix_millis(scheduled_enqueue_time) AS due",
                "application_properties.p.value AS p",
            )
            for one in (queue, copy)
        ]
        read = [{row["message_id"]: (row["due"], int(row["p"])) for row in one.collect()} for one in found]
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)

    assert read == [{name: (ms, ms) for name, ms in expected.items()}] * 2
    ((reason, message_id),) = spark.read.parquet(str(tmp_path)).select("reason", "message_id").collect()
    assert message_id == "beyond"
    assert "expected a time in the years 1 to 9999" in reason
