"""Which files to read: each part once, the damaged ones named, journals that are still open made readable (D8).

A part is known by its namespace, its hour and its name, which carries the life of the broker that wrote it. A life writes a part again as it grows, so of
several copies the one with the most rows, then the highest counts, is the newest complete one.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlparse

from pyarrow import compute, parquet

from pairbus.errors import UsageError
from pairbus.server.logs.message_journal import convert

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import SparkSession

FILES_MAX: Final = 200_000
"""More files than that are not listed on the driver; join small ones first."""
PARQUET: Final = ".parquet"
LINES: Final = (".jsonl", ".ndjson")
LINE_BYTES: Final = 128
JOURNALS: Final = "journal-"
_PATTERN: Final = re.compile(r"[\[\]{}*?\\]")
HOUR: Final = "hour="
_NANOSECONDS: Final = "[ns"
"""In the type of a column of times."""
MILLISECONDS_PATTERN: Final = r"^[0-9]{1,14}$"
"""A time in a line of JSON: milliseconds since 1970 ..."""
TIME_PATTERN: Final = r"^[1-9][0-9]{3}-[0-9]{1,2}-[0-9]{1,2}([T ][0-9]{1,2}:[0-9]{1,2}(:[0-9]{1,2}([.][0-9]{1,9})?)?(Z|[+-][0-9]{2}:?[0-9]{2})?)?$"
"""... or ISO 8601; without a zone in UTC."""
STORE: Final = "store"
"""The folder that tells a broker's data directory."""


@dataclass(slots=True)
class Inputs:
    """What is to be read, and what is not."""

    parquet: list[str] = field(default_factory=list)
    unsure: list[str] = field(default_factory=list)
    """Of the Parquet files, those that may hold rows of another hour than their directory says."""
    nanoseconds: list[str] = field(default_factory=list)
    """Of the Parquet files, those with times in nanoseconds, which Spark reads as plain numbers."""
    lines: list[str] = field(default_factory=list)
    repeated: list[str] = field(default_factory=list)
    """Copies of parts that are read from elsewhere."""
    damaged: dict[str, str] = field(default_factory=dict)
    """Files that are not readable, and why."""
    journals: list[str] = field(default_factory=list)
    """Journals of an hour that is not over; their last block was taken as durable."""

    kept: list[tempfile.TemporaryDirectory[str]] = field(default_factory=list)
    """Where such journals were made readable; gone with this object."""
    rows: int = 0
    """Rows of Parquet, and about as many lines of JSON as the files' sizes suggest; files that only Spark can reach are not in it."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What kind of files: where a broker keeps them, and which columns they must have."""

    what: str
    folder: str
    """Its name inside a broker's data directory."""
    columns: dict[str, tuple[str, ...]]
    """Columns that must be there, and the first words of the types they may have."""
    weight: str | None = None
    """A column whose sum tells which copy of a part is the newest."""
    hour_column: str | None = None
    """A column of times that must lie in the hour of a part's directory."""
    remedy: str = "its broker has written none yet"
    """What to do when a broker's data directory has no such folder."""
    local_rows_max: int = 1_000_000
    """Rows that ``--engine auto`` reads in this process; it takes Spark for more."""
    takes_nanoseconds: bool = False
    """Whether times may have nanoseconds."""
    may_be_empty: bool = True
    """Whether a broker's folder without a file counts: nothing has happened there yet."""


@dataclass(frozen=True, slots=True)
class _Part:
    path: str
    key: str
    rows: int
    modified: int
    is_unsure: bool = False
    has_nanoseconds: bool = False


def is_remote(location: str) -> bool:
    """Whether only Spark can look there."""
    return "://" in location and not location.startswith("file://")


def spark_path(path: str) -> str:
    """A path as Spark takes it: none of its characters is a pattern."""
    return path if is_remote(path) else _PATTERN.sub(r"\\\g<0>", path)


