"""Which files to read: each part once, the damaged ones named, journals that are still open made readable (D8).

A part is known by its namespace, its hour and its name, which carries the life of the broker that wrote it. A sealed part says them itself, so a copy is
known wherever it lies; an older one is known by its place (decision 0206). A life writes a part again as it grows, so of
several copies the one with the most rows, then the highest counts, is the newest complete one. The rows of an open journal are known as the part that
its broker will make of them: if that part is found anywhere, it counts instead.

Brokers go on while their files are read. A message moves from a sender, over the backlog, to its destination, so files are read in that order: what has
left one place is then found in the next. A directory that serves as several inputs is read once, in the state in which it is read last.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlparse

from pyarrow import compute, parquet

from pairbus.errors import UsageError
from pairbus.reports.columns import PLAIN, Form, Types, check_columns, form_of, spans
from pairbus.server.logs.journal_blocks import first_number, scan
from pairbus.server.logs.message_journal import convert, namespace_of
from pairbus.server.logs.parquet import NAME_KEY, hour_ms, is_damaged, seal_number

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILES_MAX: Final = 200_000
"""More files than that are not listed on the driver; join small ones first."""
PARQUET: Final = ".parquet"
LINES: Final = (".jsonl", ".ndjson")
LINE_BYTES: Final = 128
JOURNALS: Final = "journal-"
_PATTERN: Final = re.compile(r"[\[\]{}*?\\]")
HOUR: Final = "hour="
PARTS: Final = "part-"
MILLISECONDS_PATTERN: Final = r"^-?[0-9]{1,15}$"
"""A time in a line of JSON: milliseconds since 1970 ..."""
TIME_PATTERN: Final = r"^[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}([T ][0-9]{1,2}:[0-9]{1,2}(:[0-9]{1,2}([.][0-9]{1,9})?)?(Z|[+-][0-9]{2}:?[0-9]{2})?)?$"
"""... or ISO 8601; without a zone in UTC."""
STORE: Final = "store"
"""The folder that tells a broker's data directory."""


@dataclass(slots=True)
class Inputs:
    """What is to be read, and what is not."""

    parquet: list[str] = field(default_factory=list)
    unsure: list[str] = field(default_factory=list)
    """Of the Parquet files, those that may hold rows of another hour than their directory says."""
    forms: dict[str, Form] = field(default_factory=dict)
    """Of the Parquet files, those that Spark must read in a form of their own."""
    lines: list[str] = field(default_factory=list)
    repeated: list[str] = field(default_factory=list)
    """Copies of parts that are read from elsewhere, and journals of which the part is read."""
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
    columns: Types
    """Columns that must be there."""
    optional: Types = field(default_factory=dict)
    """Columns that may be there."""
    weight: str | None = None
    """A column whose sum tells which copy of a part is the newest."""
    time_column: str = ""
    """The column of times, all of one hour in a part of a broker."""
    hour_column: str | None = None
    """A column of times that must lie in the hour of a part's directory."""
    remedy: str = "its broker has written none yet"
    """What to do when a broker's data directory has no such folder."""
    local_rows_max: int = 1_000_000
    """Rows that ``--engine auto`` reads in this process; it takes Spark for more."""
    may_be_empty: bool = True
    """Whether a broker's folder without a file counts: nothing has happened there yet."""
    order: tuple[str, ...] = ()
    """The inputs in the order in which messages move through them, if there are several."""


@dataclass(frozen=True, slots=True)
class _Part:
    path: str
    key: str
    rows: int
    modified: int
    is_unsure: bool = False
    form: Form = PLAIN
    journal: str = ""
    """The open journal whose rows these are."""


@dataclass(slots=True)
class _Listing:
    """What is in one place."""

    is_found: bool = False
    """Whether it is a place for files of the kind, with or without one."""
    parts: list[_Part] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    line_rows: int = 0
    damaged: dict[str, str] = field(default_factory=dict)
    empty_journals: list[str] = field(default_factory=list)
    kept: list[tempfile.TemporaryDirectory[str]] = field(default_factory=list)


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
    return find_all(spark, {"": locations}, wanted)[""]


