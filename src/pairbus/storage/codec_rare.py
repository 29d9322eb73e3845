"""The records that are not hot, as bytes and back, by a table of layouts."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from pairbus.engine.records import (
    AuditMarked,
    DeliveryFailed,
    DuplicateSeen,
    EntityDeleted,
    EntityPut,
    EntityUsed,
    MessageDeferred,
    MessageMoved,
    NamespacePut,
    Record,
    SequenceAdvanced,
    SessionStateSet,
)
from pairbus.errors import StoreCorrupt, UsageError
from pairbus.model.message import Extra

OLD_AUDIT_QUEUE_ID: Final = 0
"""A SequenceAdvanced of this queue, which no entity has, is how the number of an audited batch was written before AuditMarked."""

RARE_HEAD: Final = struct.Struct("<BBI")

_ABSENT: Final = 0xFFFF_FFFF
"""The length that means None."""
_LENGTH: Final = struct.Struct("<I")
_EXTRA: Final = struct.Struct("<qQIq")


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


class Layout:
    """How one type of record is written: first numbers of fixed width, then values with their length in front.

    Args:
        code: The type byte.
        kind: The class.
        numbers: The struct format of the numbers.
        names: The fields that hold them.
        values: The fields behind the numbers, each with its pair of functions.
    """

    __slots__ = ("_names", "_numbers", "_order", "_values", "code", "kind")

    def __init__(self, code: int, kind: type[Record], numbers: str, names: str, **values: ValueKind) -> None:
        self.code = code
        self.kind: Callable[..., Record] = kind
        self._numbers = struct.Struct("<" + numbers)
        self._names = names.split()
        self._values = list(values.items())
        written = [*self._names, *values]
        self._order = [written.index(name) for name in kind.__annotations__]

    def encode(self, record: Record) -> bytes:
        data = self._numbers.pack(*[getattr(record, name) for name in self._names])
        for name, (pack, _) in self._values:
            data += pack(getattr(record, name))
        return data

    def decode(self, body: bytes) -> Record:
        unpack_numbers = self._numbers.unpack_from if self._values else self._numbers.unpack
        found: list[object] = list(unpack_numbers(body))
        offset = self._numbers.size
        for _, (_, unpack) in self._values:
            value, offset = unpack(body, offset)
            found.append(value)
        return self.kind(*[found[index] for index in self._order])


def _unpack_required_text(buffer: bytes, offset: int) -> tuple[str, int]:
    value, offset = unpack_bytes(buffer, offset)
    return value.decode(), offset


ValueKind: TypeAlias = tuple[Callable[[Any], bytes], Callable[[bytes, int], tuple[object, int]]]
_BYTES: Final[ValueKind] = (pack_bytes, unpack_bytes)
_OPTIONAL: Final[ValueKind] = (pack_bytes, unpack_optional)
_TEXT: Final[ValueKind] = (_pack_text, _unpack_required_text)
_COUNTED: Final = "queue_id sequence_number delivery_count"

VERSION: Final = 1
"""Of every layout below. A layout that changes gets version 2 and stays readable as version 1."""
_LAYOUTS: Final = (
    Layout(3, DeliveryFailed, "QQI", _COUNTED, changed_properties=_BYTES),
    Layout(4, MessageDeferred, "QQI", _COUNTED, changed_properties=_BYTES),
    Layout(
        5, MessageMoved, "QQQ", "queue_id sequence_number to_queue_id", extra=(encode_extra, unpack_extra)
    ),
    Layout(7, DuplicateSeen, "Qq", "queue_id at", duplicate_key=_BYTES),
    Layout(8, SequenceAdvanced, "QQq", "queue_id next_sequence_number enqueued_at"),
    Layout(9, SessionStateSet, "Qq", "queue_id at", session_id=_TEXT, state=_OPTIONAL),
    Layout(10, EntityPut, "QB", "entity_id kind", path=_TEXT, settings=_TEXT),
    Layout(11, EntityDeleted, "Q", "entity_id"),
    Layout(12, NamespacePut, "Q", "next_entity_id", settings=_TEXT),
    Layout(13, AuditMarked, "Q", "number"),
    Layout(14, EntityUsed, "Qq", "entity_id at"),
)
_BY_KIND: Final[dict[object, Layout]] = {layout.kind: layout for layout in _LAYOUTS}
_BY_CODE: Final = {(layout.code, VERSION): layout for layout in _LAYOUTS}


def encode_rare(record: Record) -> bytes:
    """Any record but the two hot ones."""
    layout = _BY_KIND.get(type(record))
    if layout is None:
        raise UsageError(f"{type(record).__name__} has its own encoder")
    try:
        body = layout.encode(record)
    except struct.error as error:
        raise UsageError(f"{type(record).__name__} has a number out of range: {error}") from error
    return RARE_HEAD.pack(layout.code, VERSION, len(body)) + body


def decode_rare(code: int, version: int, body: bytes) -> Record:
    """Any record but the two hot ones, from its body."""
    layout = _BY_CODE.get((code, version))
    if layout is None:
        raise StoreCorrupt(f"record type {code} version {version} is unknown: a newer PairBus wrote it?")
    record = layout.decode(body)
    if isinstance(record, SequenceAdvanced) and record.queue_id == OLD_AUDIT_QUEUE_ID:
        return AuditMarked(record.next_sequence_number - 1)
    return record