def find_inputs(spark: SparkSession | None, locations: Sequence[str], wanted: Wanted) -> Inputs:
    """Look through files and directories; Spark is needed for those that are not on this machine.

    Raises:
        UsageError: A place is not there or holds nothing of the kind, or a file has other columns.
    """
    found = Inputs()
    parts: dict[str, list[_Part]] = {}
    for location in locations:
        if is_remote(location):
            assert spark is not None, location
            is_found = _list_remote(spark, location, parts, found)
        else:
            is_found = _list_local(_local(location), wanted, parts, found)
        if not is_found:
            raise UsageError(
                f"{location} holds no {wanted.what}: name the data directory of a broker, or one with *.parquet or *.jsonl files"
            )
    for copies in parts.values():
        chosen = copies[0] if len(copies) == 1 else max(copies, key=lambda part: _age(part, wanted.weight))
        found.parquet.append(chosen.path)
        found.rows += chosen.rows
        if chosen.is_unsure:
            found.unsure.append(chosen.path)
        if chosen.has_nanoseconds:
            found.nanoseconds.append(chosen.path)
        found.repeated += [part.path for part in copies if part is not chosen]
    if found.damaged and not found.parquet and not found.lines:
        path, why = next(iter(found.damaged.items()))
        raise UsageError(f"{path} cannot be read ({why}), and there is no other {wanted.what}")
    if not found.parquet and not found.lines and not wanted.may_be_empty:
        raise UsageError(
            f"{', '.join(locations)}: there is nothing that can be read. The directory for the {wanted.what} is there, but "
            f"empty: {wanted.remedy}"
        )
    if len(found.parquet) + len(found.lines) > FILES_MAX:
        raise UsageError(
            f"{len(found.parquet) + len(found.lines):,} files are too many: join small ones to {FILES_MAX:,} at most"
        )
    found.parquet.sort()
    found.lines = sorted(set(found.lines))
    found.repeated.sort()
    return found


def _local(location: str) -> Path:
    return Path(unquote(urlparse(location).path) if location.startswith("file://") else location)


def _list_local(root: Path, wanted: Wanted, parts: dict[str, list[_Part]], found: Inputs) -> bool:
    if not root.exists():
        raise UsageError(f"there is no {wanted.what} at {root}: no such file or directory")
    # A broker's own folder may be empty: nothing has happened there yet.
    is_found = (root / wanted.folder).is_dir()
    if is_found:
        root = root / wanted.folder
    elif root.is_dir():
        # Several brokers' data below one directory, as `pairbus up` keeps them: their own folders and nothing else.
        below = sorted(folder for folder in root.rglob(wanted.folder) if folder.is_dir())
        if below:
            for folder in below:
                _list_local(folder.parent, wanted, parts, found)
            return True
        if (root / STORE).is_dir():
            raise UsageError(f"{root} has no {wanted.what}: {wanted.remedy}")
    if root.is_dir():
        # Journals first: one that its broker turns into Parquet meanwhile is then found in that form.
        for journal in sorted(root.rglob(f"{JOURNALS}*.log")):
            is_found = True
            found.journals.append(str(journal))
            for made in _converted(journal, found):
                if not (journal.parent / made.parent.name / made.name).exists():
                    _add_parquet(made, wanted, parts, found)
    for file in [root] if root.is_file() else sorted(root.rglob("*")):
        if any(name.startswith((".", "_")) for name in file.relative_to(root).parts) or not file.is_file():
            continue
        if file.suffix == PARQUET:
            is_found = True
            _add_parquet(file, wanted, parts, found)
        elif file.suffix in LINES:
            is_found = True
            found.lines.append(str(file.resolve()))
            found.rows += file.stat().st_size // LINE_BYTES
        elif root.is_file():
            raise UsageError(
                f"{file} is no {wanted.what}: it must be *.parquet or *.jsonl, with the columns {', '.join(wanted.columns)}"
            )
    return is_found


def _add_parquet(file: Path, wanted: Wanted, parts: dict[str, list[_Part]], found: Inputs) -> None:
    try:
        with parquet.ParquetFile(file) as opened:
            metadata, schema = opened.metadata, opened.schema_arrow
    except (OSError, ValueError) as error:
        found.damaged[str(file)] = str(error).splitlines()[0]
        return
    _check_columns(file, schema, wanted)
    resolved = file.resolve()
    is_part = file.name.startswith("part-") and file.parent.name.startswith(HOUR)
    key = f"{_namespace(metadata)}\n{file.parent.name}/{file.name}" if is_part else str(resolved)
    is_unsure = wanted.hour_column is not None and not _is_of_its_hour(file, metadata, wanted.hour_column)
    copies = parts.setdefault(key, [])
    has_nanoseconds = any(_NANOSECONDS in str(schema.field(name).type) for name in wanted.columns)
    if all(part.path != str(resolved) for part in copies):
        modified = file.stat().st_mtime_ns
        copies.append(_Part(str(resolved), key, metadata.num_rows, modified, is_unsure, has_nanoseconds))


