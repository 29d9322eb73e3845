"""A backlog message that a drain holds. No clock, no I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pairbus.pairing.parking import Follows

RENEW_BEFORE_MS: Final = 30_000
"""Locks are renewed when this much of them is left; short ones at their half."""
LOCK_MS_DEFAULT: Final = 60_000


@dataclass(slots=True, eq=False)
class BacklogMessage:
    """One locked backlog message with its restored form."""

    queue: str
    sequence_number: int
    path: str
    payload: bytes
    message_id: str
    session_id: str | None
    partition_key: str | None
    locked_until_ms: int
    is_in_flight: bool = False
    token: object = None
    """Handle that the inbox needs to settle the message."""
    lock_ms: int = LOCK_MS_DEFAULT
    """How long the locks of its queue last."""
    enqueued_ms: int | None = None
    """When it was stored in the backlog."""
    attempt: int = 1
    """Which delivery from the backlog queue this is, counted from 1."""
    detour: tuple[str, int, int] | None = None
    """Factory, number and time of its parking, which no other message has. None: written by the retired SDK."""
    parked: bytes | None = None
    """The backlog message as received, when its time to live is limited and must be calculated again at each send."""
    restored_ms: int = 0
    """When its payload was restored, on the steady clock."""
    in_doubt_since_ms: int | None = None
    """There is an earlier send of it without an answer, made at this time on the steady clock (0: by an earlier
    run). The destination is asked before it is sent again. None: it was never sent."""
    is_ordered: bool = False
    """Whether it may not overtake an older message of its session."""
    follows: tuple[Follows, ...] = ()
    """What it waits for in other backlog queues; empty once that is done."""
    held_since_ms: int = 0
    """Since when it is held, on the steady clock."""

    @property
    def identity(self) -> tuple[str, int, int, str]:
        """Equal for two deliveries or copies of one parked message, and different for two messages.

        A message with a passport may have copies in several backlog queues. A message of the retired SDK has no
        passport: its place in its backlog queue identifies it, with the time it was stored there, because a queue that
        was deleted and created again counts its sequence numbers from the start.
        """
        if self.detour is not None:
            return (*self.detour, self.message_id)
        return (f"{self.queue}\n", self.sequence_number, self.enqueued_ms or 0, self.message_id)

    @property
    def key(self) -> tuple[str, int]:
        """Backlog queue and sequence number."""
        return self.queue, self.sequence_number

    @property
    def order_key(self) -> str | None:
        """What it may be kept in order by: its session, or its partition key."""
        return self.partition_key if self.session_id is None else self.session_id

    @property
    def session(self) -> tuple[str, str | None]:
        """Backlog queue, and session or partition key."""
        return self.queue, self.order_key

    @property
    def renew_at_ms(self) -> int:
        """When its lock should be renewed."""
        return self.locked_until_ms - min(RENEW_BEFORE_MS, self.lock_ms // 2)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """An instruction to move a message to the dead-letter queue of its backlog queue."""

    message: BacklogMessage
    reason: str
    description: str
