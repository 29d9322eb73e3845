"""What receivers do with sessions: accept, renew, give up, keep state, list (B22, B23, B51–B54)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pairbus.engine.context import DUE_BURST_MAX
from pairbus.engine.records import SessionStateSet
from pairbus.errors import ArgumentError, NotAllowed, QuotaExceeded, SessionCannotBeLocked, SessionLockLost

if TYPE_CHECKING:
    from pairbus.engine.queues.consumer import Consumer, Lock
    from pairbus.engine.queues.queue import Queue
    from pairbus.engine.sessions.table import Session, SessionTable

ACCEPT_NEXT_TIMEOUT_MS: Final = 65_000
"""How long "any session" waits when the client names no time."""
SESSION_ID_MAX: Final = 128
"""Characters in a session id, here as in a message."""
END_GRACE_MS: Final = 1_000
"""How much later a receiver is detached after its session lock has ended, if it only waits for messages and no other receiver loses by it."""
WAITING_MAX: Final = 10_000
"""Receivers waiting for a session of one entity."""
_TIMED_OUT: Final = (
    "The operation did not complete within the allotted timeout. The time allotted to this operation may have been "
    "a portion of a longer timeout."
)


def _table(queue: Queue) -> SessionTable:
    if queue.sessions is None:
        raise NotAllowed(
            "A sessionful message receiver cannot be created on an entity that does not require sessions. "
            f"Ensure RequiresSession is set to true when creating '{queue.path}'."
        )
    return queue.sessions


def accept(queue: Queue, consumer: Consumer, session_id: str | None, timeout_ms: int, now: int) -> bool:
    """Take a session: the named one, or the next available. False: the receiver waits for one to appear."""
    queue.check_receive()
    table = _table(queue)
    queue.numbers.accessed_at = now
    if session_id is not None:
        if len(session_id) > SESSION_ID_MAX:
            raise ArgumentError(
                f"The session id has {len(session_id)} characters: at most {SESSION_ID_MAX} are allowed."
            )
        session = table.get(session_id)
        if session.holder is not None and session.locked_until > now:
            raise SessionCannotBeLocked(session_id)
        if session.holder is not None:
            _lose(queue, session, now)
            session = table.get(session_id)
        _hold(queue, session, consumer, now)
        return True
    consumer.accept_deadline = now + timeout_ms
    if len(table.waiting) >= WAITING_MAX:
        raise NotAllowed(f"{WAITING_MAX} receivers already wait for a session of '{queue.path}'.")
    table.wait(consumer)
    serve_waiting(queue, now)
    if consumer.session is not None:
        return True
    queue.arm(consumer.accept_deadline)
    return False


def _hold(queue: Queue, session: Session, consumer: Consumer, now: int) -> None:
    assert queue.sessions is not None, queue.path
    consumer.is_attached = True
    queue.sessions.hold(session, consumer, now + queue.settings.lock_duration_ms)
    queue.arm(session.locked_until)
    queue.context.outbox.session_accepted(consumer)
    queue.context.dirty[queue.queue_id] = None


def serve_waiting(queue: Queue, now: int) -> None:
    """Give available sessions to receivers that wait, in the order they came."""
    table = queue.sessions
    assert table is not None, queue.path
    expired = 0
    while table.waiting and table.available:
        session = next(iter(table.available.values()))
        first = session.ready.first()
        if first is None:
            table.offer(session)
            continue
        if first.expires_at and first.expires_at <= now:
            if expired >= DUE_BURST_MAX:
                queue.context.dirty[queue.queue_id] = None
                return
            queue.expire(first, now)
            expired += 1
            continue
        consumer, _ = table.waiting.popitem(last=False)
        _hold(queue, session, consumer, now)


def held_session(queue: Queue, consumer: Consumer | None, session_id: str, now: int) -> Session:
    """The session if this receiver holds it (any holder when the caller is not known by its link)."""
    session = _table(queue).sessions.get(session_id)
    if session is None or session.holder is None or session.locked_until <= now:
        raise SessionLockLost
    if consumer is not None and session.holder is not consumer:
        raise SessionLockLost
    queue.numbers.accessed_at = now
    return session


def renew(queue: Queue, session: Session, now: int) -> int:
    """Extend the hold; when it ends now (B28)."""
    queue.numbers.accessed_at = now
    session.locked_until = max(session.locked_until, now + queue.settings.lock_duration_ms)
    return session.locked_until


def give_up(queue: Queue, consumer: Consumer, now: int) -> None:
    """The receiver's link ended: the session is free at once, its unsettled messages uncounted (B29)."""
    table = _table(queue)
    table.waiting.pop(consumer, None)
    session = consumer.session
    if session is None:
        return
    for lock in _release(table, session):
        queue.give_back(lock.message, now)
    queue.context.dirty[queue.queue_id] = None


