"""The certificate on Spark: one outer join of all ledgers on (destination, message id, body hash).

The join is a union that is grouped by the key. Every task first adds up its own rows of a key, so a key that a million rows share reaches
the shuffle as one row for each task: no key is hot (D4). What a row says, and what became of a message, is judged in the tasks by the rules of
``engines.arrow``; Spark reads, groups and adds up, and its queries stay so small that planning them takes no time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import functions as f

from pairbus.reports.certificate.value import Bar, Certificate, SessionOrder, histogram_of
from pairbus.reports.engines.arrow.answers import (
    NAMED_SCHEMA,
    SUMMARY,
    SUMMARY_KEY,
    Tallies,
    certify,
    fate_rows,
    first_of,
)
from pairbus.reports.engines.arrow.drains import COPY, COUNTED, FOUND, NEEDED
from pairbus.reports.engines.arrow.grouping import ONCE, SLOT, how, how_at_last, row_schema
from pairbus.reports.engines.arrow.judging import QUARANTINE
from pairbus.reports.engines.audit_log import AGAIN, APART, BY_WAY, KEY, LISTED, OUTSIDE, TOPICS
from pairbus.reports.engines.spark.files import mapped, write_parquet
from pairbus.reports.engines.spark.ledgers import Ledgers
from pairbus.reports.engines.spark.order import reordered, session_order
from pairbus.reports.engines.spark.tasks import (
    BY_WAYS,
    CLAIMS,
    KNOWN,
    TALLY,
    apart_counts,
    by_way,
    by_way_claims,
    fate_files,
    known_messages,
    named_messages,
    quarantined_rows,
    said_rows,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


@dataclass(frozen=True, slots=True)
class Reconciled:
    """The certificate and the rows it rests on."""

    certificate: Certificate
    messages: DataFrame
    """One row for each message, and rows without a message that have a ``tally``: see ``tasks.KNOWN``. Message id and body are null where no fate
    of the message is to be named.
    """
    ledgers: Ledgers

    def write(self, directory: str) -> None:
        """``DIR/messages``: every message that is not simply where it should be, with its fate; ``DIR/quarantine``: quarantined rows.
        Parquet, in place of older files.
        """
        odd = self.messages.where("is_odd")
        columns = fate_rows(KNOWN.empty_table()).schema
        write_parquet(mapped(odd, fate_files, columns), f"{directory}/messages")
        if self.certificate.quarantined:
            judge = partial(quarantined_rows, question=self.ledgers.question)
            rows = mapped(self.ledgers.rows, judge, QUARANTINE)
            write_parquet(rows, f"{directory}/quarantine")


def reconcile(ledgers: Ledgers, until_ms: int | None = None, with_order: bool = True) -> Reconciled:
    """Judge every message. Sends at or after ``until_ms`` that are nowhere yet are in flight, not lost."""
    fates = partial(known_messages, until_ms=until_ms, hidden=ledgers.hidden, logged=ledgers.logged)
    messages = mapped(_grouped(ledgers), fates, KNOWN).persist(StorageLevel.MEMORY_AND_DISK)
    known = _Known(messages)
    certificate = certify(known, ledgers.inputs, ledgers.choice, ledgers.hidden, with_order=with_order)
    return Reconciled(certificate, messages, ledgers)


def _grouped(ledgers: Ledgers) -> DataFrame:
    """One row for each message, and one for each tally."""
    measures: Sequence[str] = ledgers.question.measures
    has_slots = not {*TOPICS, *LISTED, "forwarded_in"}.isdisjoint(measures)
    # Every column more is paid for by every row. Without a text to add up, Spark groups without sorting.
    unused = {
        SLOT: not has_slots,
        "ms": not ledgers.is_nameless,
        COPY: not ledgers.is_nameless,
        "session": not ledgers.has_sessions,
    }
    schema = pa.schema([*TALLY, *(field for field in row_schema(measures) if not unused.get(field.name))])
    judge = partial(
        said_rows,
        question=ledgers.question,
        choice=ledgers.choice,
        deletions=ledgers.deletions,
        schema=schema,
        entered=ledgers.entered,
    )
    rows = mapped(ledgers.rows.drop("source"), judge, schema)
    if ledgers.is_nameless:
        rows, measures = _outside_counted(rows, measures)
    if has_slots:
        rows = rows.groupBy("tally", *KEY, SLOT).agg(*_added(rows, how(measures)))
        once = {name: f.least(name, f.lit(1)) for name in ONCE if name in measures}
        rows = rows.withColumns(
            {name: f.when(f.col(SLOT).isNull(), f.col(name)).otherwise(one) for name, one in once.items()}
        )
    messages = rows.groupBy("tally", *KEY).agg(*_added(rows, how_at_last(measures)))
    if "dropped" in measures:
        messages = _dropped_counted(messages)
    return _by_way_counted(messages, rows) if {"forwarded_in", "sent_direct"} <= set(measures) else messages


def _added(rows: DataFrame, columns: Mapping[str, str]) -> list[Column]:
    there = {name: of for name, of in columns.items() if name in rows.columns}
    return [getattr(f, of)(name).alias(name) for name, of in {**there, "row_count": "sum"}.items()]


def _dropped_counted(messages: DataFrame) -> DataFrame:
    """Without ``dropped`` where rows name another body with the same id, as in ``grouping``."""
    place = ["destination", "message_id"]
    ids = messages.where("tally IS NULL AND dropped > 0 AND message_id <> ''").select(*place).distinct()
    bodies = messages.where("tally IS NULL").join(ids, place, "left_semi").groupBy(*place).count()
    several = bodies.where("count > 1").selectExpr("destination AS of_destination", "message_id AS of_id")
    is_of_it = (
        f.col("tally").isNull()
        & (f.col("destination") == f.col("of_destination"))
        & (f.col("message_id") == f.col("of_id"))
    )
    found = messages.join(several, is_of_it, "left")
    return found.withColumn("dropped", f.when(f.col("of_id").isNull(), f.col("dropped")).otherwise(0)).select(
        *messages.columns
    )


def _by_way_counted(messages: DataFrame, forwardings: DataFrame) -> DataFrame:
    """With BY_WAY, as ``grouping`` counts it. ``forwardings``: rows of targets, with the entities that the messages came from in SLOT."""
    found = mapped(messages.where("tally IS NULL"), by_way_claims, CLAIMS)
    name = ["of_id", "of_body"]
    came = forwardings.where("tally IS NULL AND forwarded_in > 0").selectExpr(
        f"{SLOT} AS source",
        "destination AS target",
        "message_id AS of_id",
        "coalesce(body, '') AS of_body",
        "forwarded_in AS number",
    )
    claims = found.where("claim > 0").withColumnRenamed("entity", "target").drop("surplus")
    left = found.where("surplus > 0").withColumnRenamed("entity", "source").drop("claim")
    both = came.join(claims, ["target", *name]).join(left, ["source", *name])
    # The rows of a message are in one task.
    both = both.select("source", "target", *name, "number", "claim", "surplus").repartition(*name)
    counted = mapped(both, by_way, BY_WAYS)
    is_of_it = (
        f.col("tally").isNull()
        & (f.col("destination") == f.col("target"))
        & (f.col("message_id") == f.col("of_id"))
        & (f.coalesce("body", f.lit("")) == f.col("of_body"))
    )
    added = messages.join(counted, is_of_it, "left")
    return added.select(*messages.columns, f.coalesce(BY_WAY, f.lit(0)).alias(BY_WAY))


def _outside_counted(rows: DataFrame, measures: Sequence[str]) -> tuple[DataFrame, Sequence[str]]:
    """With OUTSIDE, APART and AGAIN, as ``grouping`` counts it, for messages without an id that were parked."""
    is_nameless = f.coalesce(f.col("tally").isNull() & (f.col("message_id") == ""), f.lit(False))
    nameless = rows.where(is_nameless)
    entered, drained_ms = ("entered" if "entered" in measures else "0", "drained_ms" if "drained" in measures else "NULL")  # fmt: skip
    bounds = (
        nameless.groupBy("destination", "body")
        .agg(*_added(nameless, how(measures)))
        .where("backlog_ms IS NOT NULL")
        .selectExpr(
            "destination AS of_destination",
            "body AS of_body",
            "backlog_ms AS first_ms",
            f"CASE WHEN {entered} >= sent_backlog THEN coalesce({drained_ms}, backlog_ms - 1) END AS last_ms",
            f"{'aside_ms' if 'aside' in measures else 'CAST(NULL AS BIGINT)'} AS first_aside_ms",
        )
    )
    is_of_it = (f.col("destination") == f.col("of_destination")) & f.col("body").eqNullSafe(f.col("of_body"))
    is_outside = "coalesce(ms < first_ms, false) OR coalesce(ms > last_ms, false)"
    is_again = "coalesce(ms > first_aside_ms, false)"
    conditions = {"parked_again": is_again, "direct_again": f"{is_again} AND coalesce(ms > last_ms, false)"}
    added = {name: of for name, of in {**OUTSIDE, **AGAIN}.items() if of in measures}
    counted = nameless.join(bounds, is_of_it, "left").selectExpr(
        *rows.columns,
        *[
            f"CASE WHEN {conditions.get(name, is_outside)} THEN {of} ELSE 0 END AS {name}"
            for name, of in added.items()
        ],
    )
    others = rows.where(~is_nameless).selectExpr("*", *[f"0 AS {name}" for name in added])
    both = others.unionByName(counted)
    if not {*added}.isdisjoint(OUTSIDE):
        both = both.unionByName(
            _apart(nameless.join(bounds, is_of_it, "left_semi")), allowMissingColumns=True
        )
        added |= APART
    return both, (*measures, *added)


def _apart(nameless: DataFrame) -> DataFrame:
    """APART of each message without an id that was parked, in a row of its own."""
    rows = nameless.select(*(name for name in (*NEEDED, *COUNTED) if name in nameless.columns))
    # The rows of a message are in one task.
    return mapped(rows.repartition("destination", "body"), apart_counts, FOUND)


@dataclass(frozen=True, slots=True)
class _Known:
    """``answers.Known`` of rows of KNOWN. The driver holds little: minutes in which messages were parked, and the first names of each task."""

    messages: DataFrame

    def summary(self) -> tuple[list[dict[str, Any]], Tallies]:
        is_tally = f.col("tally").isNotNull()
        names = [f.when(is_tally, f.col(name)).alias(name) for name in ("destination", "message_id")]
        columns = [getattr(f, of)(column).alias(name) for name, (column, of) in SUMMARY.items()]
        key: list[Column | str] = ["tally", *names, *SUMMARY_KEY]
        rows = self.messages.groupBy(*key).agg(*columns, f.sum("row_count").alias("row_count")).collect()
        tallies = {
            (row["tally"], row["destination"], row["message_id"]): row["row_count"]
            for row in rows
            if row["tally"] is not None
        }
        return [row.asDict() for row in rows if row["tally"] is None], tallies

    def named(self) -> pa.Table:
        found = mapped(self.messages.where("is_odd"), named_messages, NAMED_SCHEMA).toArrow()
        return first_of([found.cast(NAMED_SCHEMA)])

    def altered(self) -> int:
        """Messages whose id is lost with one body and unexpected with another."""
        odd = self.messages.where("is_odd AND message_id <> ''").groupBy("destination", "message_id")
        both = odd.agg(f.max("lost").alias("lost"), f.max("unexpected").alias("unexpected"))
        return both.where("lost > 0 AND unexpected > 0").count()

    def reordered(self) -> tuple[Bar, ...]:
        return histogram_of(reordered(self.messages).collect())

    def session_order(self) -> SessionOrder:
        return session_order(self.messages)
