"""Usage logs as Spark rows: each counted once (D8); each that cannot be true is quarantined with its raw form and the reason (D5)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f

from pairbus.reports.bill.model import CONNECTIONS, DAY_MS, HOUR_MS, MINUTE_MS, OPERATIONS, STAGES
from pairbus.reports.columns import CALENDAR_MS, PLAIN, UNITS
from pairbus.reports.engines import usage_log as log
from pairbus.reports.engines.arrow.bill import LINE_TYPES
from pairbus.reports.engines.spark.files import NO_TEXT, SOURCE, VERIFY_PAGES, read_lines, source_column
from pairbus.reports.engines.usage_log import COLUMNS, EVENT, NAMES, VALUES, UsageRange
from pairbus.reports.inputs import spark_path

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_TEXTS: Final = ("broken", SOURCE, "part")
_NUMBERS: Final = ("ms", *VALUES, "file_hour")
_FIRST_MS, _LAST_MS = CALENDAR_MS
_DAY: Final = f"CAST(date_from_unix_date(CAST((ms - pmod(ms, {DAY_MS})) div {DAY_MS} AS INT)) AS STRING)"
_CLOCK: Final = (
    "format_string('T%02d:%02d:%02d.%03dZ', "
    f"pmod(ms, {DAY_MS}) div {HOUR_MS}, pmod(ms, {HOUR_MS}) div {MINUTE_MS}, pmod(ms, {MINUTE_MS}) div 1000, pmod(ms, 1000))"
)
# Of UTC, whatever the session's time zone is.
_RAW_BUCKET: Final = f"CASE WHEN ms BETWEEN {_FIRST_MS} AND {_LAST_MS} THEN concat({_DAY}, {_CLOCK}) ELSE CAST(ms AS STRING) END AS bucket"
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
    rows: DataFrame
    """As they are in the files: ``ms``, NAMES, VALUES, ``broken``, ``source``, ``part`` and ``file_hour``."""
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
    rows = _rows(spark, wanted)
    whole = [
        f.expr(f"CASE WHEN NOT is_valid_utf8({name}) THEN raise_error('{NO_TEXT}') ELSE {name} END AS {name}")
        for name in NAMES
    ]
    others = [name for name in rows.columns if name not in NAMES]
    return Usage(wanted, rows, _with_reason(rows.select(*whole, *others), wanted))


def has_repeats(usage: Usage) -> bool:
    """Whether some event may be there more than once."""
    groups = usage.judged.where(f.col("reason").isNull()).groupBy(
        f.expr(PART_HASH), f.expr(f"ms div {HOUR_MS}"), "namespace", "entity", "stage", "operation"
    )
    found = groups.agg(f.count(f.lit(1)).alias("rows"), f.bit_or(f.expr(MINUTE_BIT)).alias("minutes"))
    return bool(found.agg(f.max(f.expr(CROWDED))).collect()[0][0])


def _rows(spark: SparkSession, wanted: UsageRange) -> DataFrame:
    inputs, found = wanted.inputs, []
    files: dict[tuple[str, bool], list[str]] = {}
    for path in inputs.parquet:
        form = inputs.forms.get(path, PLAIN)
        files.setdefault((form.unit, path in inputs.unsure), []).append(path)
    for (unit, is_unsure), paths in files.items():
        # Partitions are not inferred: several logs have several roots.
        reader = spark.read.schema(_schema("bigint" if unit else "timestamp"))
        rows = (
            reader.option("recursiveFileLookup", "true")
            .option(VERIFY_PAGES, "true")
            .parquet(*map(spark_path, paths))
        )
        if not unit:
            # By the times as they are in the files, so that parts of these are passed over.
            rows = _inside(rows, "bucket", wanted.start, wanted.end)
        # The hour is parsed from the path of every row, so only where a file's own statistics leave it open.
        hour = _FILE_HOUR if is_unsure else "CAST(NULL AS BIGINT)"
        found.append(
            rows.select(
                f.expr(f"bucket div {UNITS[unit]}" if unit else "unix_micros(bucket) div 1000").alias("ms"),
                *NAMES,
                *VALUES,
                f.lit(None).cast("string").alias("broken"),
                source_column().alias(SOURCE),
                f.col("_metadata.file_path").alias("part"),
                f.expr(hour).alias("file_hour"),
            )
        )
    if inputs.lines:
        rows = read_lines(spark, inputs.lines, LINE_TYPES).withColumnRenamed("bucket", "ms")
        found.append(
            rows.withColumns(
                {
                    SOURCE: f.regexp_replace(SOURCE, "^file:/+", "file:///"),
                    "part": f.coalesce("part", f.lit("")),
                    "file_hour": f.lit(None).cast("bigint"),
                }
            )
        )
    if not found:
        types = {**dict.fromkeys((*NAMES, *_TEXTS), "string"), **dict.fromkeys(_NUMBERS, "bigint")}
        return spark.createDataFrame([], ", ".join(f"{name} {kind}" for name, kind in types.items()))
    rows = reduce(lambda one, other: one.unionByName(other), found)
    start_ms, end_ms = (
        None if moment is None else int(moment.timestamp() * 1000) for moment in (wanted.start, wanted.end)
    )
    return _inside(rows, "ms", start_ms, end_ms)


def _schema(bucket: str) -> str:
    types = {"bucket": bucket, **dict.fromkeys(NAMES, "string"), **dict.fromkeys(VALUES, "bigint")}
    return ", ".join(f"{name} {kind}" for name, kind in types.items())


def _inside(rows: DataFrame, column: str, start: object, end: object) -> DataFrame:
    """The rows from ``start`` on and before ``end``, where these are given, and those without a time."""
    if start is not None:
        rows = rows.where(f.col(column).isNull() | (f.col(column) >= f.lit(start)))
    if end is not None:
        rows = rows.where(f.col(column).isNull() | (f.col(column) < f.lit(end)))
    return rows


def _with_reason(rows: DataFrame, wanted: UsageRange) -> DataFrame:
    ms, operation, stage = f.col("ms"), f.col("operation"), f.col("stage")
    reasons: list[tuple[Column, str]] = [
        (f.col("broken").isNotNull(), log.NOT_JSON),
        (ms.isNull(), log.NO_BUCKET),
        (ms > int(wanted.latest.timestamp() * 1000), log.IN_FUTURE),
        (ms < int(log.EARLIEST.timestamp() * 1000), log.TOO_EARLY),
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
        (f.expr(f"ms div {HOUR_MS}") != f.col("file_hour"), log.OTHER_HOUR),
    ]
    reason = f.when(*reasons[0])
    for condition, text in reasons[1:]:
        reason = reason.when(condition, text)
    raw = f.coalesce(f.col("broken"), f.to_json(f.struct(f.expr(_RAW_BUCKET), *COLUMNS[1:])))
    return rows.withColumn("reason", reason).withColumn("raw", raw)
