"""One file of the log: its name, its header, and what is known of it while it is in use.

    magic 8 bytes | version u32 | segment number u32 | salt 8 bytes | checksum u32 | zeros up to 512

The header is synced before the file gets its segment's name, so a file of that name whose header cannot be read is damaged,
never just unfinished.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final
from zlib import crc32

from pairbus.errors import StoreCorrupt
from pairbus.storage.frame import MARKER_BYTES

if TYPE_CHECKING:
    from pairbus.storage.files import FileSystem

SEGMENT_HEADER_BYTES: Final = 512
SEGMENT_VERSION: Final = 1
SEGMENT_NUMBER_MAX: Final = 0xFFFF_FFFF
FIRST_SEGMENT: Final = 1

_MAGIC: Final = b"PAIRBUS\n"
_BODY: Final = struct.Struct(f"<8sII{MARKER_BYTES}s")
_CHECKSUM: Final = struct.Struct("<I")
_SUFFIX: Final = ".segment"
UNFINISHED_SUFFIX: Final = ".new"

OFFSET_BITS: Final = 32
OFFSET_MASK: Final = 0xFFFF_FFFF


def segment_name(number: int) -> str:
    """The file of a segment."""
    return f"{number:010d}{_SUFFIX}"


def segment_number(name: str) -> int | None:
    """The segment a file holds, or None if it is no segment's file."""
    stem = name.removesuffix(_SUFFIX)
    return int(stem) if stem != name and len(stem) == 10 and stem.isascii() and stem.isdigit() else None


def pack_segment_header(number: int, marker: bytes) -> bytes:
    """The first bytes of a segment."""
    body = _BODY.pack(_MAGIC, SEGMENT_VERSION, number, marker)
    return (body + _CHECKSUM.pack(crc32(body))).ljust(SEGMENT_HEADER_BYTES, b"\0")


def read_segment_header(buffer: bytes, number: int) -> bytes:
    """The segment's marker. StoreCorrupt if this is not that segment's header."""
    name = segment_name(number)
    if len(buffer) < SEGMENT_HEADER_BYTES:
        raise StoreCorrupt(f"{name}: the file ends inside its header; restore the data directory from a copy")
    magic, version, found, marker = _BODY.unpack_from(buffer)
    checked = _CHECKSUM.unpack_from(buffer, _BODY.size)[0] == crc32(buffer[: _BODY.size])
    if (
        not checked
        or magic != _MAGIC
        or buffer.count(b"\0", _BODY.size + 4, SEGMENT_HEADER_BYTES)
        != (SEGMENT_HEADER_BYTES - _BODY.size - 4)
    ):
        raise StoreCorrupt(f"{name}: damaged header at offset 0; restore the data directory from a copy")
    if version != SEGMENT_VERSION:
        raise StoreCorrupt(f"{name}: segment version {version} is unknown: a newer PairBus wrote it?")
    if found != number:
        raise StoreCorrupt(f"{name}: the header says segment {found}; was the file renamed?")
    return bytes(marker)


class OpenSegment:
    """A segment that is open for writing."""

    __slots__ = ("capacity", "handle", "marker", "number")

    def __init__(self, number: int, marker: bytes, handle: int, capacity: int) -> None:
        self.number = number
        self.marker = marker
        self.handle = handle
        self.capacity = capacity
        """The length that is written already, so that a sync changes no metadata."""


class SegmentImage:
    """A segment's bytes in memory, for replay and checks."""

    __slots__ = ("buffer", "marker", "number")

    def __init__(self, number: int, marker: bytes, buffer: bytes) -> None:
        self.number = number
        self.marker = marker
        self.buffer = buffer

    @property
    def name(self) -> str:
        """Its file."""
        return segment_name(self.number)


def load_segment(files: FileSystem, number: int) -> SegmentImage:
    """Read a whole segment. StoreCorrupt if its header is damaged."""
    name = segment_name(number)
    size = files.size(name)
    handle = files.open(name)
    try:
        buffer = files.read(handle, size, 0)
    finally:
        files.close(handle)
    return SegmentImage(number, read_segment_header(buffer, number), buffer)
