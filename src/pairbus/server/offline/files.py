"""The form of an export: its files, their columns, and the manifest that marks it as whole.

manifest.json               written last: an export without it is not whole
messages/part-00000.parquet one row per stored message
entities/part-00000.parquet one row per queue, topic and subscription, without keys
state/part-00000.parquet    what only a restore needs, access keys among it: records as the store encodes them
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pairbus.errors import StoreUnavailable, UsageError
from pairbus.model.message_row import EXPORT_ROW, PROPERTIES, TEXT
from pairbus.server.files import DIRECTORY_MODE, FILE_MODE, sync_directory, write_whole

if TYPE_CHECKING:
    from collections.abc import Iterator

EXPORT_FORMAT: Final = 1
MANIFEST: Final = "manifest.json"
MESSAGES: Final = "messages"
ENTITIES: Final = "entities"
STATE: Final = "state"
ROWS_PER_GROUP_MAX: Final = 10_000
BYTES_PER_GROUP_MAX: Final = 32 << 20
"""A reader holds a row group in memory."""
BYTES_PER_FILE_MAX: Final = 512 << 20

MESSAGE_TYPES: Final = {
    name: TEXT if column.type == PROPERTIES else column.type for name, column in EXPORT_ROW.items()
}
ENTITY_TYPES: Final = {
    "entity": "text",
    "kind": "text",
    "settings": "text",
    "next_sequence_number": "int64",
    "active": "int64",
    "scheduled": "int64",
    "deferred": "int64",
    "dead_letter": "int64",
    "transfer_dead_letter": "int64",
    "bytes": "int64",
}
STATE_TYPES: Final = {"record": "binary"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What an export holds; without this file it is not whole."""

    format: int
    namespace: str
    exported_at: int
    """Milliseconds since the epoch."""
    messages: int
    entities: int
    state: int


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Mark an export as whole. Call it last."""
    write_whole(directory / MANIFEST, json.dumps(asdict(manifest), indent=2).encode() + b"\n")


def read_manifest(directory: Path) -> Manifest:
    """What an export holds. StoreUnavailable if it is none, is not whole, or is of a newer form; UsageError if it is no directory."""
    path = directory / MANIFEST
    try:
        manifest = Manifest(**json.loads(path.read_text(encoding="utf-8")))
    except (FileNotFoundError, NotADirectoryError) as error:
        if not directory.is_dir():
            what = "is no directory" if directory.exists() else "does not exist"
            raise UsageError(f"{directory} {what}: name the directory of an export") from error
        raise StoreUnavailable(
            f"{directory} is no whole export: {MANIFEST}, which is written last, is missing; export again"
        ) from error
    except (OSError, ValueError, TypeError) as error:
        raise StoreUnavailable(f"{path} cannot be read ({error}): export again") from error
    if manifest.format > EXPORT_FORMAT:
        raise StoreUnavailable(
            f"{directory} has export format {manifest.format}, this PairBus knows up to {EXPORT_FORMAT}: "
            "import it with the newer PairBus that wrote it"
        )
    return manifest


class PartWriter:
    """Writes rows into numbered Parquet files, each row group bounded in rows and bytes."""

    def __init__(self, directory: Path, types: dict[str, str]) -> None:
        import pyarrow

        makers = {
            "timestamp": pyarrow.timestamp("ms", tz="UTC"),
            "text": pyarrow.string(),
            "int64": pyarrow.int64(),
            "binary": pyarrow.binary(),
        }
        self._schema = pyarrow.schema([(column, makers[kind]) for column, kind in types.items()])
        self._directory = directory
        self._rows: list[dict[str, Any]] = []
        self._group_bytes = self._file_bytes = 0
        self._parts = 0
        self._file: Any = None
        self._writer: Any = None
        self.count = 0
        directory.mkdir(mode=DIRECTORY_MODE)

    def add(self, row: dict[str, Any], size: int = 0) -> None:
        """One more row; ``size`` is about what it takes."""
        self._rows.append(row)
        self._group_bytes += size
        self.count += 1
        if len(self._rows) >= ROWS_PER_GROUP_MAX or self._group_bytes >= BYTES_PER_GROUP_MAX:
            self._write_group()

    def close(self) -> None:
        """Write the rest, durably. There is at least one file, so that a reader finds the columns."""
        if self._rows or not self._parts:
            self._write_group()
        self._end_file()
        sync_directory(self._directory)

    def _write_group(self) -> None:
        import pyarrow
        import pyarrow.parquet

        if self._writer is None:
            path = self._directory / f"part-{self._parts:05}.parquet"
            self._parts += 1
            self._file = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE), "wb")
            self._writer = pyarrow.parquet.ParquetWriter(self._file, self._schema, write_page_checksum=True)
        self._writer.write_table(pyarrow.Table.from_pylist(self._rows, schema=self._schema))
        self._file_bytes += self._group_bytes
        self._rows = []
        self._group_bytes = 0
        if self._file_bytes >= BYTES_PER_FILE_MAX:
            self._end_file()

    def _end_file(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._writer = self._file = None
            self._file_bytes = 0


def read_rows(directory: Path, types: dict[str, str], expected: int) -> Iterator[dict[str, Any]]:
    """Every row of a part of an export, instants as milliseconds, in the order written. StoreUnavailable on damage, or
    when their number is not that of the manifest.
    """
    import pyarrow
    import pyarrow.parquet

    count = 0
    for path in sorted(directory.glob("part-*.parquet")):
        try:
            with pyarrow.parquet.ParquetFile(path, page_checksum_verification=True) as file:
                for group in range(file.num_row_groups):
                    table = file.read_row_group(group, columns=list(types))
                    for column in types:
                        # A column that is not there is left out without an error.
                        if column not in table.column_names:
                            raise KeyError(f"the column '{column}' is missing")
                    for column, kind in types.items():
                        if kind == "timestamp":
                            index = table.schema.get_field_index(column)
                            table = table.set_column(
                                index, column, table.column(column).cast(pyarrow.int64())
                            )
                    count += table.num_rows
                    yield from table.to_pylist()
        except (OSError, pyarrow.ArrowException, KeyError) as error:
            raise StoreUnavailable(
                f"{path} is damaged ({first_line(error)}): take another copy of the export"
            ) from error
    if count != expected:
        raise StoreUnavailable(
            f"{directory} holds {count} rows where the manifest says {expected}: take another copy of the export"
        )


def first_line(error: Exception) -> str:
    """The first line of an error's text, cut to 200 characters."""
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def new_directory(directory: Path, what: str) -> None:
    """Make a directory, or take an empty one. UsageError if there is something in it."""
    try:
        directory.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
        if any(directory.iterdir()):
            raise UsageError(f"{directory} is not empty: name a new or an empty directory for {what}")
    except OSError as error:
        raise UsageError(f"{directory} cannot be used for {what}: {error.strerror}") from error
