"""One stored message.

A message's bytes stay in the store; what is here is what decisions need. One object per stored
message, no dataclass: a million of them must fit beside each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pairbus.native import mypyc_attr

if TYPE_CHECKING:
    from mypy_extensions import u8

ACTIVE: Final = 0
"""Message states, numbered as ``x-opt-message-state`` numbers them on the wire."""
DEFERRED: Final = 1
SCHEDULED: Final = 2
STATE_NAMES: Final = ("active", "deferred", "scheduled")
"""What users read, by the number of the state."""

HEADER_BYTES_MAX: Final = 65_536
"""Bytes of a message beside its body: annotations, properties and application properties, as they are encoded."""
MESSAGE_ID_CHARACTERS_MAX: Final = 128

NEVER: Final = 0
"""An ``expires_at`` or ``scheduled_at`` that is not set."""


@mypyc_attr(acyclic=True)
class Extra:
    """The rare facts about a stored message, kept apart so that ordinary messages stay small."""

    __slots__ = (
        "changed_properties",
        "dead_letter_description",
        "dead_letter_reason",
        "dead_letter_source",
        "enqueue_sequence_number",
        "hops",
        "scheduled_at",
        "ttl_ms",
    )

    def __init__(self) -> None:
        self.dead_letter_reason: str | None = None
        self.dead_letter_description: str | None = None
        self.dead_letter_source: str | None = None
        self.changed_properties: bytes = b""
        """Encoded AMQP map of application properties to merge at delivery; empty: none."""
        self.scheduled_at: int = NEVER
        """When it is due: the date that the client gave, by the wall clock."""
        self.enqueue_sequence_number: int = 0
        self.hops: int = 0
        self.ttl_ms: int = 0
        """A scheduled message's own time to live, which counts from its activation; 0: none."""

    def copy(self) -> Extra:
        """An independent copy, so that a moved message never shares facts with its original."""
        twin = Extra()
        twin.dead_letter_reason = self.dead_letter_reason
        twin.dead_letter_description = self.dead_letter_description
        twin.dead_letter_source = self.dead_letter_source
        twin.changed_properties = self.changed_properties
        twin.scheduled_at = self.scheduled_at
        twin.enqueue_sequence_number = self.enqueue_sequence_number
        twin.hops = self.hops
        twin.ttl_ms = self.ttl_ms
        return twin


@mypyc_attr(acyclic=True)
class Message:
    """A message that is stored: where its bytes are and what became of it so far."""

    __slots__ = (
        "delivery_count",
        "enqueued_at",
        "expires_at",
        "extra",
        "is_locked",
        "location",
        "sequence_number",
        "session_id",
        "size",
        "state",
    )

    def __init__(
        self,
        sequence_number: int,
        enqueued_at: int,
        expires_at: int,
        size: int,
        session_id: str | None,
    ) -> None:
        self.sequence_number = sequence_number
        self.enqueued_at = enqueued_at
        self.expires_at = expires_at
        """The instant of expiry, or NEVER."""
        self.size = size
        """Bytes of the blob; counted against quotas."""
        self.session_id = session_id
        self.location = 0
        """Where the store keeps the blob; the store's own number, opaque to everybody else."""
        self.delivery_count = 0
        """Deliveries so far that ended in an abandon, a deferral or an expired lock."""
        self.extra: Extra | None = None
        # These two last: what takes a byte each fills no gaps there.
        self.state: u8 = ACTIVE
        self.is_locked = False
        """A lock holds it."""
