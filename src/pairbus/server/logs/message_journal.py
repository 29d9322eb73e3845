"""Files of the message audit: journals of checksummed blocks, and the Parquet that is made of them.

A block is ``magic, number, length, CRC-32`` and lines of JSON, one for each row. The first row of a journal also names the namespace. Behind the
last block a journal in use, or one that a crash left, has zeros: its space is reserved ahead of writing.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pairbus.amqp.message.layout import PREFIX_SIZE
from pairbus.amqp.message.view import PropertiesView
from pairbus.gateway.telemetry.audit_rows import DUPLICATE, REDRIVEN, SENT
from pairbus.model.message_row import types
from pairbus.server.files import FILE_MODE, sync_directory
from pairbus.server.logs.parquet import HOUR_MS, hour_name, write_part

if TYPE_CHECKING:
    from pairbus.gateway.telemetry.audit_rows import AuditRow
    from pairbus.server.logs.audit_reserve import AuditReserve

logger = logging.getLogger(__name__)

MAGIC: Final = b"PBA1"
BLOCK: Final = struct.Struct("<4sQII")
DESTINATION_PROPERTY: Final = "x-ms-path"
"""Application property of a backlog message that names its destination."""
REDRIVEN_PROPERTY: Final = "x-pairbus-redriven"
"""Of one that was put back into its backlog queue from the dead-letter queue."""
SESSION_PROPERTY: Final = "x-ms-sessionid"
"""Of a backlog message: its session, which must not take effect in the backlog."""
TYPES: Final = {
    "time": "timestamp",
    "namespace": "text",
    "kind": "text",
    **types("entity sequence_number message_id size"),
    "sha256": "text",
    "destination": "text",
    "detail": "text",
    "session_id": "text",
}
"""The columns and their types; ``docs/reference/usage-log.md`` tells what they mean."""
FIELDS: Final = (*(name for name in TYPES if name != "namespace"), "namespace")
"""What a line has, in this order. New ones come last: lines of an older journal end before them. The namespace is only in the first line of a
journal, and not in those of older versions.
"""
_SENDS: Final = (SENT, DUPLICATE)
_JOURNALS: Final = "journal-*.log"
GROWTH_BYTES: Final = 1 << 20
"""By how much a journal grows ahead of what is written."""


def encode_row(row: AuditRow, namespace: str = "") -> bytes:
    """A row as one line; the first one of a journal has the namespace. The hash is of the body as it was sent: the bytes of its data sections, or
    the encoded value.
    """
    message_id = sha256 = destination = ""
    session: object = None
    detail, size = row.detail, 0
    if row.blob:
        view = PropertiesView(row.blob)
        message_id = _id_text(view.system("messageid"))
        sha256 = hashlib.sha256(view.body_bytes()).hexdigest()
        path = view.user(DESTINATION_PROPERTY)
        destination = path if isinstance(path, str) else ""
        session = view.system("sessionid")
        if session is None and destination:
            session = view.user(SESSION_PROPERTY)
        if destination and row.kind in _SENDS and view.user(REDRIVEN_PROPERTY) is True:
            detail = REDRIVEN
        size = len(row.blob) - PREFIX_SIZE
    fields: tuple[object, ...] = (
        row.at,
        row.kind,
        row.path,
        row.sequence_number,
        message_id,
        size,
        sha256,
        destination,
        detail,
        session if isinstance(session, str) else None,
    )
    if namespace:
        fields = (*fields, namespace)
    return json.dumps(fields, separators=(",", ":")).encode() + b"\n"


def _id_text(value: object) -> str:
    if value is None:
        return ""
    return value.hex() if isinstance(value, bytes) else str(value)


class AuditJournal:
    """One file that blocks are appended to. Its name holds the number of its first block and the id of the broker's start."""

    def __init__(
        self, directory: Path, namespace: str, number: int, boot_id: str, reserve: AuditReserve
    ) -> None:
        self.path = directory / f"journal-{number:016}-{boot_id}.log"
        self._namespace = namespace
        self._reserve = reserve
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        self._file = reserve.descriptors.run(lambda: os.open(self.path, flags, FILE_MODE))
        self._size = self._allocated = 0
        self._hour = 0
        reserve.descriptors.run(lambda: sync_directory(directory))
        reserve.descriptors.fill()

    def should_end(self, now: int, bytes_max: int) -> bool:
        """Whether it is full, or its hour over."""
        return self._size >= bytes_max or now >= self._hour + HOUR_MS

    def write(self, number: int, rows: list[AuditRow]) -> None:
        """Append a block; it is durable afterwards. Raises OSError."""
        name = ""
        if not self._size:
            self._hour = rows[0].at - rows[0].at % HOUR_MS
            name = self._namespace
        data = b"".join([encode_row(rows[0], name), *[encode_row(row) for row in rows[1:]]])
        block = memoryview(BLOCK.pack(MAGIC, number, len(data), zlib.crc32(data)) + data)
        lacking = self._size + len(block) - self._allocated
        if lacking > 0:
            growth = max(lacking, GROWTH_BYTES)
            self._reserve.allocate(self._file, self._allocated, growth)
            self._allocated += growth
        while block:
            written = os.write(self._file, block)
            self._size += written
            block = block[written:]
        os.fdatasync(self._file)

    def close(self) -> None:
        """Give back what was reserved and not written. Idempotent."""
        if self._file >= 0:
            os.ftruncate(self._file, self._size)
            os.close(self._file)
            self._file = -1
            self._reserve.descriptors.fill()


