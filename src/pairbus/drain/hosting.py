"""A syphon on two official clients: what ``pairbus syphon`` runs and what a paired client hosts."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pairbus.drain.azure_ports import AzureInbox, AzureOutlet
from pairbus.drain.ledger import Ledger
from pairbus.drain.plan import DrainPlan, NotFoundPolicy
from pairbus.drain.restoring import Life
from pairbus.drain.shell import STOP_SECONDS, Syphon, Told
from pairbus.pairing.clock import steady_ms, wall_ms
from pairbus.pairing.naming import PrimaryIdentity
from pairbus.pairing.statistics import Counters
from pairbus.sdk import client_settings

if TYPE_CHECKING:
    from azure.servicebus.aio import ServiceBusClient

    from pairbus.pairing.scheduled import ParkedSchedule

START_SECONDS: Final = 15.0
CLOSE_SECONDS: Final = 1.0
"""How long the clients of a syphon that has ended may take to close."""
STOP_SHARE: Final = 0.7
"""The part of the time given for a stop that the pumps get; the rest is for closing the clients."""


def ledger_directory() -> Path:
    """Where ledgers are kept unless told otherwise: ``PAIRBUS_STATE_DIR``, or the user's data directory."""
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
    life: Life = "freeze",
    is_blocked: Callable[[str], bool] = lambda path: False,  # noqa: ARG005 - nobody blocks unless told
    tell: Told = lambda kind, subject, text: None,  # noqa: ARG005 - nobody listens unless told
) -> tuple[Syphon, Ledger]:
    """A syphon from ``secondary``'s backlog queues to ``primary``, and its ledger, which the caller closes.

    Messages that were parked for another primary than ``identity`` are dead-lettered in the backlog; unless given, it
    is the address of ``primary``.
    """
    if identity is None:
        identity = PrimaryIdentity.make(client_settings.address_of(primary))
    book = Ledger.open(ledger if ledger is not None else ledger_directory(), name)
    syphon = Syphon(
        [AzureInbox(secondary, queue, steady_ms, wall_ms) for queue in queues],
        AzureOutlet(primary),
        plan=DrainPlan(not_found=not_found, is_blocked=is_blocked),
        ledger=book,
        counters=counters,
        clock=steady_ms,
        wall_clock=wall_ms,
        life=life,
        tell=tell,
        identity=identity,
    )
    return syphon, book


class DrainThread:
    """A syphon in a thread and an event loop of its own, for programs that have none."""

    def __init__(
        self,
        make: Callable[[], tuple[Syphon, Ledger, list[ServiceBusClient]]],
        ended: Callable[[Exception], None],
    ) -> None:
        self._make = make
        self._started: Future[Syphon] = Future()
        self._ended = ended
        self._is_unwanted = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="pairbus-syphon", daemon=True)

    def start(self) -> Syphon:
        """Start, and return once the pumps run."""
        self._thread.start()
        try:
            return self._started.result(START_SECONDS)
        except TimeoutError:
            self._is_unwanted = True
            raise

    def call(self, function: Callable[[Syphon], None]) -> None:
        """Do something with the syphon in its own thread; nothing when it has ended."""
        if self._loop is not None and not self._loop.is_closed() and self._started.done():
            try:
                self._loop.call_soon_threadsafe(function, self._started.result())
            except RuntimeError:
                return  # it ended between the question and the call

    def withdraw(self, handle: ParkedSchedule, seconds: float) -> bool:
        """Ask the syphon to remove a message that it holds. False when it does not, has ended, or takes too long."""
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
        """Stop the pumps and wait for their end."""
        self.call(lambda syphon: syphon.stop(min(STOP_SECONDS, seconds * STOP_SHARE)))
        self._thread.join(seconds)

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except Exception as error:  # noqa: BLE001 - it goes to whoever waits for the start, or is told
            if self._started.done():
                self._ended(error)
            else:
                self._started.set_exception(error)

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        syphon, book, clients = self._make()
        self._started.set_result(syphon)
        try:
            if not self._is_unwanted:
                await syphon.run()
        finally:
            book.close()
            await close_clients(*clients)


async def close_clients(*clients: ServiceBusClient) -> None:
    """Close official clients, and leave those behind that do not close soon."""
    closing = [asyncio.ensure_future(client.close()) for client in clients]
    _, late = await asyncio.wait(closing, timeout=CLOSE_SECONDS)
    for task in late:
        task.cancel()
    await asyncio.gather(*closing, return_exceptions=True)
