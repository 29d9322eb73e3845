"""The rows of all ledgers as one row for each message."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from pyarrow import compute as pc

from pairbus.reports.engines.arrow.drains import COPY, apart, needed
from pairbus.reports.engines.arrow.rows import LONG, TEXT, zeros
from pairbus.reports.engines.audit_log import (
    AGAIN,
    APART,
    BACKLOG,
    BY_WAY,
    DELIVERED_TOPIC,
    GREATEST,
    KEY,
    LEAST,
    LISTED,
    MEASURES,
    OUTSIDE,
    TOPICS,
)

SLOT: Final = "slot"
"""What rows of a message are seen together in before they count: of a listing, rows with the same place and sequence number, which are the same
message however often it is listed; of a topic, the deliveries of one subscription; of a forwarding, the entity that the messages came from. Null for
all other rows.
"""
SENDS_NAMED: Final = ("sent_direct", "sent_backlog", "redriven", "sent_older")
"""What says that somebody sent a copy to an entity."""
ONCE: Final = ("parked", *LISTED)
"""What the rows of one slot say once."""


def how(measures: Sequence[str]) -> dict[str, str]:
    """The columns of grouped rows, and how those of several rows become one."""
    found = dict.fromkeys(measures, "sum")
    for columns, of in ((LEAST, "min"), (GREATEST, "max")):
        found |= {name: of for name, (_, said_by) in columns.items() if not set(said_by).isdisjoint(measures)}
    return {**found, "session": "max"}


def how_at_last(measures: Sequence[str]) -> dict[str, str]:
    """The same for rows of which each is a slot: deliveries by several subscriptions are one arrival at the topic, so of each message the
    subscription with the most counts.
    """
    found = how(measures)
    return {**found, **{name: "max" for name in TOPICS if name in found}}


def with_slots(said: pa.Table, role: str, measures: Sequence[str]) -> pa.Table:
    """Rows that can be grouped: KEY, ``ms``, SLOT, COPY and the columns of ``how``."""
    columns = {name: said[name] for name in (*KEY, "ms")}
    columns[SLOT] = _slots(said, role, measures)
    columns[COPY] = _copies(said, role, measures)
    columns |= {name: said[name] for name in measures}
    for name, (column, said_by) in (*LEAST.items(), *GREATEST.items()):
        says = _says(said, [measure for measure in said_by if measure in measures])
        if says is not None:
            columns[name] = pc.if_else(says, said[column], pa.scalar(None, LONG))
    return pa.table({**columns, "session": said["session"]})


def _says(rows: pa.Table, measures: Sequence[str]) -> Any:
    """Whether each row says one of the measures; None if none can."""
    found = None
    for name in measures:
        says = pc.greater(rows[name], 0)
        found = says if found is None else pc.or_(found, says)
    return found


def _slots(said: pa.Table, role: str, measures: Sequence[str]) -> Any:
    slots: Any = pa.nulls(said.num_rows, TEXT)
    listed = _says(said, [name for name in LISTED if name in measures])
    if listed is not None:
        is_slot = pc.and_(listed, pc.fill_null(pc.greater(said["sequence_number"], 0), False))
        if pc.any(is_slot).as_py():
            numbers = said["sequence_number"].cast(TEXT)
            names = pc.binary_join_element_wise(role, pc.fill_null(said["place"], ""), numbers, "\n")
            slots = pc.if_else(is_slot, names, slots)
    of_topic = _says(said, [name for name in TOPICS if name in measures])
    if of_topic is not None:
        slots = pc.if_else(of_topic, said["place"], slots)
    if "forwarded_in" in measures:
        slots = pc.if_else(pc.greater(said["forwarded_in"], 0), said["place"], slots)
    return slots


def _copies(said: pa.Table, role: str, measures: Sequence[str]) -> pa.Array:
    """COPY of rows about messages without an id."""
    none = pa.nulls(said.num_rows, TEXT)
    says = _says(said, [name for name in ("entered", "entered_again", "drained") if name in measures])
    if role != BACKLOG or says is None:
        return none
    is_numbered = pc.fill_null(pc.greater(said["sequence_number"], 0), False)
    is_copy = pc.and_(pc.and_(says, is_numbered), pc.equal(said["message_id"], ""))
    if not pc.any(is_copy).as_py():
        return none
    names = pc.binary_join_element_wise(
        pc.fill_null(said["namespace"], ""), said["place"], said["sequence_number"].cast(TEXT), "\n"
    )
    return pc.if_else(is_copy, names, none)


def grouped(rows: pa.Table, measures: Sequence[str]) -> pa.Table:
    """One row for each message, with the columns of ``complete``."""
    found = None
    if _is_nameless_parked(rows, measures):
        found = apart(needed(rows.filter(pc.equal(rows["message_id"], ""))))
        rows, measures = _outside_counted(rows, measures)
    is_slot = pc.is_valid(rows[SLOT])
    forwardings = None
    if pc.any(is_slot).as_py():
        slots = _grouped(rows.filter(is_slot), (*KEY, SLOT), how(measures))
        for name in ONCE:
            if name in measures:
                once = pc.min_element_wise(slots[name], pa.scalar(1, LONG))
                slots = slots.set_column(slots.column_names.index(name), name, once)
        if "forwarded_in" in measures:
            forwardings = slots.filter(pc.greater(slots["forwarded_in"], 0))
        others = rows.filter(pc.invert(is_slot)).select(slots.column_names)
        rows = pa.concat_tables([others.cast(slots.schema), slots])
    messages = _dropped_counted(complete(_grouped(rows, KEY, how_at_last(measures))))
    if found is not None:
        messages = _apart_counted(messages, found)
    return messages if forwardings is None else _by_way_counted(messages, forwardings)


def _grouped(rows: pa.Table, key: Sequence[str], columns: Mapping[str, str]) -> pa.Table:
    found = rows.group_by([*key]).aggregate([*columns.items()])
    return found.rename_columns(
        [name if name in key else name.rpartition("_")[0] for name in found.column_names]
    )


def complete(rows: pa.Table) -> pa.Table:
    """Grouped rows with every measure (0 where no input can say it) and the columns of LEAST and GREATEST."""
    there = set(rows.column_names)
    columns = {name: rows[name] for name in KEY}
    columns["session"] = rows["session"] if "session" in there else pa.nulls(rows.num_rows, TEXT)
    for name in MEASURES:
        columns[name] = rows[name].cast(LONG) if name in there else zeros(rows.num_rows)
    for name in (*LEAST, *GREATEST):
        columns[name] = rows[name] if name in there else pa.nulls(rows.num_rows, LONG)
    return pa.table(columns)


def _is_nameless_parked(rows: pa.Table, measures: Sequence[str]) -> bool:
    # Of a message that was parked before the rows, perhaps only that it was put back is known.
    is_parked = _says(rows, [name for name in ("sent_backlog", "redriven") if name in measures])
    if is_parked is None:
        return False
    return bool(pc.any(pc.and_(pc.equal(rows["message_id"], ""), is_parked)).as_py())


def _apart_counted(messages: pa.Table, found: pa.Table) -> pa.Table:
    """With APART."""
    keys = list(zip(*(messages[name].to_pylist() for name in KEY), strict=True))
    names = list(zip(*(found[name].to_pylist() for name in KEY), strict=True))
    for name in APART:
        numbers = dict(zip(names, found[name].to_pylist(), strict=True))
        column = pa.array([numbers.get(key, 0) for key in keys], LONG)
        messages = messages.set_column(messages.column_names.index(name), name, column)
    return messages


def _outside_counted(rows: pa.Table, measures: Sequence[str]) -> tuple[pa.Table, Sequence[str]]:
    """With OUTSIDE and AGAIN, if messages without an id were parked: of messages without an id the sends and arrivals at their destination that the drain cannot have made, because they were before
    the first was parked, or after the last was drained; and the sends that may be of one that was dead-lettered.
    """
    is_nameless = pc.equal(rows["message_id"], "")
    key = ["destination", "hash"]
    marked = rows.append_column("hash", pc.fill_null(rows["body"], "")).append_column(
        "at", pa.array(range(rows.num_rows), LONG)
    )
    nameless = marked.filter(is_nameless)
    parked = complete(_grouped(nameless, KEY, how(measures)))
    parked = parked.filter(pc.is_valid(parked["backlog_ms"]))
    bounds = pa.table({"destination": parked["destination"], "hash": pc.fill_null(parked["body"], ""), **drained_between(parked)})  # fmt: skip
    found = nameless.select([*key, "at"]).join(bounds, key, join_type="inner")
    first, last, aside = (_by_row(found, name, rows.num_rows) for name in ("first_ms", "last_ms", "aside_ms"))
    is_after, is_again = (pc.fill_null(pc.greater(rows["ms"], ms), False) for ms in (last, aside))
    is_outside = pc.or_(pc.fill_null(pc.less(rows["ms"], first), False), is_after)
    conditions = {"parked_again": is_again, "direct_again": pc.and_(is_again, is_after)}
    added = {name: of for name, of in {**OUTSIDE, **AGAIN}.items() if of in measures}
    for name, of in added.items():
        said = pc.if_else(conditions.get(name, is_outside), rows[of], pa.scalar(0, pa.int8()))
        rows = rows.append_column(name, said)
    return rows, (*measures, *added)


def drained_between(parked: pa.Table) -> dict[str, Any]:
    """Of messages that were parked: when the first was parked, when the last was drained, and when the first was dead-lettered; null if that is not known."""
    last = pc.coalesce(parked["drained_ms"], pc.subtract(parked["backlog_ms"], 1))
    is_partly_known = pc.less(parked["entered"], parked["sent_backlog"])
    return {
        "first_ms": parked["backlog_ms"],
        "last_ms": pc.if_else(is_partly_known, pa.scalar(None, LONG), last),
        "aside_ms": parked["aside_ms"],
    }


def _dropped_counted(messages: pa.Table) -> pa.Table:
    """Without ``dropped`` where rows name another body with the same id. An entity compares ids only: it may have that one."""
    dropped = messages.filter(pc.greater(messages["dropped"], 0))
    if not dropped.num_rows:
        return messages
    places = list(zip(*(messages[name].to_pylist() for name in KEY[:2]), strict=True))
    bodies = Counter(places)
    is_only = pa.array([bodies[place] == 1 for place in places], pa.bool_())
    column = pc.if_else(is_only, messages["dropped"], 0)
    return messages.set_column(messages.column_names.index("dropped"), "dropped", column)


def _by_way_counted(messages: pa.Table, forwardings: pa.Table) -> pa.Table:
    """With BY_WAY: a send by way of another entity, in a transaction, was stored there, and nobody says that it was sent there. The sender names the
    entity that it was forwarded to. Of these, as many are found as came from entities with copies that nobody sent there.
    """
    claims, surpluses = claim(messages), surplus(messages)
    if not pc.any(pc.greater(claims, 0)).as_py():
        return messages
    names = list(zip(*(messages[name].to_pylist() for name in KEY), strict=True))
    claimed = dict(zip(names, claims.to_pylist(), strict=True))
    left = dict(zip(names, surpluses.to_pylist(), strict=True))
    columns = (forwardings[name].to_pylist() for name in (SLOT, *KEY, "forwarded_in"))
    by_way = allotted(
        (source, target, *name, count, claimed.get((target, *name), 0), left.get((source, *name), 0))
        for source, target, *name, count in zip(*columns, strict=True)
    )
    column = pa.array([by_way.get(name, 0) for name in names], LONG)
    return messages.set_column(messages.column_names.index(BY_WAY), BY_WAY, column)


def allotted(forwardings: Iterable[Sequence[Any]]) -> dict[tuple[Any, ...], int]:
    """BY_WAY of each message. Of each forwarding: the entities that it came from and went to, message id, body and number; and the ``claim`` of the
    one, and the ``surplus`` of the other entity. What came from an entity counts once.
    """
    found: dict[tuple[Any, ...], int] = {}
    taken: Counter[tuple[Any, ...]] = Counter()
    entries = [(target, source, name, body or "", body, *numbers) for source, target, name, body, *numbers in forwardings]  # fmt: skip
    for target, source, name, _, body, count, claims, left in sorted(entries, key=lambda entry: entry[:4]):
        at, of = (target, name, body), (source, name, body)
        number = max(0, min(count, claims - found.get(at, 0), left - taken[of]))
        found[at] = found.get(at, 0) + number
        taken[of] += number
    return found


def claim(messages: pa.Table) -> Any:
    """How many sends to an entity may have been by way of another one: those that it did not store itself."""
    own = pc.subtract(_arrivals(messages), messages["forwarded_in"])
    claims = pc.min_element_wise(
        messages["forwarded_in"], pc.subtract(messages["sent_direct"], pc.max_element_wise(own, 0))
    )
    return pc.if_else(pc.greater(messages["stored"], 0), 0, pc.max_element_wise(claims, 0))


def surplus(messages: pa.Table) -> Any:
    """How many copies came to an entity, neither sent there nor forwarded."""
    own = pc.max_element_wise(pc.subtract(_arrivals(messages), messages["forwarded_in"]), 0)
    # A transaction forwards at once: what is still there is none of its sends.
    left = pc.add(messages["delivered"], messages[DELIVERED_TOPIC])
    found = pc.if_else(pc.greater(messages["stored"], 0), pc.min_element_wise(messages["stored"], left), own)
    for name in SENDS_NAMED:
        found = pc.subtract(found, messages[name])
    return pc.max_element_wise(found, 0)


def _arrivals(messages: pa.Table) -> Any:
    handed_out = pc.add(messages["delivered"], messages[DELIVERED_TOPIC])
    dead = pc.min_element_wise(pc.max_element_wise(messages["dead_there"], messages["dead_taken"]), 1)
    return pc.if_else(pc.greater(handed_out, 0), handed_out, dead)


def _by_row(found: pa.Table, name: str, count: int) -> pa.Array:
    """The values of a column at the rows that ``at`` numbers, null at the others."""
    values: list[int | None] = [None] * count
    for at, value in zip(found["at"].to_pylist(), found[name].to_pylist(), strict=True):
        values[at] = value
    return pa.array(values, LONG)


def nothing(measures: Sequence[str]) -> pa.Table:
    """Rows of no ledger."""
    return row_schema(measures).empty_table()


def row_schema(measures: Sequence[str]) -> pa.Schema:
    """The columns of ``with_slots``."""
    kinds = {name: pa.int8() for name in measures} | {"session": TEXT}
    texts = [(name, TEXT) for name in KEY]
    return pa.schema(
        [
            *texts,
            ("ms", LONG),
            (SLOT, TEXT),
            (COPY, TEXT),
            *((name, kinds.get(name, LONG)) for name in how(measures)),
        ]
    )
