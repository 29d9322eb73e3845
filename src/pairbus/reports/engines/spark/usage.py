"""Usage logs as rows: each counted once (D8), each that cannot be true set apart with its raw form and the reason (D5)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import reduce
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f
from pyspark.sql import types as t

from pairbus.reports.bill.model import CONNECTIONS, OPERATIONS, STAGES
from pairbus.reports.inputs import Inputs, Wanted, find_inputs, spark_path
from pairbus.server.clock import BrokerClock, utc

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

INTEGER: Final = ("int", "uint")
USAGE: Final = Wanted(
    what="usage log",
    folder="usage",
    columns={
        "bucket": ("timestamp",),
        "namespace": ("string", "large_string", "dictionary"),
        "entity": ("string", "large_string", "dictionary"),
        "operation": ("string", "large_string", "dictionary"),
        "stage": ("string", "large_string", "dictionary"),
        "count": INTEGER,
        "bytes": INTEGER,
        "units": INTEGER,
        "connection_peak": INTEGER,
    },
    weight="count",
    hour_column="bucket",
    may_be_empty=False,
)
_COLUMNS: Final = (
    ("bucket", t.TimestampType()),
    ("namespace", t.StringType()),
    ("entity", t.StringType()),
    ("operation", t.StringType()),
    ("stage", t.StringType()),
    ("count", t.LongType()),
    ("bytes", t.LongType()),
    ("units", t.LongType()),
    ("connection_peak", t.IntegerType()),
)
_NAMES: Final = tuple(name for name, _ in _COLUMNS)
_SCHEMA: Final = t.StructType([t.StructField(name, kind) for name, kind in _COLUMNS])
_LINE_SCHEMA: Final = t.StructType(
    [t.StructField(name, t.StringType() if name == "bucket" else kind) for name, kind in _COLUMNS]
    + [t.StructField("part", t.StringType()), t.StructField("_raw", t.StringType())]
)
EVENT: Final = ("part", "ms", "namespace", "entity", "operation", "stage")
"""What makes an event one: a minute's row of one life's part of one hour. A part is known by the file that was chosen for it."""
HOUR_MS: Final = 3_600_000
EARLIEST: Final = datetime(2024, 1, 1, tzinfo=UTC)
"""No broker of this kind wrote a log before: a minute before this comes from a clock that was not set. Every month from the first
row on is billed, so such a row must not count as the first."""
AHEAD_MAX: Final = timedelta(days=2)
"""How far a broker's clock may be ahead of the one that the bill is made with."""
COUNT_MAX: Final = 10**15
"""More in a minute is no count."""


_HOUR_TEXT: Final = "substring_index(_metadata.file_path, '/hour=', -1)"
_FILE_HOUR: Final = f"unix_date(try_cast(left({_HOUR_TEXT}, 10) AS DATE)) * 24L + try_cast(substring({_HOUR_TEXT}, 12, 2) AS INT)"
"""The hour of a part by the name of its directory, counted from 1970; null where there is none."""


PART_HASH: Final = "xxhash64(part)"
MINUTE_BIT: Final = "shiftleft(1L, CAST(ms div 60000 % 60 AS INT))"
CROWDED: Final = "rows > bit_count(minutes)"
"""Of the rows of one part, hour, entity, stage and operation: some minute is there more than once. An hour has 60 minutes, so one number holds
a bit for each; two parts that share a hash can only raise a false alarm.
"""
VALUES: Final = ("count", "bytes", "units", "connection_peak")


@dataclass(frozen=True, slots=True)
class Usage:
    inputs: Inputs
    judged: DataFrame
    """Every row: EVENT, VALUES, ``source``, ``raw``, and ``reason``: null, or why it cannot be true. ``ms`` is its minute, in milliseconds
    since 1970.
    """
    start: datetime | None = None
    end: datetime | None = None

    @property
    def quarantined(self) -> DataFrame:
        """``source``, ``reason``, ``raw``."""
        return self.judged.where(f.col("reason").isNotNull()).select("source", "reason", "raw")

    def counted(self, has_repeats: bool) -> DataFrame:
        """Each event once: EVENT, VALUES, and ``copies``, how often it was found. Taking repeats out passes every row between tasks, so it is
        done where there are any and not otherwise.
        """
        true = self.judged.where(f.col("reason").isNull())
        if not has_repeats:
            return true.select(*EVENT, *VALUES, f.lit(1).cast("long").alias("copies"))
        # Copies that differ are of different age; counts only grow, so the largest is the newest.
        newest = [f.max(name).alias(name) for name in VALUES]
        return true.groupBy(*EVENT).agg(*newest, f.count(f.lit(1)).alias("copies"))


