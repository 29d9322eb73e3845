"""Capture: a stream of an entity into Parquet files by entity, date and hour, each message exactly once in the files.

A batch writes its own directories (``batch=<query>-<number>``) below its hours, and a replayed batch writes the same
ones again. So no reader, Spark or other, ever sees a message twice, whatever was killed when. A message leaves the
entity only after the files that hold it are committed. ``compaction`` joins the small files.
"""

from __future__ import annotations

import fcntl
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pairbus.errors import UsageError
from pairbus.spark import register
from pairbus.spark.capture.compaction import LOCK, exclusive, local_directory, remove_leftovers
from pairbus.spark.connector import identity
from pairbus.spark.connector.entity import Entity
from pairbus.spark.connector.identity import CheckpointMismatch
from pairbus.spark.connector.offsets import Offset, size_of
from pairbus.spark.connector.options import parse_source
from pairbus.spark.filesystem import filesystem_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

PARTITIONS: Final = ("entity", "date", "hour", "batch")
QUERY_ID: Final = "sql.streaming.queryId"
"""Where Spark tells the code of a batch which query it belongs to."""
TRIGGER: Final = "5 seconds"
_SECONDS: Final = "unix_seconds(enqueued_time)"
_DATE: Final = f"CAST(date_from_unix_date(CAST(floor({_SECONDS} / 86400) AS INT)) AS STRING)"
_HOUR: Final = f"lpad(CAST(pmod(floor({_SECONDS} / 3600), 24) AS STRING), 2, '0')"
"""Of UTC, whatever the session's time zone is: a session of spark-submit or of a notebook has its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureOptions:
    """What to capture, and where to.

    Args:
        source: Options of ``format("servicebus")``: the connection, the entity, limits.
        path: The directory of the files.
        checkpoint: Spark's checkpoint; ``_checkpoint`` in the directory unless given.
        once: End when what was there at the start is in the files.
        trigger: How often to look, when not ``once``.
    """

    source: dict[str, str] = field(repr=False)
    path: str
    checkpoint: str | None = None
    once: bool = False
    trigger: str = TRIGGER

    @property
    def checkpoint_location(self) -> str:
        return self.checkpoint or f"{self.path}/_checkpoint"


@dataclass(frozen=True, slots=True)
class Captured:
    messages: int
    batches: int
    path: str
    deferred: int = 0
    """Messages that were deferred when a capture with ``once`` ended. No stream reads them."""


def run_capture(
    options: CaptureOptions,
    spark: SparkSession,
    *,
    stop: threading.Event | None = None,
    on_progress: Callable[[Captured], None] = lambda captured: None,  # noqa: ARG005 - optional
    on_warning: Callable[[str], None] = lambda text: None,  # noqa: ARG005 - optional
) -> Captured:
    """Capture until everything is there (``once``) or until stopped.

    Args:
        options: What to capture, and where to.
        spark: The session to use.
        stop: An event that ends the capture after the current batch.
        on_progress: Called after each batch.
        on_warning: Called when the entity has another consumer.

    Raises:
        UsageError: Another capture runs with the same checkpoint on this machine.
    """
    checkpoint = local_directory(spark, options.checkpoint_location)
    with nullcontext() if checkpoint is None else _only_here(checkpoint):
        return _run(options, spark, stop or threading.Event(), on_progress, on_warning)


@contextmanager
def _only_here(checkpoint: Path) -> Iterator[None]:
    """Nobody else captures with this checkpoint meanwhile: Spark would notice only when one of both has failed. A kill lets go.

    Raises:
        UsageError: Somebody does.
    """
    checkpoint.mkdir(parents=True, exist_ok=True)
    with (checkpoint / LOCK).open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                f"another capture runs with the checkpoint {checkpoint}: wait until it has ended, or give another directory"
            ) from None
        yield


def _run(
    options: CaptureOptions,
    spark: SparkSession,
    stop: threading.Event,
    on_progress: Callable[[Captured], None],
    on_warning: Callable[[str], None],
) -> Captured:
    # The files keep each message whole.
    source = {"includeRaw": "true", **options.source}
    parse_source(source, is_stream=True)
    register(spark)
    directory = local_directory(spark, options.path)
    if directory is not None:
        remove_leftovers(directory)
    writer = _BatchWriter(options, directory, on_progress)
    stream = spark.readStream.format("servicebus").options(**source).load()
    trigger: dict[str, Any] = {"availableNow": True} if options.once else {"processingTime": options.trigger}
    query = (
        stream.writeStream.foreachBatch(writer.write)
        .option("checkpointLocation", options.checkpoint_location)
        .trigger(**trigger)
        .start()
    )
    try:
        _wait(query, stop, _Warnings(on_warning))
    finally:
        query.stop()
    # The query may have ended between its last commit and the next look at the entity.
    owed = settle(options.checkpoint_location, options.source)
    if owed and options.once:
        on_warning(f"{owed} messages are in the files and still in the entity: another consumer holds them")
    if not options.once or stop.is_set():
        return writer.captured
    return replace(writer.captured, deferred=_deferred(source))


def _deferred(source: dict[str, str]) -> int:
    entity = Entity(parse_source(source, is_stream=True))
    try:
        return entity.deferred()
    finally:
        entity.close()


def _wait(query: StreamingQuery, stop: threading.Event, warnings: _Warnings) -> None:
    is_over = False
    while not is_over and not stop.is_set():
        is_over = bool(query.awaitTermination(1))
        warnings.look(query.lastProgress)


class _Warnings:
    """Warns once when the source finds another consumer of its entity."""

    def __init__(self, warn: Callable[[str], None]) -> None:
        self._warn = warn
        self._taken = 0
        self._was_owed = False

    def look(self, progress: Any) -> None:
        """Read a query's progress, in which the source reports other consumers."""
        if progress is None:
            return
        for source in json.loads(progress.json)["sources"]:
            report = source.get("latestOffset")
            report = json.loads(report) if isinstance(report, str) else report
            if not report:
                continue
            if report["taken"] > self._taken:
                self._taken = report["taken"]
                self._warn(
                    f"another consumer took {self._taken} messages of {report['entity']}: they may be missing in the files"
                )
            if report["owed"] and not self._was_owed:
                self._warn(
                    f"another consumer holds messages of {report['entity']} that are in the files already"
                )
            self._was_owed = report["owed"] > 0


