"""A drain on two clients of the SDK: what ``pairbus syphon`` runs and what a paired client hosts."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Awaitable, Callable, Collection, Sequence
from concurrent.futures import CancelledError, Future
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pairbus.drain.azure_ports import AzureInbox, AzureOutlet
from pairbus.drain.closing import close_all
from pairbus.drain.in_doubt import DoubtfulSends
from pairbus.drain.lookups.older import FOLLOW_MS
from pairbus.drain.ports import Observer
from pairbus.drain.rules.message import BacklogMessage
from pairbus.drain.rules.order import OrderPolicy
from pairbus.drain.rules.plan import DrainPlan, NotFoundPolicy
from pairbus.drain.rules.restoring import TimeToLivePolicy
from pairbus.drain.shell import STOP_SECONDS, Drain
from pairbus.pairing.clock import steady_ms, wall_ms
from pairbus.pairing.events import Kind
from pairbus.pairing.naming import PrimaryIdentity, entity_key
from pairbus.pairing.statistics import Counters
from pairbus.sdk import client_settings
from pairbus.sdk.failures import Failure

if TYPE_CHECKING:
    from azure.servicebus.aio import ServiceBusClient

    from pairbus.pairing.scheduled import ParkedSchedule

START_SECONDS: Final = 15.0
CLOSE_SECONDS: Final = 1.0
"""How long the clients of a drain that has ended may take to close."""
STOP_SHARE: Final = 0.7
"""The part of the time given for a stop that the drain gets; the rest is for closing the clients."""


FindNames = Callable[[Collection[str]], Awaitable[Sequence[str]]]
"""The names of backlog queues to drain that exist and are not among those, given by their ``entity_key``."""

logger = logging.getLogger("pairbus.syphon")


def ledger_directory() -> Path:
    """The default directory for sends in doubt: below ``PAIRBUS_STATE_DIR``, or in the user's data directory."""
    given = os.environ.get("PAIRBUS_STATE_DIR")
    if given:
        return Path(given) / "syphon"
    base = os.environ.get("XDG_DATA_HOME")
    return (Path(base) if base else Path.home() / ".local" / "share") / "pairbus" / "syphon"


def build(
    primary: ServiceBusClient,
    secondary: ServiceBusClient,
    queues: Sequence[str],
    *,
    name: str,
    identity: PrimaryIdentity | None = None,
    counters: Counters,
    ledger: Path | None = None,
    not_found: NotFoundPolicy = "dead-letter",
    time_to_live: TimeToLivePolicy = "freeze",
    is_blocked: Callable[[str], bool] = lambda path: False,  # noqa: ARG005 - nothing is blocked by default
    observer: Observer | None = None,
    order: OrderPolicy = "relaxed",
    follow_ms: int = FOLLOW_MS,
    find: FindNames | None = None,
) -> tuple[Drain, DoubtfulSends]:
    """A drain from ``secondary``'s backlog queues to ``primary``, and its sends in doubt, which the caller closes.

    Messages that were parked for another primary than ``identity`` are dead-lettered in the backlog; unless given, it
    is the address of ``primary``. ``find``: finds the names of further backlog queues while the drain runs. Messages of clients that keep an order are drained in order whatever ``order`` says.
    """
    doubts = DoubtfulSends.open(ledger if ledger is not None else ledger_directory(), name)

    def inboxes(names: Sequence[str]) -> list[AzureInbox]:
        return [AzureInbox(secondary, name, steady_ms, wall_ms) for name in names]

    async def find_inboxes(known: Collection[str]) -> list[AzureInbox]:
        return inboxes(await find(known)) if find is not None else []

    drain = Drain(
        inboxes(queues),
        AzureOutlet(primary),
        plan=DrainPlan(not_found=not_found, is_blocked=is_blocked),
        doubts=doubts,
        counters=counters,
        clock=steady_ms,
        wall_clock=wall_ms,
        time_to_live=time_to_live,
        observer=observer,
        identity=identity or PrimaryIdentity.make(client_settings.addresses_of(primary)),
        order=order,
        follow_ms=follow_ms,
        find=None if find is None else find_inboxes,
    )
    return drain, doubts


def those_that_open(secondary: ServiceBusClient, names: Sequence[str]) -> FindNames:
    """Finds those of some backlog queues that exist and show their messages: one operation for each that was not known."""

    async def find(known: Collection[str]) -> list[str]:
        found = []
        for name in names:
            if entity_key(name) in known:
                continue
            inbox = AzureInbox(secondary, name, steady_ms, wall_ms)
            try:
                await inbox.browse(1, 1)
                found.append(name)
            except Exception:
                logger.debug("%s does not open", name, exc_info=True)
            finally:
                await inbox.close()
        return found

    return find


