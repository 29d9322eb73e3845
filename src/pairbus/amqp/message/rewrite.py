"""A stored message as a sender would have written it, and with some of its properties changed. Cold path."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pairbus.amqp.encode import encode_list, encode_map_items, encode_string, encode_symbol
from pairbus.amqp.message.layout import (
    APPLICATION_PROPERTIES,
    DURABLE,
    DURABLE_SET,
    FIRST_ACQUIRER,
    FIRST_ACQUIRER_SET,
    LAYOUT,
    PREFIX_SIZE,
    PRIORITY_SET,
    PROPERTIES,
    TTL_SET,
    property_pairs,
    raw_items,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

CONTENT_TYPE: Final = 6
"""The one text among the properties that travels as a symbol."""


def payload_of(blob: bytes) -> bytes:
    """The sections of a stored message in order, header and annotations as the sender gave them."""
    flags, priority, delivery_count, message_count, ttl, delivery, message, _, _ = LAYOUT.unpack_from(blob)
    at = PREFIX_SIZE
    parts = [_header(flags, priority, ttl)]
    parts.append(_annotations(0x71, delivery_count, blob[at : at + delivery]))
    at += delivery
    parts.append(_annotations(0x72, message_count, blob[at : at + message]))
    at += message
    parts.append(blob[at:])
    return b"".join(parts)


def _header(flags: int, priority: int, ttl: int) -> bytes:
    if not flags & (DURABLE_SET | PRIORITY_SET | TTL_SET | FIRST_ACQUIRER_SET):
        return b""
    durable = b"\x40"
    if flags & DURABLE_SET:
        durable = b"\x41" if flags & DURABLE else b"\x42"
    fields = [
        durable,
        bytes((0x50, priority)) if flags & PRIORITY_SET else b"\x40",
        b"\x70" + ttl.to_bytes(4, "big") if flags & TTL_SET else b"\x40",
    ]
    if flags & FIRST_ACQUIRER_SET:
        fields.append(b"\x41" if flags & FIRST_ACQUIRER else b"\x42")
    return b"\x00\x53\x70" + encode_list(fields)


def _annotations(code: int, count: int, items: bytes) -> bytes:
    if not count:
        return b""
    size = (len(items) + 4).to_bytes(4, "big")
    return bytes((0x00, 0x53, code, 0xD1)) + size + count.to_bytes(4, "big") + items


def application_properties(blob: bytes) -> dict[str, bytes]:
    """Application properties by name, values still encoded."""
    start, length = _application_section(blob)
    section = blob[start : start + length]
    return {key.decode("utf-8", "replace"): raw for key, raw in property_pairs(section[3:]).items()}


def _application_section(blob: bytes) -> tuple[int, int]:
    layout = LAYOUT.unpack_from(blob)
    return PREFIX_SIZE + layout[5] + layout[6] + layout[7], layout[8]


def with_properties(blob: bytes, users: Mapping[str, bytes], systems: Mapping[int, str | None]) -> bytes:
    """The message with these application properties (encoded values) and these fields of its properties section.

    Everything else keeps its bytes.
    """
    layout = list(LAYOUT.unpack_from(blob))
    start = PREFIX_SIZE + layout[5] + layout[6]
    middle, end = start + layout[7], start + layout[7] + layout[8]
    properties = _changed_fields(blob[start:middle], systems)
    pairs = [encode_string(name) + raw for name, raw in users.items()]
    application = bytes((0x00, 0x53, APPLICATION_PROPERTIES)) + encode_map_items(pairs) if pairs else b""
    layout[7], layout[8] = len(properties), len(application)
    rest = memoryview(blob)[end:]  # a body may be long, and a topic makes many such copies
    return b"".join((LAYOUT.pack(*layout), blob[PREFIX_SIZE:start], properties, application, rest))


def _changed_fields(section: bytes, systems: Mapping[int, str | None]) -> bytes:
    if not systems:
        return section
    items = raw_items(section[3:]) if section else []
    items += [b"\x40"] * (max(systems) + 1 - len(items))
    for index, text in systems.items():
        if text is None:
            items[index] = b"\x40"
        else:
            items[index] = encode_symbol(text) if index == CONTENT_TYPE else encode_string(text)
    return bytes((0x00, 0x53, PROPERTIES)) + encode_list(items)