def read_usage(
    spark: SparkSession,
    locations: Sequence[str],
    start: datetime | None = None,
    end: datetime | None = None,
    inputs: Inputs | None = None,
    now: datetime | None = None,
) -> Usage:
    """Read logs. ``start`` belongs to the time that is looked at, ``end`` does not. ``inputs`` are those of the locations, if they were looked
    for already. Rows later than ``now`` (the machine's time unless given) cannot be true: one of them would be billed with
    every month up to its own.
    """
    inputs = inputs or find_inputs(spark, locations, USAGE)
    latest = (now or utc(BrokerClock()())) + AHEAD_MAX
    rows = _with_reason(_rows(spark, inputs), latest)
    if start is not None:
        rows = rows.where(f.col("bucket").isNull() | (f.col("bucket") >= f.lit(start)))
    if end is not None:
        rows = rows.where(f.col("bucket").isNull() | (f.col("bucket") < f.lit(end)))
    return Usage(inputs, rows, start, end)


def has_repeats(usage: Usage) -> bool:
    """Whether some event may be there more than once."""
    groups = usage.judged.where(f.col("reason").isNull()).groupBy(
        f.expr(PART_HASH), f.expr(f"ms div {HOUR_MS}"), "namespace", "entity", "stage", "operation"
    )
    found = groups.agg(f.count(f.lit(1)).alias("rows"), f.bit_or(f.expr(MINUTE_BIT)).alias("minutes"))
    return bool(found.agg(f.max(f.expr(CROWDED))).collect()[0][0])


def _rows(spark: SparkSession, inputs: Inputs) -> DataFrame:
    found: list[DataFrame] = []
    source = f.col("_metadata.file_path")
    unsure = set(inputs.unsure)
    for files, hour in (
        # The hour is parsed from the path of every row, so only where a file's own statistics leave it open.
        ([path for path in inputs.parquet if path not in unsure], "CAST(NULL AS BIGINT)"),
        (inputs.unsure, _FILE_HOUR),
    ):
        if files:
            # Partitions are not inferred: several logs have several roots.
            rows = (
                spark.read.schema(_SCHEMA)
                .option("recursiveFileLookup", "true")
                .parquet(*map(spark_path, files))
            )
            found.append(
                rows.select(
                    *_NAMES,
                    f.lit(None).cast("string").alias("broken"),
                    source.alias("source"),
                    source.alias("part"),
                    f.expr(hour).alias("file_hour"),
                )
            )
    if inputs.lines:
        rows = (
            spark.read.schema(_LINE_SCHEMA)
            .option("mode", "PERMISSIVE")
            .option("columnNameOfCorruptRecord", "_raw")
            .option("recursiveFileLookup", "true")
            .json([*map(spark_path, inputs.lines)])
        )
        bucket = f.when(
            f.col("bucket").rlike("^[0-9]{1,18}$"), f.expr("timestamp_millis(try_cast(bucket AS BIGINT))")
        )
        found.append(
            rows.select(
                bucket.otherwise(f.expr("try_cast(bucket AS TIMESTAMP)")).alias("bucket"),
                *_NAMES[1:],
                f.col("_raw").alias("broken"),
                source.alias("source"),
                f.coalesce("part", f.lit("")).alias("part"),
                f.lit(None).cast("long").alias("file_hour"),
            )
        )
    if not found:
        empty = t.StructType(
            [
                *_SCHEMA.fields,
                *(t.StructField(name, t.StringType()) for name in ("broken", "source", "part")),
                t.StructField("file_hour", t.LongType()),
            ]
        )
        return spark.createDataFrame([], empty)
    return reduce(lambda one, other: one.unionByName(other), found)


def _with_reason(rows: DataFrame, latest: datetime) -> DataFrame:
    ms = f.unix_millis("bucket")
    reasons: list[tuple[Column, str]] = [
        (f.col("broken").isNotNull(), "not a row of JSON with these columns"),
        (f.col("bucket").isNull(), "bucket is missing or no time"),
        (f.col("bucket") > f.lit(latest), "bucket lies in the future"),
        (f.col("bucket") < f.lit(EARLIEST), f"bucket lies before {EARLIEST:%Y}"),
        (f.col("namespace").isNull() | f.col("entity").isNull(), "namespace or entity is missing"),
        (f.col("operation").isNull() | ~f.col("operation").isin(*OPERATIONS), "operation is not known"),
        (f.col("stage").isNull() | ~f.col("stage").isin(*STAGES), "stage is neither primary nor backlog"),
    ]
    for name in VALUES:
        bad = f.col(name).isNull() | (f.col(name) < 0) | (f.col(name) > COUNT_MAX)
        reasons.append((bad, f"{name} is missing, negative or beyond all bounds"))
    reasons += [
        (f.col("units") < f.col("count"), "fewer units than operations"),
        ((f.col("operation") == CONNECTIONS) & (f.col("units") > 0), "a row of connections with operations"),
        (
            f.expr(f"unix_millis(bucket) div {HOUR_MS}") != f.col("file_hour"),
            "the minute is not in the hour of its part",
        ),
    ]
    reason = f.when(reasons[0][0], reasons[0][1])
    for condition, text in reasons[1:]:
        reason = reason.when(condition, text)
    raw = f.coalesce(f.col("broken"), f.to_json(f.struct(*_NAMES)))
    return rows.withColumn("reason", reason).withColumn("raw", raw).withColumn("ms", ms)
