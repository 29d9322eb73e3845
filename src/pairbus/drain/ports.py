"""What a drain needs from outside: an inbox per backlog queue, an outlet to the primary, an observer, a budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pairbus.drain.rules.message import BacklogMessage
from pairbus.drain.rules.order import Seen
from pairbus.sdk.failures import Failure


@dataclass(frozen=True, slots=True)
class Delivery:
    """One backlog message, locked."""

    sequence_number: int
    payload: bytes | None
    """None when only a part of it is known: it is released and received again."""
    locked_until_ms: int
    enqueued_ms: int | None
    token: object
    attempt: int = 1
    """Which delivery of the message this is, counted from 1."""


class Inbox(Protocol):
    """One backlog queue. Used by one task at a time, except for ``interrupt``."""

    queue: str

    async def receive(self, count: int, seconds: float) -> Sequence[Delivery]:
        """Up to ``count`` messages; waits up to ``seconds`` for the first, or until interrupted."""

    async def receive_deferred(self, numbers: Sequence[int]) -> Sequence[Delivery]:
        """Those of the deferred messages with these numbers that can be locked."""

    def interrupt(self) -> None:
        """Let a ``receive`` that waits return soon, with what it has."""

    async def complete(self, messages: Sequence[BacklogMessage]) -> Sequence[BacklogMessage]:
        """Remove messages. Returns those that are gone; of the others the lock is lost, or there was no answer."""

    async def cancel(self, message: BacklogMessage) -> bool:
        """Remove a message whose sender cancelled it. False: its lock is lost."""

    async def dead_letter(self, token: object, reason: str, description: str) -> None:
        """Move a message to the dead-letter queue. Raises LockLost."""

    async def release(self, tokens: Sequence[object]) -> None:
        """Unlock messages, so that any receiver can have them."""

    async def renew(self, messages: Sequence[BacklogMessage]) -> Sequence[int | None]:
        """Renew locks; returns until when each holds now, None for one that is lost."""

    async def browse(self, number: int, count: int, queue: str | None = None) -> Sequence[Seen]:
        """Up to ``count`` messages from a sequence number on, locked ones included; ``queue``: of another backlog queue."""

    async def close(self) -> None:
        """Close the link."""


class Outlet(Protocol):
    """The way to the primary."""

    async def send(self, path: str, messages: Sequence[BacklogMessage]) -> None:
        """Send restored messages as one batch: all or none.

        Raises NotSent from an error that came before anything had left.
        """

    async def already_delivered(
        self, path: str, messages: Sequence[BacklogMessage], ids: frozenset[str]
    ) -> Sequence[BacklogMessage]:
        """Those of the messages, all for one destination, that are known to be there.

        Raises CannotAsk when the destination does not show its messages. ``ids`` are all message ids in doubt, so that
        one look at the destination can serve later questions too.
        """

    async def close(self) -> None:
        """Close the links."""


class Observer:
    """Receives what a drain does as it happens. Every method does nothing unless overridden."""

    def completed(self, message: BacklogMessage, *, is_lock_lost: bool) -> None:
        """The primary has a message. With ``is_lock_lost`` it could not be completed and comes a second time."""

    def dead_lettered(self, message: BacklogMessage, reason: str, description: str) -> None:
        """A message was moved to the dead-letter queue of its backlog queue."""

    def released(self, message: BacklogMessage, reason: str) -> None:
        """A message stays in the backlog; ``reason`` is empty when nothing but time was missing."""

    def order_given_up(self, message: BacklogMessage, sentence: str) -> None:
        """A message goes on without the older one of its session that it waited for."""

    def waits(self, queue: str, sentence: str) -> None:
        """Everything that is held of a backlog queue waits for messages that other drains have. At most once a minute."""

    def found(self, queue: str) -> None:
        """A backlog queue has appeared while the drain ran, and is drained too."""

    def drained(self, queue: str) -> None:
        """Every message received from a backlog queue so far is delivered."""

    def unavailable(self, subject: str, sentence: str) -> None:
        """A destination or backlog queue began to fail."""

    def refused(self, queue: str, failure: Failure, sentence: str) -> None:
        """A backlog queue, or the key, does not allow to receive: nothing of it is drained until somebody changes that.

        ``failure``: ``UNAUTHORIZED``, ``DISABLED``, or ``INVALID`` when a topic has its name, it forwards or requires sessions.
        """

    def deleted(self, queue: str) -> None:
        """A backlog queue that the drain has read does not exist any more: what was still in it is gone."""

    def available(self, subject: str) -> None:
        """A destination or backlog queue works again."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Bounds of a drain that must end by itself: the share of one Spark task."""

    seconds: float
    """After so long the drain stops and releases what it has not sent."""
    messages: int
    """After so many the drain receives no more, and ends when what it can send is delivered."""
    idle_seconds: float
    """A queue that delivers nothing for so long is done."""


class LockLost(Exception):
    """The lock of a message is no longer held."""


class NotSent(Exception):
    """A send failed before anything had left; its cause says why. Nothing is in doubt."""


class CannotAsk(Exception):
    """A destination does not show its messages: a topic, or a key without the right to listen."""
