"""Files of the message audit: journals of checksummed blocks, and the Parquet that is made of them.

``journal_blocks`` says what a journal looks like. The first row of a journal also names the namespace.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pairbus.amqp.message.layout import PREFIX_SIZE
from pairbus.amqp.message.view import PropertiesView
from pairbus.gateway.telemetry.audit_rows import DUPLICATE, REDRIVEN, SENT
from pairbus.model.message_row import types
from pairbus.server.files import FILE_MODE, UNFINISHED_SUFFIX, sync_directory
from pairbus.server.logs.journal_blocks import BLOCK, block, end_mark, first_number, whole_blocks
from pairbus.server.logs.parquet import HOUR_MS, hour_name, write_part

if TYPE_CHECKING:
    from pairbus.gateway.telemetry.audit_rows import AuditRow
    from pairbus.server.logs.audit_reserve import AuditReserve

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
        self.path = directory / journal_name(number, boot_id)
        self._namespace = namespace
        self._reserve = reserve
        self._size = self._whole_size = self._allocated = self._number = 0
        self._hour = 0
        # It gets its name with its space: a journal of that name that has none was cut.
        unfinished = self.path.with_name(f".{self.path.name}{UNFINISHED_SUFFIX}")
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        self._file = reserve.descriptors.run(lambda: os.open(unfinished, flags, FILE_MODE))
        try:
            self._allocate(GROWTH_BYTES)
            unfinished.rename(self.path)
        except BaseException:
            os.close(self._file)
            unfinished.unlink(missing_ok=True)
            raise
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
        whole = block(number, data)
        # Behind each block there is room for the end mark.
        lacking = self._size + len(whole) + BLOCK.size - self._allocated
        if lacking > 0:
            self._allocate(max(lacking, GROWTH_BYTES))
        self._append(whole)
        os.fdatasync(self._file)
        self._number, self._whole_size = number, self._size

    def _allocate(self, growth: int) -> None:
        self._reserve.allocate(self._file, self._allocated, growth)
        self._allocated += growth
        # Where nothing can be reserved the file is as long all the same.
        os.ftruncate(self._file, self._allocated)

    def _append(self, whole: bytes) -> None:
        left = memoryview(whole)
        while left:
            written = os.write(self._file, left)
            self._size += written
            left = left[written:]

    def abandon(self) -> None:
        """Close the file as a crash does: the batch of the last block may not be durable, and an end mark would say that it is. Idempotent."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
            self._reserve.descriptors.fill()

    def close(self) -> None:
        """Write the end mark, and give back what was reserved and not written. Idempotent."""
        if self._file >= 0:
            if self._number:
                # A block that could not be written to its end is not one.
                self._size = os.lseek(self._file, self._whole_size, os.SEEK_SET)
                self._append(end_mark(self._number))
                os.ftruncate(self._file, self._size)
            os.close(self._file)
            self._file = -1
            self._reserve.descriptors.fill()


def journal_name(number: int, boot_id: str) -> str:
    """The name of a journal; ``number`` is that of its first block."""
    return f"journal-{number:016}-{boot_id}.log"


def journal_files(directory: Path) -> list[Path]:
    """Journals that have not been converted, oldest first."""
    return sorted(directory.glob(_JOURNALS))


def blocks(file: Path) -> Iterator[tuple[int, int, bytes]]:
    """Number, end and contents of every whole block, up to the first that is not."""
    for found in whole_blocks(file.read_bytes(), first_number(file.name)):
        yield found.number, found.end, found.data


def lines(data: bytes) -> list[bytes]:
    """The rows of a block."""
    return [line for line in data.split(b"\n") if line]


def namespace_of(file: Path) -> str | None:
    """The namespace that a journal names; empty in one of an older version. None if it has no row yet."""
    for _, _, data in blocks(file):
        for line in lines(data):
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
    last = 0
    for number, _, data in blocks(file):
        last = number
        for line in lines(data):
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
        write_part(directory / hour_name(hour), part, TYPES, columns, last)
    file.unlink()
    sync_directory(directory)
