"""How far the log was acknowledged, in a small file beside the segments. It reveals that the end of the log was lost.

The log ends at its last intact frame. If a file is cut short, zeroed or deleted, that place looks like an ordinary end, so
the number of the last acknowledged frame is kept in a second place.

Rule 1: a mark is written after the sync of the frame it names. It is therefore a lower bound whatever a crash leaves of it:
        a log that ends before its mark has lost acknowledged data.
Rule 2: every commit writes a mark without a sync. A killed process leaves it exact; a loss of power leaves one that is as old
        as the system's last write-back.
Rule 3: the first commit into a segment, the opening and the closing of the store write a mark and sync it. A segment
        with acknowledged data is therefore always known, and so is the end after an orderly stop.
Rule 4: synced marks go into two slots in turn, the others into a third one. One synced slot is always intact.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from zlib import crc32

from pairbus.errors import StoreCorrupt
from pairbus.storage.files import replace_file, write_all
from pairbus.storage.log.segment import OFFSET_BITS, OFFSET_MASK

if TYPE_CHECKING:
    from pairbus.storage.files import FileSystem

MARK_FILE: Final = "mark"
SLOT_BYTES: Final = 4096
"""Each slot has a page of its own, so that no write of one touches another."""
SYNCED_SLOTS: Final = 2
UNSYNCED_SLOT: Final = 2
SLOTS: Final = 3
MARK_BYTES: Final = SLOTS * SLOT_BYTES
WAY_OUT: Final = "restore the data directory from a copy, or give the lost data up with `pairbus store repair --accept-loss`"

_MAGIC: Final = b"PAIRMARK"
_BODY: Final = struct.Struct("<8sQQ")
_CHECKSUM: Final = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class Mark:
    """The last frame that is known to have been acknowledged."""

    number: int
    """The frame's number; 0: nothing was committed yet."""
    location: int
    """The location behind its last byte."""

    @property
    def segment(self) -> int:
        """The number of the segment that holds the frame."""
        return self.location >> OFFSET_BITS

    @property
    def offset(self) -> int:
        """Where the frame ends in that segment."""
        return self.location & OFFSET_MASK


def read_mark(files: FileSystem) -> Mark | None:
    """The highest mark, or None if there is no such file. StoreCorrupt if the file is damaged."""
    if MARK_FILE not in files.names():
        return None
    marks = [mark for mark in _read_slots(files) if mark is not None]
    return max(marks, key=lambda mark: mark.number)


def _read_slots(files: FileSystem) -> list[Mark | None]:
    handle = files.open(MARK_FILE)
    try:
        data = files.read(handle, MARK_BYTES, 0)
    finally:
        files.close(handle)
    if len(data) < MARK_BYTES:
        raise StoreCorrupt(
            f"{MARK_FILE}: damage at offset {len(data)}: the file ends here, it was made {MARK_BYTES} bytes long. "
            f"It cannot be known whether the log is complete, so nothing was changed; {WAY_OUT}",
            file=MARK_FILE,
            offset=len(data),
        )
    slots = [_unpack(data, slot * SLOT_BYTES) for slot in range(SLOTS)]
    if not any(slots[:SYNCED_SLOTS]):
        raise StoreCorrupt(
            f"{MARK_FILE}: damage at offset 0: no intact mark. It cannot be known whether the log is complete, so nothing was "
            f"changed; {WAY_OUT}",
            file=MARK_FILE,
            offset=0,
        )
    return slots


def missing_mark() -> StoreCorrupt:
    """The error for a data directory that must have a mark and has none."""
    return StoreCorrupt(
        f"{MARK_FILE}: the file is missing. It cannot be known whether the log is complete, so nothing was changed; {WAY_OUT}",
        file=MARK_FILE,
        offset=0,
    )


class MarkWriter:
    """Writes marks. Made by ``open_mark``.

    Args:
        files: Where the file is.
        handle: The open file.
        slot: The synced slot that is written next.
    """

    def __init__(self, files: FileSystem, handle: int, slot: int) -> None:
        self._files = files
        self._handle = handle
        self._slot = slot

    def note(self, number: int, location: int) -> None:
        """Write a mark and do not sync it. OSError if it cannot be written."""
        write_all(self._files, self._handle, _pack(number, location), UNSYNCED_SLOT * SLOT_BYTES)

    def confirm(self, number: int, location: int) -> None:
        """Write a mark and sync it. OSError if that fails."""
        write_all(self._files, self._handle, _pack(number, location), self._slot * SLOT_BYTES)
        self._files.sync(self._handle)
        self._slot = SYNCED_SLOTS - 1 - self._slot

    def close(self) -> None:
        self._files.close(self._handle)


def open_mark(files: FileSystem, number: int, location: int) -> MarkWriter:
    """Make sure that there is a mark, durably, at least as high as this one. OSError if that fails."""
    if MARK_FILE not in files.names():
        make_mark(files, number, location)
    first, second, _ = _read_slots(files)
    if first is None or second is None:
        slot = 0 if first is None else 1
    else:
        # The newer one may be in memory only, after a failed sync; the older one is durable, so it stays for now.
        slot = 0 if first.number > second.number else 1
    writer = MarkWriter(files, files.open(MARK_FILE), slot)
    try:
        writer.confirm(number, location)
    except OSError:
        writer.close()
        raise
    return writer


def make_mark(files: FileSystem, number: int, location: int) -> None:
    """Write a new file, durably, in place of any other. OSError if that fails."""
    replace_file(files, MARK_FILE, _pack(number, location).ljust(SLOT_BYTES, b"\0") * SLOTS)


def _pack(number: int, location: int) -> bytes:
    body = _BODY.pack(_MAGIC, number, location)
    return body + _CHECKSUM.pack(crc32(body))


def _unpack(data: bytes, offset: int) -> Mark | None:
    magic, number, location = _BODY.unpack_from(data, offset)
    end = offset + _BODY.size
    if magic != _MAGIC or _CHECKSUM.unpack_from(data, end)[0] != crc32(data[offset:end]):
        return None
    return Mark(number, location)
