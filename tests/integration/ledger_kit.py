"""Ledgers of sends and arrivals for reconcile: many rows quickly, and single rows by hand."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow
import pyarrow.compute
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


def ledger(numbers: pyarrow.Array, kind: str, delay_ms: int = 0, destinations: int = 20) -> pyarrow.Table:
    """A row for each number: its id, body and destination follow from it."""
    count = len(numbers)
    text = pyarrow.compute.cast(numbers, pyarrow.string())
    # 64 hexadecimal digits that differ: as good as a hash for comparing, and quick to make.
    body = pyarrow.compute.utf8_lpad(text, 64, "0")
    spread = pyarrow.compute.cast(
        pyarrow.compute.subtract(
            numbers, pyarrow.compute.multiply(pyarrow.compute.divide(numbers, destinations), destinations)
        ),
        pyarrow.string(),
    )
    times = pyarrow.compute.add(numbers, NOON_MS + delay_ms)
    return pyarrow.table(
        {
            "time": pyarrow.compute.cast(times, pyarrow.timestamp("ms", tz="UTC")),
            "namespace": pyarrow.array(["contoso"] * 1).take(pyarrow.array([0] * count, pyarrow.int32())),
            "kind": pyarrow.array([kind]).take(pyarrow.array([0] * count, pyarrow.int32())),
            "entity": pyarrow.compute.binary_join_element_wise("orders", spread, "-"),
            "sequence_number": numbers,
            "message_id": pyarrow.compute.binary_join_element_wise("message", text, "-"),
            "size": numbers,
            "sha256": body,
            "destination": pyarrow.array([""]).take(pyarrow.array([0] * count, pyarrow.int32())),
            "detail": pyarrow.array([""]).take(pyarrow.array([0] * count, pyarrow.int32())),
        },
        schema=SCHEMA,
    )
