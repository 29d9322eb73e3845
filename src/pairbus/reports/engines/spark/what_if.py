"""What a usage log tells of outages, for ``cost.what_if`` to reckon with.

The log counts by minute: where a setting cuts through a minute, its messages are taken as evenly spread.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as f

from pairbus.errors import UsageError
from pairbus.reports.bill.model import BACKLOG, EMPTY_RECEIVE, MINUTE_MS, PING, PRIMARY, SEND
from pairbus.reports.bill.what_if import Away, Detour, Recorded, RecordedMonth

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row

DAY_MS: Final = 24 * 60 * MINUTE_MS
MONTHS_MAX: Final = 400
OUTAGES_MAX: Final = 10_000
OUTAGE_GAP_MS: Final = 15 * MINUTE_MS
"""Sends to the backlog further apart belong to different outages."""


def recorded_usage(counted: DataFrame, unbilled: Sequence[str], early_ms: int) -> Recorded:
    """What was recorded of the pairing. ``early_ms``: how far into each outage to look apart."""
    operation, stage = f.col("operation"), f.col("stage")
    idle = (operation == EMPTY_RECEIVE) & (stage == BACKLOG)
    queue = f.when(
        stage == BACKLOG, f.concat_ws("\n", "namespace", f.regexp_replace("entity", r"/\$.*$", ""))
    )
    billed = f.sum(f.when(operation.isin(*unbilled), 0).otherwise(f.col("units"))).alias("operations")
    row = counted.agg(
        f.sum(f.when(idle, f.col("units"))).alias("idle"),
        f.sum(f.when(operation == PING, f.col("units"))).alias("pings"),
        f.countDistinct(queue).alias("queues"),
    ).collect()[0]
    # By the days of UTC: the session's time zone has no say in it.
    month = f.date_format(f.expr(f"date_from_unix_date(CAST(ms div {DAY_MS} AS INT))"), "yyyy-MM")
    found = (
        counted.groupBy(month.alias("month"))
        .agg(billed, f.min("ms").alias("first"))
        .orderBy("month")
        .limit(MONTHS_MAX + 1)
        .collect()
    )
    if len(found) > MONTHS_MAX:
        raise UsageError(f"more than {MONTHS_MAX} months: narrow the time with --from and --to")
    months = tuple(
        RecordedMonth(month=str(one["month"]), operations=int(one["operations"]), first_ms=int(one["first"]))
        for one in found
    )
    return Recorded(
        operations=sum(one.operations for one in months),
        idle_receives=int(row["idle"] or 0),
        pings=int(row["pings"] or 0),
        queues=int(row["queues"]),
        months=months,
        detours=_detours(counted, early_ms),
    )


def _detours(counted: DataFrame, early_ms: int) -> tuple[Detour, ...]:
    minutes = (
        counted.where((f.col("operation") == SEND) & (f.col("stage") == BACKLOG) & (f.col("count") > 0))
        .groupBy(f.col("ms").alias("at"))
        .agg(f.sum("count").alias("count"), f.sum("units").alias("units"))
    )
    # One task sorts all minutes with detours: at most as many as there are minutes.
    order = Window.orderBy("at")
    is_new = (f.col("at") - f.lag("at", 1).over(order)) > OUTAGE_GAP_MS
    numbered = minutes.withColumn("is_new", f.coalesce(is_new, f.lit(True)).cast("int"))
    grouped = numbered.withColumn("outage", f.sum("is_new").over(order))
    start = f.min("at").over(Window.partitionBy("outage"))
    overlap = _overlap(f.col("at"), f.col("start"), f.col("start") + early_ms)
    rows = (
        grouped.withColumn("start", start)
        .groupBy("outage")
        .agg(
            f.min("at").alias("first"),
            f.max("at").alias("last"),
            f.sum("count").alias("messages"),
            f.sum("units").alias("units"),
            f.sum(f.col("count") * overlap).alias("early"),
            f.sum(f.col("units") * overlap).alias("early_units"),
        )
        .orderBy("first")
        .limit(OUTAGES_MAX + 1)
        .collect()
    )
    if len(rows) > OUTAGES_MAX:
        raise UsageError(f"more than {OUTAGES_MAX:,} outages: narrow the time with --from and --to")
    return tuple(_detour(row) for row in rows)


def _detour(row: Row) -> Detour:
    return Detour(
        start_ms=int(row["first"]),
        end_ms=int(row["last"]) + MINUTE_MS,
        messages=int(row["messages"]),
        units=int(row["units"]),
        early_messages=int(row["early"]) // MINUTE_MS,
        early_units=int(row["early_units"]) // MINUTE_MS,
    )


def supposed_outage(counted: DataFrame, start: datetime, end: datetime, failover_interval_ms: int) -> Away:
    """What was sent to the primary in a time in which it is supposed to be away."""
    first, last = int(start.timestamp()) * 1000, int(end.timestamp()) * 1000
    failover = min(last, first + failover_interval_ms)
    at = f.col("ms")
    refused, detoured = (
        _overlap(at, f.lit(first), f.lit(failover)),
        _overlap(at, f.lit(failover), f.lit(last)),
    )
    sends = counted.where((f.col("operation") == SEND) & (f.col("stage") == PRIMARY))
    row = (
        sends.where((at >= first - MINUTE_MS) & (at < last))
        .agg(
            f.sum(f.col("count") * refused).alias("refused"),
            f.sum(f.col("units") * refused).alias("refused_units"),
            f.sum(f.col("count") * detoured).alias("messages"),
            f.sum(f.col("units") * detoured).alias("units"),
            f.countDistinct("namespace", "entity").alias("entities"),
        )
        .collect()[0]
    )
    return Away(
        start_ms=first,
        end_ms=last,
        entities=int(row["entities"]),
        refused_messages=int(row["refused"] or 0) // MINUTE_MS,
        refused_units=int(row["refused_units"] or 0) // MINUTE_MS,
        messages=int(row["messages"] or 0) // MINUTE_MS,
        units=int(row["units"] or 0) // MINUTE_MS,
    )


def _overlap(minute: Column, start: Column, end: Column) -> Column:
    """Milliseconds of a minute that lie between two instants."""
    upto = f.least(minute + MINUTE_MS, end)
    return f.greatest(f.lit(0).cast("long"), upto - f.greatest(minute, start))
