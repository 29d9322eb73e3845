"""The certificate on Spark: one outer join of all ledgers on (destination, message id, body hash).

The join is a union that is grouped by the key. Every task first adds up its own rows of a key, so a key that a million rows share reaches
the shuffle as one row for each task: no key is hot (D4). Everything else is computed from the one row that a key leaves.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from typing import TYPE_CHECKING, Final

from pyspark import StorageLevel
from pyspark.sql import Window
from pyspark.sql import functions as f

from pairbus.reports.certificate.value import (
    FATE_COLUMNS,
    FATES,
    NAMED_FATES,
    NAMED_MAX,
    REASONS_MAX,
    THERE,
    Certificate,
    Named,
    Outage,
    ParkedMinute,
    RowCounts,
    histogram_of,
    outages_of,
)
from pairbus.reports.engines.audit_log import (
    DELIVERED_TOPIC,
    GREATEST,
    KEY,
    LEAST,
    MEASURES,
    MEASURES_OF,
    OUTSIDE,
    PLACES,
    RECEIVED,
    ROLES,
    SENT,
)
from pairbus.reports.engines.spark.copies import listed_once
from pairbus.reports.engines.spark.files import write_parquet
from pairbus.reports.engines.spark.ledgers import LEFT_OUT, Ledgers
from pairbus.reports.engines.spark.order import MINUTE_MS, bucket, reordered, session_order
from pairbus.server.clock import utc

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import Column, DataFrame, Row

    from pairbus.reports.engines.gaps import Hidden


@dataclass(frozen=True, slots=True)
class Reconciled:
    """The certificate and the rows it rests on."""

    certificate: Certificate
    messages: DataFrame
    """One row for each message: KEY, ``accepted``, ``found``, FATE_COLUMNS, ``accepted_ms``, ``arrived_ms``, ``is_detoured``; message id and body are
    null where it was accepted once and arrived once.
    """
    ledgers: Ledgers

    def write(self, directory: str) -> None:
        """``DIR/messages``: every message that is not simply where it should be, with its fate; ``DIR/quarantine``: quarantined rows.
        Parquet, in place of older files.
        """
        rows = _by_fate(self.messages, NAMED_FATES).select(
            "fate",
            "destination",
            "message_id",
            f.lower(f.hex("body")).alias("sha256"),
            "copies",
            f.timestamp_millis("accepted_ms").alias("accepted_time"),
            f.timestamp_millis("arrived_ms").alias("arrived_time"),
            f.col("is_detoured").alias("through_backlog"),
        )
        write_parquet(rows, f"{directory}/messages")
        if self.certificate.quarantined:
            write_parquet(self.ledgers.quarantined, f"{directory}/quarantine")


def reconcile(ledgers: Ledgers, until: datetime | None = None, with_order: bool = True) -> Reconciled:
    """Judge every message. Sends at or after ``until`` that are nowhere yet are in flight, not lost."""
    kept = _kept(_fates(_grouped(ledgers), until, ledgers.hidden)).persist(StorageLevel.MEMORY_AND_DISK)
    known = _restored(kept)
    summary = _summary(known).persist(StorageLevel.MEMORY_AND_DISK)
    sums = summary.groupBy("status", "role", "bucket", "is_detoured").agg(*_sums()).collect()
    totals = {name: sum(int(row[name]) for row in sums) for name in _SUMMED}
    rows = _row_counts(totals, sums)
    odd = [fate for fate in NAMED_FATES if totals[fate]]
    order = histogram_of(reordered(known).collect()) if with_order else None
    certificate = Certificate(
        accepted=totals["accepted"],
        received=totals["found"],
        messages=totals["messages"],
        detoured=totals["detoured"],
        fates={fate: totals[fate] for fate in FATE_COLUMNS},
        altered=_altered(known) if totals["lost"] and totals["unexpected"] else 0,
        at_destination={name: totals[name] for name in THERE},
        named=_named(known, odd) if odd else {},
        rows=rows,
        reasons=_reasons(ledgers.quarantined) if any(count.quarantined for count in rows.values()) else {},
        delays=histogram_of(
            (row["bucket"], row["is_detoured"], row["timed"]) for row in sums if row["timed"]
        ),
        reordered=order,
        session_order=session_order(known, order) if order is not None else None,
        outages=_outages(summary) if totals["detoured"] else (),
        journals=tuple(sorted({path for found in ledgers.inputs.values() for path in found.journals})),
        repeated_parts=sum(len(found.repeated) for found in ledgers.inputs.values()),
        left_out=sum(int(row["unkeyed_rows"]) for row in sums if row["status"] == LEFT_OUT),
        doubt=ledgers.choice.doubt,
        unasked=ledgers.choice.unasked,
        gaps=ledgers.hidden.relevant(totals["unproven"]),
    )
    summary.unpersist()
    certificate.check()
    return Reconciled(certificate, known, ledgers)


def _topics_joined(ledgers: Ledgers) -> DataFrame:
    """Deliveries by several subscriptions are one arrival at the topic: of each message the subscription with the most counts."""
    rows = listed_once(ledgers.rows, ledgers.measures)
    if not ledgers.has_topics:
        return rows
    per_place = (
        rows.where(f"{DELIVERED_TOPIC} > 0")
        .groupBy(*KEY, "role", "status", "place")
        .agg(
            f.min("ms").alias("ms"),
            f.min("sequence_number").alias("sequence_number"),
            f.max("session").alias("session"),
            f.sum("row_count").alias("row_count"),
            *[f.sum(name).alias(name) for name in ledgers.measures],
        )
    )
    return rows.where(f"{DELIVERED_TOPIC} = 0").unionByName(per_place)


_ROWS: Final = {role: f"rows_{role.replace('-', '_')}" for role in ROLES}
"""How many rows of each role a group has."""


def _grouped(ledgers: Ledgers) -> DataFrame:
    """One row for each key; and one for each role and status of rows without a key. Only what the inputs can say is added up: every column
    more is paid for by every message.
    """
    measured = ledgers.measures
    aggregates = [f"{'max' if name == DELIVERED_TOPIC else 'sum'}({name}) AS {name}" for name in measured]
    aggregates += ["sum(CASE WHEN status IS NOT NULL THEN row_count ELSE 0L END) AS unkeyed_rows"]
    aggregates.append("max(session) AS session")
    rest = [f"0L AS {name}" for name in MEASURES if name not in measured]
    for name, (column, said_by) in (*LEAST.items(), *GREATEST.items()):
        says = " OR ".join(f"{measure} > 0" for measure in said_by if measure in measured)
        if says:
            which = "min" if name in LEAST else "max"
            aggregates.append(f"{which}(CASE WHEN {says} THEN {column} END) AS {name}")
        else:
            rest.append(f"CAST(NULL AS BIGINT) AS {name}")
    for role, name in _ROWS.items():
        if role not in ledgers.inputs:
            rest.append(f"0L AS {name}")
        elif role == SENT or (role == RECEIVED and not ledgers.has_topics):
            # Each of these rows says one thing.
            said = [one for one in MEASURES_OF[role] if one in measured and one not in OUTSIDE]
            rest.append(" + ".join(said) + f" AS {name}")
        else:
            aggregates.append(
                f"sum(CASE WHEN role = '{role}' AND status IS NULL THEN row_count ELSE 0L END) AS {name}"
            )
    unkeyed_role = f.when(f.col("status").isNotNull(), f.col("role")).alias("unkeyed_role")
    grouped = _topics_joined(ledgers).groupBy(*KEY, "status", unkeyed_role).agg(*map(f.expr, aggregates))
    return grouped.withColumnRenamed("unkeyed_role", "role").selectExpr("*", *rest)


_PLACES: Final = {
    "set_aside": "aside",
    "dead_lettered": "dead",
    "expired": "(expired + dead_expired)",
    "cancelled": "cancelled",
    "in_backlog": "backlog",
    "in_spool": "spool",
}
"""How many copies each of PLACES can explain."""


_DRAINED: Final = "(drained + greatest(sent_backlog - entered, 0L))"
"""What left the backlog for the destination. Of copies that its audit log does not know, each may have."""
_OF_CANCELLED: Final = f"""CASE WHEN cancelled_there > 0 THEN greatest(
    cancelled_before + 1 - sent_backlog,
    least(cancelled_before, found - {_DRAINED}),
    CASE WHEN cancelled_ms < backlog_ms THEN cancelled_there ELSE 0L END,
    CASE WHEN first_cancelled_ms < backlog_ms THEN 1L ELSE 0L END
) ELSE 0L END"""
_OF_GONE: Final = f"""CASE WHEN cancelled + greatest(expired, expired_listed) > 0 THEN
    CASE WHEN coalesce(last_direct_ms < backlog_ms, false) OR coalesce(direct_ms > drained_ms, false) THEN sent_direct
    ELSE sent_direct - {_DRAINED} END
