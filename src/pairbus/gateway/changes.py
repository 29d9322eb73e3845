"""Application properties that a receiver changes while settling: kept beside the message, merged at delivery."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pairbus.amqp.decode import decode_value
from pairbus.amqp.encode import encode_map
from pairbus.errors import ArgumentError

if TYPE_CHECKING:
    from pairbus.model.message import Message

CHANGES_BYTES_MAX: Final = 65_536
"""All properties of a message together have at most 64 KB."""


def merged_changes(message: Message, changes: dict[str, object] | None) -> bytes:
    """Earlier and new changes as one encoded map; empty when there is nothing new. Null removes a property."""
    if not changes:
        return b""
    merged: dict[object, object] = {}
    if message.extra is not None and message.extra.changed_properties:
        earlier, _ = decode_value(message.extra.changed_properties)
        if isinstance(earlier, dict):
            merged.update(earlier)
    merged.update({str(key): value for key, value in changes.items()})
    encoded = encode_map(merged)
    if len(encoded) > CHANGES_BYTES_MAX:
        raise ArgumentError(f"The changed properties have {len(encoded)} bytes: at most {CHANGES_BYTES_MAX} are allowed.")
    return encoded
