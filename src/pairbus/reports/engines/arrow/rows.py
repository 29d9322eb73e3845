"""Log files as Arrow tables with the columns that a report wants, read by the same rules as on Spark.

Every table also has ``broken`` (the text of a line that is not JSON with these columns, else null). Times are milliseconds since 1970.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import pyarrow as pa
from pyarrow import compute as pc
from pyarrow import parquet

from pairbus.errors import UsageError
from pairbus.reports.columns import CALENDAR_MS, UNITS
from pairbus.reports.inputs import MILLISECONDS_PATTERN, TIME_PATTERN

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
TIME: Final = "time"
TEXT: Final = pa.string()
LONG: Final = pa.int64()
_INTEGER: Final = re.compile(r"-?[0-9]{1,19}")
_MILLISECONDS: Final = re.compile(MILLISECONDS_PATTERN)
_TIME: Final = re.compile(TIME_PATTERN)
_FIELDS: Final = re.compile(r"[0-9]+")

Columns = Mapping[str, Any]
"""The wanted columns: TEXT, LONG, or TIME for milliseconds since 1970."""


class _Number(str):
    """A number of JSON as it is written."""

    __slots__ = ()


def read_parquet(path: str, columns: Columns) -> pa.Table:
    """One file; a column that it does not have is null.

    Raises:
        UsageError: The file is damaged.
    """
    try:
        with parquet.ParquetFile(
            path, coerce_int96_timestamp_unit="ms", page_checksum_verification=True
        ) as file:
            there = [name for name in columns if name in file.schema_arrow.names]
            found = file.read(columns=there)
            made = {
                name: _column(found[name], kind) if name in there else pa.nulls(found.num_rows, _type(kind))
                for name, kind in columns.items()
            }
    except (OSError, ValueError) as error:
        raise UsageError(unreadable(path)) from error
    for name, column in made.items():
        try:
            # Whatever wrote the file: bytes that are no text would end in an error of Python much later.
            column.validate(full=True)
        except ValueError as error:
            raise UsageError(
                unreadable(path, f" (row {_first_bad(column):,} of column {name!r} is no text in UTF-8)")
            ) from error
    return pa.table({**made, "broken": pa.nulls(found.num_rows, TEXT)})


def unreadable(path: str, where: str = "") -> str:
    return (
        f"{path} cannot be read: it is damaged{where}; restore it, or take it away if it does not belong here"
    )


def _first_bad(column: pa.ChunkedArray) -> int:
    """The number of the first row with bytes that are no text, counted from 1."""
    for number, value in enumerate(column.cast(pa.binary()).to_pylist(), 1):
        try:
            (value or b"").decode()
        except UnicodeDecodeError:
            return number
    return 0


def _column(column: pa.ChunkedArray, kind: Any) -> pa.ChunkedArray:
    if kind != TIME:
        return column.cast(kind)
    return pc.divide(column.cast(LONG), UNITS[column.type.unit])


def _type(kind: Any) -> pa.DataType:
    return LONG if kind == TIME else kind


def read_lines(path: str, columns: Columns) -> pa.Table:
    """One file of lines of JSON."""
    with Path(path).open("rb") as file:
        # Spark ends a line there, too.
        lines = (line for text in file for line in text.rstrip(b"\n").split(b"\r"))
        return lines_table(lines, columns)


def lines_table(lines: Iterable[bytes], columns: Columns) -> pa.Table:
    """Lines of JSON as rows: a line may have none, or several."""
    rows: dict[str, list[Any]] = {name: [] for name in (*columns, "broken")}
    for line in lines:
        for values, broken in _parsed(line, columns):
            for name in columns:
                rows[name].append(values.get(name))
            rows["broken"].append(broken)
    schema = pa.schema([*((name, _type(kind)) for name, kind in columns.items()), ("broken", TEXT)])
    return pa.table(rows, schema=schema)


def _refuse(text: str) -> object:
    raise ValueError(text)


_DECODER: Final = json.JSONDecoder(parse_int=_Number, parse_float=_Number, parse_constant=_refuse)


def _parsed(data: bytes, columns: Columns) -> list[tuple[dict[str, Any], str | None]]:
    """The rows of a line, and for each the line itself if something in it does not fit."""
    # Files that begin with the mark of a Unicode file may have been joined, also empty ones.
    while data.startswith(codecs.BOM_UTF8):
        data = data.removeprefix(codecs.BOM_UTF8)
    try:
        line = data.decode()
    except UnicodeDecodeError:
        return [({}, data.decode(errors="replace"))]
    try:
        # Whatever follows the first value is ignored.
        value, _ = _DECODER.raw_decode(line.lstrip(" \t"))
    except (ValueError, RecursionError):
        return [({}, line)] if line.strip() else []
    entries = value if isinstance(value, list) else [value]
    if not all(isinstance(entry, dict) for entry in entries):
        return [({}, line)]
    return [_row(entry, line, columns) for entry in entries]


def _row(entry: dict[str, Any], line: str, columns: Columns) -> tuple[dict[str, Any], str | None]:
    found: dict[str, Any] = {}
    broken = None
    for name, kind in columns.items():
        value = entry.get(name)
        if value is None:
            continue
        if isinstance(value, dict | list):
            broken = line
        elif kind == LONG:
            is_long = (
                isinstance(value, _Number) and _INTEGER.fullmatch(value) and -(2**63) <= int(value) < 2**63
            )
            found[name] = int(value) if is_long else None
            broken = broken if is_long else line
        else:
            text = _text(value)
            found[name] = milliseconds(text) if kind == TIME and text is not None else text
            broken = line if text is None else broken
    return found, broken


def _text(value: object) -> str | None:
    """A value of JSON in a column of text; anything but text as it would be written. None if it is no text: JSON can write half of a surrogate pair,
    and two different halves would become the same sign.
    """
    text = str(value) if isinstance(value, str) else json.dumps(value)
    try:
        text.encode()
    except UnicodeEncodeError:
        return None
    return text


def milliseconds(text: str) -> int | None:
    """A time as a line of JSON gives it; None if it is no time in the years 1 to 9999."""
    ms = int(text) if _MILLISECONDS.fullmatch(text) else _of_iso(text)
    return ms if ms is not None and CALENDAR_MS[0] <= ms <= CALENDAR_MS[1] else None


def _of_iso(text: str) -> int | None:
    if not _TIME.fullmatch(text):
        return None
    day, _, rest = text.replace("T", " ").partition(" ")
    clock, zone = re.fullmatch(r"([0-9:.]*)(.*)", rest).groups()  # type: ignore[union-attr]
    clock, _, fraction = clock.partition(".")
    try:
        at = datetime(*map(int, _FIELDS.findall(f"{day} {clock}")), tzinfo=UTC)  # type: ignore[misc,arg-type]
    except ValueError:
        return None
    minutes = 0
    if zone not in ("", "Z"):
        hours, rest_of_hour = int(zone[1:3]), int(zone[-2:])
        minutes = hours * 60 + rest_of_hour
        if rest_of_hour > 59 or minutes > 18 * 60:
            return None
        minutes = -minutes if zone[0] == "-" else minutes
    # Added as numbers: with its offset a time near the year 1 or 9999 may lie beyond the calendar.
    of_day = (at - EPOCH) // timedelta(milliseconds=1) + int(fraction.ljust(3, "0")[:3])
    return of_day - minutes * 60_000


def raw_rows(rows: pa.Table, names: Sequence[str], columns: Columns) -> list[str]:
    """Quarantined rows as text: the line of JSON, or the columns as JSON with nulls left out."""
    return [
        row["broken"]
        if row["broken"] is not None
        else json.dumps(
            {
                name: _iso(row[name]) if columns[name] == TIME else row[name]
                for name in names
                if row[name] is not None
            },
            ensure_ascii=False,
            separators=(",", ":"),
        )
        for row in rows.to_pylist()
    ]


def _iso(ms: int) -> str:
    try:
        return (EPOCH + timedelta(milliseconds=ms)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except OverflowError:
        return str(ms)


def first_reason(conditions: Sequence[tuple[Any, str]]) -> Any:
    """For each row the text of the first condition that holds; null where none does."""
    return pc.case_when(
        pc.make_struct(*[pc.fill_null(condition, False) for condition, _ in conditions]),
        *[pa.scalar(text) for _, text in conditions],
    )


def zeros(count: int, kind: pa.DataType = LONG) -> pa.Array:
    return pa.repeat(pa.scalar(0, kind), count)


def source_uri(path: str) -> str:
    """The name of a file, as Spark writes it."""
    return "file://" + quote(path, safe="/=~!$&'()*+,;:@")


def write_table(directory: str, name: str, table: pa.Table) -> None:
    """Write ``DIR/name/part-0.parquet``, in place of all that is in that folder."""
    parquet.write_table(table, emptied(directory, name) / "part-0.parquet")


def emptied(directory: str, name: str) -> Path:
    """The folder ``DIR/name`` without the files of an older report.

    Raises:
        UsageError: It cannot be made or emptied.
    """
    folder = Path(directory) / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file in folder.iterdir():
            file.unlink()
    except OSError as error:
        raise UsageError(f"{folder} cannot be written: {error.strerror}") from None
    return folder