ELSE 0L END"""
"""Copies that ended in the backlog were not drained: further sends were made by senders."""
_OF_NAMELESS: Final = f"""CASE WHEN message_id = '' THEN
    greatest(direct_outside + greatest(sent_direct - direct_outside - {_DRAINED}, 0L), stored_outside)
ELSE 0L END"""
"""Without an id, what was sent directly is another message."""
_BESIDE_PARKED: Final = f"greatest({_OF_CANCELLED}, {_OF_GONE}, {_OF_NAMELESS}, 0L)"
"""How many copies of a parked message its destination accepted itself, at least: neither from the drain nor in a send whose answer never came."""


def _there(is_seen: str, audited: str, listed: str) -> str:
    """How many copies are in a place of the backlog. Without an audit a copy may have left: then only a listing tells that it is there. Else a listing
    may be older than the audit log, and counts only for copies that the audit log does not know.
    """
    known = f"greatest({audited}, 0L)"
    limit = f"{known} + greatest(sent_backlog - entered, 0L)"
    return f"""CASE WHEN NOT {is_seen} THEN greatest({listed}, 0L)
        WHEN entered > 0 THEN greatest({known}, least({listed}, {limit})) ELSE greatest({known}, {listed}) END"""


def _fates(grouped: DataFrame, until: datetime | None, hidden: Hidden) -> DataFrame:
    """What became of every accepted send. A message in the backlog was confirmed to its sender there: what the primary then accepted of it
    was the drain's send, or the send whose answer never came.
    """
    late = "false" if until is None else f"accepted_ms >= {int(until.timestamp() * 1000)}L"
    # Parked after its destination cancelled it: what was cancelled was another copy, accepted before.
    before_it = "CASE WHEN last_backlog_ms > cancelled_ms THEN cancelled_there ELSE 0L END"
    found = f"CASE WHEN stored > 0 THEN stored ELSE delivered + {DELIVERED_TOPIC} END AS found"
    accepted_ms = "coalesce(backlog_ms, direct_ms, spool_ms) AS accepted_ms"
    seen = f"coalesce(accepted_ms >= {hidden.waiting_before_ms}L, true)"
    listed = "aside_listed - greatest(expired - expired_listed, 0L)"
    judged = grouped.selectExpr("*", f"{before_it} AS cancelled_before", found, accepted_ms)
    counted = judged.selectExpr(
        "status",
        "role",
        "unkeyed_rows",
        *KEY,
        "sent_backlog > 0 OR parked > 0 AS is_detoured",
        # What is in a spool was confirmed to its sender by the spool, whether a ledger of sends has it or not.
        f"greatest(CASE WHEN sent_backlog > 0 THEN sent_backlog + {_BESIDE_PARKED} ELSE sent_direct END, spool) AS accepted",
        "cancelled_before",
        "found",
        f"delivered + {DELIVERED_TOPIC} AS handed_out",
        "accepted_ms",
        "coalesce(stored_ms, delivered_ms) AS arrived_ms",
        "stored_sequence",
        "session",
        f"{_there(seen, 'backlog', 'backlog_listed')} AS backlog",
        "cancelled",
        "spool",
        # A copy may be in the audit log of the backlog and in a listing, and in that of the dead-letter queue without its reason.
        f"{_there(seen, 'aside', listed)} AS aside",
        "greatest(expired, expired_listed) AS expired",
        # Of the dead letters of a destination, those that it stored are among the arrived.
        "greatest(dead - stored, 0L) AS dead",
        "greatest(dead_expired - greatest(stored - dead, 0L), 0L) AS dead_expired",
        "dead_there",
        "expired_there",
        *_ROWS.values(),
    )
    placed = counted.selectExpr(
        "*", "least(accepted, found) AS arrived", "accepted - least(accepted, found) AS missing"
    )
    # Each place takes what the places before it left.
    before, shares = "0L", []
    for fate in PLACES:
        place = _PLACES[fate]
        shares.append(f"greatest(least(missing - least(missing, {before}), {place}), 0L) AS fate_{fate}")
        before = f"{before} + {place}"
    rest = f"(missing - least(missing, {before}))"
    # The same id and body accepted again and there once is one message, recorded twice.
    # A copy that expired in the backlog or was cancelled is gone: what was accepted beside it must be somewhere itself.
    absorbed = "(message_id <> '' AND greatest(found - cancelled_before, 0L) + aside + dead + dead_expired + backlog + spool > 0)"
    is_hidden = f"coalesce(accepted_ms < {hidden.nowhere_before_ms}L, false)"
    return placed.selectExpr("*", *shares).selectExpr(
        "status",
        "role",
        "unkeyed_rows",
        *KEY,
        "accepted",
        "found",
        "arrived",
        *[f"fate_{fate} AS {fate}" for fate in PLACES],
        f"CASE WHEN {absorbed} OR NOT {late} THEN 0L ELSE {rest} END AS in_flight",
        f"CASE WHEN {absorbed} OR {late} OR NOT {is_hidden} THEN 0L ELSE {rest} END AS unproven",
        f"CASE WHEN {absorbed} OR {late} OR {is_hidden} THEN 0L ELSE {rest} END AS lost",
        f"CASE WHEN {absorbed} THEN {rest} ELSE 0L END AS absorbed",
        "CASE WHEN accepted > 0 THEN found - arrived ELSE 0L END AS repeated",
        "CASE WHEN accepted > 0 THEN 0L ELSE found END AS unexpected",
        "least(arrived, handed_out) AS completed_there",
        "least(arrived, dead_there) AS dead_there",
        "least(arrived, expired_there) AS expired_there",
        "accepted_ms",
        "arrived_ms",
        "stored_sequence",
        "session",
        "is_detoured",
        *_ROWS.values(),
    )


_PLAIN: Final = {"accepted": 1, "found": 1, "arrived": 1}
"""What is counted of a message that was accepted once and arrived once; all else is 0."""
_COUNTS: Final = ("accepted", "found", *FATE_COLUMNS, "dead_there", "expired_there", "unkeyed_rows")
_KEPT: Final = (
    "destination",
    "accepted_ms",
    "arrived_ms",
    "stored_sequence",
    "session",
    "is_detoured",
    *_ROWS.values(),
)


def _kept(known: DataFrame) -> DataFrame:
    """What is kept for the questions that follow. Nearly every message is simply there, and then nothing but its times needs keeping: names and
    counts are kept only of those that differ.
    """
    is_plain = " AND ".join(f"{name} = {_PLAIN.get(name, 0)}" for name in _COUNTS)
    others = ", ".join(("status", "role", "message_id", "body", *_COUNTS))
    return known.selectExpr(
        *_KEPT,
        "completed_there > 0 AS is_completed",
        f"CASE WHEN NOT ({is_plain} AND status IS NULL) THEN struct({others}, completed_there) END AS other",
    )


def _restored(kept: DataFrame) -> DataFrame:
    """As ``_fates`` gave it, but for the names of messages that are simply there."""
    return kept.selectExpr(
        *_KEPT,
        *[f"other.{name} AS {name}" for name in ("status", "role", "message_id", "body")],
        *[f"coalesce(other.{name}, {_PLAIN.get(name, 0)}L) AS {name}" for name in _COUNTS],
        "coalesce(other.completed_there, CAST(is_completed AS BIGINT)) AS completed_there",
    )


_ADDED: Final = (*_COUNTS, "completed_there", *_ROWS.values())
_SUMMED: Final = (*_ADDED, "messages", "detoured", "timed")


def _sums() -> list[Column]:
    return [f.sum(name).alias(name) for name in _SUMMED]


def _summary(known: DataFrame) -> DataFrame:
    """All counts by delay and, of parked messages, by the minute they were accepted in: small, and all that totals, delays and outages need."""
    delay = f.when(
        (f.col("arrived") > 0) & f.col("arrived_ms").isNotNull() & f.col("accepted_ms").isNotNull(),
        f.col("arrived_ms") - f.col("accepted_ms"),
    )
    is_parked = f.col("is_detoured") & (f.col("accepted") > 0)
    rows = known.select(
        "status",
        "role",
        "accepted_ms",
        is_parked.alias("is_detoured"),
        f.when(delay.isNotNull(), bucket(delay)).alias("bucket"),
        f.when(is_parked, f.expr(f"accepted_ms div {MINUTE_MS}")).alias("minute"),
        delay.alias("delay"),
        *_ADDED,
    )
    return rows.groupBy("status", "role", "bucket", "is_detoured", "minute").agg(
        f.min("accepted_ms").alias("first"),
        f.max("accepted_ms").alias("last"),
        f.max("delay").alias("slowest"),
        f.count("delay").alias("timed"),
        f.count_if(f.col("accepted") > 0).alias("messages"),
        f.count_if(f.col("is_detoured")).alias("detoured"),
        *[f.sum(name).alias(name) for name in _ADDED],
    )


def _row_counts(totals: Mapping[str, int], sums: Sequence[Row]) -> dict[str, RowCounts]:
    def others(role: str, status: str) -> int:
        return sum(int(row["unkeyed_rows"]) for row in sums if (row["role"], row["status"]) == (role, status))

    return {
        role: RowCounts(
            totals[name],
            others(role, "other") + others(role, LEFT_OUT),
            others(role, "quarantined"),
        )
        for role, name in _ROWS.items()
    }


def _named(known: DataFrame, fates: Sequence[str]) -> dict[str, tuple[Named, ...]]:
    """The first few messages of each fate, in the order of their names."""
    order = Window.partitionBy("fate").orderBy(*KEY)
    rows = _by_fate(known, fates).withColumn("at", f.row_number().over(order)).where(f.col("at") <= NAMED_MAX)
    found = sorted(rows.collect(), key=lambda row: int(row["at"]))
    return {
        fate: tuple(
            Named(
                row["destination"],
                row["message_id"],
                "" if row["body"] is None else bytes(row["body"]).hex(),
                row["copies"],
                None if row["accepted_ms"] is None else utc(row["accepted_ms"]),
            )
            for row in found
            if row["fate"] == fate
        )
        for fate in fates
    }


def _by_fate(known: DataFrame, fates: Sequence[str]) -> DataFrame:
    """A row for each message and fate that is not the usual one: ``fate`` and ``copies`` beside KEY and times."""
    is_any = reduce(lambda one, other: one | other, [f.col(fate) > 0 for fate in fates])
    each = f.explode(
        f.array(*[f.struct(f.lit(fate).alias("fate"), f.col(fate).alias("copies")) for fate in fates])
    )
    return (
        known.where(is_any)
        .select(*KEY, "accepted_ms", "arrived_ms", "is_detoured", each.alias("each"))
        .where(f.col("each.copies") > 0)
        .select("each.fate", "each.copies", *KEY, "accepted_ms", "arrived_ms", "is_detoured")
    )


def _altered(known: DataFrame) -> int:
    """Lost messages whose id came to their destination with another body."""
    key = ("destination", "message_id")
    missing = known.where((f.col("lost") > 0) & (f.col("message_id") != "")).select(*key).distinct()
    strange = known.where(f.col("unexpected") > 0).select(*key).distinct()
    return missing.join(strange, [*key]).count()


def _outages(summary: DataFrame) -> tuple[Outage, ...]:
    """The driver holds the minutes in which messages were parked, whatever the number of messages."""
    counted = ("accepted", "arrived", *FATES)
    minutes = (
        summary.where("minute IS NOT NULL")
        .groupBy("minute")
        .agg(
            f.min("first").alias("first"),
            f.max("last").alias("last"),
            f.max("slowest").alias("slowest"),
            *[f.sum(name).alias(name) for name in counted],
        )
    )
    return outages_of(
        ParkedMinute(
            row["minute"], row["first"], row["last"], row["accepted"],
            {fate: row[fate] for fate in counted[1:]}, row["slowest"],
        )
        for row in minutes.collect()
    )  # fmt: skip


def _reasons(quarantined: DataFrame) -> dict[str, int]:
    # Counting ``raw`` needs every column: Spark parses only the columns that are needed, and finds no fault with the others.
    counts = quarantined.groupBy("role", "reason").agg(f.count("raw").alias("count"))
    rows = counts.orderBy("role", "reason").limit(REASONS_MAX).collect()
    return {f"{row['role']}: {row['reason']}": int(row["count"]) for row in rows}
