"""The paired client that ships, with many coroutines on one sender, over a false network on virtual time.

In most worlds the syphon that ships brings the backlog home meanwhile, and is killed now and then.

The seed first draws how cruel to be, then what happens. At the end every promise about what returned, what was stored and
what is left behind is checked.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from datetime import timedelta
from typing import Any, Final

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient

from pairbus import SendAvailabilityOptions
from pairbus.drain.in_doubt import DoubtfulSends
from pairbus.drain.rules.plan import DrainPlan
from pairbus.drain.shell import Drain
from pairbus.pairing.client.aio import PairedServiceBusClient
from pairbus.pairing.client.drain_host import TaskDrainHost
from pairbus.pairing.events import Kind
from pairbus.pairing.naming import TRANSFER_SEGMENT
from pairbus.pairing.outcome import outcome_of
from tests.simulation.false_inbox import FalseInbox, FalseOutlet, Kept
from tests.simulation.false_network import FalseNamespace, false_network
from tests.unit.drain.virtual_loop import VirtualLoop

QUEUES: Final = [f"p/{TRANSFER_SEGMENT}/{index}" for index in range(2)]
HORIZON_S: Final = 20.0
LIFE_S_MAX: Final = 3_600.0
OVERRUN_S: Final = 2.0
"""By how much a send may overrun its time: the grace of its last attempt."""
LEFT_S: Final = 3.0
"""How long after ``close`` the SDK's own timers may still run."""


def _text(host: str) -> str:
    return f"Endpoint=sb://{host}/;SharedAccessKeyName=k;SharedAccessKey=c2VjcmV0"


