"""Rows that must be seen together with others before they count: listings that repeat a message, and messages without an id."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from pairbus.reports.engines.audit_log import BACKLOG, DEAD_LETTER, KEY, LISTED, OUTSIDE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def listed_once(rows: DataFrame, measures: Sequence[str]) -> DataFrame:
    """Rows with ``row_count``: of a listing, those with the same place and sequence number are one row.

    Spark leaves the other inputs out of the second branch, because their role is a constant.
    """
    counted = rows.withColumn("row_count", f.lit(1).cast("long"))
    says = [f"{name} > 0" for name in LISTED if name in measures]
    if not says:
        return counted
    is_listed = (
        f"role IN ('{BACKLOG}', '{DEAD_LETTER}') AND coalesce(sequence_number, 0) > 0 AND status IS NULL "
        f"AND ({' OR '.join(says)})"
    )
    once = (
        rows.where(is_listed)
        .groupBy(*KEY, "role", "status", "place", "sequence_number")
        .agg(
            f.min("ms").alias("ms"),
            f.max("session").alias("session"),
            f.count(f.lit(1)).alias("row_count"),
            *[f.max(name).alias(name) for name in measures],
        )
    )
    return counted.where(f"NOT ({is_listed})").unionByName(once)


def outside_counted(rows: DataFrame, measures: tuple[str, ...]) -> tuple[DataFrame, tuple[str, ...]]:
    """Of messages without an id the sends and arrivals at their destination that the drain cannot have made: before the first was parked, or
    after the last was drained. Rows and measures stay as they are if no such message was parked.
    """
    has_backlog = "drained" in measures
    parked = "sent_backlog > 0" + (" OR entered > 0 OR drained > 0" if has_backlog else "")
    entered, drained = ("entered", "drained") if has_backlog else ("0", "0")
    bounds = (
        rows.where(f"status IS NULL AND message_id = '' AND ({parked})")
        .groupBy("destination", "body")
        .agg(
            f.expr("min(CASE WHEN sent_backlog > 0 THEN ms END) AS first_ms"),
            f.expr(f"max(CASE WHEN {drained} > 0 THEN ms END) AS drained_at"),
            f.expr(f"sum({entered}) < sum(sent_backlog) AS is_partly_known"),
        )
        .where("first_ms IS NOT NULL")
        .selectExpr(
            "destination AS of_destination",
            "body AS of_body",
            "first_ms",
            "CASE WHEN NOT is_partly_known THEN coalesce(drained_at, first_ms - 1) END AS last_ms",
        )
    )
    if bounds.isEmpty():  # nearly always so: senders give ids
        return rows, measures
    added = {name: of for name, of in OUTSIDE.items() if of in measures}
    counted = " OR ".join(f"{of} > 0" for of in added.values())
    is_nameless = f"coalesce(status IS NULL AND message_id = '' AND ({counted}), false)"
    is_of_it = (f.col("destination") == f.col("of_destination")) & f.col("body").eqNullSafe(f.col("of_body"))
    is_outside = "coalesce(ms < first_ms, false) OR coalesce(ms > last_ms, false)"
    nameless = (
        rows.where(is_nameless)
        .join(bounds, is_of_it, "left")
        .selectExpr(
            *rows.columns,
            *[f"CASE WHEN {is_outside} THEN {of} ELSE 0 END AS {name}" for name, of in added.items()],
        )
    )
    others = rows.where(f"NOT {is_nameless}").selectExpr("*", *[f"0 AS {name}" for name in added])
    return others.unionByName(nameless), (*measures, *added)
