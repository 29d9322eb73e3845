"""Records as bytes and back.

Every record starts with a type byte and a version byte. A version, once released, is read for ever: a new layout
gets a new version and a new reader beside the old one. All integers are little-endian.

    MessageStored   type version flags state | delivery count u32 | queue u64 | number u64 | enqueued i64 | expires i64
                    | length of variable part u32 | length of blob u32 | variable part | blob
    MessageRemoved  type version 0 0 | count u32 | queue u64 | count x number u64       (a run of one queue)
    all others      type version | length of body u32 | body

These two are hot: they are packed by hand and decoded without copying a blob. Locations are not written, they follow from
where the bytes lie.
"""

from __future__ import annotations

import struct
import sys
from array import array
from typing import TYPE_CHECKING, Final

from pairbus.engine.records import MessageRemoved, MessageStored
from pairbus.errors import StoreCorrupt, UsageError
from pairbus.model.message import Message
from pairbus.storage.codec_rare import (
    RARE_HEAD,
    decode_rare,
    encode_extra,
    encode_rare,
    pack_bytes,
    unpack_bytes,
    unpack_extra,
)

if TYPE_CHECKING:
    from pairbus.engine.records import Record

MESSAGE_STORED: Final = 1
MESSAGE_REMOVED: Final = 2
HOT_VERSION: Final = 1

STORED_HEAD: Final = struct.Struct("<BBBBIQQqqII")
STORED_HEAD_BYTES: Final = STORED_HEAD.size
_NUMBER_AT: Final = struct.calcsize("<BBBBIQ")
"""Where the sequence number stands in it."""
REMOVED_HEAD: Final = struct.Struct("<BBxxIQ")
REMOVED_HEAD_BYTES: Final = REMOVED_HEAD.size
REMOVED_NUMBER_BYTES: Final = 8

_HAS_SESSION: Final = 1
_HAS_DUPLICATE_KEY: Final = 2
_HAS_EXTRA: Final = 4

_IS_BIG_ENDIAN: Final = sys.byteorder == "big"
_pack_stored: Final = STORED_HEAD.pack
_unpack_stored: Final = STORED_HEAD.unpack_from


class _LastHead:
    """How the record of the last ordinary message began and ended. Those of one queue and one millisecond share both, if they are
    of one size.
    """

    __slots__ = ("parts",)

    def __init__(self) -> None:
        self.parts = (-1, 0, 0, 0, b"", b"")
        """queue, enqueued, expires, bytes of the blob; what stands before the sequence number, and after it. In one value, for stores
        in several threads share it."""


_last: Final = _LastHead()


def encode_stored(record: MessageStored, blob_bytes: int) -> bytes:
    """Everything of a stored message but its blob, which must follow directly."""
    message = record.message
    if (
        message.session_id is not None
        or record.duplicate_key
        or message.extra is not None
        or message.state
        or message.delivery_count
    ):
        flags, variable = _encode_variable(record)
        return _encode_head(record, flags, len(variable), blob_bytes) + variable
    queue_id, enqueued_at, expires_at, size, before, after = _last.parts
    if (
        size != blob_bytes
        or enqueued_at != message.enqueued_at
        or queue_id != record.queue_id
        or expires_at != message.expires_at
    ):
        head = _encode_head(record, 0, 0, blob_bytes)
        before, after = head[:_NUMBER_AT], head[_NUMBER_AT + 8 :]
        _last.parts = (record.queue_id, message.enqueued_at, message.expires_at, blob_bytes, before, after)
        return head
    try:
        return before + message.sequence_number.to_bytes(8, "little") + after
    except OverflowError as error:
        raise UsageError(f"message {message.sequence_number} has a number out of range: {error}") from error


def _encode_head(record: MessageStored, flags: int, variable_bytes: int, blob_bytes: int) -> bytes:
    message = record.message
    try:
        return _pack_stored(
            MESSAGE_STORED,
            HOT_VERSION,
            flags,
            message.state,
            message.delivery_count,
            record.queue_id,
            message.sequence_number,
            message.enqueued_at,
            message.expires_at,
            variable_bytes,
            blob_bytes,
        )
    except struct.error as error:
        raise UsageError(f"message {message.sequence_number} has a number out of range: {error}") from error