def expire(queue: Queue, now: int) -> int:
    """End the holds and waits whose time has come; how many there were."""
    table = _table(queue)
    done = 0
    for _ in range(DUE_BURST_MAX):
        session = table.first_to_end()
        if session is None or session.ends_at > now:
            break
        done += 1
        if session.locked_until + END_GRACE_MS > now and _only_waits(session):
            session.grace_until = session.locked_until + END_GRACE_MS
        else:
            end_hold(queue, session, now)
    for _ in range(DUE_BURST_MAX):
        consumer = table.first_to_give_up()
        if consumer is None or consumer.accept_deadline > now:
            break
        done += 1
        del table.waiting[consumer]
        queue.numbers.accessed_at = now  # it was in use as long as somebody waited
        queue.context.outbox.detach(consumer, "com.microsoft:timeout", _TIMED_OUT)
    return done


def _only_waits(session: Session) -> bool:
    """Whether the holder waits for messages of which there are none, and holds none whose lock would have to end.

    Clients often wait as long as the lock lasts. Their wait began a moment after the lock did, and it should end in "no more
    messages". A receiver that deletes what it receives has nothing to lose by the end of the lock.
    """
    holder = session.holder
    return (
        holder is not None
        and holder.receives_and_deletes
        and holder.credit > 0
        and not session.locks
        and session.ready.first() is None
    )


def end_hold(queue: Queue, session: Session, now: int) -> None:
    """The lock of a held session has ended, and so does the hold."""
    if queue.context.watcher is not None:
        queue.context.watcher.lock_expired(queue)
    _lose(queue, session, now)


def lose_all(queue: Queue, now: int) -> None:
    """Every session of the queue is lost to its holder (a change of the entity's properties): no count rises."""
    for session in list(_table(queue).held.values()):
        lose(queue, session, now)


def lose(queue: Queue, session: Session, now: int) -> None:
    """A held session is lost to its holder: no count rises."""
    holder = session.holder
    assert holder is not None, session.session_id
    give_up(queue, holder, now)
    _tell_lost(queue, holder)


def _release(table: SessionTable, session: Session) -> list[Lock]:
    """Free a session. Returns the locks of its unsettled messages, which nobody holds any more."""
    locks = list(session.locks.values())
    session.locks.clear()
    for lock in locks:
        lock.is_held = False
    table.release(session)
    return locks


def _lose(queue: Queue, session: Session, now: int) -> None:
    """A session lock expired: its unsettled messages failed, its holder is detached (B29)."""
    table = _table(queue)
    holder = session.holder
    assert holder is not None, session.session_id
    queue.numbers.accessed_at = now  # it was in use as long as the session was held
    for lock in _release(table, session):
        queue.fail(lock.message, b"", now)
    queue.context.dirty[queue.queue_id] = None
    _tell_lost(queue, holder)


def _tell_lost(queue: Queue, holder: Consumer) -> None:
    holder.is_attached = False
    holder.credit = 0
    lost = SessionLockLost()
    queue.context.outbox.detach(holder, lost.condition, lost.description)


def set_state(queue: Queue, session: Session, state: bytes | None, now: int) -> None:
    """Keep what the application wants to remember of a session (B53); an empty state clears it, as none does.

    The Go client has no other way to clear it: it writes nil as an empty binary.
    """
    state = state or None
    limit = queue.settings.max_message_kb * 1024
    if state is not None and len(state) > limit:
        raise ArgumentError(f"The session state has {len(state)} bytes: at most {limit} are allowed.")
    if state is not None:
        _check_state_room(queue, len(state), len(session.state or b""))
    queue.numbers.accessed_at = now
    queue.record(SessionStateSet(queue.queue_id, session.session_id, state, now))


def _check_state_room(queue: Queue, size: int, before: int) -> None:
    """Refuse a state that the entity's quota or the disk has no room for; the reserve is for settlements (B12)."""
    settings = queue.settings
    total = queue.space.stored_bytes + _table(queue).state_bytes - before + size
    if size > before and total > settings.max_size_mb * 1_048_576:
        raise QuotaExceeded(
            f"The maximum entity size of {settings.max_size_mb} MB has been reached or exceeded for '{queue.path}'."
        )
    if not queue.context.log.has_room(size):
        raise queue.context.no_room(f"a session state of '{queue.path}'")


def list_sessions(queue: Queue, updated_since: int | None, skip: int, top: int) -> list[str]:
    """Sessions with messages or state; or those whose state was written after an instant."""
    found: list[str] = []
    for session in _table(queue).sessions.values():
        if len(found) >= skip + top:
            break
        if updated_since is None:
            if session.message_count or session.state is not None:
                found.append(session.session_id)
        elif session.state is not None and session.state_at > updated_since:
            found.append(session.session_id)
    return found[skip : skip + top]