def find_all(
    spark: SparkSession | None, locations: Mapping[str, Sequence[str]], wanted: Wanted
) -> dict[str, Inputs]:
    """The same for several inputs of brokers that may go on meanwhile.

    Raises:
        UsageError: As ``find_inputs``.
    """
    roots = {
        role: {location: _roots(location, wanted) for location in places}
        for role, places in locations.items()
    }
    last: dict[str, int] = {}
    paths: dict[str, str] = {}
    for role, places in roots.items():
        at = wanted.order.index(role) if role in wanted.order else 0
        for found in places.values():
            paths = found | paths
            last |= {root: max(at, last.get(root, at)) for root in found}
    listings = {
        root: _listed(spark, paths[root], wanted) for root in sorted(last, key=lambda root: last[root])
    }
    for places in roots.values():
        for location, found in places.items():
            if not any(listings[root].is_found for root in found):
                raise UsageError(
                    f"{location} holds no {wanted.what}: name the data directory of a broker, or one with *.parquet or *.jsonl files"
                )
    inputs = {}
    for role, places in roots.items():
        of_role = dict.fromkeys(root for found in places.values() for root in found)
        inputs[role] = _joined([listings[root] for root in of_role], list(places), wanted)
    return inputs


def _roots(location: str, wanted: Wanted) -> dict[str, str]:
    """The files and directories to look through: a broker's own folder, those of several brokers below one directory, as `pairbus up` keeps them,
    or the place itself. Each by its one name, and as it was given.
    """
    if is_remote(location):
        return {location: location}
    root = Path(unquote(urlparse(location).path) if location.startswith("file://") else location)
    if not root.exists():
        raise UsageError(f"there is no {wanted.what} at {root}: no such file or directory")
    found = [root]
    if (root / wanted.folder).is_dir():
        found = [root / wanted.folder]
    elif root.is_dir():
        below = sorted(folder for folder in root.rglob(wanted.folder) if folder.is_dir())
        if not below and (root / STORE).is_dir():
            raise UsageError(f"{root} has no {wanted.what}: {wanted.remedy}")
        found = below or found
    return {str(path.resolve()): str(path) for path in found}


def _joined(listings: Sequence[_Listing], locations: Sequence[str], wanted: Wanted) -> Inputs:
    """What is in all places of one input, each part once."""
    found = Inputs()
    copies_of: dict[str, list[_Part]] = {}
    journals: set[str] = set()
    for listing in listings:
        found.lines += listing.lines
        found.rows += listing.line_rows
        found.damaged |= listing.damaged
        found.kept += listing.kept
        journals.update(listing.empty_journals)
        for part in listing.parts:
            copies = copies_of.setdefault(part.key, [])
            if all(other.path != part.path for other in copies):
                copies.append(part)
    for copies in _with_remote(copies_of):
        chosen = copies[0] if len(copies) == 1 else max(copies, key=lambda part: _age(part, wanted.weight))
        found.parquet.append(chosen.path)
        found.rows += chosen.rows
        if chosen.is_unsure:
            found.unsure.append(chosen.path)
        if chosen.form != PLAIN:
            found.forms[chosen.path] = chosen.form
        if chosen.journal:
            journals.add(chosen.journal)
        found.repeated += [part.journal or part.path for part in copies if part is not chosen]
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
    found.journals = sorted(journals)
    return found


def _with_remote(copies_of: dict[str, list[_Part]]) -> list[list[_Part]]:
    """The copies of each part. What only Spark can reach does not tell its namespace: it is a copy of the part with its hour and name."""
    named = {key.partition("\n")[2]: key for key in copies_of if "\n" in key}
    for key in [key for key in copies_of if key in named]:
        copies_of[named[key]] += copies_of.pop(key)
    return list(copies_of.values())


