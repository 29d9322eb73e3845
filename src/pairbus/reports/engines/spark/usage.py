"""Usage logs as Spark rows: each counted once (D8); each that cannot be true is quarantined with its raw form and the reason (D5)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f
from pyspark.sql import types as t

from pairbus.reports.bill.model import CONNECTIONS, HOUR_MS, OPERATIONS, STAGES
from pairbus.reports.engines import usage_log as log
from pairbus.reports.engines.spark.files import JSON_OPTIONS, source_column, time_column
from pairbus.reports.engines.usage_log import COLUMNS, EVENT, NAMES, VALUES, UsageRange
from pairbus.reports.inputs import Inputs, spark_path

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_TYPES: Final = {
    "bucket": t.TimestampType(),
    **dict.fromkeys(NAMES, t.StringType()),
    **dict.fromkeys(VALUES, t.LongType()),
    "connection_peak": t.IntegerType(),
}
_SCHEMA: Final = t.StructType([t.StructField(name, kind) for name, kind in _TYPES.items()])
_LINE_SCHEMA: Final = t.StructType(
    [t.StructField(name, t.StringType() if name == "bucket" else kind) for name, kind in _TYPES.items()]
    + [t.StructField("part", t.StringType()), t.StructField("_raw", t.StringType())]
)

_HOUR_TEXT: Final = "substring_index(_metadata.file_path, '/hour=', -1)"
_FILE_HOUR: Final = f"unix_date(try_cast(left({_HOUR_TEXT}, 10) AS DATE)) * 24L + try_cast(substring({_HOUR_TEXT}, 12, 2) AS INT)"
"""The hour of a part by the name of its directory, counted from 1970; null where there is none."""

PART_HASH: Final = "xxhash64(part)"
MINUTE_BIT: Final = "shiftleft(1L, CAST(ms div 60000 % 60 AS INT))"
CROWDED: Final = "rows > bit_count(minutes)"
"""Of the rows of one part, hour, entity, stage and operation: some minute is there more than once. An hour has 60 minutes, so one number holds
a bit for each; two parts that share a hash can only raise a false alarm.
"""


@dataclass(frozen=True, slots=True)
class Usage:
    range: UsageRange
    judged: DataFrame
    """Every row: EVENT, VALUES, ``source``, ``raw``, and ``reason``: null, or why it cannot be true. ``ms`` is its minute, in milliseconds
    since 1970.
    """

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


def read_usage(spark: SparkSession, wanted: UsageRange) -> Usage:
    """The rows of a range of usage logs."""
    rows = _with_reason(_rows(spark, wanted.inputs), wanted)
    if wanted.start is not None:
        rows = rows.where(f.col("bucket").isNull() | (f.col("bucket") >= f.lit(wanted.start)))
    if wanted.end is not None:
        rows = rows.where(f.col("bucket").isNull() | (f.col("bucket") < f.lit(wanted.end)))
    return Usage(wanted, rows)


def has_repeats(usage: Usage) -> bool:
    """Whether some event may be there more than once."""
    groups = usage.judged.where(f.col("reason").isNull()).groupBy(
        f.expr(PART_HASH), f.expr(f"ms div {HOUR_MS}"), "namespace", "entity", "stage", "operation"
    )
    found = groups.agg(f.count(f.lit(1)).alias("rows"), f.bit_or(f.expr(MINUTE_BIT)).alias("minutes"))
    return bool(found.agg(f.max(f.expr(CROWDED))).collect()[0][0])


def _rows(spark: SparkSession, inputs: Inputs) -> DataFrame:
    found: list[DataFrame] = []
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
                    *COLUMNS,
                    f.lit(None).cast("string").alias("broken"),
                    source_column().alias("source"),
                    f.col("_metadata.file_path").alias("part"),
                    f.expr(hour).alias("file_hour"),
                )
            )
    if inputs.lines:
        rows = spark.read.schema(_LINE_SCHEMA).options(**JSON_OPTIONS).json([*map(spark_path, inputs.lines)])
        found.append(
            rows.select(
                time_column("bucket").alias("bucket"),
                *COLUMNS[1:],
                f.col("_raw").alias("broken"),
                source_column().alias("source"),
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


def _with_reason(rows: DataFrame, wanted: UsageRange) -> DataFrame:
    bucket, operation, stage = f.col("bucket"), f.col("operation"), f.col("stage")
    reasons: list[tuple[Column, str]] = [
        (f.col("broken").isNotNull(), log.NOT_JSON),
        (bucket.isNull(), log.NO_BUCKET),
        (bucket > f.lit(wanted.latest), log.IN_FUTURE),
        (bucket < f.lit(log.EARLIEST), log.TOO_EARLY),
        (f.col("namespace").isNull() | f.col("entity").isNull(), log.NO_NAME),
        (operation.isNull() | ~operation.isin(*OPERATIONS), log.BAD_OPERATION),
        (stage.isNull() | ~stage.isin(*STAGES), log.BAD_STAGE),
    ]
    for name in VALUES:
        bad = f.col(name).isNull() | (f.col(name) < 0) | (f.col(name) > log.COUNT_MAX)
        reasons.append((bad, log.BAD_VALUE.format(name)))
    reasons += [
        (f.col("units") < f.col("count"), log.FEW_UNITS),
        ((operation == CONNECTIONS) & (f.col("units") > 0), log.CONNECTIONS_BILLED),
        (f.expr(f"unix_millis(bucket) div {HOUR_MS}") != f.col("file_hour"), log.OTHER_HOUR),
    ]
    reason = f.when(*reasons[0])
    for condition, text in reasons[1:]:
        reason = reason.when(condition, text)
    raw = f.coalesce(f.col("broken"), f.to_json(f.struct(*COLUMNS)))
    return rows.withColumn("reason", reason).withColumn("raw", raw).withColumn("ms", f.unix_millis("bucket"))
