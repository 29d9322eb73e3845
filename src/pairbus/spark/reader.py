"""The readers of ``format("servicebus")``."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from azure.servicebus.exceptions import ServiceBusError
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from pairbus.errors import UsageError
from pairbus.pairing.trigger import Failure, classify
from pairbus.spark.entity import Browsed, Entity
from pairbus.spark.offsets import (
    NUMBER_MAX,
    RUNS_MAX,
    Offset,
    Run,
    merged,
    numbers_of,
    runs_of,
    size_of,
    split,
    split_range,
)
from pairbus.spark.schema import row_of

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql.types import StructType

    from pairbus.spark.options import SourceOptions

ROWS_PER_BATCH: Final = 1_000
BYTES_PER_BATCH: Final = 8 * 1024 * 1024
"""Towards Java rows go in pieces of at most so much, whatever the size of bodies."""
IDLE_SECONDS: Final = 1.0
"""An empty entity is asked at most so often, whatever the trigger."""
AWAY_SECONDS: Final = 5.0
"""How long a namespace that is away is left in peace before it is asked again."""
CLOCKS_APART_MS: Final = 60_000
"""A message that was to expire within this has expired: clocks of two machines differ."""
_AWAY: Final = (Failure.TIMEOUT, Failure.CONNECTION, Failure.INTERNAL, Failure.BUSY)

logger = logging.getLogger("pairbus.spark")


class RunsPartition(InputPartition):
    """Numbers for one task. ``is_exact``: only these, and only active messages."""

    def __init__(self, runs: tuple[Run, ...], *, is_exact: bool) -> None:
        self.runs = runs
        self.is_exact = is_exact


class _Reading:
    """What both readers do in a task."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def rows(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        """The messages of a partition as Arrow, in bounded pieces."""
        assert isinstance(partition, RunsPartition), partition
        from pyspark.sql.pandas.types import to_arrow_schema

        arrow = to_arrow_schema(self._schema, timezone="UTC")
        entity = Entity(self._options)
        try:
            found: Iterator[Browsed] = (
                entity.browse_runs(partition.runs)
                if partition.is_exact
                else (message for run in partition.runs for message in entity.browse(*run))
            )
            for piece in _pieces(found):
                yield _record_batch([row_of(payload, self._options.entity) for payload in piece], arrow)
        finally:
            entity.close()


def _pieces(found: Iterator[Browsed]) -> Iterator[list[bytes]]:
    piece: list[bytes] = []
    size = 0
    for message in found:
        piece.append(message.payload)
        size += len(message.payload)
        if len(piece) >= ROWS_PER_BATCH or size >= BYTES_PER_BATCH:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece


def _record_batch(rows: list[tuple[Any, ...]], schema: pyarrow.Schema) -> pyarrow.RecordBatch:
    import pyarrow

    from pairbus.spark.source import FIELDS

    columns = []
    for field in schema:
        values = [row[FIELDS.index(field.name)] for row in rows]
        if pyarrow.types.is_map(field.type):
            values = [
                [(name, {"type": kind, "value": text}) for name, (kind, text) in v.items()] for v in values
            ]
        columns.append(pyarrow.array(values, type=field.type))
    return pyarrow.RecordBatch.from_arrays(columns, schema=schema)


class ServiceBusReader(DataSourceReader):
    """Browses an entity: reads without consuming.

    Guarantees: nothing is locked, settled or changed. Every message that is there from the planning to the end of
    the reading, with a number up to the highest seen at planning, comes exactly once, whatever the number of
    partitions (D4); later ones do not come. Messages in every state come; the column ``state`` tells.
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._reading = _Reading(options, schema)

    def partitions(self) -> Sequence[InputPartition]:
        """Ranges of sequence numbers up to the highest there is now."""
        entity = Entity(self._options)
        try:
            highest = entity.highest()
        finally:
            entity.close()
        if highest is None or self._options.starting == "latest":
            return [RunsPartition((), is_exact=False)]
        first = 1 if self._options.starting == "earliest" else int(self._options.starting)
        ranges = split_range(first, highest, self._options.partitions)
        return [RunsPartition((run,), is_exact=False) for run in ranges] or [
            RunsPartition((), is_exact=False)
        ]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        """The messages of a range."""
        return self._reading.rows(partition)


class ServiceBusStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads an entity as a stream of replayable batches.

    Guarantees: a batch is a list of sequence numbers, kept in the checkpoint and read by browsing, so that it can be
    read again after any failure. In ``consume`` mode a message leaves the entity only after the batch that holds it
    was committed: at least once end to end, exactly once into files and into sinks that detect duplicates. Rows of a
    partition come in sequence order, and partitions are consecutive, so sessions keep their order.

    The entity must have no other consumer in ``consume`` mode: what another one holds cannot be settled, and what it
    takes may miss in a batch. The source says so, in its log and in the query's progress (``latestOffset``: ``owed``
    and ``taken``). Settling happens when Spark asks for the next batch, and by ``pairbus.spark.settle`` for the last
    batch of a query that was stopped: never in ``commit``, which comes late or not at all.
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._reading = _Reading(options, schema)
        self._entity: Entity | None = None
        self._target: int | None = None
        self._settled: Offset | None = None
        self._owed: tuple[Run, ...] = ()
        self._idle_until = 0.0
        self._planned: Offset | None = None
        self._expires: dict[int, int] = {}
        """When messages of the planned batch end, as far as they do."""
        self._taken = 0

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_entity": None}

    # --- where a stream stands --------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Where a new query begins."""
        starting = self._options.starting
        if starting == "earliest":
            sequence = 0
        elif starting == "latest":
            sequence = self._open().highest() or 0
        else:
            sequence = max(0, int(starting) - 1)
        return Offset(self._options.entity, sequence).as_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """As ``maxMessagesPerTrigger`` says."""
        return ReadMaxRows(self._options.messages_max)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """The query ends at what is here now."""
        self._target = self._open().highest() or 0

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: ARG002, N802
        """Settle what ``start`` says is committed, then plan the next batch."""
        begin = Offset.parse(start, self._options.entity)
        try:
            self._settle(begin)
            if time.monotonic() < self._idle_until:
                return start
            numbers = self._plan(begin.sequence)
        except ServiceBusError as error:
            # Spark ends a query at any error here. Without an end to reach, one that waits is the better one.
            if self._target is not None or classify(error) not in _AWAY:
                raise
            logger.warning("%s: the namespace is away: %s", self._options.entity, type(error).__name__)
            self._close()
            self._idle_until = time.monotonic() + AWAY_SECONDS
            return start
        if not numbers:
            self._idle_until = time.monotonic() + IDLE_SECONDS
            return start
        self._planned = Offset(self._options.entity, numbers[-1], runs_of(numbers), self._owed)
        return self._planned.as_json()

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """For the query's progress: where the source is, and what other consumers did to it."""
        return {
            "entity": self._options.entity,
            "seq": self._planned.sequence if self._planned is not None else 0,
            "owed": size_of(self._owed),
            "taken": self._taken,
        }

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The batch's numbers, cut into consecutive pieces."""
        Offset.parse(start, self._options.entity)
        runs = Offset.parse(end, self._options.entity).runs
        return [RunsPartition(piece, is_exact=True) for piece in split(runs, self._options.partitions)]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        """The messages of one piece."""
        return self._reading.rows(partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing: Spark calls it late or never; ``latestOffset`` settles."""

    # --- work -------------------------------------------------------------------------------------

    def _open(self) -> Entity:
        if self._entity is None:
            self._entity = Entity(self._options)
        return self._entity

    def _close(self) -> None:
        if self._entity is not None:
            self._entity.close()
            self._entity = None

    def _plan(self, after: int) -> list[int]:
        """The numbers of the next batch, looked at one by one: explicit numbers can be settled safely."""
        numbers: list[int] = []
        self._expires = {}
        size = gaps = 0
        for found in self._open().browse(after + 1, self._target):
            if found.number >= NUMBER_MAX:
                raise UsageError(
                    f"{self._options.entity} is partitioned (its sequence numbers carry a partition): read it in "
                    "batches, or drain it with pairbus syphon"
                )
            if not found.is_active:
                continue
            if numbers and (len(numbers) >= self._options.messages_max or size >= self._options.bytes_max):
                break
            gaps += bool(numbers) and found.number != numbers[-1] + 1
            if gaps >= RUNS_MAX:
                break
            numbers.append(found.number)
            size += len(found.payload)
            if found.expires_ms is not None:
                self._expires[found.number] = found.expires_ms
        return numbers

    def _settle(self, begin: Offset) -> None:
        if self._options.mode != "consume" or (begin == self._settled and not self._owed):
            return
        due = merged(begin.runs, begin.owed) if begin != self._settled else self._owed
        if begin == self._settled and time.monotonic() < self._idle_until:
            return
        done = self._open().settle(due)
        self._owed = done.owed
        if begin != self._settled and begin == self._planned:
            self._look_for_others(done.missing)
        self._settled = begin
        if self._owed:
            self._idle_until = time.monotonic() + IDLE_SECONDS
            self._warn_of_owed()

    def _warn_of_owed(self) -> None:
        entity, count = self._options.entity, size_of(self._owed)
        if len(self._owed) > RUNS_MAX:
            raise UsageError(
                f"{entity}: another consumer holds {count} messages that are committed here: end it, then start again"
            )
        logger.warning(
            "%s: another consumer holds %d messages that are committed here (first: %d); they are settled when it lets "
            "go. The entity must have no other consumer in consume mode",
            entity,
            count,
            self._owed[0][0],
        )

    def _look_for_others(self, missing: tuple[Run, ...]) -> None:
        """What this process planned and did not settle, and what did not expire, somebody else has taken."""
        soon = int(time.time() * 1000) + CLOCKS_APART_MS
        taken = [number for number in numbers_of(missing) if self._expires.get(number, soon + 1) > soon]
        if taken:
            self._taken += len(taken)
            logger.warning(
                "%s: another consumer took %d messages of a batch (first: %d); they may miss in what was written. The "
                "entity must have no other consumer in consume mode",
                self._options.entity,
                len(taken),
                taken[0],
            )
