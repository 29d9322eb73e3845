"""Offsets of the streaming source: exactly which sequence numbers a batch holds, and which are still owed. Pure.

``{"v": 1, "entity": "orders", "seq": 120, "runs": [[1, 100], [105, 120]], "owed": []}``: the batch that ends here
holds the numbers of ``runs``; ``owed`` are numbers of earlier batches that were committed but could not be settled
yet. Settling goes by these numbers, never by a bare range: what became visible below ``seq`` later is never
deleted unread.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pairbus.errors import UsageError

VERSION: Final = 1
RUNS_MAX: Final = 1_000
"""A batch ends early when its numbers have more gaps than this: offsets stay small."""
NUMBER_MAX: Final = 2**48
"""Sequence numbers of partitioned entities are above this: they carry the partition in their high bits."""

Run = tuple[int, int]
"""First and last number, both included."""


@dataclass(frozen=True, slots=True)
class Offset:
    """Where a stream stands."""

    entity: str
    sequence: int
    runs: tuple[Run, ...] = ()
    owed: tuple[Run, ...] = field(default=())

    def as_json(self) -> dict[str, Any]:
        """As Spark keeps it in the checkpoint."""
        return {
            "v": VERSION,
            "entity": self.entity,
            "seq": self.sequence,
            "runs": [list(run) for run in self.runs],
            "owed": [list(run) for run in self.owed],
        }

    @staticmethod
    def parse(value: dict[str, Any], entity: str) -> Offset:
        """Read one back, and make sure that it belongs to this entity."""
        if value.get("v") != VERSION:
            raise UsageError(
                f"checkpointLocation holds offsets of version {value.get('v')}: expected {VERSION}"
            )
        if value.get("entity") != entity:
            raise UsageError(
                f"checkpointLocation belongs to {value.get('entity')!r}, but {entity!r} is read: use another one"
            )
        runs = tuple((int(first), int(last)) for first, last in value["runs"])
        owed = tuple((int(first), int(last)) for first, last in value["owed"])
        return Offset(entity, int(value["seq"]), runs, owed)


def runs_of(numbers: Iterable[int]) -> tuple[Run, ...]:
    """Ascending numbers as runs without gaps."""
    runs: list[Run] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return tuple(runs)


def size_of(runs: Iterable[Run]) -> int:
    """How many numbers."""
    return sum(last - first + 1 for first, last in runs)


def numbers_of(runs: Iterable[Run]) -> Iterable[int]:
    """Every number."""
    for first, last in runs:
        yield from range(first, last + 1)


def merged(*many: Sequence[Run]) -> tuple[Run, ...]:
    """All numbers of several lists of runs, once."""
    return runs_of(sorted({number for runs in many for number in numbers_of(runs)}))


def split(runs: Sequence[Run], parts: int) -> list[tuple[Run, ...]]:
    """Cut into at most ``parts`` consecutive pieces of nearly equal size."""
    total = size_of(runs)
    pieces = min(parts, total)
    result: list[tuple[Run, ...]] = []
    rest = list(runs)
    for index in range(pieces):
        wanted = total * (index + 1) // pieces - total * index // pieces
        piece: list[Run] = []
        while wanted:
            first, last = rest[0]
            take = min(wanted, last - first + 1)
            piece.append((first, first + take - 1))
            wanted -= take
            if first + take > last:
                rest.pop(0)
            else:
                rest[0] = (first + take, last)
        result.append(tuple(piece))
    return result


def split_range(first: int, last: int, parts: int) -> list[Run]:
    """Cut a range of numbers into at most ``parts`` consecutive ranges."""
    return [piece[0] for piece in split([(first, last)], parts)] if last >= first else []
