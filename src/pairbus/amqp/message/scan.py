"""From a client's encoded message to what the broker must know of it, without building the message.

``scan`` walks the sections once. It checks their types and order, finds what the broker needs, and makes the bytes to store
(``layout``).
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from pairbus.amqp.decode import STEPS, TEXT_CODES, bad, decode_value, read_u32, skip_value
from pairbus.amqp.message.layout import (
    APPLICATION_PROPERTIES,
    BROKER_KEYS,
    DATA,
    DELIVERY_ANNOTATIONS,
    DURABLE,
    DURABLE_SET,
    FIRST_ACQUIRER,
    FIRST_ACQUIRER_SET,
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
from pairbus.amqp.message.sections import (
    descriptor,
    has_string_keys,
    joined_in_order,
    long_descriptor,
    with_symbol_keys,
)
from pairbus.amqp.message.shape import LastShape
from pairbus.amqp.types import Timestamp
from pairbus.native import mypyc_attr

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mypy_extensions import i64

    from pairbus.errors import RemoteProtocolError

PING_CONTENT_TYPE: Final = b"application/vnd.ms-servicebus-ping"
BATCH_MESSAGES_MAX: Final = 16384
"""How many messages one batch may hold."""
BODY_SECTIONS_MAX: Final = 65536
DATA_BIT: Final = 1 << (DATA - HEADER)
SEQUENCE_BIT: Final = 1 << (SEQUENCE - HEADER)
VALUE_BIT: Final = 1 << (VALUE - HEADER)
ANNOTATION_ITEMS_MAX: Final = 0xFFFE
_SHORT_MAX: Final = 0xFFFF
"""Bytes of properties and application properties up to which a prefix is remembered."""

_I64: Final = struct.Struct(">q")
_REMEMBERED_MAX: Final = 4096
"""How many headers, and how many prefixes, are remembered; nearly all messages of a sender share a few."""
_HEADER_BYTES_MAX: Final = 64
"""Bytes of a header that is remembered. It needs 15."""
_headers: Final[dict[bytes, tuple[int, int, int]]] = {}
"""An encoded header to its flags, priority and time to live."""
_prefixes: Final[dict[int, bytes]] = {}
_last: Final = LastShape()

PROPERTIES_END: Final = "properties end before their size says"
SHORT_ID_BYTES: Final = 130
"""An encoded message id up to this long has at most 128 characters, whatever its type."""


def _clashes() -> list[int]:
    """By section and constructor: bits of the sections that it may not come after; -1 where the type is wrong.

    AMQP 1.0, 3.2: each section has its one type of value and comes once; bodies are all of one kind.
    """
    lists, maps, binaries = (0x45, 0xC0, 0xD0), (0xC1, 0xD1), (0xA0, 0xB0)
    types: dict[int, Iterable[int]] = {
        HEADER: lists,
        PROPERTIES: lists,
        DATA: binaries,
        SEQUENCE: lists,
        VALUE: range(256),
    }
    bodies = {
        DATA: SEQUENCE_BIT | VALUE_BIT,
        SEQUENCE: DATA_BIT | VALUE_BIT,
        VALUE: DATA_BIT | SEQUENCE_BIT | VALUE_BIT,
    }
    table = [-1] * ((FOOTER - HEADER + 1) << 8)
    for code in range(HEADER, FOOTER + 1):
        for constructor in types.get(code, maps):
            table[(code - HEADER) << 8 | constructor] = bodies.get(code, 1 << (code - HEADER))
    return table


_CLASHES: Final = _clashes()


@mypyc_attr(acyclic=True, free_list_len=1)
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
        """Header.ttl decides; without it the two times in the properties do, which can express more than 49.7 days."""
        if self.flags & TTL_SET:
            self.ttl_ms = self.ttl
        elif 0 < self.created_at < self.expires_at:
            self.ttl_ms = self.expires_at - self.created_at


def scan(payload: bytes, want_message_id: bool = False) -> Scanned:
    """Walk the sections of one message.

    Raises:
        RemoteProtocolError: the bytes are no message.
    """
    found = Scanned()
    found.size = len(payload)
    shape = _last.shape
    found.blob = shape.blob_of(payload)
    if found.blob:
        found.has_message_id = True
        if want_message_id:
            found.message_id = payload[shape.id_at : shape.id_stop]
        return found
    try:
        _scan(payload, want_message_id, found)
    except (IndexError, struct.error) as error:
        raise bad("a message section is cut short") from error
    return found


def _scan(payload: bytes, want_message_id: bool, found: Scanned) -> None:
    end: i64 = len(payload)
    offset: i64 = 0
    rank: i64 = 0  # sections come in the order of their codes, bodies sharing one place
    bare_start: i64 = -1
    properties_at: i64 = -1
    in_order = True
    seen: i64 = 0
    body_is_empty = True
    delivery_items = message_items = b""
    delivery_count = message_count = 0
    properties_length: i64 = 0
    application_length: i64 = 0
    sections: i64 = 0  # of the bare message
    while offset < end:
        at = offset + 3
        if payload[offset] == 0 and payload[offset + 1] == 0x53:
            code: i64 = payload[offset + 2]
        else:
            code, at = long_descriptor(payload, offset, end)
            in_order = False  # the section gets the short descriptor, the only one every client reads
        constructor: i64 = payload[at]
        stop = at + 2 + payload[at + 1] if STEPS[constructor] == 254 else skip_value(payload, at, end)
        if stop > end:
            raise bad(f"a message section claims {stop - end} bytes more than there are")
        if not HEADER <= code <= FOOTER:
            raise _section_error(code, constructor)
        clash: i64 = _CLASHES[(code - HEADER) << 8 | constructor]
        if clash < 0 or clash & seen:
            raise _section_error(code, constructor)
        seen |= 1 << (code - HEADER)
        place = code
        if DATA <= code <= VALUE:
            place = DATA
            if body_is_empty:
                body_is_empty = _is_empty_body(code, payload, at, stop)
        if place < rank:
            in_order = False
        rank = place
        if code >= PROPERTIES:
            if bare_start < 0:
                bare_start = offset
            sections += 1
            if code == PROPERTIES:
                properties_at = at
                properties_length = stop - at + 3
                _scan_properties(payload, at, stop, want_message_id, found)
            elif code == APPLICATION_PROPERTIES:
                application_length = stop - at + 3
                _check_application_properties(payload, at, stop)
            elif code == FOOTER and has_string_keys(payload[at:stop]):
                in_order = False
        elif code == MESSAGE_ANNOTATIONS:
            message_items, message_count = _scan_annotations(payload, at, stop, found)
        elif code == DELIVERY_ANNOTATIONS:
            delivery_items, delivery_count = _scan_annotations(payload, at, stop, None)
        else:
            _take_header(payload, at, stop, found)
        offset = stop
    if seen == 0:
        raise bad("a message has no sections")
    if sections > BODY_SECTIONS_MAX:
        raise bad(f"a message has {sections} body sections, more than {BODY_SECTIONS_MAX}")
    bare = _bare(payload, bare_start, in_order)
    found.take_time_to_live()
    found.is_ping = body_is_empty and found.content_type == PING_CONTENT_TYPE
    if delivery_count or message_count or found.ttl or properties_length + application_length > _SHORT_MAX:
        prefix = LAYOUT.pack(
            found.flags,
            found.priority,
            delivery_count,
            message_count,
            found.ttl,
            len(delivery_items),
            len(message_items),
            properties_length,
            application_length,
        )
        found.blob = b"".join((prefix, delivery_items, message_items, bare))
    else:
        prefix = _plain_prefix(found.flags, found.priority, properties_length, application_length)
        found.blob = prefix + bare
        if (
            code == DATA
            and in_order
            and found.has_message_id
            and found.session_id is None
            and not found.ttl_ms
            and not found.message_id_length
            and found.content_type != PING_CONTENT_TYPE
        ):
            _last.remember(payload, bare_start, properties_at, at, prefix)


def _bare(payload: bytes, start: i64, in_order: bool) -> bytes:
    """What is stored as the sender wrote it: from where its first section starts; -1: there is none."""
    if not in_order:
        return joined_in_order(payload)
    return payload[start:] if start >= 0 else b""


def _plain_prefix(flags: i64, priority: i64, properties_length: i64, application_length: i64) -> bytes:
    """The prefix of a message without annotations and time to live; both lengths are below 64 KiB."""
    key = flags | priority << 8 | properties_length << 16 | application_length << 32
    prefix = _prefixes.get(key)
    if prefix is None:
        if len(_prefixes) >= _REMEMBERED_MAX:
            _prefixes.clear()
        prefix = LAYOUT.pack(flags, priority, 0, 0, 0, 0, 0, properties_length, application_length)
        _prefixes[key] = prefix
    return prefix


def _section_error(code: i64, constructor: i64) -> RemoteProtocolError:
    if not HEADER <= code <= FOOTER:
        return bad(f"descriptor 0x{code:02x} is no message section")
    if _CLASHES[(code - HEADER) << 8 | constructor] < 0:
        return bad(f"section 0x{code:02x} has a value of type 0x{constructor:02x}")
    return bad(f"section 0x{code:02x} comes twice, or beside a body of another kind")


def _is_empty_body(code: i64, payload: bytes, at: i64, stop: i64) -> bool:
    if code == DATA:
        size = stop - at
        return size == 2 if payload[at] == 0xA0 else size == 5
    # A null, or text or bytes without content.
    return payload[at:stop] in (
        b"\x40",
        b"\xa0\x00",
        b"\xa1\x00",
        b"\xb0\x00\x00\x00\x00",
        b"\xb1\x00\x00\x00\x00",
    )


def _opened(payload: bytes, at: i64) -> tuple[i64, i64]:
    """Count of a list or map, and where its first item is."""
    code: i64 = payload[at]
    if code == 0x45:
        return 0, at + 1
    if code < 0xD0:
        return payload[at + 2], at + 3
    return read_u32(payload, at + 5), at + 9


def _take_header(payload: bytes, at: i64, stop: i64, found: Scanned) -> None:
    """Take the values of the sender's header. Nearly all messages of a sender have the same one, so it is remembered."""
    raw = payload[at:stop]
    known = _headers.get(raw)
    if known is not None:
        found.flags, found.priority, found.ttl = known
        return
    _scan_header(payload, at, stop, found)
    if stop - at <= _HEADER_BYTES_MAX:
        if len(_headers) >= _REMEMBERED_MAX:
            _headers.clear()
        _headers[raw] = (found.flags, found.priority, found.ttl)


