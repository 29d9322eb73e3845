"""Worlds of pairs with an order: the clients that ship, killed and started again, and the order of what arrives.

In some worlds it is that of sessions, in others that of partition keys too (``order="partition"``).

Every send notes when it began and when it returned. When one returned before another of the same session and client began,
its message must arrive first.
"""

from __future__ import annotations

import asyncio
import itertools
from datetime import timedelta
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import Any, Final, cast

from azure.servicebus import exceptions as sdk

from pairbus.drain.rules.order import OrderPolicy
from pairbus.pairing import parking
from pairbus.pairing.events import Kind
from pairbus.pairing.naming import entity_key
from pairbus.pairing.options import SendAvailabilityOptions
from pairbus.pairing.outcome import outcome_of
from pairbus.pairing.parking import Follows, Passport
from pairbus.pairing.rules import order_values as rules
from pairbus.pairing.rules.queues import BacklogQueue
from pairbus.pairing.runtime.thread_runtime import run
from pairbus.sdk.messages import message_bytes
from tests.payloads import message_id_of
from tests.simulation.pair.clients import LIMIT_BYTES, SimClient, SimOfficial, SimSender
from tests.simulation.pair.drains import SimDrain
from tests.simulation.pair.model import QueueModel, Stored, original
from tests.simulation.pair.world import PRIMARY_DOWN, QUEUE_DISABLED, World

PLANTED: Final = (
    "no_fence",
    "fence_dropped_at_restart",
    "two_queues",
    "stale_look",
    "move_forgotten",
    "direct_before_look",
    "last_seen_is_last",
)
SESSIONS: Final = ("a", "b", "")
PARTITION_SHARE: Final = 0.3
"""The part of the worlds that keep partition keys in order, too."""
LOWERS_SHARE: Final = 0.2
FEWER_SHARE: Final = 0.4
"""The part of the lives of clients that are started with a lower ``backlog_queue_count``."""
SHORT_LOOKS: Final = 3
"""Of so many worlds all but one have clients whose looks come to an end after a few messages."""
SHIPPED_DRAIN: Final = 8
"""Every so many worlds have the drain that ships, which takes ten times as long as the plain one."""
ANSWER_MS: Final = 5_000
SEND_MS: Final = 10_000


class SimReceiver:
    """As much of the official receiver as looks into the backlog use."""

    def __init__(self, official: SimOfficial, queue: str) -> None:
        self._official = official
        self._page = cast("Ordered", official.world).page
        self._queue = queue
        self._config = SimpleNamespace(retry_total=0, retry_backoff_factor=0.1)

    async def peek_messages(self, max_message_count: int, *, sequence_number: int) -> list[Any]:
        """Messages from a number on, locked ones too. Pages are small, so that looks have several."""
        official = self._official

        def browse() -> list[Stored]:
            queue = official.model.queue(self._queue)
            queue.check(is_send=False)
            found = [stored for stored in queue.messages.values() if stored.number >= sequence_number]
            return found[: min(max_message_count, self._page)]

        page = await official.world.ask(official.model, browse, ANSWER_MS)
        return [_peeked(stored) for stored in page]

    async def close(self) -> None: ...


def _peeked(stored: Stored) -> Any:
    restored = parking.restore(stored.payload, 0)
    passport = parking.passport_of(stored.payload)
    given: dict[bytes, Any] = {parking.ALIAS_PATH.encode(): restored.path.encode()}
    if restored.session_id is not None:
        given[parking.ALIAS_SESSION.encode()] = restored.session_id.encode()
    if restored.partition_key is not None:
        given[parking.ALIAS_PARTITION.encode()] = restored.partition_key.encode()
    if passport is not None:
        given[parking.ALIAS_PASSPORT.encode()] = passport.text().encode()
    return SimpleNamespace(
        application_properties=given,
        message_id=message_id_of(stored.payload),
        sequence_number=stored.number,
    )


class OrderedOfficial(SimOfficial):
    """An official client with receivers."""

    def get_queue_receiver(self, queue: str, **options: Any) -> SimReceiver:
        return SimReceiver(self, queue)


