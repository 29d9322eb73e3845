"""Who takes messages out: a consumer is one receiving link as the engine sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pairbus.engine.sessions.table import Session
    from pairbus.model.message import Message


class Consumer:
    """A receiver with credit. ``owner`` is the gateway's link; the engine never looks inside."""

    __slots__ = (
        "accept_deadline",
        "credit",
        "in_rotation",
        "is_attached",
        "is_suspended",
        "owner",
        "receives_and_deletes",
        "requested_session",
        "session",
    )

    def __init__(self, owner: object, receives_and_deletes: bool) -> None:
        self.owner = owner
        self.receives_and_deletes = receives_and_deletes
        self.credit = 0
        self.is_suspended = False
        """The socket's buffer is full: no deliveries until it has room (B63)."""
        self.is_attached = False
        self.in_rotation = False
        self.session: Session | None = None
        self.requested_session: str | None = None
        self.accept_deadline = 0
        """While it waits for a session: when waiting ends."""


class Lock:
    """One receiver's hold on one message, from delivery to settlement or expiry (B25)."""

    __slots__ = ("is_held", "locked_until", "message", "session", "token")

    def __init__(self, token: int, message: Message, locked_until: int, session: Session | None) -> None:
        self.token = token
        self.message = message
        self.locked_until = locked_until
        """For a message of a held session the session's own end counts instead."""
        self.session = session
        self.is_held = True