def _scan_header(payload: bytes, at: i64, stop: i64, found: Scanned) -> None:
    count, at = _opened(payload, at)
    index: i64
    for index in range(count):
        start = at
        code: i64 = payload[at]
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


def _is_true(payload: bytes, at: i64) -> bool:
    return payload[at] == 0x41 or (payload[at] == 0x56 and payload[at + 1] == 1)


def _uint(payload: bytes, at: i64) -> i64:
    code: i64 = payload[at]
    if code == 0x70:
        return read_u32(payload, at + 1)
    if code == 0x52:
        return payload[at + 1]
    if code == 0x43:
        return 0
    raise bad("header.ttl is no uint")


def _scan_properties(payload: bytes, at: i64, stop: i64, want_message_id: bool, found: Scanned) -> None:
    """Take what the broker needs from the properties."""
    count, at = _opened(payload, at)
    if count == 0:
        if at != stop:
            raise bad(PROPERTIES_END)
        return
    start = at
    at = skip_value(payload, at, stop)
    if payload[start] != 0x40:
        found.has_message_id = True
        if at - start > SHORT_ID_BYTES:
            found.message_id_length = _length_of(payload, start, at)
        if want_message_id:
            found.message_id = shortest_form(payload[start:at])
    if stop - at == count - 1 and (at == stop or payload.count(b"\x40", at, stop) == count - 1):
        return  # most messages have no more
    index: i64
    for index in range(1, count):
        start = at
        code: i64 = payload[at]
        if code == 0x40:
            at += 1
            continue
        step: i64 = STEPS[code]
        if step == 254:
            at += 2 + payload[at + 1]
        else:
            at = at + step if step else skip_value(payload, at, stop)
        if index == 6:
            if code in TEXT_CODES:  # of any other type it is no ping
                found.content_type = payload[start + (2 if code < 0xB0 else 5) : at]
        elif index == 8:
            found.expires_at = _timestamp(payload, start)
        elif index == 9:
            found.created_at = _timestamp(payload, start)
        elif index == 10:
            found.session_id = _text(payload, start, at, may_be_binary=False)
    if at != stop:
        raise bad(PROPERTIES_END)


