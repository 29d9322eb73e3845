"""Which segments still matter: what lives in each, and which numbers only it remembers. Pure.

Rule 1: segments go strictly oldest first. So when one goes, every message stored in it or before it is either gone or
        restated in a later one, and its other records (removals, failed deliveries, moves) are about nothing any more.
Rule 2: a segment without live messages and without facts goes unread; only the highest number it alone remembers of a
        queue is written again (B19).
Rule 3: facts (entities, the namespace, session states, duplicate history) may still be true, which only the owner
        knows: such a segment is read to the owner, who restates.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from pairbus.engine.records import (
    AuditMarked,
    DuplicateSeen,
    EntityDeleted,
    EntityPut,
    EntityUsed,
    MessageMoved,
    MessageStored,
    NamespacePut,
    Record,
    SequenceAdvanced,
    SessionStateSet,
)
from pairbus.storage.codec import STORED_HEAD_BYTES

if TYPE_CHECKING:
    from pairbus.model.message import Message

AUDIT: Final = 0
"""Stands for the message audit among the queue ids of ``high``; no queue has the id 0."""
ENTITY_SHIFT: Final = 2
"""A queue id without these bits is its entity's id (``records.queue_id_of``)."""
USE: Final = 3
"""Stands for the last use of an entity among the queue ids of ``high``: these bits, which no queue has, behind the entity's id."""
RESTATABLE: Final = (MessageStored, EntityPut, NamespacePut, SessionStateSet, DuplicateSeen)
"""What can still be true when its segment goes."""


@dataclass(slots=True, eq=False)
class SegmentAccount:
    """What is known of one segment that holds records."""

    number: int
    used_bytes: int = 0
    """Up to where records reach; set when the next segment begins."""
    file_bytes: int = 0
    """How long its file is."""
    live: dict[int, int] = field(default_factory=dict)
    """Entity id to the bytes of its messages here, without zeros. By entity: deleting one needs no record per message, and a move to
    the dead-letter queue changes nothing."""
    high: dict[int, int] = field(default_factory=dict)
    """Queue id to the highest sequence number in this segment; also the latest use of an entity, and the last audited batch."""
    latest: int = 0
    """The latest enqueued time in this segment."""
    has_facts: bool = False
    fact_frames: list[int] | None = None
    """Where the frames with facts begin, in ascending order; None: that is not known, any frame may have some."""
    proven_bytes: int = 0
    """Facts that were restated here: true when last looked at, so not counted as garbage."""

    def is_dead(self) -> bool:
        """Whether it may go unread."""
        return not self.has_facts and not self.live

    def add_fact(self, frame: int) -> None:
        """A fact was added to the frame that begins at this offset."""
        self.has_facts = True
        if self.fact_frames is not None and (not self.fact_frames or self.fact_frames[-1] != frame):
            self.fact_frames.append(frame)

    def live_bytes(self) -> int:
        """What its messages take."""
        return sum(self.live.values())


