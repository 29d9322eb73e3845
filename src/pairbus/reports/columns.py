"""The columns of a Parquet file: whether they are what a report needs, and in which form Spark must read them.

Both engines read a file in the same way only if its columns have the types that were agreed on. So a file with other types is refused by its footer, before
an engine sees it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pairbus.errors import UsageError

if TYPE_CHECKING:
    import pyarrow
    from pyarrow import parquet

TEXTS: Final = ("string", "large_string", "dictionary<values=string", "dictionary<values=large_string")
"""The first words of types of text. Spark has no unsigned integers of 64 bits."""
INTEGERS: Final = ("int64", "int32", "int16", "int8", "uint8", "uint16", "uint32")
TIMES: Final = ("timestamp",)
UNITS: Final = {"ms": 1, "us": 1_000, "ns": 1_000_000}
"""The units of times in Parquet: how many are a millisecond."""
CALENDAR_MS: Final = (-62_135_596_800_000, 253_402_300_799_999)
"""The years 1 to 9999. A time beyond them is no time."""
NULL: Final = "null"
INT96: Final = "INT96"

Types = Mapping[str, tuple[str, ...]]
"""Columns, and the first words of the types they may have; the first is the one to name."""


@dataclass(frozen=True, slots=True)
class Form:
    """How Spark must read a file."""

    unit: str = ""
    """The unit of times that it must take as plain numbers, because it has no timestamps of that unit, or the file may have times beyond the calendar; empty
    if they can be timestamps.
    """
    absent: tuple[str, ...] = ()
    """Columns that have no type and no values. Spark cannot read them."""


PLAIN: Final = Form()


def check_columns(file: Path, schema: pyarrow.Schema, what: str, required: Types, optional: Types) -> None:
    """Refuse a file whose columns are not as they should be.

    Raises:
        UsageError: It is not a file of this kind, or a column has another type or name.
    """
    for name, types in {**required, **optional}.items():
        # Spark does not regard case in names of columns.
        named = [other for other in schema.names if other.lower() == name]
        if not named:
            if name in optional:
                continue
            raise UsageError(
                f"{file} is no {what}: it has no column {name!r} (it has {_shown(schema.names)})"
            )
        if named != [name]:
            raise UsageError(
                f"{file} has {_shown([repr(other) for other in named])} where one column {name!r} is expected: rename or leave out the others"
            )
        kind = str(schema.field(name).type)
        if kind.startswith(types) or (name in optional and kind == NULL):
            continue
        way_out = ", or leave it out" if name in optional else ""
        raise UsageError(f"{file}: column {name!r} is {kind}, expected {types[0]}: write it as that{way_out}")


def _shown(names: Sequence[str]) -> str:
    return ", ".join(name if name.strip() else repr(name) for name in names[:20]) or "no column at all"


def form_of(metadata: parquet.FileMetaData, schema: pyarrow.Schema, required: Types, optional: Types) -> Form:
    absent = [name for name in optional if name in schema.names and str(schema.field(name).type) == NULL]
    [time] = (name for name, types in required.items() if types == TIMES)
    return Form(_unit(metadata, schema, time), tuple(absent))


def _unit(metadata: parquet.FileMetaData, schema: pyarrow.Schema, name: str) -> str:
    at = _names(metadata).index(name)
    if metadata.schema.column(at).physical_type == INT96:
        return ""
    unit = str(schema.field(name).type.unit)
    is_known = unit != "ns" and all(
        span is not None and all(isinstance(one, datetime) for one in span) for span in spans(metadata, name)
    )
    return "" if is_known else unit


def _names(metadata: parquet.FileMetaData) -> list[str]:
    return [metadata.schema.column(at).path for at in range(metadata.num_columns)]


def spans(metadata: parquet.FileMetaData, column: str) -> list[tuple[Any, Any] | None]:
    """The least and the greatest value of a column in each group of rows; None where they are not told."""
    names = _names(metadata)
    if column not in names:
        return []
    at = names.index(column)
    found: list[tuple[Any, Any] | None] = []
    for group in range(metadata.num_row_groups):
        statistics = metadata.row_group(group).column(at).statistics
        try:
            found.append(
                (statistics.min, statistics.max)
                if statistics is not None and statistics.has_min_max
                else None
            )
        except (OverflowError, ValueError):  # a time beyond the calendar
            found.append(None)
    return found
