"""Rows that cannot be sent: kept whole, with the reason (D5)."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import uuid
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from pairbus.errors import UsageError
from pairbus.spark.filesystem import filesystem_of

SUFFIX: Final = ".parquet"


def prepare(directory: str) -> None:
    """Make the directory, and see that files can be written there.

    Raises:
        UsageError: They cannot.
    """
    try:
        system, path = filesystem_of(directory)
        system.create_dir(path, recursive=True)
        probe = f"{path}/.quarantine-{uuid.uuid4().hex}"
        with system.open_output_stream(probe) as stream:
            stream.write(b"\0")
        system.delete_file(probe)
    except (OSError, ValueError) as error:
        raise UsageError(f"option quarantinePath is {directory!r}: it cannot be written: {error}") from error


def quarantine(
    directory: str, rows: list[tuple[dict[str, Any], str]], task: str = "", partition: int = 0
) -> str:
    """Write rows with their reasons as one Parquet file. Returns its name.

    The name comes from the task, or, where a task has no name that lasts, from its content: a task that is run again
    writes the same file again and nothing twice (D1). The file appears whole or not at all.

    Args:
        directory: A path or URI that pyarrow understands.
        rows: Each row by column, and why it cannot be sent.
        task: Which part of which batch of a stream it is; empty outside of a stream.
        partition: Which part of a batch job it is: two parts may hold equal rows.
    """
    import pyarrow
    from pyarrow import parquet

    # In an order of their own: rows come in any order when a task is run again.
    kept = sorted(
        ((json.dumps(as_json(row), sort_keys=True, allow_nan=False), reason, row) for row, reason in rows),
        key=lambda item: item[:2],
    )
    texts = [text for text, _, _ in kept]
    name = hashlib.sha256((task or "\n".join([str(partition), *texts])).encode()).hexdigest()[:32]
    table = pyarrow.table(
        {
            "reason": pyarrow.array([reason for _, reason, _ in kept], pyarrow.string()),
            "row": pyarrow.array(texts, pyarrow.string()),
            "message_id": pyarrow.array(
                [_text(_value(row, "message_id")) for *_, row in kept], pyarrow.string()
            ),
            "raw": pyarrow.array([_binary(row) for *_, row in kept], pyarrow.binary()),
        }
    )
    system, path = filesystem_of(directory)
    system.create_dir(path, recursive=True)
    # Readers pass over names that begin with a dot; two copies of a task write one each, the last to move it wins.
    draft = f"{path}/.quarantine-{name}-{uuid.uuid4().hex}"
    final = f"{path}/quarantine-{name}{SUFFIX}"
    parquet.write_table(table, draft, filesystem=system)
    system.move(draft, final)
    return final


def as_json(value: Any) -> Any:
    """A row's values as JSON: bytes in base64, times in ISO 8601, numbers that JSON has no form for (NaN) as text."""
    if isinstance(value, Mapping):
        return {str(key): as_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(item) for item in value]
    if isinstance(value, bytes | bytearray):
        return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _value(row: Mapping[str, Any], field: str) -> Any:
    """A row's value by its column's name, in any letter case."""
    return next((value for name, value in row.items() if name.lower() == field), None)


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _binary(row: Mapping[str, Any]) -> bytes | None:
    for field in ("raw", "body"):
        value = _value(row, field)
        if isinstance(value, bytes | bytearray):
            return bytes(value)
        if isinstance(value, str):
            return value.encode()
        if isinstance(value, Mapping) and set(value) == {"base64"}:
            return base64.b64decode(value["base64"])
    return None
