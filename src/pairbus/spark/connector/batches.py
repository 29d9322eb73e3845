"""The rows of Arrow batches as Python values, with times in UTC.

Spark's own conversion of a timestamp gives local time without a zone. It loses which of two times it was in the hour that is repeated
when summer time ends, and fails in the first year of the calendar. Arrow holds the instant, whatever the zones of session and worker are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pyarrow as pa

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class BeyondCalendar:
    """A time of Spark that Python has no ``datetime`` for: before the year 1 or after the year 9999."""

    microseconds: int

    def __str__(self) -> str:
        return f"{self.microseconds} microseconds since 1970"


def rows_of(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """Each row by column. Timestamps with a zone are datetimes in UTC or ``BeyondCalendar``, maps are dictionaries."""
    names = batch.schema.names
    for values in zip(*map(_values, batch.columns), strict=True):
        yield dict(zip(names, values, strict=True))


def _values(column: pa.Array) -> list[Any]:
    kind = column.type
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        exact = column.cast(pa.timestamp("us", tz=kind.tz), safe=False).cast(pa.int64())
        return [None if us is None else _moment(us) for us in exact.to_pylist()]
    if pa.types.is_map(kind):
        return _runs(column, list(zip(_values(column.keys), _values(column.items), strict=True)), dict)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _runs(column, _values(column.values), list)
    if pa.types.is_struct(kind):
        names = [field.name for field in kind]
        fields = zip(*map(_values, column.flatten()), strict=True)
        return [
            dict(zip(names, values, strict=True)) if is_there else None
            for values, is_there in zip(fields, column.is_valid().to_pylist(), strict=True)
        ]
    return list(column.to_pylist())


def _runs(column: pa.Array, inside: list[Any], kind: type) -> list[Any]:
    """Lists and maps: each row has what is between two offsets."""
    offsets, valid = column.offsets.to_pylist(), column.is_valid().to_pylist()
    return [
        kind(inside[start:end]) if is_there else None
        for start, end, is_there in zip(offsets[:-1], offsets[1:], valid, strict=True)
    ]


def _moment(us: int) -> datetime | BeyondCalendar:
    try:
        return _EPOCH + timedelta(microseconds=us)
    except OverflowError:
        return BeyondCalendar(us)