class OrderedClient(SimClient):
    """One life of a paired client that keeps the order."""

    official = OrderedOfficial

    def __init__(self, world: Ordered, number: int, life: int, options: SendAvailabilityOptions) -> None:
        super().__init__(world, number, options, f"c{number}-{life}")
        self.logical = f"c{number}"
        self.life = life
        self.tasks: list[asyncio.Task[Any]] = []
        if world.look_pages is not None:
            self.client._fences._pages_max = world.look_pages
        self._plant_order(world.bug)
        with self.state.lock:
            self.client._fences.watch()

    def kill(self) -> None:
        """End as a killed process does: nothing that it does comes to an end."""
        runtime: Any = self.client._runtime
        for task in (*self.tasks, *runtime._running):
            task.cancel()
        self.client._is_ended = True

    async def send_lists(self, path: str, sessions: list[str], count: int) -> None:
        """Send messages of several sessions, single and in lists, one after the other."""
        world: Any = self.world
        dice = world.random
        sender = self.client.get_queue_sender(path)
        for _ in range(count):
            await asyncio.sleep(dice.randrange(1, 1_500) / 1000)
            several = [dice.choice(sessions) for _ in range(dice.choice([1, 1, 1, 3]))]
            numbers = [world.next_number() for _ in several]
            payloads = [
                world.message(number, session) for number, session in zip(numbers, several, strict=True)
            ]
            batch = message_bytes.batch_of(message_bytes.new_batch(LIMIT_BYTES, SimSender), payloads)
            for number, session, payload in zip(numbers, several, payloads, strict=True):
                world.checks.begun(number, path, payload)
                world.order.begun(number, (self.logical, path, session), numbers[0])
            outcome = "unknown"
            try:
                await sender.send_messages(batch, timeout=world.timeout_ms / 1000)
                outcome = "ok"
            except Exception as error:  # noqa: BLE001 - every error says what became of the message
                outcome = outcome_of(error)
            finally:
                for number in numbers:
                    world.checks.returned(number, outcome)
                    if outcome == "ok":
                        world.order.returned(number)

    # --- planted bugs -----------------------------------------------------------------------------

    def _plant_order(self, bug: str) -> None:
        book: Any = self.state.order
        if bug == "no_fence":
            book.route = lambda key: rules.Route.DIRECT
        if bug == "fence_dropped_at_restart":
            book._unseen.clear()
            book._settle()
        if bug == "two_queues":
            book.home = lambda key: rules.queue_order((key[0], f"{key[1]} {book._stamp % 2}"), book.queues)[0]
            book.plan = lambda key, rotation, tried: (book.home(key), (), 0)
            book.is_tracked = lambda key: False
        if bug == "stale_look":
            begin = book.begin_look

            def stale(queue: str) -> Any:
                look = begin(queue)
                look.stamp = 10**9
                return look

            book.begin_look = stale
        if bug == "last_seen_is_last":
            met = book._met

            def trusting(look: Any, now: int) -> Any:
                was_complete, look.is_complete = look.is_complete, True
                found = met(look, now)
                look.is_complete = was_complete
                return found

            book._met = trusting
        if bug == "move_forgotten":

            def move(track: Any, queue: str) -> None:
                track.queue = queue

            book._move = move
        if bug == "direct_before_look":
            book._make_unseen = lambda entity, now: book._settle()
            recovered = book.recovered

            def forget_all(entity: str, *given: Any) -> Any:
                for key in [key for key in book._tracks if key[0] == entity]:
                    del book._tracks[key]
                return recovered(entity, *given)

            book.recovered = forget_all


class SimManagement:
    """As much of the management of the secondary as pairing uses. It answers at once."""

    def __init__(self, world: Ordered) -> None:
        self._world = world

    async def backlog_queues(self, primary: str) -> list[BacklogQueue]:
        return [BacklogQueue(index, name) for index, name in enumerate(self._world.backlog)]

    async def message_count(self, queue: str) -> int:
        return len(self._world.secondary.queue(queue).messages)


