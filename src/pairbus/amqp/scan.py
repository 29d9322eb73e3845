"""From a client's encoded message to what the broker must know of it, without building the message."""

from __future__ import annotations

import struct
from typing import Final

from pairbus.amqp.decode import STEPS, bad, decode_value, skip_value
from pairbus.amqp.layout import (
    APPLICATION_PROPERTIES,
    BROKER_KEYS,
    DATA,
    DELIVERY_ANNOTATIONS,
    DURABLE,
    DURABLE_SET,
    FOOTER,
    HEADER,
    LAYOUT,
    MESSAGE_ANNOTATIONS,
    PARTITION_KEY_KEY,
    PRIORITY_SET,
    PROPERTIES,
    SCHEDULED_TIME_KEY,
    SEQUENCE,
    TTL_SET,
    VALUE,
)
from pairbus.amqp.types import Timestamp
from pairbus.errors import RemoteProtocolError

PING_CONTENT_TYPE: Final = b"application/vnd.ms-servicebus-ping"
BATCH_MESSAGES_MAX: Final = 16384
"""How many messages one batch may hold."""
ANNOTATION_ITEMS_MAX: Final = 0xFFFE
BODY_SECTIONS_MAX: Final = 65536

BadMessage = RemoteProtocolError
"""What ``scan`` and ``split_batch`` raise, with the condition amqp:decode-error."""

_U32: Final = struct.Struct(">I")
_I64: Final = struct.Struct(">q")

_SYMBOLIC: Final[dict[str, int]] = {
    "amqp:header:list": HEADER,
    "amqp:delivery-annotations:map": DELIVERY_ANNOTATIONS,
    "amqp:message-annotations:map": MESSAGE_ANNOTATIONS,
    "amqp:properties:list": PROPERTIES,
    "amqp:application-properties:map": APPLICATION_PROPERTIES,
    "amqp:data:binary": DATA,
    "amqp:amqp-sequence:list": SEQUENCE,
    "amqp:amqp-value:*": VALUE,
    "amqp:footer:map": FOOTER,
}


class Scanned:
    """A message ready to be stored, and what the broker must know of it."""

    __slots__ = (
        "_content_type",
        "_created_at",
        "_expires_at",
        "_flags",
        "_priority",
        "_ttl",
        "blob",
        "is_ping",
        "message_id",
        "partition_key",
        "scheduled_at",
        "session_id",
        "ttl_ms",
    )

    def __init__(self) -> None:
        self.blob = b""
        """Layout prefix and sections, see ``layout``."""
        self.message_id = b""
        """The encoded message-id with its constructor, in its shortest form; empty when absent or not asked for."""
        self.session_id: str | None = None
        self.partition_key: str | None = None
        self.scheduled_at = 0
        self.ttl_ms = 0
        """Time to live, 0 when the sender set none."""
        self.is_ping = False
        self._flags = 0
        self._priority = 0
        self._ttl = 0
        self._content_type = b""
        self._expires_at = 0
        self._created_at = 0


def scan(payload: bytes, want_message_id: bool = False) -> Scanned:
    """Walk the sections of one message.

    Raises:
        BadMessage: the bytes are no message.
    """
    found = Scanned()
    try:
        _scan(payload, want_message_id, found)
    except (IndexError, struct.error) as error:
        raise bad("a message section is cut short") from error
    return found