def _encode_variable(record: MessageStored) -> tuple[int, bytes]:
    message = record.message
    flags = 0
    parts: list[bytes] = []
    if message.session_id is not None:
        flags |= _HAS_SESSION
        parts.append(pack_bytes(message.session_id.encode()))
    if record.duplicate_key:
        flags |= _HAS_DUPLICATE_KEY
        parts.append(pack_bytes(record.duplicate_key))
    if message.extra is not None:
        flags |= _HAS_EXTRA
        parts.append(encode_extra(message.extra))
    return flags, b"".join(parts)


def encode_removed(queue_id: int, sequence_numbers: list[int]) -> bytes:
    """A run of removals from one queue."""
    try:
        numbers = array("Q", sequence_numbers)
        if _IS_BIG_ENDIAN:
            numbers.byteswap()
        return REMOVED_HEAD.pack(MESSAGE_REMOVED, HOT_VERSION, len(numbers), queue_id) + numbers.tobytes()
    except (OverflowError, struct.error) as error:
        raise UsageError(f"a removal from queue {queue_id} has a number out of range: {error}") from error


def encode(record: Record) -> bytes:
    """Any record, complete; a stored message with its blob."""
    if isinstance(record, MessageStored):
        blob = record.blob
        if blob is None:
            raise UsageError(
                f"message {record.message.sequence_number} comes without its blob; read it first"
            )
        return encode_stored(record, len(blob)) + blob
    if isinstance(record, MessageRemoved):
        return encode_removed(record.queue_id, [record.sequence_number])
    return encode_rare(record)


def decode(buffer: bytes, start: int, end: int, base: int, body: int = -1) -> list[Record]:
    """The records between two offsets of a buffer. ``base`` + offset is the location of the byte at that offset.

    With ``body`` the blobs are not in the buffer: they lie one after the other from ``base`` + ``body`` on. There a blob takes at
    least one byte, so that no two have the same location.
    """
    records: list[Record] = []
    add = records.append
    offset = start
    try:
        while offset < end:
            kind = buffer[offset]
            if kind == MESSAGE_STORED:
                (
                    _,
                    version,
                    flags,
                    state,
                    delivery_count,
                    queue_id,
                    number,
                    enqueued_at,
                    expires_at,
                    variable,
                    size,
                ) = _unpack_stored(buffer, offset)
                if version != HOT_VERSION:
                    raise _unknown(kind, version, base + offset)
                message = Message(number, enqueued_at, expires_at, size, None)
                offset += STORED_HEAD_BYTES
                key = _decode_variable(buffer, offset, flags, message) if flags else b""
                offset += variable
                if body < 0:
                    message.location = base + offset
                    offset += size
                else:
                    message.location = base + body
                    body += size or 1
                if state:
                    message.state = state
                if delivery_count:
                    message.delivery_count = delivery_count
                add(MessageStored(queue_id, message, None, key))
            elif kind == MESSAGE_REMOVED:
                _, version, count, queue_id = REMOVED_HEAD.unpack_from(buffer, offset)
                if version != HOT_VERSION:
                    raise _unknown(kind, version, base + offset)
                offset += REMOVED_HEAD_BYTES
                for number in struct.unpack_from(f"<{count}Q", buffer, offset):
                    add(MessageRemoved(queue_id, number, 0, 0))
                offset += count * REMOVED_NUMBER_BYTES
            else:
                _, version, length = RARE_HEAD.unpack_from(buffer, offset)
                offset += RARE_HEAD.size
                add(decode_rare(kind, version, bytes(buffer[offset : offset + length])))
                offset += length
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise StoreCorrupt(f"a record at location {base + offset:#x} cannot be read: {error}") from error
    if offset != end:
        raise StoreCorrupt(f"the last record before location {base + end:#x} runs past its frame")
    return records


def _decode_variable(buffer: bytes, offset: int, flags: int, message: Message) -> bytes:
    key = b""
    if flags & _HAS_SESSION:
        raw, offset = unpack_bytes(buffer, offset)
        message.session_id = raw.decode()
    if flags & _HAS_DUPLICATE_KEY:
        key, offset = unpack_bytes(buffer, offset)
    if flags & _HAS_EXTRA:
        message.extra, offset = unpack_extra(buffer, offset)
    return key


def _unknown(kind: int, version: int, location: int) -> StoreCorrupt:
    return StoreCorrupt(
        f"record type {kind} version {version} at location {location:#x} is unknown: a newer PairBus wrote it?"
    )
