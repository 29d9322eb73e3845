"""The ledger of what the Spark drain moved: one row per message, appended as Parquet.

After a lost worker the ledger may lack rows of messages that were moved: bills and certificates are made from the
brokers' own logs, never from this.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import pyarrow

MOVED: Final = "moved"
"""Accepted by the primary and completed in the backlog."""
LOCK_LOST: Final = "lock_lost"
"""Accepted by the primary, but its lock had ended: it may be delivered a second time."""
SET_ASIDE: Final = "set_aside"
"""In the backlog queue's dead-letter queue, with its reason."""
WAITING: Final = "waiting"
"""Released: its destination is unavailable, or time was up."""

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
    kinds = {"string": pyarrow.string(), "long": pyarrow.int64(), "timestamp": moment}
    columns = [column.split() for column in LEDGER_SCHEMA.split(", ")]
    schema = pyarrow.schema([(name, kinds[kind]) for name, kind in columns])
    given = {**kinds, "timestamp": pyarrow.timestamp("ms", tz="UTC")}
    batches = []
    for start in range(0, len(rows), ROWS_PER_BATCH):
        values = zip(*map(astuple, rows[start : start + ROWS_PER_BATCH]), strict=True)
        arrays = [
            pyarrow.array(column, given[kind]).cast(kinds[kind])
            for column, (_, kind) in zip(values, columns, strict=True)
        ]
        batches.append(pyarrow.RecordBatch.from_arrays(arrays, schema=schema))
    return batches
