"""One commit on disk: a header, then records.

    marker 8 bytes | kind u8 | flags u8 | part u16 | length u32 | number u64 | oldest u32 | previous end u32
    | checksum of the records u32 | checksum of all before u32

Rule 1: frame numbers rise by exactly 1 over all segments, so a missing frame is seen.
Rule 2: the marker is the segment's salt, random for each use of a file. What lies there from an earlier use, or
        inside a message's body, is therefore never taken for a frame.
Rule 3: at most one frame is written and not synced. So a damaged frame was never acknowledged only if nothing
        valid follows it; otherwise data is lost and that must be reported (B10).
Rule 4: a batch that crosses segments has a frame in each, parts 0, 1, 2 …, each synced before the next is written; all but
        the last have the flag MORE. Parts without their last are ignored as if never written (B13).
Rule 5: nothing in a segment shows that its last frames are gone; the mark does (``mark``). Earlier versions wrote
        a SEAL behind an acknowledged frame, where the next frame overwrote it: if one is there, the frame before it was complete.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final
from zlib import crc32

FRAME: Final = 1
SEAL: Final = 2
MORE: Final = 1
"""The batch goes on in the next frame."""

MARKER_BYTES: Final = 8
_BODY: Final = struct.Struct("<8sBBHIQIII")
_CHECKSUM: Final = struct.Struct("<I")
HEADER_BYTES: Final = _BODY.size + _CHECKSUM.size


@dataclass(slots=True)
class FrameHeader:
    """The header of a frame."""

    kind: int
    flags: int
    part: int
    length: int
    """Bytes of records after the header."""
    number: int
    oldest: int
    """The oldest segment that matters once this frame is durable."""
    previous_end: int
    """For the first frame of a segment: where the data of the segment before ends. Else 0."""
    checksum: int

    @property
    def first_number(self) -> int:
        """The number of the batch's first frame."""
        return self.number - self.part


def pack_header(marker: bytes, header: FrameHeader) -> bytes:
    """A header with its own checksum."""
    body = _BODY.pack(
        marker, header.kind, header.flags, header.part, header.length, header.number, header.oldest,
        header.previous_end, header.checksum,
    )  # fmt: skip
    return body + _CHECKSUM.pack(crc32(body))


def read_header(buffer: bytes, offset: int, marker: bytes) -> FrameHeader | None:
    """The header at an offset, or None if there is no intact one of this use of the segment."""
    if not buffer.startswith(marker, offset) or len(buffer) - offset < HEADER_BYTES:
        return None
    fields = _BODY.unpack_from(buffer, offset)
    end = offset + _BODY.size
    if _CHECKSUM.unpack_from(buffer, end)[0] != crc32(buffer[offset:end]):
        return None
    return FrameHeader(*fields[1:])


def read_frame(buffer: bytes, offset: int, marker: bytes) -> FrameHeader | None:
    """The complete and undamaged frame at an offset, or None."""
    header = read_header(buffer, offset, marker)
    if header is None or header.kind != FRAME:
        return None
    start = offset + HEADER_BYTES
    if start + header.length > len(buffer):
        return None
    if crc32(memoryview(buffer)[start : start + header.length]) != header.checksum:
        return None
    return header


def find_later(buffer: bytes, start: int, marker: bytes, number: int) -> int:
    """The offset after ``start`` of any intact header numbered above ``number``, or -1.

    The header at ``start`` itself may be of a frame that was being written when everything stopped: it counts only
    as a SEAL, for that is written after the sync.
    """
    offset = buffer.find(marker, start)
    while offset >= 0:
        header = read_header(buffer, offset, marker)
        if header is not None and header.number > number and (offset > start or header.kind == SEAL):
            return offset
        offset = buffer.find(marker, offset + 1)
    return -1
