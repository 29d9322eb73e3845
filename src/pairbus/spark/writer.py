"""The writers of ``format("servicebus")``."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from azure.servicebus.aio import ServiceBusClient
from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter, WriterCommitMessage

from pairbus.errors import UsageError
from pairbus.pairing.naming import entity_key
from pairbus.pairing.trigger import Failure, classify
from pairbus.spark.quarantine import quarantine
from pairbus.spark.schema import payload_of
from pairbus.syphon.plan import BATCH_BYTES, Letter, forbidden
from pairbus.syphon.sdk import SdkOutlet

if TYPE_CHECKING:
    from pyspark.sql import Row

    from pairbus.spark.options import SinkOptions

ROWS_AT_ONCE: Final = 10_000
"""Rows of a partition that are sorted and sent together: a stream's usual batch, and the bound of memory."""
ATTEMPTS: Final = 6
PAUSE_SECONDS_MIN: Final = 0.5
PAUSE_SECONDS_MAX: Final = 10.0
QUARANTINED_MAX: Final = 100_000
"""A task with more poisoned rows than this fails: something else is wrong."""
_TEMPORARY: Final = (Failure.TIMEOUT, Failure.CONNECTION, Failure.INTERNAL, Failure.BUSY, Failure.QUOTA)


@dataclass
class Sent(WriterCommitMessage):
    """What one task did."""

    messages: int
    quarantined: int


@dataclass(slots=True)
class _Parcel:
    """A row on its way."""

    row: dict[str, Any]
    letter: Letter


class _Sending:
    """Sends the rows of one task. Every send is awaited; a refusal is an error or a row in quarantine (D5)."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._refused: list[tuple[dict[str, Any], str]] = []
        self._sent = 0

    async def run(self, rows: Iterator[Row]) -> Sent:
        connection = self._options.access.connection_string()
        async with ServiceBusClient.from_connection_string(connection, retry_total=1) as client:
            outlets = [SdkOutlet(client) for _ in range(self._options.in_flight)]
            try:
                while chunk := _take(rows, ROWS_AT_ONCE):
                    await self._send_chunk(outlets, chunk)
            finally:
                for outlet in outlets:
                    await outlet.close()
        if self._refused:
            quarantine(self._options.quarantine, self._refused)
        return Sent(self._sent, len(self._refused))

    async def _send_chunk(self, outlets: list[SdkOutlet], rows: list[dict[str, Any]]) -> None:
        parcels = [parcel for row in rows if (parcel := self._parcel(row)) is not None]
        # Sessions in order whatever the order of rows: local mode hides that shuffles reorder (reference, 3.5).
        parcels.sort(key=lambda parcel: (parcel.letter.session_id or "", parcel.letter.sequence_number))
        lanes: list[dict[str, list[_Parcel]]] = [{} for _ in outlets]
        for index, parcel in enumerate(parcels):
            session = parcel.letter.session_id
            number = (
                zlib.crc32(session.encode()) if session is not None else index // self._options.batch_size
            )
            lanes[number % len(lanes)].setdefault(entity_key(parcel.letter.path), []).append(parcel)
        tasks = [
            asyncio.ensure_future(self._send_lane(outlet, lane))
            for outlet, lane in zip(outlets, lanes, strict=True)
            if lane
        ]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _parcel(self, row: dict[str, Any]) -> _Parcel | None:
        columns = self._options.columns
        fields = {field: row.get(column) for field, column in columns.items()}
        try:
            path = self._options.path or fields.get("path")
            if not isinstance(path, str) or not path.strip("/"):
                raise UsageError(f"path is {path!r}: expected the name of a queue or topic")
            wrong = forbidden(path)
            if wrong is not None:
                raise UsageError(f"path: {wrong}")
            number = row.get("sequence_number")
            source = row.get("entity")
            source_id = f"{source}:{number}" if source is not None and number is not None else None
            payload = payload_of(fields, source_id)
        except UsageError as error:
            self._refuse(row, str(error))
            return None
        session = fields.get("session_id")
        key = fields.get("partition_key")
        order = number if isinstance(number, int) else 0
        message_id = str(fields.get("message_id") or source_id or "")
        letter = Letter("", order, path.strip("/"), payload, message_id, session, key, 0)
        return _Parcel(row, letter)

    def _refuse(self, row: dict[str, Any], reason: str) -> None:
        if not self._options.quarantine:
            raise UsageError(f"a row cannot be sent: {reason}; onError=quarantine would set it aside")
        self._refused.append((row, reason))
        if len(self._refused) > QUARANTINED_MAX:
            raise UsageError(
                f"more than {QUARANTINED_MAX} rows of one task cannot be sent; the last: {reason}"
            )

    async def _send_lane(self, outlet: SdkOutlet, lane: dict[str, list[_Parcel]]) -> None:
        for parcels in lane.values():
            start = 0
            while start < len(parcels):
                stop = start + 1
                size = len(parcels[start].letter.payload)
                while stop < len(parcels) and stop - start < self._options.batch_size:
                    size += len(parcels[stop].letter.payload)
                    if size > BATCH_BYTES:
                        break
                    stop += 1
                await self._send_batch(outlet, parcels[start:stop])
                start = stop

    async def _send_batch(self, outlet: SdkOutlet, batch: list[_Parcel]) -> None:
        pause = PAUSE_SECONDS_MIN
        for attempt in range(1, ATTEMPTS + 1):
            try:
                await outlet.send(batch[0].letter.path, [parcel.letter for parcel in batch])
            except Exception as error:
                failure = classify(error)
                if failure in _TEMPORARY and attempt < ATTEMPTS:
                    await asyncio.sleep(pause)
                    pause = min(pause * 2, PAUSE_SECONDS_MAX)
                    continue
                if failure in _TEMPORARY or failure in (Failure.UNAUTHORIZED, Failure.CANCELLED):
                    raise
                await self._isolate(outlet, batch, f"{failure.value}: {error}")
                return
            self._sent += len(batch)
            return

    async def _isolate(self, outlet: SdkOutlet, batch: list[_Parcel], reason: str) -> None:
        """One of them is poison; one by one they tell which."""
        if len(batch) == 1:
            self._refuse(batch[0].row, reason)
            return
        for parcel in batch:
            await self._send_batch(outlet, [parcel])


def _take(rows: Iterator[Row], count: int) -> list[dict[str, Any]]:
    taken: list[dict[str, Any]] = []
    for row in rows:
        taken.append(row.asDict(recursive=True))
        if len(taken) >= count:
            break
    return taken


class ServiceBusWriter(DataSourceWriter):
    """Sends the rows of a batch.

    Guarantees: ``save()`` returns only when every row was accepted or is in quarantine with its reason. A task that
    is run again sends its rows again, under the same message ids when the rows carry one or come from the source
    (``entity`` and ``sequence_number``): exactly once where the destination detects duplicates, else at least once.
    Rows of one session in one partition are sent in the order of ``sequence_number``; repartition by session first.
    """

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[Row]) -> Sent:
        """Send one partition."""
        return asyncio.run(_Sending(self._options).run(iterator))


class ServiceBusStreamWriter(DataSourceStreamWriter):
    """Sends the rows of a stream, batch by batch; guarantees as ``ServiceBusWriter``, per batch.

    A batch that is replayed after a failure repeats what was sent of it, at most the batch.
    """

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[Row]) -> Sent:
        """Send one partition of a batch."""
        return asyncio.run(_Sending(self._options).run(iterator))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Nothing: every row is at its destination already."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Nothing can be taken back; the batch comes again."""
