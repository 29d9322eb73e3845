"""The recorded figures that ``bill.what_if`` needs, from usage logs on Spark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f

from pairbus.errors import UsageError
from pairbus.reports.bill.model import BACKLOG, DAY_MS, EMPTY_RECEIVE, MINUTE_MS, PING, PRIMARY, SEND
from pairbus.reports.bill.what_if import (
    MINUTES_MAX,
    Away,
    Minute,
    Recorded,
    RecordedMonth,
    away_of,
    detours_of,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MONTHS_MAX: Final = 400


def recorded_usage(counted: DataFrame, unbilled: Sequence[str], early_ms: int) -> Recorded:
    """What was recorded about the pairing. ``early_ms``: how far into each outage to count separately."""
    operation, stage = f.col("operation"), f.col("stage")
    idle = (operation == EMPTY_RECEIVE) & (stage == BACKLOG)
    queue = f.when(
        (stage == BACKLOG) & (f.col("entity") != ""),
        f.concat_ws("\n", "namespace", f.regexp_replace("entity", r"/\$.*$", "")),
    )
    billed = f.sum(f.when(operation.isin(*unbilled), 0).otherwise(f.col("units"))).alias("operations")
    row = counted.agg(
        f.sum(f.when(idle, f.col("units"))).alias("idle"),
        f.sum(f.when(operation == PING, f.col("units"))).alias("pings"),
        f.countDistinct(queue).alias("queues"),
    ).collect()[0]
    # By the days of UTC, whatever the session's time zone is.
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
        RecordedMonth(month=one["month"], operations=one["operations"], first_ms=one["first"])
        for one in found
    )
    return Recorded(
        operations=sum(one.operations for one in months),
        idle_receives=int(row["idle"] or 0),
        pings=int(row["pings"] or 0),
        queues=int(row["queues"]),
        months=months,
        detours=detours_of(_minutes(counted.where(_is_send(BACKLOG) + " AND count > 0")), early_ms),
    )


def supposed_outage(counted: DataFrame, start_ms: int, end_ms: int, failover_interval_ms: int) -> Away:
    """What was sent to the primary in a time in which it is supposed to be away."""
    sends = counted.where(f"{_is_send(PRIMARY)} AND ms >= {start_ms - MINUTE_MS} AND ms < {end_ms}")
    entities = sends.select("namespace", "entity").distinct().count()
    return away_of(_minutes(sends), entities, start_ms, end_ms, failover_interval_ms)


def _is_send(stage: str) -> str:
    return f"operation = '{SEND}' AND stage = '{stage}'"


def _minutes(sends: DataFrame) -> list[Minute]:
    grouped = sends.groupBy("ms").agg(f.sum("count").alias("count"), f.sum("units").alias("units"))
    return [Minute(row["ms"], row["count"], row["units"]) for row in grouped.limit(MINUTES_MAX + 1).collect()]
