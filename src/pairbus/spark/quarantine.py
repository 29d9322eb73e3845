"""Rows that cannot be sent: kept whole, with the reason (D5)."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

SUFFIX: Final = ".parquet"


def quarantine(directory: str, rows: list[tuple[dict[str, Any], str]]) -> str:
    """Write rows with their reasons as one Parquet file. Returns its name.

    The name comes from the content: a task that is run again writes the same file and nothing twice (D1).

    Args:
        directory: A path or URI that pyarrow understands.
        rows: Each row by column, and why it cannot be sent.
    """
    import pyarrow
    from pyarrow import fs, parquet

    texts = [json.dumps(as_json(row), sort_keys=True) for row, _ in rows]
    reasons = [reason for _, reason in rows]
    digest = hashlib.sha256("\n".join(texts).encode()).hexdigest()[:32]
    table = pyarrow.table(
        {
            "reason": pyarrow.array(reasons, pyarrow.string()),
            "row": pyarrow.array(texts, pyarrow.string()),
            "message_id": pyarrow.array([_text(row.get("message_id")) for row, _ in rows], pyarrow.string()),
            "raw": pyarrow.array([_binary(row) for row, _ in rows], pyarrow.binary()),
        }
    )
    if "://" in directory:
        system, path = fs.FileSystem.from_uri(directory)
    else:
        system, path = fs.LocalFileSystem(), directory
    system.create_dir(path, recursive=True)
    name = f"{path}/quarantine-{digest}{SUFFIX}"
    parquet.write_table(table, name, filesystem=system)
    return name


def as_json(value: Any) -> Any:
    """A row's values as JSON: bytes in base64, times in ISO 8601."""
    if isinstance(value, Mapping):
        return {str(key): as_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(item) for item in value]
    if isinstance(value, bytes | bytearray):
        return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, datetime):
        return value.isoformat()
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _binary(row: Mapping[str, Any]) -> bytes | None:
    for field in ("raw", "body"):
        value = row.get(field)
        if isinstance(value, bytes | bytearray):
            return bytes(value)
        if isinstance(value, str):
            return value.encode()
    return None
