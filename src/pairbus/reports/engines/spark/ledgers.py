"""Audit files as Spark rows that say, each, one thing about one message. Rows that cannot be true are quarantined (D5)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f
from pyspark.sql import types as t

from pairbus.reports.engines import audit_log as log
from pairbus.reports.engines.audit_log import (
    BACKLOG,
    CANCELLED,
    COLUMNS,
    DEAD_LETTER,
    DEAD_LETTERED,
    DELETABLE,
    DELIVERED_TOPIC,
    DELIVERIES,
    DRAINED,
    ENTITY_DELETED,
    EXPIRED,
    HELD,
    KEY,
    KIND_DEFAULTS,
    KINDS,
    MEASURES,
    MEASURES_OF,
    NOTES,
    OUTSIDE,
    RECEIVED,
    REMOVED,
    SENDS,
    SENT,
    SPOOL,
)
from pairbus.reports.engines.gaps import Hidden, Note, hidden_by
from pairbus.reports.engines.primaries import (
    DIRECT_ROLES,
    PARKED_ROLES,
    Choice,
    Seen,
    choose,
    namespace_key,
)
from pairbus.reports.engines.spark.copies import outside_counted
from pairbus.reports.engines.spark.files import JSON_OPTIONS, source_column, time_column
from pairbus.reports.inputs import Inputs, spark_path

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row, SparkSession

LEFT_OUT: Final = "left out"
"""The status of rows about another primary, or about entities of the secondary itself."""


@dataclass(frozen=True, slots=True)
class Ledgers:
    inputs: Mapping[str, Inputs]
    rows: DataFrame
    """KEY, ``measures``, ``role``, ``ms``, ``sequence_number``, ``session``, ``place`` and ``status``: null for rows that say something of a message, else
    why they do not, and then without a key.
    """
    measures: tuple[str, ...]
    """How often each thing is said of a message: those of MEASURES that these inputs can tell of."""
    quarantined: DataFrame
    """``role``, ``source``, ``reason``, ``raw``."""
    choice: Choice
    has_topics: bool
    """Some deliveries were made by subscriptions."""
    hidden: Hidden


def read_ledgers(
    spark: SparkSession,
    inputs: Mapping[str, Inputs],
    with_body: bool,
    primaries: Sequence[str] = (),
    since_ms: int | None = None,
    until_ms: int | None = None,
) -> Ledgers:
    """The rows of the files of every role; those about other primaries have the status ``left out``."""
    parts = [
        part.withColumn("role", f.lit(role))
        for role, found in inputs.items()
        for part in _files(spark, found)
    ]
    raw = reduce(lambda one, other: one.unionByName(other), parts)
    seen, has_topics = _seen(raw)
    measures = tuple(
        name
        for name in MEASURES
        if any(name in MEASURES_OF[role] for role in inputs)
        and (has_topics or name != DELIVERED_TOPIC)
        and name not in OUTSIDE
    )
    choice = choose(seen, primaries)
    judged = _judged(raw, with_body)
    marks = _marks(raw, with_body)
    quarantined = judged.where(f.col("reason").isNotNull()).select("role", "source", "reason", "raw")
    rows = _said(judged, with_body, measures, _deletions(spark, marks), choice, since_ms)
    if any(one.role == SENT and one.primary for one in seen):
        rows, measures = outside_counted(rows, measures)
    hidden = hidden_by(_notes(marks), since_ms, until_ms, choice.unheard)
    return Ledgers(inputs, rows, measures, quarantined, choice, has_topics, hidden)


_NAMESPACE: Final = "lower(substring_index(trim(coalesce(namespace, '')), '.', 1))"
"""As ``primaries.namespace_key``."""
_PRIMARY: Final = "CASE WHEN is_backlog THEN substring_index(place, '/', 1) ELSE '' END"


def _seen(raw: DataFrame) -> tuple[list[Seen], bool]:
    """The primaries and namespaces that the rows name, and whether subscriptions delivered anything. Reads two columns, and few values are different."""
    is_backlog = (
        f"contains(place, '{log.TRANSFER_PATH}') AND rlike(place, r'{log.BACKLOG_PATTERN}') AS is_backlog"
    )
    rows = (
        raw.where(f"entity <> '' OR {_NAMESPACE} <> ''")
        .selectExpr("role", "lower(coalesce(entity, '')) AS place", "namespace")
        .selectExpr("role", "place", "namespace", is_backlog)
        .selectExpr(
            "role",
            f"{_PRIMARY} AS primary",
            f"{_NAMESPACE} AS namespace",
            f"role = '{RECEIVED}' AND contains(place, '{log.SUBSCRIPTIONS_PATH}') AS is_topic",
        )
        .distinct()
        .collect()
    )
    seen = [Seen(row["role"], row["primary"], row["namespace"]) for row in rows]
    return seen, any(row["is_topic"] for row in rows)


def _is_other(choice: Choice) -> Column:
    """Whether a row is not about the chosen primary."""
    parked = f.col("role").isin(*PARKED_ROLES) & f.expr(_PRIMARY).isin(*choice.parked_others)
    direct = f.col("role").isin(*DIRECT_ROLES) & f.expr(_NAMESPACE).isin(*choice.direct_others)
    return f.when(f.col("is_backlog"), parked).otherwise(direct)


def _marks(raw: DataFrame, with_body: bool) -> list[Row]:
    """Rows that are not about one message: the last deletion of each backlog queue, and what audit logs say of themselves. There are few."""
    # The plain ``-`` lets Parquet pass over rows whose dictionary of kinds has none.
    marks = raw.where(f.contains("kind", f.lit("-")) & f.lower("kind").isin(ENTITY_DELETED, *NOTES))
    is_deletion = f"kind = '{ENTITY_DELETED}'"
    wanted = f"reason IS NULL AND (NOT {is_deletion} OR (role = '{BACKLOG}' AND is_backlog))"
    return (
        _judged(marks, with_body)
        .where(wanted)
        .selectExpr(
            "role",
            "kind",
            "namespace",
            f"CASE WHEN {is_deletion} THEN {_QUEUE} END AS queue",
            f"CASE WHEN NOT {is_deletion} THEN coalesce(detail, '') END AS detail",
            f"CASE WHEN NOT {is_deletion} THEN unix_millis(time) END AS at",
            "unix_millis(time) AS ms",
        )
        .groupBy("role", "kind", "namespace", "queue", "detail", "at")
        .agg(f.max("ms").alias("ms"))
        .collect()
    )


def _deletions(spark: SparkSession, marks: Sequence[Row]) -> DataFrame | None:
    """When each backlog queue was last deleted: ``of_namespace``, ``queue``, ``deleted_ms``. None if none was, which is nearly always so."""
    found = [(row["namespace"], row["queue"], row["ms"]) for row in marks if row["kind"] == ENTITY_DELETED]
    if not found:
        return None
    schema = "of_namespace string, queue string, deleted_ms long"
    return f.broadcast(spark.createDataFrame(found, schema))


def _notes(marks: Sequence[Row]) -> list[Note]:
    return [
        Note(row["role"], row["kind"], namespace_key(row["namespace"]), row["ms"], row["detail"])
        for row in marks
        if row["kind"] in NOTES
    ]


def _files(spark: SparkSession, inputs: Inputs) -> list[DataFrame]:
    found = []
    source = source_column().alias("source")
    plain = t.StructType([t.StructField(name, _type(name)) for name in COLUMNS])
    fine = set(inputs.nanoseconds)
    for paths, kind, time in (
        ([path for path in inputs.parquet if path not in fine], t.TimestampType(), "time"),
        (inputs.nanoseconds, t.LongType(), "timestamp_micros(time div 1000) AS time"),
    ):
        if paths:
            fields = [
                t.StructField(name, kind) if name == "time" else t.StructField(name, _type(name))
                for name in COLUMNS
            ]
            files = (
                spark.read.schema(t.StructType(fields))
                .option("recursiveFileLookup", "true")
                .parquet(*map(spark_path, paths))
            )
            columns = [f.expr(time) if name == "time" else f.col(name) for name in COLUMNS]
            found.append(files.select(*columns, f.lit(None).cast("string").alias("broken"), source))
    if inputs.lines:
        fields = [t.StructField(name, t.StringType() if name == "time" else _type(name)) for name in COLUMNS]
        schema = t.StructType([*fields, t.StructField("_raw", t.StringType())])
        files = spark.read.schema(schema).options(**JSON_OPTIONS).json([*map(spark_path, inputs.lines)])
        columns = [time_column(name).alias(name) if name == "time" else f.col(name) for name in COLUMNS]
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
    default = " ".join(f"WHEN '{role}' THEN '{kind}'" for role, kind in KIND_DEFAULTS.items())
    # Plain comparisons first: patterns cost more than all else here, and few rows need one.
    placed = rows.selectExpr("*", "lower(entity) AS place").selectExpr(
        "*",
        f"coalesce(contains(place, '{log.TRANSFER_PATH}') AND rlike(place, r'{log.BACKLOG_PATTERN}'), false) AS is_backlog",
        f"coalesce(endswith(place, '{log.DEAD_LETTER_PATH}'), false) AS is_dead",
        f"coalesce(contains(place, '{log.SUBSCRIPTIONS_PATH}'), false) AS is_topic",
    )
    alive = f"CASE WHEN is_dead THEN left(place, length(place) - {len(log.DEAD_LETTER_PATH)}) ELSE coalesce(place, '') END"
    path = f"CASE WHEN is_topic THEN substring_index(place, '{log.SUBSCRIPTIONS_PATH}', 1) ELSE {alive} END"
    marked = placed.selectExpr(
        "role",
        "source",
        "broken",
        "message_id",
        "sequence_number",
        "time",
        "detail",
        "session_id",
        "namespace",
        "place",
        "is_backlog",
        "is_dead",
        "is_topic",
        f"CASE WHEN kind <> '' THEN lower(kind) ELSE CASE role {default} END END AS kind",
        "CASE WHEN length(coalesce(sha256, body_sha256)) = 64 THEN unhex(coalesce(sha256, body_sha256)) END AS hash",
        f"ltrim('/', CASE WHEN destination <> '' THEN lower(destination) ELSE {path} END) AS destination",
        f"coalesce(broken, to_json(struct({', '.join(COLUMNS)}))) AS raw",
    )
    reasons = [
        ("broken IS NOT NULL", log.NOT_JSON),
        (f"kind NOT IN ({_quoted(KINDS)})", log.BAD_KIND),
        ("time IS NULL", log.NO_TIME),
        ("message_id IS NULL", log.NO_ID),
        (f"destination = '' AND kind NOT IN ({_quoted(NOTES)})", log.NO_DESTINATION),
    ]
    if with_body:
        bad = f"kind NOT IN ({_quoted((ENTITY_DELETED, *NOTES))}) AND hash IS NULL"
        reasons.append((bad, log.NO_HASH))
    cases = " ".join(f"WHEN {condition} THEN '{text}'" for condition, text in reasons)
    return marked.withColumn("reason", f.expr(f"CASE {cases} END"))


def _quoted(words: Sequence[str]) -> str:
    """Our own words as a list of SQL; nothing foreign is ever put into a query (D9)."""
    return ", ".join(f"'{word}'" for word in words)


_SENDS: Final = f"kind IN ({_quoted(SENDS)})"
_GONE: Final = f"kind IN ({_quoted(DELIVERIES)})"
_HELD: Final = f"kind IN ({_quoted(HELD)})"
_LAPSED: Final = f"(kind = '{EXPIRED}' OR ((kind = '{DEAD_LETTERED}' OR role = '{DEAD_LETTER}') AND coalesce(detail, '') = '{log.REASON_EXPIRED}'))"
_LEFT: Final = f"kind IN ({_quoted((*DELIVERIES, *REMOVED, EXPIRED, DEAD_LETTERED))})"
_QUEUE: Final = rf"regexp_replace(place, r'({re.escape(log.TRANSFER_DEAD_PATH)})?({re.escape(log.DEAD_LETTER_PATH)})?$', '')"
"""The backlog queue of a place, which may be its dead-letter queue."""
_THERE: Final = f"role = '{RECEIVED}' AND NOT is_backlog"
_QUEUED: Final = f"role = '{BACKLOG}' AND is_backlog AND NOT is_dead"
_ASIDE: Final = f"role = '{BACKLOG}' AND is_backlog AND is_dead"
_NO_MESSAGE: Final = f"kind IN ({_quoted((ENTITY_DELETED, *NOTES))})"
_LISTED: Final = f"role = '{DEAD_LETTER}' AND NOT {_NO_MESSAGE}"
_UP: Final = {
    "sent_backlog": f"role = '{SENT}' AND {_SENDS} AND is_backlog",
    "sent_direct": f"role = '{SENT}' AND {_SENDS} AND NOT is_backlog",
    "stored": f"{_THERE} AND kind = 'sent' AND NOT is_dead",
    "delivered": f"{_THERE} AND {_GONE} AND NOT is_dead AND NOT is_topic",
    "delivered_topic": f"{_THERE} AND {_GONE} AND NOT is_dead AND is_topic",
    "dead_there": f"{_THERE} AND kind = '{DEAD_LETTERED}' AND NOT {_LAPSED}",
    "expired_there": f"{_THERE} AND {_LAPSED}",
    "cancelled_there": f"{_THERE} AND kind = '{CANCELLED}' AND NOT is_dead",
    "parked": f"{_QUEUED} AND (kind = 'sent' OR {_HELD}) OR {_ASIDE} AND {_HELD} OR {_LISTED} AND is_backlog",
    "backlog": f"{_QUEUED} AND kind = 'sent'",
    "entered": f"{_QUEUED} AND kind = 'sent'",
    "drained": f"{_QUEUED} AND kind = '{DRAINED}'",
    "backlog_listed": f"{_QUEUED} AND {_HELD}",
    "aside": f"{_QUEUED} AND kind = '{DEAD_LETTERED}' AND NOT {_LAPSED}",
    "aside_listed": f"({_LISTED} AND is_backlog AND NOT {_LAPSED}) OR ({_ASIDE} AND {_HELD})",
    "dead": f"{_LISTED} AND NOT is_backlog AND NOT {_LAPSED}",
    "expired": f"{_QUEUED} AND {_LAPSED}",
    "dead_expired": f"{_LISTED} AND NOT is_backlog AND {_LAPSED}",
    "expired_listed": f"{_LISTED} AND is_backlog AND {_LAPSED}",
    "cancelled": f"({_QUEUED} OR {_ASIDE}) AND kind = '{CANCELLED}'",
    "spool": f"role = '{SPOOL}' AND NOT {_NO_MESSAGE}",
}
"""What a row says of its message, once. Those of OUTSIDE are counted later."""
_DOWN: Final = {"backlog": f"{_QUEUED} AND {_LEFT}", "aside": f"{_ASIDE} AND {_LEFT}"}
"""What it takes back: places in the backlog are counted up and down, so that a whole audit tells what is left there."""


def _said(
    judged: DataFrame,
    with_body: bool,
    names: Sequence[str],
    deletions: DataFrame | None,
    choice: Choice,
    since_ms: int | None,
) -> DataFrame:
    measures = []
    for name in names:
        down = f" WHEN {_DOWN[name]} THEN -1" if name in _DOWN else ""
        measures.append(
            f"CASE WHEN reason IS NOT NULL THEN 0 WHEN {_UP[name]} THEN 1{down} ELSE 0 END AS {name}"
        )
    is_other = _is_other(choice) if choice.leaves_out else f.lit(False)
    said = judged.withColumn("is_other", is_other).selectExpr(
        "role",
        "destination",
        "message_id",
        "hash AS body" if with_body else "CAST(NULL AS BINARY) AS body",
        "unix_millis(time) AS ms",
        "sequence_number",
        "session_id AS session",
        "namespace",
        "place",
        "reason IS NOT NULL AS is_quarantined",
        "is_other",
        *measures,
    )
    says = " OR ".join(f"{name} <> 0" for name in names)
    if since_ms is not None:
        says = f"({says}) AND ms >= {since_ms}L"
    status = f"CASE WHEN is_quarantined THEN 'quarantined' WHEN NOT ({says}) THEN 'other' WHEN is_other THEN '{LEFT_OUT}' END AS status"
    # Rows that say nothing have no key: they meet in one group for each status and are only counted.
    keyed = [f"CASE WHEN status IS NULL THEN {name} END AS {name}" for name in (*KEY, "session")]
    marked = said.selectExpr("*", status)
    columns = list(names)
    if deletions is not None:
        marked = marked.withColumn("of_queue", f.expr(_QUEUE)).join(
            deletions,
            (f.col("role") == BACKLOG)
            & (f.col("of_queue") == f.col("queue"))
            & f.col("namespace").eqNullSafe(f.col("of_namespace")),
            "left",
        )
        columns = [
            f"CASE WHEN ms <= deleted_ms THEN 0 ELSE {name} END AS {name}" if name in DELETABLE else name
            for name in names
        ]
    if choice.leaves_out or since_ms is not None:
        marked = marked.withColumns(
            {name: f.expr(f"CASE WHEN status IS NULL THEN {name} ELSE 0 END") for name in names}
        )
    return marked.selectExpr("role", "status", *keyed, "ms", "sequence_number", "place", *columns)
