"""The drain with failures: real ``Drain``, ``Senders``, ``DrainPlan`` and ``DoubtfulSends`` on a virtual clock.

Only the ports are false: backlog queues and destinations are models, and the seed draws what goes wrong: answers that
are lost, links that break, locks that lapse, kills in the middle of everything. A killed drain leaves its ledger and
its locks behind; the next one opens the same ledger.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter as Multiset
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from azure.servicebus import exceptions as sdk

from pairbus.drain.in_doubt import DoubtfulSends
from pairbus.drain.ports import CannotAsk, Delivery, LockLost
from pairbus.drain.rules.message import BacklogMessage
from pairbus.drain.rules.order import Seen
from pairbus.drain.rules.plan import DrainPlan
from pairbus.drain.senders import ASKS_FAILED_MAX
from pairbus.drain.shell import Drain
from pairbus.pairing import parking
from pairbus.pairing.parking import Passport
from pairbus.pairing.statistics import Counters
from pairbus.sdk.failures import IN_DOUBT, classify
from tests.payloads import message_id_of, seen_of
from tests.simulation.pair.model import NamespaceModel, QueueModel, Stored, original
from tests.unit.drain.shell_kit import legacy
from tests.unit.drain.virtual_loop import VirtualLoop

MESSAGES = 60
WINDOW = 40
BAD_SECONDS = 240


class Inbox:
    """One backlog queue as one drain sees it."""

    def __init__(self, world: DrainWorld, queue: str) -> None:
        self.queue = queue
        self.is_dead = False
        self._world = world
        self._model = world.secondary.queue(queue)
        self._interrupted = asyncio.Event()

    async def receive(self, count: int, seconds: float) -> Sequence[Delivery]:
        self._interrupted.clear()
        await self._world.trip(self)
        until = self._world.now() + int(seconds * 1000)
        while not (taken := self._model.receive(count, self._world.now())) and self._world.now() < until:
            try:
                async with asyncio.timeout(min(self._world.poll_seconds, (until - self._world.now()) / 1000)):
                    await self._interrupted.wait()
                break
            except TimeoutError:
                self._world.check_alive(self)
        held = sum(1 for one in self._model.messages.values() if one.locked_until_ms > self._world.now())
        if taken:
            self._world.received_to[self.queue] = max(
                taken[-1][0].number, self._world.received_to[self.queue]
            )
        most = 2 * self._world.window * self._world.drains
        self._world.require(held <= most, f"P38: {held} messages are locked")
        return [_delivery(stored, lock) for stored, lock in taken]

    def interrupt(self) -> None:
        self._interrupted.set()

    async def cancel(self, message: BacklogMessage) -> bool:
        return bool(await self.complete([message]))

    async def complete(self, messages: Sequence[BacklogMessage]) -> Sequence[BacklogMessage]:
        try:
            return await self._complete(messages)
        except Exception:
            # The link is gone, and with it the locks of what was not completed.
            self._world.lost_locks.update(message.message_id for message in messages)
            raise

    async def _complete(self, messages: Sequence[BacklogMessage]) -> Sequence[BacklogMessage]:
        await self._world.trip(self)
        done = []
        for message in messages:
            self._world.require(
                self._world.is_home(message),
                f"P34: {message.message_id} is completed and not at its destination",
            )
            if self._world.dice.random() < self._world.lost_lock_rate:
                self._lapse(message)
            try:
                self._model.settle(*_lock(message.token), self._world.now())
            except sdk.MessageLockLostError:
                self._world.lost_locks[message.message_id] += 1
                continue
            done.append(message)
        await self._world.trip(self)
        return done

    def _lapse(self, message: BacklogMessage) -> None:
        stored = self._model.messages.get(message.sequence_number)
        if stored is not None:
            stored.locked_until_ms = 0

    async def dead_letter(self, token: object, reason: str, description: str) -> None:
        await self._world.trip(self)
        try:
            self._model.settle(*_lock(token), self._world.now(), aside=reason)
        except sdk.MessageLockLostError as error:
            raise LockLost from error

    async def release(self, tokens: Sequence[object]) -> None:
        await self._world.trip(self)
        for token in tokens:
            self._model.unlock(*_lock(token))

    async def renew(self, messages: Sequence[BacklogMessage]) -> Sequence[int | None]:
        await self._world.trip(self)
        return [self._renewed(message) for message in messages]

    def _renewed(self, message: BacklogMessage) -> int | None:
        try:
            return self._model.renew(*_lock(message.token), self._world.now())
        except sdk.MessageLockLostError:
            return None

    async def browse(self, number: int, count: int, queue: str | None = None) -> Sequence[Seen]:
        await self._world.trip(self)
        model = self._model if queue is None else self._world.secondary.queue(queue)
        there = [stored for stored in model.messages.values() if stored.number >= number][:count]
        return [
            replace(
                seen_of(stored.number, stored.payload, stored.enqueued_ms),
                is_active=not stored.is_deferred,
                is_deferred=stored.is_deferred,
            )
            for stored in there
        ]

    async def receive_deferred(self, numbers: Sequence[int]) -> Sequence[Delivery]:
        await self._world.trip(self)
        taken = self._model.receive_deferred(numbers, self._world.now())
        return [_delivery(stored, lock) for stored, lock in taken]

    async def close(self) -> None:
        return


def _delivery(stored: Stored, lock: int) -> Delivery:
    return Delivery(
        stored.number, stored.payload, stored.locked_until_ms, stored.enqueued_ms, (stored.number, lock)
    )


def _lock(token: object) -> tuple[int, int]:
    assert isinstance(token, tuple)
    number, lock = token
    return int(number), int(lock)


class Outlet:
    """The primary as one drain sees it."""

    def __init__(self, world: DrainWorld) -> None:
        self.is_dead = False
        self._world = world

    async def send(self, path: str, messages: Sequence[BacklogMessage]) -> None:
        world = self._world
        try:
            await world.trip(self)
            if any(message.message_id in world.refused for message in messages):
                raise sdk.MessageSizeExceededError
            world.primary.queue(path).send([message.payload for message in messages], world.now())
            await world.trip(self)
        except Exception as error:
            if classify(error) in IN_DOUBT:
                world.doubtful_sends.update(message.message_id for message in messages)
            raise

    async def already_delivered(
        self, path: str, messages: Sequence[BacklogMessage], ids: frozenset[str]
    ) -> Sequence[BacklogMessage]:
        if not self._world.can_ask:
            raise CannotAsk
        try:
            await self._world.trip(self)
        except Exception:
            self._world.unanswered.update(message.message_id for message in messages)
            raise
        there = {_id(stored.payload) for stored in self._world.primary.queue(path).messages.values()}
        return [message for message in messages if message.message_id in there]

    async def close(self) -> None:
        return


class DrainWorld:
    """One seed: some drains, two namespaces, and what goes wrong."""

    window = WINDOW
    poll_seconds = 5.0
    """How often a receive that waits looks for messages."""
    calm_seconds = 900
    """How long after everything works again the backlog may take to become empty."""

    def __init__(self, seed: int, directory: Path) -> None:
        self.seed = seed
        self.dice = random.Random(f"syphon-{seed}")
        self.directory = directory
        self.loop = VirtualLoop()
        self.drains = self.dice.choice([1, 1, 2])
        self.can_ask = self.dice.random() < 0.7
        self.kills = self.dice.randrange(5)
        self.error_rate = self.dice.choice([0.0, 0.02, 0.1])
        self.slow_rate = self.dice.choice([0.0, 0.05])
        self.lost_lock_rate = self.dice.choice([0.0, 0.05, 0.3])
        self.lost_locks: Multiset[str] = Multiset()
        self.doubtful_sends: Multiset[str] = Multiset()
        self.killed_with: Multiset[str] = Multiset()
        self.received_to: Multiset[str] = Multiset()
        """The highest number of each queue that a drain has received."""
        self.unanswered: Multiset[str] = Multiset()
        """How often the destination did not answer whether it has a message."""
        self.broken: list[str] = []
        self.refused: set[str] = set()
        """Ids of messages that their destination refuses, wherever they are in a batch."""
        self.primary, self.secondary = NamespaceModel("p"), NamespaceModel("s")
        self.queues = [f"p/x-servicebus-transfer/{index}" for index in range(self.dice.choice([1, 2]))]
        for name in ("orders", "events"):
            self.primary.add(QueueModel(name))
        for name in self.queues:
            self.secondary.add(QueueModel(name))
        self.is_calm = False
        self._fill()

    def _fill(self) -> None:
        self.poison = self.dice.randrange(3)
        drawn = random.Random(f"refused-{self.seed}")
        numbers = [2_000 + number for number in range(drawn.choice([0, 0, 1, 15]))]
        self.refused |= {f"m{number}" for number in numbers}
        for number in range(MESSAGES):
            if numbers and number % 4 == 3:
                refused = numbers.pop()
                sent = original(refused, None, has_alias_name=False, has_life=False)
                parked = parking.park(
                    sent, drawn.choice(["orders", "events"]), Passport("f", 1, refused, "r")
                )
                self.secondary.queue(drawn.choice(self.queues)).send([parked], 0)
            path = self.dice.choice(["orders", "events"])
            sent = original(number, None, has_alias_name=False, has_life=False)
            is_legacy = self.dice.random() < 0.4
            parked = (
                legacy(number, path) if is_legacy else parking.park(sent, path, Passport("f", 1, number, "r"))
            )
            self.secondary.queue(self.dice.choice(self.queues)).send([parked], 0)
        for number in range(self.poison):
            foreign = original(1_000 + number, None, has_alias_name=False, has_life=False)
            self.secondary.queue(self.queues[0]).send([foreign], 0)

    # --- what ports ask ---------------------------------------------------------------------------

    def now(self) -> int:
        return self.loop.now_ms()

    def require(self, claim: bool, text: str) -> None:
        if not claim:
            self.broken.append(f"seed {self.seed}: {text} (at {self.now()} ms)")

    def check_alive(self, port: Inbox | Outlet) -> None:
        if port.is_dead:
            raise asyncio.CancelledError

    async def trip(self, port: Inbox | Outlet) -> None:
        """One way over the network: it takes time, and the link may break."""
        is_slow = not self.is_calm and self.dice.random() < self.slow_rate
        await asyncio.sleep(self.dice.uniform(10, 90) if is_slow else self.dice.uniform(0.001, 0.2))
        self.check_alive(port)
        if not self.is_calm and self.dice.random() < self.error_rate:
            raise self.dice.choice([sdk.ServiceBusConnectionError(), sdk.OperationTimeoutError()])

    def is_home(self, message: BacklogMessage) -> bool:
        return any(_id(payload) == message.message_id for payload in self.primary.queue(message.path).history)

    # --- running ----------------------------------------------------------------------------------

    def run(self) -> None:
        """Failures, kills, then calm; raises AssertionError with the seed when a promise is broken."""
        try:
            self.loop.run_until_complete(self._main())
        finally:
            self.loop.close()
        assert not self.broken, self.broken[0]
        self._check_end()

    async def _main(self) -> None:
        running = [self._start() for _ in range(self.drains)]
        for at in sorted(self.dice.uniform(0, BAD_SECONDS) for _ in range(self.kills)):
            await asyncio.sleep(max(0.0, at - self.now() / 1000))
            victim = self.dice.randrange(self.drains)
            await self._kill(*running[victim])
            running[victim] = self._start()
        await asyncio.sleep(max(0.0, BAD_SECONDS - self.now() / 1000))
        self.is_calm = True
        deadline = self.now() + self.calm_seconds * 1000
        while any(self.secondary.queue(queue).messages for queue in self.queues):
            if self.now() > deadline:
                if self.parks_more():
                    deadline += self.calm_seconds * 1000
                    continue
                self.require(False, "P41: the backlog is not empty after the calm")
                break
            await asyncio.sleep(1)
        for drain, task, ledger, _ in running:
            drain.stop()
            await task
            # What it sent before the calm and was too slow to complete: another drain may have sent it meanwhile.
            self.killed_with.update(ledger.ids())
            ledger.close()

    def parks_more(self) -> bool:
        """Park one more message, when what is left is found only with the next one. False: there is no such."""
        return False

    def prepare(self, drain: Drain) -> None:
        """What else is special about the drains of this world."""

    def _start(self) -> tuple[Drain, asyncio.Task[None], DoubtfulSends, list[Inbox | Outlet]]:
        inboxes = [Inbox(self, queue) for queue in self.queues]
        outlet = Outlet(self)
        ledger = DoubtfulSends.open(self.directory, "p")
        drain = Drain(
            inboxes,
            outlet,
            plan=DrainPlan(window=WINDOW, ready_max=20),
            doubts=ledger,
            counters=Counters(),
            clock=self.now,
            wall_clock=self.now,
        )
        return drain, asyncio.ensure_future(drain.run()), ledger, [*inboxes, outlet]

    async def _kill(
        self, drain: Drain, task: asyncio.Task[None], ledger: DoubtfulSends, ports: list[Inbox | Outlet]
    ) -> None:
        """As SIGKILL: nothing more reaches a port or the ledger's file."""
        self.killed_with.update(ledger.ids())
        ledger.close()
        for port in ports:
            port.is_dead = True
        task.cancel()
        await asyncio.wait([task])

    def _check_end(self) -> None:
        homes: Multiset[str] = Multiset()
        for queue in self.primary.queues.values():
            homes.update(_id(payload) for payload in queue.history)
        dead = [reason for queue in self.queues for _, reason in self.secondary.queue(queue).dead]
        expected = ["NotFromPairedNamespace"] * self.poison + ["TooLargeForDestination"] * len(self.refused)
        assert sorted(dead) == expected, f"seed {self.seed}: P38, P39: {dead}"
        for number in range(MESSAGES):
            name = f"m{number}"
            copies = homes[name]
            assert copies, f"seed {self.seed}: P35: {name} is nowhere"
            most = self._explained(name)
            assert copies <= most, (
                f"seed {self.seed}: P36: {name} has {copies} copies, at most {most} are explained"
            )

    def _explained(self, name: str) -> int:
        """How many copies of a message there may be."""
        # A single drain remembers what it sent, and where it may look it asks before it sends again.
        most = 1 + self.doubtful_sends[name]
        is_sent_unasked = not self.can_ask or self.unanswered[name] >= ASKS_FAILED_MAX
        if self.drains > 1 or is_sent_unasked:
            most += self.killed_with[name]
        if self.drains > 1 or (is_sent_unasked and self.killed_with[name]):
            most += self.lost_locks[name]
        return most


def _id(payload: bytes) -> str:
    return message_id_of(payload)