def journal_files(directory: Path) -> list[Path]:
    """Journals that have not been converted, oldest first."""
    return sorted(directory.glob(_JOURNALS))


def blocks(file: Path) -> Iterator[tuple[int, int, bytes]]:
    """Number, end and contents of every whole block, up to the first that is not."""
    with file.open("rb") as stream:
        while len(head := stream.read(BLOCK.size)) == BLOCK.size:
            magic, number, length, checksum = BLOCK.unpack(head)
            data = stream.read(length) if magic == MAGIC else b""
            if magic != MAGIC or len(data) != length or zlib.crc32(data) != checksum:
                return
            yield number, stream.tell(), data


def mend(file: Path, durable_number: int) -> bool:
    """Cut off what no batch of the store stands for. False: nothing was left, and the file is gone."""
    end = 0
    for number, block_end, _ in blocks(file):
        if number > durable_number:
            break
        end = block_end
    cut = file.stat().st_size - end
    if cut:  # a torn block, one that never counted, or just space that was reserved
        logger.info("audit journal cut", extra={"event": "audit.cut", "file": file.name, "bytes": cut})
    if not end:
        file.unlink()
        return False
    with file.open("r+b") as stream:
        stream.truncate(end)
        os.fsync(stream.fileno())
    return True


def namespace_of(file: Path) -> str | None:
    """The namespace that a journal names; empty in one of an older version. None if it has no row yet."""
    for _, _, data in blocks(file):
        for line in data.splitlines():
            return _named(json.loads(line))
    return None


def _named(fields: list[object]) -> str:
    at = FIELDS.index("namespace")
    return str(fields[at] or "") if at < len(fields) else ""


def convert(file: Path, directory: Path, namespace: str) -> None:
    """Turn a journal into Parquet by hour and remove it. Done again after a crash it writes the same files. ``namespace`` is for a journal that does
    not name it.
    """
    by_hour: dict[int, list[list[object]]] = {}
    for _, _, data in blocks(file):
        for line in data.splitlines():
            fields = json.loads(line)
            if not by_hour:
                namespace = _named(fields) or namespace
            by_hour.setdefault(fields[0] - fields[0] % HOUR_MS, []).append(fields)
    part = file.name.replace("journal-", "part-").replace(".log", ".parquet")
    for hour, rows in by_hour.items():
        columns: dict[str, list[object]] = {
            name: [row[at] if at < len(row) else None for row in rows] for at, name in enumerate(FIELDS)
        }
        columns["namespace"] = [namespace] * len(rows)
        write_part(directory / hour_name(hour), part, TYPES, columns)
    file.unlink()
    sync_directory(directory)
