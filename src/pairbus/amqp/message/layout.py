"""How a stored message is laid out: a short prefix, then the client's own bytes.

    prefix | items of the delivery-annotations | items of the message-annotations | properties … footer
           |<------ delivery_length ---------->|<------ message_length ---------->|<--- the bare message --->|

The prefix says how long each part is and what the sender's header said. The header itself and the annotations that
belong to the broker are not kept; everything else is what the client wrote, byte for byte (B8).
"""

from __future__ import annotations

import struct
from typing import Final

LAYOUT: Final = struct.Struct("<BBHHIIIII")
"""flags, priority, counts of delivery- and message-annotation items, header ttl, and the lengths of: delivery-annotation
items, message-annotation items, properties section, application-properties section."""
PREFIX_SIZE: Final = LAYOUT.size


def header_size(blob: bytes) -> int:
    """Bytes of a stored message apart from its body: annotations, properties and application properties."""
    _, _, _, _, _, delivery, message, properties, application = LAYOUT.unpack_from(blob)
    return int(delivery) + int(message) + int(properties) + int(application)


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
