"""A pair on its bad days: senders, two namespaces and syphons in one thread with a false clock; a seed per world.

Health, flow, rotation, parking, ping schedule and drain plan are the production ones, unchanged; only what waits
(the twins' shells) is written anew here as generators. The seed first draws how cruel to be, then the events.
Faults on: safety is checked as things happen. Then calm: everything must arrive and every queue must drain.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Generator
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Final

from azure.servicebus import exceptions as sdk

from pairbus.errors import InvalidParkedPropertyError
from pairbus.pairing import parking
from pairbus.pairing.factory import Factory
from pairbus.pairing.flow import Choice, Fail, SendFlow, TryBacklog, TryPrimary, Wait
from pairbus.pairing.health import EntityHealth, Health
from pairbus.pairing.naming import backlog_queue, entity_key
from pairbus.pairing.options import SendAvailabilityOptions
from pairbus.pairing.rotation import Rotation
from pairbus.pairing.trigger import IN_DOUBT, Failure, classify
from pairbus.syphon.plan import DrainPlan, Letter, SetAside
from pairbus.testing.pairing_checks import Checks
from pairbus.testing.pairing_model import NamespaceModel, QueueModel, Stored, original

CALM_MS: Final = 900_000
"""How long the calm at the end lasts at most."""
STEPS_MAX: Final = 400_000
PLANTED: Final = (
    "complete_before_send",
    "rotation_not_shared",
    "alias_lost",
    "ping_counts_after_gone",
    "timer_restarted",
)

Work = Generator[Any, Any, None]


@dataclass(frozen=True, slots=True)
class Sleep:
    """Wait this long."""

    ms: int


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask a namespace to do something; the answer, or an error, comes back."""

    namespace: NamespaceModel
    action: Callable[[], Any]
    timeout_ms: int


@dataclass(slots=True)
class Running:
    """A generator on its way; a dead one is never resumed."""

    work: Work
    owner: object
    is_dead: bool = False


class _RestartingHealth(EntityHealth):
    """Planted: each failure starts the timer again."""

    def send_failed(self, now: int, why: str) -> Any:
        if self.state is Health.SUSPECT:
            self.suspect_since_ms = now
        return super().send_failed(now, why)


class _TrustingHealth(EntityHealth):
    """Planted: an answer of any kind counts as health."""

    def ping_failed(self, now: int, why: str, *, entity_is_gone: bool) -> Any:
        if entity_is_gone:
            return self.ping_succeeded(now)
        return super().ping_failed(now, why, entity_is_gone=entity_is_gone)


