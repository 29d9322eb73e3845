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
from pairbus.spark.reconcile_rows import KEY, MEASURES, ROLES, Ledgers

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

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
    grouped = _grouped(_topics_joined(ledgers)).persist(StorageLevel.MEMORY_AND_DISK)
    known = _fates(grouped.where("status IS NULL"), until)
    totals = _totals(known).collect()[0]
    rows = _row_counts(totals, grouped.where("status IS NOT NULL").select("role", "status", *_ROWS).collect())
    names = {
        fate: _named(known, fate) if int(totals[fate]) else () for fate in (*FATES, "repeated", "unexpected")
    }
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
        reasons=_reasons(ledgers.quarantined) if any(count.quarantined for count in rows.values()) else {},
        delays=histogram_of(delays(known).collect()),
        reordered=histogram_of(reordered(known).collect()) if with_order else None,
        outages=_outages(known) if int(totals["detoured"]) else (),
        journals=tuple(sorted({path for found in ledgers.inputs.values() for path in found.journals})),
        repeated_parts=sum(len(found.repeated) for found in ledgers.inputs.values()),
        is_cut_off=until is not None,
    )
    certificate.check()
    return Reconciled(certificate, known, ledgers)


def _topics_joined(ledgers: Ledgers) -> DataFrame:
    """Deliveries by several subscriptions are one arrival at the topic: of each message the subscription with the most counts."""
    rows = ledgers.rows
    if not ledgers.has_topics:
        return rows.withColumn("row_count", f.lit(1).cast("long"))
    per_place = (
        rows.where("delivered_topic > 0")
        .groupBy(*KEY, "role", "status", "place")
        .agg(
            f.min("ms").alias("ms"),
            f.min("sequence_number").alias("sequence_number"),
            f.count(f.lit(1)).alias("row_count"),
            *[f.sum(name).alias(name) for name in MEASURES],
        )
    )
    others = rows.where("delivered_topic = 0").withColumn("row_count", f.lit(1).cast("long"))
    return others.unionByName(per_place)


_ROWS: Final = tuple(f"rows_{at}" for at in range(len(ROLES)))
"""How many rows of each role a group has."""


def _grouped(rows: DataFrame) -> DataFrame:
    """One row for each key; and one for each role and status of rows without a key."""
    aggregates = [f"{'max' if name == 'delivered_topic' else 'sum'}({name}) AS {name}" for name in MEASURES]
    aggregates += [
        "min(CASE WHEN sent_backlog > 0 THEN ms END) AS backlog_ms",
        "min(CASE WHEN sent_direct > 0 THEN ms END) AS direct_ms",
        "min(CASE WHEN stored > 0 THEN ms END) AS stored_ms",
        "min(CASE WHEN delivered > 0 OR delivered_topic > 0 THEN ms END) AS delivered_ms",
        "min(CASE WHEN stored > 0 THEN sequence_number END) AS stored_sequence",
    ]
    aggregates += [
        f"sum(CASE WHEN role = '{role}' THEN row_count ELSE 0 END) AS {name}"
        for role, name in zip(ROLES, _ROWS, strict=True)
    ]
    unkeyed_role = f.when(f.col("status").isNotNull(), f.col("role")).alias("unkeyed_role")
    grouped = rows.groupBy(*KEY, "status", unkeyed_role).agg(*map(f.expr, aggregates))
    return grouped.withColumnRenamed("unkeyed_role", "role")


def _fates(grouped: DataFrame, until: datetime | None) -> DataFrame:
    """What became of every accepted send. A message parked in the backlog was told to its sender there: what the primary then accepted of it
    was the syphon's send, or the send whose answer never came.
    """
    late = "false" if until is None else f"told_ms >= {int(until.timestamp() * 1000)}L"
    counted = grouped.selectExpr(
        *KEY,
        "sent_backlog > 0 AS is_detoured",
        "CASE WHEN sent_backlog > 0 THEN sent_backlog ELSE sent_direct END AS accepted",
        "CASE WHEN stored > 0 THEN stored ELSE delivered + delivered_topic END AS found",
        "delivered + delivered_topic AS handed_out",
        "coalesce(backlog_ms, direct_ms) AS told_ms",
        "coalesce(stored_ms, delivered_ms) AS arrived_ms",
        "stored_sequence",
        *[f"greatest({name}, 0L) AS {name}" for name in ("backlog", "aside", "dead", "expired")],
        "dead_there",
        "expired_there",
        *_ROWS,
    )
    placed = counted.selectExpr(
        "*", "least(accepted, found) AS arrived", "accepted - least(accepted, found) AS missing"
    )
    # Each place takes what the places before it left.
    taken = [
        ("set_aside", "aside"),
        ("dead_lettered", "dead"),
        ("expired", "expired"),
        ("in_backlog", "backlog"),
    ]
    before, shares = "0L", []
    for fate, place in taken:
        shares.append(f"greatest(least(missing - least(missing, {before}), {place}), 0L) AS fate_{fate}")
        before = f"{before} + {place}"
    rest = f"(missing - least(missing, {before}))"
    # The same id and body accepted again and there once is one message, told of twice.
    absorbed = f"(message_id <> '' AND found + {before} > 0)"
    return placed.selectExpr("*", *shares).selectExpr(
        *KEY,
        "accepted",
        "found",
        "arrived",
        *[f"fate_{fate} AS {fate}" for fate, _ in taken],
        f"CASE WHEN {absorbed} OR NOT {late} THEN 0L ELSE {rest} END AS in_flight",
        f"CASE WHEN {absorbed} OR {late} THEN 0L ELSE {rest} END AS lost",
        f"CASE WHEN {absorbed} THEN {rest} ELSE 0L END AS absorbed",
        "CASE WHEN accepted > 0 THEN found - arrived ELSE 0L END AS repeated",
        "CASE WHEN accepted > 0 THEN 0L ELSE found END AS unexpected",
        "least(arrived, handed_out) AS completed_there",
        "least(arrived, dead_there) AS dead_there",
        "least(arrived, expired_there) AS expired_there",
        "told_ms",
        "arrived_ms",
        "stored_sequence",
        "is_detoured",
        *_ROWS,
    )


def _totals(known: DataFrame) -> DataFrame:
    names = ("accepted", "found", *FATE_COLUMNS, "completed_there", "dead_there", "expired_there", *_ROWS)
    return known.selectExpr(
        *[f"coalesce(sum({name}), 0L) AS {name}" for name in names],
        "count_if(accepted > 0) AS messages",
        "count_if(is_detoured) AS detoured",
    )


def _row_counts(totals: Row, unkeyed: list[Row]) -> dict[str, RowCounts]:
    others = {
        (str(row["role"]), str(row["status"])): sum(int(row[name]) for name in _ROWS) for row in unkeyed
    }
    return {
        role: RowCounts(
            int(totals[name]), others.get((role, "other"), 0), others.get((role, "quarantined"), 0)
        )
        for role, name in zip(ROLES, _ROWS, strict=True)
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
