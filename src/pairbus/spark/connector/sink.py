"""The writers of ``format("servicebus")``."""

from __future__ import annotations

import asyncio
import hashlib
import json
import uuid
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.exceptions import ServiceBusError
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from pairbus.drain.azure_ports import LINKS_MAX, AzureOutlet
from pairbus.drain.ports import NotSent
from pairbus.drain.rules.destination_queue import BATCH_BYTES
from pairbus.drain.rules.forbidden_paths import forbidden
from pairbus.drain.rules.message import BacklogMessage
from pairbus.errors import PairbusError, UsageError
from pairbus.pairing.naming import entity_key
from pairbus.sdk.addresses import connect
from pairbus.sdk.failures import IN_DOUBT, Failure, classify, shown
from pairbus.sdk.links.quick import SendersAtOnce
from pairbus.spark.connector.access import lasting_refusal
from pairbus.spark.connector.batches import rows_of
from pairbus.spark.connector.quarantine import as_json, prepare, quarantine
from pairbus.spark.connector.schema import addressing_of, milliseconds_of, payload_of
from pairbus.spark.connector.spill import Record, Spill

if TYPE_CHECKING:
    from pyarrow import RecordBatch

    from pairbus.spark.connector.options import SinkOptions

ROWS_AT_ONCE: Final = 10_000
BYTES_AT_ONCE: Final = 80 * 1024 * 1024
"""Rows of a partition that are sorted and sent together: a stream's usual batch, and the bound of memory."""
ATTEMPTS: Final = 6
PAUSE_SECONDS_MIN: Final = 0.5
PAUSE_SECONDS_MAX: Final = 10.0
COUNTED_MAX: Final = 200_000
"""Rows without a message id whose content a task remembers, some tens of megabytes."""
QUARANTINED_MAX: Final = 100_000
"""A task with more refused rows than this fails: something else is wrong."""
_TEMPORARY: Final = (*IN_DOUBT, Failure.BUSY, Failure.QUOTA)


@dataclass
class Sent(WriterCommitMessage):
    messages: int
    quarantined: int


@dataclass(slots=True)
class _Outgoing:
    """A row and the message that is made of it."""

    row: dict[str, Any]
    message: BacklogMessage


