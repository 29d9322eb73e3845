"""Audit files as Spark rows, and what must be known of all of them before one counts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from pairbus.reports.columns import PLAIN, UNITS, Form
from pairbus.reports.engines.arrow.judging import MARKS, TYPES, Question, measures_of
from pairbus.reports.engines.audit_log import BACKLOG, COLUMNS, OLDER, TRANSFER_PATH
from pairbus.reports.engines.gaps import Hidden, hidden_by
from pairbus.reports.engines.primaries import Choice, choose
from pairbus.reports.engines.spark.files import SOURCE, VERIFY_PAGES, mapped, read_lines
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
    from pyspark.sql import DataFrame, SparkSession


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
    entered: Mapping[tuple[str | None, str], int] | None = None
    """See Facts. None if all times are asked about, and so is ``logged``."""
    logged: Sequence[str] | None = None
    """Destinations of which a ledger says what they stored."""


def read_rows(spark: SparkSession, inputs: Mapping[str, Inputs]) -> DataFrame:
    """The rows of the files of every role: ``Ledgers.rows``."""
    return reduce(lambda one, other: one.unionByName(other), _files(spark, inputs))


def read_ledgers(
    rows: DataFrame,
    inputs: Mapping[str, Inputs],
    with_body: bool,
    primaries: Sequence[str] = (),
    since_ms: int | None = None,
    until_ms: int | None = None,
) -> Ledgers:
    """What ``read_rows`` has read, and what must be known of it."""
    has_session = f.col("session_id").isNotNull().alias(HAS_SESSION)
    kinds = rows.select(ROLES, "kind", "entity", "namespace", has_session).distinct()
    # The plain ``-`` lets Parquet pass over rows whose dictionary of kinds has none, and so does the plain ``=``.
    is_mark = f.contains("kind", f.lit("-")) & f.lower("kind").isin(*MARKS)
    is_nameless = (f.col("message_id") == "") & f.contains(f.lower("entity"), f.lit(TRANSFER_PATH))
    marks = rows.where(is_mark | is_nameless).drop("source")
    asked = Question(("sent_backlog", "redriven"), with_body)
    of_kinds = mapped(kinds, kind_facts, FACT)
    of_marks = mapped(marks, partial(mark_facts, question=asked), FACT)
    texts = [row["fact"] for row in of_kinds.union(of_marks).distinct().collect()]
    facts, sayable, others = read_facts(texts)
    # Every column more is paid for by every message.
    is_later = since_ms is not None
    sayable |= set(OLDER) if is_later else set()
    measures = tuple(name for name in measures_of(inputs, with_older=is_later) if name in sayable)
    choice = choose(facts.seen, primaries)
    hidden = hidden_by(facts.notes, since_ms, until_ms, choice.unheard)
    question = Question(measures, with_body, since_ms)
    if since_ms is not None:
        for row in _numbers(rows, since_ms).collect():
            facts.enter(row["namespace"], row["entity"], row["number"])
    return Ledgers(
        inputs,
        rows,
        question,
        choice,
        hidden,
        facts.deletions,
        NAMELESS in others,
        HAS_SESSION in others,
        facts.entered if is_later else None,
        facts.logged_by(choice) if is_later else None,
    )


def _numbers(rows: DataFrame, since_ms: int) -> DataFrame:
    """The least sequence number that each backlog queue gave since: ``Facts.number``."""
    is_parked = f.contains(ROLES, f.lit(BACKLOG)) & f.contains(f.lower("entity"), f.lit(TRANSFER_PATH))
    is_sent = (f.lower("kind") == "sent") & (f.col("time") >= since_ms) & (f.col("sequence_number") > 0)
    found = rows.where(is_parked & is_sent).groupBy("namespace", "entity")
    return found.agg(f.min("sequence_number").alias("number"))


def _files(spark: SparkSession, inputs: Mapping[str, Inputs]) -> Iterator[DataFrame]:
    """The rows of all files. A file that is given for several roles is read once."""
    forms = {path: form for found in inputs.values() for path, form in found.forms.items()}
    files: dict[tuple[Form, str], list[str]] = {}
    for path, roles in _roles({role: found.parquet for role, found in inputs.items()}).items():
        files.setdefault((forms.get(path, PLAIN), roles), []).append(path)
    lines: dict[str, list[str]] = {}
    for path, roles in _roles({role: found.lines for role, found in inputs.items()}).items():
        lines.setdefault(roles, []).append(path)
    for (form, roles), paths in files.items():
        yield _read(spark, paths, form).withColumn(ROLES, f.lit(roles))
    for roles, paths in lines.items():
        yield read_lines(spark, paths, TYPES).withColumn(ROLES, f.lit(roles))
    if not files and not lines:
        texts = ", ".join(f"{name} string" for name in ("broken", SOURCE, ROLES))
        yield spark.createDataFrame([], f"{_schema(COLUMNS, 'bigint')}, {texts}")


def _roles(paths: Mapping[str, Sequence[str]]) -> dict[str, str]:
    found: dict[str, list[str]] = {}
    for role, of_role in paths.items():
        for path in of_role:
            found.setdefault(path, []).append(role)
    return {path: ",".join(roles) for path, roles in found.items()}


def _read(spark: SparkSession, paths: Sequence[str], form: Form) -> DataFrame:
    there = [name for name in COLUMNS if name not in form.absent]
    schema = _schema(there, "bigint" if form.unit else "timestamp")
    found = (
        spark.read.schema(schema)
        .option("recursiveFileLookup", "true")
        .option(VERIFY_PAGES, "true")
        .parquet(*map(spark_path, paths))
    )
    ms = f"time div {UNITS[form.unit]}" if form.unit else "unix_micros(time) div 1000"
    columns = [f.expr(ms).alias(name) if name == "time" else f.col(name) for name in there]
    absent = [f.lit(None).cast(_type(name)).alias(name) for name in form.absent]
    broken = f.lit(None).cast("string").alias("broken")
    return found.select(*columns, *absent, broken, f.col("_metadata.file_path").alias(SOURCE)).select(
        *COLUMNS, "broken", SOURCE
    )


def _schema(names: Sequence[str], time: str) -> str:
    return ", ".join(f"{name} {time if name == 'time' else _type(name)}" for name in names)


def _type(name: str) -> str:
    return "bigint" if name == "sequence_number" else "string"
