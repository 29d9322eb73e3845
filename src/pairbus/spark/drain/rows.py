"""The ledger of what the Spark syphon moved: one row per message, appended as Parquet.

After a lost worker the ledger may lack rows of messages that were moved: bills and certificates are made from the
brokers' own logs, never from this.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import pyarrow

MOVED: Final = "moved"
"""Accepted by the primary and completed in the backlog."""
LOCK_LOST: Final = "lock_lost"
"""Accepted by the primary, but its lock had ended: it may come a second time."""
SET_ASIDE: Final = "set_aside"
"""In the backlog queue's dead-letter queue, with its reason."""
WAITING: Final = "waiting"
"""Given back: its destination is away."""

LEDGER_SCHEMA: Final = (
    "backlog_queue string, sequence_number long, message_id string, destination string, "
    "outcome string, reason string, enqueued_time timestamp, finished_time timestamp, attempt long"
)
ROWS_PER_BATCH: Final = 5_000


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """What became of one backlog message."""

    backlog_queue: str
    sequence_number: int
    message_id: str
    destination: str
    outcome: str
    reason: str
    enqueued_ms: int
    finished_ms: int
    attempt: int


def record_batches(rows: list[LedgerRow]) -> list[pyarrow.RecordBatch]:
    """Rows as Arrow, column for column in the order of the schema."""
    import pyarrow

    moment = pyarrow.timestamp("us", tz="UTC")
    batches = []
    for start in range(0, len(rows), ROWS_PER_BATCH):
        part = rows[start : start + ROWS_PER_BATCH]
        columns = {
            "backlog_queue": pyarrow.array([row.backlog_queue for row in part], pyarrow.string()),
            "sequence_number": pyarrow.array([row.sequence_number for row in part], pyarrow.int64()),
            "message_id": pyarrow.array([row.message_id for row in part], pyarrow.string()),
            "destination": pyarrow.array([row.destination for row in part], pyarrow.string()),
            "outcome": pyarrow.array([row.outcome for row in part], pyarrow.string()),
            "reason": pyarrow.array([row.reason for row in part], pyarrow.string()),
            "enqueued_time": pyarrow.array([row.enqueued_ms * 1000 for row in part], pyarrow.int64()).cast(
                moment
            ),
            "finished_time": pyarrow.array([row.finished_ms * 1000 for row in part], pyarrow.int64()).cast(
                moment
            ),
            "attempt": pyarrow.array([row.attempt for row in part], pyarrow.int64()),
        }
        batches.append(pyarrow.RecordBatch.from_pydict(columns))
    return batches
