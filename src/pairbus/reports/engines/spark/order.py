"""Delay and order of reconciled messages, without one task that must see a whole destination."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as f

from pairbus.reports.certificate.value import BOUNDS_MS, MINUTE_MS, NAMED_MAX, OvertakenSession, SessionOrder
from pairbus.reports.engines.spark.files import mapped
from pairbus.reports.engines.spark.tasks import SESSIONS, first_sessions

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

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
    """Messages that arrived after one of their destination that was accepted later, by how much later: ``bucket``, ``is_detoured``, ``count``."""
    lagging = _lagging(known, ("destination",))
    return lagging.groupBy(bucket(f.col("lag")).alias("bucket"), "is_detoured").count()


def session_order(known: DataFrame) -> SessionOrder:
    """The same inside of sessions."""
    sessions = (
        _lagging(known.where(f.col("session").isNotNull()), ("destination", "session"))
        .groupBy("destination", "session")
        .agg(f.count(f.lit(1)).alias("messages"), f.max("lag").alias("latest"))
    )
    rows = mapped(sessions, first_sessions, SESSIONS).collect()
    named = [
        OvertakenSession(row["destination"], row["session"], row["messages"], row["latest"])
        for row in rows
        if row["session"] is not None
    ]
    named.sort(key=lambda one: (-one.messages, one.destination, one.session))
    return SessionOrder(sum(row["sessions"] for row in rows), tuple(named[:NAMED_MAX]))


def _lagging(known: DataFrame, by: Sequence[str]) -> DataFrame:
    """Each message that was overtaken by another with the same ``by``: those columns, ``is_detoured``, and by how much (``lag``).

    Positions are cut into slices; a slice needs of all slices before it only their latest time of acceptance.
    """
    by_number = f.col("stored_sequence").isNotNull()
    position = f.coalesce("stored_sequence", "arrived_ms")
    width = f.when(by_number, f.lit(SLICE_NUMBERS)).otherwise(f.lit(SLICE_MS))
    arrived = known.where(
        (f.col("arrived") > 0) & f.col("accepted_ms").isNotNull() & position.isNotNull()
    ).select(
        *by,
        "accepted_ms",
        "is_detoured",
        position.alias("position"),
        f.floor(position / width).alias("slice"),
    )
    latest = arrived.groupBy(*by, "slice").agg(f.max("accepted_ms").alias("latest"))
    before = Window.partitionBy(*by).orderBy("slice").rowsBetween(Window.unboundedPreceding, -1)
    heads = latest.select(*by, "slice", f.max("latest").over(before).alias("before"))
    # Positions that are equal are side by side and not in an order: only smaller ones come before.
    inside = Window.partitionBy(*by, "slice").orderBy("position").rangeBetween(Window.unboundedPreceding, -1)
    overtaken = f.greatest(f.col("before"), f.max("accepted_ms").over(inside)) - f.col("accepted_ms")
    return arrived.join(heads, [*by, "slice"]).withColumn("lag", overtaken).where(f.col("lag") > 0)