def _length_of(payload: bytes, start: i64, stop: i64) -> int:
    code = payload[start]
    content = payload[start + (2 if code < 0xB0 else 5) : stop]
    return len(content) if code in (0xA0, 0xB0) else len(content.decode("utf-8", "replace"))


def _timestamp(payload: bytes, at: i64) -> int:
    if payload[at] != 0x83:
        raise bad("a time in the properties is no timestamp")
    value: int = _I64.unpack_from(payload, at + 1)[0]
    return value


def _text(payload: bytes, at: i64, stop: i64, may_be_binary: bool) -> str:
    """A string or a symbol; an annotation may also be a binary that holds text."""
    code = payload[at]
    try:
        if code in TEXT_CODES or (may_be_binary and (code == 0xA0 or code == 0xB0)):
            return payload[at + (2 if code < 0xB0 else 5) : stop].decode()
    except UnicodeDecodeError as error:
        raise bad(f"group-id or partition key is no text: {error.reason}") from error
    raise bad("group-id or partition key is no string")


def shortest_form(raw: bytes) -> bytes:
    """One form for equal ids: the same id may come as string8 or string32, smallulong or ulong.

    Binary counts as a string: the Python SDK reads strings as bytes, and sends the id of a message that it received as binary.
    """
    code = raw[0]
    if code in (0xB0, 0xB1):
        return bytes((0xA1, len(raw) - 5)) + raw[5:] if len(raw) <= 260 else b"\xb1" + raw[1:]
    if code == 0xA0:
        return b"\xa1" + raw[1:]
    if code == 0x44:
        return b"\x53\x00"
    if code == 0x80 and raw[1:8] == bytes(7):
        return bytes((0x53, raw[8]))
    return raw


