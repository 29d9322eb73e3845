"""The certificate on Spark: one outer join of all ledgers on (destination, message id, body hash).

The join is a union that is grouped by the key. Every task first adds up what it has of a key, so a key that a million rows share reaches
the shuffle as one row for each task: no key is hot (D4). Everything else is computed from the one row that a key leaves.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

from pyspark import StorageLevel
from pyspark.sql import functions as f

from pairbus.spark.reconcile_certificate import FATES, Certificate, Named, Outage, RowCounts, histogram_of
from pairbus.spark.reconcile_order import OUTAGES_MAX, delays, outages, reordered
from pairbus.spark.reconcile_rows import KEY, MEASURES, RECEIVED, ROLES, Ledgers

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row

NAMED_MAX: Final = 20
"""Messages of each fate that a page or a screen names; the files name all."""
REASONS_SHOWN: Final = 50
FATE_COLUMNS: Final = ("arrived", *FATES, "absorbed", "repeated", "unexpected")


@dataclass(frozen=True, slots=True)
class Reconciled:
    """The certificate and the rows it rests on."""

    certificate: Certificate
    messages: DataFrame
    """One row for each message: KEY, ``accepted``, ``found``, FATE_COLUMNS, ``told_ms``, ``arrived_ms``, ``is_detoured``."""
    ledgers: Ledgers


def reconcile(ledgers: Ledgers, until: datetime | None = None, with_order: bool = True) -> Reconciled:
    """Judge every message. Sends at or after ``until`` that are nowhere yet are in flight, not lost."""
    grouped = _grouped(_topics_joined(ledgers.rows)).persist(StorageLevel.MEMORY_AND_DISK)
    messages = _fates(grouped, until)
    totals = _totals(messages).collect()[0]
    rows = _row_counts(totals)
    is_known = f.col("destination").isNotNull()
    known = messages.where(is_known)
    names = {
        fate: _named(known, fate) if int(totals[fate]) else () for fate in (*FATES, "repeated", "unexpected")
    }
    quarantined = sum(count.quarantined for count in rows.values())
    certificate = Certificate(
        accepted=int(totals["accepted"]),
        received=int(totals["found"]),
        messages=int(totals["messages"]),
        detoured=int(totals["detoured"]),
        fates={fate: int(totals[fate]) for fate in FATE_COLUMNS},
        altered=_altered(known) if int(totals["lost"]) and int(totals["unexpected"]) else 0,
        at_destination={
            name: int(totals[name]) for name in ("completed_there", "dead_there", "expired_there")
        },
        named=names,
        rows=rows,
        reasons=_reasons(ledgers.quarantined) if quarantined else {},
        delays=histogram_of(delays(known).collect()),
        reordered=histogram_of(reordered(known).collect()) if with_order else None,
        outages=_outages(known) if int(totals["detoured"]) else (),
        journals=tuple(journal for found in ledgers.inputs.values() for journal in found.journals),
        repeated_parts=sum(len(found.repeated) for found in ledgers.inputs.values()),
        is_cut_off=until is not None,
    )
    certificate.check()
    return Reconciled(certificate, known, ledgers)


def _topics_joined(rows: DataFrame) -> DataFrame:
    """Deliveries by several subscriptions are one arrival at the topic: of each message the subscription with the most counts."""
    is_topic = f.col("delivered_topic") > 0
    if not rows.where((f.col("role") == RECEIVED) & is_topic).limit(1).count():
        return rows.withColumn("row_count", f.lit(1).cast("long"))
    per_place = (
        rows.where(is_topic)
        .groupBy(*KEY, "role", "is_quarantined", "is_used", "place")
        .agg(
            f.min("ms").alias("ms"),
            f.min("sequence_number").alias("sequence_number"),
            f.count(f.lit(1)).alias("row_count"),
            *[f.sum(name).alias(name) for name in MEASURES],
        )
    )
    others = rows.where(~is_topic).withColumn("row_count", f.lit(1).cast("long"))
    return others.unionByName(per_place)


def _grouped(rows: DataFrame) -> DataFrame:
    """One row for each key."""
    aggregates: list[Column] = [
        (f.max if name == "delivered_topic" else f.sum)(name).alias(name) for name in MEASURES
    ]
    for name, measure in (
        ("backlog_ms", "sent_backlog"),
        ("direct_ms", "sent_direct"),
        ("stored_ms", "stored"),
    ):
        aggregates.append(f.min(f.when(f.col(measure) > 0, f.col("ms"))).alias(name))
    is_delivered = (f.col("delivered") > 0) | (f.col("delivered_topic") > 0)
    aggregates += [
        f.min(f.when(is_delivered, f.col("ms"))).alias("delivered_ms"),
        f.min(f.when(f.col("stored") > 0, f.col("sequence_number"))).alias("stored_sequence"),
    ]
    for role in ROLES:
        of_role = f.col("role") == role
        used, bad = f.col("is_used"), f.col("is_quarantined")
        aggregates += [
            _rows_where(of_role & used).alias(f"{role} used"),
            _rows_where(of_role & ~used & ~bad).alias(f"{role} other"),
            _rows_where(of_role & bad).alias(f"{role} quarantined"),
        ]
    return rows.groupBy(*KEY).agg(*aggregates)


def _rows_where(condition: Column) -> Column:
    return f.sum(f.when(condition, f.col("row_count")).otherwise(0))


def _fates(grouped: DataFrame, until: datetime | None) -> DataFrame:
    """What became of every accepted send. A message parked in the backlog was told to its sender there: what the primary then accepted of it
    was the syphon's send, or the send whose answer never came.
    """
    zero = f.lit(0).cast("long")
    held = {name: f.greatest(f.col(name), zero) for name in ("backlog", "aside", "dead", "expired")}
    delivered = f.col("delivered") + f.col("delivered_topic")
    told = f.coalesce("backlog_ms", "direct_ms")
    frame = (
        grouped.withColumn("is_detoured", f.col("sent_backlog") > 0)
        .withColumn(
            "accepted",
            f.when(f.col("sent_backlog") > 0, f.col("sent_backlog")).otherwise(f.col("sent_direct")),
        )
        .withColumn("found", f.when(f.col("stored") > 0, f.col("stored")).otherwise(delivered))
        .withColumn("told_ms", told)
        .withColumn("arrived_ms", f.coalesce("stored_ms", "delivered_ms"))
        .withColumn("arrived", f.least("accepted", "found"))
        .withColumn("rest", f.col("accepted") - f.col("arrived"))
    )
    for fate, name in (
        ("set_aside", "aside"),
        ("dead_lettered", "dead"),
        ("expired", "expired"),
        ("in_backlog", "backlog"),
    ):
        frame = frame.withColumn(f"fate_{fate}", f.least(f.col("rest"), held[name])).withColumn(
            "rest", f.col("rest") - f.col(f"fate_{fate}")
        )
    somewhere = (f.col("found") + held["backlog"] + held["aside"] + held["dead"] + held["expired"]) > 0
    # The same id and body accepted again and there once is one message, told of twice.
    is_absorbed = somewhere & (f.col("message_id") != "")
    late = f.lit(False) if until is None else f.col("told_ms") >= int(until.timestamp() * 1000)
    return frame.select(
        *KEY,
        "accepted",
        "found",
        "arrived",
        *[
            f.col(f"fate_{fate}").alias(fate)
            for fate in ("set_aside", "dead_lettered", "expired", "in_backlog")
        ],
        f.when(is_absorbed | ~late, zero).otherwise(f.col("rest")).alias("in_flight"),
        f.when(is_absorbed | late, zero).otherwise(f.col("rest")).alias("lost"),
        f.when(is_absorbed, f.col("rest")).otherwise(zero).alias("absorbed"),
        f.when(f.col("accepted") > 0, f.col("found") - f.col("arrived")).otherwise(zero).alias("repeated"),
        f.when(f.col("accepted") > 0, zero).otherwise(f.col("found")).alias("unexpected"),
        f.least(f.col("arrived"), delivered).alias("completed_there"),
        f.least("arrived", "dead_there").alias("dead_there"),
        f.least("arrived", "expired_there").alias("expired_there"),
        "told_ms",
        "arrived_ms",
        "stored_sequence",
        "is_detoured",
        *[f.col(f"{role} {what}") for role in ROLES for what in ("used", "other", "quarantined")],
    )


def _totals(messages: DataFrame) -> DataFrame:
    names = (
        "accepted", "found", *FATE_COLUMNS, "completed_there", "dead_there", "expired_there",
        *[f"{role} {what}" for role in ROLES for what in ("used", "other", "quarantined")],
    )  # fmt: skip
    return messages.agg(
        *[f.coalesce(f.sum(f"`{name}`"), f.lit(0)).alias(name) for name in names],
        f.count_if((f.col("accepted") > 0) & f.col("destination").isNotNull()).alias("messages"),
        f.count_if(f.col("is_detoured")).alias("detoured"),
    )


def _row_counts(totals: Row) -> dict[str, RowCounts]:
    return {
        role: RowCounts(
            int(totals[f"{role} used"]), int(totals[f"{role} other"]), int(totals[f"{role} quarantined"])
        )
        for role in ROLES
    }


def _named(known: DataFrame, fate: str) -> tuple[Named, ...]:
    rows = known.where(f.col(fate) > 0).orderBy(*KEY).limit(NAMED_MAX).collect()
    return tuple(
        Named(
            str(row["destination"]),
            str(row["message_id"]),
            "" if row["body"] is None else bytes(row["body"]).hex(),
            int(row[fate]),
            None if row["told_ms"] is None else int(row["told_ms"]),
        )
        for row in rows
    )


def _altered(known: DataFrame) -> int:
    """Lost messages whose id came to their destination with another body."""
    key = ("destination", "message_id")
    missing = known.where((f.col("lost") > 0) & (f.col("message_id") != "")).select(*key).distinct()
    strange = known.where(f.col("unexpected") > 0).select(*key).distinct()
    return missing.join(strange, [*key]).count()


def _outages(known: DataFrame) -> tuple[Outage, ...]:
    rows: list[Any] = outages(known).limit(OUTAGES_MAX).collect()
    return tuple(
        Outage(
            int(row["first"]),
            int(row["last"]),
            int(row["messages"]),
            {fate: int(row[fate]) for fate in ("arrived", *FATES)},
            None if row["slowest"] is None else int(row["slowest"]),
        )
        for row in rows
    )


def _reasons(quarantined: DataFrame) -> dict[str, int]:
    rows = (
        quarantined.groupBy("role", "reason").count().orderBy("role", "reason").limit(REASONS_SHOWN).collect()
    )
    return {f"{row['role']}: {row['reason']}": int(row["count"]) for row in rows}


def write_messages(reconciled: Reconciled, directory: str) -> None:
    """``DIR/messages``: every message that is not simply where it should be, with its fate; ``DIR/quarantine``: what was set apart.
    Written anew, as Parquet.
    """
    fates = (*FATES, "repeated", "unexpected")
    is_any = reduce(lambda one, other: one | other, [f.col(fate) > 0 for fate in fates])
    each = f.explode(
        f.array(*[f.struct(f.lit(fate).alias("fate"), f.col(fate).alias("copies")) for fate in fates])
    )
    rows = (
        reconciled.messages.where(is_any)
        .withColumn("each", each)
        .where(f.col("each.copies") > 0)
        .select(
            "each.fate",
            "destination",
            "message_id",
            f.lower(f.hex("body")).alias("sha256"),
            "each.copies",
            f.timestamp_millis("told_ms").alias("accepted_time"),
            f.timestamp_millis("arrived_ms").alias("arrived_time"),
            f.col("is_detoured").alias("through_backlog"),
        )
    )
    rows.write.mode("overwrite").parquet(f"{directory}/messages")
    if any(count.quarantined for count in reconciled.certificate.rows.values()):
        reconciled.ledgers.quarantined.write.mode("overwrite").parquet(f"{directory}/quarantine")