class SegmentAccounts:
    """The accounts of all segments that matter, oldest first.

    Args:
        offset_bits: A location without these bits is the number of its segment.
    """

    def __init__(self, offset_bits: int) -> None:
        self._offset_bits = offset_bits
        self.by_number: dict[int, SegmentAccount] = {}
        self.live_bytes = 0
        self.proven_bytes = 0
        self.used_bytes = 0
        """Of all segments but the newest."""
        self._high: dict[int, int] = {}
        """Queue id to the highest number in any segment but the newest."""

    def begin(self, number: int) -> SegmentAccount:
        """A segment comes into use."""
        account = SegmentAccount(number)
        self.by_number[number] = account
        return account

    def end(self, account: SegmentAccount, used_bytes: int) -> None:
        account.used_bytes = used_bytes
        self.used_bytes += used_bytes
        high = self._high
        for queue_id, number in account.high.items():
            if number > high.get(queue_id, -1):
                high[queue_id] = number

    def oldest(self) -> SegmentAccount:
        """The next to go."""
        return next(iter(self.by_number.values()))

    def drop(self, account: SegmentAccount) -> list[SequenceAdvanced | AuditMarked | EntityUsed]:
        """The oldest segment goes: the records that must be written in its stead."""
        del self.by_number[account.number]
        self.used_bytes -= account.used_bytes
        self.live_bytes -= account.live_bytes()
        self.proven_bytes -= account.proven_bytes
        newest = next(reversed(self.by_number.values())).high
        return [
            _carried_on(queue_id, number, account.latest)
            for queue_id, number in account.high.items()
            if number >= self._high.get(queue_id, -1) and number > newest.get(queue_id, -1)
        ]

    def add_live(self, queue_id: int, location: int, size: int) -> None:
        """A message lies at a location."""
        self.add_live_bytes(queue_id, location >> self._offset_bits, size + STORED_HEAD_BYTES)

    def add_live_bytes(self, queue_id: int, segment: int, size: int) -> None:
        """Messages of a queue that take so many bytes, with their heads, lie in a segment."""
        account = self.by_number.get(segment)
        if account is not None:
            entity_id = queue_id >> ENTITY_SHIFT
            left = account.live.get(entity_id, 0) + size
            if left:
                account.live[entity_id] = left
            else:
                account.live.pop(entity_id, None)
            self.live_bytes += size

    def end_live(self, queue_id: int, location: int, size: int) -> None:
        """A message lies there no more."""
        self.add_live_bytes(queue_id, location >> self._offset_bits, -size - STORED_HEAD_BYTES)

    def end_live_many(self, queue_id: int, messages: list[Message]) -> None:
        """These messages lie there no more. They mostly lie in one segment, so most of them are added up first."""
        in_segment, together = -1, 0
        for message in messages:
            segment = message.location >> self._offset_bits
            if segment != in_segment:
                self.add_live_bytes(queue_id, in_segment, -together)
                in_segment, together = segment, 0
            together += message.size + STORED_HEAD_BYTES
        self.add_live_bytes(queue_id, in_segment, -together)

    def note(self, account: SegmentAccount, record: Record) -> bool:
        """Learn from a record other than a removal; whether it is a fact."""
        if isinstance(record, MessageStored):
            message = record.message
            _raise(account, record.queue_id, message.sequence_number, message.enqueued_at)
            if record.duplicate_key:
                account.has_facts = True
            return bool(record.duplicate_key)
        match record:
            case MessageMoved():
                _raise(account, record.to_queue_id, record.sequence_number, 0)
                is_fact = False
            case SequenceAdvanced():
                _raise(account, record.queue_id, record.next_sequence_number - 1, record.enqueued_at)
                is_fact = False
            case AuditMarked():
                _raise(account, AUDIT, record.number, 0)
                is_fact = False
            case EntityUsed():
                _raise(account, record.entity_id << ENTITY_SHIFT | USE, record.at, 0)
                is_fact = False
            case EntityDeleted():
                self._entity_deleted(record.entity_id)
                is_fact = False
            case SessionStateSet():
                is_fact = record.state is not None
            case _:
                is_fact = isinstance(record, RESTATABLE)
        if is_fact:
            account.has_facts = True
        return is_fact

    def _entity_deleted(self, entity_id: int) -> None:
        queue_ids = range(entity_id << ENTITY_SHIFT, (entity_id + 1) << ENTITY_SHIFT)
        for queue_id in queue_ids:
            self._high.pop(queue_id, None)
        for account in self.by_number.values():
            self.live_bytes -= account.live.pop(entity_id, 0)
            for queue_id in queue_ids:
                account.high.pop(queue_id, None)


def _carried_on(queue_id: int, number: int, latest: int) -> SequenceAdvanced | AuditMarked | EntityUsed:
    """The record that says again what ``high`` of a segment says."""
    if queue_id == AUDIT:
        return AuditMarked(number)
    if queue_id & USE == USE:
        return EntityUsed(queue_id >> ENTITY_SHIFT, number)
    return SequenceAdvanced(queue_id, number + 1, latest)


def _raise(account: SegmentAccount, queue_id: int, number: int, at: int) -> None:
    if number > account.high.get(queue_id, -1):
        account.high[queue_id] = number
    if at > account.latest:
        account.latest = at