class SimFactory:
    """One paired client: the production factory and its senders' shells."""

    def __init__(
        self, world: World, number: int, options: SendAvailabilityOptions, queues: list[str]
    ) -> None:
        self.world = world
        self.name = f"f{number}"
        self.watched: set[str] = set()
        self.factory = Factory(
            name=self.name,
            primary="p",
            secondary="s",
            options=options,
            chooser=random.Random(world.random.random()),  # noqa: S311 - dice, not keys
            clock=lambda: world.now,
            wall_clock=lambda: world.now + world.wall_offset,
            on_change=self.changed,
        )
        self.factory.paired_with(queues)

    def record(self, path: str) -> EntityHealth:
        """The entity's record, with a planted bug if the world has one."""
        record = self.factory.record(path)
        kind = {"timer_restarted": _RestartingHealth, "ping_counts_after_gone": _TrustingHealth}.get(
            self.world.bug
        )
        if kind is not None and type(record) is EntityHealth:
            record = kind(
                record.path,
                record.failover_interval_ms,
                self.factory.ping_interval_ms,
                record.healthy_pings,
                self.world.now,
            )
            self.factory._records[entity_key(path)] = record
        return record

    def changed(self, record: EntityHealth) -> None:
        """Start the watch of an entity that is not healthy."""
        self.world.checks.changed(self.name, record, self.world.now)
        if record.state is not Health.HEALTHY and record.path not in self.watched:
            self.watched.add(record.path)
            self.world.spawn(self.watch(record), self)

    def watch(self, record: EntityHealth) -> Work:
        """The watch of both twins, as a generator."""
        world = self.world
        while True:
            self.factory.apply(record, record.tick(world.now))
            if record.is_healthy:
                self.watched.discard(record.path)
                return
            if record.ping_is_due(world.now):
                record.pings.sending(world.now)
                world.checks.ping_sent(self.name, record, world.now)
                try:
                    yield Ask(world.primary, partial(world.ping, record.path), record.pings.timeout_ms)
                except Exception as error:  # noqa: BLE001 - every error is the answer
                    world.checks.ping_answered(self.name, record, error, world.now)
                    gone = classify(error) is Failure.NOT_FOUND
                    self.factory.apply(record, record.ping_failed(world.now, str(error), entity_is_gone=gone))
                else:
                    world.checks.ping_answered(self.name, record, None, world.now)
                    self.factory.apply(record, record.ping_succeeded(world.now))
            else:
                deadline = record.next_deadline()
                yield Sleep(max(1, min(200, (deadline or world.now + 200) - world.now)))

    def sender(self, path: str, numbers: list[int], session: str | None) -> Work:
        """Sends messages one after the other."""
        world = self.world
        choice = Choice()
        for number in numbers:
            yield Sleep(world.random.randrange(1, 2_000))
            payload = original(number, session, has_alias_name=number % 3 == 0, has_life=number % 4 == 0)
            yield from self.send(path, number, payload, choice)

    def send(self, path: str, number: int, payload: bytes, choice: Choice) -> Work:
        """One send: ask, do, report, as both twins do."""
        world = self.world
        record = self.record(path)
        flow = self.factory.flow(record, choice, world.now + world.timeout_ms)
        if world.bug == "rotation_not_shared":
            own = world.own_rotations.setdefault(id(choice), self._fresh_rotation())
            flow = SendFlow(
                record, own, choice, "documented", world.now + world.timeout_ms, holds_while_suspect=False
            )
        parked: bytes | None = None
        world.checks.begun(number, path, payload)
        while True:
            step = flow.next_step(world.now)
            if isinstance(step, TryPrimary):
                world.checks.to_primary(self.name, record, world.now)
                try:
                    yield Ask(
                        world.primary, partial(world.put, world.primary, path, [payload]), step.timeout_ms
                    )
                except Exception as error:  # noqa: BLE001 - every error is an answer
                    world.checks.primary_failed(self.name, record, number, error, world.now)
                    self.factory.apply(record, flow.primary_failed(world.now, error))
                else:
                    world.checks.primary_accepted(self.name, record, world.now)
                    self.factory.apply(record, flow.primary_accepted(world.now))
                    world.checks.told(number, "ok")
                    return
            elif isinstance(step, TryBacklog):
                parked = parked or self._parked(payload, path)
                queue, letter = step.queue, parked
                world.checks.to_backlog(self.name, queue, world.now, self.factory)
                try:
                    yield Ask(
                        world.secondary, partial(world.put, world.secondary, queue, [letter]), step.timeout_ms
                    )
                except Exception as error:  # noqa: BLE001 - every error is an answer
                    world.checks.backlog_failed(self.name, queue, number, error, world.now)
                    flow.backlog_failed(queue, world.now, error)
                else:
                    world.checks.backlog_accepted(self.name, queue)
                    flow.backlog_accepted(queue, 1)
                    world.checks.told(number, "ok")
                    return
            elif isinstance(step, Wait):
                yield Sleep(max(1, min(step.timeout_ms, 100)))
            else:
                assert isinstance(step, Fail)
                world.checks.told(number, "unknown" if step.is_in_doubt else "fail")
                return

    def _parked(self, payload: bytes, path: str) -> bytes:
        parked = self.factory.park([payload], path, "timeout")[0]
        if self.world.bug == "alias_lost":
            return parked.replace(b"x-ms-sessionid", b"x-ms-sessionlost"[:14])
        return parked

    def _fresh_rotation(self) -> Rotation:
        return Rotation(self.factory.queues, self.factory.ping_interval_ms, self.world.random)


