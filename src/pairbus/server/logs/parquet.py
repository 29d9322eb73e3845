"""Writes a Parquet file whole or not at all. Heavy parts are loaded when first needed, off the event loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from pairbus.server.clock import utc
from pairbus.server.files import UNFINISHED_SUFFIX, make_directory, write_whole

HOUR_MS: Final = 3_600_000


def hour_name(instant: int) -> str:
    """The directory of an hour, as Spark and others read partitions: ``hour=2026-11-15T10``."""
    return f"hour={utc(instant):%Y-%m-%dT%H}"


def write_part(
    directory: Path, name: str, types: Mapping[str, str], columns: Mapping[str, Sequence[object]]
) -> None:
    """Replace ``directory/name`` by these columns, whole or not at all."""
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
    write_whole(directory / name, lambda file: pyarrow.parquet.write_table(table, file))


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
        with suppress(OSError):  # it holds a file that is not ours
            directory.rmdir()
            removed += 1
    return removed
