"""Audit files as rows that say, each, one thing about one message. What cannot be true is set apart with its reason (D5).

A message is known by (destination, message id, hash of its body). Paths are compared without regard to case; a subscription's messages were
sent to its topic; a backlog queue's messages have their destination beside them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f
from pyspark.sql import types as t

from pairbus.spark.report_inputs import Inputs, Wanted, find_inputs

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

SENT: Final = "sent"
RECEIVED: Final = "received"
BACKLOG: Final = "backlog"
DEAD_LETTER: Final = "dead-letter"
ROLES: Final = (SENT, RECEIVED, BACKLOG, DEAD_LETTER)

SENDS: Final = ("sent", "accepted", "duplicate")
DELIVERIES: Final = ("completed", "received-and-deleted", "received", "delivered")
HELD: Final = ("held", "active", "peeked", "deferred", "scheduled", "locked")
DEAD_LETTERED: Final = "dead-lettered"
EXPIRED: Final = "expired"
REMOVED: Final = ("cancelled", "purged", "forwarded")
ENTITY_DELETED: Final = "entity-deleted"
KINDS: Final = (*SENDS, *DELIVERIES, *HELD, DEAD_LETTERED, EXPIRED, *REMOVED, ENTITY_DELETED)
KIND_DEFAULTS: Final = {SENT: "sent", RECEIVED: "received", BACKLOG: "held", DEAD_LETTER: "held"}
"""What a row without a kind means in each input."""
REASON_EXPIRED: Final = "TTLExpiredException"

KEY: Final = ("destination", "message_id", "body")
MEASURES: Final = (
    "sent_backlog", "sent_direct", "stored", "delivered", "delivered_topic", "dead_there", "expired_there",
    "backlog", "aside", "dead", "expired",
)  # fmt: skip
"""How often each thing is said of a message; see ``_measures``."""
_BACKLOG_PATH: Final = r"(?i)^[^/]+/x-servicebus-transfer/[0-9]+(/\$transfer)?(/\$deadletterqueue)?$"
_DEAD_LETTER_PATH: Final = r"(?i)/\$deadletterqueue$"
_SUBSCRIPTION_PATH: Final = r"(?i)/subscriptions/[^/]+(/.*)?$"
_TEXT: Final = ("string", "large_string", "dictionary")
AUDIT: Final = Wanted(
    what="audit log of messages",
    folder="messages-audit",
    columns={"message_id": _TEXT, "entity": _TEXT, "time": ("timestamp",)},
)
_COLUMNS: Final = (
    "kind", "message_id", "entity", "destination", "sequence_number", "time", "sha256", "body_sha256", "detail", "namespace"
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Ledgers:
    """All rows of all inputs."""

    inputs: Mapping[str, Inputs]
    rows: DataFrame
    """KEY, MEASURES, ``role``, ``is_used``, ``is_quarantined``, ``ms``, ``sequence_number``; without a key unless used."""
    quarantined: DataFrame
    """``role``, ``source``, ``reason``, ``raw``."""


def read_ledgers(spark: SparkSession, locations: Mapping[str, Sequence[str]], with_body: bool) -> Ledgers:
    """Read the files of every role.

    Raises:
        UsageError: A place is missing, empty or of another kind.
    """
    inputs: dict[str, Inputs] = {}
    parts: list[DataFrame] = []
    for role in ROLES:
        if locations.get(role):
            inputs[role] = find_inputs(spark, locations[role], AUDIT)
            parts += [part.withColumn("role", f.lit(role)) for part in _files(spark, inputs[role])]
    raw = reduce(lambda one, other: one.unionByName(other), parts)
    judged = _judged(raw, with_body)
    quarantined = judged.where(f.col("reason").isNotNull()).select("role", "source", "reason", "raw")
    return Ledgers(inputs, _said(judged, with_body), quarantined)


def _files(spark: SparkSession, inputs: Inputs) -> list[DataFrame]:
    found = []
    source = f.col("_metadata.file_path").alias("source")
    plain = t.StructType([t.StructField(name, _type(name)) for name in _COLUMNS])
    if inputs.parquet:
        files = spark.read.schema(plain).option("recursiveFileLookup", "true").parquet(*inputs.parquet)
        found.append(files.select(*_COLUMNS, f.lit(None).cast("string").alias("broken"), source))
    if inputs.lines:
        fields = [t.StructField(name, t.StringType() if name == "time" else _type(name)) for name in _COLUMNS]
        files = (
            spark.read.schema(t.StructType([*fields, t.StructField("_raw", t.StringType())]))
            .option("columnNameOfCorruptRecord", "_raw")
            .option("recursiveFileLookup", "true")
            .json(inputs.lines)
        )
        number = f.expr("timestamp_millis(try_cast(time AS BIGINT))")
        moment = f.when(f.col("time").rlike("^[0-9]{1,18}$"), number).otherwise(
            f.expr("try_cast(time AS TIMESTAMP)")
        )
        columns = [moment.alias(name) if name == "time" else f.col(name) for name in _COLUMNS]
        found.append(files.select(*columns, f.col("_raw").alias("broken"), source))
    if not found:
        fields = [
            *plain.fields,
            t.StructField("broken", t.StringType()),
            t.StructField("source", t.StringType()),
        ]
        found.append(spark.createDataFrame([], t.StructType(fields)))
    return found


def _type(name: str) -> t.DataType:
    return {"time": t.TimestampType(), "sequence_number": t.LongType()}.get(name, t.StringType())


def _judged(rows: DataFrame, with_body: bool) -> DataFrame:
    """Kind, place and destination of every row, and why it cannot be true if it cannot."""
    default = reduce(
        lambda chain, role: chain.when(f.col("role") == role, KIND_DEFAULTS[role]),
        ROLES[1:],
        f.when(f.col("role") == SENT, KIND_DEFAULTS[SENT]),
    )
    kind = f.coalesce(f.when(f.col("kind") != "", f.lower("kind")), default)
    entity = f.coalesce("entity", f.lit(""))
    path = f.regexp_replace(f.regexp_replace(entity, _DEAD_LETTER_PATH, ""), _SUBSCRIPTION_PATH, "")
    told = f.when(f.col("destination") != "", f.col("destination"))
    marked = (
        rows.withColumn("raw", f.coalesce(f.col("broken"), f.to_json(f.struct(*_COLUMNS))))
        .withColumn("kind", kind)
        .withColumn("hash", f.coalesce("sha256", "body_sha256"))
        .withColumn("is_backlog", entity.rlike(_BACKLOG_PATH))
        .withColumn("is_dead_letter", entity.rlike(_DEAD_LETTER_PATH))
        .withColumn("is_topic", entity.rlike(_SUBSCRIPTION_PATH))
        .withColumn("destination", f.lower(f.ltrim(f.coalesce(told, path), f.lit("/"))))
    )
    reasons: list[tuple[Column, str]] = [
        (f.col("broken").isNotNull(), "not a row of JSON with these columns"),
        (~f.col("kind").isin(*KINDS), "kind is not known"),
        (f.col("time").isNull(), "time is missing or no time"),
        (f.col("message_id").isNull(), "message_id is missing"),
        (f.col("destination") == "", "neither destination nor entity"),
    ]
    if with_body:
        whole = f.col("hash").rlike("^[0-9a-fA-F]{64}$")
        bad = (f.col("kind") != ENTITY_DELETED) & ~f.coalesce(whole, f.lit(False))
        reasons.append((bad, "no SHA-256 of the body (--no-body-hash compares without)"))
    reason = f.when(*reasons[0])
    for condition, text in reasons[1:]:
        reason = reason.when(condition, text)
    return marked.withColumn("reason", reason)


def _measures() -> dict[str, Column]:
    """What a row says. Places in the backlog are counted up and down, so that a whole audit tells what is left."""
    role, kind = f.col("role"), f.col("kind")
    backlog, dead = f.col("is_backlog"), f.col("is_dead_letter")
    is_sent, is_received = role == SENT, role == RECEIVED
    sends, held, gone = kind.isin(*SENDS), kind.isin(*HELD), kind.isin(*DELIVERIES)
    lapsed = (kind == EXPIRED) | ((kind == DEAD_LETTERED) & (f.col("detail") == REASON_EXPIRED))
    in_backlog = (role == BACKLOG) & backlog & ~dead
    in_aside = (role == BACKLOG) & backlog & dead
    listed = role == DEAD_LETTER
    away = gone | kind.isin(*REMOVED) | (kind == EXPIRED) | (kind == DEAD_LETTERED)
    expired = (in_backlog & lapsed) | (listed & lapsed)
    return {
        "sent_backlog": _one(is_sent & sends & backlog),
        "sent_direct": _one(is_sent & sends & ~backlog),
        "stored": _one(is_received & (kind == "sent") & ~backlog & ~dead),
        "delivered": _one(is_received & gone & ~backlog & ~dead & ~f.col("is_topic")),
        "delivered_topic": _one(is_received & gone & ~backlog & ~dead & f.col("is_topic")),
        "dead_there": _one(is_received & (kind == DEAD_LETTERED) & ~backlog & ~lapsed),
        "expired_there": _one(is_received & ~backlog & lapsed),
        "backlog": _one(in_backlog & ((kind == "sent") | held)) - _one(in_backlog & away),
        "aside": _one(
            (in_backlog & (kind == DEAD_LETTERED) & ~lapsed)
            | (in_aside & held)
            | (listed & backlog & ~lapsed)
        )
        - _one(in_aside & away),
        "dead": _one(listed & ~backlog & ~lapsed),
        "expired": _one(expired),
    }


def _one(condition: Column) -> Column:
    return f.coalesce(condition, f.lit(False)).cast("long")


def _said(judged: DataFrame, with_body: bool) -> DataFrame:
    measures = _measures()
    is_quarantined = f.col("reason").isNotNull()
    said = judged.select(
        "role",
        f.col("destination"),
        f.col("message_id"),
        (f.unhex("hash") if with_body else f.lit(None).cast("binary")).alias("body"),
        f.unix_millis("time").alias("ms"),
        "sequence_number",
        f.lower("entity").alias("place"),
        is_quarantined.alias("is_quarantined"),
        *[
            f.when(is_quarantined, f.lit(0)).otherwise(column).alias(name)
            for name, column in measures.items()
        ],
    )
    is_used = reduce(lambda one, other: one | other, [f.col(name) != 0 for name in MEASURES])
    used = said.withColumn("is_used", is_used)
    # Rows that say nothing have no key: they meet in one group and are only counted.
    keyed = [f.when(f.col("is_used"), f.col(name)).alias(name) for name in KEY]
    return used.select(
        "role", *keyed, "ms", "sequence_number", "place", "is_quarantined", "is_used", *MEASURES
    )
