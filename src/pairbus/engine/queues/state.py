"""What one queue holds, and the one fold that changes it: live commands and recovery both call ``QueueState.fold``.

Rule 1: a fold checks nothing and refuses nothing; the command that wrote the record has checked.
Rule 2: a fold ignores what it does not know (see ``records``, rule 3).
Rule 3: each stored copy is in exactly one place (B7): ``messages`` here, and nowhere else.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final, assert_never

from pairbus.engine.queues.duplicates import DuplicateHistory
from pairbus.engine.queues.ready import GONE, Ready
from pairbus.engine.queues.table import MessageTable
from pairbus.engine.records import (
    DeliveryFailed,
    DuplicateSeen,
    MessageDeferred,
    MessageMoved,
    MessageRemoved,
    MessageStored,
    QueueRecord,
    SequenceAdvanced,
    SessionStateSet,
)
from pairbus.engine.sessions.order import SessionOrder
from pairbus.engine.sessions.table import SessionTable
from pairbus.model.message import ACTIVE, DEFERRED, SCHEDULED, Extra, Message

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pairbus.engine.context import Context, Numbers, Space
    from pairbus.engine.queues.consumer import Consumer, Lock
    from pairbus.model.entity import Settings

_TIDY_EVERY: Final = 4_096
"""Removals between two looks at whether stale index entries outnumber live ones."""
_SWEPT_MAX: Final = 2 * _TIDY_EVERY
"""Index entries looked at in one sweep: a millisecond or two."""


class QueueState:
    """Messages of one place with the indexes that find them."""

    __slots__ = (
        "_removals",
        "active_count",
        "armed_at",
        "context",
        "deferred_count",
        "due",
        "duplicates",
        "expiring",
        "is_fetching",
        "is_sub_queue",
        "locks",
        "messages",
        "numbers",
        "path",
        "queue_id",
        "ready",
        "receiver_count",
        "retry_at",
        "rotation",
        "scheduled_count",
        "session_order",
        "sessions",
        "settings",
        "space",
        "stored_ever",
    )

    def __init__(
        self,
        context: Context,
        queue_id: int,
        path: str,
        settings: Settings,
        numbers: Numbers,
        space: Space,
        is_sub_queue: bool,
    ) -> None:
        self.context = context
        self.queue_id = queue_id
        self.path = path
        self.settings = settings
        self.numbers = numbers
        self.space = space
        self.is_sub_queue = is_sub_queue
        """A dead-letter queue: no expiry, no counting of deliveries, no sessions, no dead-lettering (B40)."""
        self.messages = MessageTable()
        self.ready = Ready()
        self.sessions = SessionTable() if settings.requires_session and not is_sub_queue else None
        self.session_order = SessionOrder() if settings.requires_session else None
        self.locks: dict[int, Lock] = {}
        """Locks outside sessions, in the order they will expire."""
        self.expiring: list[tuple[int, int]] = []
        self.due: list[tuple[int, int]] = []
        self.duplicates = (
            DuplicateHistory() if settings.requires_duplicate_detection and not is_sub_queue else None
        )
        self.rotation: deque[Consumer] = deque()
        """Receivers without a session that have credit, in the order of their turns."""
        self.receiver_count = 0
        """Receivers without a session that are attached, with credit or without. Those of sessions are in ``sessions``."""
        self.armed_at = 0
        self.is_fetching = False
        """Deliveries wait for blobs that are under way (``ports.ReadAhead``)."""
        self.retry_at = 0
        """While the disk has no room for what moves by itself: when it is asked again; else 0."""
        self.active_count = 0
        self.deferred_count = 0
        self.scheduled_count = 0
        self.stored_ever = 0
        self._removals = 0

    # -- the fold ------------------------------------------------------------------------------

    def record(self, record: QueueRecord) -> None:
        """Append a record to the log and fold it: the only way in which a command changes what is stored."""
        self.context.log.append(record)
        self.fold(record)

    def record_removals(self, messages: list[Message]) -> None:
        """``record`` a removal of each of these messages."""
        self.context.log.append_removals(self.queue_id, messages)
        self.messages.pop_all(messages)
        for message in messages:
            self._left(message)

    def fold(self, record: QueueRecord) -> None:
        """Change state by one record of this queue, live or while the log is replayed."""
        if isinstance(record, MessageStored):
            message = record.message
            number = message.sequence_number
            enqueued_at = message.enqueued_at
            numbers = self.numbers
            before: Message | None = None
            if number >= numbers.next_sequence_number:
                numbers.next_sequence_number = number + 1
            else:
                before = self.messages.pop(number)
            if enqueued_at > numbers.last_enqueued_at:
                numbers.last_enqueued_at = enqueued_at
            if before is None:
                self.stored_ever += 1
            else:
                self._left(before)  # compaction restated the message: the second record replaces the first
            self._place(message)
            if record.duplicate_key and self.duplicates is not None:
                self.duplicates.add(record.duplicate_key, enqueued_at)
        elif isinstance(record, MessageRemoved):
            removed = self.messages.pop(record.sequence_number)
            if removed is not None:
                self._left(removed)
        elif isinstance(record, DeliveryFailed):
            # The message goes back to its place if it had been taken.
            failed = self._counted(record)
            if failed is not None:
                self.unlocked(failed)
        elif isinstance(record, MessageDeferred):
            self._defer(self._counted(record))
        elif isinstance(record, MessageMoved):
            moved = self.messages.pop(record.sequence_number)
            if moved is not None:
                self._left(moved)
                self.context.queues[record.to_queue_id].take_moved(moved, record.extra)
        elif isinstance(record, DuplicateSeen):
            if self.duplicates is not None:
                self.duplicates.add(record.duplicate_key, record.at)
        elif isinstance(record, SequenceAdvanced):
            numbers = self.numbers
            numbers.next_sequence_number = max(numbers.next_sequence_number, record.next_sequence_number)
            numbers.last_enqueued_at = max(numbers.last_enqueued_at, record.enqueued_at)
        elif isinstance(record, SessionStateSet):
            self._set_session_state(record)
        else:
            assert_never(record)

    def _counted(self, record: DeliveryFailed | MessageDeferred) -> Message | None:
        message = self.messages.get(record.sequence_number)
        if message is not None:
            message.delivery_count = record.delivery_count
            if record.changed_properties:
                if message.extra is None:
                    message.extra = Extra()
                message.extra.changed_properties = record.changed_properties
        return message

    def _defer(self, message: Message | None) -> None:
        if message is None:
            return
        message.is_locked = False
        if message.state == ACTIVE:
            message.state = DEFERRED
            self.active_count -= 1
            self.deferred_count += 1
            if self.sessions is not None and message.session_id is not None:
                self.sessions.offer(self.sessions.get(message.session_id))

    def take_moved(self, original: Message, extra: Extra) -> None:
        """Take over a message that a MessageMoved brings: a fresh object, for stale indexes may still hold the old one."""
        message = Message(
            original.sequence_number,
            original.enqueued_at,
            original.expires_at,
            original.size,
            original.session_id,
        )
        message.location = original.location
        message.delivery_count = original.delivery_count
        message.extra = extra
        self.stored_ever += 1
        self._place(message)

    def _set_session_state(self, record: SessionStateSet) -> None:
        if self.sessions is None:
            return
        session = self.sessions.get(record.session_id)
        self.sessions.state_bytes += len(record.state or b"") - len(session.state or b"")
        session.state = record.state or None  # older logs hold empty states
        session.state_at = record.at
        self.sessions.forget_if_empty(session)

    # -- places --------------------------------------------------------------------------------

    def unlocked(self, message: Message) -> None:
        """A message's lock has ended without settlement: it is deliverable again at its old place."""
        if not message.is_locked:
            return  # it never left: recovery replays the count, and locks do not survive a restart
        message.is_locked = False
        if message.state != ACTIVE:
            return
        if self.sessions is not None and message.session_id is not None:
            session = self.sessions.get(message.session_id)
            session.ready.put_back(message)
            self.sessions.offer(session)
        else:
            self.ready.put_back(message)
        self.context.dirty[self.queue_id] = None

    def _place(self, message: Message) -> None:
        number = message.sequence_number
        self.messages.add(message)
        self.space.stored_bytes += message.size
        if self.session_order is not None and message.session_id is not None:
            self.session_order.add(message.session_id, number)
        if message.state == ACTIVE:
            self.active_count += 1
            if message.expires_at:
                self.watch_expiry(message)
            if self.sessions is None:
                self.ready.add(message)
            else:
                assert message.session_id is not None, "a queue with sessions took a message without one"
                session = self.sessions.get(message.session_id)
                session.message_count += 1
                session.ready.add(message)
                self.sessions.offer(session)
            self.context.dirty[self.queue_id] = None
            return
        if message.state == SCHEDULED:
            self.scheduled_count += 1
            assert message.extra is not None, "a scheduled message knows when it is due"
            heappush(self.due, (message.extra.scheduled_at, number))
            # While the broker's clock is ahead of the wall clock, that tick comes too early and asks for the right one (``due``).
            self.arm(message.extra.scheduled_at)
        else:
            self.deferred_count += 1
        if self.sessions is not None and message.session_id is not None:
            self.sessions.get(message.session_id).message_count += 1

    def _left(self, message: Message) -> None:
        """Account for a message that was just taken out of ``messages``."""
        self.space.stored_bytes -= message.size
        if message.state == ACTIVE:
            self.active_count -= 1
        elif message.state == SCHEDULED:
            self.scheduled_count -= 1
        else:
            self.deferred_count -= 1
        message.state = GONE
        message.is_locked = False
        if self.sessions is not None and message.session_id is not None:
            session = self.sessions.get(message.session_id)
            session.message_count -= 1
            session.ready.trim(session.message_count)
            self.sessions.offer(session)
            self.sessions.forget_if_empty(session)
        if self.session_order is not None and message.session_id is not None:
            self.session_order.remove(message.session_id, self.messages)
        self._removals += 1
        if self._removals >= _TIDY_EVERY:
            self._tidy()

    def _tidy(self) -> None:
        """Drop stale index entries once they outnumber the live ones, so memory follows what is stored (B62). With a million
        messages that is a part at a time, so that nobody waits (B63).
        """
        self._removals = 0
        limit = 2 * len(self.messages) + _TIDY_EVERY
        self.expiring = self._tidied(self.expiring, limit)
        self.due = self._tidied(self.due, limit)
        self.ready.trim(self.active_count)

    def _tidied(self, heap: list[tuple[int, int]], limit: int) -> list[tuple[int, int]]:
        """A heap of instants and numbers without the stale entries at its front; or without any, if there are too many elsewhere."""
        messages = self.messages
        if len(heap) <= limit:
            return heap
        for _ in range(_SWEPT_MAX):
            if not heap or heap[0][1] in messages:
                break
            heappop(heap)
        else:
            return heap  # they leave in the order of their instants, and the front keeps up
        if len(heap) > limit:
            heap = [entry for entry in heap if entry[1] in messages]
            heapify(heap)
        return heap

    def drop(self, count: int) -> bool:
        """Free so many messages, and as much of the indexes, of a place that is gone; whether there are more."""
        size = 0
        for _ in range(min(count, len(self.messages))):
            size += self.messages.pop_newest().size
        self.space.stored_bytes -= size
        # Every index is shortened with it: a list of a million entries takes a while to be freed too.
        for index in (self.expiring, self.due):
            del index[-count:]
        has_more = bool(self.messages or self.expiring or self.due)
        if self.ready.drop(count):
            has_more = True
        if self.sessions is not None and self.sessions.drop(count):
            has_more = True
        if self.session_order is not None and self.session_order.drop(count):
            has_more = True
        if self.duplicates is not None and self.duplicates.drop(count):
            has_more = True
        return has_more

    # -- timers --------------------------------------------------------------------------------

    def watch_expiry(self, message: Message) -> None:
        """Ask to be ticked when an active message expires."""
        if message.expires_at and not self.is_sub_queue:
            heappush(self.expiring, (message.expires_at, message.sequence_number))
            self.arm(message.expires_at)

    def arm(self, deadline: int) -> None:
        """Ask to be ticked at an instant, unless an earlier tick is already asked for."""
        if not self.armed_at or deadline < self.armed_at:
            self.armed_at = deadline
            self.context.timers.arm(deadline, self.queue_id)

    def messages_of(self, session_id: str | None, from_number: int) -> Iterator[Message]:
        """The messages of a session, or of everything, from a number on, in ascending order."""
        if session_id is None:
            yield from self.messages.values_from(from_number)
        elif self.session_order is not None:
            numbers = self.session_order.numbers(session_id)
            for index in range(bisect_left(numbers, from_number), len(numbers)):
                message = self.messages.get(numbers[index])
                if message is not None:
                    yield message