def _check_application_properties(payload: bytes, at: i64, stop: i64) -> None:
    """Keys are strings and every value has an end: filters and dead-lettering rely on it later."""
    count, at = _opened(payload, at)
    if count & 1:
        raise bad("application-properties have a key without a value")
    for _ in range(0, count, 2):
        code: i64 = payload[at]
        if code == 0xA1:
            at += 2 + payload[at + 1]
        elif code == 0xB1:
            at = skip_value(payload, at, stop)
        else:
            raise bad("application-properties have a key that is no string")
        step: i64 = STEPS[payload[at]]
        if step == 254:
            at += 2 + payload[at + 1]
        else:
            at = at + step if step else skip_value(payload, at, stop)
    if at != stop:
        raise bad("application-properties end before their size says")


def _scan_annotations(payload: bytes, at: i64, stop: i64, found: Scanned | None) -> tuple[bytes, int]:
    """The items to keep and their number; ``found`` takes what the broker needs from message-annotations."""
    count, at = _opened(payload, at)
    if count & 1 or count > ANNOTATION_ITEMS_MAX:
        raise bad(f"annotations of {count} items")
    first = at
    dropped: list[tuple[int, int]] = []
    has_strings = False
    for _ in range(0, count, 2):
        start = at
        key = b""
        # A key should be a symbol; clients on uAMQP write a string.
        code: i64 = payload[at]
        if code == 0xA3 or code == 0xA1:
            at += 2 + payload[at + 1]
            key = payload[start + 2 : at]
        else:
            at = skip_value(payload, at, stop)
            if code == 0xB3 or code == 0xB1:
                key = payload[start + 5 : at]
        value = at
        step: i64 = STEPS[payload[at]]
        if step == 254:
            at += 2 + payload[at + 1]
        else:
            at = at + step if step else skip_value(payload, at, stop)
        if code == 0xA1 or code == 0xB1:
            has_strings = True
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
    if not dropped and not has_strings:
        return payload[first:stop], count
    kept: list[bytes] = []
    for start, after in dropped:
        kept.append(payload[first:start])
        first = after
    kept.append(payload[first:stop])
    items = b"".join(kept)
    return with_symbol_keys(items) if has_strings else items, count - 2 * len(dropped)


def split_batch(payload: bytes) -> list[bytes]:
    """The encoded messages inside a batch (message-format 0x80013700): one per data section.

    Raises:
        RemoteProtocolError: the bytes are no batch, or one of more than BATCH_MESSAGES_MAX messages.
    """
    messages: list[bytes] = []
    offset: i64 = 0
    end: i64 = len(payload)
    while offset < end:
        code, at = descriptor(payload, offset, end)
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
