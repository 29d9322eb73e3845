"""What is in the backlog, shown as the originals; dead-lettered messages inspected, redriven or deleted."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from azure.servicebus import ServiceBusSubQueue
from azure.servicebus.aio import ServiceBusClient

from pairbus.drain.azure_ports import SEND_SECONDS, AzureInbox
from pairbus.drain.closing import close_all
from pairbus.drain.dead_letters import MayRemove, Removal, remove_dead_letters
from pairbus.drain.hosting import CLOSE_SECONDS, FindNames, build
from pairbus.drain.lookups.older import FOLLOW_MS
from pairbus.drain.lookups.search import no_queues
from pairbus.drain.ports import Observer
from pairbus.drain.redriving import redriven
from pairbus.drain.rules.order import OrderPolicy
from pairbus.drain.rules.plan import DESTINATION_NOT_FOUND, NotFoundPolicy
from pairbus.drain.rules.problems import Problem, refuses_receivers
from pairbus.drain.rules.restoring import TimeToLivePolicy
from pairbus.drain.senders import one_line
from pairbus.drain.shell import Drain
from pairbus.errors import OtherPrimaryError, PairingError, UsageError
from pairbus.pairing import naming, parking
from pairbus.pairing.client.backlog.management import Management
from pairbus.pairing.client.sending.limits import BACKLOG_LIMIT_BYTES
from pairbus.pairing.clock import steady_ms, wall_ms
from pairbus.pairing.runtime.asyncio_runtime import AsyncioRuntime
from pairbus.pairing.statistics import Counters
from pairbus.sdk import client_settings
from pairbus.sdk.addresses import connect
from pairbus.sdk.connection_string import namespace_name, parse_connection_string
from pairbus.sdk.failures import Failure, classify
from pairbus.sdk.links import handlers, receivers
from pairbus.sdk.links.browsing import Browsed, page_of
from pairbus.sdk.management.admin import NoManageRight
from pairbus.sdk.messages import message_bytes
from pairbus.sdk.place import errors_of

PAGE: Final = 100
ASK_SECONDS: Final = 15.0
OPENED_MAX: Final = 10
"""How many backlog queues are opened at a time to see whether they exist."""


@dataclass(frozen=True, slots=True)
class QueueRow:
    name: str
    messages: int | None
    set_aside: int | None
    is_extra: bool
    owner: str = ""
    """Address of the primary that the queue was created for; empty when the queue does not say."""
    problem: str = ""
    """Why nothing can be read from the queue; empty unless that was found out."""


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
    """Why it was parked, or why it was dead-lettered."""
    description: str | None
    bytes: int
    """The size of the encoded message."""


@dataclass(frozen=True, slots=True)
class Redriven:
    """What became of the dead-lettered messages of one backlog queue that should go back."""

    moved: int = 0
    missing: dict[str, int] = field(default_factory=dict)
    """Messages that stay, because their destination does not exist in the primary, by destination."""
    removal: Removal = field(default_factory=Removal)
    """What became of the dead-letter queue itself."""
    is_checked: bool = False
    """Whether the primary could be asked for its entities."""


def _unseen(_done: int) -> None:
    """Nobody watches how far it has come."""


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
        first = parse_connection_string(primary, "primary") if primary else None
        if first is None and name is None:
            raise UsageError(
                "which primary? give its connection string (PAIRBUS_PRIMARY) or --namespace NAME"
            )
        self.name = namespace_name(first.host, first.namespace, name) if first else str(name)
        self._primary = primary
        self._addresses = first.hosts if first else ()
        second = parse_connection_string(secondary, "secondary")
        self._secondary, self._host = second.text, second.host
        self._shown = ",".join(second.hosts)
        self._count = count
        self._trust: dict[str, Any] = {"connection_verify": ca_file} if ca_file else {}

    def _client(self, connection_string: str) -> ServiceBusClient:
        client: ServiceBusClient = connect(ServiceBusClient, connection_string, retry_total=1, **self._trust)
        return client

    @asynccontextmanager
    async def _of_the_secondary(self) -> AsyncIterator[ServiceBusClient]:
        with errors_of(f"the secondary {self._shown}"):
            async with self._client(self._secondary) as client:
                yield client

    def names(self) -> list[str]:
        """The names of the usual backlog queues, whether they exist or not."""
        return [naming.backlog_queue(self.name, index) for index in range(self._count)]

    async def queues(self, names: Sequence[str] | None = None) -> list[QueueRow]:
        """Every backlog queue with its counts; extra ones included.

        A key without Manage may not list queues. Then those of ``names`` that exist are opened instead, without counts.

        Raises:
            PairingError: The key may not list queues, and there are no names.
        """
        async with self._of_the_secondary() as client:
            management = Management(AsyncioRuntime(), client, self._trust, self._host)
            try:
                found = await management.backlog_queues(self.name)
            except NoManageRight as error:
                if names is None:
                    raise PairingError(
                        "the secondary does not let its queues be listed: use a key that is right and may manage it, or say "
                        "with --queues N, and without --extra, how many backlog queues there are"
                    ) from error
                return await self._open_all(client, names)
            rows = []
            for queue in sorted(found, key=lambda queue: queue.index):
                total = await management.message_count(queue.name)
                aside = await management.dead_letter_count(queue.name)
                waiting = None if total is None else total - (aside or 0)
                rows.append(QueueRow(queue.name, waiting, aside, queue.index >= self._count, queue.owner))
            return rows

    async def appeared(self, known: Collection[str]) -> list[QueueRow]:
        """Backlog queues that are not among the known ones, given by their ``entity_key``; without counts."""
        async with self._of_the_secondary() as client:
            management = Management(AsyncioRuntime(), client, self._trust, self._host)
            try:
                found = await management.backlog_queues(self.name)
            except NoManageRight:
                names = [name for name in self.names() if naming.entity_key(name) not in known]
                try:
                    return await self._open_all(client, names)
                except Exception as error:
                    if known and classify(error) is Failure.UNAUTHORIZED:
                        return []  # the key is for those that are known
                    raise
            return [
                QueueRow(queue.name, None, None, queue.index >= self._count, queue.owner)
                for queue in found
                if naming.entity_key(queue.name) not in known
            ]

    async def nothing_found(self) -> tuple[str, bool]:
        """A sentence about a secondary without backlog queues of this primary, and whether it has those of others."""
        async with self._of_the_secondary() as client:
            management = Management(AsyncioRuntime(), client, self._trust, self._host)
            try:
                others = await management.primaries()
            except NoManageRight:
                others = []
        return no_queues(self.name, others), bool(others)

    async def _open_all(self, client: ServiceBusClient, names: Sequence[str]) -> list[QueueRow]:
        """Those of the backlog queues that exist and that the key may listen to. Raises when it may listen to none."""
        turns = asyncio.Semaphore(OPENED_MAX)
        known = {
            index: name for name in names if (index := naming.backlog_index(self.name, name)) is not None
        }
        opened = await asyncio.gather(
            *(self._open(client, known[index], index, turns) for index in sorted(known)),
            return_exceptions=True,
        )
        rows = [row for row in opened if isinstance(row, QueueRow)]
        for error in opened:
            if isinstance(error, BaseException):
                failure = classify(error)
                if failure is not Failure.NOT_FOUND and (failure is not Failure.UNAUTHORIZED or not rows):
                    raise error
        return rows

    async def _open(
        self, client: ServiceBusClient, name: str, index: int, turns: asyncio.Semaphore
    ) -> QueueRow:
        """A backlog queue, with the owner that its first message names, or with the reason why it does not show it."""
        is_extra = index >= self._count
        try:
            async with turns, _receiver(client, name, False) as receiver:
                page = await page_of(receiver, 1, 1)
        except Exception as error:
            # The key of one queue is unknown at another one, which need not exist.
            problem = "" if classify(error) is Failure.UNAUTHORIZED else why_unreadable(name, error)
            if not problem:
                raise
            return QueueRow(name, None, None, is_extra, problem=problem)
        passport = page[0].text_property(parking.ALIAS_PASSPORT) if page else None
        owner = parking.passport_primary({parking.ALIAS_PASSPORT: passport})
        return QueueRow(name, None, None, is_extra, owner)

    def check_owner(self, rows: Sequence[QueueRow], primary_aliases: Sequence[str] = ()) -> None:
        """Refuse backlog queues that were created for another primary of the same name, before a message is touched.

        Raises:
            OtherPrimaryError: A queue belongs to another primary, and no alias names it.
        """
        if not self._addresses:
            return
        identity = naming.PrimaryIdentity.make(self._addresses, primary_aliases)
        for row in rows:
            if not identity.accepts(row.owner):
                raise OtherPrimaryError(row.name, row.owner, identity.address)

    async def messages(self, queue: str, limit: int, *, is_dead: bool) -> list[MessageRow]:
        """Messages of one queue, or of its dead-letter queue, browsed without locking them."""
        rows: list[MessageRow] = []
        position = 1
        async with self._of_the_secondary() as client, _receiver(client, queue, is_dead) as receiver:
            while page := await page_of(receiver, position, min(PAGE, limit - len(rows))):
                rows += [row_of(queue, browsed) for browsed in page]
                position = max(position, page[-1].sequence_number) + 1
                if len(rows) >= limit:
                    break
        return rows

    async def redrive(
        self, queue: str, reason: str | None = None, progress: Callable[[int], None] = _unseen
    ) -> Redriven:
        """Put dead-lettered messages back into their backlog queue, at its end: behind younger ones of their session.

        A message whose destination does not exist in the primary stays: the drain would dead-letter it again.
        """
        moved = 0
        missing: Counter[str] = Counter()
        async with (
            self._of_the_secondary() as client,
            self._destinations() as destinations,
            client.get_queue_sender(queue) as sender,
        ):

            async def send_back(payload: bytes, found: str | None) -> bool:
                nonlocal moved
                path = Browsed.of(payload).text_property(parking.ALIAS_PATH) or ""
                if found == DESTINATION_NOT_FOUND and await destinations.is_missing(path):
                    missing[path] += 1
                    return False
                batch = message_bytes.new_batch(BACKLOG_LIMIT_BYTES * 4, sender)
                message_bytes.batch_of(batch, [redriven(payload)])
                # Sent before completed: a crash in between repeats it, with the same message id.
                await sender.send_messages(batch, timeout=SEND_SECONDS)
                moved += 1
                return True

            done = await _remove(client, queue, reason, send_back, progress)
        return Redriven(moved, dict(missing), done, destinations.is_reachable)

    @asynccontextmanager
    async def _destinations(self) -> AsyncIterator[_Destinations]:
        if self._primary is None:
            yield _Destinations(None)
            return
        async with self._client(self._primary) as client:
            yield _Destinations(client)

    async def purge(
        self, queue: str, reason: str | None = None, progress: Callable[[int], None] = _unseen
    ) -> Removal:
        """Remove dead-lettered messages for good."""

        async def agree(_payload: bytes, _found: str | None) -> bool:
            return True

        async with self._of_the_secondary() as client:
            return await _remove(client, queue, reason, agree, progress)

    async def drain(
        self,
        queues: list[str],
        *,
        once: bool,
        counters: Counters,
        ledger: Path | None = None,
        not_found: NotFoundPolicy = "dead-letter",
        time_to_live: TimeToLivePolicy = "freeze",
        primary_aliases: Sequence[str] = (),
        observer: Observer | None = None,
        order: OrderPolicy = "relaxed",
        follow_ms: int = FOLLOW_MS,
        find: FindNames | None = None,
        started: Callable[[Drain], None] = lambda drain: None,  # noqa: ARG005 - not wanted by default
    ) -> None:
        """Deliver messages to the primary until stopped, or once."""
        if self._primary is None:
            raise UsageError("draining needs the primary's connection string: set PAIRBUS_PRIMARY")
        async with self._client(self._secondary) as secondary:
            primary = self._client(self._primary)
            drain, doubts = build(
                primary,
                secondary,
                queues,
                name=self.name,
                identity=naming.PrimaryIdentity.make(client_settings.addresses_of(primary), primary_aliases),
                counters=counters,
                ledger=ledger,
                not_found=not_found,
                time_to_live=time_to_live,
                observer=observer,
                order=order,
                follow_ms=follow_ms,
                find=find,
            )
            started(drain)
            try:
                await drain.run(once=once)
            finally:
                doubts.close()
                await close_all([primary, secondary], CLOSE_SECONDS)


def why_unreadable(queue: str, error: BaseException) -> str:
    """A sentence about one backlog queue from which nothing can be read; empty when the error concerns more than that queue."""
    if not refuses_receivers(error):
        return ""
    return Problem("secondary", queue, classify(error), one_line(error), is_refused=True).sentence()


@asynccontextmanager
async def _receiver(client: ServiceBusClient, queue: str, is_dead: bool) -> AsyncIterator[Any]:
    options: dict[str, Any] = {"sub_queue": ServiceBusSubQueue.DEAD_LETTER} if is_dead else {}
    async with client.get_queue_receiver(queue, **options) as receiver:
        receivers.keep_payloads(receiver)
        yield receiver


async def _remove(
    client: ServiceBusClient,
    queue: str,
    reason: str | None,
    may_remove: MayRemove,
    progress: Callable[[int], None],
) -> Removal:
    inbox = AzureInbox(client, queue, steady_ms, wall_ms, is_dead=True)
    try:
        return await remove_dead_letters(inbox, reason, may_remove, steady_ms, progress)
    finally:
        await inbox.close()


class _Destinations:
    """Which entities the primary has, found out by opening a link for sending; asked once for each."""

    def __init__(self, client: ServiceBusClient | None) -> None:
        self._client = client
        self._missing: dict[str, bool] = {}
        self.is_reachable = client is not None

    async def is_missing(self, path: str) -> bool:
        """Whether the primary is known to have no such entity."""
        key = naming.entity_key(path)
        if self._client is None or not self.is_reachable or not path:
            return False
        if key not in self._missing:
            sender = self._client.get_queue_sender(path)
            handlers.set_retries(sender, 0)
            try:
                async with asyncio.timeout(ASK_SECONDS), sender:
                    self._missing[key] = False
            except Exception as error:  # noqa: BLE001 - every error is an answer to judge
                failure = classify(error)
                self._missing[key] = failure is Failure.NOT_FOUND
                self.is_reachable = failure not in (Failure.CONNECTION, Failure.TIMEOUT)
        return self._missing[key]


def row_of(queue: str, browsed: Browsed) -> MessageRow:
    """A row for a browsed backlog message, whatever AMQP types its writer used."""
    reason = browsed.text_property("DeadLetterReason")
    if reason is None:
        try:
            reason = parking.Passport.parse(browsed.text_property(parking.ALIAS_PASSPORT) or "").reason
        except (ValueError, TypeError, ArithmeticError, RecursionError):
            reason = None
    message_id = parking.message_id_text(browsed.message_id)
    return MessageRow(
        queue,
        browsed.sequence_number,
        message_id or None,
        browsed.text_property(parking.ALIAS_PATH),
        browsed.text_property(parking.ALIAS_SESSION),
        _when(browsed.enqueued_ms),
        reason,
        browsed.text_property("DeadLetterErrorDescription"),
        len(browsed.payload),
    )


def _when(ms: int | None) -> str | None:
    try:
        return None if ms is None else datetime.fromtimestamp(ms / 1000, UTC).isoformat()
    except (ValueError, OverflowError, OSError):
        return None
