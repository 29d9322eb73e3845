"""Which messages arrived after one that was accepted later: at a destination, and inside of a session."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final

import pyarrow as pa
from pyarrow import compute as pc

from pairbus.reports.certificate.value import (
    BOUNDS_MS,
    MINUTE_MS,
    NAMED_MAX,
    Bar,
    OvertakenSession,
    SessionOrder,
    histogram_of,
)

SLICE_NUMBERS: Final = 65_536
SLICE_MS: Final = MINUTE_MS
"""Positions by number come before positions by time of the same slice; see ``engines.spark.order``."""


def bucket(milliseconds: int) -> int:
    """Which bar of a histogram: the first whose bound lies above."""
    if milliseconds < 0:
        return -1
    return next((at for at, bound in enumerate(BOUNDS_MS) if milliseconds < bound), len(BOUNDS_MS))


def reordered(known: pa.Table) -> tuple[Bar, ...]:
    """Messages that arrived after one of their destination that was accepted later, by how much later."""
    counts: Counter[tuple[int, bool]] = Counter()
    for _, lag, is_detoured in _lagging(known, ("destination",)):
        counts[bucket(lag), is_detoured] += 1
    return histogram_of((*key, count) for key, count in counts.items())


def session_order(known: pa.Table) -> SessionOrder:
    """The same inside of sessions."""
    known = known.filter(pc.is_valid(known["session"]))
    messages: Counter[tuple[str, ...]] = Counter()
    latest: dict[tuple[str, ...], int] = {}
    for session, lag, _ in _lagging(known, ("destination", "session")):
        messages[session] += 1
        latest[session] = max(lag, latest.get(session, 0))
    first = sorted(messages, key=lambda session: (-messages[session], session))[:NAMED_MAX]
    named = tuple(
        OvertakenSession(destination, name, messages[destination, name], latest[destination, name])
        for destination, name in first
    )
    return SessionOrder(len(messages), named)


def _lagging(known: pa.Table, by: Sequence[str]) -> Iterator[tuple[tuple[str, ...], int, bool]]:
    """Each message that was overtaken by another with the same ``by``: those values, by how much, and whether it was detoured."""
    position = pc.coalesce(known["stored_sequence"], known["arrived_ms"])
    width = pc.if_else(pc.is_valid(known["stored_sequence"]), SLICE_NUMBERS, SLICE_MS)
    is_there = pc.and_(
        pc.greater(known["arrived"], 0), pc.and_(pc.is_valid(known["accepted_ms"]), pc.is_valid(position))
    )
    table = pa.table(
        {
            **{name: known[name] for name in by},
            "slice": pc.divide(position, width),
            "position": position,
            "accepted_ms": known["accepted_ms"],
            "is_detoured": known["is_detoured"],
        }
    ).filter(is_there)
    table = table.sort_by([(name, "ascending") for name in (*by, "slice", "position")])
    columns = [table[name].to_pylist() for name in table.column_names]
    here: tuple[str, ...] | None = None
    latest = 0
    for place, rows in groupby(zip(*columns, strict=True), key=lambda row: row[:-2]):
        group = place[:-2]
        if group != here:
            here, latest = group, -(2**63)
        # Equal positions are side by side and not in an order.
        side_by_side = [row[-2:] for row in rows]
        for accepted, is_detoured in side_by_side:
            if latest > accepted:
                yield group, latest - accepted, is_detoured
        latest = max(latest, *(accepted for accepted, _ in side_by_side))