class CountingClient(OrderedClient):
    """A client whose count of backlog queues is its own. It pairs as the one that ships: queues beyond the count are found."""

    def _pair(self) -> None:
        world: Any = self.world
        self.client._setup._management = SimManagement(world)  # type: ignore[assignment]
        self.state.paired_with(run(self.client._setup.usable_queues()))


class PlainDrain:
    """A drain that is right and slow: it delivers each queue strictly in its order, one message at a time."""

    def __init__(self, world: Ordered) -> None:
        self._world = world
        self._tasks = [
            world.loop.create_task(self._pump(world.secondary.queue(name))) for name in world.backlog
        ]

    def kill(self) -> list[Any]:
        """End as a killed process does."""
        for task in self._tasks:
            task.cancel()
        return []

    async def _pump(self, queue: QueueModel) -> None:
        world = self._world
        while True:
            await asyncio.sleep(world.random.randrange(5, 400) / 1000)
            try:
                await self._move_one(queue)
            except sdk.ServiceBusError:
                continue

    async def _move_one(self, queue: QueueModel) -> None:
        world = self._world
        head = await world.ask(world.secondary, lambda: next(iter(queue.messages.values()), None), ANSWER_MS)
        if head is None:
            return
        restored = parking.restore(head.payload, world.now)
        passport = restored.passport
        for follows in passport.follows if passport is not None else ():
            if await world.ask(world.secondary, partial(self._is_there, follows, restored, head), ANSWER_MS):
                return
        gone = False
        try:
            await world.ask(
                world.primary, partial(world.put, world.primary, restored.path, [restored.payload]), SEND_MS
            )
        except sdk.MessagingEntityNotFoundError:
            gone = True
        except (sdk.ServiceBusError, asyncio.CancelledError):
            # Without an answer, or killed while it waited for one.
            world.checks.in_doubt_resend(message_id_of(head.payload))
            raise

        def complete(_: list[bytes]) -> None:
            found = queue.messages.pop(head.number, None)
            if gone and found is not None:
                queue.dead.append((found, "DestinationNotFound"))

        # A drain that is killed here sends the message once more.
        world.checks.in_doubt_resend(message_id_of(head.payload))
        await world.ask(world.secondary, partial(complete, [head.payload]), ANSWER_MS)

    def _is_later(self, one: Passport, other: Passport | None) -> bool:
        """A later message of the same client, or a copy of this one."""
        return other is not None and one.factory == other.factory and one.detour >= other.detour

    def _is_there(self, follows: Follows, restored: parking.Restored, head: Stored) -> bool:
        for stored in self._world.secondary.queue(follows.queue).messages.values():
            other = parking.restore(stored.payload, 0)
            same = (
                entity_key(other.path) == entity_key(restored.path)
                and other.session_id == restored.session_id
                and (other.session_id is not None or other.partition_key == restored.partition_key)
            )
            passport = other.passport
            if not same or passport is None or self._is_later(passport, restored.passport):
                continue
            if not follows.factory:
                if stored.enqueued_ms <= head.enqueued_ms:
                    return True
            elif passport.factory == follows.factory and passport.detour <= follows.detour:
                return True
        return False


