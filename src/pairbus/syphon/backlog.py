"""What sits in the backlog, shown as the originals; set-aside messages looked at, sent round again, or removed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from azure.servicebus import ServiceBusSubQueue
from azure.servicebus.aio import ServiceBusClient

from pairbus.errors import PairingError, UsageError
from pairbus.pairing import naming, parking, wire
from pairbus.pairing._async.management import Management, NoManageRight
from pairbus.pairing.factory import BACKLOG_LIMIT_BYTES
from pairbus.pairing.statistics import Counters
from pairbus.pairing.trust import reaching
from pairbus.syphon.hosting import build, close_clients
from pairbus.syphon.plan import NotFoundPolicy
from pairbus.syphon.pump import Told
from pairbus.syphon.restoring import Life

PAGE: Final = 100
WAIT_SECONDS: Final = 1.0
QUEUES_PROBED_MAX: Final = 1_000


@dataclass(frozen=True, slots=True)
class QueueRow:
    """One backlog queue."""

    name: str
    messages: int | None
    set_aside: int | None
    is_extra: bool


@dataclass(frozen=True, slots=True)
class MessageRow:
    """One backlog message, as the original it stands for."""

    queue: str
    sequence_number: int
    message_id: str | None
    path: str | None
    session_id: str | None
    enqueued: str | None
    reason: str | None
    """Why it was detoured, or why it was set aside."""
    description: str | None
    bytes: int


class Backlog:
    """The backlog of one primary in one secondary."""

    def __init__(
        self,
        primary: str | None,
        secondary: str,
        name: str | None,
        count: int = 10,
        *,
        ca_file: str | None = None,
    ) -> None:
        first = naming.parse_connection_string(primary, "primary") if primary else None
        if first is None and name is None:
            raise UsageError(
                "which primary? give its connection string (PAIRBUS_PRIMARY) or --namespace NAME"
            )
        self.name = naming.namespace_name(first.host, first.namespace, name) if first else str(name)
        self._primary = primary
        second = naming.parse_connection_string(secondary, "secondary")
        self._secondary, self._host = second.text, second.host
        self._count = count
        self._trust: dict[str, Any] = {"connection_verify": ca_file} if ca_file else {}

    @asynccontextmanager
    async def _client(self) -> AsyncIterator[ServiceBusClient]:
        async with ServiceBusClient.from_connection_string(
            self._secondary, retry_total=1, **reaching(self._secondary), **self._trust
        ) as client:
            yield client

    def _primary_client(self, connection_string: str) -> ServiceBusClient:
        return ServiceBusClient.from_connection_string(
            connection_string, retry_total=1, **reaching(connection_string), **self._trust
        )

    async def queues(self) -> list[QueueRow]:
        """Every backlog queue with its counts; extra ones included."""
        async with self._client() as client:
            management = Management(client, self._trust, self._host)
            try:
                found = await management.backlog_queues(self.name)
            except NoManageRight as error:
                raise PairingError(
                    "the secondary does not let its queues be listed: use a key that is right and may manage it"
                ) from error
            rows = []
            for queue in sorted(found, key=lambda queue: queue.index):
                total = await management.message_count(queue.name)
                aside = await management.dead_letter_count(queue.name)
                waiting = None if total is None else total - (aside or 0)
                rows.append(QueueRow(queue.name, waiting, aside, queue.index >= self._count))
            return rows

    async def messages(self, queue: str, limit: int, *, set_aside: bool) -> list[MessageRow]:
        """Messages of one queue, browsed without locking them."""
        async with self._client() as client, _receiver(client, queue, set_aside=set_aside) as receiver:
            rows: list[MessageRow] = []
            position = 1
            while len(rows) < limit:
                page = await receiver.peek_messages(
                    max_message_count=min(PAGE, limit - len(rows)), sequence_number=position
                )
                if not page:
                    break
                rows += [_row(queue, message) for message in page]
                position = int(page[-1].sequence_number or 0) + 1
            return rows

    async def redrive(self, queue: str, reason: str | None = None) -> int:
        """Put set-aside messages back into their backlog queue; how many."""
        moved = 0
        async with self._client() as client, _receiver(client, queue, set_aside=True) as receiver:
            sender: Any = client.get_queue_sender(queue)
            async with sender:
                others: list[Any] = []
                while messages := await receiver.receive_messages(
                    max_message_count=PAGE, max_wait_time=WAIT_SECONDS
                ):
                    for message in messages:
                        payload = wire.payload_of(message)
                        if payload is None or (reason is not None and _reason(message) != reason):
                            others.append(message)
                            continue
                        batch = wire.new_batch(BACKLOG_LIMIT_BYTES * 4, sender)
                        wire.batch_of(batch, [parking.without_dead_letter_marks(payload)])
                        # Sent before completed: a crash in between repeats it, with the same message id.
                        await sender.send_messages(batch)
                        await receiver.complete_message(message)
                        moved += 1
                for message in others:
                    await receiver.abandon_message(message)
        return moved

    async def purge(self, queue: str, reason: str | None = None) -> int:
        """Remove set-aside messages for good; how many."""
        removed = 0
        async with self._client() as client, _receiver(client, queue, set_aside=True) as receiver:
            others: list[Any] = []
            while messages := await receiver.receive_messages(
                max_message_count=PAGE, max_wait_time=WAIT_SECONDS
            ):
                for message in messages:
                    if reason is not None and _reason(message) != reason:
                        others.append(message)
                        continue
                    await receiver.complete_message(message)
                    removed += 1
            for message in others:
                await receiver.abandon_message(message)
        return removed

    async def syphon(
        self,
        queues: list[str],
        *,
        once: bool,
        counters: Counters,
        ledger: Path | None = None,
        not_found: NotFoundPolicy = "dead-letter",
        life: Life = "freeze",
        primary_aliases: Sequence[str] = (),
        tell: Told = lambda kind, subject, text: None,  # noqa: ARG005 - nobody listens unless told
        started: Any = None,
    ) -> None:
        """Bring messages home until stopped, or once."""
        if self._primary is None:
            raise UsageError("draining needs the primary's connection string: set PAIRBUS_PRIMARY")
        async with self._client() as secondary:
            primary = self._primary_client(self._primary)
            syphon, book = build(
                primary,
                secondary,
                queues,
                name=self.name,
                identity=naming.PrimaryIdentity.make(wire.address_of(primary), primary_aliases),
                counters=counters,
                ledger=ledger,
                not_found=not_found,
                life=life,
                tell=tell,
            )
            if started is not None:
                started(syphon)
            try:
                await syphon.run(once=once)
            finally:
                book.close()
                await close_clients(primary, secondary)


@asynccontextmanager
async def _receiver(client: ServiceBusClient, queue: str, *, set_aside: bool) -> AsyncIterator[Any]:
    options: dict[str, Any] = {"sub_queue": ServiceBusSubQueue.DEAD_LETTER} if set_aside else {}
    receiver = client.get_queue_receiver(queue, **options)
    async with receiver:
        wire.keep_payloads(receiver)
        yield receiver


def _reason(message: Any) -> str | None:
    payload = wire.payload_of(message)
    return None if payload is None else parking.dead_letter_reason(payload)


def _row(queue: str, message: Any) -> MessageRow:
    properties = {
        key.decode() if isinstance(key, bytes) else key: value.decode("utf-8", "replace")
        if isinstance(value, bytes)
        else value
        for key, value in (message.application_properties or {}).items()
    }
    reason = properties.get("DeadLetterReason")
    if reason is None:
        try:
            reason = parking.Passport.parse(str(properties.get(parking.ALIAS_PASSPORT, ""))).reason
        except ValueError:
            reason = None
    enqueued = message.enqueued_time_utc
    return MessageRow(
        queue,
        int(message.sequence_number or 0),
        str(message.message_id) if message.message_id is not None else None,
        properties.get(parking.ALIAS_PATH),
        properties.get(parking.ALIAS_SESSION),
        enqueued.isoformat() if enqueued is not None else None,
        reason,
        properties.get("DeadLetterErrorDescription"),
        len(str(message)),
    )
