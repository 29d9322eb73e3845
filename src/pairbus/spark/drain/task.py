"""One Spark task's share of a drain: the drain's shell with a budget, and a ledger row for each message.

A task has no list of sends in doubt that outlives it, because its machine may be gone. A killed task therefore repeats
at most the messages it had in flight, ``window`` of them, or twice as many while a destination does not answer (P36).
Nothing is lost: a message leaves the backlog only after the primary accepted it (P34, P35).
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Final

from azure.servicebus.aio import ServiceBusClient

from pairbus.drain.azure_ports import AzureInbox, AzureOutlet
from pairbus.drain.closing import close_all
from pairbus.drain.in_doubt import DoubtfulSends
from pairbus.drain.lookups.older import FOLLOW_MS
from pairbus.drain.ports import Budget, Inbox, Observer, Outlet
from pairbus.drain.rules.message import BacklogMessage
from pairbus.drain.rules.order import OrderPolicy
from pairbus.drain.rules.plan import DrainPlan, NotFoundPolicy
from pairbus.drain.rules.restoring import TimeToLivePolicy
from pairbus.drain.shell import Drain
from pairbus.pairing.clock import steady_ms, wall_ms
from pairbus.pairing.naming import PrimaryIdentity
from pairbus.pairing.statistics import Counters
from pairbus.sdk.addresses import connect
from pairbus.sdk.connection_string import parse_connection_string
from pairbus.sdk.trust import trusting
from pairbus.spark.drain.report import TIME_IS_UP
from pairbus.spark.drain.rows import LOCK_LOST, MOVED, SET_ASIDE, WAITING, LedgerRow

logger = logging.getLogger("pairbus.syphon")

WINDOW: Final = 300
"""Messages one task may have locked, over all its queues; as many again where others lie behind stalled ones."""
MESSAGES_MAX: Final = 50_000
"""What one task moves in a slice at the most: its ledger rows are held in memory until it ends."""
IDLE_SECONDS: Final = 1.0
REASON_CHARACTERS_MAX: Final = 300
CLOSE_SECONDS: Final = 5.0
_SECRETS: Final = ("primary", "secondary")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSettings:
    """What every task of a drain needs to know.

    Args:
        primary: Connection string of the primary.
        secondary: Connection string of the secondary.
        seconds: How long the task receives and sends.
        window: How many messages it may have locked, over all its queues.
        messages_max: How many messages it receives at the most.
        idle_seconds: A queue that delivers nothing for so long is done.
        not_found: What happens to messages whose destination does not exist.
        time_to_live: Whether time in the backlog counts.
        primary_aliases: Further addresses of the primary; messages parked for one of them are its own.
        order: Which messages are kept in the order of their backlog queue, besides those of clients that keep one.
        follow_seconds: How long a message waits for the one of another backlog queue that it follows.
        authorities: Certificate authorities to trust besides the public ones, as text: an executor has no file of ours.
    """

    primary: str = field(repr=False)
    secondary: str = field(repr=False)
    seconds: float = 10.0
    window: int = WINDOW
    messages_max: int = MESSAGES_MAX
    idle_seconds: float = IDLE_SECONDS
    not_found: NotFoundPolicy = "dead-letter"
    time_to_live: TimeToLivePolicy = "freeze"
    primary_aliases: tuple[str, ...] = ()
    order: OrderPolicy = "relaxed"
    follow_seconds: float = FOLLOW_MS / 1000
    authorities: str = field(default="", repr=False)

    def as_json(self) -> str:
        """The settings without the connection strings, which travel as options that Spark redacts."""
        return json.dumps({name: value for name, value in asdict(self).items() if name not in _SECRETS})

    @staticmethod
    def from_json(text: str, primary: str, secondary: str) -> TaskSettings:
        """The settings that ``as_json`` wrote, with the connection strings."""
        values = json.loads(text)
        values["primary_aliases"] = tuple(values["primary_aliases"])
        return TaskSettings(primary=primary, secondary=secondary, **values)


class Rows(Observer):
    """Writes a ledger row for everything that happens to a message."""

    def __init__(self, wall_clock: Callable[[], int] = wall_ms) -> None:
        self.rows: list[LedgerRow] = []
        self._wall_clock = wall_clock

    def completed(self, message: BacklogMessage, *, is_lock_lost: bool) -> None:
        self._add(message, LOCK_LOST if is_lock_lost else MOVED, "")

    def dead_lettered(self, message: BacklogMessage, reason: str, description: str) -> None:
        self._add(message, SET_ASIDE, f"{reason}: {description}")

    def released(self, message: BacklogMessage, reason: str) -> None:
        self._add(message, WAITING, reason or TIME_IS_UP)

    def order_given_up(self, message: BacklogMessage, sentence: str) -> None:
        logger.warning("%s", sentence, extra={"event": "syphon.order_given_up", "queue": message.queue})

    def waits(self, queue: str, sentence: str) -> None:
        logger.info("%s", sentence, extra={"event": "syphon.waits", "queue": queue})

    def queue_failed(self, queue: str, reason: str) -> None:
        """Note that a backlog queue could not be drained: the driver plans it again."""
        self._add(BacklogMessage(queue, 0, "", b"", "", None, None, 0, attempt=0), WAITING, reason)

    def _add(self, message: BacklogMessage, outcome: str, reason: str) -> None:
        self.rows.append(
            LedgerRow(
                message.queue,
                message.sequence_number,
                message.message_id,
                message.path.strip("/"),
                outcome,
                reason[:REASON_CHARACTERS_MAX],
                message.enqueued_ms or 0,
                self._wall_clock(),
                message.attempt,
            )
        )


def task_drain(
    settings: TaskSettings,
    inboxes: Sequence[Inbox],
    outlet: Outlet,
    rows: Rows,
    *,
    identity: PrimaryIdentity | None = None,
    clock: Callable[[], int] = steady_ms,
    wall_clock: Callable[[], int] = wall_ms,
) -> Drain:
    """The drain that a task runs."""
    # The plan counts per queue; the promise is per task.
    window = max(1, settings.window // max(1, len(inboxes)))
    return Drain(
        inboxes,
        outlet,
        plan=DrainPlan(not_found=settings.not_found, window=window, ready_max=window),
        doubts=DoubtfulSends(),
        counters=Counters(),
        clock=clock,
        wall_clock=wall_clock,
        time_to_live=settings.time_to_live,
        observer=rows,
        identity=identity,
        budget=Budget(settings.seconds, settings.messages_max, settings.idle_seconds),
        order=settings.order,
        follow_ms=int(settings.follow_seconds * 1000),
    )


class Task:
    """Drains some backlog queues until they are empty or the budget is spent."""

    def __init__(self, settings: TaskSettings, queues: Sequence[str]) -> None:
        self._rows = Rows()
        self._clients = [_client(settings, settings.primary, 0), _client(settings, settings.secondary, 1)]
        hosts = parse_connection_string(settings.primary, "primary").hosts
        self._drain = task_drain(
            settings,
            [AzureInbox(self._clients[1], queue, steady_ms, wall_ms) for queue in queues],
            AzureOutlet(self._clients[0]),
            self._rows,
            identity=PrimaryIdentity.make(hosts, settings.primary_aliases),
        )

    async def run(self) -> list[LedgerRow]:
        """Drain; returns what became of each message."""
        try:
            await self._drain.run()
        finally:
            await close_all(self._clients, CLOSE_SECONDS)
        for problem in self._drain.problems():
            self._rows.queue_failed(problem.subject, f"{problem.subject}: {problem.reason}")
        return self._rows.rows

    def stop(self) -> None:
        """Let ``run`` return soon."""
        self._drain.stop()


def _client(settings: TaskSettings, connection_string: str, retries: int) -> ServiceBusClient:
    client: ServiceBusClient = connect(
        ServiceBusClient,
        connection_string,
        retry_total=retries,
        logging_enable=False,
        ssl_context=trusting(settings.authorities),
    )
    return client


def run_task(settings: TaskSettings, queues: Sequence[str]) -> list[LedgerRow]:
    """Drain in this process until done; for a Spark task."""

    async def main() -> list[LedgerRow]:
        return await Task(settings, queues).run()

    return asyncio.run(main())
