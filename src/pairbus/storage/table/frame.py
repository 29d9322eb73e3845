"""One frame: the records of a commit, in two parts.

    head   version u8 | flags u8 | oldest u64 | records without the bytes of messages      all that replay reads
    body   the bytes of messages, one after the other                                      read when a message is delivered

A message's location is the frame's number and the offset in its body. The *fence*, which a new owner adds, has neither head nor body.
The checksum has 32 bits for each part, so each can be verified without the other.
"""

from __future__ import annotations

import struct
from typing import Final
from zlib import crc32

from pairbus.errors import StoreCorrupt
from pairbus.storage.table.ports import FrameMark

OFFSET_BITS: Final = 28
OFFSET_MASK: Final = (1 << OFFSET_BITS) - 1
BODY_BYTES_MAX: Final = 64 << 20
"""A frame that would have a larger body ends before; the batch goes on in the next one. A single longer message has a frame of its own."""
VERSION: Final = 1
MORE: Final = 1
"""The batch goes on in the next frame; without that one it does not count."""
EMPTY_FRAME_BYTES: Final = 96
"""About what a frame without head and body takes in the database."""
PREAMBLE: Final = struct.Struct("<BBQ")
CHECKSUM_BITS: Final = 32
_CHECKSUM_MASK: Final = (1 << CHECKSUM_BITS) - 1


class Frame:
    """A frame that waits for its commit.

    Args:
        sequence: Its number.
        flags: ``MORE`` or 0.
        oldest: The oldest frame that matters once this one is durable.
        records: Encoded records without the bytes of messages.
        blobs: Those bytes.
        body_bytes: Their length.
    """

    __slots__ = ("_blobs", "_body", "body_bytes", "head", "mark", "sequence")

    def __init__(
        self,
        sequence: int,
        flags: int,
        oldest: int,
        records: list[bytes],
        blobs: list[bytes],
        body_bytes: int,
    ) -> None:
        self.sequence = sequence
        self.head = PREAMBLE.pack(VERSION, flags, oldest) + b"".join(records)
        self._blobs = blobs
        self._body: bytes | None = None
        self.body_bytes = body_bytes
        self.mark: FrameMark | None = None

    def body(self) -> bytes:
        if self._body is None:
            self._body = self._blobs[0] if len(self._blobs) == 1 else b"".join(self._blobs)
            self._blobs = []
        return self._body

    def marked(self, epoch: int) -> FrameMark:
        """Its mark; the checksums are computed by the thread that commits."""
        if self.mark is None:
            self.mark = FrameMark(epoch, crc32(self.head) << CHECKSUM_BITS | crc32(self.body()))
        return self.mark


def head_checksum(mark: FrameMark) -> int:
    return mark.checksum >> CHECKSUM_BITS


def body_checksum(mark: FrameMark) -> int:
    return mark.checksum & _CHECKSUM_MASK


def read_preamble(head: bytes, sequence: int) -> tuple[int, int]:
    """Flags, and the oldest frame that matters. Raises StoreCorrupt."""
    if len(head) < PREAMBLE.size:
        raise damaged(sequence, f"its head has only {len(head)} bytes")
    version, flags, oldest = PREAMBLE.unpack_from(head)
    if version != VERSION:
        raise damaged(sequence, f"its form {version} is unknown: a newer PairBus wrote it?")
    return flags, oldest


def damaged(sequence: int, what: str) -> StoreCorrupt:
    """What is wrong, and where."""
    return StoreCorrupt(f"frame {sequence} of the log is damaged: {what}; restore the database from a copy")
