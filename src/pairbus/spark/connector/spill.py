"""Sorted runs of records on disk, merged again: order within bounded memory. Nothing is ever unpickled (D9)."""

from __future__ import annotations

import heapq
import os
import struct
import tempfile
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import IO, Final, NamedTuple, Self

_SIZES: Final = struct.Struct(">qII")


class Record(NamedTuple):
    """Something to be kept in order by session and number."""

    session: str
    number: int
    head: str
    body: bytes


class Spill:
    """Takes sorted runs, gives all records back in order. One temporary file without a name, gone with the process."""

    def __init__(self) -> None:
        self._file: IO[bytes] | None = None
        self._runs: list[tuple[int, int]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()

    @property
    def is_empty(self) -> bool:
        return not self._runs

    def add(self, records: Iterable[Record]) -> None:
        """Keep a run, which is in order by session and number."""
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="pairbus-spill-")  # noqa: SIM115 - closed in __exit__
        start = self._file.tell()
        for record in records:
            head = f"{len(record.session)}:{record.session}{record.head}".encode()
            self._file.write(_SIZES.pack(record.number, len(head), len(record.body)))
            self._file.write(head)
            self._file.write(record.body)
        if self._file.tell() > start:
            self._runs.append((start, self._file.tell()))

    def merged(self) -> Iterator[Record]:
        """Every record by session and number; equal ones in the order they came."""
        if self._file is None:
            return iter(())
        self._file.flush()
        runs = [self._read(start, end) for start, end in self._runs]
        return heapq.merge(*runs, key=lambda record: (record.session, record.number))

    def _read(self, start: int, end: int) -> Iterator[Record]:
        assert self._file is not None
        descriptor = self._file.fileno()
        while start < end:
            number, head_size, body_size = _SIZES.unpack(os.pread(descriptor, _SIZES.size, start))
            start += _SIZES.size
            content = os.pread(descriptor, head_size + body_size, start)
            start += head_size + body_size
            length, _, rest = content[:head_size].decode().partition(":")
            yield Record(rest[: int(length)], number, rest[int(length) :], content[head_size:])
