"""Usage logs as rows: each counted once (D8), each that cannot be true set apart with its raw form and the reason (D5)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f
from pyspark.sql import types as t

from pairbus.cost.model import CONNECTIONS, OPERATIONS, STAGES
from pairbus.spark.report_inputs import Inputs, Wanted, find_inputs

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
COUNT_MAX: Final = 10**15
"""More in a minute is no count."""


_HOUR_TEXT: Final = "substring_index(_metadata.file_path, '/hour=', -1)"
_FILE_HOUR: Final = f"unix_date(try_cast(left({_HOUR_TEXT}, 10) AS DATE)) * 24L + try_cast(substring({_HOUR_TEXT}, 12, 2) AS INT)"
"""The hour of a part by the name of its directory, counted from 1970; null where there is none."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Rows of usage logs."""

    inputs: Inputs
    counted: DataFrame
    """Each event once: EVENT, ``count``, ``bytes``, ``units``, ``connection_peak``, and ``copies``, how often it was found. ``ms`` is its
    minute, in milliseconds since 1970.
    """
    quarantined: DataFrame
    """``source``, ``reason``, ``raw``."""
    start: datetime | None = None
    end: datetime | None = None


def read_usage(
    spark: SparkSession, locations: Sequence[str], start: datetime | None = None, end: datetime | None = None
) -> Usage:
    """Read logs. ``start`` belongs to the time that is looked at, ``end`` does not."""
    inputs = find_inputs(spark, locations, USAGE)
    rows = _with_reason(_rows(spark, inputs))
    if start is not None:
        rows = rows.where(f.col("bucket").isNull() | (f.col("bucket") >= f.lit(start)))
    if end is not None:
        rows = rows.where(f.col("bucket").isNull() | (f.col("bucket") < f.lit(end)))
    # Copies that differ are of different age; counts only grow, so the largest is the newest.
    newest = [f.max(name).alias(name) for name in ("count", "bytes", "units", "connection_peak")]
    counted = (
        rows.where(f.col("reason").isNull()).groupBy(*EVENT).agg(*newest, f.count(f.lit(1)).alias("copies"))
    )
    quarantined = rows.where(f.col("reason").isNotNull()).select("source", "reason", "raw")
    return Usage(inputs, counted, quarantined, start, end)


def _rows(spark: SparkSession, inputs: Inputs) -> DataFrame:
    found: list[DataFrame] = []
    source = f.col("_metadata.file_path")
    if inputs.parquet:
        # Partitions are not inferred: several logs have several roots.
        files = spark.read.schema(_SCHEMA).option("recursiveFileLookup", "true").parquet(*inputs.parquet)
        found.append(
            files.select(
                *_NAMES,
                f.lit(None).cast("string").alias("broken"),
                source.alias("source"),
                source.alias("part"),
                f.expr(_FILE_HOUR).alias("file_hour"),
            )
        )
    if inputs.lines:
        files = (
            spark.read.schema(_LINE_SCHEMA)
            .option("mode", "PERMISSIVE")
            .option("columnNameOfCorruptRecord", "_raw")
            .option("recursiveFileLookup", "true")
            .json(inputs.lines)
        )
        bucket = f.when(
            f.col("bucket").rlike("^[0-9]{1,18}$"), f.expr("timestamp_millis(try_cast(bucket AS BIGINT))")
        )
        found.append(
            files.select(
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


def _with_reason(rows: DataFrame) -> DataFrame:
    ms = f.unix_millis("bucket")
    reasons: list[tuple[Column, str]] = [
        (f.col("broken").isNotNull(), "not a row of JSON with these columns"),
        (f.col("bucket").isNull(), "bucket is missing or no time"),
        (f.col("namespace").isNull() | f.col("entity").isNull(), "namespace or entity is missing"),
        (f.col("operation").isNull() | ~f.col("operation").isin(*OPERATIONS), "operation is not known"),
        (f.col("stage").isNull() | ~f.col("stage").isin(*STAGES), "stage is neither primary nor backlog"),
    ]
    for name in ("count", "bytes", "units", "connection_peak"):
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
