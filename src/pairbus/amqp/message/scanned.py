"""What the broker must know of a message, and the readers that find it in the sections that say it."""

from __future__ import annotations

import struct
from typing import Final

from pairbus.amqp.decode import STEPS, TEXT_CODES, bad, decode_value, skip_value
from pairbus.amqp.message.layout import (
    BROKER_KEYS,
    DURABLE,
    DURABLE_SET,
    FIRST_ACQUIRER,
    FIRST_ACQUIRER_SET,
    PARTITION_KEY_KEY,
    PRIORITY_SET,
    SCHEDULED_TIME_KEY,
    TTL_SET,
)
from pairbus.amqp.types import Timestamp

ANNOTATION_ITEMS_MAX: Final = 0xFFFE

_U32: Final = struct.Struct(">I")
_I64: Final = struct.Struct(">q")

SHORT_ID_BYTES: Final = 130
"""An encoded message id up to this long has at most 128 characters, whatever its type."""


class Scanned:
    """A message ready to be stored, and what the broker must know of it."""

    __slots__ = (
        "blob",
        "content_type",
        "created_at",
        "expires_at",
        "flags",
        "has_message_id",
        "is_ping",
        "message_id",
        "message_id_length",
        "partition_key",
        "priority",
        "scheduled_at",
        "session_id",
        "size",
        "ttl",
        "ttl_ms",
    )

    def __init__(self) -> None:
        self.blob = b""
        """Layout prefix and sections, see ``layout``."""
        self.size = 0
        """Bytes as the sender encoded the message: what limits of size are about."""
        self.message_id = b""
        """The encoded message-id with its constructor, in its shortest form; empty when absent or not asked for."""
        self.has_message_id = False
        self.message_id_length = 0
        """Characters of the id, or bytes of a binary one; 0 for one that is certainly short."""
        self.session_id: str | None = None
        self.partition_key: str | None = None
        self.scheduled_at = 0
        self.ttl_ms = 0
        """Time to live, 0 when the sender set none."""
        self.is_ping = False
        self.flags = 0
        self.priority = 0
        self.ttl = 0
        self.content_type = b""
        self.expires_at = 0
        self.created_at = 0

    def take_time_to_live(self) -> None:
        """Header.ttl decides; without it the two times in the properties do, which can say more than 49.7 days."""
        if self.flags & TTL_SET:
            self.ttl_ms = self.ttl
        elif 0 < self.created_at < self.expires_at:
            self.ttl_ms = self.expires_at - self.created_at


def _opened(payload: bytes, at: int) -> tuple[int, int]:
    """Count of a list or map, and where its first item is."""
    code = payload[at]
    if code == 0x45:
        return 0, at + 1
    if code < 0xD0:
        return payload[at + 2], at + 3
    return _U32.unpack_from(payload, at + 5)[0], at + 9


def scan_header(payload: bytes, at: int, stop: int, found: Scanned) -> None:
    """What the sender's header says."""
    count, at = _opened(payload, at)
    for index in range(count):
        start = at
        code = payload[at]
        if code == 0x40:
            at += 1
            continue
        at = skip_value(payload, at, stop)
        if index == 0:
            found.flags |= DURABLE_SET | DURABLE if _is_true(payload, start) else DURABLE_SET
        elif index == 1:
            if code != 0x50:
                raise bad("header.priority is no ubyte")
            found.flags |= PRIORITY_SET
            found.priority = payload[start + 1]
        elif index == 2:
            found.flags |= TTL_SET
            found.ttl = _uint(payload, start)
        elif index == 3:
            found.flags |= (
                FIRST_ACQUIRER_SET | FIRST_ACQUIRER if _is_true(payload, start) else FIRST_ACQUIRER_SET
            )
    if at != stop:
        raise bad("a header ends before its size says")


def _is_true(payload: bytes, at: int) -> bool:
    return payload[at] == 0x41 or (payload[at] == 0x56 and payload[at + 1] == 1)


def _uint(payload: bytes, at: int) -> int:
    code = payload[at]
    if code == 0x70:
        value: int = _U32.unpack_from(payload, at + 1)[0]
        return value
    if code == 0x52:
        return payload[at + 1]
    if code == 0x43:
        return 0
    raise bad("header.ttl is no uint")