class _Sending:
    """Sends the rows of one task. Every send is awaited; a refusal is an error or a row in quarantine (D5)."""

    def __init__(self, options: SinkOptions, job: str) -> None:
        self._options = options
        self._ids = _NewIds(_task()[0] or f"{job}-{_task()[1]}")
        self._largest: dict[str, int | str] = {}
        self._refused: list[tuple[dict[str, Any], str]] = []
        self._sent = 0

    async def run(self, rows: Iterator[dict[str, Any]]) -> Sent:
        if self._options.quarantine:
            prepare(self._options.quarantine)  # the first bad row may come behind many good ones
        async with connect(ServiceBusClient, **self._options.access.connection(), retry_total=1) as client:
            senders: Any = SendersAtOnce(client)
            outlets = [AzureOutlet(senders) for _ in range(self._options.in_flight)]
            try:
                await self._send_all(outlets, rows)
            finally:
                await asyncio.gather(*(outlet.close() for outlet in outlets))
        if self._refused:
            quarantine(self._options.quarantine, self._refused, *_task())
        return Sent(self._sent, len(self._refused))

    async def _send_all(self, outlets: list[AzureOutlet], rows: Iterator[dict[str, Any]]) -> None:
        """Chunk by chunk; sessions, where there is more than one chunk, from sorted runs on disk.

        Rows of a session come in any order after a shuffle, and local mode hides that.
        """
        with Spill() as spill:
            is_last = False
            while not is_last:
                messages, is_last = self._take(rows)
                messages.sort(
                    key=lambda outgoing: (outgoing.message.session_id or "", outgoing.message.sequence_number)
                )
                if not is_last or not spill.is_empty:
                    spill.add(
                        _record(outgoing) for outgoing in messages if outgoing.message.session_id is not None
                    )
                    messages = [outgoing for outgoing in messages if outgoing.message.session_id is None]
                await self._send_chunk(outlets, messages)
            for chunk in _chunks(map(_outgoing, spill.merged())):
                await self._send_chunk(outlets, chunk)

    def _take(self, rows: Iterator[dict[str, Any]]) -> tuple[list[_Outgoing], bool]:
        """The next rows as messages, as many as fit in memory, and whether they are the last."""
        messages: list[_Outgoing] = []
        size = 0
        for row in rows:
            outgoing = self._outgoing(row)
            if outgoing is not None:
                messages.append(outgoing)
                size += len(outgoing.message.payload)
                if len(messages) >= ROWS_AT_ONCE or size >= BYTES_AT_ONCE:
                    return messages, False
        return messages, True

    async def _judged(self, outlet: AzureOutlet, messages: list[_Outgoing]) -> list[_Outgoing]:
        """Refuse what no destination accepts, before anything is sent.

        A task that fails half-way is run again and sends its first rows once more, so a row that is too large, or whose
        destination does not exist, must show up first.
        """
        taken: list[_Outgoing] = []
        for outgoing in messages:
            path = outgoing.message.path
            largest = self._largest.get(entity_key(path))
            if largest is None:
                largest = self._largest[entity_key(path)] = await self._ask_largest(outlet, path)
            size = len(outgoing.message.payload)
            if isinstance(largest, str):
                self._refuse(outgoing.row, largest)
            elif largest and size > largest:
                self._refuse(
                    outgoing.row,
                    f"{Failure.TOO_LARGE.value}: the message has {size:,} bytes, and {path} takes {largest:,} at the most",
                )
            else:
                taken.append(outgoing)
        return taken

    async def _ask_largest(self, outlet: AzureOutlet, path: str) -> int | str:
        """How large a message may be; 0 when that is not known; or why the destination takes none."""
        if len(self._largest) >= LINKS_MAX:
            return 0  # more links than are kept open: they are judged by sending
        try:
            return await outlet.largest(path)
        except (ServiceBusError, TimeoutError, OSError) as error:
            failure = classify(error)
            if failure is Failure.UNAUTHORIZED:
                raise self._refusal(error, path) from error
            if failure is Failure.NOT_FOUND:
                return f"{failure.value}: there is no queue or topic {path!r} in the namespace"
            if failure is Failure.INVALID:
                return f"{failure.value}: {path!r} takes no messages: {shown(error)}"
            return 0  # a destination that is unavailable may be back when the message is sent

    def _refusal(self, error: BaseException, path: str) -> BaseException:
        return lasting_refusal(error, self._options.access.host(), path, "send") or error

    async def _send_chunk(self, outlets: list[AzureOutlet], messages: list[_Outgoing]) -> None:
        messages = await self._judged(outlets[0], messages)
        lanes: list[dict[str, list[_Outgoing]]] = [{} for _ in outlets]
        for index, outgoing in enumerate(messages):
            session = outgoing.message.session_id
            number = (
                zlib.crc32(session.encode()) if session is not None else index // self._options.batch_size
            )
            lanes[number % len(lanes)].setdefault(entity_key(outgoing.message.path), []).append(outgoing)
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

    def _outgoing(self, row: dict[str, Any]) -> _Outgoing | None:
        columns = self._options.columns
        fields = {field: row.get(column) for field, column in columns.items()}
        try:
            path = self._options.path or fields.get("path")
            if not isinstance(path, str) or not path.strip("/"):
                raise UsageError(f"path is {path!r}: expected the name of a queue or topic")
            wrong = forbidden(path)
            if wrong is not None:
                raise UsageError(f"path: {wrong}")
            number = fields.get("sequence_number")
            payload = self._payload(fields)
            message_id, session, key = addressing_of(payload, has_raw=fields.get("raw") is not None)
        except UsageError as error:
            self._refuse(row, str(error))
            return None
        order = number if isinstance(number, int) else 0
        return _Outgoing(
            row, BacklogMessage("", order, path.strip("/"), payload, message_id, session, key, 0)
        )

    def _payload(self, fields: dict[str, Any]) -> bytes:
        """The message of a row. A row without an id gets one that is the same whenever its task is run again."""
        source, number = fields.get("entity"), fields.get("sequence_number")
        kind = self._options.property_type
        source_id = None
        if source is not None and number is not None:
            # The number alone is not enough: an entity that was deleted and created again counts from 1 again.
            moment = fields.get("enqueued_time")
            when = "" if moment is None else f":{milliseconds_of(moment, 'enqueued_time')}"
            source_id = f"{source}:{number}{when}"
        if source_id is None and fields.get("raw") is None and not fields.get("message_id"):
            return payload_of(
                fields,
                None,
                new_id=self._ids.of(payload_of(fields, None, property_type=kind)),
                property_type=kind,
            )
        return payload_of(fields, source_id, property_type=kind)

    def _refuse(self, row: dict[str, Any], reason: str) -> None:
        if not self._options.quarantine:
            raise UsageError(
                f"a row cannot be sent: {reason}; with the option onError=quarantine it is kept in quarantinePath and the others are sent"
            )
        self._refused.append((row, reason))
        if len(self._refused) > QUARANTINED_MAX:
            raise UsageError(
                f"more than {QUARANTINED_MAX} rows of one task cannot be sent; the last: {reason}"
            )

    async def _send_lane(self, outlet: AzureOutlet, lane: dict[str, list[_Outgoing]]) -> None:
        for messages in lane.values():
            start = 0
            while start < len(messages):
                stop = start + 1
                size = len(messages[start].message.payload)
                while stop < len(messages) and stop - start < self._options.batch_size:
                    size += len(messages[stop].message.payload)
                    if size > BATCH_BYTES:
                        break
                    stop += 1
                await self._send_batch(outlet, messages[start:stop])
                start = stop

    async def _send_batch(self, outlet: AzureOutlet, batch: list[_Outgoing]) -> None:
        pause = PAUSE_SECONDS_MIN
        for attempt in range(1, ATTEMPTS + 1):
            try:
                await outlet.send(batch[0].message.path, [outgoing.message for outgoing in batch])
            except Exception as error:
                cause = error.__cause__ if isinstance(error, NotSent) and error.__cause__ else error
                failure, path = classify(cause), batch[0].message.path
                if failure in _TEMPORARY and attempt < ATTEMPTS:
                    await asyncio.sleep(pause)
                    pause = min(pause * 2, PAUSE_SECONDS_MAX)
                    continue
                if failure is Failure.UNAUTHORIZED:
                    raise self._refusal(cause, path) from error
                if failure is Failure.CANCELLED:
                    raise
                if failure in _TEMPORARY:
                    raise PairbusError(
                        f"{path!r} took no messages in {ATTEMPTS} attempts: {failure.value}: {shown(cause)}"
                    ) from error
                await self._isolate(outlet, batch, f"{failure.value}: {cause}")
                return
            self._sent += len(batch)
            return

    async def _isolate(self, outlet: AzureOutlet, batch: list[_Outgoing], reason: str) -> None:
        """Send one by one: one of the messages is refused, and nothing says which."""
        if len(batch) == 1:
            self._refuse(batch[0].row, reason)
            return
        for outgoing in batch:
            await self._send_batch(outlet, [outgoing])


