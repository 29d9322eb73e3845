"""The facts that survive: what the log keeps and recovery folds, in the order they happened.

Rule 1: a command changes durable state by ``record``, which appends a record and folds it. Recovery folds the same
        records by the same function, so the two cannot differ.
Rule 2: everything appended within one engine call becomes durable together or not at all.
Rule 3: a fold ignores a record about a message it does not know: the message's own record may have
        been compacted away after a later record had made it irrelevant.

A *queue id* names one place where messages lie: an entity's main queue, its dead-letter queue or its
transfer dead-letter queue. Ids are never reused, so a recreated entity starts empty.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

from pairbus.model.message import Extra, Message
from pairbus.native import mypyc_attr

MAIN: Final = 0
DEAD_LETTER: Final = 1
TRANSFER_DEAD_LETTER: Final = 2


def queue_id_of(entity_id: int, sub: int) -> int:
    """The id of one of the places an entity keeps messages in."""
    return entity_id * 4 + sub


def entity_id_of(queue_id: int) -> int:
    """The id of the entity that a place belongs to."""
    return queue_id // 4


# The first two are made for every message: they are written by hand, which compiles to the fastest form.


@mypyc_attr(acyclic=True, free_list_len=1)
class MessageStored:
    """A message lies in a queue, in the state its fields say. Also restated by compaction."""

    __slots__ = ("blob", "duplicate_key", "message", "queue_id")

    def __init__(self, queue_id: int, message: Message, blob: bytes | None, duplicate_key: bytes) -> None:
        self.queue_id = queue_id
        self.message = message
        self.blob = blob
        """The bytes to write; None while replaying (read them through the log by location)."""
        self.duplicate_key = duplicate_key
        """The message id for duplicate history; empty where detection is off."""


@mypyc_attr(acyclic=True, free_list_len=1)
class MessageRemoved:
    """A message left for good: completed, received and deleted, expired, cancelled, purged."""

    __slots__ = ("location", "queue_id", "sequence_number", "size")

    def __init__(self, queue_id: int, sequence_number: int, location: int, size: int) -> None:
        self.queue_id = queue_id
        self.sequence_number = sequence_number
        self.location = location
        """For the live store's space accounting; not written."""
        self.size = size


@dataclass(slots=True, eq=False)
class DeliveryFailed:
    """A delivery ended by abandon or lock expiry; ``delivery_count`` is the count from now on."""

    queue_id: int
    sequence_number: int
    delivery_count: int
    changed_properties: bytes = b""


@dataclass(slots=True, eq=False)
class MessageDeferred:
    """A message can be received by its number only; ``delivery_count`` is the count from now on."""

    queue_id: int
    sequence_number: int
    delivery_count: int
    changed_properties: bytes = b""


@dataclass(slots=True, eq=False)
class MessageMoved:
    """A message went to another place of the same entity with its bytes where they are (dead-lettering).

    It keeps its sequence number and its delivery count; ``extra`` is complete as from now on.
    """

    queue_id: int
    sequence_number: int
    to_queue_id: int
    extra: Extra


@dataclass(slots=True, eq=False)
class DuplicateSeen:
    """A message id was accepted at an instant; what is left of a removed message for duplicate detection."""

    queue_id: int
    duplicate_key: bytes
    at: int


@dataclass(slots=True, eq=False)
class SequenceAdvanced:
    """Numbers below ``next_sequence_number`` have been given out, and time had reached ``enqueued_at``."""

    queue_id: int
    next_sequence_number: int
    enqueued_at: int


@dataclass(slots=True, eq=False)
class SessionStateSet:
    """A session's state; None: cleared."""

    queue_id: int
    session_id: str
    state: bytes | None
    at: int


@dataclass(slots=True, eq=False)
class EntityPut:
    """An entity exists with these settings (created or changed)."""

    entity_id: int
    kind: int
    """0 queue, 1 topic, 2 subscription (path ``topic/Subscriptions/name``)."""
    path: str
    settings: str
    """JSON, see ``model.entity``."""


@dataclass(slots=True, eq=False)
class EntityDeleted:
    """An entity and everything in it is gone."""

    entity_id: int


@dataclass(slots=True, eq=False)
class NamespacePut:
    """Namespace-wide settings: access rules with keys, creation time. JSON."""

    next_entity_id: int
    settings: str


@dataclass(slots=True, eq=False)
class AuditMarked:
    """The batch that this record belongs to has rows in the message audit, under this number."""

    number: int


@dataclass(slots=True, eq=False)
class EntityUsed:
    """A client last used an entity at an instant, or later: uses are recorded now and then."""

    entity_id: int
    at: int


QueueRecord: TypeAlias = (
    MessageStored
    | MessageRemoved
    | DeliveryFailed
    | MessageDeferred
    | MessageMoved
    | DuplicateSeen
    | SequenceAdvanced
    | SessionStateSet
)
NamespaceRecord: TypeAlias = EntityPut | EntityDeleted | NamespacePut | AuditMarked | EntityUsed
Record: TypeAlias = QueueRecord | NamespaceRecord
