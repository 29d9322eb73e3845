"""The certificate in this process: the rows of all ledgers grouped by (destination, message id, body hash)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa
from pyarrow import compute as pc

from pairbus.reports.certificate.value import Bar, Certificate, SessionOrder
from pairbus.reports.engines.arrow.answers import (
    LEFT_OUT,
    OTHER,
    QUARANTINED,
    USED,
    Tallies,
    certify,
    fate_rows,
    first_named,
    summary_of,
    with_delays,
)
from pairbus.reports.engines.arrow.fates import fates_of
from pairbus.reports.engines.arrow.grouping import grouped, nothing, with_slots
from pairbus.reports.engines.arrow.judging import (
    QUARANTINE,
    TYPES,
    Facts,
    Question,
    counting,
    judged,
    measures_of,
    quarantined,
    used_rows,
)
from pairbus.reports.engines.arrow.order import reordered, session_order
from pairbus.reports.engines.arrow.rows import read_lines, read_parquet, source_uri, write_table
from pairbus.reports.engines.audit_log import BACKLOG
from pairbus.reports.engines.gaps import hidden_by
from pairbus.reports.engines.primaries import choose
from pairbus.reports.inputs import Inputs


@dataclass(frozen=True, slots=True)
class Reconciled:
    """The certificate and the rows it rests on."""

    certificate: Certificate
    messages: pa.Table
    """One row for each message: KEY, ``accepted``, ``found``, FATE_COLUMNS, ``accepted_ms``, ``arrived_ms``, ``is_detoured``."""
    quarantined: pa.Table

    def write(self, directory: str) -> None:
        """Write ``DIR/messages`` (every message that is not simply where it should be) and ``DIR/quarantine``."""
        write_table(directory, "messages", fate_rows(self.messages))
        if self.quarantined.num_rows:
            write_table(directory, "quarantine", self.quarantined)


@dataclass(frozen=True, slots=True)
class _Known:
    """``answers.Known`` of one table."""

    messages: pa.Table
    tallies: Tallies

    def summary(self) -> tuple[list[dict[str, Any]], Tallies]:
        return summary_of(self.messages).to_pylist(), self.tallies

    def named(self) -> pa.Table:
        return first_named(self.messages)

    def altered(self) -> int:
        def names(fate: str) -> set[tuple[str, str]]:
            rows = self.messages.filter(pc.greater(self.messages[fate], 0))
            return set(zip(rows["destination"].to_pylist(), rows["message_id"].to_pylist(), strict=True))

        return sum(message_id != "" for _, message_id in names("lost") & names("unexpected"))

    def reordered(self) -> tuple[Bar, ...]:
        return reordered(self.messages)

    def session_order(self) -> SessionOrder:
        return session_order(self.messages)


class _Reader:
    """Reads the rows of ledgers, and counts those that say nothing."""

    def __init__(self, question: Question) -> None:
        self.facts = Facts()
        self.tallies: Counter[tuple[str, str, str]] = Counter()
        self.quarantined: list[pa.Table] = []
        self._question = question

    def read(self, role: str, inputs: Inputs) -> list[pa.Table]:
        found = [self._said(read_parquet(path, TYPES), role, path) for path in inputs.parquet]
        return found + [self._said(read_lines(path, TYPES), role, path) for path in inputs.lines]

    def _said(self, rows: pa.Table, role: str, path: str) -> pa.Table:
        self.facts.see(rows, role)
        if role == BACKLOG and self._question.since_ms is not None:
            self.facts.number(rows, self._question.since_ms)
        found = judged(rows, role, self._question)
        self.facts.mark(found.marks, role)
        self.tallies[OTHER, role, ""] += found.other
        if why := found.reason.drop_null().to_pylist():
            self.tallies.update((QUARANTINED, role, text) for text in why)
            self.quarantined.append(quarantined(rows, found.reason, role, [source_uri(path)] * len(why)))
        return found.said


def reconcile(
    inputs: Mapping[str, Inputs],
    until: datetime | None = None,
    *,
    with_body: bool = True,
    with_order: bool = True,
    primaries: Sequence[str] = (),
    since: datetime | None = None,
) -> Reconciled:
    """Judge every message. Sends at or after ``until`` that are nowhere yet are in flight, not lost. Rows before ``since`` do not count.

    Raises:
        UsageError: A file is damaged.
    """
    since_ms, until_ms = (
        None if moment is None else int(moment.timestamp() * 1000) for moment in (since, until)
    )
    question = Question(measures_of(inputs, with_older=since_ms is not None), with_body, since_ms)
    reader = _Reader(question)
    read = {role: reader.read(role, found) for role, found in inputs.items()}
    choice = choose(reader.facts.seen, primaries)
    hidden = hidden_by(reader.facts.notes, since_ms, until_ms, choice.unheard)
    entered = None if since_ms is None else reader.facts.entered
    logged = None if since_ms is None else reader.facts.logged_by(choice)
    rows = [nothing(question.measures)]
    for role, parts in read.items():
        for part in parts:
            kept = counting(part, role, choice, reader.facts.deletions, entered)
            used = used_rows(kept, since_ms)
            reader.tallies[USED, role, ""] += used
            reader.tallies[LEFT_OUT, role, ""] += used_rows(part, since_ms) - used
            rows.append(with_slots(kept, role, question.measures))
    messages = grouped(pa.concat_tables(rows), question.measures)
    known = with_delays(fates_of(messages, until_ms, hidden, logged))
    certificate = certify(_Known(known, reader.tallies), inputs, choice, hidden, with_order=with_order)
    return Reconciled(certificate, known, pa.concat_tables([QUARANTINE.empty_table(), *reader.quarantined]))
