"""Size limits of messages in the backlog."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pairbus.pairing.errors import MessageTooLargeForBacklogError
from pairbus.sdk.messages import message_bytes

BACKLOG_LIMIT_BYTES: Final = 262_144
"""Bytes that a queue of the standard tier takes for one message, or for one batch."""
HEADER_LIMIT_BYTES: Final = 65_536
"""Bytes that the service allows for all properties of a message together."""
ENVELOPE_BYTES: Final = 64
"""Bytes that the batch around a single parked message takes at most."""


def header_bytes(payload: bytes) -> int:
    """The size of an encoded message without its body: all its properties and annotations."""
    return len(payload) - len(message_bytes.body_of(payload))


def check_header(parked: Sequence[bytes], originals: Sequence[bytes]) -> None:
    """Raise MessageTooLargeForBacklogError when the properties of a parked message are more than the service allows."""
    for payload, original in zip(parked, originals, strict=True):
        size = header_bytes(payload)
        if size > HEADER_LIMIT_BYTES:
            overhead = size - header_bytes(original)
            raise MessageTooLargeForBacklogError(
                size, overhead, HEADER_LIMIT_BYTES, "properties of the parked message have"
            )


def headroom_of(parked: bytes) -> int:
    """How many bytes the body of a parked message may grow; negative when the message or its properties are too large."""
    for_all = BACKLOG_LIMIT_BYTES - ENVELOPE_BYTES - len(parked)
    for_properties = HEADER_LIMIT_BYTES - header_bytes(parked)
    return min(for_all, for_properties) if for_properties < 0 else for_all


def check_size(parked: Sequence[bytes], originals: Sequence[bytes], limit: int) -> None:
    """Raise MessageTooLargeForBacklogError when one of the parked forms is too large (P13)."""
    for payload, original in zip(parked, originals, strict=True):
        if len(payload) + ENVELOPE_BYTES > limit:
            size = len(payload) + ENVELOPE_BYTES
            raise MessageTooLargeForBacklogError(size, size - len(original), limit)
