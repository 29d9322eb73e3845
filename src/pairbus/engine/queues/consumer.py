"""Who takes messages out: a consumer is one receiving link as the engine sees it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pairbus.engine.sessions.table import Session
    from pairbus.model.message import Message


@dataclass(slots=True, eq=False, repr=False)
class Consumer:
    """A receiver with credit. ``owner`` is the gateway's link; the engine never looks inside."""

    owner: object | None  # "object" alone has no form as a field that mypyc can compile
    receives_and_deletes: bool
    credit: int = 0
    is_suspended: bool = False
    """The socket's buffer is full: no deliveries until it has room (B63)."""
    is_attached: bool = False
    in_rotation: bool = False
    session: Session | None = None
    accept_deadline: int = 0
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
