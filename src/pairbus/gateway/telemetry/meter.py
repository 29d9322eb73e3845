"""Counts every billable operation where it happens: by entity, operation and minute, with bytes and 64 KB units (D6).

Rule 1: what was refused is not counted; what was accepted is, pings and duplicates too.
Rule 2: a message is one operation, also within a batch, and one more unit for every 64 KB begun.
Rule 3: an operation belongs to the minute in which it was asked for; the broker calls ``roll`` before it handles an instant.

A link keeps its tallies at hand, so that counting a message costs no search.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pairbus.amqp.message.layout import PREFIX_SIZE

if TYPE_CHECKING:
    from pairbus.model.message import Message

UNIT_BYTES: Final = 65_536
"""An operation is billed for every 64 KB begun."""
MINUTE_MS: Final = 60_000
IDLE_MINUTES_MAX: Final = 60
"""At most this many minutes without operations get a row for their connections, also after a leap of the clock."""

SEND: Final = "send"
PING: Final = "ping"
RECEIVE: Final = "receive"
EMPTY_RECEIVE: Final = "empty_receive"
SETTLE: Final = "settle"
PEEK: Final = "peek"
RENEW: Final = "renew"
SCHEDULE: Final = "schedule"
CANCEL: Final = "cancel"
DELETE: Final = "delete"
SESSION: Final = "session"
MANAGEMENT: Final = "management"
OPERATIONS: Final = (
    SEND, PING, RECEIVE, EMPTY_RECEIVE, SETTLE, PEEK, RENEW, SCHEDULE, CANCEL, DELETE, SESSION, MANAGEMENT
)  # fmt: skip
CONNECTIONS: Final = "connections"
"""Not an operation: the row of a minute that tells the most connections there were at once."""

PRIMARY: Final = "primary"
BACKLOG: Final = "backlog"
GONE: Final = "/gone"
"""The path under which the totals of deleted entities go on; no entity can have it."""
_BACKLOG_PATH: Final = re.compile(
    r"[^/]+/x-servicebus-transfer/[0-9]+(?:/\$Transfer)?(?:/\$DeadLetterQueue)?", re.IGNORECASE
)


def stage_of(path: str) -> str:
    """Whether an entity is a backlog queue of paired namespaces, or one of its dead-letter queues."""
    return BACKLOG if _BACKLOG_PATH.fullmatch(path) else PRIMARY


def billed_size(message: Message) -> int:
    """What a message is billed by: the sender's bytes without its header."""
    return message.size - PREFIX_SIZE


