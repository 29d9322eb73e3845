"""Sessions of one queue: who holds them, what waits in them, and the state applications keep there.

A session is *available* while nobody holds it and a message of it could be delivered. Available ones are
offered in the order in which they became so; one that is given up with messages left goes to the end, so
none starves (B54). Waiting receivers are served in the order they came.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import TYPE_CHECKING

from pairbus.engine.ready import Ready

if TYPE_CHECKING:
    from pairbus.engine.consumer import Consumer, Lock


class Session:
    """One session: its deliverable messages, its holder, its state."""

    __slots__ = (
        "holder",
        "locked_until",
        "locks",
        "message_count",
        "ready",
        "session_id",
        "state",
        "state_at",
    )

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        self.ready = Ready()
        self.message_count = 0
        """Messages of any state that carry this id."""
        self.holder: Consumer | None = None
        self.locked_until = 0
        self.locks: dict[int, Lock] = {}
        self.state: bytes | None = None
        self.state_at = 0

    @property
    def is_forgettable(self) -> bool:
        """Nothing would be lost by dropping this object."""
        return self.message_count == 0 and self.holder is None and self.state is None


class SessionTable:
    """All sessions of a queue."""

    __slots__ = ("_awake", "available", "held", "sessions", "state_bytes", "waiting")

    def __init__(self) -> None:
        self.sessions: dict[str, Session] = {}
        self.available: OrderedDict[str, Session] = OrderedDict()
        self.held: dict[str, Session] = {}
        self._awake: dict[str, Session] = {}
        """Held sessions whose messages or credit changed since deliveries were last made."""
        self.waiting: deque[Consumer] = deque()
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

    def hold(self, session: Session, consumer: Consumer, locked_until: int) -> None:
        """Give the session to a receiver."""
        assert session.holder is None, session.session_id
        session.holder = consumer
        session.locked_until = locked_until
        consumer.session = session
        self.available.pop(session.session_id, None)
        self.held[session.session_id] = session
        self._awake[session.session_id] = session

    def release(self, session: Session) -> None:
        """Take the session from its holder; its messages are the caller's business."""
        if session.holder is not None:
            session.holder.session = None
        session.holder = None
        session.locked_until = 0
        self.held.pop(session.session_id, None)
        self.offer(session)
        self.forget_if_empty(session)

    def forget_if_empty(self, session: Session) -> None:
        """Drop a session that has nothing left (B62)."""
        if session.is_forgettable:
            self._awake.pop(session.session_id, None)
            self.sessions.pop(session.session_id, None)
            self.available.pop(session.session_id, None)

    def next_deadline(self) -> int:
        """When the next session lock or wait ends; 0: never."""
        first = 0
        for session in self.held.values():
            if not first or session.locked_until < first:
                first = session.locked_until
        for consumer in self.waiting:
            if not first or consumer.accept_deadline < first:
                first = consumer.accept_deadline
        return first
