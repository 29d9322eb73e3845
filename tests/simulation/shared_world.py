"""Several drains on the same backlog queues: how long until all is home, in virtual time. Nothing goes wrong but what is asked for.

The network is fast and even, and a send takes time for each message, so the time of a world says how much of it the drains
spent on waiting for each other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pairbus.drain.in_doubt import DoubtfulSends
from pairbus.drain.rules.message import BacklogMessage
from pairbus.drain.rules.plan import DrainPlan
from pairbus.drain.shell import Drain
from pairbus.pairing import parking
from pairbus.pairing.parking import Passport
from pairbus.pairing.statistics import Counters
from tests.payloads import message_id_of
from tests.simulation.drain_world import Inbox, Outlet
from tests.simulation.order_world import OrderWorld
from tests.simulation.pair.model import LOCK_MS, QueueModel, original

TRIP_S: Final = 0.004
SEND_S: Final = 0.0005
"""What a send takes for each message, besides the trips."""
STEP_S: Final = 0.05
END_MS: Final = 600_000


@dataclass(frozen=True, slots=True)
class Shared:
    """How many messages, sessions (0: none), backlog queues and drains there are, and what happens to the busiest drain."""

    messages: int
    sessions: int
    queues: int = 1
    drains: int = 2
    plain_share: float = 0.0
    """How many of the messages have no session."""
    harm: str = ""
    """``killed`` or ``stopped``: the drain that has delivered most, after ``harm_ms``."""
    harm_ms: int = 500


class SlowOutlet(Outlet):
    """Sends that take time for each message. A drain that is stopped gets its answers when it goes on."""

    async def send(self, path: str, messages: Sequence[BacklogMessage]) -> None:
        await asyncio.sleep(SEND_S * len(messages))
        await super().send(path, messages)


class SharedWorld(OrderWorld):
    """Drains that share queues from the beginning."""

    window = 1_000
    poll_seconds = 0.01

    def __init__(self, shared: Shared, directory: Path, seed: int = 0) -> None:
        self._shared = shared
        super().__init__(seed, directory)
        self.drains = shared.drains
        self.is_calm, self.can_ask, self.policy = True, True, "relaxed"
        self.counters: list[Counters] = []
        self.ended_ms = END_MS
        self._stopped_ports: list[Inbox | Outlet] = []
        self._go_on = asyncio.Event()

    def _fill(self) -> None:
        self.poison = 0
        for index in range(len(self.queues), self._shared.queues):
            self.queues.append(f"p/x-servicebus-transfer/{index}")
            self.secondary.add(QueueModel(self.queues[-1]))
        del self.queues[self._shared.queues :]
        for number in range(self._shared.messages):
            is_plain = self.dice.random() < self._shared.plain_share
            session = None if is_plain else f"s{number % self._shared.sessions}"
            queue = self.queues[number % self._shared.sessions % len(self.queues)]
            self.parked["orders", session or f"none {number}"].append(f"m{number}")
            sent = original(number, session, has_alias_name=False, has_life=False)
            passport = Passport("f", 1, number + 1, "r", order="session")
            self.secondary.queue(queue).send([parking.park(sent, "orders", passport)], number)

    async def trip(self, port: Inbox | Outlet) -> None:
        """Even and fast. A drain that is stopped does nothing until it goes on."""
        await asyncio.sleep(TRIP_S * self.dice.uniform(0.5, 1.5))
        if port in self._stopped_ports:
            await self._go_on.wait()
        self.check_alive(port)

    def _start(self) -> tuple[Drain, asyncio.Task[None], DoubtfulSends, list[Inbox | Outlet]]:
        ports: list[Inbox | Outlet] = [Inbox(self, queue) for queue in self.queues]
        outlet = SlowOutlet(self)
        doubts = DoubtfulSends()
        self.counters.append(Counters())
        drain = Drain(
            [port for port in ports if isinstance(port, Inbox)],
            outlet,
            plan=DrainPlan(),
            doubts=doubts,
            counters=self.counters[-1],
            clock=self.now,
            wall_clock=self.now,
        )
        return drain, asyncio.ensure_future(drain.run()), doubts, [*ports, outlet]

    def is_home(self, message: BacklogMessage) -> bool:
        return message.message_id in self.primary.queue(message.path).seen_ids

    def _all_home(self) -> bool:
        return not any(self.secondary.queue(queue).messages for queue in self.queues)

    async def _main(self) -> None:
        running = [self._start() for _ in range(self.drains)]
        if self._shared.harm:
            await asyncio.sleep(self._shared.harm_ms / 1000)
            self.require(not self._all_home(), "all was home before the harm")
        busiest = max(range(len(running)), key=lambda index: self.counters[index].restored)
        if self._shared.harm == "killed":
            await self._kill(*running.pop(busiest))
        elif self._shared.harm == "stopped":
            self._stopped_ports += running[busiest][3]
        while not self._all_home() and self.now() < END_MS:  # noqa: ASYNC110 - on virtual time it costs nothing
            await asyncio.sleep(STEP_S)
        self.ended_ms = self.now()
        self._go_on.set()
        if self._shared.harm == "stopped":
            await asyncio.sleep(LOCK_MS / 1000)
        for drain, task, doubts, _ in running:
            drain.stop()
            await task
            doubts.close()

    def _check_end(self) -> None:
        left = sum(len(self.secondary.queue(queue).messages) for queue in self.queues)
        assert not left, (
            f"{self._shared}: {left} of {self._shared.messages} are left after {END_MS // 1000} s"
        )
        self._check_order()
        history = self.primary.queue("orders").history
        assert {message_id_of(one) for one in history} == {f"m{n}" for n in range(self._shared.messages)}
        assert not any(self.secondary.queue(queue).dead for queue in self.queues)
        if not self._shared.harm:
            assert len(history) == self._shared.messages, f"{self._shared}: P36: copies"


def seconds_to_drain(shared: Shared, directory: Path, seed: int = 0) -> float:
    """How long until all is home."""
    world = SharedWorld(shared, directory, seed)
    world.run()
    return world.ended_ms / 1000
