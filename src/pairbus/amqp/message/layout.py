"""How a stored message is laid out: a short prefix, then the client's own bytes.

    prefix | items of the delivery-annotations | items of the message-annotations | properties … footer
           |<------ delivery_length ---------->|<------ message_length ---------->|<--- the bare message --->|

The prefix holds the length of each part and the values of the sender's header. The header itself and the annotations that
belong to the broker are not kept; everything else is what the client wrote, byte for byte (B8). Only where the client wrote the
sections in another form than AMQP 1.0 asks for, they get it (``sections``).
"""

from __future__ import annotations

import struct
from typing import Final

from pairbus.amqp.decode import TEXT_CODES, bad, skip_value

LAYOUT: Final = struct.Struct("<BBHHIIIII")
"""flags, priority, counts of delivery- and message-annotation items, header ttl, and the lengths of: delivery-annotation
items, message-annotation items, properties section, application-properties section."""
PREFIX_SIZE: Final = LAYOUT.size


# Flags. The two highest bits are the layout's version: 0.
DURABLE_SET: Final = 1
DURABLE: Final = 2
PRIORITY_SET: Final = 4
TTL_SET: Final = 8
FIRST_ACQUIRER_SET: Final = 16
FIRST_ACQUIRER: Final = 32

HEADER: Final = 0x70
DELIVERY_ANNOTATIONS: Final = 0x71
MESSAGE_ANNOTATIONS: Final = 0x72
PROPERTIES: Final = 0x73
APPLICATION_PROPERTIES: Final = 0x74
DATA: Final = 0x75
SEQUENCE: Final = 0x76
VALUE: Final = 0x77
FOOTER: Final = 0x78

SEQUENCE_NUMBER_KEY: Final = b"x-opt-sequence-number"
ENQUEUED_TIME_KEY: Final = b"x-opt-enqueued-time"
LOCKED_UNTIL_KEY: Final = b"x-opt-locked-until"
ENQUEUE_SEQUENCE_NUMBER_KEY: Final = b"x-opt-enqueue-sequence-number"
MESSAGE_STATE_KEY: Final = b"x-opt-message-state"
DEAD_LETTER_SOURCE_KEY: Final = b"x-opt-deadletter-source"
LOCK_TOKEN_KEY: Final = b"x-opt-lock-token"
PARTITION_KEY_KEY: Final = b"x-opt-partition-key"
SCHEDULED_TIME_KEY: Final = b"x-opt-scheduled-enqueue-time"

BROKER_KEYS: Final = frozenset(
    (
        SEQUENCE_NUMBER_KEY,
        ENQUEUED_TIME_KEY,
        LOCKED_UNTIL_KEY,
        ENQUEUE_SEQUENCE_NUMBER_KEY,
        MESSAGE_STATE_KEY,
        DEAD_LETTER_SOURCE_KEY,
        LOCK_TOKEN_KEY,
    )
)
"""Annotations only the broker may set; a sender's own are dropped."""


def header_size(blob: bytes) -> int:
    """Bytes of a stored message apart from its body: annotations, properties and application properties."""
    layout = LAYOUT.unpack_from(blob)
    return int(layout[5] + layout[6] + layout[7] + layout[8])


def without_body(blob: bytes) -> bytes:
    """A stored message up to the end of its application properties: no body, no footer."""
    return blob[: PREFIX_SIZE + header_size(blob)]


def raw_items(raw: bytes) -> list[bytes]:
    """The encoded items of an encoded list that is known to be sound."""
    at = {0x45: 1, 0xC0: 3, 0xD0: 9}[raw[0]]
    items: list[bytes] = []
    while at < len(raw):
        start = at
        at = skip_value(raw, at, len(raw))
        items.append(raw[start:at])
    return items


def property_pairs(encoded: bytes) -> dict[bytes, bytes]:
    """An encoded map with text keys: key text to encoded value. Empty bytes give no pairs."""
    pairs: dict[bytes, bytes] = {}
    if not encoded:
        return pairs
    code = encoded[0]
    if code == 0xC1:
        at = 3
    elif code == 0xD1:
        at = 9
    else:
        raise bad("properties are no map")
    end = len(encoded)
    while at < end:
        start = at
        code = encoded[at]
        at = skip_value(encoded, at, end)
        value = at
        at = skip_value(encoded, at, end)
        if code in TEXT_CODES:  # application properties have no other keys (AMQP 1.0, 3.2.5)
            pairs[encoded[start + (2 if code < 0xB0 else 5) : value]] = encoded[value:at]
    return pairs