class _BatchWriter:
    def __init__(
        self, options: CaptureOptions, directory: Path | None, on_progress: Callable[[Captured], None]
    ) -> None:
        self._options = options
        self._directory = directory
        self._on_progress = on_progress
        self.captured = Captured(0, 0, options.path)

    def write(self, rows: DataFrame, number: int) -> None:
        """Write one batch into directories of its own; again, if it is replayed."""
        from pyspark.sql import Observation, functions

        query = rows.sparkSession.sparkContext.getLocalProperty(QUERY_ID)
        if not query:
            raise UsageError(
                "this Spark does not tell a batch which query it belongs to: use Spark 4.2 or newer"
            )
        seen = Observation()
        batch = (
            rows.observe(seen, functions.count(functions.lit(1)).alias("messages"))
            .withColumn("date", functions.expr(_DATE))
            .withColumn("hour", functions.expr(_HOUR))
            .withColumn("batch", functions.lit(f"{query}-{number:09d}"))
            .write.mode("overwrite")
            .option("partitionOverwriteMode", "dynamic")
            .partitionBy(*PARTITIONS)
        )
        # A compaction may be at work in the same directory.
        with nullcontext() if self._directory is None else exclusive(self._directory):
            batch.parquet(self._options.path)
        messages = int(seen.get["messages"])
        # A batch without messages only reports what could not be settled.
        self.captured = Captured(
            self.captured.messages + messages, self.captured.batches + bool(messages), self._options.path
        )
        self._on_progress(self.captured)


def settle(checkpoint: str, source: dict[str, str]) -> int:
    """Settle what the last committed batch of an ended query left in its entity. Returns how many messages could not be settled.

    A running query does this by itself each time it looks for more.

    Raises:
        CheckpointMismatch: The checkpoint belongs to another entity; nothing was completed. With ``failOnDataLoss=false``
            that is no error.
    """
    options = parse_source(source, is_stream=True)
    if options.mode != "consume":
        return 0
    value = _last_committed(checkpoint)
    if value is None:
        return 0
    offset = Offset.parse(value, options.entity)
    entity = Entity(options)
    try:
        identity.check(offset, entity, options.access.host(), identity.created_ms(options))
        done = entity.settle(offset.marked(), offset.last_ms)
        if done.foreign:
            raise CheckpointMismatch(
                offset.entity, f"its message {done.foreign[0]} is not the one that the last batch read"
            )
        return size_of(done.owed)
    except CheckpointMismatch:
        if options.is_loss_fatal:
            raise
        return 0
    finally:
        entity.close()


def _last_committed(checkpoint: str) -> dict[str, Any] | None:
    """The offset of the last batch whose commit is in the checkpoint."""
    from pyarrow.fs import FileSelector

    system, path = filesystem_of(checkpoint)
    found = system.get_file_info(FileSelector(f"{path}/commits", allow_not_found=True))
    numbers = [int(file.base_name) for file in found if file.base_name.isdecimal()]
    if not numbers:
        return None
    with system.open_input_stream(f"{path}/offsets/{max(numbers)}") as file:
        lines = bytes(file.read()).decode().splitlines()
    # A version, Spark's own settings, then one line per source: ours is the only one.
    value = json.loads(lines[2])
    return value if isinstance(value, dict) else None