class Tally:
    """One place's count of one operation."""

    __slots__ = (
        "_changed",
        "count",
        "operation",
        "path",
        "size",
        "stage",
        "total",
        "total_size",
        "total_units",
        "units",
    )

    def __init__(self, path: str, operation: str, changed: list[Tally]) -> None:
        self.path = path
        self.operation = operation
        self.stage = stage_of(path)
        self._changed = changed
        self.count = 0
        """Since the meter last looked, as ``size`` and ``units`` are."""
        self.size = 0
        self.units = 0
        self.total = 0
        """Before that, since the start."""
        self.total_size = 0
        self.total_units = 0

    def add(self, size: int) -> None:
        """One operation of this many bytes."""
        if not self.count:
            self._changed.append(self)
        self.count += 1
        self.size += size
        self.units += 1 if size <= UNIT_BYTES else -(-size // UNIT_BYTES)

    def add_many(self, count: int) -> None:
        """Operations without bytes."""
        if count:
            self.add(0)
            self.count += count - 1
            self.units += count - 1


@dataclass(slots=True, eq=False)
class UsageRow:
    """What one place did of one operation in one minute."""

    minute: int
    """Its first millisecond."""
    path: str
    operation: str
    stage: str
    count: int
    size: int
    units: int
    connection_peak: int = 0


class Meter:
    """All tallies of a namespace, and the rows that wait to be written."""

    __slots__ = (
        "_changed",
        "_connections",
        "_deleted",
        "_peak",
        "_rows",
        "_tallies",
        "minute",
        "minute_ends",
        "own_stage",
    )

    def __init__(self) -> None:
        self._tallies: dict[tuple[str, str], Tally] = {}
        self._deleted: dict[tuple[str, str], Tally] = {}
        """What places that are gone had counted, by stage and operation."""
        self._changed: list[Tally] = []
        self._rows: list[UsageRow] = []
        self._connections = 0
        self._peak = 0
        self.minute = 0
        self.minute_ends = 0
        """Who lets in an instant at or after this calls ``roll`` first."""
        self.own_stage = PRIMARY
        """Of operations on the namespace as a whole: ``BACKLOG`` in a namespace that has backlog queues and nothing else."""

    def tally(self, path: str, operation: str) -> Tally:
        """The tally of one place and operation; keep it where it is used often."""
        tally = self._tallies.get((path, operation))
        if tally is None:
            tally = self._tallies[(path, operation)] = Tally(path, operation, self._changed)
        return tally

    def tallies(self) -> list[Tally]:
        """Every tally, for metrics; those of places that are gone are added up under ``GONE``."""
        return [*self._tallies.values(), *self._deleted.values()]

    def stage(self, tally: Tally) -> str:
        """What the operations of a tally belong to."""
        return tally.stage if tally.path else self.own_stage

    def peeked(self, path: str, messages: list[Message]) -> None:
        """One peek, however many messages it showed."""
        self.tally(path, PEEK).add(sum(billed_size(message) for message in messages))

    # -- connections ---------------------------------------------------------------------------

    def connected(self) -> None:
        """A client opened a connection."""
        self._connections += 1
        if self._connections > self._peak:
            self._peak = self._connections

    def disconnected(self) -> None:
        """A connection that had been opened is over."""
        self._connections -= 1

    # -- minutes -------------------------------------------------------------------------------

    def roll(self, now: int) -> None:
        """A new minute has begun: what was counted so far belongs to the one before."""
        minute = now - now % MINUTE_MS
        self._collect()
        first = max(self.minute + MINUTE_MS, minute - IDLE_MINUTES_MAX * MINUTE_MS) if self.minute else minute
        self._peak = self._connections
        for idle in range(first, minute, MINUTE_MS):
            self._tell_connections(idle)
        self.minute = minute
        self.minute_ends = minute + MINUTE_MS

    def take(self, now: int) -> list[UsageRow]:
        """Rows since last taken. The same minute, place and operation may come again: the sums count."""
        if now >= self.minute_ends:
            self.roll(now)
        self._collect()
        taken, self._rows = self._rows, []
        return taken

    def forget(self, paths: set[str]) -> None:
        """Drop the tallies of places that are gone and have said all they had to say. Their totals stay: they were billed."""
        for key in [key for key, tally in self._tallies.items() if key[0] in paths and not tally.count]:
            tally = self._tallies.pop(key)
            total = self._deleted.get((tally.stage, tally.operation))
            if total is None:
                total = self._deleted[(tally.stage, tally.operation)] = Tally(GONE, tally.operation, [])
                total.stage = tally.stage
            total.total += tally.total
            total.total_size += tally.total_size
            total.total_units += tally.total_units

    def _collect(self) -> None:
        rows, minute = self._rows, self.minute
        for tally in self._changed:
            rows.append(
                UsageRow(
                    minute,
                    tally.path,
                    tally.operation,
                    self.stage(tally),
                    tally.count,
                    tally.size,
                    tally.units,
                )
            )
            tally.total += tally.count
            tally.total_size += tally.size
            tally.total_units += tally.units
            tally.count = tally.size = tally.units = 0
        self._changed.clear()
        self._tell_connections(minute)

    def _tell_connections(self, minute: int) -> None:
        if self._peak:
            self._rows.append(UsageRow(minute, "", CONNECTIONS, self.own_stage, 0, 0, 0, self._peak))


class SendTallies:
    """Where accepted messages of one request or link are counted: under its operation, pings apart."""

    __slots__ = ("messages", "pings")

    def __init__(self, meter: Meter, path: str, operation: str) -> None:
        self.messages = meter.tally(path, operation)
        self.pings = meter.tally(path, PING)