class OrderChecks:
    """When sends began and returned, and whether what arrived is in order."""

    def __init__(self, world: Ordered) -> None:
        self._world = world
        self._clock = 0
        self._begun: dict[int, int] = {}
        self._returned: dict[int, int] = {}
        self._sessions: dict[tuple[str, str, str], list[int]] = {}
        self._lists: dict[int, int] = {}

    def begun(self, number: int, session: tuple[str, str, str], of_list: int) -> None:
        """A send begins."""
        self._clock += 1
        self._begun[number] = self._clock
        self._sessions.setdefault(session, []).append(number)
        self._lists[number] = of_list

    def returned(self, number: int) -> None:
        """A send returned."""
        self._clock += 1
        self._returned[number] = self._clock

    def at_the_end(self) -> None:
        """The first arrival of every message is after those of the messages whose sends had returned."""
        for (client, path, session), numbers in self._sessions.items():
            first: dict[str, int] = {}
            for place, payload in enumerate(self._world.primary.queues[path].history):
                first.setdefault(message_id_of(payload), place)
            newest = (-1, "")
            ready = sorted(
                (self._returned[number], first[f"m{number}"], number)
                for number in numbers
                if number in self._returned and f"m{number}" in first
            )
            waiting = sorted(numbers, key=self._begun.__getitem__)
            for before, after in itertools.pairwise(waiting):
                is_one_list = self._lists[before] == self._lists[after] and after in self._returned
                has_come = f"m{before}" in first and f"m{after}" in first
                assert not is_one_list or not has_come or first[f"m{before}"] < first[f"m{after}"], (
                    f"seed {self._world.seed}: order: m{after} overtook m{before} of the same list"
                )
            for number in waiting:
                while ready and ready[0][0] < self._begun[number]:
                    _, place, name = ready.pop(0)
                    newest = max(newest, (place, f"m{name}"))
                is_judged = f"m{number}" in first and number in self._returned
                assert not is_judged or first[f"m{number}"] > newest[0], (
                    f"seed {self._world.seed}: order: m{number} of session {session!r} of {client} arrived at {path} "
                    f"before {newest[1]}, whose send had returned before"
                )