class ShellWorld:
    """One paired client and everything that happens to it."""

    def __init__(self, seed: int, *, is_calm: bool = False) -> None:
        self.seed = seed
        self.dice = random.Random(f"shell-{seed}")
        dice = self.dice
        self.coroutines = dice.choice([2, 8, 30])
        self.per_coroutine = dice.choice([1, 4, 8])
        self.senders = dice.choice([1, 1, 2])
        self.cancels = dice.choice([0.0, 0.2])
        self.closes = not is_calm and dice.random() < 0.3
        self.faults = [] if is_calm else dice.sample(FAULTS, dice.randrange(4))
        self.enters = dice.random() < 0.5
        self.is_patient = dice.random() < 0.5
        self.pauses = dice.choice([0.3, 0.9])
        self.while_suspect: Any = dice.choice(["wait", "wait", "raise"])
        self.drains = dice.random() < 0.6
        self.crashes = 0 if is_calm else dice.randrange(3)
        """How often the syphon is killed, and another one with an empty ledger takes its place."""
        closing = random.Random(f"closing-{seed}")
        self.gives_up_s = [closing.choice([0.0, 0.001, 0.3, 1.0]) for _ in range(closing.choice([0, 1, 2]))]
        """After how many seconds each caller that closes the client is cancelled, before two of them close it to the end."""
        self.is_hosted = self.drains and not self.crashes and closing.random() < 0.7
        """Whether the client hosts the syphon, as ``enable_syphon`` asks."""
        crowd = random.Random(f"crowd-{seed}")
        if crowd.random() < 0.2:
            self.coroutines, self.per_coroutine = 100, 2  # more than may be in flight
        self.timeouts = crowd.choice([[5, 30], [5, 30], [1, 5, 30]])
        self.numbers = 0
        self.outcomes: dict[int, str] = {}
        self.events: Counter[Kind] = Counter()
        self.strange: list[BaseException] = []
        self.cancelled: list[asyncio.Future[None]] = []

    def run(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Live, close, judge."""
        loop = VirtualLoop()
        loop.set_exception_handler(self._told)
        logging.disable(logging.CRITICAL)
        try:
            with false_network(monkeypatch, loop, self.seed) as (primary, secondary):
                self.primary, self.secondary = primary, secondary
                loop.run_until_complete(self._live())
                self._judge()
        finally:
            logging.disable(logging.NOTSET)
            loop.close()

    def _cancel(self, caller: asyncio.Future[None]) -> None:
        if caller.cancel():
            self.cancelled.append(caller)

    def _told(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """The loop tells of an error that nobody gets."""
        self.strange.append(context.get("exception") or AssertionError(context["message"]))

    # --- what happens -----------------------------------------------------------------------------

    async def _live(self) -> None:
        client = PairedServiceBusClient(
            ServiceBusClient.from_connection_string(_text(self.primary.host)),
            ServiceBusClient.from_connection_string(_text(self.secondary.host)),
            options=SendAvailabilityOptions(
                failover_interval=timedelta(seconds=2 if self.is_patient else 0),
                ping_primary_interval=timedelta(seconds=1),
                while_suspect=self.while_suspect,
            ),
            on_event=lambda event: self.events.update([event.kind]),
            seed=self.seed,
        )
        client._state.paired_with(QUEUES)
        senders = [client.get_queue_sender("orders") for _ in range(self.senders)]
        self.secondary.on_parked = self._parked
        if self.is_hosted:
            client._drain = _Host(self)
            await client._drain.start(client)
        drain = asyncio.ensure_future(self._drain(client)) if self.drains and not self.is_hosted else None
        strikes = [asyncio.ensure_future(self._strike(fault)) for fault in self.faults]
        if self.enters:
            await asyncio.gather(*(sender.__aenter__() for sender in senders), return_exceptions=True)
        count = self.coroutines * self.per_coroutine
        tasks = [
            asyncio.ensure_future(
                self._caller(senders[index % self.senders], range(index, count, self.coroutines))
            )
            for index in range(self.coroutines)
        ]
        for task in tasks:
            if self.dice.random() < self.cancels:
                asyncio.get_running_loop().call_later(self.dice.uniform(0, HORIZON_S / 4), self._cancel, task)
        if self.closes:
            await asyncio.sleep(self.dice.uniform(0, HORIZON_S / 2))
            await self._close(client)
            if self.is_hosted:
                drain = asyncio.ensure_future(self._drain(client))
        try:
            async with asyncio.timeout(LIFE_S_MAX):
                await asyncio.gather(*tasks, *strikes, return_exceptions=True)
        except TimeoutError:
            self.strange.append(AssertionError("sends never ended"))
        await asyncio.sleep(HORIZON_S)
        if self.drains:
            await self._until_home()
        if drain is not None:
            drain.cancel()
            await asyncio.gather(drain, return_exceptions=True)
        self.states = {report.state.value for report in client.health().values()}
        await self._close(client)
        await asyncio.sleep(LEFT_S)
        self.limits = [call for link in client._runtime._links for call in link._limits.until]  # type: ignore[attr-defined]
        self.left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in self.left:
            task.cancel()

    async def _close(self, client: PairedServiceBusClient) -> None:
        for seconds in self.gives_up_s:
            closing = asyncio.ensure_future(client.close())
            await asyncio.sleep(seconds)
            closing.cancel()
            await asyncio.gather(closing, return_exceptions=True)
        await asyncio.gather(client.close(), client.close())

    def _parked(self, queue: str, payload: bytes) -> None:
        self.numbers += 1
        now = round(asyncio.get_running_loop().time() * 1000)
        self.secondary.kept.setdefault(queue, []).append(Kept(self.numbers, payload, now))

    def syphon(
        self, client: PairedServiceBusClient, official: ServiceBusClient, doubts: DoubtfulSends
    ) -> tuple[Drain, FalseOutlet]:
        """The syphon that ships, over the false network."""
        loop = asyncio.get_running_loop()
        outlet = FalseOutlet(official, lambda: round(loop.time() * 1000))
        outlet.namespace = self.primary
        drain = Drain(
            [FalseInbox(self.secondary, queue) for queue in QUEUES],
            outlet,
            plan=DrainPlan(),
            doubts=doubts,
            counters=client._state.counters,
            clock=lambda: round(loop.time() * 1000),
            wall_clock=lambda: round(loop.time() * 1000),
        )
        return drain, outlet

    async def _drain(self, client: PairedServiceBusClient) -> None:
        """The syphon that ships, killed now and then."""
        for life in range(self.crashes + 1):
            official = ServiceBusClient.from_connection_string(_text(self.primary.host))
            syphon, outlet = self.syphon(client, official, DoubtfulSends())
            running = asyncio.ensure_future(syphon.run())
            try:
                if life < self.crashes:
                    await asyncio.sleep(self.dice.uniform(0, HORIZON_S / 2))
                else:
                    await running
            finally:
                if life == self.crashes:
                    syphon.stop()
                else:
                    running.cancel()
                await asyncio.gather(running, return_exceptions=True)
                await outlet.close()
                await official.close()

    async def _until_home(self) -> None:
        try:
            async with asyncio.timeout(LIFE_S_MAX):
                while any(self.secondary.kept.values()):  # noqa: ASYNC110 - on virtual time it costs nothing
                    await asyncio.sleep(0.5)
        except TimeoutError:
            left = sum(len(kept) for kept in self.secondary.kept.values())
            self.strange.append(AssertionError(f"P41: {left} messages are still in the backlog"))

    async def _caller(self, sender: Any, numbers: range) -> None:
        for number in numbers:
            if self.dice.random() < self.pauses:
                await asyncio.sleep(self.dice.uniform(0, HORIZON_S / 4))
            seconds = self.dice.choice(self.timeouts)
            until = asyncio.get_running_loop().time() + seconds + OVERRUN_S
            try:
                await sender.send_messages(ServiceBusMessage(f"<{number}>"), timeout=seconds)
            except BaseException as error:
                self.outcomes[number] = outcome_of(error)
                if isinstance(error, asyncio.CancelledError):
                    raise
                if not isinstance(error, Exception) or _is_our_fault(error):
                    self.strange.append(error)
            else:
                self.outcomes[number] = "ok"
            finally:
                if asyncio.get_running_loop().time() > until:
                    self.strange.append(AssertionError(f"P6: {number} did not end in its {seconds} s"))

    async def _strike(self, fault: str) -> None:
        where, _, what = fault.partition(" ")
        namespace = self.primary if where == "primary" else self.secondary
        await asyncio.sleep(self.dice.uniform(0, HORIZON_S / 2))
        _begin(namespace, what)
        await asyncio.sleep(self.dice.choice([0.3, 2.0, 8.0]))
        namespace.opening_s, namespace.fails_inside_opening = 0.0, ""
        namespace.disabled.clear()
        namespace.recover()

    # --- what must hold ---------------------------------------------------------------------------

    def _judge(self) -> None:
        say = f"seed {self.seed}, faults {self.faults}"
        assert not self.strange, f"{say}: {self.strange[0]!r}"
        copies = self.primary.copies() if self.drains else self.primary.copies() + self.secondary.copies()
        breaks = self.primary.breaks + self.secondary.breaks
        for number, outcome in sorted(self.outcomes.items()):
            stored = copies[number]
            assert outcome != "ok" or stored, f"{say}: P1: {number} returned and is nowhere"
            assert outcome != "fail" or not stored, f"{say}: P5: {number} failed and is stored"
            assert stored <= 1 + (breaks and 4) + self.drains * self.crashes, (
                f"{say}: P36: {number} is stored {stored} times"
            )
        touched = {fault.partition(" ")[0] for fault in self.faults}
        if "primary" not in touched:
            changed = {Kind.SUSPECT, Kind.FAILED_OVER} & set(self.events)
            assert not changed, f"{say}: P17: a healthy primary became {changed}"
        if "secondary" not in touched:
            assert Kind.QUEUE_EVICTED not in self.events, (
                f"{say}: P32: a queue that is well left the rotation"
            )
        if not self.faults and not self.closes:
            unsent = [n for n, outcome in self.outcomes.items() if outcome != "ok" and not self.cancels]
            assert not unsent, f"{say}: not sent though all is well: {unsent}"
            assert max(copies.values(), default=0) <= 1, f"{say}: {copies.most_common(3)}"
            most = self.senders if not self.cancels else self.senders + self.coroutines
            assert self.primary.opened <= most, (
                f"{say}: {self.primary.opened} connections for {self.senders} senders"
            )
        if not self.closes:
            assert self.states <= {"healthy"}, f"{say}: P26: {self.states} after the calm"
        assert self.events[Kind.CLOSED] == 1, f"{say}: P44: closed {self.events[Kind.CLOSED]} times"
        assert not self.left, f"{say}: P44: left behind: {self.left}"
        went_on = sum(not caller.cancelled() for caller in self.cancelled)
        assert not went_on, f"{say}: {went_on} callers went on though they were cancelled"
        assert not self.limits, f"{say}: time limits of calls that have ended: {self.limits}"
        open_ones = len(self.primary.connections) + len(self.secondary.connections)
        assert not open_ones, f"{say}: P44: {open_ones} connections are open"


def _is_our_fault(error: BaseException | None) -> bool:
    """Whether an error, or one that the SDK made it of, is of the language. A fault of the SDK's client is played: see ``FAULTS``."""
    while error is not None:
        if isinstance(error, LookupError) or (
            isinstance(error, AttributeError) and "begin" not in str(error)
        ):
            return True
        error = error.__cause__ or error.__context__
    return False


class _Host(TaskDrainHost):
    """The host that ships, with a syphon over the false network."""

    def __init__(self, world: ShellWorld) -> None:
        self._world = world

    def _build(self, primary: Any, secondary: Any) -> tuple[Drain, DoubtfulSends]:
        doubts = DoubtfulSends()
        drain, _ = self._world.syphon(self._client, primary, doubts)  # type: ignore[arg-type]
        return drain, doubts


FAULTS: Final = [
    "primary killed",
    "primary killed",
    "primary silent",
    "primary lost",
    "primary slow opening",
    "primary cut in opening",
    "primary fault of the client in opening",
    "secondary killed",
    "secondary slow opening",
    "secondary disabled",
    "secondary cut in opening",
]


def _begin(namespace: FalseNamespace, what: str) -> None:
    if what == "killed":
        namespace.kill()
    elif what == "silent":
        namespace.fall_silent()
    elif what == "lost":
        namespace.get_lost()
    elif what == "slow opening":
        namespace.opening_s = 3.0
    elif what == "cut in opening":
        namespace.fails_inside_opening = "cut"
    elif what == "fault of the client in opening":
        namespace.fails_inside_opening = "client"
    else:
        namespace.disabled.add(QUEUES[0])
