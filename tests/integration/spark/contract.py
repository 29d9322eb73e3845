"""What the contract tests of ``format("servicebus")`` share: one broker for a module, a queue for each test."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from azure.servicebus import ServiceBusMessage
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from pairbus.testing import Namespace
from tests.integration.spark.kit import despite_slow_workers, look_at

STREAM_SECONDS = 600
TOPICS = {
    "Topics": [
        {
            "Name": "events",
            "Properties": {},
            "Subscriptions": [
                {"Name": "all", "Properties": {}},
                {"Name": "ordered", "Properties": {"RequiresSession": True}},
            ],
        }
    ]
}
_numbers = itertools.count()


@contextmanager
def running_bus() -> Iterator[Bus]:
    """A broker in a process of its own."""
    with Namespace("contoso", process=True, config=TOPICS) as namespace:
        yield Bus(namespace)


class Bus:
    """A running namespace, in the words of these tests."""

    def __init__(self, ns: Namespace) -> None:
        self.ns = ns

    @property
    def key(self) -> str:
        """The secret that must show up nowhere."""
        return self.ns.connection_string.split("SharedAccessKey=")[1].split(";")[0]

    def queue(self, **settings: Any) -> str:
        """A new queue."""
        name = f"queue-{next(_numbers)}"
        self.ns.create_queue(name, **settings)
        return name

    def send(self, entity: str, first: int, count: int, sessions: int = 0, **more: Any) -> None:
        """Messages with the ids m<first> and on, over so many sessions."""
        with self.ns.client() as client, client.get_queue_sender(entity) as sender:
            sender.send_messages(
                [
                    ServiceBusMessage(
                        f"body {n}",
                        message_id=f"m{n}",
                        session_id=f"s{n % sessions}" if sessions else None,
                        application_properties={"n": n, "half": n / 2},
                        **more,
                    )
                    for n in range(first, first + count)
                ]
            )

    def left(self, queue: str = "", **entity: str) -> list[str]:
        """The ids of what is in an entity, in order."""
        given = entity or {"queue": queue}
        return [message_id for message_id, _, _ in look_at(self.ns.connection_string, **given)]

    def options(self, queue: str = "", **more: str) -> dict[str, str]:
        """The options for an entity."""
        return {"connectionString": self.ns.connection_string, **({"queue": queue} if queue else {}), **more}

    def browse(self, spark: SparkSession, queue: str = "", **more: str) -> DataFrame:
        """A batch."""
        return spark.read.format("servicebus").options(**self.options(queue, **more)).load()

    def stream(
        self, spark: SparkSession, queue: str = "", *, format: str = "servicebus", **more: str
    ) -> DataFrame:
        """A stream."""
        return spark.readStream.format(format).options(**self.options(queue, **more)).load()

    def save(self, rows: DataFrame, queue: str = "", *, format: str = "servicebus", **more: str) -> None:
        """Send rows."""
        rows.write.format(format).options(**self.options(queue, **more)).mode("append").save()


def ids(count: int, first: int = 0) -> list[str]:
    return [f"m{n}" for n in range(first, first + count)]


def to_the_end(start: Callable[[], StreamingQuery]) -> StreamingQuery:
    """Start a query that ends by itself, and wait for it."""

    def run() -> StreamingQuery:
        query = start()
        assert query.awaitTermination(STREAM_SECONDS)
        return query

    return despite_slow_workers(run)


def run_batches(
    stream: DataFrame, checkpoint: Path, each: Callable[[DataFrame, int], None], **trigger: Any
) -> StreamingQuery:
    """Start a query whose batches a function gets."""
    writer = stream.writeStream.foreachBatch(each).option("checkpointLocation", str(checkpoint))
    return writer.trigger(**(trigger or {"availableNow": True})).start()


def run_to_files(stream: DataFrame, out: Path) -> None:
    """Everything that is there now into Parquet."""
    writer = stream.writeStream.format("parquet").option("path", str(out / "files"))
    to_the_end(writer.option("checkpointLocation", str(out / "checkpoint")).trigger(availableNow=True).start)


def key_is_nowhere_below(directory: Path, key: str) -> None:
    for folder, _, names in os.walk(directory):
        for name in names:
            assert key.encode() not in (Path(folder) / name).read_bytes(), f"{folder}/{name}"
