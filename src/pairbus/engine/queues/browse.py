"""Reading a queue otherwise than in turn: peek, deferred by number, cancel, batch delete."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pairbus.errors import MessageNotFound
from pairbus.model.message import ACTIVE, DEFERRED, SCHEDULED, Message

if TYPE_CHECKING:
    from pairbus.engine.queues.consumer import Lock
    from pairbus.engine.queues.queue import Queue
    from pairbus.engine.sessions.table import Session

PEEK_COUNT_MAX: Final = 250
PEEK_BYTES_MAX: Final = 1_048_576
"""A peek answer stays below this, so that it fits in what clients accept; at least one message is given."""
NUMBERS_MAX: Final = 1_000
"""Sequence numbers in one request."""
DELETE_COUNT_MAX: Final = 4_000
CANCELLED: Final = "cancelled"
PURGED: Final = "purged"


def peek(queue: Queue, from_number: int, count: int, session_id: str | None) -> list[Message]:
    """Messages from a number on, in order, whatever their state. Changes nothing (B33)."""
    found: list[Message] = []
    size = 0
    for message in queue.messages_of(session_id, from_number):
        size += message.size
        if found and size > PEEK_BYTES_MAX:
            break
        found.append(message)
        if len(found) >= min(count, PEEK_COUNT_MAX):
            break
    return found


def _deferred(queue: Queue, numbers: list[int], session_id: str | None) -> list[Message]:
    found: list[Message] = []
    for number in numbers:
        message = queue.messages.get(number)
        if (
            message is None
            or message.state != DEFERRED
            or message.is_locked
            or message in found
            or (session_id is not None and message.session_id != session_id)
        ):
            raise MessageNotFound(
                "Failed to lock one or more specified messages. Either the message is already locked or does not "
                f"exist. Sequence number: {number}."
            )
        found.append(message)
    return found


def lock_deferred(queue: Queue, numbers: list[int], session: Session | None, now: int) -> list[Lock]:
    """Lock deferred messages by their numbers; all of them or none (B34)."""
    queue.check_receive()
    messages = _deferred(queue, numbers, None if session is None else session.session_id)
    queue.numbers.accessed_at = now
    return [queue.lock(message, session, now) for message in messages]


def check_deferred(queue: Queue, numbers: list[int], session: Session | None) -> list[Message]:
    """Deferred messages by their numbers, all of them or none, for receive and delete."""
    queue.check_receive()
    return _deferred(queue, numbers, None if session is None else session.session_id)


def cancel_scheduled(queue: Queue, numbers: list[int], now: int) -> None:
    """Take back scheduled messages; all of them or none (B46)."""
    found: list[Message] = []
    for number in numbers:
        message = queue.messages.get(number)
        if message is None or message.state != SCHEDULED or message in found:
            raise MessageNotFound(
                f"No scheduled message has the sequence number {number}: it was delivered or cancelled before, or there never was one."
            )
        found.append(message)
    queue.numbers.accessed_at = now
    for message in found:
        if queue.context.watcher is not None:
            queue.context.watcher.dropped(queue, message, CANCELLED, now)
        queue.remove(message)


def delete_batch(queue: Queue, count: int, enqueued_before: int, session_id: str | None, now: int) -> int:
    """Delete up to ``count`` active, unlocked messages enqueued before an instant, oldest first; how many."""
    queue.check_receive()
    queue.numbers.accessed_at = now
    doomed: list[Message] = []
    for message in queue.messages_of(session_id, 0):
        if message.state != ACTIVE or message.is_locked:
            continue
        if message.enqueued_at >= enqueued_before or len(doomed) >= min(count, DELETE_COUNT_MAX):
            break
        doomed.append(message)
    for message in doomed:
        if queue.context.watcher is not None:
            queue.context.watcher.dropped(queue, message, PURGED, now)
        queue.remove(message)
    return len(doomed)
