"""Who takes messages out: a consumer is one receiving link as the engine sees it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections import deque

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
    watched: Lock | None = None
    """A delivery that is not settled yet, or one whose lock lapsed and since which nothing was heard of it."""
    trial: Lock | None = None
    """The last delivery while it was silent."""

    def watch(self, lock: Lock) -> None:
        """A delivery under a lock begins. One receiver holds a session, so nothing depends on it there."""
        if lock.session is not None:
            return
        watched = self.watched
        if watched is None or not (watched.is_held or watched.has_lapsed):
            self.watched = lock
        else:
            self.trial = lock

    def heard(self) -> None:
        """It has asked for messages or settled some."""
        self.watched = self.trial = None

    def is_silent(self) -> bool:
        """Whether a lock of it has lapsed and nothing was heard of it since."""
        return self.watched is not None and self.watched.has_lapsed

    def is_on_trial(self) -> bool:
        """Whether it is silent and has a message."""
        return self.is_silent() and self.trial is not None and self.trial.is_held


class Lock:
    """One receiver's hold on one message, from delivery to settlement or expiry (B25)."""

    __slots__ = ("has_lapsed", "is_held", "locked_until", "message", "session", "token")

    def __init__(self, token: int, message: Message, locked_until: int, session: Session | None) -> None:
        self.token = token
        self.message = message
        self.locked_until = locked_until
        """For a message of a held session the session's own end counts instead."""
        self.session = session
        self.is_held = True
        self.has_lapsed = False
        """Whether its time passed before the message was settled."""


def prefer_another(rotation: deque[Consumer]) -> bool:
    """Bring the receiver to the front that shall take the next message, when the one there is silent. False: all wait.

    A dead connection looks like an idle one and keeps its credit. Without this it would get every second message, over and over. And
    where others take one message at a time, it would get all that come back when its locks lapse, until they are dead-lettered.
    """
    trial = -1
    for place, consumer in enumerate(rotation):
        if consumer.credit <= 0 or consumer.is_suspended or not consumer.is_attached:
            continue
        if not consumer.is_silent():
            rotation.rotate(-place)
            return True
        if trial < 0 and not consumer.is_on_trial():
            trial = place
    if trial >= 0:
        rotation.rotate(-trial)
    return trial >= 0
