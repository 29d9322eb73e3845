"""The way of every message through the namespace, row by row: what the audit log is written from.

Only gathers: bytes are kept as they are, and whoever writes the rows hashes them off the broker's thread. Rows are taken with the
batch that makes them true (decision 0010).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pairbus.amqp.message.scan import Scanned
    from pairbus.engine.queues.queue import Queue
    from pairbus.model.message import Message

SENT: Final = "sent"
DUPLICATE: Final = "duplicate"
"""Accepted and not stored: the entity has a message of this id already."""
COMPLETED: Final = "completed"
RECEIVED_AND_DELETED: Final = "received-and-deleted"
DEAD_LETTERED: Final = "dead-lettered"
FORWARDED: Final = "forwarded"
ENTITY_DELETED: Final = "entity-deleted"
"""With what was in it; one row without a message."""


class TrailRow:
    """One step of one message."""

    __slots__ = ("at", "blob", "detail", "kind", "path", "sequence_number")

    def __init__(self, kind: str, path: str, sequence_number: int, at: int, blob: bytes, detail: str) -> None:
        self.kind = kind
        self.path = path
        self.sequence_number = sequence_number
        self.at = at
        self.blob = blob
        """The stored message; empty where there is none."""
        self.detail = detail
        """The reason of a dead-lettering, the target of a forwarding."""


class Trail:
    __slots__ = ("_rows",)

    def __init__(self) -> None:
        self._rows: list[TrailRow] = []

    def sent(self, path: str, number: int, message: Scanned, now: int) -> None:
        """A message was accepted. A ping leaves no trace."""
        if not message.is_ping:
            self._rows.append(TrailRow(SENT if number else DUPLICATE, path, number, now, message.blob, ""))

    def ended(
        self, kind: str, queue: Queue, message: Message, blob: bytes, now: int, detail: str = ""
    ) -> None:
        """A message leaves a place for good, or for another place."""
        self._rows.append(TrailRow(kind, queue.path, message.sequence_number, now, blob, detail))

    def entity_deleted(self, path: str, now: int) -> None:
        """An entity went with everything in it."""
        self._rows.append(TrailRow(ENTITY_DELETED, path, 0, now, b"", ""))

    def take(self) -> list[TrailRow]:
        """The rows of the batch that is being sealed."""
        taken, self._rows = self._rows, []
        return taken
