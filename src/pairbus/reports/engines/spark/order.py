"""Delay, order and outages of reconciled messages, without one task that must see a whole destination."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as f

from pairbus.reports.certificate.value import BOUNDS_MS, FATES

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

MINUTE_MS: Final = 60_000
OUTAGE_GAP_MS: Final = 15 * MINUTE_MS
"""Parked messages further apart belong to different outages."""
OUTAGES_MAX: Final = 1_000
SLICE_NUMBERS: Final = 65_536
"""Sequence numbers that one window looks through."""
SLICE_MS: Final = MINUTE_MS
"""The same where only times are known."""


def bucket(milliseconds: Column) -> Column:
    """Which bar of a histogram: the first whose bound lies above."""
    chain = f.when(milliseconds < 0, -1)
    for at, bound in enumerate(BOUNDS_MS):
        chain = chain.when(milliseconds < bound, at)
    return chain.otherwise(len(BOUNDS_MS))


def reordered(known: DataFrame) -> DataFrame:
    """Messages that arrived after one that was accepted later, by how much later: ``bucket``, ``is_detoured``, ``count``.

    Positions are cut into slices; a slice needs of all slices before it only their latest time of acceptance.
    """
    by_number = f.col("stored_sequence").isNotNull()
    position = f.coalesce("stored_sequence", "arrived_ms")
    width = f.when(by_number, f.lit(SLICE_NUMBERS)).otherwise(f.lit(SLICE_MS))
    arrived = known.where(
        (f.col("arrived") > 0) & f.col("told_ms").isNotNull() & position.isNotNull()
    ).select(
        "destination",
        "told_ms",
        "is_detoured",
        position.alias("position"),
        f.floor(position / width).alias("slice"),
    )
    latest = arrived.groupBy("destination", "slice").agg(f.max("told_ms").alias("latest"))
    before = Window.partitionBy("destination").orderBy("slice").rowsBetween(Window.unboundedPreceding, -1)
    heads = latest.select("destination", "slice", f.max("latest").over(before).alias("before"))
    # Positions that are equal are side by side and not in an order: only smaller ones come before.
    inside = (
        Window.partitionBy("destination", "slice")
        .orderBy("position")
        .rangeBetween(Window.unboundedPreceding, -1)
    )
    overtaken = f.greatest(f.col("before"), f.max("told_ms").over(inside)) - f.col("told_ms")
    lagging = (
        arrived.join(heads, ["destination", "slice"]).withColumn("lag", overtaken).where(f.col("lag") > 0)
    )
    return lagging.groupBy(bucket(f.col("lag")).alias("bucket"), "is_detoured").count()


def outages(summary: DataFrame) -> DataFrame:
    """Runs of minutes in which messages were parked, and what became of those messages."""
    counted = ("accepted", "arrived", *FATES)
    minutes = (
        summary.where(f.col("minute").isNotNull())
        .groupBy("minute")
        .agg(
            f.min("first").alias("first"),
            f.max("last").alias("last"),
            f.max("slowest").alias("slowest"),
            *[f.sum(name).alias(name) for name in counted],
        )
    )
    # One task sorts the minutes: at most as many as there were, whatever the number of messages.
    order = Window.orderBy("minute")
    is_new = (f.col("minute") - f.lag("minute", 1).over(order)) > OUTAGE_GAP_MS // MINUTE_MS
    numbered = minutes.withColumn("is_new", f.coalesce(is_new, f.lit(True)).cast("int"))
    return (
        numbered.withColumn("outage", f.sum("is_new").over(order))
        .groupBy("outage")
        .agg(
            f.min("first").alias("first"),
            f.max("last").alias("last"),
            f.sum("accepted").alias("messages"),
            f.max("slowest").alias("slowest"),
            *[f.sum(name).alias(name) for name in counted[1:]],
        )
        .orderBy("first")
    )
