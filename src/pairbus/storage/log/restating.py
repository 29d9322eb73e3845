"""The records of an old segment that may still be true, read frame by frame so that no single step takes long."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pairbus.errors import StoreCorrupt, StoreFailed
from pairbus.storage.accounts import RESTATABLE
from pairbus.storage.codec import decode
from pairbus.storage.log.frame import HEADER_BYTES, read_frame, read_header
from pairbus.storage.log.segment import (
    OFFSET_BITS,
    SEGMENT_HEADER_BYTES,
    read_segment_header,
    segment_name,
)

if TYPE_CHECKING:
    from pairbus.engine.records import Record
    from pairbus.storage.accounts import SegmentAccount
    from pairbus.storage.files import FileSystem


def restatable(files: FileSystem, account: SegmentAccount, void: set[tuple[int, int]]) -> Iterator[Record]:
    """What the owner must look at before this segment can go. ``void`` are frames that never counted.

    Without live messages only frames with facts are read, where they are known: a broker whose messages are received at once
    would otherwise read back a part of all that it writes. The frames are checked again: damage since they were written
    must not be carried on unnoticed.
    """
    frames = account.fact_frames if not account.live else None
    name = segment_name(account.number)
    try:
        handle = files.open(name)
        try:
            marker, _ = read_segment_header(files.read(handle, SEGMENT_HEADER_BYTES, 0), account.number)
            offset = SEGMENT_HEADER_BYTES
            known = iter(frames or ())
            while offset < account.used_bytes:
                if frames is not None:
                    offset = next(known, account.used_bytes)
                    if offset >= account.used_bytes:
                        break
                header = read_header(files.read(handle, HEADER_BYTES, offset), 0, marker)
                length = HEADER_BYTES + (header.length if header is not None else 0)
                frame = files.read(handle, length, offset)
                if header is None or read_frame(frame, 0, marker) is None:
                    raise StoreCorrupt(
                        f"{name}: damage at offset {offset}: the frame is damaged; restore from a copy",
                        file=name,
                        offset=offset,
                    )
                if (account.number, offset) not in void:
                    base = (account.number << OFFSET_BITS) + offset
                    for record in decode(frame, HEADER_BYTES, length, base):
                        if isinstance(record, RESTATABLE):
                            yield record
                offset += length
        finally:
            files.close(handle)
    except OSError as error:
        raise StoreFailed(f"{name} cannot be read: {error}") from error
