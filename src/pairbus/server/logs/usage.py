"""The usage log: what the namespace did, by minute, entity and operation, as Parquet by hour in ``DATA/usage``.

Rule 1: rows are taken like output and reach the disk only after the commit that covers them, so that what a crash undid
        was not counted, and its repetition counts once.
Rule 2: a life of the broker writes one part per hour and always whole, so that nothing counts twice.
Rule 3: the event loop hands rows over and never waits; a thread adds them up and writes.

A crash loses the counts of the last seconds (``FLUSH_SECONDS``) and no more.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pairbus.server.committer import PendingOutput
from pairbus.server.logs.parquet import HOUR_MS, hour_name, remove_hours_before, remove_unfinished, write_part

if TYPE_CHECKING:
    from pairbus.gateway.telemetry.meter import UsageRow

logger = logging.getLogger(__name__)

FLUSH_SECONDS: Final = 10.0
RETENTION_DAYS: Final = 400
DAY_MS: Final = 86_400_000
HOURS_HELD_MAX: Final = 24
"""Hours kept in memory while the disk takes nothing; then the oldest are given up, with a line in the log."""
JOIN_SECONDS_MAX: Final = 30.0
TYPES: Final = {
    "bucket": "timestamp",
    "namespace": "text",
    "entity": "text",
    "operation": "text",
    "stage": "text",
    "count": "int64",
    "bytes": "int64",
    "units": "int64",
    "connection_peak": "int32",
}
"""The columns and their types; ``docs/reference/usage-log.md`` explains them."""

Key = tuple[int, str, str, str]


@dataclass(slots=True)
class Sums:
    """What is added up for one minute, entity and operation."""

    count: int = 0
    size: int = 0
    units: int = 0
    connection_peak: int = 0


class UsageBook:
    """The hours that are not finished yet, in memory. Bounded by entities × operations × minutes."""

    def __init__(self) -> None:
        self._hours: dict[int, dict[Key, Sums]] = {}
        self._changed: set[int] = set()

    def add(self, rows: list[UsageRow]) -> None:
        """Add rows to their hours."""
        for row in rows:
            hour = row.minute - row.minute % HOUR_MS
            sums = self._hours.setdefault(hour, {}).setdefault(
                (row.minute, row.path, row.operation, row.stage), Sums()
            )
            sums.count += row.count
            sums.size += row.size
            sums.units += row.units
            sums.connection_peak = max(sums.connection_peak, row.connection_peak)
            self._changed.add(hour)

    def changed(self) -> list[int]:
        """Hours whose file is behind."""
        return sorted(self._changed)

    def columns(self, hour: int, namespace: str) -> dict[str, list[object]]:
        """One hour as columns, in the order of time and names."""
        rows = sorted(self._hours[hour].items())
        return {
            "bucket": [key[0] for key, _ in rows],
            "namespace": [namespace] * len(rows),
            "entity": [key[1] for key, _ in rows],
            "operation": [key[2] for key, _ in rows],
            "stage": [key[3] for key, _ in rows],
            "count": [sums.count for _, sums in rows],
            "bytes": [sums.size for _, sums in rows],
            "units": [sums.units for _, sums in rows],
            "connection_peak": [sums.connection_peak for _, sums in rows],
        }

    def written(self, hour: int) -> None:
        """Its file is up to date; an hour that is over needs no memory any more."""
        self._changed.discard(hour)
        if hour != max(self._hours):
            del self._hours[hour]

    def give_up_oldest(self) -> int:
        """Forget hours beyond the bound; how many. Only when nothing can be written for a day."""
        doomed = sorted(self._hours)[:-HOURS_HELD_MAX]
        for hour in doomed:
            del self._hours[hour]
            self._changed.discard(hour)
        return len(doomed)


class UsageWriter:
    """The thread that keeps the files up to date.

    Args:
        boot_id: Names this life of the broker; no other has the same.
    """

    def __init__(
        self, directory: Path, namespace: str, boot_id: str, retention_days: int = RETENTION_DAYS
    ) -> None:
        self._directory = directory
        self._namespace = namespace
        self._part = f"part-{boot_id}.parquet"
        self._retention_ms = retention_days * DAY_MS
        self._book = UsageBook()
        self._waiting: queue.SimpleQueue[list[UsageRow] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"{namespace}-usage", daemon=True)
        self._newest_hour = 0

    def start(self) -> None:
        """Begin to wait for rows."""
        self._thread.start()

    def submit(self, rows: list[UsageRow]) -> None:
        """Hand rows over; they will be written soon."""
        self._waiting.put(rows)

    def stop(self) -> None:
        """Write what was handed over and end. Idempotent."""
        if self._thread.ident is not None and self._thread.is_alive():
            self._waiting.put(None)
            self._thread.join(JOIN_SECONDS_MAX)

    def _run(self) -> None:
        remove_unfinished(self._directory)
        is_open = True
        while is_open:
            rows = self._waiting.get()
            while rows is not None:
                self._book.add(rows)
                if self._waiting.empty():
                    break
                rows = self._waiting.get()
            is_open = rows is not None
            self._write()

    def _write(self) -> None:
        for hour in self._book.changed():
            try:
                columns = self._book.columns(hour, self._namespace)
                write_part(self._directory / hour_name(hour), self._part, TYPES, columns)
                self._book.written(hour)
                if hour > self._newest_hour:
                    self._newest_hour = hour
                    remove_hours_before(self._directory, hour - self._retention_ms)
            except Exception as error:  # noqa: BLE001 - counting must not end serving; it is tried again with the next rows
                logger.error(
                    "usage not written",
                    extra={"event": "usage.failed", "hour": hour_name(hour), "error": str(error)},
                )
                if lost := self._book.give_up_oldest():
                    logger.error("usage lost", extra={"event": "usage.lost", "hours": lost})


@dataclass(slots=True)
class _RowsToWrite:
    """Rows that wait for their commit as if they were output of a connection."""

    _writer: UsageWriter
    _rows: list[UsageRow]

    def write(self, chunks: list[bytes], closes: bool) -> None:  # noqa: ARG002 - the rows are all there is
        self._writer.submit(self._rows)


class UsageLog:
    """Takes rows from the meter when it is time, and has them written.

    Args:
        take: Gives the rows since the last call.
    """

    def __init__(
        self, take: Callable[[int], list[UsageRow]], clock: Callable[[], int], writer: UsageWriter
    ) -> None:
        self._take = take
        self._clock = clock
        self._writer = writer
        self._is_due = False

    def start(self) -> None:
        self._writer.start()

    def ask(self) -> None:
        """The next commit takes the rows along."""
        self._is_due = True

    def take_output(self) -> list[PendingOutput]:
        """What is to be written once the commit that is being made is durable."""
        if not self._is_due:
            return []
        self._is_due = False
        rows = self._take(self._clock())
        return [PendingOutput(_RowsToWrite(self._writer, rows), [], False)] if rows else []

    def finish(self) -> None:
        """Everything is durable and nothing more will come: write the rest."""
        rows = self._take(self._clock())
        if rows:
            self._writer.submit(rows)

    def stop(self) -> None:
        """End the thread; what was handed over is written."""
        self._writer.stop()