def _scan(payload: bytes, want_message_id: bool, found: Scanned) -> None:
    end = len(payload)
    offset = 0
    rank = 0  # sections come in the order of their codes, bodies sharing one place
    bare_start = -1
    in_order = True
    seen = 0
    body = 0
    body_is_empty = True
    delivery_items = message_items = b""
    delivery_count = message_count = 0
    properties_length = application_length = 0
    pieces: list[tuple[int, int, int]] = []  # code, start, stop of each section of the bare message
    while offset < end:
        if payload[offset] == 0 and payload[offset + 1] == 0x53:
            code = payload[offset + 2]
            at = offset + 3
        else:
            code, at = _long_descriptor(payload, offset, end)
            in_order = False  # the section gets the short descriptor, the only one every client reads
        constructor = payload[at]
        if STEPS[constructor] == 254:
            stop = at + 2 + payload[at + 1]
        else:
            stop = skip_value(payload, at, end)
        if stop > end:
            raise bad(f"a message section claims {stop - end} bytes more than there are")
        if code == DATA or code == VALUE or code == SEQUENCE:
            if body != 0 and (body != code or code == VALUE):
                raise bad("a message has bodies of two kinds, or two values")
            body = code
            if body_is_empty:
                body_is_empty = _is_empty_body(code, payload, at, stop)
            place = DATA
        else:
            if not HEADER <= code <= FOOTER:
                raise bad(f"descriptor 0x{code:02x} is no message section")
            if seen >> (code - HEADER) & 1:
                raise bad(f"section 0x{code:02x} comes twice")
            place = code
        _check_kind(code, constructor)
        seen |= 1 << (code - HEADER)
        if place < rank:
            in_order = False
        rank = place
        if code >= PROPERTIES:
            if bare_start < 0:
                bare_start = offset
            pieces.append((code, at, stop))
            if code == PROPERTIES:
                properties_length = stop - at + 3
                _scan_properties(payload, at, stop, want_message_id, found)
            elif code == APPLICATION_PROPERTIES:
                application_length = stop - at + 3
                _check_application_properties(payload, at, stop)
        elif code == MESSAGE_ANNOTATIONS:
            message_items, message_count = _scan_annotations(payload, at, stop, found)
        elif code == DELIVERY_ANNOTATIONS:
            delivery_items, delivery_count = _scan_annotations(payload, at, stop, None)
        else:
            _scan_header(payload, at, stop, found)
        offset = stop
    if seen == 0:
        raise bad("a message has no sections")
    if len(pieces) > BODY_SECTIONS_MAX:
        raise bad(f"a message has {len(pieces)} body sections, more than {BODY_SECTIONS_MAX}")
    if not in_order:
        bare = _joined_in_order(payload, pieces)
    else:
        bare = payload[bare_start:] if bare_start >= 0 else b""
    if found._flags & TTL_SET:
        found.ttl_ms = found._ttl
    elif found._expires_at and found._created_at and found._expires_at > found._created_at:
        found.ttl_ms = found._expires_at - found._created_at
    found.is_ping = body_is_empty and found._content_type == PING_CONTENT_TYPE
    prefix = LAYOUT.pack(
        found._flags,
        found._priority,
        delivery_count,
        message_count,
        found._ttl,
        len(delivery_items),
        len(message_items),
        properties_length,
        application_length,
    )
    if delivery_count or message_count:
        found.blob = b"".join((prefix, delivery_items, message_items, bare))
    else:
        found.blob = prefix + bare


def _long_descriptor(payload: bytes, offset: int, end: int) -> tuple[int, int]:
    if payload[offset] != 0:
        raise bad(f"a message section was expected at byte {offset}")
    descriptor, at = decode_value(payload, offset + 1, end)
    code = _SYMBOLIC.get(str(descriptor), 0) if isinstance(descriptor, str) else descriptor
    if not isinstance(code, int) or not HEADER <= code <= FOOTER:
        raise bad(f"descriptor {descriptor!r} is no message section")
    return code, at


def _check_kind(code: int, constructor: int) -> None:
    """AMQP 1.0, 3.2: each section has its one type of value."""
    if code == VALUE:
        return
    if code == DATA:
        good = constructor == 0xA0 or constructor == 0xB0
    elif code == HEADER or code == PROPERTIES or code == SEQUENCE:
        good = constructor == 0xC0 or constructor == 0x45 or constructor == 0xD0
    else:
        good = constructor == 0xC1 or constructor == 0xD1
    if not good:
        raise bad(f"section 0x{code:02x} has a value of type 0x{constructor:02x}")


def _is_empty_body(code: int, payload: bytes, at: int, stop: int) -> bool:
    if code == DATA:
        return stop - at == (2 if payload[at] == 0xA0 else 5)
    # A null, or text or bytes without content.
    return payload[at:stop] in (b"\x40", b"\xa0\x00", b"\xa1\x00", b"\xb0\x00\x00\x00\x00", b"\xb1\x00\x00\x00\x00")