class SimSyphon:
    """One syphon: the production plan with shells as generators."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.name = f"y{number}"
        self.plan = DrainPlan(window=50, ready_max=20)
        self.work: dict[str, list[Letter | SetAside]] = {queue: [] for queue in world.backlog}
        self.lines: set[str] = set()
        self.hands: list[Letter] = []
        for queue in world.backlog:
            world.spawn(self.pump(queue), self)

    def pump(self, queue: str) -> Work:
        """Receive and settle one backlog queue."""
        world = self.world
        model = world.secondary
        while True:
            try:
                yield from self.settle(queue)
                for letter in self.plan.renewals(queue, world.now):
                    yield from self.renew(queue, letter)
                room = self.plan.room(queue)
                if not room:
                    yield Sleep(50)
                    continue
                taken = yield Ask(model, partial(self._receive, queue, min(room, 10)), 5_000)
                for stored, lock in taken:
                    yield from self.take(queue, stored.number, lock, stored.payload)
                if not taken:
                    yield Sleep(world.random.randrange(50, 400))
            except Exception:  # noqa: BLE001 - as the real pump: give up the locks, wait, go on
                for letter in self.plan.drop_queue(queue):
                    world.checks.in_doubt_resend(letter.message_id)
                yield Sleep(250)

    def _receive(self, queue: str, count: int) -> list[tuple[Stored, int]]:
        return self.world.secondary.queue(queue).receive(count, self.world.now)

    def _settle(self, queue: str, number: int, lock: int, aside: str | None) -> None:
        self.world.secondary.queue(queue).settle(number, lock, self.world.now, aside=aside)

    def take(self, queue: str, number: int, lock: int, payload: bytes) -> Work:
        """Restore one message and put it in line."""
        world = self.world
        try:
            restored = parking.restore(payload, world.now)
        except InvalidParkedPropertyError:
            yield Ask(
                world.secondary, partial(self._settle, queue, number, lock, "InvalidParkedProperty"), 5_000
            )
            return
        letter = Letter(
            queue, number, restored.path, restored.payload, restored.message_id_text, restored.session_id,
            restored.partition_key, world.now + 60_000, token=lock,
        )  # fmt: skip
        if world.bug == "complete_before_send":
            world.checks.completing(letter)
            yield Ask(
                world.secondary, lambda: world.secondary.queue(queue).settle(number, lock, world.now), 5_000
            )
        refusal = self.plan.received(letter)
        world.checks.placed(letter, refusal)
        key = entity_key(letter.path)
        if key not in self.lines:
            self.lines.add(key)
            world.spawn(self.send_line(key), self)

    def settle(self, queue: str) -> Work:
        """Complete or set aside what is done."""
        world = self.world
        while self.work[queue]:
            item = self.work[queue].pop(0)
            letter = item.letter if isinstance(item, SetAside) else item
            aside = item.reason if isinstance(item, SetAside) else None
            lock: Any = letter.token
            if aside is None:
                world.checks.completing(letter)
                self.hands.append(letter)
            try:
                yield Ask(
                    world.secondary, partial(self._settle, queue, letter.sequence_number, lock, aside), 5_000
                )
            except sdk.MessageLockLostError:
                world.checks.in_doubt_resend(letter.message_id)
            except Exception:
                world.checks.in_doubt_resend(letter.message_id)
                raise
            else:
                if aside is not None:
                    world.checks.set_aside(letter, aside)
            finally:
                if letter in self.hands:
                    self.hands.remove(letter)

    def renew(self, queue: str, letter: Letter) -> Work:
        """Renew one lock."""
        world = self.world
        lock: Any = letter.token
        try:
            letter.locked_until_ms = yield Ask(
                world.secondary,
                lambda: world.secondary.queue(queue).renew(letter.sequence_number, lock, world.now),
                5_000,
            )
        except sdk.MessageLockLostError:
            world.checks.in_doubt_resend(letter.message_id)
            self.plan.lock_lost(letter)
            letter.locked_until_ms = world.now + 60_000

    def letters(self) -> list[Letter]:
        """Every letter it holds, those in its hands for settling included."""
        held = [letter for queue in self.work for letter in self.plan._of(queue)]
        work = [item for items in self.work.values() for item in items if isinstance(item, Letter)]
        return held + work + self.hands

    def send_line(self, key: str) -> Work:
        """Send the letters of one destination until there are none."""
        world = self.world
        while key in self.plan.lines():
            batch = self.plan.next_batch(key, world.now)
            if not batch:
                yield Sleep(50)
                continue
            payloads = [letter.payload for letter in batch]
            path = batch[0].path
            try:
                yield Ask(world.primary, partial(world.put, world.primary, path, payloads), 10_000)
            except Exception as error:  # noqa: BLE001 - every error is an answer to judge
                failure = classify(error)
                if failure in IN_DOUBT:
                    for letter in batch:
                        world.checks.in_doubt_resend(letter.message_id)
                for item in self.plan.send_failed(key, failure, str(error), world.now):
                    self.work[item.letter.queue].append(item)
            else:
                for letter in self.plan.sent(key):
                    world.checks.acknowledged(letter)
                    self.work[letter.queue].append(letter)
        self.lines.discard(key)


class World:
    """Owns the clock, the future and both namespaces.

    Args:
        seed: Everything that happens.
        bug: A planted bug, one of ``PLANTED``; a simulator nobody has seen fail proves nothing.
    """

    def __init__(self, seed: int, bug: str = "") -> None:
        self.seed = seed
        self.bug = bug
        self.random = random.Random(f"pair-{seed}")  # noqa: S311 - dice, not keys
        self.now = 1_000
        self.wall_offset = 1_700_000_000_000
        self.checks = Checks(self)
        self.own_rotations: dict[int, Rotation] = {}
        self._future: list[tuple[int, int, Callable[[], None]]] = []
        self._order = 0
        self._runs: list[Running] = []
        self._steps = 0
        self._is_calm = False
        self._draw_cruelty()
        self.primary, self.secondary = NamespaceModel("p"), NamespaceModel("s")
        self.backlog = [backlog_queue("p", index) for index in range(self.random.randrange(1, 4))]
        for queue in self.backlog:
            self.secondary.add(QueueModel(queue))
        self.entities = ["orders", "events", "ghost"]
        for name in self.entities:
            self.primary.add(QueueModel(name, detects_duplicates=self.random.random() < 0.4))
        self.factories = [
            SimFactory(self, number, self._options(), self.backlog)
            for number in range(self.random.randrange(1, 3))
        ]
        self.syphons = [SimSyphon(self, number) for number in range(self.random.randrange(1, 4))]

    def _draw_cruelty(self) -> None:
        dice = self.random
        self.latency_ms = dice.choice([2, 10, 50])
        self.slow_rate = dice.choice([0.0, 0.02, 0.1])
        self.timeout_ms = dice.choice([2_000, 5_000, 20_000])
        self.faults = dice.randrange(2, 8)
        self.crashes = dice.randrange(4)
        self.deletes_ghost = dice.random() < 0.5
        self.horizon_ms = dice.choice([30_000, 60_000])

    def _options(self) -> SendAvailabilityOptions:
        dice = self.random
        return SendAvailabilityOptions(
            failover_interval=timedelta(milliseconds=dice.choice([0, 500, 3_000])),
            ping_primary_interval=timedelta(milliseconds=dice.choice([1_000, 2_500])),
            healthy_pings=dice.choice([1, 1, 2]),
            while_suspect=dice.choice(["raise", "wait"]) if self.bug != "timer_restarted" else "raise",
        )

    def put(self, namespace: NamespaceModel, path: str, payloads: list[bytes]) -> None:
        """Store messages, at the time at which the request arrives."""
        namespace.queue(path).send(payloads, self.now)

    def ping(self, path: str) -> None:
        """Accept a ping at an entity of the primary."""
        self.primary.queue(path).ping()

    # --- running ----------------------------------------------------------------------------------

    def run(self, messages: int = 40) -> Checks:
        """Bad days, then calm; raises AssertionError with the seed when a promise is broken."""
        numbers = list(range(messages))
        senders = self.random.randrange(2, 5)
        for index in range(senders):
            factory = self.random.choice(self.factories)
            path = self.random.choice(self.entities)
            session = self.random.choice([None, f"session-{index}", ""])
            self.spawn(factory.sender(path, numbers[index::senders], session), factory)
        self._schedule_faults()
        self._run_until(self.horizon_ms)
        self._calm_down()
        deadline = self.now + CALM_MS
        while not self._is_quiet():
            assert self.now < deadline, f"seed {self.seed}: P41: not quiet after the calm: {self._unrest()}"
            self._run_until(self.now + 1_000)
        self.checks.at_the_end()
        assert not self.checks.broken, self.checks.broken[0]
        return self.checks

    def spawn(self, work: Work, owner: object) -> None:
        """Start a generator."""
        running = Running(work, owner)
        self._runs.append(running)
        self.at(self.now, lambda: self._resume(running, None, None))

    def at(self, when: int, action: Callable[[], None]) -> None:
        """Do something later."""
        self._order += 1
        heapq.heappush(self._future, (max(when, self.now), self._order, action))

    def _run_until(self, when: int) -> None:
        while self._future and self._future[0][0] <= when:
            self._steps += 1
            assert self._steps < STEPS_MAX, f"seed {self.seed}: too many steps: something spins (P38)"
            self.now, _, action = heapq.heappop(self._future)
            action()
            assert not self.checks.broken, self.checks.broken[0]
        self.now = max(self.now, when)

    def _resume(self, running: Running, value: Any, error: BaseException | None) -> None:
        if running.is_dead:
            return
        try:
            wanted = running.work.throw(error) if error is not None else running.work.send(value)
        except StopIteration:
            running.is_dead = True
            return
        if isinstance(wanted, Sleep):
            self.at(self.now + wanted.ms, lambda: self._resume(running, None, None))
        else:
            self._ask(running, wanted)

    # --- the network ------------------------------------------------------------------------------

    def _latency(self) -> int:
        slow = 20 if self.random.random() < self.slow_rate and not self._is_calm else 1
        return self.random.randrange(1, self.latency_ms + 1) * slow

    def _ask(self, running: Running, ask: Ask) -> None:
        """The request arrives or not, is done or not, and its answer comes or not: each on its own."""
        state = {"answered": False}

        def answer(value: Any, error: BaseException | None) -> None:
            if not state["answered"]:
                state["answered"] = True
                self._resume(running, value, error)

        def arrive() -> None:
            if ask.namespace.is_silent:
                # A paused process reads its sockets when it goes on: the request may be done late, unheard.
                if self.random.random() < 0.5:
                    self.at(self.now + 500, arrive)
                return
            if ask.namespace.is_down:
                answer(None, sdk.ServiceBusConnectionError())
                return
            if state["answered"] and self.random.random() < 0.5:
                return
            try:
                value, error = ask.action(), None
            except sdk.ServiceBusError as refusal:
                value, error = None, refusal
            self.at(self.now + self._latency(), lambda: leave(value, error))

        def leave(value: Any, error: BaseException | None) -> None:
            if ask.namespace.is_down:
                answer(None, sdk.ServiceBusConnectionError())
            elif not ask.namespace.is_silent:
                answer(value, error)

        self.at(self.now + ask.timeout_ms, lambda: answer(None, sdk.OperationTimeoutError()))
        self.at(self.now + self._latency(), arrive)

    # --- faults -----------------------------------------------------------------------------------

    def _schedule_faults(self) -> None:
        dice = self.random
        for _ in range(self.faults):
            start = dice.randrange(1_000, self.horizon_ms)
            length = dice.choice([100, 1_000, 5_000, 15_000])
            self.at(start, self._fault(dice.randrange(7), length))
        for _ in range(self.crashes):
            self.at(dice.randrange(1_000, self.horizon_ms), self._crash_a_syphon)
        if self.deletes_ghost or self.bug == "ping_counts_after_gone":
            start = dice.randrange(2_000, self.horizon_ms // 2)
            self.at(start, lambda: self._set(self.primary.queues["ghost"], "exists", value=False))
            self.at(start + 12_000, lambda: self._set(self.primary.queues["ghost"], "exists", value=True))

    def _fault(self, kind: int, length: int) -> Callable[[], None]:
        dice = self.random
        entity = self.primary.queues[dice.choice(self.entities)]
        queue = self.secondary.queues[dice.choice(self.backlog).lower()]
        target, name = (
            (self.primary, "is_down"),
            (self.primary, "is_silent"),
            (entity, "is_disabled"),
            (entity, "is_full"),
            (queue, "is_disabled"),
            (self.secondary, "is_down"),
            (self, "wall_offset"),
        )[kind]

        def strike() -> None:
            if isinstance(target, World):
                # The time of day steps; nothing may care.
                self.wall_offset += dice.choice([-3_600_000, 3_600_000])
                return
            self._set(target, name, value=True)
            self.at(self.now + length, lambda: self._set(target, name, value=False))

        return strike

    def _set(self, target: object, name: str, *, value: bool) -> None:
        setattr(target, name, value if not self._is_calm or name == "exists" else False)

    def _crash_a_syphon(self) -> None:
        """Everything it knew is gone; its locks lapse; another one takes its place."""
        victim = self.random.choice(self.syphons)
        for running in self._runs:
            if running.owner is victim:
                running.is_dead = True
        self.checks.crashed(victim.letters())
        self.syphons[self.syphons.index(victim)] = SimSyphon(self, self._order)

    def _calm_down(self) -> None:
        self._is_calm = True
        for namespace in (self.primary, self.secondary):
            namespace.is_down = namespace.is_silent = False
            for queue in namespace.queues.values():
                queue.is_disabled = queue.is_full = False
                queue.exists = True

    def _is_quiet(self) -> bool:
        return not self._unrest()

    def _unrest(self) -> list[str]:
        reasons = [
            f"{queue.name}: {len(queue.messages)} left"
            for queue in self.secondary.queues.values()
            if queue.messages
        ]
        reasons += [
            f"{factory.name}: {path} is {report.state.value}"
            for factory in self.factories
            for path, report in factory.factory.reports().items()
            if report.state in (Health.FAILED_OVER, Health.REFUSING)
        ]
        if self.checks.pending():
            reasons.append(f"{self.checks.pending()} sends are not answered")
        return reasons
