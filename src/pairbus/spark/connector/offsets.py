"""Offsets of the streaming source: which messages a batch holds, of which entity, and which are still owed. Pure.

``{"v": 2, "entity": "orders", "namespace": "contoso.servicebus.windows.net:5671", "created": 1763200000000, "seq": 120,
"last": 1763212345678, "runs": [[1, 100], [105, 120]], "marks": "…", "owed": [], "owed_marks": ""}``

- ``runs`` are the sequence numbers of the batch that ends here. ``owed`` are numbers of earlier batches that were
  committed but could not be settled yet.
- ``namespace`` and ``created`` (when the entity was created, where the management API may be asked) say which entity
  the numbers belong to: another one may have the same name and the same numbers.
- ``marks`` holds one byte for each number: a checksum of the message's enqueued time and message id. ``last`` is the
  latest enqueued time that the stream has seen.

Settling completes a message only when number, mark and time fit, so a message that no batch has read is never
completed. Version 1 had neither ``namespace`` nor ``marks``: such an offset settles nothing.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pairbus.errors import UsageError

VERSION: Final = 2
UNMARKED_VERSION: Final = 1
"""Offsets of this version do not tell which entity they belong to."""
RUNS_MAX: Final = 1_000
"""A batch ends early when its numbers have more gaps than this: offsets stay small."""
NUMBER_MAX: Final = 2**48
"""Sequence numbers of partitioned entities are above this: they carry the partition in their high bits."""

Run = tuple[int, int]
"""First and last number, both included."""


@dataclass(frozen=True, slots=True)
class Offset:
    """The position of a stream in its entity."""

    entity: str
    sequence: int
    runs: tuple[Run, ...] = ()
    owed: tuple[Run, ...] = ()
    namespace: str = ""
    """Host and port of the namespace; empty in a checkpoint of version 1."""
    created_ms: int | None = None
    """When the entity was created; None where the management API could not be asked."""
    last_ms: int = 0
    """The latest enqueued time of all messages that the stream has planned."""
    marks: bytes = field(default=b"", repr=False)
    """The mark of each number in ``runs``."""
    owed_marks: bytes = field(default=b"", repr=False)
    """The mark of each number in ``owed``."""

    @property
    def is_marked(self) -> bool:
        """Whether it says which entity and which messages it means."""
        return bool(self.namespace)

    def as_json(self) -> dict[str, Any]:
        """The value that Spark keeps in the checkpoint."""
        return {
            "v": VERSION,
            "entity": self.entity,
            "namespace": self.namespace,
            "created": self.created_ms,
            "seq": self.sequence,
            "last": self.last_ms,
            "runs": [list(run) for run in self.runs],
            "marks": base64.b64encode(self.marks).decode(),
            "owed": [list(run) for run in self.owed],
            "owed_marks": base64.b64encode(self.owed_marks).decode(),
        }

    @staticmethod
    def parse(value: Mapping[str, Any], entity: str) -> Offset:
        """Read an offset back, and make sure that it belongs to an entity of this name."""
        version = value.get("v")
        if version not in (VERSION, UNMARKED_VERSION):
            raise UsageError(
                f"checkpointLocation holds offsets of version {version}: expected {VERSION} or {UNMARKED_VERSION}"
            )
        if str(value.get("entity")).lower() != entity.lower():
            raise UsageError(
                f"checkpointLocation belongs to {value.get('entity')!r}, but {entity!r} is read: use another one"
            )
        runs = tuple((int(first), int(last)) for first, last in value["runs"])
        owed = tuple((int(first), int(last)) for first, last in value["owed"])
        if version == UNMARKED_VERSION:
            return Offset(entity, int(value["seq"]), runs, owed)
        created = value["created"]
        return Offset(
            entity,
            int(value["seq"]),
            runs,
            owed,
            namespace=str(value["namespace"]),
            created_ms=None if created is None else int(created),
            last_ms=int(value["last"]),
            marks=base64.b64decode(value["marks"]),
            owed_marks=base64.b64decode(value["owed_marks"]),
        )

    def marked(self) -> dict[int, int]:
        """The mark of each number that is due to be settled; empty for an offset without marks."""
        if not self.is_marked:
            return {}
        return {
            **dict(zip(numbers_of(self.owed), self.owed_marks, strict=True)),
            **dict(zip(numbers_of(self.runs), self.marks, strict=True)),
        }


def mark_of(enqueued_ms: int, message_id: bytes) -> int:
    """One byte that tells a message from another one with the same number.

    One byte is enough because a single difference stops the settlement of the whole batch, and because a message of a
    later entity is also enqueued later than anything the checkpoint knows.
    """
    return zlib.crc32(message_id, zlib.crc32(enqueued_ms.to_bytes(8, "big", signed=True))) & 0xFF


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
    return sum(last - first + 1 for first, last in runs)


def numbers_of(runs: Iterable[Run]) -> Iterable[int]:
    for first, last in runs:
        yield from range(first, last + 1)


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
