"""The readers of ``format("servicebus")``."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from azure.servicebus.exceptions import ServiceBusError
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from pairbus.errors import UsageError
from pairbus.sdk.failures import IN_DOUBT, Failure, classify
from pairbus.spark.connector import identity
from pairbus.spark.connector.access import lasting_refusal
from pairbus.spark.connector.entity import Browsed, Entity, is_same
from pairbus.spark.connector.identity import CheckpointMismatch
from pairbus.spark.connector.offsets import (
    NUMBER_MAX,
    RUNS_MAX,
    Offset,
    Run,
    numbers_of,
    runs_of,
    size_of,
    split,
    split_range,
)
from pairbus.spark.connector.schema import FIELDS, row_of

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql.types import StructType

    from pairbus.spark.connector.options import SourceOptions

ROWS_PER_BATCH: Final = 1_000
BYTES_PER_BATCH: Final = 8 * 1024 * 1024
"""Rows go to Java in pieces of at most this many rows and bytes."""
IDLE_SECONDS: Final = 1.0
"""An empty entity is asked at most so often, whatever the trigger."""
UNAVAILABLE_SECONDS: Final = 5.0
"""How long after a failure an unavailable namespace is asked again."""
SWEEP_SECONDS: Final = 60.0
"""How often a consuming stream looks at its entity from the first message on. In between it looks only behind the last
number it has read, and would not see a message that became visible later under a lower number."""
LAG_SECONDS: Final = 10.0
"""How often the highest number of the entity is looked up for the query's progress: that takes a few dozen requests."""
CLOCKS_APART_MS: Final = 60_000
"""A message that expires within this time counts as expired: clocks of two machines differ."""
_UNAVAILABLE: Final = (*IN_DOUBT, Failure.BUSY)

logger = logging.getLogger("pairbus.spark")


class RunsPartition(InputPartition):
    """Numbers for one task. ``is_exact``: only these, and only active messages.

    ``marks`` holds one byte for each number of a batch; empty where the checkpoint has none. ``last_ms`` is the latest time
    at which any of the batch's messages can have been enqueued.
    """

    def __init__(
        self, runs: tuple[Run, ...], *, is_exact: bool, marks: bytes = b"", last_ms: int = 0
    ) -> None:
        self.runs = runs
        self.is_exact = is_exact
        self.marks = marks
        self.last_ms = last_ms


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
        has_raw = "raw" in arrow.names
        entity = Entity(self._options, is_task=True)
        try:
            found: Iterator[Browsed] = (
                self._of_batch(entity, partition)
                if partition.is_exact
                else (message for run in partition.runs for message in entity.browse(*run))
            )
            for piece in _pieces(found):
                rows = [row_of(payload, self._options.entity, has_raw=has_raw) for payload in piece]
                yield _record_batch(rows, arrow)
        finally:
            entity.close()

    def _of_batch(self, entity: Entity, partition: RunsPartition) -> Iterator[Browsed]:
        """The messages of a batch. Another entity's messages may bear the same numbers: they are not of the batch."""
        marks = dict(zip(numbers_of(partition.runs), partition.marks, strict=False))
        for message in entity.browse_runs(partition.runs):
            mark = marks.get(message.number)
            if mark is None or is_same(message, mark, partition.last_ms):
                yield message
            elif self._options.is_loss_fatal:
                raise CheckpointMismatch(
                    self._options.entity,
                    f"its message {message.number} is not the one that the batch was planned with",
                )


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
        return self._reading.rows(partition)


class ServiceBusStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads an entity as a stream of replayable batches.

    Guarantees: a batch is a list of sequence numbers, kept in the checkpoint and read by browsing, so that it can be
    read again after any failure. In ``consume`` mode a message leaves the entity only after the batch that holds it
    was committed: at least once end to end, exactly once into files and into sinks that detect duplicates. Rows of a
    partition come in sequence order, and partitions are consecutive, so sessions keep their order.

    A checkpoint belongs to one entity, not to its name: when the entity was deleted and created again, or another
    namespace is read, the query ends with an error and no message is completed. With ``failOnDataLoss=false`` it reads
    the entity that is there from its first message. Before a message is completed, its number, enqueued time and message
    id are compared with what the batch read.

    The entity must have no other consumer in ``consume`` mode: what another one holds cannot be settled, and what it
    takes may be missing in a batch. The source reports it, in its log and in the query's progress (``latestOffset``: ``owed``
    and ``taken``). Settling happens when Spark asks for the next batch, and by ``pairbus.spark.settle`` for the last
    batch of a query that was stopped: never in ``commit``, which comes late or not at all.
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._reading = _Reading(options, schema)
        self._entity: Entity | None = None
        self._target: int | None = None
        self._settled: Offset | None = None
        self._owed: dict[int, int] = {}
        """Numbers that are committed and not settled, with their marks."""
        self._idle_until = 0.0
        """Until then an empty entity is not asked again."""
        self._settle_at = 0.0
        """When what is owed is tried again. It holds up no new batch."""
        self._sweep_at = 0.0
        self._planned: Offset | None = None
        self._expires: dict[int, int] = {}
        """When messages of the planned batch end, as far as they do."""
        self._taken = 0
        self._created: int | None = None
        self._is_checked = False
        """Whether the entity is known to be the checkpoint's, since the connection was opened."""
        self._replaced: Offset | None = None
        """The checkpoint's last offset when it belongs to another entity; then this one is read from its start."""
        self._highest = 0
        self._highest_at: float | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_entity": None, "_is_checked": False}

    # --- where a stream stands --------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        starting = self._options.starting
        if starting == "earliest":
            sequence = 0
        elif starting == "latest":
            sequence = self._open().highest() or 0
        else:
            sequence = max(0, int(starting) - 1)
        return Offset(self._options.entity, sequence).as_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        return ReadMaxRows(self._options.messages_max)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """The query ends at what is here now."""
        self._target = self._open().highest() or 0

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: ARG002, N802
        """Settle what ``start`` says is committed, then plan the next batch."""
        try:
            given = Offset.parse(start, self._options.entity)
            begin = self._begin(given)
            if time.monotonic() < self._idle_until:
                return start
            try:
                planned = self._plan(begin)
            except CheckpointMismatch as mismatch:
                begin = self._forget(given, mismatch)
                planned = self._plan(begin)
        except ServiceBusError as error:
            # Spark ends a query at any error here. A query without an end should wait instead.
            refusal = lasting_refusal(error, self._options.access.host(), self._options.entity, "listen")
            if refusal is not None:
                raise refusal from error
            if self._target is not None or classify(error) not in _UNAVAILABLE:
                raise
            logger.warning("%s: the namespace is unavailable: %s", self._options.entity, type(error).__name__)
            self._close()
            self._idle_until = time.monotonic() + UNAVAILABLE_SECONDS
            return start
        if not planned:
            self._idle_until = time.monotonic() + IDLE_SECONDS
            is_shown = not begin.runs and self._owed == begin.marked()
            if self._target is None or not self._owed or is_shown:
                return start
            # The last progress of the query must show what could not be settled, so there is one more batch, without rows.
        self._planned = self._end(begin, planned)
        return self._planned.as_json()

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """For the query's progress: how far the source is, what still waits, and what other consumers did to it."""
        sequence = self._planned.sequence if self._planned is not None else 0
        self._look_for_highest(sequence)
        return {
            "entity": self._options.entity,
            "seq": sequence,
            "highest": max(self._highest, sequence),
            "waiting": max(0, self._highest - sequence),
            "owed": len(self._owed),
            "taken": self._taken,
        }

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The batch's numbers, cut into consecutive pieces."""
        Offset.parse(start, self._options.entity)
        batch = Offset.parse(end, self._options.entity)
        pieces: list[InputPartition] = []
        done = 0
        for piece in split(batch.runs, self._options.partitions):
            size = size_of(piece)
            marks = batch.marks[done : done + size]
            pieces.append(RunsPartition(piece, is_exact=True, marks=marks, last_ms=batch.last_ms))
            done += size
        return pieces

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        return self._reading.rows(partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing: Spark calls it late or never; ``latestOffset`` settles."""

    # --- work -------------------------------------------------------------------------------------

    def _open(self) -> Entity:
        if self._entity is None:
            self._entity = Entity(self._options)
        return self._entity

    def _close(self) -> None:
        self._is_checked = False
        if self._entity is not None:
            self._entity.close()
            self._entity = None

    def _begin(self, begin: Offset) -> Offset:
        """Settle what is committed and return where to go on: at the entity's start when the checkpoint is another's."""
        if begin == self._replaced:
            return Offset(self._options.entity, 0)
        try:
            self._check(begin)
            self._settle(begin)
        except CheckpointMismatch as mismatch:
            return self._forget(begin, mismatch)
        return begin

    def _forget(self, begin: Offset, mismatch: CheckpointMismatch) -> Offset:
        """Begin again at the entity's first message, if the options allow it, and settle nothing of ``begin``."""
        if self._options.is_loss_fatal:
            raise mismatch
        logger.warning(
            "%s: the checkpoint belongs to another entity: %s. It is read from its first message, and nothing that "
            "the checkpoint names is completed",
            self._options.entity,
            mismatch.reason,
        )
        self._replaced, self._owed, self._is_checked = begin, {}, True
        self._sweep_at = 0.0
        self._created = identity.created_ms(self._options)
        return Offset(self._options.entity, 0)

    def _check(self, begin: Offset) -> None:
        """Once for each connection: make sure that the checkpoint belongs to this entity."""
        if self._is_checked:
            return
        self._created = identity.created_ms(self._options)
        self._sweep_at = 0.0
        if begin.is_marked or self._options.mode == "consume":
            identity.check(begin, self._open(), self._options.access.host(), self._created)
        self._is_checked = True

    def _plan(self, begin: Offset) -> list[Browsed]:
        """The messages of the next batch, looked at one by one: explicit numbers can be settled safely."""
        planned: list[Browsed] = []
        self._expires = {}
        size = gaps = 0
        first, known = begin.sequence + 1, dict[int, int]()
        if self._options.mode == "consume" and time.monotonic() >= self._sweep_at:
            # What is settled is gone: what is there and was in no batch has not been read, whatever its number.
            first, known = 1, {**begin.marked(), **self._owed}
        for found in self._open().browse(first, self._target):
            if found.number >= NUMBER_MAX:
                raise UsageError(
                    f"{self._options.entity} is partitioned (its sequence numbers carry a partition): read it in "
                    "batches, or drain it with pairbus syphon"
                )
            if not found.is_active:
                continue
            if found.number in known:
                if is_same(found, known[found.number], begin.last_ms):
                    continue
                raise CheckpointMismatch(
                    begin.entity, f"its message {found.number} is not the one that an earlier batch read"
                )
            if begin.is_marked and found.number <= begin.sequence and found.enqueued_ms > begin.last_ms:
                raise identity.enqueued_too_late(begin, found)
            if planned and (len(planned) >= self._options.messages_max or size >= self._options.bytes_max):
                break
            gaps += bool(planned) and found.number != planned[-1].number + 1
            if gaps >= RUNS_MAX:
                break
            # A batch keeps what it needs to know of its messages, not the messages.
            planned.append(replace(found, payload=b""))
            size += len(found.payload)
            if found.expires_ms is not None:
                self._expires[found.number] = found.expires_ms
        else:
            if first == 1:
                self._sweep_at = time.monotonic() + SWEEP_SECONDS
        return planned

    def _end(self, begin: Offset, planned: list[Browsed]) -> Offset:
        """The offset that ends a batch of these messages."""
        owed = sorted(self._owed)
        return Offset(
            self._options.entity,
            max(begin.sequence, planned[-1].number if planned else 0),
            runs_of(message.number for message in planned),
            runs_of(owed),
            namespace=self._options.access.host(),
            created_ms=self._created,
            last_ms=max(begin.last_ms, max((message.enqueued_ms for message in planned), default=0)),
            marks=bytes(message.mark for message in planned),
            owed_marks=bytes(self._owed[number] for number in owed),
        )

    def _settle(self, begin: Offset) -> None:
        if self._options.mode != "consume" or (begin == self._settled and not self._owed):
            return
        due = begin.marked() if begin != self._settled else self._owed
        if begin == self._settled and time.monotonic() < self._settle_at:
            return
        if due:
            done = self._open().settle(due, begin.last_ms)
            if done.foreign:
                raise CheckpointMismatch(
                    begin.entity, f"its message {done.foreign[0]} is not the one that the last batch read"
                )
            self._owed = {number: due[number] for number in numbers_of(done.owed)}
            if begin != self._settled and begin == self._planned:
                self._look_for_others(done.missing)
        self._settled = begin
        if self._owed:
            self._settle_at = time.monotonic() + IDLE_SECONDS
            self._warn_of_owed()

    def _warn_of_owed(self) -> None:
        entity, count = self._options.entity, len(self._owed)
        if len(runs_of(sorted(self._owed))) > RUNS_MAX:
            raise UsageError(
                f"{entity}: another consumer holds {count} messages that are committed here: end it, then start again"
            )
        logger.warning(
            "%s: another consumer holds %d messages that are committed here (first: %d); they are settled when it releases "
            "them. The entity must have no other consumer in consume mode",
            entity,
            count,
            min(self._owed),
        )

    def _look_for_highest(self, sequence: int) -> None:
        now = time.monotonic()
        if self._highest_at is not None and now < self._highest_at + LAG_SECONDS:
            return
        self._highest_at = now
        # Progress is no reason to end a query.
        with suppress(ServiceBusError):
            self._highest = self._open().highest(max(sequence, self._highest)) or sequence

    def _look_for_others(self, missing: tuple[Run, ...]) -> None:
        """Count the planned messages that are gone, not settled here and not expired: another consumer took them."""
        soon = int(time.time() * 1000) + CLOCKS_APART_MS
        taken = [number for number in numbers_of(missing) if self._expires.get(number, soon + 1) > soon]
        if taken:
            self._taken += len(taken)
            logger.warning(
                "%s: another consumer took %d messages of a batch (first: %d); they may be missing in what was written. The "
                "entity must have no other consumer in consume mode",
                self._options.entity,
                len(taken),
                taken[0],
            )