def _listed(spark: SparkSession | None, location: str, wanted: Wanted) -> _Listing:
    """What is in one of the places that ``_roots`` gives."""
    if is_remote(location):
        assert spark is not None, location
        return _listed_remote(spark, location)
    root = Path(location)
    # A broker's own folder may be empty: nothing has happened there yet.
    found = _Listing(is_found=root.name == wanted.folder and root.is_dir())
    if root.is_dir():
        # Journals first: one that its broker turns into Parquet meanwhile is then found in that form.
        for journal in sorted(root.rglob(f"{JOURNALS}*.log")):
            found.is_found = True
            made = _converted(journal, found)
            if not made and str(journal) not in found.damaged:
                found.empty_journals.append(str(journal))
            for part in made:
                _add_parquet(part, wanted, found, str(journal))
    for file in [root] if root.is_file() else sorted(root.rglob("*")):
        if any(name.startswith((".", "_")) for name in file.relative_to(root).parts) or not file.is_file():
            continue
        if file.suffix == PARQUET:
            found.is_found = True
            _add_parquet(file, wanted, found)
        elif file.suffix in LINES:
            found.is_found = True
            found.lines.append(str(file.resolve()))
            found.line_rows += file.stat().st_size // LINE_BYTES
        elif root.is_file():
            raise UsageError(
                f"{file} is no {wanted.what}: it must be *.parquet or *.jsonl, with the columns {', '.join(wanted.columns)}"
            )
    return found


def _add_parquet(file: Path, wanted: Wanted, found: _Listing, journal: str = "") -> None:
    try:
        if is_damaged(file):
            raise ValueError("it is damaged: its checksum is another one")
        with parquet.ParquetFile(file) as opened:
            metadata, schema = opened.metadata, opened.schema_arrow
        key = _key(file, metadata, wanted)
    except (OSError, ValueError) as error:
        found.damaged[str(file)] = str(error).splitlines()[0]
        return
    check_columns(file, schema, wanted.what, wanted.columns, wanted.optional)
    resolved = str(file.resolve())
    found.parts.append(
        _Part(
            resolved,
            key,
            metadata.num_rows,
            file.stat().st_mtime_ns,
            wanted.hour_column is not None and not _is_of_its_hour(file, metadata, wanted.hour_column),
            form_of(metadata, schema, wanted.columns, wanted.optional),
            journal,
        )
    )


def _key(file: Path, metadata: parquet.FileMetaData, wanted: Wanted) -> str:
    """What makes a file the same part as another one. One with a seal says itself which part it is, wherever it lies; others are known by their place.

    Raises:
        ValueError: It has a seal, and the place of another part: that one is lost.
    """
    place = f"{file.parent.name}/{file.name}"
    name = (metadata.metadata or {}).get(NAME_KEY, b"").decode(errors="replace")
    hour = _hour(metadata, wanted.time_column)
    if not name or not hour or seal_number(file) is None:
        is_part = file.name.startswith(PARTS) and file.parent.name.startswith(HOUR)
        return f"{_namespace(metadata)}\n{place}" if is_part else str(file.resolve())
    is_renamed = file.name.startswith(PARTS) and file.name != name
    is_of_other_hour = hour_ms(file.parent.name) is not None and file.parent.name != hour
    if is_renamed or is_of_other_hour:
        raise ValueError(f"it is the part {hour}/{name}, in the place of another one")
    return f"{_namespace(metadata)}\n{hour}/{name}"


def _hour(metadata: parquet.FileMetaData, column: str) -> str:
    """The directory that the rows of a part are for; empty if its statistics do not tell."""
    found = spans(metadata, column)
    least = found[0][0] if found and found[0] is not None else None
    if not isinstance(least, datetime) or least.tzinfo is None:
        return ""
    return f"{least.astimezone(UTC):{HOUR}%Y-%m-%dT%H}"


