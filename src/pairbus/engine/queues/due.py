"""What falls due in one queue as time passes: locks, lives of messages, schedules, holds on sessions.

Rule 1: one tick does a bounded part of each and asks for the next at once, so that nobody waits long (B63).
Rule 2: what is stored again asks for room; a full disk is asked again after a while (B12).
Rule 3: a schedule is a date that a client gave, so the wall clock judges it; everything else is an instant of the broker's clock.
"""

from __future__ import annotations

from heapq import heappop
from typing import TYPE_CHECKING, Final

from pairbus.engine.context import DUE_BURST_MAX, FETCH_MESSAGES_MAX
from pairbus.engine.sessions import operations as session_ops
from pairbus.model.message import ACTIVE, SCHEDULED, Message

if TYPE_CHECKING:
    from pairbus.engine.queues.consumer import Lock
    from pairbus.engine.queues.queue import Queue

ROOM_RETRY_MS: Final = 1_000
"""How often a full disk is asked whether what moves by itself (schedules, forwarding) has room again."""
WALL_CLOCK_CHECK_MS: Final = 5_000
"""How often a queue with scheduled messages looks at the wall clock while the broker's clock is ahead of it: somebody may set it again."""


def tick(queue: Queue, now: int) -> int:
    """Do a part of what fell due; how many messages and sessions were looked at."""
    queue.armed_at = 0
    if queue.retry_at and queue.retry_at <= now:
        queue.retry_at = 0
        queue.context.dirty[queue.queue_id] = None
    done = _expire_locks(queue, now) + _expire_messages(queue, now) + _activate_due(queue, now)
    if queue.sessions is not None:
        done += session_ops.expire(queue, now)
    deadline = _first_deadline(queue, now)
    if deadline:
        queue.arm(deadline)
    return done


def ask_room_later(queue: Queue, now: int) -> None:
    """The disk has no room for what wants to move: try again after a while."""
    queue.retry_at = now + ROOM_RETRY_MS
    queue.arm(queue.retry_at)


def _expire_locks(queue: Queue, now: int) -> int:
    expired: list[Lock] = []
    for lock in queue.locks.values():
        if lock.locked_until > now or len(expired) >= DUE_BURST_MAX:
            break
        expired.append(lock)
    for lock in expired:
        if queue.context.watcher is not None:
            queue.context.watcher.lock_expired(queue)
        queue.end_lock(lock)
        lock.has_lapsed = True
        queue.fail(lock.message, b"", now)
    if expired:
        queue.numbers.accessed_at = now  # it was in use as long as messages were locked
    return len(expired)


def _expire_messages(queue: Queue, now: int) -> int:
    expiring = queue.expiring
    for done in range(DUE_BURST_MAX):
        if not expiring or expiring[0][0] > now:
            return done
        message = queue.messages.get(heappop(expiring)[1])
        # A locked message expires when its lock ends; a deferred one does not expire (B34).
        if message is not None and message.state == ACTIVE and not message.is_locked:
            queue.expire(message, now)
    return DUE_BURST_MAX


def _activate_due(queue: Queue, now: int) -> int:
    due = queue.due
    ahead = queue.context.read_ahead
    for done in range(DUE_BURST_MAX):
        if not due or queue.context.is_ahead(due[0][0], now) or queue.retry_at > now:
            return done
        message = queue.messages.get(due[0][1])
        if message is None or message.state != SCHEDULED:
            heappop(due)
        elif ahead is not None and not ahead.is_at_hand(message.location):
            ahead.fetch(_upcoming(queue), queue.queue_id)
            ask_room_later(queue, now)  # at the latest; ``Queue.fetched`` asks as soon as they are here
            return done
        elif queue.context.log.has_room(message.size):
            heappop(due)
            queue.numbers.accessed_at = now  # it was in use as long as messages were scheduled
            _activate(queue, message, now)
        else:
            ask_room_later(queue, now)  # it is stored again, and the reserve is for settlements
            return done
    return DUE_BURST_MAX


def _upcoming(queue: Queue) -> list[int]:
    """Where the messages lie that fall due next."""
    found = [queue.messages.get(number) for _, number in queue.due[:FETCH_MESSAGES_MAX]]
    return [message.location for message in found if message is not None and message.state == SCHEDULED]


def _activate(queue: Queue, message: Message, now: int) -> None:
    """A scheduled message arrives: it is stored again, under a new number (B24, B44)."""
    numbers = queue.numbers
    enqueued_at = max(now, numbers.last_enqueued_at)
    blob = queue.context.log.read(message.location, message.size)
    extra = message.extra
    assert extra is not None, message.sequence_number
    arrived = Message(
        numbers.next_sequence_number,
        enqueued_at,
        queue.expiry(extra.ttl_ms, now),
        message.size,
        message.session_id,
    )
    arrived.extra = extra.copy()
    queue.remove(message)
    queue.store(arrived, blob)


def _next_schedule(queue: Queue, now: int) -> int:
    """When the first scheduled message is due, as an instant of the broker's clock, or when to look again."""
    wall_clock, date = queue.context.wall_clock, queue.due[0][0]
    if not wall_clock.lead_ms():
        return date
    return min(wall_clock.instant_of(date), now + WALL_CLOCK_CHECK_MS)


def _first_deadline(queue: Queue, now: int) -> int:
    """The earliest instant at which ``tick`` has something to do; 0: none."""
    first = 0
    if queue.locks:
        first = next(iter(queue.locks.values())).locked_until
    if queue.expiring and (not first or queue.expiring[0][0] < first):
        first = queue.expiring[0][0]
    if queue.due:
        due = max(_next_schedule(queue, now), queue.retry_at)
        if not first or due < first:
            first = due
    if queue.retry_at and (not first or queue.retry_at < first):
        first = queue.retry_at
    if queue.sessions is not None:
        deadline = queue.sessions.next_deadline()
        if deadline and (not first or deadline < first):
            first = deadline
    return first
