"""The facts that survive: what the journal keeps and recovery folds, in the order they happened.

Rule 1: live commands and recovery change state through the same fold, from these same records.
Rule 2: everything appended within one engine call becomes durable together or not at all.
Rule 3: a fold ignores a record about a message it does not know: the message's own record may have
        been compacted away after a later record had made it irrelevant.

A *queue id* names one place where messages lie: an entity's main queue, its dead-letter queue or its
transfer dead-letter queue (``entity_id * 4 + sub``). Ids are never reused, so a recreated entity starts empty.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from pairbus.model.message import Extra, Message

MAIN: Final = 0
DEAD_LETTER: Final = 1
TRANSFER_DEAD_LETTER: Final = 2


def queue_id_of(entity_id: int, sub: int) -> int:
    """The id of one of the places an entity keeps messages in."""
    return entity_id * 4 + sub


class MessageStored:
    """A message lies in a queue, in the state its fields say. Also restated by compaction."""

    __slots__ = ("blob", "duplicate_key", "message", "queue_id")

    def __init__(self, queue_id: int, message: Message, blob: bytes | None, duplicate_key: bytes) -> None:
        self.queue_id = queue_id
        self.message = message
        self.blob = blob
        """The bytes to write; None while replaying (read them through the journal by location)."""
        self.duplicate_key = duplicate_key
        """The message id for duplicate history; empty where detection is off."""


class MessageRemoved:
    """A message left for good: completed, received and deleted, expired, cancelled, purged."""

    __slots__ = ("location", "queue_id", "sequence_number", "size")

    def __init__(self, queue_id: int, sequence_number: int, location: int, size: int) -> None:
        self.queue_id = queue_id
        self.sequence_number = sequence_number
        self.location = location
        """For the live store's space accounting; not written."""
        self.size = size


class DeliveryFailed:
    """A delivery ended by abandon or lock expiry; ``delivery_count`` is the count from now on."""

    __slots__ = ("changed_properties", "delivery_count", "queue_id", "sequence_number")

    def __init__(
        self, queue_id: int, sequence_number: int, delivery_count: int, changed_properties: bytes = b""
    ) -> None:
        self.queue_id = queue_id
        self.sequence_number = sequence_number
        self.delivery_count = delivery_count
        self.changed_properties = changed_properties


class MessageDeferred:
    """A message is set aside, to be received by its number only; ``delivery_count`` is the count from now on."""

    __slots__ = ("changed_properties", "delivery_count", "queue_id", "sequence_number")

    def __init__(
        self, queue_id: int, sequence_number: int, delivery_count: int, changed_properties: bytes = b""
    ) -> None:
        self.queue_id = queue_id
        self.sequence_number = sequence_number
        self.delivery_count = delivery_count
        self.changed_properties = changed_properties


class MessageMoved:
    """A message went to another place of the same entity with its bytes where they are (dead-lettering).

    It keeps its sequence number and its delivery count; ``extra`` is complete as from now on.
    """

    __slots__ = ("extra", "from_queue_id", "sequence_number", "to_queue_id")

    def __init__(self, from_queue_id: int, sequence_number: int, to_queue_id: int, extra: Extra) -> None:
        self.from_queue_id = from_queue_id
        self.sequence_number = sequence_number
        self.to_queue_id = to_queue_id
        self.extra = extra


class DuplicateSeen:
    """A message id was accepted at an instant; what is left of a removed message for duplicate detection."""

    __slots__ = ("at", "duplicate_key", "queue_id")

    def __init__(self, queue_id: int, duplicate_key: bytes, at: int) -> None:
        self.queue_id = queue_id
        self.duplicate_key = duplicate_key
        self.at = at


class SequenceAdvanced:
    """Numbers below ``next_sequence_number`` have been given out, and time had reached ``enqueued_at``."""

    __slots__ = ("enqueued_at", "next_sequence_number", "queue_id")

    def __init__(self, queue_id: int, next_sequence_number: int, enqueued_at: int) -> None:
        self.queue_id = queue_id
        self.next_sequence_number = next_sequence_number
        self.enqueued_at = enqueued_at


class SessionStateSet:
    """A session's state; None: cleared."""

    __slots__ = ("at", "queue_id", "session_id", "state")

    def __init__(self, queue_id: int, session_id: str, state: bytes | None, at: int) -> None:
        self.queue_id = queue_id
        self.session_id = session_id
        self.state = state
        self.at = at


class EntityPut:
    """An entity exists with these settings (created or changed)."""

    __slots__ = ("entity_id", "kind", "path", "settings")

    def __init__(self, entity_id: int, kind: int, path: str, settings: str) -> None:
        self.entity_id = entity_id
        self.kind = kind
        """0 queue, 1 topic, 2 subscription (path ``topic/Subscriptions/name``)."""
        self.path = path
        self.settings = settings
        """JSON, see ``model.entity``."""


class EntityDeleted:
    """An entity and everything in it is gone."""

    __slots__ = ("entity_id",)

    def __init__(self, entity_id: int) -> None:
        self.entity_id = entity_id


class NamespacePut:
    """Namespace-wide settings: access rules with keys, quotas, creation time. JSON."""

    __slots__ = ("next_entity_id", "settings")

    def __init__(self, next_entity_id: int, settings: str) -> None:
        self.next_entity_id = next_entity_id
        self.settings = settings


Record: TypeAlias = (
    MessageStored
    | MessageRemoved
    | DeliveryFailed
    | MessageDeferred
    | MessageMoved
    | DuplicateSeen
    | SequenceAdvanced
    | SessionStateSet
    | EntityPut
    | EntityDeleted
    | NamespacePut
)
