"""Sessions of one queue: who holds them, what waits in them, and the state applications keep there.

A session is *available* while nobody holds it and a message of it could be delivered. Available ones are
offered in the order in which they became so; one that is given up with messages left goes to the end, so
none starves (B54). Waiting receivers are served in the order they came.

When holds and waits end is kept in two heaps whose entries may be out of date: a renewed hold is put back where it belongs when
its old end comes up, so renewing costs nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, heapreplace
from typing import TYPE_CHECKING, Final

from pairbus.engine.queues.ready import Ready

if TYPE_CHECKING:
    from pairbus.engine.queues.consumer import Consumer, Lock

_STALE_SLACK: Final = 256
"""Ends that may be out of date, beyond as many as are not, before they are swept."""


@dataclass(slots=True, eq=False, repr=False)
class Session:
    """One session: its deliverable messages, its holder, its state."""

    session_id: str
    ready: Ready = field(default_factory=Ready)
    message_count: int = 0
    """Messages of any state that carry this id."""
    holder: Consumer | None = None
    locked_until: int = 0
    grace_until: int = 0
    """The lock has ended and its holder will be detached by then; 0: it has not ended, or is noticed at once."""
    locks: dict[int, Lock] = field(default_factory=dict)
    state: bytes | None = None
    state_at: int = 0
    watched_until: int = 0
    """The instant under which the table has it among the ends of holds; 0: it has not."""

    @property
    def ends_at(self) -> int:
        """When the hold ends: with its lock, or with the grace after it."""
        return self.grace_until or self.locked_until

    @property
    def is_forgettable(self) -> bool:
        """Nothing would be lost by dropping this object."""
        return self.message_count == 0 and self.holder is None and self.state is None


class SessionTable:
    __slots__ = (
        "_awake",
        "_hold_ends",
        "_pushes",
        "_wait_ends",
        "available",
        "held",
        "sessions",
        "state_bytes",
        "waiting",
    )

    def __init__(self) -> None:
        self.sessions: dict[str, Session] = {}
        self.available: OrderedDict[str, Session] = OrderedDict()
        self.held: dict[str, Session] = {}
        self._awake: dict[str, Session] = {}
        """Held sessions whose messages or credit changed since deliveries were last made."""
        self.waiting: OrderedDict[Consumer, None] = OrderedDict()
        """In the order they came; not a deque, for any of them may leave."""
        self._hold_ends: list[tuple[int, int, Session]] = []
        self._wait_ends: list[tuple[int, int, Consumer]] = []
        self._pushes = 0
        self.state_bytes = 0
        """What the states of all sessions take: they stay in memory."""

    def get(self, session_id: str) -> Session:
        """The session of this id, made when it is new."""
        session = self.sessions.get(session_id)
        if session is None:
            session = self.sessions[session_id] = Session(session_id)
        return session

    def wake(self, session: Session) -> None:
        """Look at this session when deliveries are made next."""
        self._awake[session.session_id] = session

    def take_awake(self) -> list[Session]:
        """The sessions to look at, each once."""
        awake = list(self._awake.values())
        self._awake.clear()
        return awake

    def offer(self, session: Session) -> None:
        """Note whether the session can be accepted now, or that its holder may get something."""
        if session.holder is not None:
            self._awake[session.session_id] = session
        elif session.ready.first() is not None:
            self.available.setdefault(session.session_id, session)
            return
        self.available.pop(session.session_id, None)

    def first_available(self) -> Ready | None:
        """What is ready in a session that nobody holds; None when nothing is."""
        while self.available:
            session = next(iter(self.available.values()))
            if session.ready.first() is not None:
                return session.ready
            self.offer(session)
        return None

    def hold(self, session: Session, consumer: Consumer, locked_until: int) -> None:
        """Give the session to a receiver."""
        assert session.holder is None, session.session_id
        session.holder = consumer
        session.locked_until = locked_until
        consumer.session = session
        self.available.pop(session.session_id, None)
        self.held[session.session_id] = session
        self._awake[session.session_id] = session
        if not session.watched_until or locked_until < session.watched_until:
            session.watched_until = locked_until
            self._pushes += 1
            heappush(self._hold_ends, (locked_until, self._pushes, session))
            if len(self._hold_ends) > 2 * len(self.held) + _STALE_SLACK:
                self._sweep_holds()

    def release(self, session: Session) -> None:
        """Take the session from its holder; its messages are the caller's business."""
        if session.holder is not None:
            session.holder.session = None
        session.holder = None
        session.locked_until = session.grace_until = 0
        self.held.pop(session.session_id, None)
        self.offer(session)
        self.forget_if_empty(session)

    def forget_if_empty(self, session: Session) -> None:
        """Drop a session that has nothing left (B62)."""
        if session.is_forgettable:
            self._awake.pop(session.session_id, None)
            self.sessions.pop(session.session_id, None)
            self.available.pop(session.session_id, None)

    def wait(self, consumer: Consumer) -> None:
        """A receiver waits for a session until its ``accept_deadline``."""
        self.waiting[consumer] = None
        self._pushes += 1
        heappush(self._wait_ends, (consumer.accept_deadline, self._pushes, consumer))
        if len(self._wait_ends) > 2 * len(self.waiting) + _STALE_SLACK:
            self._wait_ends = [entry for entry in self._wait_ends if entry[2] in self.waiting]
            heapify(self._wait_ends)

    def first_to_end(self) -> Session | None:
        """The held session whose hold ends before all others."""
        ends = self._hold_ends
        while ends:
            until, _, session = ends[0]
            if until != session.watched_until:
                heappop(ends)  # it is watched under an earlier instant
            elif session.holder is None:
                heappop(ends)
                session.watched_until = 0
            elif session.ends_at > until:  # renewed, held again, or within its grace
                session.watched_until = session.ends_at
                self._pushes += 1
                heapreplace(ends, (session.ends_at, self._pushes, session))
            else:
                return session
        return None

    def first_to_give_up(self) -> Consumer | None:
        """The waiting receiver whose wait ends before all others."""
        ends = self._wait_ends
        while ends:
            until, _, consumer = ends[0]
            if consumer in self.waiting and consumer.accept_deadline == until:
                return consumer
            heappop(ends)
        return None

    def next_deadline(self) -> int:
        """When the next session lock or wait ends; 0: never."""
        session, consumer = self.first_to_end(), self.first_to_give_up()
        first = 0 if session is None else session.ends_at
        if consumer is not None and (not first or consumer.accept_deadline < first):
            first = consumer.accept_deadline
        return first

    def drop(self, count: int) -> bool:
        """Free so many sessions of a place that is gone; whether there are more. Held ones end with their receivers."""
        for _ in range(min(count, len(self.sessions))):
            session_id, _ = self.sessions.popitem()
            self.available.pop(session_id, None)
            self._awake.pop(session_id, None)
        return bool(self.sessions)

    def _sweep_holds(self) -> None:
        """Keep the ends of those that are held, and no other (B62)."""
        for _, _, session in self._hold_ends:
            session.watched_until = 0
        self._hold_ends = []
        for session in self.held.values():
            session.watched_until = session.ends_at
            self._pushes += 1
            self._hold_ends.append((session.ends_at, self._pushes, session))
        heapify(self._hold_ends)
