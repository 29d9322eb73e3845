"""Ledgers of sends and arrivals for reconcile: single rows by hand."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow
import pyarrow.parquet

NOON_MS = 1_794_744_000_000
BACKLOG_QUEUE = "contoso/x-servicebus-transfer/3"
SHA = hashlib.sha256(b"body").hexdigest()
SCHEMA = pyarrow.schema(
    [
        ("time", pyarrow.timestamp("ms", tz="UTC")),
        ("namespace", pyarrow.string()),
        ("kind", pyarrow.string()),
        ("entity", pyarrow.string()),
        ("sequence_number", pyarrow.int64()),
        ("message_id", pyarrow.string()),
        ("size", pyarrow.int64()),
        ("sha256", pyarrow.string()),
        ("destination", pyarrow.string()),
        ("detail", pyarrow.string()),
        ("session_id", pyarrow.string()),
    ]
)


def row(kind: str, message_id: str, **changes: object) -> dict[str, object]:
    """One row of an audit log."""
    return {
        "time": NOON_MS,
        "namespace": "contoso",
        "kind": kind,
        "entity": "orders",
        "sequence_number": 1,
        "message_id": message_id,
        "size": 4,
        "sha256": SHA,
        "destination": "",
        "detail": "",
        "session_id": None,
        **changes,
    }


def parked(kind: str, message_id: str, **changes: object) -> dict[str, object]:
    """One row about a message in a backlog queue."""
    return row(kind, message_id, **{"entity": BACKLOG_QUEUE, "destination": "orders", **changes})


def write(path: Path, rows: Sequence[Mapping[str, object]]) -> str:
    """Rows as one Parquet file."""
    columns = {name: [entry[name] for entry in rows] for name in SCHEMA.names}
    return write_table(path, pyarrow.table(columns, schema=SCHEMA))


def write_table(path: Path, table: pyarrow.Table, row_group_size: int | None = None) -> str:
    """A table as one file; its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(table, path, compression="zstd", row_group_size=row_group_size)
    return str(path)