class EventObserver(Observer):
    """Passes what a paired client's listeners should know on as events.

    The client's own health events say which destinations are unavailable.
    """

    def __init__(
        self,
        emit: Callable[[Kind, str, str], None],
        deleted: Callable[[str], None],
        unfit: Callable[[str, str], None],
    ) -> None:
        self._emit = emit
        self._deleted = deleted
        self._unfit = unfit

    def deleted(self, queue: str) -> None:
        self._deleted(queue)

    def drained(self, queue: str) -> None:
        self._emit(Kind.DRAINED, queue, "every message received so far is delivered")

    def dead_lettered(self, message: BacklogMessage, reason: str, description: str) -> None:
        self._emit(
            Kind.SET_ASIDE, message.queue, f"message {message.sequence_number}: {reason}: {description}"
        )

    def order_given_up(self, message: BacklogMessage, sentence: str) -> None:
        self._emit(Kind.ORDER_GIVEN_UP, message.queue, sentence)

    def waits(self, queue: str, sentence: str) -> None:
        self._emit(Kind.DRAIN_WAITS, queue, sentence)

    def refused(self, queue: str, failure: Failure, sentence: str) -> None:
        needs = ". The drain needs the right to listen" if failure is Failure.UNAUTHORIZED else ""
        self._emit(Kind.SYPHON_REFUSED, queue, f"nothing is drained: {sentence}{needs}")
        if failure is Failure.INVALID:
            self._unfit(queue, sentence)


class DrainThread:
    """A drain in a thread and an event loop of its own, for programs that have none.

    Args:
        make: Builds the drain, inside the thread: the drain, its sends in doubt, and the clients to close at the end.
        failed: Called with the error of a drain that ended by itself.
    """

    def __init__(
        self,
        make: Callable[[], tuple[Drain, DoubtfulSends, list[ServiceBusClient]]],
        failed: Callable[[Exception], None],
    ) -> None:
        self._make = make
        self._started: Future[Drain] = Future()
        self._failed = failed
        self._is_unwanted = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="pairbus-syphon", daemon=True)

    def start(self) -> Drain:
        """Start, and return once the drain runs."""
        self._thread.start()
        try:
            return self._started.result(START_SECONDS)
        except BaseException:
            # Too late, or interrupted: it may have begun in this moment.
            self._is_unwanted = True
            self.call(lambda drain: drain.stop(0.0))
            raise

    def call(self, function: Callable[[Drain], None]) -> None:
        """Call a function with the drain in its own thread; nothing when it has ended."""
        if self._loop is not None and not self._loop.is_closed() and self._started.done():
            try:
                self._loop.call_soon_threadsafe(function, self._started.result())
            except RuntimeError:
                return  # it ended between the question and the call

    def withdraw(self, handle: ParkedSchedule, seconds: float) -> bool:
        """Ask the drain to remove a message that it holds. False when it does not, has ended, or takes too long."""
        if self._loop is None or self._loop.is_closed() or not self._started.done():
            return False
        detour = (handle.factory, handle.detour)
        work = self._started.result().withdraw(handle.queue, handle.message_id, detour)
        try:
            asked = asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:
            work.close()  # it ended between the question and the call
            return False
        try:
            return asked.result(seconds)
        except (TimeoutError, CancelledError):
            asked.cancel()
            return False

    def stop(self, seconds: float) -> None:
        """Stop the drain and wait for its end. A call from within the drain does not wait: that ends after the call."""
        self.call(lambda drain: drain.stop(min(STOP_SECONDS, seconds * STOP_SHARE)))
        if threading.current_thread() is not self._thread:
            self._thread.join(seconds)

    def wait(self, seconds: float) -> bool:
        """Whether it has ended. Waits for that, at most ``seconds``. A call from within the drain does not wait."""
        if threading.current_thread() is not self._thread:
            self._thread.join(seconds)
        return not self.is_running

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except Exception as error:  # noqa: BLE001 - it goes to the thread that waits for the start, or is reported
            if self._started.done():
                self._failed(error)
            else:
                self._started.set_exception(error)

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        drain, doubts, clients = self._make()
        self._started.set_result(drain)
        try:
            if not self._is_unwanted:
                await drain.run()
        finally:
            doubts.close()
            await close_all(clients, CLOSE_SECONDS)
