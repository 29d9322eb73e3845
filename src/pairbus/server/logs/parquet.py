"""Writes a Parquet file whole or not at all. Heavy parts are loaded when first needed, off the event loop."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from pairbus.server.clock import utc

FILE_MODE: Final = 0o600
DIRECTORY_MODE: Final = 0o700
UNFINISHED_SUFFIX: Final = ".tmp"
HOUR_MS: Final = 3_600_000


def hour_name(instant: int) -> str:
    """The directory of an hour, as Spark and others read partitions: ``hour=2026-11-15T10``."""
    return f"hour={utc(instant):%Y-%m-%dT%H}"


def write_part(
    directory: Path, name: str, types: Mapping[str, str], columns: Mapping[str, Sequence[object]]
) -> None:
    """Replace ``directory/name`` by these columns. After a crash there is the old file or the new one, never a part.

    The name under which it is written begins with a dot: readers of the directory pass such files over.
    """
    import pyarrow
    import pyarrow.parquet

    makers = {
        "timestamp": pyarrow.timestamp("ms", tz="UTC"),
        "text": pyarrow.string(),
        "int64": pyarrow.int64(),
        "int32": pyarrow.int32(),
    }
    schema = pyarrow.schema([(column, makers[kind]) for column, kind in types.items()])
    table = pyarrow.table(dict(columns), schema=schema)
    make_directory(directory)
    unfinished = directory / f".{name}{UNFINISHED_SUFFIX}"
    handle = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, FILE_MODE)
    with os.fdopen(handle, "wb") as file:
        pyarrow.parquet.write_table(table, file)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(directory / name)
    sync_directory(directory)


def make_directory(directory: Path) -> None:
    """A directory whose name survives a crash."""
    if not directory.is_dir():
        directory.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
        sync_directory(directory.parent)


def sync_directory(directory: Path) -> None:
    """Names in it are on stable storage."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove_unfinished(root: Path) -> None:
    """What a crash left half written."""
    for file in root.glob(f"hour=*/.*{UNFINISHED_SUFFIX}"):
        with suppress(OSError):
            file.unlink()


def remove_hours_before(root: Path, instant: int) -> int:
    """Remove the directories of hours that are older; how many."""
    limit = hour_name(instant)
    removed = 0
    for directory in sorted(root.glob("hour=*")):
        # Names of hours sort as the hours do; anything that is not such a name stays.
        if len(directory.name) != len(limit) or directory.name >= limit:
            continue
        for file in directory.glob("*.parquet"):
            file.unlink(missing_ok=True)
        with suppress(OSError):  # somebody keeps a file of his own there
            directory.rmdir()
            removed += 1
    return removed
