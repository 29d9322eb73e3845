"""The certificate of messages whose fates are known. Both engines answer the few questions that need all messages, and leave the rest to this module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, Protocol

import pyarrow as pa
from pyarrow import compute as pc

from pairbus.reports.certificate.value import (
    BOUNDS_MS,
    EPOCH,
    FATE_COLUMNS,
    FATES,
    MINUTE_MS,
    NAMED_FATES,
    NAMED_MAX,
    REASONS_MAX,
    THERE,
    Bar,
    Certificate,
    Named,
    ParkedMinute,
    RowCounts,
    SessionOrder,
    histogram_of,
    outages_of,
)
from pairbus.reports.engines.arrow.rows import LONG, TEXT
from pairbus.reports.engines.audit_log import KEY, ROLES
from pairbus.reports.engines.gaps import Hidden
from pairbus.reports.engines.primaries import Choice
from pairbus.reports.inputs import Inputs

USED: Final = "used"
OTHER: Final = "other"
LEFT_OUT: Final = "left out"
"""Rows about another primary, or about entities of the secondary itself."""
QUARANTINED: Final = "quarantined"
Tallies = Mapping[tuple[str, str, str], int]
"""How many rows of each role were used, or not, and why not."""

COUNTS: Final = ("accepted", "found", *FATE_COLUMNS, *THERE)
SUMMARY_KEY: Final = ("bucket", "is_parked", "minute")
SUMMARY: Final = {
    **{name: (name, "sum") for name in (*COUNTS, "messages")},
    "timed": ("delay", "count"),
    "slowest": ("delay", "max"),
    "sessions": ("session", "count"),
    "first": ("confirmed_ms", "min"),
    "last": ("confirmed_ms", "max"),
}
"""All counts by delay and, of parked messages, by the minute they were accepted in: small, and all that totals, delays and outages need."""


def with_delays(known: pa.Table) -> pa.Table:
    """Messages with what a summary needs: ``messages``, ``delay``, ``bucket``, ``is_parked``, ``minute``; and ``is_odd``: it has a fate to be named."""
    is_accepted = pc.greater(known["accepted"], 0)
    is_parked = pc.and_(known["is_detoured"], is_accepted)
    delay = pc.if_else(
        pc.greater(known["arrived"], 0), pc.subtract(known["arrived_ms"], known["accepted_ms"]), None
    )
    bucket = pc.if_else(pc.less(delay, 0), -1, 0)
    for bound in BOUNDS_MS:
        bucket = pc.add(bucket, pc.greater_equal(delay, bound).cast(pa.int64()))
    is_odd: Any = pa.scalar(False)
    for fate in NAMED_FATES:
        is_odd = pc.or_(is_odd, pc.greater(known[fate], 0))
    columns = {
        "messages": is_accepted.cast(LONG),
        "delay": delay,
        "bucket": bucket,
        "is_parked": is_parked,
        "minute": pc.if_else(is_parked, pc.divide(known["confirmed_ms"], MINUTE_MS), None),
        "is_odd": is_odd,
    }
    for name, column in columns.items():
        known = known.append_column(name, column)
    return known


def summary_of(known: pa.Table) -> pa.Table:
    found = known.group_by([*SUMMARY_KEY]).aggregate([*SUMMARY.values()])
    given = {f"{column}_{how}": name for name, (column, how) in SUMMARY.items()}
    return found.rename_columns([given.get(name, name) for name in found.column_names])


def fate_rows(known: pa.Table) -> pa.Table:
    """A row for each message and fate that is not the usual one, as files have it."""
    time = pa.timestamp("us", tz="UTC")
    known = known.filter(known["is_odd"])
    found = []
    for fate in NAMED_FATES:
        rows = known.filter(pc.greater(known[fate], 0))
        columns = {
            "fate": pa.array([fate] * rows.num_rows, TEXT),
            "destination": rows["destination"],
            "message_id": rows["message_id"],
            "sha256": rows["body"],
            "copies": rows[fate],
            "accepted_time": rows["accepted_ms"].cast(pa.timestamp("ms", tz="UTC")).cast(time),
            "arrived_time": rows["arrived_ms"].cast(pa.timestamp("ms", tz="UTC")).cast(time),
            "through_backlog": rows["is_detoured"],
        }
        found.append(pa.table(columns))
    return pa.concat_tables(found)


NAMED_SCHEMA: Final = pa.schema(
    [("fate", TEXT), *((name, TEXT) for name in KEY), ("copies", LONG), ("accepted_ms", LONG)]
)


def first_named(known: pa.Table) -> pa.Table:
    """The first few messages of each fate, in the order of their names."""
    return pa.concat_tables([NAMED_SCHEMA.empty_table(), *(_first(known, fate) for fate in NAMED_FATES)])


def _first(known: pa.Table, fate: str) -> pa.Table:
    rows = known.filter(pc.greater(known[fate], 0)).sort_by([(name, "ascending") for name in KEY])
    rows = rows.slice(0, NAMED_MAX)
    columns = [pa.array([fate] * rows.num_rows, TEXT), *(rows[name] for name in KEY)]
    return pa.table([*columns, rows[fate], rows["accepted_ms"]], schema=NAMED_SCHEMA)


def first_of(named: Sequence[pa.Table]) -> pa.Table:
    """The first of several results of ``first_named``."""
    rows = pa.concat_tables([NAMED_SCHEMA.empty_table(), *named])
    rows = rows.sort_by([(name, "ascending") for name in ("fate", *KEY)])
    fates = [rows.filter(pc.equal(rows["fate"], fate)).slice(0, NAMED_MAX) for fate in NAMED_FATES]
    return pa.concat_tables(fates)


class Known(Protocol):
    """All messages with their fates."""

    def summary(self) -> tuple[list[dict[str, Any]], Tallies]:
        """The rows of SUMMARY, and of how many rows they are."""

    def named(self) -> pa.Table:
        """As ``first_named``."""

    def altered(self) -> int:
        """How many lost messages came to their destination with another body."""

    def reordered(self) -> tuple[Bar, ...]:
        """Messages that arrived after one of their destination that was accepted later, by how much later."""

    def session_order(self) -> SessionOrder:
        """The same inside of sessions."""


def certify(
    known: Known, inputs: Mapping[str, Inputs], choice: Choice, hidden: Hidden, *, with_order: bool
) -> Certificate:
    summary, tallies = known.summary()
    totals = {name: sum(row[name] for row in summary) for name in (*COUNTS, "messages", "sessions")}
    order = known.reordered() if with_order else None
    has_sessions = totals["sessions"] > 0 and order is not None
    certificate = Certificate(
        accepted=totals["accepted"],
        received=totals["found"],
        messages=totals["messages"],
        detoured=sum(row["messages"] for row in summary if row["is_parked"]),
        fates={fate: totals[fate] for fate in FATE_COLUMNS},
        altered=known.altered() if totals["lost"] and totals["unexpected"] else 0,
        at_destination={name: totals[name] for name in THERE},
        named=_named(known) if any(totals[fate] for fate in NAMED_FATES) else {},
        rows={role: _row_counts(tallies, role) for role in ROLES},
        reasons=_reasons(tallies),
        delays=histogram_of(
            (row["bucket"], row["is_parked"], row["timed"]) for row in summary if row["timed"]
        ),
        reordered=order,
        session_order=(known.session_order() if order else SessionOrder(0, ())) if has_sessions else None,
        outages=outages_of(_minutes(summary)),
        journals=tuple(sorted({path for found in inputs.values() for path in found.journals})),
        repeated_parts=sum(len(found.repeated) for found in inputs.values()),
        left_out=sum(count for (tally, _, _), count in tallies.items() if tally == LEFT_OUT),
        doubt=choice.doubt,
        unasked=choice.unasked,
        gaps=hidden.relevant(totals["unproven"]),
    )
    certificate.check()
    return certificate


def _row_counts(tallies: Tallies, role: str) -> RowCounts:
    def rows(*wanted: str) -> int:
        return sum(count for (tally, of, _), count in tallies.items() if of == role and tally in wanted)

    return RowCounts(rows(USED), rows(OTHER, LEFT_OUT), rows(QUARANTINED))


def _reasons(tallies: Tallies) -> dict[str, int]:
    counts = sorted((role, why, count) for (tally, role, why), count in tallies.items() if tally == QUARANTINED)  # fmt: skip
    return {f"{role}: {why}": count for role, why, count in counts[:REASONS_MAX]}


def _named(known: Known) -> dict[str, tuple[Named, ...]]:
    rows = known.named().to_pylist()
    return {
        fate: tuple(
            Named(
                row["destination"],
                row["message_id"],
                row["body"] or "",
                row["copies"],
                None if row["accepted_ms"] is None else EPOCH + timedelta(milliseconds=row["accepted_ms"]),
            )
            for row in rows
            if row["fate"] == fate
        )
        for fate in dict.fromkeys(row["fate"] for row in rows)
    }


def _minutes(summary: Sequence[Mapping[str, Any]]) -> list[ParkedMinute]:
    """The minutes in which messages were parked, whatever the number of messages; one for each delay."""
    counted = ("arrived", *FATES, "absorbed")
    return [
        ParkedMinute(
            row["minute"], row["first"], row["last"], row["accepted"], {fate: row[fate] for fate in counted}, row["slowest"]
        )
        for row in summary
        if row["minute"] is not None
    ]  # fmt: skip
