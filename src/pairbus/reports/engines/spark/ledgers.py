"""Audit files as Spark rows, and what must be known of all of them before one counts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from pairbus.reports.engines.arrow.judging import MARKS, Question, measures_of
from pairbus.reports.engines.audit_log import COLUMNS, TRANSFER_PATH
from pairbus.reports.engines.gaps import Hidden, hidden_by
from pairbus.reports.engines.primaries import Choice, choose
from pairbus.reports.engines.spark.files import JSON_OPTIONS, mapped, time_column
from pairbus.reports.engines.spark.tasks import (
    FACT,
    HAS_SESSION,
    NAMELESS,
    ROLES,
    kind_facts,
    mark_facts,
    read_facts,
)
from pairbus.reports.inputs import Inputs, spark_path

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class Ledgers:
    inputs: Mapping[str, Inputs]
    rows: DataFrame
    """As they are in the files: COLUMNS, with milliseconds in ``time``; ``broken``, ``source`` and ROLES."""
    question: Question
    choice: Choice
    hidden: Hidden
    deletions: Mapping[tuple[str | None, str], int]
    is_nameless: bool
    """Messages without an id were parked."""
    has_sessions: bool


def read_ledgers(
    spark: SparkSession,
    inputs: Mapping[str, Inputs],
    with_body: bool,
    primaries: Sequence[str] = (),
    since_ms: int | None = None,
    until_ms: int | None = None,
) -> Ledgers:
    """The rows of the files of every role."""
    rows = reduce(lambda one, other: one.unionByName(other), _files(spark, inputs))
    has_session = f.col("session_id").isNotNull().alias(HAS_SESSION)
    kinds = rows.select(ROLES, "kind", "entity", "namespace", has_session).distinct()
    # The plain ``-`` lets Parquet pass over rows whose dictionary of kinds has none, and so does the plain ``=``.
    is_mark = f.contains("kind", f.lit("-")) & f.lower("kind").isin(*MARKS)
    is_nameless = (f.col("message_id") == "") & f.contains(f.lower("entity"), f.lit(TRANSFER_PATH))
    marks = rows.where(is_mark | is_nameless).drop("source")
    asked = Question(("sent_backlog",), with_body)
    of_kinds = mapped(kinds, kind_facts, FACT)
    of_marks = mapped(marks, partial(mark_facts, question=asked), FACT)
    texts = [row["fact"] for row in of_kinds.union(of_marks).distinct().collect()]
    facts, sayable, others = read_facts(texts)
    # Every column more is paid for by every message.
    measures = tuple(name for name in measures_of(inputs) if name in sayable)
    choice = choose(facts.seen, primaries)
    hidden = hidden_by(facts.notes, since_ms, until_ms, choice.unheard)
    question = Question(measures, with_body, since_ms)
    return Ledgers(
        inputs, rows, question, choice, hidden, facts.deletions, NAMELESS in others, HAS_SESSION in others
    )


def _files(spark: SparkSession, inputs: Mapping[str, Inputs]) -> Iterator[DataFrame]:
    """The rows of all files. A file that is given for several roles is read once."""
    fine = {path for found in inputs.values() for path in found.nanoseconds}
    files: dict[tuple[str, str], list[str]] = {}
    for path, roles in _roles({role: found.parquet for role, found in inputs.items()}).items():
        files.setdefault(("bigint" if path in fine else "timestamp", roles), []).append(path)
    for path, roles in _roles({role: found.lines for role, found in inputs.items()}).items():
        files.setdefault(("string", roles), []).append(path)
    for (time, roles), paths in files.items():
        yield _read(spark, [*map(spark_path, paths)], time).withColumn(ROLES, f.lit(roles))
    if not files:
        yield spark.createDataFrame([], _schema("bigint", "broken", "source", ROLES))


def _roles(paths: Mapping[str, Sequence[str]]) -> dict[str, str]:
    found: dict[str, list[str]] = {}
    for role, of_role in paths.items():
        for path in of_role:
            found.setdefault(path, []).append(role)
    return {path: ",".join(roles) for path, roles in found.items()}


def _read(spark: SparkSession, paths: Sequence[str], time: str) -> DataFrame:
    broken: Column = f.lit(None).cast("string")
    if time == "string":
        found = spark.read.schema(_schema(time, "_raw")).options(**JSON_OPTIONS).json([*paths])
        # A line that is no text cannot be passed as text.
        ms, broken = f.unix_millis(time_column("time")), f.make_valid_utf8("_raw")
    else:
        reader = spark.read.schema(_schema(time)).option("recursiveFileLookup", "true")
        found = reader.parquet(*paths)
        ms = f.unix_millis("time") if time == "timestamp" else f.expr("time div 1000000")
    columns = [ms.alias(name) if name == "time" else f.col(name) for name in COLUMNS]
    return found.select(*columns, broken.alias("broken"), f.col("_metadata.file_path").alias("source"))


def _schema(time: str, *texts: str) -> str:
    types = {"time": time, "sequence_number": "bigint"}
    return ", ".join(f"{name} {types.get(name, 'string')}" for name in (*COLUMNS, *texts))