def _namespace(metadata: parquet.FileMetaData) -> str:
    """Whose part it is, by the statistics of its first rows."""
    spans = _spans(metadata, "namespace")
    return str(spans[0][0]) if spans and spans[0] is not None else ""


def _is_of_its_hour(file: Path, metadata: parquet.FileMetaData, column: str) -> bool:
    """Whether a file's statistics say that all its rows lie in the hour of its directory, or the directory names none."""
    named = [name for name in file.resolve().parent.parts if name.startswith(HOUR)]
    if not named:
        return True
    try:
        start = datetime.strptime(named[-1], f"{HOUR}%Y-%m-%dT%H").replace(tzinfo=UTC)
    except ValueError:
        return False
    for span in _spans(metadata, column):
        if span is None or not all(isinstance(one, datetime) and one.tzinfo is not None for one in span):
            return False
        # Not compared with the hour's end: the last hour of the calendar has none.
        if span[0] < start or span[1] - start >= timedelta(hours=1):
            return False
    return True


def _spans(metadata: parquet.FileMetaData, column: str) -> list[tuple[Any, Any] | None]:
    """The least and the greatest value of a column in each group of rows; None where they are not told."""
    names = [metadata.schema.column(at).path for at in range(metadata.num_columns)]
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


def _check_columns(file: Path, schema: pyarrow.Schema, wanted: Wanted) -> None:
    for name, types in wanted.columns.items():
        if name not in schema.names:
            raise UsageError(
                f"{file} is no {wanted.what}: it has no column {name!r} (it has {_shown(schema.names)})"
            )
        kind = str(schema.field(name).type)
        is_too_fine = _NANOSECONDS in kind and not wanted.takes_nanoseconds
        if not kind.startswith(types) or is_too_fine:
            raise UsageError(
                f"{file}: column {name!r} is {kind}, expected {' or '.join(types)}"
                + " (not ns)" * is_too_fine
            )


def _shown(names: Sequence[str]) -> str:
    return ", ".join(name if name.strip() else repr(name) for name in names[:20]) or "no column at all"


def _age(part: _Part, weight: str | None) -> tuple[int, int, int, str]:
    """Grows with every time a part was written."""
    total = 0
    if weight is not None and "://" not in part.path:
        total = int(
            compute.sum(parquet.read_table(part.path, columns=[weight], partitioning=None)[weight]).as_py()
            or 0
        )
    return part.rows, total, part.modified, part.path


def _converted(journal: Path, found: Inputs) -> list[Path]:
    """The rows of an open journal as Parquet, as its broker will write them; nothing if the broker just did."""
    place = tempfile.TemporaryDirectory(prefix="pairbus-journal-", ignore_cleanup_errors=True)
    found.kept.append(place)
    made = Path(place.name)
    try:
        copy = Path(shutil.copy(journal, made / journal.name))
    except FileNotFoundError:
        return []
    convert(copy, made, namespace="")
    return sorted(made.rglob(f"*{PARQUET}"))


def _list_remote(spark: SparkSession, location: str, parts: dict[str, list[_Part]], found: Inputs) -> bool:
    is_found = False
    for pattern in ("*.parquet", "*.jsonl", "*.ndjson"):
        listed = (
            spark.read.format("binaryFile")
            .option("recursiveFileLookup", "true")
            .option("pathGlobFilter", pattern)
            .load(location)
            .select("path", "modificationTime")
            .limit(FILES_MAX)
            .collect()
        )
        is_found = is_found or bool(listed)
        for row in listed:
            path = str(row["path"])
            if pattern != "*.parquet":
                found.lines.append(path)
                continue
            key = "/".join(path.split("/")[-2:])
            copies = parts.setdefault(key if key.startswith("hour=") else path, [])
            copies.append(
                _Part(path, key, 0, int(row["modificationTime"].timestamp() * 1000), is_unsure=True)
            )
    return is_found
