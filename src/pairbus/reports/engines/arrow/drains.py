"""Of messages without an id that were parked: which sends and arrivals at their destination the drain cannot have made.

The drain sends a copy while it is in its backlog queue, and then completes it. So a send is the drain's only if some copy that was completed was there at
that time, and each such copy was sent once. At best, as many are the drain's as can be given a copy each.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from typing import Final

import pyarrow as pa
from pyarrow import compute as pc

from pairbus.reports.engines.arrow.rows import LONG, TEXT
from pairbus.reports.engines.audit_log import APART

COPY: Final = "copy"
"""Which copy in the backlog a row is about. Null where it is not said, or not needed."""
NEEDED: Final = ("destination", "body", "ms", COPY)
COUNTED: Final = ("sent_backlog", "redriven", "entered", "entered_again", "drained", *APART.values())
FOUND: Final = pa.schema(
    [("destination", TEXT), ("message_id", TEXT), ("body", TEXT), *((name, LONG) for name in APART)]
)
_ALWAYS: Final = -(2**63)


def apart(rows: pa.Table) -> pa.Table:
    """APART of each message, from rows of messages without an id: NEEDED and COUNTED."""
    columns = [rows[name].to_pylist() for name in (*NEEDED, *COUNTED)]
    messages: dict[tuple[str, str | None], _Message] = {}
    for destination, body, ms, copy, *counts in zip(*columns, strict=True):
        messages.setdefault((destination, body), _Message()).add(ms, copy, counts)
    found = [
        (destination, "", body, *message.apart())
        for (destination, body), message in messages.items()
        if message.is_known()
    ]
    return pa.table([pa.array([row[at] for row in found], field.type) for at, field in enumerate(FOUND)], schema=FOUND)  # fmt: skip


class _Message:
    __slots__ = ("_arrivals", "_begins", "_ends", "_entered", "_is_parked", "_parked")

    def __init__(self) -> None:
        self._is_parked = False
        self._parked = 0
        self._entered = 0
        self._begins: dict[str, int] = {}
        self._ends: list[tuple[str | None, int]] = []
        self._arrivals: tuple[list[int], list[int]] = ([], [])
        """When it was sent directly, and stored."""

    def add(self, ms: int, copy: str | None, counts: Sequence[int]) -> None:
        parked, again, entered, entered_again, drained, direct, stored = counts
        self._is_parked = self._is_parked or parked + again > 0
        self._parked += parked
        self._entered += entered
        if copy is not None and entered + entered_again > 0:
            self._begins[copy] = min(ms, self._begins.get(copy, ms))
        if drained > 0:
            self._ends.append((copy, ms))
        for times, count in zip(self._arrivals, (direct, stored), strict=True):
            times.extend([ms] * count)

    def is_known(self) -> bool:
        """Of copies that the audit log of the backlog does not have, nobody knows when they were there."""
        return self._is_parked and self._entered >= self._parked

    def apart(self) -> tuple[int, ...]:
        stays = [(self._begins.get(copy or "", _ALWAYS), end) for copy, end in self._ends]
        return tuple(len(times) - given(stays, times) for times in self._arrivals)


def given(stays: Iterable[tuple[int, int]], times: Iterable[int]) -> int:
    """How many times can be given a stay each that they are in, at most: each takes the one that ends first."""
    begins = sorted(stays, reverse=True)
    open_ends: list[int] = []
    found = 0
    for ms in sorted(times):
        while begins and begins[-1][0] <= ms:
            heappush(open_ends, begins.pop()[1])
        while open_ends and open_ends[0] < ms:
            heappop(open_ends)
        if open_ends:
            heappop(open_ends)
            found += 1
    return found


def needed(rows: pa.Table) -> pa.Table:
    """The rows and columns that ``apart`` takes; what no input can say is 0."""
    columns = {name: rows[name] for name in NEEDED}
    nothing = pa.array([0] * rows.num_rows, pa.int8())
    columns |= {name: rows[name] if name in rows.column_names else nothing for name in COUNTED}
    table = pa.table(columns)
    says = pc.greater(table[COUNTED[0]], 0)
    for name in COUNTED[1:]:
        says = pc.or_(says, pc.greater(table[name], 0))
    return table.filter(pc.fill_null(says, False))
