"""What the tasks of a certificate run: the rules of ``engines.arrow`` on the batches of one task. Functions for ``files.mapped``; everything they
are given is a plain value.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from pyarrow import compute as pc

from pairbus.errors import UsageError
from pairbus.reports.certificate.value import NAMED_MAX
from pairbus.reports.engines.arrow.answers import (
    COUNTS,
    LEFT_OUT,
    NAMED_SCHEMA,
    OTHER,
    QUARANTINED,
    USED,
    fate_rows,
    first_named,
    first_of,
    with_delays,
)
from pairbus.reports.engines.arrow.drains import apart, needed
from pairbus.reports.engines.arrow.fates import fates_of
from pairbus.reports.engines.arrow.grouping import allotted, claim, complete, surplus, with_slots
from pairbus.reports.engines.arrow.judging import (
    Facts,
    Question,
    counting,
    judged,
    quarantined,
    sayable,
    used_rows,
)
from pairbus.reports.engines.arrow.rows import LONG, TEXT, zeros
from pairbus.reports.engines.audit_log import BY_WAY, KEY, SENT
from pairbus.reports.engines.gaps import Hidden, Note
from pairbus.reports.engines.primaries import Choice, Seen
from pairbus.reports.engines.spark.files import NO_TEXT

Batches = Iterable[pa.RecordBatch]
Made = Iterator[pa.RecordBatch]
ROLES: Final = "roles"
"""The inputs that a row belongs to: a file may be given as several."""
TALLY: Final = [("tally", TEXT), ("row_count", LONG)]
"""Rows that are no messages: how many rows of an input were used, or not, and why not. Null for messages. The role is in ``destination`` and the
reason in ``message_id``.
"""
KNOWN: Final = pa.schema(
    [
        *TALLY,
        *((name, TEXT) for name in KEY),
        *((name, LONG) for name in COUNTS),
        *((name, LONG) for name in ("accepted_ms", "confirmed_ms", "arrived_ms", "stored_sequence")),
        ("session", TEXT),
        ("is_detoured", pa.bool_()),
        *((name, LONG) for name in ("messages", "delay", "bucket")),
        ("is_parked", pa.bool_()),
        ("minute", LONG),
        ("is_odd", pa.bool_()),
    ]
)
_FILE: Final = re.compile("^file:/+")


def _tables(batches: Batches) -> Iterator[pa.Table]:
    return (pa.Table.from_batches([batch]) for batch in batches)


def _of_roles(batches: Batches) -> Iterator[tuple[str, pa.Table]]:
    """The rows of each role."""
    for table in _tables(batches):
        try:
            table.validate(full=True)
        except pa.ArrowInvalid as error:
            raise UsageError(NO_TEXT) from error
        for roles in pc.unique(table[ROLES]).to_pylist():
            rows = table.filter(pc.equal(table[ROLES], roles))
            for role in roles.split(","):
                yield role, rows


# -- facts --------------------------------------------------------------------------------------------

FACT: Final = pa.schema([("fact", TEXT)])
_SEEN, _SAYS, _NOTE, _DELETED, _LOGGED = "seen", "says", "note", "deleted", "logged"
NAMELESS: Final = "nameless"
HAS_SESSION: Final = "has_session"


def _written(facts: Facts, others: Iterable[Sequence[str]]) -> Made:
    found: list[Sequence[Any]] = [(_SEEN, one.role, one.primary, one.namespace) for one in facts.seen]
    found += [(_NOTE, note.role, note.kind, note.namespace, note.ms, note.detail) for note in facts.notes]
    found += [(_DELETED, *queue, ms) for queue, ms in facts.deletions.items()]
    found += [(_LOGGED, *one) for one in facts.logged]
    found += others
    yield pa.record_batch([[json.dumps(fact) for fact in found]], schema=FACT)


def read_facts(texts: Iterable[str]) -> tuple[Facts, set[str], set[str]]:
    """What ``kind_facts`` and ``mark_facts`` have found: also the measures that rows may say, and which of NAMELESS (messages without
    an id were parked) and HAS_SESSION hold.
    """
    facts, measures, others = Facts(), set(), set()
    for kind, *values in map(json.loads, texts):
        if kind == _SEEN:
            facts.seen.add(Seen(*values))
        elif kind == _NOTE:
            facts.notes.add(Note(*values))
        elif kind == _DELETED:
            facts.delete(*values)
        elif kind == _LOGGED:
            facts.logged.add((values[0], values[1]))
        elif kind == _SAYS:
            measures.add(values[0])
        else:
            others.add(kind)
    return facts, measures, others


def kind_facts(batches: Batches) -> Made:
    """Of distinct ``kind``, ``entity`` and ``namespace``: what rows of these may say, and of which primaries."""
    facts, measures, has_session = Facts(), set(), False
    for role, rows in _of_roles(batches):
        facts.see(rows, role)
        measures |= sayable(rows, role)
        has_session = has_session or pc.any(rows[HAS_SESSION]).as_py()
    return _written(facts, [*((_SAYS, name) for name in measures), *[(HAS_SESSION,)] * has_session])


def mark_facts(batches: Batches, question: Question) -> Made:
    """Of rows that are not about one message, and of messages without an id."""
    facts, is_nameless = Facts(), False
    for role, rows in _of_roles(batches):
        found = judged(rows, role, question)
        facts.mark(found.marks, role)
        is_nameless = is_nameless or (role == SENT and found.said.num_rows > 0)
    return _written(facts, [(NAMELESS,)] * is_nameless)


# -- rows ---------------------------------------------------------------------------------------------


def said_rows(
    batches: Batches,
    question: Question,
    choice: Choice,
    deletions: Mapping[tuple[str | None, str], int],
    schema: pa.Schema,
    entered: Mapping[tuple[str | None, str], int] | None,
) -> Made:
    """The rows that count, with what they say of their messages; and how many do not."""
    tallies: Counter[tuple[str, str, str]] = Counter()
    for role, rows in _of_roles(batches):
        found = judged(rows, role, question)
        kept = counting(found.said, role, choice, deletions, entered)
        used = used_rows(kept, question.since_ms)
        tallies[USED, role, ""] += used
        tallies[LEFT_OUT, role, ""] += used_rows(found.said, question.since_ms) - used
        tallies[OTHER, role, ""] += found.other
        tallies.update((QUARANTINED, role, why) for why in found.reason.drop_null().to_pylist())
        yield from _filled(with_slots(kept, role, question.measures), schema)
    rows = [key for key, count in tallies.items() if count]
    columns = {
        "tally": pa.array([tally for tally, _, _ in rows], TEXT),
        "destination": pa.array([role for _, role, _ in rows], TEXT),
        "message_id": pa.array([why for _, _, why in rows], TEXT),
        "row_count": pa.array([tallies[key] for key in rows], LONG),
    }
    yield from _filled(pa.table(columns), schema)


def _filled(rows: pa.Table, schema: pa.Schema) -> Made:
    """The columns of a schema; those that are not there are 0 or null."""
    empty = {
        field.name: pa.nulls(rows.num_rows, field.type)
        if field.type == TEXT or field.name.endswith(("_ms", "_sequence"))
        else zeros(rows.num_rows, field.type)
        for field in schema
        if field.name not in rows.column_names
    }
    columns = [rows[name] if name in rows.column_names else empty[name] for name in schema.names]
    yield from pa.table(columns, schema=schema).combine_chunks().to_batches()


def quarantined_rows(batches: Batches, question: Question) -> Made:
    for role, rows in _of_roles(batches):
        reason = judged(rows, role, question).reason
        # Spark writes ``file:/`` for files of this machine, where others write ``file:///``.
        sources = rows["source"].filter(pc.is_valid(reason)).to_pylist()
        names = [_FILE.sub("file:///", source) for source in sources]
        yield from quarantined(rows, reason, role, names).to_batches()


CLAIMS: Final = pa.schema(
    [("entity", TEXT), ("of_id", TEXT), ("of_body", TEXT), ("claim", LONG), ("surplus", LONG)]
)
BY_WAYS: Final = pa.schema([("target", TEXT), ("of_id", TEXT), ("of_body", TEXT), (BY_WAY, LONG)])


def by_way_claims(batches: Batches) -> Made:
    """Of grouped rows, what ``grouping.allotted`` needs."""
    for table in _tables(batches):
        messages = complete(table)
        bodies = pc.fill_null(messages["body"], "")
        columns = [
            messages["destination"],
            messages["message_id"],
            bodies,
            claim(messages),
            surplus(messages),
        ]
        found = pa.table(columns, schema=CLAIMS)
        yield from found.filter(pc.greater(pc.add(found["claim"], found["surplus"]), 0)).to_batches()


def by_way(batches: Batches) -> Made:
    """Of all forwardings of some messages, ``grouping.allotted``."""
    rows = [tuple(row.values()) for table in _tables(batches) for row in table.to_pylist()]
    found = [(*name, number) for name, number in allotted(rows).items()]
    columns = [pa.array([row[at] for row in found], field.type) for at, field in enumerate(BY_WAYS)]
    yield from pa.table(columns, schema=BY_WAYS).to_batches()


def apart_counts(batches: Batches) -> Made:
    """Of all rows of some messages, ``drains.apart``."""
    found = [needed(table) for table in _tables(batches)]
    if found:
        yield from apart(pa.concat_tables(found)).to_batches()


# -- messages -----------------------------------------------------------------------------------------


def known_messages(
    batches: Batches, until_ms: int | None, hidden: Hidden, logged: Sequence[str] | None
) -> Made:
    """What became of the messages of grouped rows. Those that are simply there need no names."""
    for table in _tables(batches):
        known = with_delays(fates_of(complete(table), until_ms, hidden, logged))
        is_named = pc.or_(known["is_odd"], pc.is_valid(table["tally"]))
        columns = {name: known[name] for name in known.column_names} | {
            name: pc.if_else(is_named, known[name], None) for name in ("message_id", "body")
        }
        for name, _ in TALLY:
            columns[name] = table[name]
        made = [columns[name].cast(kind) for name, kind in zip(KNOWN.names, KNOWN.types, strict=True)]
        yield from pa.table(made, schema=KNOWN).to_batches()


def named_messages(batches: Batches) -> Made:
    """The first messages of each fate in this task."""
    found = NAMED_SCHEMA.empty_table()
    for table in _tables(batches):
        found = first_of([found, first_named(table)])
    yield from found.to_batches()


def fate_files(batches: Batches) -> Made:
    for table in _tables(batches):
        yield from fate_rows(table).to_batches()


SESSIONS: Final = pa.schema(
    [("destination", TEXT), ("session", TEXT), ("messages", LONG), ("latest", LONG), ("sessions", LONG)]
)


def first_sessions(batches: Batches) -> Made:
    """The first sessions of this task, those with the most overtaken messages first; and how many there are, in the last row."""
    found, count = SESSIONS.empty_table(), 0
    for table in _tables(batches):
        count += table.num_rows
        rows = table.append_column("sessions", zeros(table.num_rows))
        order = [("messages", "descending"), ("destination", "ascending"), ("session", "ascending")]
        found = (
            pa.concat_tables([found, rows.select(SESSIONS.names).cast(SESSIONS)])
            .sort_by(order)
            .slice(0, NAMED_MAX)
        )
    yield from found.to_batches()
    yield pa.record_batch([[None], [None], [0], [0], [count]], schema=SESSIONS)
