"""The audit log of messages (``--audit``): one row per accepted send and per end of a message, true over any crash.

Rule 1: the rows of a batch are synced to a journal *before* the store commits the batch, under a number that the batch itself
        carries as a record. After a crash the store says which number came last; a block beyond it never happened and is cut off.
Rule 2: so the journal holds exactly the blocks whose batches are durable: no row is missing, none is false, none comes twice.
Rule 3: a full or old journal is turned into Parquet by a thread, under a name of its own, so doing it again changes nothing.

See ``docs/decisions/0010-usage-and-audit.md``. The files are read and written by ``message_journal``.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pairbus.engine.records import Record, SequenceAdvanced
from pairbus.errors import StoreFailed, UsageError
from pairbus.server.message_journal import Journal, convert, journal_files, mend
from pairbus.server.parquet import make_directory, remove_unfinished

if TYPE_CHECKING:
    from pairbus.gateway.trail import Trail, TrailRow
    from pairbus.storage.ports import Batch, Store, StoreStatistics

logger = logging.getLogger(__name__)

WITNESS_QUEUE_ID: Final = 0
"""The place whose sequence number is the number of the last audited batch. No entity has the id 0."""
JOURNAL_BYTES_MAX: Final = 64 << 20
ROTATE_SECONDS: Final = 10.0
"""How often an idle journal is looked at, whether its hour is over."""
JOIN_SECONDS_MAX: Final = 60.0


class AuditedBatch:
    """A batch of the store with the rows that it makes true."""

    __slots__ = ("inner", "number", "rows")

    def __init__(self, inner: Batch, number: int, rows: list[TrailRow]) -> None:
        self.inner = inner
        self.number = number
        self.rows = rows


class MessageAudit:
    """Journals and their conversion. ``write`` belongs to the committer's thread, the rest to its own.

    Args:
        durable_number: The number of the last batch that the store holds.
        boot_id: Names this life of the broker in file names.
    """

    def __init__(
        self,
        directory: Path,
        namespace: str,
        durable_number: int,
        boot_id: str,
        clock: Callable[[], int],
        journal_bytes_max: int = JOURNAL_BYTES_MAX,
    ) -> None:
        self._directory = directory
        self._namespace = namespace
        self._boot_id = boot_id
        self._clock = clock
        self._bytes_max = journal_bytes_max
        self._journal: Journal | None = None
        self.lock = threading.Lock()
        """Held from the write of a block to the end of its commit: only then may its journal be closed."""
        self._closed: queue.SimpleQueue[Path | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"{namespace}-audit", daemon=True)
        make_directory(directory)
        remove_unfinished(directory)
        for file in journal_files(directory):
            if mend(file, durable_number):
                self._closed.put(file)

    def start(self) -> None:
        """Begin to turn journals into Parquet, those of earlier lives first."""
        self._thread.start()

    def write(self, number: int, rows: list[TrailRow]) -> None:
        """Make the block of one batch durable. The caller holds ``lock``. Raises OSError."""
        journal = self._journal
        if journal is not None and journal.should_end(rows[-1].at, self._bytes_max):
            self._end_journal()
            journal = None
        if journal is None:
            journal = self._journal = Journal(self._directory, number, self._boot_id)
        journal.write(number, rows)

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

    def _end_journal(self) -> None:
        if self._journal is not None:
            self._journal.close()
            self._closed.put(self._journal.path)
            self._journal = None

    def _run(self) -> None:
        while True:
            try:
                file = self._closed.get(timeout=ROTATE_SECONDS)
            except queue.Empty:
                with self.lock:
                    if self._journal is not None and self._journal.should_end(self._clock(), self._bytes_max):
                        self._end_journal()
                continue
            if file is None:
                return
            try:
                convert(file, self._directory, self._namespace)
            except Exception as error:  # noqa: BLE001 - the journal stays and is converted at the next start
                logger.error(
                    "audit journal not converted",
                    extra={"event": "audit.failed", "file": file.name, "error": str(error)},
                )


class AuditedStore:
    """A store whose batches carry rows for the audit. See ``storage.ports.Store``."""

    def __init__(self, inner: Store, trail: Trail, audit: MessageAudit, durable_number: int) -> None:
        self._inner = inner
        self._trail = trail
        self._audit = audit
        self._number = durable_number

    def replay(self) -> Iterator[Record]:
        """See Store."""
        return self._inner.replay()

    def append(self, record: Record) -> None:
        """See Store."""
        self._inner.append(record)

    def has_room(self, size: int) -> bool:
        """See Store."""
        return self._inner.has_room(size)

    def read(self, location: int, size: int) -> bytes:
        """See Store."""
        return self._inner.read(location, size)

    def seal(self) -> Batch | None:
        """See Store."""
        rows = self._trail.take()
        if rows:
            self._number += 1
            self._inner.append(SequenceAdvanced(WITNESS_QUEUE_ID, self._number + 1, 0))
        batch = self._inner.seal()
        return None if batch is None else AuditedBatch(batch, self._number, rows)

    def commit(self, batch: Batch) -> None:
        """See Store."""
        if not isinstance(batch, AuditedBatch):
            raise UsageError("this batch is not of this store")
        with self._audit.lock:
            if batch.rows:
                try:
                    self._audit.write(batch.number, batch.rows)
                except OSError as error:
                    raise StoreFailed(f"the audit log cannot be written: {error}") from error
            self._inner.commit(batch.inner)

    def live(self, messages: Iterable[tuple[int, int, int]]) -> None:
        """See Store."""
        self._inner.live(messages)

    def restate(self, limit: int) -> list[Record]:
        """See Store."""
        return self._inner.restate(limit)

    def statistics(self) -> StoreStatistics:
        """See Store."""
        return self._inner.statistics()

    def close(self) -> None:
        """See Store."""
        self._audit.stop()
        self._inner.close()


def witnessed(record: Record) -> int:
    """The number of an audited batch, if a record of the store is such a witness; else 0."""
    if isinstance(record, SequenceAdvanced) and record.queue_id == WITNESS_QUEUE_ID:
        return record.next_sequence_number - 1
    return 0
