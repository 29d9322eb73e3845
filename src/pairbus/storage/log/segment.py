"""One file of the log: its name, its header, and what is known of it while it is in use.

    magic 8 bytes | version u32 | segment number u32 | salt 8 bytes | length u32 | checksum u32 | zeros up to 512

The length is what the file was made with. A file may grow beyond it and never becomes shorter, so a shorter file was damaged from
outside. Version 1 has no length.

The header is synced before the file gets its segment's name, so a file of that name whose header cannot be read is damaged,
never just unfinished.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from zlib import crc32

from pairbus.errors import StoreCorrupt
from pairbus.storage.log.frame import MARKER_BYTES

if TYPE_CHECKING:
    from pairbus.storage.files import FileSystem

SEGMENT_HEADER_BYTES: Final = 512
SEGMENT_VERSION: Final = 2
FIRST_SEGMENT: Final = 1

_MAGIC: Final = b"PAIRBUS\n"
_BODY: Final = struct.Struct(f"<8sII{MARKER_BYTES}sI")
_BODY_1: Final = struct.Struct(f"<8sII{MARKER_BYTES}s")
"""Version 1."""
_CHECKSUM: Final = struct.Struct("<I")
_SUFFIX: Final = ".segment"

OFFSET_BITS: Final = 32
OFFSET_MASK: Final = 0xFFFF_FFFF


def segment_name(number: int) -> str:
    """The file of a segment."""
    return f"{number:010d}{_SUFFIX}"


def segment_number(name: str) -> int | None:
    """The segment a file holds, or None if it is no segment's file."""
    stem = name.removesuffix(_SUFFIX)
    return int(stem) if stem != name and len(stem) == 10 and stem.isascii() and stem.isdigit() else None


def pack_segment_header(number: int, marker: bytes, length: int) -> bytes:
    """The first bytes of a segment."""
    body = _BODY.pack(_MAGIC, SEGMENT_VERSION, number, marker, length)
    return (body + _CHECKSUM.pack(crc32(body))).ljust(SEGMENT_HEADER_BYTES, b"\0")


def read_segment_header(buffer: bytes, number: int) -> tuple[bytes, int]:
    """The segment's marker and the length it was made with (0: unknown). StoreCorrupt if this is not that segment's header."""
    name = segment_name(number)
    if len(buffer) < SEGMENT_HEADER_BYTES:
        raise StoreCorrupt(
            f"{name}: the file ends inside its header; restore the data directory from a copy",
            file=name,
            offset=len(buffer),
        )
    magic, version, found, marker = _BODY_1.unpack_from(buffer)
    body = _BODY_1 if version == 1 else _BODY
    checked = _CHECKSUM.unpack_from(buffer, body.size)[0] == crc32(buffer[: body.size])
    rest = body.size + _CHECKSUM.size
    if (
        not checked
        or magic != _MAGIC
        or buffer.count(b"\0", rest, SEGMENT_HEADER_BYTES) != SEGMENT_HEADER_BYTES - rest
    ):
        raise StoreCorrupt(
            f"{name}: damaged header at offset 0; restore the data directory from a copy", file=name, offset=0
        )
    if not 1 <= version <= SEGMENT_VERSION:
        raise StoreCorrupt(
            f"{name}: segment version {version} is unknown: a newer PairBus wrote it?", file=name, offset=0
        )
    if found != number:
        raise StoreCorrupt(
            f"{name}: the header says segment {found}; was the file renamed?", file=name, offset=0
        )
    return bytes(marker), 0 if version == 1 else _BODY.unpack_from(buffer)[4]


@dataclass(slots=True)
class OpenSegment:
    """A segment that is open for writing."""

    number: int
    marker: bytes
    handle: int
    capacity: int
    """The length that is written already, so that a sync changes no metadata."""


@dataclass(slots=True)
class SegmentImage:
    """A segment's bytes in memory, for replay and checks."""

    number: int
    marker: bytes
    made_bytes: int
    """The length the file was made with; 0: unknown."""
    buffer: bytes

    @property
    def name(self) -> str:
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
    marker, made_bytes = read_segment_header(buffer, number)
    return SegmentImage(number, marker, made_bytes, buffer)
