"""Management operations on messages: renew, peek, schedule, cancel, deferred, settle, delete."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pairbus.amqp.message.layout import without_body
from pairbus.amqp.types import Array, Int, Long, Timestamp, Uuid
from pairbus.engine.queues import browse
from pairbus.errors import ArgumentError, MessageLockLost, SessionLockLost
from pairbus.gateway import transactions
from pairbus.gateway.accept import accept, read
from pairbus.gateway.management.request import NoContent, Request
from pairbus.gateway.outgoing import encode_delivery
from pairbus.gateway.settlement import settlement_of_status
from pairbus.gateway.telemetry import meter
from pairbus.gateway.telemetry.audit_rows import RECEIVED_AND_DELETED

if TYPE_CHECKING:
    from pairbus.engine.queues.consumer import Lock
    from pairbus.engine.queues.queue import Queue
    from pairbus.engine.sessions.table import Session
    from pairbus.model.message import Message

INT_MAX: Final = 2_147_483_647
LONG_MIN: Final = -(1 << 63)
LONG_MAX: Final = (1 << 63) - 1
RECEIVE_BYTES_MAX: Final = 33_554_432
"""Bytes of deferred messages in one answer."""
SCHEDULE_MAX: Final = 4_500
"""Messages in one schedule request."""


def _lock(request: Request, token: bytes) -> Lock:
    """The lock behind a token; it must be held now (B27)."""
    session_id = request.optional_text("session-id")
    lock = request.queue.find_lock(request.connection.broker.deliveries.token_number(token), session_id)
    if lock is None:
        raise SessionLockLost if request.queue.sessions is not None else MessageLockLost(token.hex())
    request.queue.check_held(lock, request.now)
    return lock


def _session(request: Request) -> Session | None:
    """The session a request is about; its asker must hold it."""
    session_id = request.optional_text("session-id")
    if session_id is None or request.queue.sessions is None:
        return None
    return request.session(session_id)


def renew_locks(request: Request) -> dict[str, object]:
    """Extend locks; all of them or none."""
    locks = [_lock(request, token) for token in request.tokens()]
    date_of = request.connection.broker.date_of
    expirations = [Timestamp(date_of(request.queue.renew(lock, request.now))) for lock in locks]
    request.tally(meter.RENEW).add_many(len(locks))
    return {"expirations": Array(expirations)}


def peek(request: Request) -> dict[str, object]:
    """Look at messages without taking them."""
    from_number = request.number("from-sequence-number", LONG_MIN, LONG_MAX)
    count = request.number("message-count", 1, INT_MAX)
    found = browse.peek(request.queue, from_number, count, request.optional_text("session-id"))
    omits_body = request.optional_flag("omit-message-body")
    request.need(found)
    request.connection.broker.meter.peeked(request.queue.path, found)
    if not found:
        raise NoContent("com.microsoft:message-not-found", "There is no message to peek.")
    if omits_body:
        return {"messages": [{"message": _without_body(request, message)} for message in found]}
    return {"messages": [{"message": _encoded(request, message, 0, b"")} for message in found]}


def _without_body(request: Request, message: Message) -> bytes:
    blob = without_body(request.connection.broker.log.read(message.location, message.size))
    return b"".join(encode_delivery(request.queue, message, blob, 0, b""))


def _encoded(request: Request, message: Message, until: int, token: bytes) -> bytes:
    blob = request.connection.broker.log.read(message.location, message.size)
    return b"".join(encode_delivery(request.queue, message, blob, until, token))


def schedule(request: Request) -> dict[str, object]:
    """Store messages that arrive later; all of them or none."""
    entries = request.value("messages")
    if not isinstance(entries, list) or not 0 < len(entries) <= SCHEDULE_MAX:
        raise ArgumentError(f"'messages' needs 1 to {SCHEDULE_MAX} messages.")
    broker = request.connection.broker
    if broker.faults.is_on:
        broker.faults.check_send(request.entity.path, request.now)
    wants_id = request.entity.main.duplicates is not None
    scanned = []
    for entry in entries:
        encoded = entry.get("message") if isinstance(entry, dict) else None
        if not isinstance(encoded, bytes):
            raise ArgumentError("An entry of 'messages' has no binary 'message'.")
        scanned.append(read(broker, encoded, wants_id))
    tallies = meter.SendTallies(broker.meter, request.entity.path, meter.SCHEDULE)
    if request.txn_id is not None:
        return transactions.add_schedule(request, request.txn_id, scanned, tallies)
    numbers = accept(broker, request.entity, scanned, tallies, request.now)
    return {"sequence-numbers": Array([Long(number) for number in numbers])}


def cancel(request: Request) -> dict[str, object]:
    numbers = request.numbers("sequence-numbers")
    browse.cancel_scheduled(request.entity.main, numbers, request.now)
    request.tally(meter.CANCEL).add_many(len(numbers))
    return {}


def receive_deferred(request: Request) -> dict[str, object]:
    numbers = request.numbers("sequence-numbers")
    mode = request.number("receiver-settle-mode", 0, 1)
    session = _session(request)
    if request.queue.sessions is not None and session is None:
        raise SessionLockLost
    _check_answer_size(request.queue, numbers)
    if request.queue.context.read_ahead is not None:
        request.need(browse.check_deferred(request.queue, numbers, session))
    queue, broker, received = request.queue, request.connection.broker, request.tally(meter.RECEIVE)
    if mode == 0:
        messages = browse.check_deferred(queue, numbers, session)
        entries: list[dict[str, object]] = []
        for message in messages:
            entries.append({"lock-token": Uuid(bytes(16)), "message": _encoded(request, message, 0, b"")})
            received.add(meter.billed_size(message))
            if broker.audit_rows is not None:
                blob = broker.log.read(message.location, message.size)
                broker.audit_rows.ended(RECEIVED_AND_DELETED, queue, message, blob, request.now)
            queue.remove(message)
        return {"messages": entries}
    locked: list[dict[str, object]] = []
    for lock in browse.lock_deferred(queue, numbers, session, request.now):
        token = broker.deliveries.lock_token(lock)
        until = broker.date_of(lock.locked_until if session is None else session.locked_until)
        locked.append({"lock-token": Uuid(token), "message": _encoded(request, lock.message, until, token)})
        received.add(meter.billed_size(lock.message))
    return {"messages": locked}


def _check_answer_size(queue: Queue, numbers: list[int]) -> None:
    """Refuse to put more into one answer than memory should hold; one message always fits (B62)."""
    found = [message.size for number in numbers if (message := queue.messages.get(number)) is not None]
    if len(found) > 1 and sum(found) > RECEIVE_BYTES_MAX:
        raise ArgumentError(
            f"The {len(found)} messages have {sum(found)} bytes together: at most {RECEIVE_BYTES_MAX} are given in one answer."
        )


def update_disposition(request: Request) -> dict[str, object]:
    """Settle away from the link; all tokens or none."""
    settlement = settlement_of_status(
        request.text("disposition-status"),
        request.value("properties-to-modify"),
        request.optional_text("deadletter-reason") or None,
        request.optional_text("deadletter-description") or None,
    )
    locks = [_lock(request, token) for token in dict.fromkeys(request.tokens())]
    if request.txn_id is not None:
        transactions.add_dispositions(request, request.txn_id, locks, settlement)
        return {}
    checked, size = [], 0
    for lock in locks:
        changed = settlement.check(request.queue, lock, request.now, size)
        size += settlement.carried_bytes(changed)
        checked.append((lock, changed))
    for lock, changed in checked:
        settlement.apply(request.connection.broker, request.queue, lock, changed, request.now)
    request.tally(meter.SETTLE).add_many(len(locks))
    return {}


def delete_batch(request: Request) -> dict[str, object]:
    """Delete old messages without receiving them."""
    count = request.number("message-count", 1, INT_MAX)
    before = request.instant("enqueued-time-utc")
    deleted = browse.delete_batch(
        request.queue, count, before, request.optional_text("session-id"), request.now
    )
    request.tally(meter.DELETE).add(0)
    if not deleted:
        raise NoContent("com.microsoft:message-not-found", "There is no message to delete.")
    return {"message-count": Int(deleted)}
