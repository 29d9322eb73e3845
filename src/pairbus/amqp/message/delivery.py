"""A stored message as it is delivered: with a new header and new annotations, everything else as the sender wrote it."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from pairbus.amqp.encode import encode_map_items, encode_string
from pairbus.amqp.message.layout import (
    APPLICATION_PROPERTIES,
    DEAD_LETTER_SOURCE_KEY,
    DURABLE,
    DURABLE_SET,
    ENQUEUE_SEQUENCE_NUMBER_KEY,
    ENQUEUED_TIME_KEY,
    FIRST_ACQUIRER,
    FIRST_ACQUIRER_SET,
    LAYOUT,
    LOCK_TOKEN_KEY,
    LOCKED_UNTIL_KEY,
    MESSAGE_STATE_KEY,
    PREFIX_SIZE,
    PRIORITY_SET,
    SEQUENCE_NUMBER_KEY,
    TTL_SET,
    property_pairs,
)

HEADERS_CACHED_MAX: Final = 4096
"""How many encoded headers are remembered; nearly all messages share a few."""


@dataclass(slots=True)
class DeliveryExtras:
    """Rare additions to a delivery."""

    enqueue_sequence_number: int = 0
    dead_letter_reason: str | None = None
    dead_letter_description: str | None = None
    dead_letter_source: str | None = None
    changed_properties: bytes = b""
    """An encoded map; each pair replaces or adds an application property, a null value removes it."""
    annotations: bytes = b""
    """Encoded keys and values to add to the message-annotations."""
    annotation_count: int = 0
    """How many items ``annotations`` holds: two per pair."""


def _symbol(name: bytes) -> bytes:
    return bytes((0xA3, len(name))) + name


_TOKEN_HEAD: Final = b"\x00\x53\x71\xc1\x24\x02" + _symbol(LOCK_TOKEN_KEY) + b"\x98"
_NO_TOKEN: Final = b"\x00\x53\x71\xc1\x01\x00"
"""The empty delivery-annotations of a delivery without a lock, as the service has them."""
_TOKEN_ITEMS_HEAD: Final = _symbol(LOCK_TOKEN_KEY) + b"\x98"
_MAP_HEAD: Final = b"\x00\x53\x72\xd1"
_SEQUENCE: Final = _symbol(SEQUENCE_NUMBER_KEY) + b"\x81"
_ENQUEUED: Final = _symbol(ENQUEUED_TIME_KEY) + b"\x83"
_LOCKED: Final = _symbol(LOCKED_UNTIL_KEY) + b"\x83"
_ORIGIN: Final = _symbol(ENQUEUE_SEQUENCE_NUMBER_KEY) + b"\x81"
_STATE: Final = _symbol(MESSAGE_STATE_KEY) + b"\x54"
_SOURCE: Final = _symbol(DEAD_LETTER_SOURCE_KEY)


def _layout(*fields: bytes | str) -> struct.Struct:
    return struct.Struct(">" + "".join(f"{len(f)}s" if isinstance(f, bytes) else f for f in fields))


_FREE: Final = _layout(_NO_TOKEN, _MAP_HEAD, "I", "I", _SEQUENCE, "q", _ENQUEUED, "q")
_HELD: Final = _layout(_MAP_HEAD, "I", "I", _SEQUENCE, "q", _ENQUEUED, "q", _LOCKED, "q")
_TOKEN_AND_HELD: Final = _layout(
    _TOKEN_HEAD, "16s", _MAP_HEAD, "I", "I", _SEQUENCE, "q", _ENQUEUED, "q", _LOCKED, "q"
)
# What a map32 counts in its size: its count, and every item after it.
_FREE_SIZE: Final = _FREE.size - len(_NO_TOKEN) - len(_MAP_HEAD) - 4
_HELD_SIZE: Final = _HELD.size - len(_MAP_HEAD) - 4
_FREE_ITEMS: Final = 4
_HELD_ITEMS: Final = 6

_PLAIN_HEAD: Final = _MAP_HEAD + _HELD_SIZE.to_bytes(4, "big") + _HELD_ITEMS.to_bytes(4, "big") + _SEQUENCE
_TIMES: Final = _layout(_ENQUEUED, "q", _LOCKED, "q")

_headers: Final[dict[tuple[int, int, int, int], bytes]] = {}
_plain_headers: Final[dict[bytes, bytes]] = {}
"""The prefix of a stored message without annotations to what stands before the lock token in its first delivery."""


class _LastPlain:
    """Of the last plain delivery, what the next one mostly has too. Each in one value, for brokers in several threads share it."""

    __slots__ = ("header", "times")

    def __init__(self) -> None:
        self.header = (b"\xff" * PREFIX_SIZE, b"")
        """An entry of ``_plain_headers``."""
        self.times = (0, 0, b"")
        """enqueued, locked until, both encoded."""


_last: Final = _LastPlain()


def delivery_parts(
    blob: bytes,
    delivery_count: int,
    sequence_number: int,
    enqueued_at: int,
    locked_until: int = 0,
    lock_token: bytes = b"",
    state: int = 0,
    ttl_ms: int = 0,
    extras: DeliveryExtras | None = None,
) -> list[bytes]:
    """The bytes of one delivery, in pieces to be sent one after the other.

    ``locked_until`` 0 and ``lock_token`` empty leave those annotations out; ``ttl_ms`` 0 keeps the sender's own.
    """
    is_plain = (
        delivery_count == 0
        and ttl_ms == 0
        and state == 0
        and extras is None
        and locked_until > 0
        and lock_token != b""
    )
    if is_plain:
        prefix, header = _last.header
        known: bytes | None = header
        if not blob.startswith(prefix):
            prefix = blob[:PREFIX_SIZE]
            known = _plain_headers.get(prefix)
            if known is not None:
                _last.header = (prefix, known)
        if known is not None:
            enqueued, locked, times = _last.times
            if enqueued != enqueued_at or locked != locked_until:
                times = _TIMES.pack(_ENQUEUED, enqueued_at, _LOCKED, locked_until)
                _last.times = (enqueued_at, locked_until, times)
            number = sequence_number.to_bytes(8, "big")
            return [b"".join([known, lock_token, _PLAIN_HEAD, number, times]), blob[PREFIX_SIZE:]]
    (
        flags,
        priority,
        delivery_items,
        message_items,
        ttl,
        delivery_length,
        message_length,
        properties,
        application,
    ) = LAYOUT.unpack_from(blob)
    if ttl_ms:
        ttl = ttl_ms if ttl_ms <= 0xFFFFFFFF else 0
        flags = flags | TTL_SET if ttl else flags & ~TTL_SET
    found = _headers.get((flags, priority, ttl, delivery_count))
    header = _header(flags, priority, ttl, delivery_count) if found is None else found
    if is_plain and not delivery_length and not message_length:
        if len(_plain_headers) >= HEADERS_CACHED_MAX:
            _plain_headers.clear()
        _plain_headers[blob[:PREFIX_SIZE]] = header + _TOKEN_HEAD
    start = PREFIX_SIZE
    origin = 0
    more = b""
    if delivery_length:
        start += delivery_length
        header += _delivery_annotations(blob[PREFIX_SIZE:start], delivery_items, lock_token)
        lock_token = b""
    if message_length:
        more = blob[start : start + message_length]
        start += message_length
    if extras is not None:
        origin = extras.enqueue_sequence_number
        added, count = _added_annotations(extras)
        more += added
        message_items += count
    # As on the service, an active message that was sent to this entity carries neither its state nor another number.
    if origin:
        more += _ORIGIN + origin.to_bytes(8, "big")
        message_items += 2
    if state:
        more += _STATE + bytes((state,))
        message_items += 2
    if locked_until == 0:
        annotations = _FREE.pack(
            _NO_TOKEN, _MAP_HEAD, _FREE_SIZE + len(more), _FREE_ITEMS + message_items,
            _SEQUENCE, sequence_number, _ENQUEUED, enqueued_at,
        )  # fmt: skip
        if lock_token:
            header += _TOKEN_HEAD + lock_token
        if lock_token or delivery_length:
            annotations = annotations[len(_NO_TOKEN) :]
    elif lock_token:
        annotations = _TOKEN_AND_HELD.pack(
            _TOKEN_HEAD, lock_token, _MAP_HEAD, _HELD_SIZE + len(more), _HELD_ITEMS + message_items,
            _SEQUENCE, sequence_number, _ENQUEUED, enqueued_at, _LOCKED, locked_until,
        )  # fmt: skip
    else:
        annotations = _HELD.pack(
            _MAP_HEAD, _HELD_SIZE + len(more), _HELD_ITEMS + message_items,
            _SEQUENCE, sequence_number, _ENQUEUED, enqueued_at, _LOCKED, locked_until,
        )  # fmt: skip
    parts = [header + annotations]
    if more:
        parts.append(more)
    if extras is None or not _changes_properties(extras):
        parts.append(blob[start:])
    else:
        middle = start + properties
        parts.append(blob[start:middle])
        parts.append(_merged_properties(blob[middle : middle + application], extras))
        parts.append(blob[middle + application :])
    return parts


def _header(flags: int, priority: int, ttl: int, delivery_count: int) -> bytes:
    fields = (b"\x41" if flags & DURABLE else b"\x42") if flags & DURABLE_SET else b"\x40"
    fields += bytes((0x50, priority)) if flags & PRIORITY_SET else b"\x40"
    fields += b"\x70" + ttl.to_bytes(4, "big") if flags & TTL_SET else b"\x40"
    fields += (b"\x41" if flags & FIRST_ACQUIRER else b"\x42") if flags & FIRST_ACQUIRER_SET else b"\x40"
    fields += b"\x70" + delivery_count.to_bytes(4, "big")
    header = bytes((0x00, 0x53, 0x70, 0xC0, len(fields) + 1, 5)) + fields
    if len(_headers) >= HEADERS_CACHED_MAX:
        _headers.clear()
    _headers[flags, priority, ttl, delivery_count] = header
    return header


def _delivery_annotations(items: bytes, count: int, lock_token: bytes) -> bytes:
    if lock_token:
        items = _TOKEN_ITEMS_HEAD + lock_token + items
        count += 2
    return b"\x00\x53\x71\xd1" + (len(items) + 4).to_bytes(4, "big") + count.to_bytes(4, "big") + items


def _added_annotations(extras: DeliveryExtras) -> tuple[bytes, int]:
    added = extras.annotations
    count = extras.annotation_count
    if extras.dead_letter_source is not None:
        added += _SOURCE + encode_string(extras.dead_letter_source)
        count += 2
    return added, count


def _changes_properties(extras: DeliveryExtras) -> bool:
    return bool(
        extras.changed_properties
        or extras.dead_letter_reason is not None
        or extras.dead_letter_description is not None
    )


def _merged_properties(section: bytes, extras: DeliveryExtras) -> bytes:
    """The application-properties section with changes applied; pairs that do not change keep their bytes and place."""
    pairs = property_pairs(section[3:])
    changes = property_pairs(extras.changed_properties)
    if extras.dead_letter_reason is not None:
        changes[b"DeadLetterReason"] = encode_string(extras.dead_letter_reason)
    if extras.dead_letter_description is not None:
        changes[b"DeadLetterErrorDescription"] = encode_string(extras.dead_letter_description)
    for key, value in changes.items():
        if value == b"\x40":
            pairs.pop(key, None)
        else:
            pairs[key] = value
    items = [encode_string(key.decode("utf-8", "replace")) + value for key, value in pairs.items()]
    if not items:
        return b""
    return bytes((0x00, 0x53, APPLICATION_PROPERTIES)) + encode_map_items(items)
