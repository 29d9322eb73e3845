"""Application properties that a receiver changes while settling: kept beside the message, merged at delivery."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pairbus.amqp.decode import decode_value
from pairbus.amqp.encode import encode_map
from pairbus.amqp.types import ULong
from pairbus.errors import ArgumentError, QuotaExceeded, UsageError

if TYPE_CHECKING:
    from pairbus.engine.queues.queue import Queue
    from pairbus.model.message import Message

LONG_MAX: Final = (1 << 63) - 1
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
    try:
        encoded = encode_map({key: _unsigned(value) for key, value in merged.items()})
    except UsageError as error:
        raise ArgumentError(f"A changed property cannot be kept: {error}") from error
    if len(encoded) > CHANGES_BYTES_MAX:
        raise ArgumentError(
            f"The changed properties have {len(encoded)} bytes: at most {CHANGES_BYTES_MAX} are allowed."
        )
    return encoded


def check_changes(queue: Queue, message: Message, changes: dict[str, object] | None) -> None:
    """Refuse changes that cannot be kept, or that a full disk has no room for: its reserve is for settlements (B12)."""
    changed = merged_changes(message, changes)
    if changed and not queue.context.journal.has_room(len(changed)):
        raise QuotaExceeded(
            f"The disk has no room for changed properties in '{queue.path}'. Settle without them."
        )


def _unsigned(value: object) -> object:
    """What no signed long can hold came as an unsigned one."""
    return ULong(value) if isinstance(value, int) and value > LONG_MAX else value
