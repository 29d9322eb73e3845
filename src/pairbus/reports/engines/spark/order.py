"""Delay and order of reconciled messages, without one task that must see a whole destination."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as f

from pairbus.reports.certificate.value import BOUNDS_MS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

MINUTE_MS: Final = 60_000
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
        (f.col("arrived") > 0) & f.col("accepted_ms").isNotNull() & position.isNotNull()
    ).select(
        "destination",
        "accepted_ms",
        "is_detoured",
        position.alias("position"),
        f.floor(position / width).alias("slice"),
    )
    latest = arrived.groupBy("destination", "slice").agg(f.max("accepted_ms").alias("latest"))
    before = Window.partitionBy("destination").orderBy("slice").rowsBetween(Window.unboundedPreceding, -1)
    heads = latest.select("destination", "slice", f.max("latest").over(before).alias("before"))
    # Positions that are equal are side by side and not in an order: only smaller ones come before.
    inside = (
        Window.partitionBy("destination", "slice")
        .orderBy("position")
        .rangeBetween(Window.unboundedPreceding, -1)
    )
    overtaken = f.greatest(f.col("before"), f.max("accepted_ms").over(inside)) - f.col("accepted_ms")
    lagging = (
        arrived.join(heads, ["destination", "slice"]).withColumn("lag", overtaken).where(f.col("lag") > 0)
    )
    return lagging.groupBy(bucket(f.col("lag")).alias("bucket"), "is_detoured").count()