class _NewIds:
    """Message ids for rows that have none: the same ones whenever the task is run again, in whatever order its rows come.

    An id is made of the job, the row's content, and how many rows with this content came before. Beyond ``COUNTED_MAX``
    different rows also the row's position counts, so that memory stays bounded.
    """

    def __init__(self, job: str) -> None:
        self._job = job.encode()
        self._counts: dict[bytes, int] = {}
        self._position = 0

    def of(self, content: bytes) -> str:
        """The id of the next row with this content."""
        self._position += 1
        digest = hashlib.blake2b(content, digest_size=16).digest()
        count = self._counts.get(digest)
        if count is None and len(self._counts) >= COUNTED_MAX:
            text = f"position {self._position}"
        else:
            self._counts[digest] = (count or 0) + 1
            text = str(count or 0)
        return hashlib.blake2b(b"\0".join((self._job, digest, text.encode())), digest_size=16).hexdigest()


def _task() -> tuple[str, int]:
    """Which part of which batch of a stream this task is, the same whenever it is run again; and which part alone."""
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        return "", 0
    part = context.partitionId()
    query = context.getLocalProperty("sql.streaming.queryId")
    number = context.getLocalProperty("streaming.sql.batchId")
    return ("" if query is None or number is None else f"{query}-{number}-{part}"), part


def _chunks(messages: Iterable[_Outgoing]) -> Iterator[list[_Outgoing]]:
    chunk: list[_Outgoing] = []
    size = 0
    for outgoing in messages:
        chunk.append(outgoing)
        size += len(outgoing.message.payload)
        if len(chunk) >= ROWS_AT_ONCE or size >= BYTES_AT_ONCE:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _record(outgoing: _Outgoing) -> Record:
    message = outgoing.message
    head = json.dumps([message.path, message.message_id, message.partition_key, as_json(outgoing.row)])
    return Record(message.session_id or "", message.sequence_number, head, message.payload)


def _outgoing(record: Record) -> _Outgoing:
    path, message_id, key, row = json.loads(record.head)
    return _Outgoing(
        row, BacklogMessage("", record.number, path, record.body, message_id, record.session, key, 0)
    )


class _Writer:
    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._job = uuid.uuid4().hex
        """The same for every attempt of every task."""

    def write(self, iterator: Iterator[RecordBatch]) -> Sent:
        return self.send(chain.from_iterable(map(rows_of, iterator)))

    def send(self, rows: Iterable[dict[str, Any]]) -> Sent:
        """Send rows, each by column; times have a zone."""
        return asyncio.run(_Sending(self._options, self._job).run(iter(rows)))


class ServiceBusWriter(_Writer, DataSourceArrowWriter):
    """Sends the rows of a batch.

    Guarantees: ``save()`` returns only when every row was accepted or is in quarantine with its reason. A task that
    is run again sends its rows again, under the same message ids when the rows carry one or come from the source
    (``entity`` and ``sequence_number``): exactly once where the destination detects duplicates, else at least once.
    Rows of one session in one partition are sent in the order of ``sequence_number``, each after the one before it was
    accepted, however many there are; repartition by session first.
    """


class ServiceBusStreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Sends the rows of a stream, batch by batch; guarantees as ``ServiceBusWriter``, per batch.

    A batch that is replayed after a failure repeats what was sent of it, at most the batch. A task that is tried again
    or copied by speculation repeats at most its own rows per attempt (D3).
    """

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Nothing: every row is at its destination already."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Nothing can be taken back; the batch comes again."""
