"""What metrics tell beside billed operations, and what the engine says it did by itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from pairbus.engine.ports import RecordLog
from pairbus.engine.queues.queue import EXPIRED, REASON_EXPIRED, REASON_MAX_DELIVERY_COUNT
from pairbus.engine.routing import REASON_HOPS
from pairbus.engine.topic import REASON_FILTER, REASON_NO_SESSION
from pairbus.gateway.telemetry.audit_rows import DEAD_LETTERED, FORWARDED
from pairbus.model.message import NEVER, Message

if TYPE_CHECKING:
    from collections.abc import Callable

    from pairbus.engine.queues.queue import Queue
    from pairbus.gateway.telemetry.audit_rows import AuditRows

OWN_REASONS: Final = frozenset(
    (REASON_EXPIRED, REASON_FILTER, REASON_HOPS, REASON_MAX_DELIVERY_COUNT, REASON_NO_SESSION)
)
OTHER_REASON: Final = "application"
"""Stands for every reason that is not the broker's own: receivers may write what they like, labels must stay few."""


@dataclass(slots=True, eq=False)
class Counters:
    """The engine's watcher, and the counts of settlements by outcome."""

    _log: RecordLog
    audit_rows: AuditRows | None = None
    on_idle_deleted: Callable[[int, str], None] | None = None
    """Gets kind and path of each entity that was deleted because it was idle."""
    completed: int = 0
    abandoned: int = 0
    released: int = 0
    deferred: int = 0
    rejected: int = 0
    locks_expired: int = 0
    forwards: int = 0
    dropped_by_cause: dict[str, int] = field(default_factory=lambda: {EXPIRED: 0})
    dead_lettered_by_reason: dict[str, int] = field(default_factory=dict)
    responses_by_status: dict[int, int] = field(default_factory=dict)
    _deleted: list[str] = field(default_factory=list)

    def answered(self, status: int) -> None:
        """A management request was answered over HTTP."""
        self.responses_by_status[status] = self.responses_by_status.get(status, 0) + 1

    def take_deleted(self) -> list[str]:
        """Paths of entities that went since last asked."""
        taken, self._deleted = self._deleted, []
        return taken

    # -- the engine's watcher ------------------------------------------------------------------

    def lock_expired(self, queue: Queue) -> None:  # noqa: ARG002 - one count for the namespace
        self.locks_expired += 1

    def dropped(self, queue: Queue, message: Message, why: str, now: int) -> None:
        self.dropped_by_cause[why] = self.dropped_by_cause.get(why, 0) + 1
        self._audit(why, queue, message, "", now)

    def dead_lettered(self, queue: Queue, message: Message, reason: str | None, now: int) -> None:
        label = reason if reason in OWN_REASONS else OTHER_REASON
        assert label is not None, reason
        self.dead_lettered_by_reason[label] = self.dead_lettered_by_reason.get(label, 0) + 1
        self._audit(DEAD_LETTERED, queue, message, reason or "", now)

    def forwarded(self, queue: Queue, message: Message, target: str, now: int) -> None:
        self.forwards += 1
        self._audit(FORWARDED, queue, message, target, now)

    def transferred(self, queue: Queue, number: int, blob: bytes, target: str, now: int) -> None:
        """A message that was sent via ``queue`` went on to its destination; it never lay here."""
        self.forwards += 1
        if self.audit_rows is not None:
            message = Message(number, now, NEVER, len(blob), None)
            self.audit_rows.ended(FORWARDED, queue, message, blob, now, target)

    def entity_deleted(self, path: str, now: int) -> None:
        self._deleted.extend((path, f"{path}/$DeadLetterQueue", f"{path}/$Transfer/$DeadLetterQueue"))
        if self.audit_rows is not None:
            self.audit_rows.entity_deleted(path, now)

    def idle_deleted(self, kind: int, path: str) -> None:
        if self.on_idle_deleted is not None:
            self.on_idle_deleted(kind, path)

    def _audit(self, kind: str, queue: Queue, message: Message, detail: str, now: int) -> None:
        if self.audit_rows is not None:
            blob = self._log.read(message.location, message.size)
            self.audit_rows.ended(kind, queue, message, blob, now, detail)
