"""The records that are not hot, as bytes and back: each type with its number, version and two functions."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final, TypeAlias

from pairbus.engine.records import (
    AuditMarked,
    DeliveryFailed,
    DuplicateSeen,
    EntityDeleted,
    EntityPut,
    MessageDeferred,
    MessageMoved,
    MessageRemoved,
    MessageStored,
    NamespacePut,
    Record,
    SequenceAdvanced,
    SessionStateSet,
)
from pairbus.errors import StoreCorrupt, UsageError
from pairbus.model.message import Extra

DELIVERY_FAILED: Final = 3
MESSAGE_DEFERRED: Final = 4
MESSAGE_MOVED: Final = 5
DUPLICATE_SEEN: Final = 7
SEQUENCE_ADVANCED: Final = 8
SESSION_STATE_SET: Final = 9
ENTITY_PUT: Final = 10
ENTITY_DELETED: Final = 11
NAMESPACE_PUT: Final = 12
AUDIT_MARKED: Final = 13

OLD_AUDIT_QUEUE_ID: Final = 0
"""A SequenceAdvanced of this queue, which no entity has, is how the number of an audited batch was written before AuditMarked."""

RARE_HEAD: Final = struct.Struct("<BBI")

_ABSENT: Final = 0xFFFF_FFFF
"""The length that means None."""
_LENGTH: Final = struct.Struct("<I")
_EXTRA: Final = struct.Struct("<qQIq")
_COUNTED: Final = struct.Struct("<QQI")
_MOVED: Final = struct.Struct("<QQQ")
_NUMBERED: Final = struct.Struct("<Qq")
_ADVANCED: Final = struct.Struct("<QQq")
_ENTITY: Final = struct.Struct("<QB")
_ID: Final = struct.Struct("<Q")


def pack_bytes(value: bytes | None) -> bytes:
    """Length, then the bytes; None has a length of its own."""
    if value is None:
        return _LENGTH.pack(_ABSENT)
    return _LENGTH.pack(len(value)) + value


def unpack_optional(buffer: bytes, offset: int) -> tuple[bytes | None, int]:
    """What ``pack_bytes`` wrote, and the offset behind it."""
    (length,) = _LENGTH.unpack_from(buffer, offset)
    offset += _LENGTH.size
    if length == _ABSENT:
        return None, offset
    value = bytes(buffer[offset : offset + length])
    if len(value) != length:
        raise StoreCorrupt(f"a value of {length} bytes ends after {len(value)}")
    return value, offset + length


def unpack_bytes(buffer: bytes, offset: int) -> tuple[bytes, int]:
    """Like ``unpack_optional``, for what is never None."""
    value, offset = unpack_optional(buffer, offset)
    if value is None:
        raise StoreCorrupt("a value that must be there is absent")
    return value, offset


def _pack_text(value: str | None) -> bytes:
    return pack_bytes(None if value is None else value.encode())


def _unpack_text(buffer: bytes, offset: int) -> tuple[str | None, int]:
    value, offset = unpack_optional(buffer, offset)
    return None if value is None else value.decode(), offset


def encode_extra(extra: Extra) -> bytes:
    """The rare facts of a message."""
    return b"".join(
        (
            _EXTRA.pack(extra.scheduled_at, extra.enqueue_sequence_number, extra.hops, extra.ttl_ms),
            _pack_text(extra.dead_letter_reason),
            _pack_text(extra.dead_letter_description),
            _pack_text(extra.dead_letter_source),
            pack_bytes(extra.changed_properties),
        )
    )


def unpack_extra(buffer: bytes, offset: int) -> tuple[Extra, int]:
    """What ``encode_extra`` wrote, and the offset behind it."""
    extra = Extra()
    extra.scheduled_at, extra.enqueue_sequence_number, extra.hops, extra.ttl_ms = _EXTRA.unpack_from(
        buffer, offset
    )
    offset += _EXTRA.size
    extra.dead_letter_reason, offset = _unpack_text(buffer, offset)
    extra.dead_letter_description, offset = _unpack_text(buffer, offset)
    extra.dead_letter_source, offset = _unpack_text(buffer, offset)
    extra.changed_properties, offset = unpack_bytes(buffer, offset)
    return extra, offset


def encode_rare(record: Record) -> bytes:
    """Any record but the two hot ones."""
    try:
        kind, body = _body(record)
    except struct.error as error:
        raise UsageError(f"{type(record).__name__} has a number out of range: {error}") from error
    return RARE_HEAD.pack(kind, 1, len(body)) + body


def _body(record: Record) -> tuple[int, bytes]:
    match record:
        case DeliveryFailed():
            return DELIVERY_FAILED, _counted(record)
        case MessageDeferred():
            return MESSAGE_DEFERRED, _counted(record)
        case MessageMoved():
            head = _MOVED.pack(record.queue_id, record.sequence_number, record.to_queue_id)
            return MESSAGE_MOVED, head + encode_extra(record.extra)
        case DuplicateSeen():
            return DUPLICATE_SEEN, _NUMBERED.pack(record.queue_id, record.at) + pack_bytes(
                record.duplicate_key
            )
        case SequenceAdvanced():
            return SEQUENCE_ADVANCED, _ADVANCED.pack(
                record.queue_id, record.next_sequence_number, record.enqueued_at
            )
        case SessionStateSet():
            head = _NUMBERED.pack(record.queue_id, record.at)
            return SESSION_STATE_SET, head + _pack_text(record.session_id) + pack_bytes(record.state)
        case EntityPut():
            head = _ENTITY.pack(record.entity_id, record.kind)
            return ENTITY_PUT, head + _pack_text(record.path) + _pack_text(record.settings)
        case EntityDeleted():
            return ENTITY_DELETED, _ID.pack(record.entity_id)
        case NamespacePut():
            return NAMESPACE_PUT, _ID.pack(record.next_entity_id) + _pack_text(record.settings)
        case AuditMarked():
            return AUDIT_MARKED, _ID.pack(record.number)
        case MessageStored() | MessageRemoved():
            raise UsageError(f"{type(record).__name__} has its own encoder")


def _counted(record: DeliveryFailed | MessageDeferred) -> bytes:
    head = _COUNTED.pack(record.queue_id, record.sequence_number, record.delivery_count)
    return head + pack_bytes(record.changed_properties)


def decode_rare(kind: int, version: int, body: bytes) -> Record:
    """Any record but the two hot ones, from its body."""
    decoder = _DECODERS.get((kind, version))
    if decoder is None:
        raise StoreCorrupt(f"record type {kind} version {version} is unknown: a newer PairBus wrote it?")
    return decoder(body)


def _delivery_failed_1(body: bytes) -> Record:
    queue_id, number, count = _COUNTED.unpack_from(body)
    return DeliveryFailed(queue_id, number, count, unpack_bytes(body, _COUNTED.size)[0])


def _message_deferred_1(body: bytes) -> Record:
    queue_id, number, count = _COUNTED.unpack_from(body)
    return MessageDeferred(queue_id, number, count, unpack_bytes(body, _COUNTED.size)[0])


def _message_moved_1(body: bytes) -> Record:
    queue_id, number, to_queue_id = _MOVED.unpack_from(body)
    return MessageMoved(queue_id, number, to_queue_id, unpack_extra(body, _MOVED.size)[0])


def _duplicate_seen_1(body: bytes) -> Record:
    queue_id, at = _NUMBERED.unpack_from(body)
    return DuplicateSeen(queue_id, unpack_bytes(body, _NUMBERED.size)[0], at)


def _sequence_advanced_1(body: bytes) -> Record:
    queue_id, next_number, enqueued_at = _ADVANCED.unpack(body)
    if queue_id == OLD_AUDIT_QUEUE_ID:
        return AuditMarked(next_number - 1)
    return SequenceAdvanced(queue_id, next_number, enqueued_at)


def _session_state_set_1(body: bytes) -> Record:
    queue_id, at = _NUMBERED.unpack_from(body)
    session_id, offset = unpack_bytes(body, _NUMBERED.size)
    return SessionStateSet(queue_id, session_id.decode(), unpack_optional(body, offset)[0], at)


def _entity_put_1(body: bytes) -> Record:
    entity_id, kind = _ENTITY.unpack_from(body)
    path, offset = unpack_bytes(body, _ENTITY.size)
    return EntityPut(entity_id, kind, path.decode(), unpack_bytes(body, offset)[0].decode())


def _entity_deleted_1(body: bytes) -> Record:
    return EntityDeleted(_ID.unpack(body)[0])


def _namespace_put_1(body: bytes) -> Record:
    return NamespacePut(_ID.unpack_from(body)[0], unpack_bytes(body, _ID.size)[0].decode())


def _audit_marked_1(body: bytes) -> Record:
    return AuditMarked(_ID.unpack(body)[0])


_Decoder: TypeAlias = Callable[[bytes], Record]
_DECODERS: Final[dict[tuple[int, int], _Decoder]] = {
    (DELIVERY_FAILED, 1): _delivery_failed_1,
    (MESSAGE_DEFERRED, 1): _message_deferred_1,
    (MESSAGE_MOVED, 1): _message_moved_1,
    (DUPLICATE_SEEN, 1): _duplicate_seen_1,
    (SEQUENCE_ADVANCED, 1): _sequence_advanced_1,
    (SESSION_STATE_SET, 1): _session_state_set_1,
    (ENTITY_PUT, 1): _entity_put_1,
    (ENTITY_DELETED, 1): _entity_deleted_1,
    (NAMESPACE_PUT, 1): _namespace_put_1,
    (AUDIT_MARKED, 1): _audit_marked_1,
}
