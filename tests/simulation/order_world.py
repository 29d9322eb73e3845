"""Sessions in the backlog, drained in order by one or two drains that are killed, lose locks and lose answers.

Every session has one backlog queue, but some move: the first message in the new queue says what it follows in the old
one. Messages are parked while the drains run. Judged is the order of *first* arrivals: a send without an answer may
store a message twice.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from pathlib import Path
from random import Random
from typing import Final

from pairbus.drain.in_doubt import DoubtfulSends
from pairbus.drain.rules.plan import DrainPlan
from pairbus.drain.shell import Drain
from pairbus.pairing import parking
from pairbus.pairing.parking import Follows, Passport
from pairbus.pairing.statistics import Counters
from tests.payloads import message_id_of
from tests.simulation.drain_world import BAD_SECONDS, MESSAGES, WINDOW, DrainWorld, Inbox, Outlet
from tests.simulation.pair.model import QueueModel, original

SESSIONS = 5
FOLLOW_MS = 3_600_000
SHORT_LOOKS: Final = 3
"""Of so many worlds all but one have drains whose looks come to an end after a few messages, and that remember few."""
MOVED_SECONDS: Final = 50
"""How long the drain of a ``MovedWorld`` may take: less than one lock lasts. One with a tiny window may take longer."""


class OrderWorld(DrainWorld):
    """One seed: sessions, some drains, two namespaces, and what goes wrong."""

    def __init__(self, seed: int, directory: Path) -> None:
        self.parked: dict[tuple[str, str], list[str]] = defaultdict(list)
        """Messages by destination and session, in the order in which they were parked."""
        self._places: dict[tuple[str, str], tuple[str, int]] = {}
        super().__init__(seed, directory)
        self.policy = self.dice.choice(["session", "relaxed"])
        self.tight = self.dice.random() < 0.3

    def _fill(self) -> None:
        self.poison = 0
        self.at_start = self.dice.choice([0, MESSAGES // 2, MESSAGES])
        for number in range(self.at_start):
            self._park(number)

    def _park(self, number: int) -> None:
        path = self.dice.choice(["orders", "events"])
        session = None if self.dice.random() < 0.1 else f"s{self.dice.randrange(SESSIONS)}"
        sent = original(number, session, has_alias_name=False, has_life=False)
        queue = self.dice.choice(self.queues)
        follows: tuple[Follows, ...] = ()
        if session is not None:
            self.parked[path, session].append(f"m{number}")
            queue, before = self._places.get((path, session), (queue, 0))
            if before and len(self.queues) > 1 and self.dice.random() < 0.1:
                follows = (Follows(queue, "f", before),)
                queue = next(one for one in self.queues if one != queue)
            self._places[path, session] = (queue, number + 1)
        # With the policy "session" a drain keeps the order whatever the passport says.
        passport = Passport("f", 1, number + 1, "r", follows=follows, order=self._order_of_clients())
        self.secondary.queue(queue).send([parking.park(sent, path, passport)], self.loop.now_ms())

    def prepare(self, drain: Drain) -> None:
        if self.seed % SHORT_LOOKS == 0 or self.is_calm:
            return
        looks = Random(f"looks-{self.seed}")
        older, order = drain._older, drain._plan.order
        usual = older._page_max, older._pages_max, older._entries_max, order.elsewhere_max

        def limit(page: int, pages: int, entries: int, elsewhere: int) -> None:
            older._page_max, older._pages_max, older._entries_max = page, pages, entries
            order.elsewhere_max = elsewhere

        limit(*looks.choice([(1, 3), (1, 10), (3, 2), (3, 4), (10, 2)]), *looks.choice([(3, 10), (10, 3)]))
        # A drain that meets more than it looks through waits. So that all is delivered in the end, the limits end with the failures.
        self.loop.call_at(BAD_SECONDS, limit, *usual)

    def _order_of_clients(self) -> str:
        return "session"

    async def _main(self) -> None:
        parking_on = asyncio.ensure_future(self._park_on())
        await super()._main()
        await parking_on

    async def _park_on(self) -> None:
        times = sorted(self.dice.uniform(0, BAD_SECONDS) for _ in range(self.at_start, MESSAGES))
        for number, at in enumerate(times, self.at_start):
            await asyncio.sleep(max(0.0, at - self.now() / 1000))
            self._park(number)

    def _start(self) -> tuple[Drain, asyncio.Task[None], DoubtfulSends, list[Inbox | Outlet]]:
        inboxes = [Inbox(self, queue) for queue in self.queues]
        outlet = Outlet(self)
        ledger = DoubtfulSends.open(self.directory, "p")
        drain = Drain(
            inboxes,
            outlet,
            plan=DrainPlan(window=6, ready_max=4) if self.tight else DrainPlan(window=WINDOW, ready_max=20),
            doubts=ledger,
            counters=Counters(),
            clock=self.now,
            wall_clock=self.now,
            order=self.policy,  # type: ignore[arg-type]
            follow_ms=FOLLOW_MS,
        )
        self.prepare(drain)
        return drain, asyncio.ensure_future(drain.run()), ledger, [*inboxes, outlet]

    def _check_end(self) -> None:
        self._check_order()
        super()._check_end()

    def _check_order(self) -> None:
        first: dict[tuple[str, str], int] = {}
        for path in {path for path, _ in self.parked}:
            for place, payload in enumerate(self.primary.queue(path).history):
                first.setdefault((path, message_id_of(payload)), place)
        for (path, session), sent in self.parked.items():
            here = [name for name in sent if (path, name) in first]
            arrived = sorted(here, key=lambda name: first[path, name])
            assert here == arrived, (
                f"seed {self.seed}: order: session {session} of {path} was parked as {sent} and arrived as {arrived}"
            )


class MovedWorld(OrderWorld):
    """Sessions that moved several times, as when a secondary is started again during an outage and a spool is replayed.

    Each time all sessions go on in the queue that accepted first, with more messages than a window holds, and every
    message of the replay says what it follows. Nothing fails, so the drain has nothing to wait for.
    """

    def _fill(self) -> None:
        self.poison, self.count = 0, 0
        for index in range(len(self.queues), 3):
            self.queues.append(f"p/x-servicebus-transfer/{index}")
            self.secondary.add(QueueModel(self.queues[-1]))
        sessions = [f"s{index}" for index in range(self.dice.choice([2, 8, 30]))]
        places = {session: self.dice.choice(self.queues) for session in sessions}
        held: dict[str, dict[str, int]] = {session: {} for session in sessions}
        for _ in range(self.dice.randrange(3, 7)):
            replayed = self.dice.choice([1, WINDOW, 3 * WINDOW])
            for number in range(self.dice.choice([WINDOW, 4 * WINDOW])):
                session = self.dice.choice([None, *sessions])
                if session is None:
                    self._store(None, self.dice.choice(self.queues), ())
                    continue
                queue, before = places[session], held[session]
                is_moved = max(before, key=lambda name: before[name], default=queue) != queue
                rest = {name: last for name, last in before.items() if name != queue}
                says = is_moved or number < replayed
                follows = tuple(Follows(name, "f", last) for name, last in rest.items()) if says else ()
                before[queue] = self._store(session, queue, follows)
            places = dict.fromkeys(sessions, self.dice.choice(self.queues))

    def _store(self, session: str | None, queue: str, follows: tuple[Follows, ...]) -> int:
        sent = original(self.count, session, has_alias_name=False, has_life=False)
        self.parked["orders", session or f"none in {queue}"].append(f"m{self.count}")
        self.count += 1
        passport = Passport("f", 1, self.count, "r", follows=follows, order="session")
        self.secondary.queue(queue).send([parking.park(sent, "orders", passport)], self.count)
        return self.count

    async def _main(self) -> None:
        self.is_calm, self.drains, self.can_ask = True, 1, True
        self.lost_lock_rate = 0.0
        drain, task, ledger, _ = self._start()
        end = MOVED_SECONDS * (4_000 if self.tight else 1_000)
        while any(self.secondary.queue(queue).messages for queue in self.queues):
            if self.now() > end:
                break
            await asyncio.sleep(0.5)
        left = {queue[-1]: len(self.secondary.queue(queue).messages) for queue in self.queues}
        self.require(
            not any(left.values()), f"order: messages wait for each other: {left} of {self.count} are left"
        )
        drain.stop()
        await task
        ledger.close()

    def _check_end(self) -> None:
        self._check_order()
        assert len(self.primary.queue("orders").history) == self.count, f"seed {self.seed}: P36: copies"