def scan_properties(payload: bytes, at: int, stop: int, want_message_id: bool, found: Scanned) -> None:
    """What the properties tell the broker."""
    count, at = _opened(payload, at)
    if count == 0:
        return
    start = at
    at = skip_value(payload, at, stop)
    if payload[start] != 0x40:
        found.has_message_id = True
        if at - start > SHORT_ID_BYTES:
            found.message_id_length = _length_of(payload, start, at)
        if want_message_id:
            found.message_id = shortest_form(payload[start:at])
    if payload.count(b"\x40", at, stop) == stop - at == count - 1:
        return  # most messages say no more
    for index in range(1, count):
        start = at
        code = payload[at]
        if code == 0x40:
            at += 1
            continue
        step = STEPS[code]
        if step == 254:
            at += 2 + payload[at + 1]
        else:
            at = at + step if step else skip_value(payload, at, stop)
        if index == 6:
            if code in TEXT_CODES:  # of any other type it is nobody's ping
                found.content_type = payload[start + (2 if code < 0xB0 else 5) : at]
        elif index == 8:
            found.expires_at = _timestamp(payload, start)
        elif index == 9:
            found.created_at = _timestamp(payload, start)
        elif index == 10:
            found.session_id = _text(payload, start, at, may_be_binary=False)
    if at != stop:
        raise bad("properties end before their size says")


def _length_of(payload: bytes, start: int, stop: int) -> int:
    code = payload[start]
    content = payload[start + (2 if code < 0xB0 else 5) : stop]
    return len(content) if code in (0xA0, 0xB0) else len(content.decode("utf-8", "replace"))


def _timestamp(payload: bytes, at: int) -> int:
    if payload[at] != 0x83:
        raise bad("a time in the properties is no timestamp")
    value: int = _I64.unpack_from(payload, at + 1)[0]
    return value


def _text(payload: bytes, at: int, stop: int, may_be_binary: bool) -> str:
    """A string or a symbol; an annotation may also be a binary that holds text."""
    code = payload[at]
    try:
        if code in TEXT_CODES or (may_be_binary and (code == 0xA0 or code == 0xB0)):
            return payload[at + (2 if code < 0xB0 else 5) : stop].decode()
    except UnicodeDecodeError as error:
        raise bad(f"group-id or partition key is no text: {error.reason}") from error
    raise bad("group-id or partition key is no string")


def shortest_form(raw: bytes) -> bytes:
    """One form for equal ids: the same id may come as string8 or string32, smallulong or ulong."""
    code = raw[0]
    if code in (0xB0, 0xB1) and len(raw) <= 260:
        return bytes((code - 0x10, len(raw) - 5)) + raw[5:]
    if code == 0x44:
        return b"\x53\x00"
    if code == 0x80 and raw[1:8] == bytes(7):
        return bytes((0x53, raw[8]))
    return raw


def check_application_properties(payload: bytes, at: int, stop: int) -> None:
    """Keys are strings and every value has an end: filters and dead-lettering rely on it later."""
    count, at = _opened(payload, at)
    if count & 1:
        raise bad("application-properties have a key without a value")
    for _ in range(0, count, 2):
        code = payload[at]
        if code == 0xA1:
            at += 2 + payload[at + 1]
        elif code == 0xB1:
            at = skip_value(payload, at, stop)
        else:
            raise bad("application-properties have a key that is no string")
        step = STEPS[payload[at]]
        if step == 254:
            at += 2 + payload[at + 1]
        else:
            at = at + step if step else skip_value(payload, at, stop)
    if at != stop:
        raise bad("application-properties end before their size says")


def scan_annotations(payload: bytes, at: int, stop: int, found: Scanned | None) -> tuple[bytes, int]:
    """The items to keep and their number; ``found`` takes what message-annotations tell the broker."""
    count, at = _opened(payload, at)
    if count & 1 or count > ANNOTATION_ITEMS_MAX:
        raise bad(f"annotations of {count} items")
    first = at
    dropped: list[tuple[int, int]] = []
    for _ in range(0, count, 2):
        start = at
        key = b""
        if payload[at] == 0xA3:
            at += 2 + payload[at + 1]
            key = payload[start + 2 : at]
        else:
            at = skip_value(payload, at, stop)
            if payload[start] == 0xB3:
                key = payload[start + 5 : at]
        value = at
        step = STEPS[payload[at]]
        if step == 254:
            at += 2 + payload[at + 1]
        else:
            at = at + step if step else skip_value(payload, at, stop)
        if key in BROKER_KEYS:
            dropped.append((start, at))
        elif found is not None and payload[value] != 0x40:
            if key == PARTITION_KEY_KEY:
                # The Python client reads an annotation as bytes, and sends it as binary when the message is sent again.
                found.partition_key = _text(payload, value, at, may_be_binary=True)
            elif key == SCHEDULED_TIME_KEY:
                moment, _end = decode_value(payload, value, at)
                if not isinstance(moment, Timestamp):
                    raise bad("x-opt-scheduled-enqueue-time is no timestamp")
                found.scheduled_at = moment.ms
    if at != stop:
        raise bad("annotations end before their size says")
    if not dropped:
        return payload[first:stop], count
    kept: list[bytes] = []
    for start, after in dropped:
        kept.append(payload[first:start])
        first = after
    kept.append(payload[first:stop])
    return b"".join(kept), count - 2 * len(dropped)