class Ordered(World):
    """What worlds with an order have in common."""

    page: int
    look_pages: int | None = None
    """How many pages a look of a client reads at most; None: as many as that of the one that ships."""
    order: OrderChecks

    def _draw_order(self, *, is_plain: bool | None) -> None:
        dice = self.random
        self.page = dice.choice([1, 3, 100])
        if self.seed % SHORT_LOOKS:
            looks = Random(f"looks-{self.seed}")
            self.page, self.look_pages = looks.choice([(1, 3), (1, 10), (3, 1), (3, 3), (5, 1)])
        self.order = OrderChecks(self)
        self.is_plain = is_plain if is_plain is not None else self.seed % SHIPPED_DRAIN != 0
        if self.is_plain:
            self.drain_count = 1
        self.events: dict[Kind, int] = {}
        for count in range(len(self.backlog), dice.randrange(1, 5)):
            self.backlog.append(f"p/x-servicebus-transfer/{count}")
            self.secondary.add(QueueModel(self.backlog[-1]))
        self.keeps: OrderPolicy = "partition" if Random(self.seed).random() < PARTITION_SHARE else "session"

    @property
    def one_drain_sees_all(self) -> bool:
        return super().one_drain_sees_all and not self.is_plain

    def message(self, number: int, name: str) -> bytes:
        """A message of a session. Where partition keys are kept in order, only the session without a name is one."""
        if self.keeps == "session" or not name:
            return original(number, name, has_alias_name=False, has_life=False)
        return original(number, None, has_alias_name=False, has_life=False, partition=name)

    def _drain(self) -> SimDrain:
        drain: Any = PlainDrain(self) if self.is_plain else SimDrain(self)
        return cast("SimDrain", drain)

    async def _finish(self) -> None:
        await super()._finish()
        self.order.at_the_end()

    def _start_lists(self, client: OrderedClient, messages: int) -> None:
        """Let a client send, and count its events."""
        dice = self.random
        client.state.events._listener = lambda event: self.events.update(
            {event.kind: self.events.get(event.kind, 0) + 1}
        )
        path = dice.choice(self.entities)
        for _ in range(dice.randrange(1, 5)):
            where = path if dice.random() < 0.7 else dice.choice(self.entities)
            sessions = dice.sample(SESSIONS, dice.choice([1, 1, 2]))
            client.tasks.append(asyncio.ensure_future(client.send_lists(where, sessions, messages // 4)))


class OrderedWorld(Ordered):
    """Clients that keep the order, killed and started again, and the drains that ship."""

    def __init__(self, seed: int, bug: str = "", *, is_plain: bool | None = None) -> None:
        super().__init__(seed, bug="")
        self.bug = bug
        self.kills = self.random.randrange(3)
        self._draw_order(is_plain=is_plain)
        self._counts = Random(f"counts-{seed}")
        self.lowers_count = not bug and self._counts.random() < LOWERS_SHARE
        """Whether clients are killed while messages are parked, and started again with fewer backlog queues."""
        self.clients_made = 0

    def _options(self) -> SendAvailabilityOptions:
        options = super()._options()
        return SendAvailabilityOptions(
            failover_interval=options.failover_interval,
            ping_primary_interval=options.ping_primary_interval,
            healthy_pings=options.healthy_pings,
            while_suspect=options.while_suspect,
            order=self.keeps,
            fence_timeout=timedelta(seconds=self.random.choice([1, 20, 300])),
            backlog_queue_count=self._count(),
        )

    def _count(self) -> int:
        """How many backlog queues the next life of a client uses: all of them, or fewer."""
        most = len(self.backlog)
        if self.lowers_count:
            return 1 if self.clients_made > self.client_count else most
        return self._counts.randrange(1, most + 1) if self._counts.random() < FEWER_SHARE else most

    async def _live(self, messages: int) -> None:
        dice = self.random
        self.clients = []
        self.drains = [self._drain() for _ in range(self.drain_count)]
        for number in range(self.client_count):
            self._start_client(number, 0, messages)
        self._schedule_faults()
        for _ in range(self.kills):
            self._at(dice.randrange(2_000, self.horizon_ms), partial(self._kill_a_client, messages))
        await self._finish()

    def _start_client(self, number: int, life: int, messages: int) -> None:
        self.clients_made += 1
        client = CountingClient(self, number, life, self._options())
        self.clients.append(client)
        self._start_lists(client, messages)

    def _kill_a_client(self, messages: int) -> None:
        if self._is_calm:
            return
        victim: Any = self.random.choice(self.clients)
        victim.kill()
        self.clients.remove(victim)
        number = int(victim.logical.removeprefix("c"))

        def again() -> None:
            self._start_client(number, victim.life + 1, messages)

        # What it had sent may still be on its way for a moment.
        self._at(self.now + self.random.choice([1, 3_000]), again)

    def _schedule_faults(self) -> None:
        super()._schedule_faults()
        dice = self.random
        if dice.random() < 0.5:
            # A backlog queue fails while messages are parked.
            start = dice.randrange(1_000, self.horizon_ms)
            self._at(start, self._fault(PRIMARY_DOWN, dice.choice([5_000, 15_000])))
            length = dice.choice([1_000, 5_000, 15_000])
            self._at(start + dice.randrange(1, 5_000), self._fault(QUEUE_DISABLED, length))
        if self.look_pages is not None:
            # Sessions move while they are parked, to queues that a look does not see to the end, and clients are started again.
            for start in range(3_000, self.horizon_ms, 15_000):
                self._at(start, self._fault(PRIMARY_DOWN, 9_000))
                self._at(start + 3_000, self._fault(QUEUE_DISABLED, 3_000))
                self._at(start + 7_000, partial(self._kill_a_client, 20))
        if self.lowers_count:
            for start in (4_000, 16_000):
                self._at(start, self._fault(PRIMARY_DOWN, 5_000))
                self._at(start + 4_000, partial(self._kill_a_client, 20))
        if self.bug in ("fence_dropped_at_restart", "two_queues"):
            # Too rare by chance: clients are killed while messages are parked, and the primary is back soon after.
            for start in range(2_000, self.horizon_ms, 8_000):
                self._at(start, self._fault(PRIMARY_DOWN, 5_000))
                self._at(start + 4_000, partial(self._kill_a_client, 20))
        if self.bug == "stale_look":
            # A look must begin before a message is parked, and end after it, with nothing else of its session there.
            self.latency_ms, self.slow_rate = 50, 0.1
            for start in range(2_000, self.horizon_ms, 3_000):
                self._at(start, self._fault(PRIMARY_DOWN, 600))
        if self.bug == "move_forgotten":
            for start in range(2_000, self.horizon_ms, 9_000):
                self._at(start, self._fault(PRIMARY_DOWN, 7_000))
                self._at(start + 2_000, self._fault(QUEUE_DISABLED, 3_000))