def _joined_in_order(payload: bytes, pieces: list[tuple[int, int, int]]) -> bytes:
    parts: list[bytes] = []
    for place in (PROPERTIES, APPLICATION_PROPERTIES, DATA, FOOTER):
        for code, at, stop in pieces:
            if code == place or (place == DATA and DATA <= code <= VALUE):
                parts.append(bytes((0x00, 0x53, code)))
                parts.append(payload[at:stop])
    return b"".join(parts)


def _opened(payload: bytes, at: int) -> tuple[int, int]:
    """Count of a list or map, and where its first item is."""
    code = payload[at]
    if code == 0x45:
        return 0, at + 1
    if code < 0xD0:
        return payload[at + 2], at + 3
    return _U32.unpack_from(payload, at + 5)[0], at + 9


def _scan_header(payload: bytes, at: int, stop: int, found: Scanned) -> None:
    count, at = _opened(payload, at)
    for index in range(count):
        start = at
        code = payload[at]
        if code == 0x40:
            at += 1
            continue
        at = skip_value(payload, at, stop)
        if index == 0:
            durable = code == 0x41 or (code == 0x56 and payload[start + 1] == 1)
            found._flags |= DURABLE_SET | DURABLE if durable else DURABLE_SET
        elif index == 1:
            if code != 0x50:
                raise bad("header.priority is no ubyte")
            found._flags |= PRIORITY_SET
            found._priority = payload[start + 1]
        elif index == 2:
            found._flags |= TTL_SET
            found._ttl = _uint(payload, start)
    if at != stop:
        raise bad("a header ends before its size says")


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


def _scan_properties(payload: bytes, at: int, stop: int, want_message_id: bool, found: Scanned) -> None:
    count, at = _opened(payload, at)
    if count == 0:
        return
    start = at
    at = skip_value(payload, at, stop)
    if want_message_id and payload[start] != 0x40:
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
            found._content_type = payload[start + (2 if code < 0xB0 else 5) : at]
        elif index == 8:
            found._expires_at = _timestamp(payload, start)
        elif index == 9:
            found._created_at = _timestamp(payload, start)
        elif index == 10:
            found.session_id = _text(payload, start, at)
    if at != stop:
        raise bad("properties end before their size says")


def _timestamp(payload: bytes, at: int) -> int:
    if payload[at] != 0x83:
        raise bad("a time in the properties is no timestamp")
    value: int = _I64.unpack_from(payload, at + 1)[0]
    return value


def _text(payload: bytes, at: int, stop: int) -> str:
    try:
        if payload[at] == 0xA1:
            return payload[at + 2 : stop].decode()
        if payload[at] == 0xB1:
            return payload[at + 5 : stop].decode()
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


def _check_application_properties(payload: bytes, at: int, stop: int) -> None:
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


def _scan_annotations(payload: bytes, at: int, stop: int, found: Scanned | None) -> tuple[bytes, int]:
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
                found.partition_key = _text(payload, value, at)
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


def split_batch(payload: bytes) -> list[bytes]:
    """The encoded messages inside a batch (message-format 0x80013700): one per data section.

    Raises:
        BadMessage: the bytes are no batch, or one of more than BATCH_MESSAGES_MAX messages.
    """
    messages: list[bytes] = []
    offset, end = 0, len(payload)
    while offset < end:
        if end - offset > 3 and payload[offset] == 0 and payload[offset + 1] == 0x53:
            code, at = payload[offset + 2], offset + 3
        else:
            code, at = _long_descriptor(payload, offset, end)
        offset = skip_value(payload, at, end)
        if code == DATA:
            constructor = payload[at]
            if constructor not in (0xA0, 0xB0):
                raise bad(f"a data section has a value of type 0x{constructor:02x}")
            if len(messages) == BATCH_MESSAGES_MAX:
                raise bad(f"a batch of more than {BATCH_MESSAGES_MAX} messages")
            messages.append(payload[at + (2 if constructor == 0xA0 else 5) : offset])
        elif not HEADER <= code <= FOOTER or code == VALUE or code == SEQUENCE:
            raise bad(f"section 0x{code:02x} has no place in a batch")
    if not messages:
        raise bad("a batch without messages")
    return messages
