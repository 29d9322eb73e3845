"""What a syphon needs of the world: an inbox per backlog queue and an outlet to the primary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pairbus.drain.plan import BacklogMessage


@dataclass(frozen=True, slots=True)
class Delivery:
    """One backlog message, locked."""

    sequence_number: int
    payload: bytes | None
    """None when only a part of it is known: it goes back to be received again."""
    locked_until_ms: int
    enqueued_ms: int | None
    token: object


class Inbox(Protocol):
    """One backlog queue. Used by one task at a time, but for ``interrupt``."""

    queue: str

    async def receive(self, count: int, seconds: float) -> Sequence[Delivery]:
        """Up to ``count`` messages; waits up to ``seconds`` for the first, or until interrupted."""

    def interrupt(self) -> None:
        """Let a ``receive`` that waits return soon, with what it has."""

    async def complete(self, messages: Sequence[BacklogMessage]) -> Sequence[BacklogMessage]:
        """Remove messages. Returns those that are gone; of the others the lock is no longer valid, or nobody knows."""

    async def dead_letter(self, token: object, reason: str, description: str) -> None:
        """Move a message to the dead-letter queue."""

    async def release(self, tokens: Sequence[object]) -> None:
        """Let others have the messages."""

    async def renew(self, message: BacklogMessage) -> int:
        """Renew a lock; until when it holds now. Raises LockLost."""

    async def paths_behind(self, number: int, count: int) -> Sequence[str]:
        """The destinations of up to ``count`` messages after a sequence number, browsed and not locked."""

    async def is_empty(self, before_ms: int) -> bool:
        """Whether no message that was enqueued before an instant is left, locked ones included."""

    async def close(self) -> None:
        """Let go of the link."""


class Outlet(Protocol):
    """The way to the primary."""

    async def send(self, path: str, messages: Sequence[BacklogMessage]) -> None:
        """Send restored messages as one batch: all or none."""

    async def already_delivered(
        self, path: str, messages: Sequence[BacklogMessage], ids: frozenset[str]
    ) -> Sequence[BacklogMessage]:
        """Those of the messages that are known to be at their destination, which all of them share.

        Raises CannotAsk when the destination does not show its messages. ``ids`` are all message ids in doubt, so that
        one look at the destination can serve later questions too.
        """

    async def close(self) -> None:
        """Let go of the links."""


class LockLost(Exception):
    """The lock of a message is no longer held."""


class CannotAsk(Exception):
    """A destination does not show its messages: a topic, or a key without the right to listen."""