def _namespace(metadata: parquet.FileMetaData) -> str:
    """Whose part it is, by the statistics of its first rows."""
    found = spans(metadata, "namespace")
    return str(found[0][0]) if found and found[0] is not None else ""


def _is_of_its_hour(file: Path, metadata: parquet.FileMetaData, column: str) -> bool:
    """Whether a file's statistics say that all its rows lie in the hour of its directory, or the directory names none."""
    named = [name for name in file.resolve().parent.parts if name.startswith(HOUR)]
    if not named:
        return True
    try:
        start = datetime.strptime(named[-1], f"{HOUR}%Y-%m-%dT%H").replace(tzinfo=UTC)
    except ValueError:
        return False
    for span in spans(metadata, column):
        if span is None or not all(isinstance(one, datetime) and one.tzinfo is not None for one in span):
            return False
        # Not compared with the hour's end: the last hour of the calendar has none.
        if span[0] < start or span[1] - start >= timedelta(hours=1):
            return False
    return True


def _age(part: _Part, weight: str | None) -> tuple[bool, int, int, int, str]:
    """Grows with every time a part was written. What a broker has written as a part stands for all of its journal; a copy of the journal may lack
    rows, or have rows that never counted because the broker crashed.
    """
    total = 0
    if weight is not None and "://" not in part.path:
        total = int(
            compute.sum(parquet.read_table(part.path, columns=[weight], partitioning=None)[weight]).as_py()
            or 0
        )
    return not part.journal, part.rows, total, part.modified, part.path


def _converted(journal: Path, found: _Listing) -> list[Path]:
    """The rows of an open journal as Parquet, as its broker will write them; nothing if it has none, is damaged, or the broker just did.

    Raises:
        UsageError: It does not name its namespace, so its rows could stand for those of another one.
    """
    place = tempfile.TemporaryDirectory(prefix="pairbus-journal-", ignore_cleanup_errors=True)
    made = Path(place.name)
    try:
        copy, damage = _copied(journal, made)
    except FileNotFoundError:
        return []
    if damage is not None:
        found.damaged[str(journal)] = (
            f"it is damaged at byte {damage:,}; a start of its broker with --audit keeps what can be read, and notes what is missing"
        )
        return []
    namespace = namespace_of(copy)
    if namespace is None:
        return []
    if not namespace:
        raise UsageError(
            f"{journal} does not name its namespace: an older version wrote it. Start the broker of that directory with --audit: it turns "
            "the journal into Parquet"
        )
    found.kept.append(place)
    convert(copy, made, namespace)
    return sorted(made.rglob(f"*{PARQUET}"))


def _copied(journal: Path, directory: Path) -> tuple[Path, int | None]:
    """A copy of a journal, and where it is damaged."""
    before = -1
    while True:
        copy = Path(shutil.copy(journal, directory / journal.name))
        damage = scan(copy.read_bytes(), first_number(journal.name)).damage
        # A broker that writes meanwhile may seem to leave a hole, because the copy is not of one moment. The next copy has what was there.
        if damage is None or damage == before:
            return copy, damage
        before = damage


def _listed_remote(spark: SparkSession, location: str) -> _Listing:
    found = _Listing()
    for pattern in ("*.parquet", "*.jsonl", "*.ndjson"):
        listed = (
            spark.read.format("binaryFile")
            .option("recursiveFileLookup", "true")
            .option("pathGlobFilter", pattern)
            .load(location)
            .selectExpr("path", "unix_millis(modificationTime) AS modified_ms")
            .limit(FILES_MAX)
            .collect()
        )
        found.is_found = found.is_found or bool(listed)
        for row in listed:
            path = str(row["path"])
            if pattern != "*.parquet":
                found.lines.append(path)
                continue
            key = "/".join(path.split("/")[-2:])
            key = key if key.startswith(HOUR) else path
            found.parts.append(_Part(path, key, 0, int(row["modified_ms"]), is_unsure=True))
    return found
