"""A wrong key and a missing entity end a job at once, with one sentence; readers and writers as objects, no Java."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows
from pyspark.sql.types import BinaryType, StructField, StructType

from pairbus.errors import PairbusError, UsageError
from pairbus.spark.connector.options import parse_sink, parse_source
from pairbus.spark.connector.reader import ServiceBusReader, ServiceBusStreamReader
from pairbus.spark.connector.sink import ServiceBusWriter
from pairbus.spark.connector.source import ServiceBusDataSource
from pairbus.testing import Namespace
from tests.integration.spark.kit import look_at

SECONDS_MAX = 20
"""The official client tries for 50 seconds; what is told at once takes less than one on a quiet machine."""

LISTENER = [{"Name": "listener", "Rights": ["Listen"], "PrimaryKey": "L" * 44}]
CONFIG = {
    "Queues": [
        {"Name": "orders", "AuthorizationRules": LISTENER},
        {"Name": "topic-steps", "Properties": {"RequiresSession": True}, "AuthorizationRules": LISTENER},
    ],
    "Topics": [{"Name": "events", "AuthorizationRules": LISTENER}],
}


@pytest.fixture(scope="module")
def ns() -> Iterator[Namespace]:
    with Namespace("contoso", config=CONFIG) as running:
        yield running


def listening(ns: Namespace) -> str:
    """A connection string whose key may listen and nothing else."""
    endpoint, _, rest = ns.connection_string.partition(";")
    further = [part for part in rest.split(";") if not part.startswith("SharedAccessKey")]
    return ";".join(
        [endpoint, "SharedAccessKeyName=listener", f"SharedAccessKey={'L' * 44}", *filter(None, further)]
    )


def browse(connection: str, queue: str) -> None:
    options = parse_source({"connectionString": connection, "queue": queue}, is_stream=False)
    ServiceBusReader(options, StructType()).partitions()


def stream(connection: str, queue: str) -> None:
    options = parse_source({"connectionString": connection, "queue": queue}, is_stream=True)
    reading = ServiceBusStreamReader(options, StructType())
    reading.latestOffset(reading.initialOffset(), ReadMaxRows(1))


def write(connection: str, queue: str) -> None:
    options = parse_sink({"connectionString": connection, "queue": queue}, ["body"])
    ServiceBusWriter(options).send([{"body": b"x"}])


@pytest.mark.parametrize("work", [browse, stream, write])
def test_a_wrong_key_is_told_at_once_and_never_shown(ns: Namespace, work: object) -> None:
    wrong = ns.connection_string.replace("SharedAccessKey=", "SharedAccessKey=AAAA")
    assert callable(work)
    begun_at = time.monotonic()

    with pytest.raises(
        PairbusError, match=r"refused the key for 'orders': check .* the right to (listen|send)"
    ) as caught:
        work(wrong, "orders")

    assert time.monotonic() - begun_at < SECONDS_MAX
    assert "AAAA" not in str(caught.value)


@pytest.mark.parametrize("work", [browse, stream, write])
def test_a_missing_entity_is_told_at_once(ns: Namespace, work: object) -> None:
    assert callable(work)
    begun_at = time.monotonic()

    with pytest.raises(UsageError, match="there is no (entity|queue or topic) 'absent' in the namespace"):
        work(ns.connection_string, "absent")

    assert time.monotonic() - begun_at < SECONDS_MAX


@pytest.mark.parametrize("right", ["manage", "listen"])
@pytest.mark.parametrize("work", [browse, stream])
def test_a_topic_that_is_given_as_a_queue_is_told(ns: Namespace, work: object, right: str) -> None:
    """Browsing a topic shows nothing, so a read of it looked like a read of an empty queue."""
    assert callable(work)
    connection = ns.connection_string if right == "manage" else listening(ns)

    with pytest.raises(
        UsageError, match="option queue is 'events', which is a topic .* topic and subscription"
    ):
        work(connection, "events")


@pytest.mark.parametrize(
    ("option", "path", "told"),
    [
        ("queue", "events", "topic"),
        ("topic", "orders", "queue"),
        ("queue", "orders", ""),
        ("topic", "events", ""),
    ],
)
@pytest.mark.parametrize("is_stream", [False, True])
def test_the_sink_tells_an_entity_of_the_other_kind_before_anything_is_sent(
    ns: Namespace, option: str, path: str, told: str, is_stream: bool
) -> None:
    source = ServiceBusDataSource({"connectionString": ns.connection_string, option: path})
    rows = StructType([StructField("body", BinaryType())])
    make = source.streamWriter if is_stream else source.writer

    if not told:
        make(rows, overwrite=False)
        return
    with pytest.raises(
        UsageError,
        match=f"option {option} is '{path}', which is a {told} in .* give the option {told} instead",
    ):
        make(rows, overwrite=False)


@pytest.mark.parametrize("queue", ["orders", "topic-steps"])
def test_an_empty_queue_is_taken_for_no_topic(ns: Namespace, queue: str) -> None:
    for connection in (ns.connection_string, listening(ns)):
        browse(connection, queue)
        stream(connection, queue)


def test_a_connection_string_of_one_entity_reads_and_writes_it(ns: Namespace) -> None:
    limited = f"{ns.connection_string};EntityPath=orders"
    ServiceBusWriter(parse_sink({"connectionString": limited}, ["body"])).send([{"body": b"x"}])
    reading = ServiceBusStreamReader(
        parse_source({"connectionString": limited}, is_stream=True), StructType()
    )

    end = reading.latestOffset(reading.initialOffset(), ReadMaxRows(1))

    assert (end["entity"], end["runs"]) == ("orders", [[1, 1]])
    assert end["created"] is not None
    assert reading.latestOffset(end, ReadMaxRows(1)) == end
    reading._close()
    assert look_at(ns.connection_string, queue="orders") == []
