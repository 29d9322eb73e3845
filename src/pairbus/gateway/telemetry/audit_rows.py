"""The rows of the message audit: what happened to each message.

The broker only gathers them. The message audit takes them with the batch that makes them true, and hashes and writes them off the
broker's thread (decision 0010).
"""

from __future__ import annotations

from dataclasses import dataclass
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
REDRIVEN: Final = "redriven"
"""Of a send that put a dead letter back."""
ENTITY_DELETED: Final = "entity-deleted"
"""With what was in it; one row without a message."""
AUDIT_BEGUN: Final = "audit-begun"
"""The first row of a namespace: what happened before is not in its audit log."""
AUDIT_STOPPED: Final = "audit-stopped"
"""From here on the namespace is served without an audit."""
AUDIT_RESUMED: Final = "audit-resumed"
"""From here on it is audited again; ``detail`` says when it stopped."""


@dataclass(slots=True, eq=False)
class AuditRow:
    """One step of one message."""

    kind: str
    path: str
    sequence_number: int
    at: int
    blob: bytes
    """The stored message; empty where there is none."""
    detail: str
    """The reason of a dead-lettering, the target of a forwarding, REDRIVEN of a send."""


class AuditRows:
    __slots__ = ("_rows",)

    def __init__(self) -> None:
        self._rows: list[AuditRow] = []

    def sent(self, path: str, number: int, message: Scanned, now: int, detail: str = "") -> None:
        """A message was accepted. A ping leaves no trace."""
        if not message.is_ping:
            kind = SENT if number else DUPLICATE
            self._rows.append(AuditRow(kind, path, number, now, message.blob, detail))

    def ended(
        self, kind: str, queue: Queue, message: Message, blob: bytes, now: int, detail: str = ""
    ) -> None:
        """A message leaves a place for good, or for another place."""
        self._rows.append(AuditRow(kind, queue.path, message.sequence_number, now, blob, detail))

    def entity_deleted(self, path: str, now: int) -> None:
        """An entity went with everything in it."""
        self._rows.append(AuditRow(ENTITY_DELETED, path, 0, now, b"", ""))

    def audit_changed(self, kind: str, now: int, detail: str = "") -> None:
        """The audit itself begins or goes on; one row without a message and without a place."""
        self._rows.append(AuditRow(kind, "", 0, now, b"", detail))

    def take(self) -> list[AuditRow]:
        """The rows of the batch that is being sealed."""
        taken, self._rows = self._rows, []
        return taken
