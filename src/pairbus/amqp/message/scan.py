"""From a client's encoded message to what the broker must know of it, without building the message."""

from __future__ import annotations

import struct
from typing import Final

from pairbus.amqp.decode import STEPS, bad, decode_value, skip_value
from pairbus.amqp.message.layout import (
    APPLICATION_PROPERTIES,
    DATA,
    DELIVERY_ANNOTATIONS,
    FOOTER,
    HEADER,
    LAYOUT,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    SEQUENCE,
    VALUE,
)
from pairbus.amqp.message.scanned import (
    Scanned,
    check_application_properties,
    scan_annotations,
    scan_header,
    scan_properties,
)
from pairbus.errors import RemoteProtocolError

__all__ = ["BadMessage", "Scanned", "scan", "split_batch"]

PING_CONTENT_TYPE: Final = b"application/vnd.ms-servicebus-ping"
BATCH_MESSAGES_MAX: Final = 16384
"""How many messages one batch may hold."""
BODY_SECTIONS_MAX: Final = 65536
DATA_BIT: Final = 1 << (DATA - HEADER)
SEQUENCE_BIT: Final = 1 << (SEQUENCE - HEADER)
VALUE_BIT: Final = 1 << (VALUE - HEADER)

BadMessage = RemoteProtocolError
"""What ``scan`` and ``split_batch`` raise, with the condition amqp:decode-error."""

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


def scan(payload: bytes, want_message_id: bool = False) -> Scanned:
    """Walk the sections of one message.

    Raises:
        BadMessage: the bytes are no message.
    """
    found = Scanned()
    found.size = len(payload)
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
        stop = at + 2 + payload[at + 1] if STEPS[constructor] == 254 else skip_value(payload, at, end)
        if stop > end:
            raise bad(f"a message section claims {stop - end} bytes more than there are")
        _check_section(code, constructor, seen)
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
            pieces.append((code, at, stop))
            if code == PROPERTIES:
                properties_length = stop - at + 3
                scan_properties(payload, at, stop, want_message_id, found)
            elif code == APPLICATION_PROPERTIES:
                application_length = stop - at + 3
                check_application_properties(payload, at, stop)
        elif code == MESSAGE_ANNOTATIONS:
            message_items, message_count = scan_annotations(payload, at, stop, found)
        elif code == DELIVERY_ANNOTATIONS:
            delivery_items, delivery_count = scan_annotations(payload, at, stop, None)
        else:
            scan_header(payload, at, stop, found)
        offset = stop
    if seen == 0:
        raise bad("a message has no sections")
    if len(pieces) > BODY_SECTIONS_MAX:
        raise bad(f"a message has {len(pieces)} body sections, more than {BODY_SECTIONS_MAX}")
    if not in_order:
        bare = _joined_in_order(payload, pieces)
    else:
        bare = payload[bare_start:] if bare_start >= 0 else b""
    found.take_time_to_live()
    found.is_ping = body_is_empty and found.content_type == PING_CONTENT_TYPE
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


def _check_section(code: int, constructor: int, seen: int) -> None:
    """AMQP 1.0, 3.2: each section has its one type of value and comes once; bodies are all of one kind."""
    if not HEADER <= code <= FOOTER:
        raise bad(f"descriptor 0x{code:02x} is no message section")
    if code == DATA:
        good = constructor == 0xA0 or constructor == 0xB0
        clash = seen & (SEQUENCE_BIT | VALUE_BIT)
    elif code == VALUE:
        good = True
        clash = seen & (DATA_BIT | SEQUENCE_BIT | VALUE_BIT)
    elif code == SEQUENCE:
        good = constructor == 0xC0 or constructor == 0x45 or constructor == 0xD0
        clash = seen & (DATA_BIT | VALUE_BIT)
    else:
        clash = seen & 1 << (code - HEADER)
        if code == HEADER or code == PROPERTIES:
            good = constructor == 0xC0 or constructor == 0x45 or constructor == 0xD0
        else:
            good = constructor == 0xC1 or constructor == 0xD1
    if not good:
        raise bad(f"section 0x{code:02x} has a value of type 0x{constructor:02x}")
    if clash:
        raise bad(f"section 0x{code:02x} comes twice, or beside a body of another kind")


def _is_empty_body(code: int, payload: bytes, at: int, stop: int) -> bool:
    if code == DATA:
        return stop - at == (2 if payload[at] == 0xA0 else 5)
    # A null, or text or bytes without content.
    return payload[at:stop] in (
        b"\x40",
        b"\xa0\x00",
        b"\xa1\x00",
        b"\xb0\x00\x00\x00\x00",
        b"\xb1\x00\x00\x00\x00",
    )


def _joined_in_order(payload: bytes, pieces: list[tuple[int, int, int]]) -> bytes:
    parts: list[bytes] = []
    for place in (PROPERTIES, APPLICATION_PROPERTIES, DATA, FOOTER):
        for code, at, stop in pieces:
            if code == place or (place == DATA and DATA <= code <= VALUE):
                parts.append(bytes((0x00, 0x53, code)))
                parts.append(payload[at:stop])
    return b"".join(parts)


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
