"""The audit log of messages (``--audit``): one row per accepted send and per end of a message, true over any crash.

Rule 1: the rows of a batch are synced to a journal *before* the store commits the batch, under a number that the batch itself
        carries as a record. After a crash the store says which number came last; a block beyond it never happened and is cut off.
        A journal is closed only after the commit of its last batch: two blocks beyond, or a closed one, show that the store lost
        commits (``journal_ahead``).
Rule 2: so the journal holds exactly the blocks whose batches are durable: no row is missing, none is false, none comes twice.
Rule 3: a full or old journal is turned into Parquet by a thread, under a name of its own, so doing it again changes nothing.
Rule 4: space is reserved for the rows of settlements; when it has to be touched, sends are refused.

See ``docs/decisions/0010-usage-and-audit.md`` and ``0011-audit-on-a-full-disk.md``. The files are written by
``message_journal``, and mended at a start by ``journal_mending``.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pairbus.engine.records import AuditMarked, Record
from pairbus.errors import StoreFailed, UsageError
from pairbus.server.files import make_directory
from pairbus.server.logs.audit_reserve import RESERVE_BYTES, AuditReserve
from pairbus.server.logs.journal_ahead import catch_up
from pairbus.server.logs.journal_mending import Known, mend_journals, newest_part
from pairbus.server.logs.message_journal import AuditJournal, convert
from pairbus.server.logs.parquet import HOUR_MS, remove_hours_before, remove_unfinished
from pairbus.storage.ports import Store

if TYPE_CHECKING:
    from pairbus.gateway.telemetry.audit_rows import AuditRow, AuditRows
    from pairbus.storage.ports import Batch, ReadAhead, StoreStatistics

logger = logging.getLogger(__name__)

JOURNAL_BYTES_MAX: Final = 64 << 20
ROTATE_SECONDS: Final = 10.0
"""How often an idle journal is looked at, whether its hour is over, and what could not be converted is tried again."""
REVIEW_SECONDS: Final = 1.0
"""How often the reserve is looked at."""
RETENTION_DAYS: Final = 90
DAY_MS: Final = 86_400_000
JOIN_SECONDS_MAX: Final = 60.0


@dataclass(slots=True)
class AuditedBatch:
    """A batch of the store with the rows that it makes true."""

    inner: Batch
    number: int
    rows: list[AuditRow]


class MessageAudit:
    """Journals and their conversion. ``write`` belongs to the committer's thread, the rest to its own.

    Args:
        known: What the store knows of the audit log.
        boot_id: Names this life of the broker in file names.
        retention_days: How long Parquet files are kept.
        message_count: How many messages are stored, asked by the audit's thread: the reserve has room for their rows.
    """

    def __init__(
        self,
        directory: Path,
        namespace: str,
        known: Known,
        boot_id: str,
        clock: Callable[[], int],
        journal_bytes_max: int = JOURNAL_BYTES_MAX,
        *,
        retention_days: int = RETENTION_DAYS,
        reserve_bytes: int = RESERVE_BYTES,
        message_count: Callable[[], int] | None = None,
    ) -> None:
        self._directory = directory
        self._namespace = namespace
        self._boot_id = boot_id
        self._clock = clock
        self._bytes_max = journal_bytes_max
        self._retention_ms = retention_days * DAY_MS
        self._cleaned_hour = 0
        self._unconverted: list[Path] = []
        self._journal: AuditJournal | None = None
        self.lock = threading.Lock()
        """Held from the write of a block to the end of its commit: only then may its journal be closed."""
        self._closed: queue.SimpleQueue[Path | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"{namespace}-audit", daemon=True)
        make_directory(directory)
        remove_unfinished(directory)
        self._reserve = AuditReserve(directory, reserve_bytes, message_count)
        known = catch_up(directory, namespace, known, boot_id, clock())
        self.number = known.number
        """What the store must know before the first batch; more than it did if it has lost commits."""
        for file in mend_journals(directory, namespace, known, boot_id, clock()):
            self._closed.put(file)

    @property
    def has_room(self) -> bool:
        """Whether rows of sends may be written; those of settlements have a reserve."""
        return not self._reserve.is_short

    def start(self) -> None:
        """Begin to turn journals into Parquet, those of earlier lives first."""
        self._thread.start()

    def write(self, number: int, rows: list[AuditRow]) -> None:
        """Make the block of one batch durable. The caller holds ``lock``. Raises OSError."""
        journal = self._journal
        if journal is not None and journal.should_end(rows[-1].at, self._bytes_max):
            self._end_journal()
            journal = None
        if journal is None:
            journal = self._journal = AuditJournal(
                self._directory, self._namespace, number, self._boot_id, self._reserve
            )
        journal.write(number, rows)

    def abandon(self) -> None:
        """A commit failed: its block may count or not, as after a crash. The caller holds ``lock``."""
        if self._journal is not None:
            self._journal.abandon()
            self._journal = None

    def finish(self) -> None:
        """Nothing more will be written: have the last journal converted too."""
        with self.lock:
            self._end_journal()

    def stop(self) -> None:
        """End the thread after the journals that wait for it. Idempotent."""
        if self._thread.ident is not None and self._thread.is_alive():
            self._closed.put(None)
            self._thread.join(JOIN_SECONDS_MAX)
        if self._journal is not None:
            self._journal.close()
            self._journal = None
        self._reserve.close()

    def _end_journal(self) -> None:
        if self._journal is not None:
            self._journal.close()
            self._closed.put(self._journal.path)
            self._journal = None

    def _run(self) -> None:
        since_rotation = 0.0
        while True:
            try:
                file = self._closed.get(timeout=REVIEW_SECONDS)
            except queue.Empty:
                self._reserve.review()
                since_rotation += REVIEW_SECONDS
                if since_rotation >= ROTATE_SECONDS:
                    since_rotation = 0.0
                    self._tidy()
                continue
            if file is None:
                return
            self._convert(file)
            self._clean()

    def _tidy(self) -> None:
        with self.lock:
            if self._journal is not None and self._journal.should_end(self._clock(), self._bytes_max):
                self._end_journal()
        waiting, self._unconverted = self._unconverted, []
        for file in waiting:
            self._convert(file)
        self._clean()

    def _convert(self, file: Path) -> None:
        try:
            convert(file, self._directory, self._namespace)
        except Exception as error:  # noqa: BLE001 - the journal stays and is converted later, or at the next start
            self._unconverted.append(file)
            logger.error(
                "audit journal not converted",
                extra={"event": "audit.failed", "file": file.name, "error": str(error)},
            )

    def _clean(self) -> None:
        """Once an hour: what is older than the retention goes."""
        now = self._clock()
        hour = now - now % HOUR_MS
        if hour == self._cleaned_hour:
            return
        self._cleaned_hour = hour
        try:
            # The newest part tells the next start that nothing is missing.
            newest = newest_part(self._directory)
            kept = None if newest is None else newest.parent
            removed = remove_hours_before(self._directory, now - self._retention_ms, kept=kept)
        except OSError as error:
            logger.error("audit not removed", extra={"event": "audit.failed", "error": str(error)})
            return
        if removed:
            logger.info("audit removed", extra={"event": "audit.removed", "hours": removed})


class AuditedStore(Store):
    """A store whose batches carry rows for the audit. See ``storage.ports.Store``."""

    def __init__(self, inner: Store, audit_rows: AuditRows, audit: MessageAudit, durable_number: int) -> None:
        self._inner = inner
        self._audit_rows = audit_rows
        self._audit = audit
        self._number = durable_number

    @property
    def read_ahead(self) -> ReadAhead | None:
        return self._inner.read_ahead

    def replay(self) -> Iterator[Record]:
        return self._inner.replay()

    def append(self, record: Record) -> None:
        self._inner.append(record)

    def has_room(self, size: int) -> bool:
        return self._audit.has_room and self._inner.has_room(size)

    def read(self, location: int, size: int) -> bytes:
        return self._inner.read(location, size)

    def staged_bytes(self) -> int:
        return self._inner.staged_bytes()

    def seal(self) -> Batch | None:
        rows = self._audit_rows.take()
        if rows:
            self._number += 1
            self._inner.append(AuditMarked(self._number))
        batch = self._inner.seal()
        return None if batch is None else AuditedBatch(batch, self._number, rows)

    def commit(self, batch: Batch) -> None:
        if not isinstance(batch, AuditedBatch):
            raise UsageError("this batch is not of this store")
        with self._audit.lock:
            if batch.rows:
                try:
                    self._audit.write(batch.number, batch.rows)
                except OSError as error:
                    raise StoreFailed(f"the audit log cannot be written: {error}") from error
            try:
                self._inner.commit(batch.inner)
            except BaseException:
                self._audit.abandon()
                raise

    def live(self, messages: Iterable[tuple[int, int, int]]) -> None:
        self._inner.live(messages)

    def restate(self, limit: int) -> list[Record]:
        return self._inner.restate(limit)

    def statistics(self) -> StoreStatistics:
        statistics = self._inner.statistics()
        return statistics if self._audit.has_room else replace(statistics, is_full=True)

    def close(self) -> None:
        self._audit.stop()
        self._inner.close()
