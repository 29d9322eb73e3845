"""Ledgers of sends and arrivals for reconcile: single rows by hand."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow
import pyarrow.parquet

from pairbus.server.logs.journal_blocks import block
from pairbus.server.logs.message_journal import FIELDS, convert
from pairbus.server.logs.parquet import hour_name

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


OPEN = "the last hour in an open journal"
COPIED = "all in Parquet, and beside it a copy of the journal from when it was open"
BLOCK_ROWS = 20


def write_log(directory: Path, rows: Sequence[Mapping[str, object]], layout: str, open_ms: int) -> list[str]:
    """Rows as the brokers of their namespaces keep them, each in a data directory of its own; those from ``open_ms`` on as the layout says."""
    places = []
    for namespace in sorted({str(entry["namespace"]) for entry in rows}):
        own = sorted(
            (entry for entry in rows if entry["namespace"] == namespace),
            key=lambda entry: int(str(entry["time"])),
        )
        old = [entry for entry in own if int(str(entry["time"])) < open_ms]
        recent = own[len(old) :]
        folder = directory / namespace / "messages-audit"
        for hour in sorted({hour_name(int(str(entry["time"]))) for entry in old}):
            of_hour = [entry for entry in old if hour_name(int(str(entry["time"]))) == hour]
            write(folder / hour / f"part-{1:016}-{namespace}.parquet", of_hour)
        folder.mkdir(parents=True, exist_ok=True)
        journal = folder / f"journal-{2:016}-{namespace}.log"
        journal.write_bytes(journal_bytes(recent, namespace))
        places.append(str(folder.parent))
        if layout == COPIED and recent:
            copied = directory / "copy" / namespace / "messages-audit" / journal.name
            copied.parent.mkdir(parents=True, exist_ok=True)
            # The last row of this copy was never made to count: the broker crashed before.
            copied.write_bytes(journal_bytes([*recent[: len(recent) // 2], recent[0]], namespace))
            places.append(str(copied.parent))
            convert(journal, folder, "")
    return places


def journal_bytes(rows: Sequence[Mapping[str, object]], namespace: str, first: int = 2) -> bytes:
    """An open journal with these rows, and space behind them. ``first`` is the number of its first block."""
    lines = [json.dumps([entry[name] for name in FIELDS if name != "namespace"]).encode() for entry in rows]
    if lines:
        lines[0] = lines[0][:-1] + b", " + json.dumps(namespace).encode() + b"]"
    found = b""
    for number, at in enumerate(range(0, len(lines), BLOCK_ROWS), first):
        data = b"\n".join(lines[at : at + BLOCK_ROWS]) + b"\n"
        found += block(number, data)
    return found + bytes(1 << 12)
