"""The rows of all ledgers as one row for each message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
from pyarrow import compute as pc

from pairbus.reports.engines.arrow.rows import LONG, TEXT
from pairbus.reports.engines.audit_log import (
    DELIVERED_TOPIC,
    GREATEST,
    KEY,
    LEAST,
    LISTED,
    MEASURES,
    OUTSIDE,
)

_HOW: Final = {"ms": "min", "sequence_number": "min", "session": "max"}


def grouped(rows: pa.Table, measures: Sequence[str]) -> pa.Table:
    """One row for each key, with every measure added up (0 where no input can say it) and the columns of LEAST and GREATEST."""
    rows = _outside_counted(rows, measures)
    if DELIVERED_TOPIC in measures:
        rows = _topics_joined(rows, measures)
    aggregates: list[tuple[str, str]] = [
        (name, "max" if name == DELIVERED_TOPIC else "sum") for name in measures
    ]
    aggregates.append(("session", "max"))
    for name, (column, said_by) in (*LEAST.items(), *GREATEST.items()):
        says = pa.scalar(False)
        for measure in said_by:
            if measure in measures:
                says = pc.or_(says, pc.greater(rows[measure], 0))
        values = pc.if_else(says, rows[column], pa.scalar(None, LONG))
        rows = rows.append_column(
            name, values if not isinstance(values, pa.Scalar) else pa.nulls(rows.num_rows, LONG)
        )
        aggregates.append((name, "min" if name in LEAST else "max"))
    found = _renamed(rows.group_by([*KEY]).aggregate(aggregates), KEY)
    for name in MEASURES:
        column = found[name].cast(LONG) if name in measures else pa.array([0] * found.num_rows, LONG)
        found = found.drop_columns([name]) if name in measures else found
        found = found.append_column(name, column)
    return found


def listed_once(rows: pa.Table, measures: Sequence[str]) -> pa.Table:
    """The rows of one input without repetitions of listings: the same place and sequence number is the same message."""
    says: Any = pa.scalar(False)
    for name in LISTED:
        if name in measures:
            says = pc.or_(says, pc.greater(rows[name], 0))
    if isinstance(says, pa.Scalar):
        return rows
    is_listed = pc.and_(says, pc.fill_null(pc.greater(rows["sequence_number"], 0), False))
    listed = rows.filter(is_listed)
    if not listed.num_rows:
        return rows
    names = [*KEY, "place", "sequence_number"]
    how = {**_HOW, **dict.fromkeys(measures, "max")}
    rest = [name for name in rows.column_names if name not in names]
    once = _renamed(listed.group_by(names).aggregate([(name, how[name]) for name in rest]), names)
    others = rows.filter(pc.invert(is_listed))
    return pa.concat_tables([others, once.select(rows.column_names).cast(rows.schema)])


def _outside_counted(rows: pa.Table, measures: Sequence[str]) -> pa.Table:
    """Of messages without an id the sends and arrivals at their destination that the drain cannot have made: before the first was parked, or
    after the last was drained.
    """
    names = [name for name in OUTSIDE if name in measures]
    is_nameless = pc.equal(rows["message_id"], "")
    if (
        "sent_backlog" not in measures
        or not pc.any(pc.and_(is_nameless, pc.greater(rows["sent_backlog"], 0))).as_py()
    ):
        return rows
    key = ["destination", "hash"]
    marked = rows.append_column("hash", pc.fill_null(rows["body"], "")).append_column(
        "at", pa.array(range(rows.num_rows), LONG)
    )
    bounds = _drained_between(marked.filter(is_nameless), measures, key)
    found = marked.select([*key, "at"]).filter(is_nameless).join(bounds, key, join_type="inner")
    first, last = _by_row(found, "first_ms", rows.num_rows), _by_row(found, "last_ms", rows.num_rows)
    is_outside = pc.or_(
        pc.fill_null(pc.less(rows["ms"], first), False), pc.fill_null(pc.greater(rows["ms"], last), False)
    )
    for name in names:
        column = pc.if_else(is_outside, rows[OUTSIDE[name]], pa.scalar(0, pa.int8()))
        rows = rows.set_column(rows.column_names.index(name), name, column)
    return rows


def _drained_between(rows: pa.Table, measures: Sequence[str], key: Sequence[str]) -> pa.Table:
    """Of each message without an id that was parked: when the first was parked, and when the last was drained; null if that is not known."""
    zero, none = pa.array([0] * rows.num_rows, LONG), pa.scalar(None, LONG)
    is_drained = pc.greater(rows["drained"], 0) if "drained" in measures else pc.less(zero, 0)
    columns = {
        **{name: rows[name] for name in key},
        "sent": rows["sent_backlog"].cast(LONG),
        "entered": rows["entered"].cast(LONG) if "entered" in measures else zero,
        "first": pc.if_else(pc.greater(rows["sent_backlog"], 0), rows["ms"], none),
        "drained": pc.if_else(is_drained, rows["ms"], none),
    }
    sums = (
        pa.table(columns)
        .group_by([*key])
        .aggregate([("sent", "sum"), ("entered", "sum"), ("first", "min"), ("drained", "max")])
    )
    sums = sums.filter(pc.is_valid(sums["first_min"]))
    last = pc.coalesce(sums["drained_max"], pc.subtract(sums["first_min"], 1))
    last = pc.if_else(pc.less(sums["entered_sum"], sums["sent_sum"]), none, last)
    return pa.table({**{name: sums[name] for name in key}, "first_ms": sums["first_min"], "last_ms": last})


def _by_row(found: pa.Table, name: str, count: int) -> pa.Array:
    """The values of a column at the rows that ``at`` numbers, null at the others."""
    values: list[int | None] = [None] * count
    for at, value in zip(found["at"].to_pylist(), found[name].to_pylist(), strict=True):
        values[at] = value
    return pa.array(values, LONG)


def _topics_joined(rows: pa.Table, measures: Sequence[str]) -> pa.Table:
    """Deliveries by several subscriptions are one arrival at the topic: of each message the subscription with the most counts."""
    is_topic = pc.greater(rows[DELIVERED_TOPIC], 0)
    numbers = [*measures, "ms", "sequence_number"]
    texts = [*KEY, "session"]
    plain = rows.filter(pc.invert(is_topic)).drop_columns(["place"])
    topics = rows.filter(is_topic)
    if not topics.num_rows:
        return plain
    topics = _renamed(
        topics.group_by([*KEY, "place"]).aggregate(
            [(name, _HOW.get(name, "sum")) for name in (*numbers, "session")]
        ),
        (*KEY, "place"),
    )
    topics = topics.select([*texts, *numbers])
    plain = plain.select([*texts, *numbers])
    schema = pa.schema(
        [plain.schema.field(name) if name in texts else pa.field(name, LONG) for name in plain.column_names]
    )
    return pa.concat_tables([plain.cast(schema), topics.cast(schema)])


def _renamed(found: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Aggregated columns without the name of what was done with them."""
    return found.rename_columns(
        [name if name in keys else name.rpartition("_")[0] for name in found.column_names]
    )


def nothing(measures: Sequence[str]) -> pa.Table:
    """Rows of no ledger."""
    texts = [(name, TEXT) for name in (*KEY, "place", "session")]
    numbers = [(name, LONG) for name in ("ms", "sequence_number")]
    return pa.schema([*texts, *numbers, *((name, pa.int8()) for name in measures)]).empty_table()
