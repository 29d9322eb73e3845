"""The engine as a state machine: any commands in any order, kills and compaction between them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pairbus.engine.queues import browse
from pairbus.engine.queues.consumer import Consumer, Lock
from pairbus.engine.queues.queue import Queue
from pairbus.engine.sessions import operations as session_ops
from pairbus.errors import Refusal, SessionLockLost
from pairbus.model.access import RIGHTS, AccessRule
from pairbus.model.entity import QUEUE, SUBSCRIPTION, TOPIC, Settings
from tests.property.engine_model import History, Life, difference
from tests.simulation.disk import SimulatedDisk
from tests.unit.engine import engine_kit
from tests.unit.engine.engine_kit import START, TRUE_RULE, incoming

IDLE_MS = 300_000
ENTITIES: list[tuple[int, str, Settings]] = [
    (QUEUE, "plain", Settings()),
    (QUEUE, "sessions", Settings(requires_session=True, max_delivery_count=3)),
    (QUEUE, "dups", Settings(requires_duplicate_detection=True, duplicate_window_ms=20_000)),
    (QUEUE, "ttl", Settings(default_ttl_ms=9_000, lock_duration_ms=5_000)),
    (QUEUE, "ttldl", Settings(default_ttl_ms=9_000, dead_letter_on_expiration=True, lock_duration_ms=5_000)),
    (QUEUE, "fragile", Settings(max_delivery_count=2, forward_dead_letters_to="plain")),
    (QUEUE, "forward", Settings(forward_to="plain")),
    (QUEUE, "flow", Settings(requires_session=True, forward_to="plain", enable_partitioning=True)),
    (QUEUE, "idle", Settings(auto_delete_on_idle_ms=IDLE_MS)),
    (QUEUE, "idlesessions", Settings(auto_delete_on_idle_ms=IDLE_MS, requires_session=True)),
    (TOPIC, "topic", Settings(requires_duplicate_detection=True, duplicate_window_ms=20_000)),
    (SUBSCRIPTION, "topic/Subscriptions/all", Settings(rules=(TRUE_RULE,))),
    (
        SUBSCRIPTION,
        "topic/Subscriptions/some",
        Settings(
            rules=(engine_kit.rule("n", "n > 1"), engine_kit.rule("a", "n > 2", "SET x = n")),
            max_delivery_count=1,
        ),
    ),
    (SUBSCRIPTION, "topic/Subscriptions/sessions", Settings(rules=(TRUE_RULE,), requires_session=True)),
    (SUBSCRIPTION, "topic/Subscriptions/idle", Settings(rules=(TRUE_RULE,), auto_delete_on_idle_ms=IDLE_MS)),
    (SUBSCRIPTION, "topic/Subscriptions/forward", Settings(rules=(TRUE_RULE,), forward_to="sessions")),
]
PATHS = st.sampled_from([path for _, path, _ in ENTITIES])
SENDABLE = st.sampled_from([path for kind, path, _ in ENTITIES if kind != SUBSCRIPTION])
PICK = st.integers(0, 10_000)


class EngineMachine(RuleBasedStateMachine):
    """Commands come as they please; what must hold is held against every step."""

    def __init__(self) -> None:
        super().__init__()
        self.history = History()
        self.life = Life(SimulatedDisk(), START, self.history)
        self.lives = 1
        self.restated = 0
        self.idle_deletions = 0
        """Of the lives before this one."""

    @property
    def now(self) -> int:
        return self.life.now

    @initialize()
    def begin(self) -> None:
        rule_ = AccessRule(name="r", rights=RIGHTS, primary_key="a", secondary_key="b")
        self.life.namespace.set_access_rules((rule_,), self.now)
        for kind, path, chosen in ENTITIES:
            self.life.namespace.create(kind, path, chosen, self.now)
        self._end_of_burst()

    def _end_of_burst(self) -> None:
        namespace = self.life.namespace
        for _ in range(50):
            namespace.pump(self.now)
            if not namespace.context.dirty:
                break
        else:
            raise AssertionError("the pump does not come to rest")
        self.life.commit()

    def _queue(self, path: str, place: int) -> Queue | None:
        entity = self.life.namespace.find(path)
        return None if entity is None else entity.queues[place]

    # -- sends

    @rule(path=SENDABLE, count=st.integers(1, 6), pick=PICK, size=st.integers(0, 400))
    def send(self, path: str, count: int, pick: int, size: int) -> None:
        entity = self.life.namespace.find(path)
        if entity is None:
            return
        chance = random.Random(pick)
        messages = []
        for _ in range(count):
            scheduled = chance.random() < 0.15
            messages.append(
                incoming(
                    "x" * chance.randrange(size + 1),
                    message_id=f"m{chance.randrange(30)}",
                    session_id=chance.choice(("a", "b", "c", "c")),
                    ttl_ms=chance.choice((0, 0, 0, 2_000, 8_000)),
                    scheduled_at=self.now + chance.choice((1, 3_000, 30_000)) if scheduled else 0,
                    properties={"n": chance.randrange(5)},
                )
            )
        size = 0
        try:
            for message in messages:
                self.life.namespace.check_send(entity, message, size)
                size += len(message.blob)
        except Refusal:
            return
        for message in messages:
            self.life.namespace.send(entity, message, self.now)
        self.life.use(entity.main)
        self._end_of_burst()

    @rule(path=PATHS, pick=PICK)
    def cancel(self, path: str, pick: int) -> None:
        queue = self._queue(path, 0)
        if queue is None:
            return
        scheduled = [number for number, message in queue.messages.items() if message.state == 2]
        numbers = scheduled[: 1 + pick % 3]
        if pick % 5 == 0 or not numbers:
            with pytest.raises(Refusal):
                browse.cancel_scheduled(queue, [*numbers, 0], self.now)
        else:
            browse.cancel_scheduled(queue, numbers, self.now)
            self.life.use(queue)
        self._end_of_burst()

    # -- receivers

    @rule(
        path=PATHS,
        place=st.sampled_from((0, 0, 0, 1, 2)),
        credit=st.integers(1, 5),
        deletes=st.booleans(),
        stays=st.booleans(),
    )
    def receive(self, path: str, place: int, credit: int, deletes: bool, stays: bool) -> None:
        queue = self._queue(path, place)
        if queue is None:
            return
        consumer = Consumer(queue, deletes and credit == 1)
        try:
            queue.attach(consumer, self.now)
        except Refusal:
            return
        queue.set_credit(consumer, credit)
        self.life.consumers.append((queue, consumer))
        self._end_of_burst()
        if not stays:
            self._detach(queue, consumer)

    def _detach(self, queue: Queue, consumer: Consumer) -> None:
        if (queue, consumer) in self.life.consumers:
            self.life.consumers.remove((queue, consumer))
            queue.detach(consumer, self.now)
            self.life.use(queue)
            self._end_of_burst()

    @rule(
        path=PATHS,
        session_id=st.sampled_from(("a", "b", "c", None)),
        credit=st.integers(0, 5),
        wait=st.integers(1, 9_000),
        deletes=st.booleans(),
    )
    def accept(self, path: str, session_id: str | None, credit: int, wait: int, deletes: bool) -> None:
        queue = self._queue(path, 0)
        if queue is None:
            return
        consumer = Consumer(queue, deletes)
        self.life.consumers.append((queue, consumer))
        try:
            session_ops.accept(queue, consumer, session_id, wait, self.now)
        except Refusal:
            self.life.consumers.remove((queue, consumer))
            return
        queue.set_credit(consumer, credit)
        self._end_of_burst()

    @rule(
        pick=PICK,
        credit=st.integers(0, 4),
        what=st.sampled_from(("credit", "suspend", "detach", "renew", "state")),
    )
    def consumer(self, pick: int, credit: int, what: str) -> None:
        if not self.life.consumers:
            return
        queue, consumer = self.life.consumers[pick % len(self.life.consumers)]
        if what == "detach":
            self._detach(queue, consumer)
            return
        if what == "suspend":
            consumer.is_suspended = not consumer.is_suspended
            credit = consumer.credit
        elif consumer.session is not None and what != "credit":
            if consumer.session.locked_until <= self.now:
                with pytest.raises(SessionLockLost):  # within its grace: it only waits to be told
                    session_ops.held_session(queue, consumer, consumer.session.session_id, self.now)
                return
            session = session_ops.held_session(queue, consumer, consumer.session.session_id, self.now)
            if what == "renew":
                before = session.locked_until
                assert session_ops.renew(queue, session, self.now) >= before, "B28"
            else:
                state = (b"", b"s%d" % pick)[pick % 3 > 0] if credit else None
                session_ops.set_state(queue, session, state, self.now)
                assert session.state == (state or None), "B53"
            self.life.use(queue)
            self._end_of_burst()
            return
        queue.set_credit(consumer, credit)
        self._end_of_burst()

    # -- settlement

    @rule(
        pick=PICK,
        count=st.integers(1, 4),
        what=st.sampled_from(("complete", "complete", "abandon", "release", "defer", "dead_letter", "renew")),
    )
    def settle(self, pick: int, count: int, what: str) -> None:
        for _ in range(count):
            if self.life.locks:
                self._settle(*self.life.locks[pick % len(self.life.locks)], what, pick)
        self._end_of_burst()

    def _settle(self, queue: Queue, lock: Lock, what: str, pick: int) -> None:
        was_held = lock.is_held
        changed = b"\xc1\x03\x02\x40\x40" if pick % 2 else b""
        try:
            if what == "complete":
                queue.complete(lock, self.now)
            elif what == "abandon":
                # First the count that must show from now on: giving it back may deliver it in the same breath.
                queue.check_held(lock, self.now)
                self.life.count(queue, lock)
                queue.abandon(lock, changed, self.now)
            elif what == "release":
                queue.release(lock, self.now)
            elif what == "defer":
                queue.check_held(lock, self.now)
                self.life.count(queue, lock)
                queue.defer(lock, changed, self.now)
            elif what == "dead_letter":
                queue.dead_letter(lock, "reason", None, changed, self.now)
            else:
                before = lock.locked_until
                assert queue.renew(lock, self.now) >= before, "B28"
                self.life.use(queue)
                return
        except Refusal:
            assert lock.is_held == was_held, "B27: a refusal changes nothing"
            return
        assert was_held, "B27: a lock that had ended was accepted"
        assert not lock.is_held
        self.life.use(queue)
        self.life.locks = [(q, one) for q, one in self.life.locks if one is not lock]

    @rule(path=PATHS, place=st.sampled_from((0, 0, 1)), pick=PICK, deletes=st.booleans())
    def by_number(self, path: str, place: int, pick: int, deletes: bool) -> None:
        queue = self._queue(path, place)
        if queue is None:
            return
        deferred = [number for number, message in queue.messages.items() if message.state == 1]
        if not deferred:
            return
        number = deferred[pick % len(deferred)]
        session = None
        if queue.sessions is not None:
            session = queue.sessions.sessions[str(queue.messages[number].session_id)]
            if session.holder is None:
                return
        try:
            if deletes:
                for message in browse.check_deferred(queue, [number], session):
                    self.life.check_count(queue, message)
                    queue.remove(message)
            else:
                for lock in browse.lock_deferred(queue, [number], session, self.now):
                    self.life.use(queue)
                    self.life.check_count(queue, lock.message)
                    self.life.locks.append((queue, lock))
        except Refusal:
            assert queue.messages[number].is_locked or queue.relay is not None
        self._end_of_burst()

    @rule(path=PATHS, place=st.sampled_from((0, 1, 2)), number=st.integers(0, 40), count=st.integers(1, 300))
    def peek(self, path: str, place: int, number: int, count: int) -> None:
        queue = self._queue(path, place)
        if queue is None:
            return
        before = self.life.snapshot()
        found = [message.sequence_number for message in browse.peek(queue, number, count, None)]
        assert found == sorted(n for n in queue.messages if n >= number)[: min(count, browse.PEEK_COUNT_MAX)]
        assert self.life.snapshot() == before, "B33"

    @rule(path=PATHS, count=st.integers(1, 5))
    def delete_messages(self, path: str, count: int) -> None:
        queue = self._queue(path, 0)
        if queue is None:
            return
        try:
            browse.delete_batch(queue, count, self.now + 1, None, self.now)
        except Refusal:
            return
        self.life.use(queue)
        self._end_of_burst()

    # -- time

    @rule(ms=st.one_of(st.integers(1, 3_000), st.integers(3_000, 70_000), st.integers(70_000, 400_000)))
    def tick(self, ms: int) -> None:
        until = self.now + ms
        namespace = self.life.namespace
        for _ in range(10_000):
            deadline = namespace.next_deadline()
            if deadline is None or deadline > until:
                break
            self.life.now = max(self.now, deadline)
            self._note_lapses()
            self.life.is_ticking = True
            namespace.tick(self.now)
            self.life.is_ticking = False
            self._end_of_burst()
        else:
            raise AssertionError("time stands still")
        self.life.now = until

    def _note_lapses(self) -> None:
        """Locks that end now count as failed deliveries (B29)."""
        for queue, lock in self.life.locks:
            until = lock.locked_until if lock.session is None else lock.session.locked_until
            if lock.is_held and until <= self.now:
                self.life.count(queue, lock)
                self.life.use(queue)
        self.life.locks = [
            (queue, lock)
            for queue, lock in self.life.locks
            if lock.is_held
            and (lock.locked_until if lock.session is None else lock.session.locked_until) > self.now
        ]

    # -- configuration

    @rule(path=PATHS, lock_seconds=st.integers(5, 60), most=st.integers(1, 4), forwards=st.booleans())
    def update(self, path: str, lock_seconds: int, most: int, forwards: bool) -> None:
        entity = self.life.namespace.find(path)
        if entity is None:
            return
        changed = replace(entity.settings, lock_duration_ms=lock_seconds * 1_000, max_delivery_count=most)
        if entity.kind != TOPIC:
            # The one that everything goes to forwards to itself; that ends at the hop limit.
            changed = replace(changed, forward_to="plain" if forwards and lock_seconds % 2 else None)
        is_other = changed != entity.settings
        try:
            self.life.namespace.update(entity, changed, self.now)
        except Refusal:
            return
        # Locks of the entity are lost, with a topic those of its subscriptions, and no count rises.
        changed_queues = [q for one in (entity, *entity.subscriptions.values()) for q in one.queues]
        if is_other:
            assert not [lock for queue, lock in self.life.locks if queue in changed_queues and lock.is_held]
        self._end_of_burst()

    @rule(path=PATHS)
    def delete(self, path: str) -> None:
        entity = self.life.namespace.find(path)
        if entity is None:
            return
        self.life.namespace.delete(entity, self.now)
        # As the gateway does: links of what is gone end.
        for queue, consumer in list(self.life.consumers):
            if self.life.namespace.queue_of(queue.queue_id) is None:
                self._detach(queue, consumer)
        self._end_of_burst()

    @rule(pick=PICK)
    def recreate(self, pick: int) -> None:
        missing = [
            (kind, path, chosen) for kind, path, chosen in ENTITIES if self.life.namespace.find(path) is None
        ]
        if not missing:
            return
        kind, path, chosen = missing[pick % len(missing)]
        try:
            entity = self.life.namespace.create(kind, path, chosen, self.now)
        except Refusal:
            return
        assert entity.counts().total == 0, "B16"
        self._end_of_burst()

    # -- the process

    @rule(limit=st.sampled_from((1, 7, 500)), rounds=st.integers(1, 5))
    def compact(self, limit: int, rounds: int) -> None:
        for _ in range(rounds):
            for record in self.life.store.restate(limit):
                self.life.namespace.restate(record, self.now)
                self.restated += 1
            self.life.namespace.record_uses(self.now)
            self.life.commit()

    @rule(power=st.booleans(), pick=PICK)
    def kill_and_replay(self, power: bool, pick: int) -> None:
        before = self.life.snapshot()
        disk = self.life.disk.crashed(random.Random(pick)) if power else self.life.disk.killed()
        self.idle_deletions += self.life.idle_deletions
        life = Life(disk, self.now, self.history)
        after = life.snapshot()
        # Replaying the records rebuilds exactly the memory (B1, B9, B17).
        assert after == before, difference(before, after)
        for path, at in self.life.times().items():
            # Compaction keeps one time for all queues of a segment: later is allowed, the future is not (B20).
            assert at <= life.times()[path] <= self.now, path
        for entity_id, numbers in self.life.numbers().items():
            found = life.numbers()[entity_id].accessed_at
            assert numbers.use_recorded_at <= found <= numbers.accessed_at, (
                f"{entity_id} was used at {numbers}"
            )
        self.life = life
        self.lives += 1
        self._end_of_burst()

    @invariant()
    def everything_holds(self) -> None:
        self.life.check()


def walk(seed: int, steps: int) -> EngineMachine:
    """A long life, where the machine's own choices are short ones: most of what matters needs a long past."""
    chance = random.Random(seed)
    machine = EngineMachine()
    machine.begin()
    paths = [path for _, path, _ in ENTITIES]
    sendable = [path for kind, path, _ in ENTITIES if kind != SUBSCRIPTION]

    def any_of(*values: str) -> str:
        return chance.choice(values)

    def below(limit: int) -> int:
        return chance.randrange(limit)

    steps_by_weight: list[tuple[int, Callable[[], object]]] = [
        (20, lambda: machine.send(any_of(*sendable), 1 + below(6), below(10**6), below(400))),
        (2, lambda: machine.cancel(any_of(*paths), below(1_000))),
        (
            14,
            lambda: machine.receive(
                any_of(*paths), chance.choice((0, 0, 0, 0, 1, 2)), 1 + below(5), not below(3), below(2) == 0
            ),
        ),
        (
            8,
            lambda: machine.accept(
                any_of(*paths, *["sessions"] * 6),
                chance.choice(("a", "b", None)),
                below(6),
                1 + below(9_000),
                below(3) == 0,
            ),
        ),
        (
            8,
            lambda: machine.consumer(
                below(99), below(5), any_of("credit", "suspend", "detach", "renew", "state")
            ),
        ),
        (8, lambda: machine.settle(below(99), 1 + below(4), "complete")),
        (
            16,
            lambda: machine.settle(
                below(99), 1 + below(4), any_of("abandon", "release", "defer", "dead_letter", "renew")
            ),
        ),
        (5, lambda: machine.by_number(any_of(*paths), below(2), below(99), below(2) == 0)),
        (1, lambda: machine.peek(any_of(*paths), below(3), below(40), 1 + below(300))),
        (1, lambda: machine.delete_messages(any_of(*paths), 1 + below(5))),
        (8, lambda: machine.tick(1 + below(chance.choice((3_000, 70_000, 70_000, 400_000))))),
        (2, lambda: machine.update(any_of(*paths), 5 + below(55), 1 + below(4), below(2) == 0)),
        (1, lambda: machine.delete(any_of(*paths))),
        (3, lambda: machine.recreate(below(99))),
        (4, lambda: machine.compact(chance.choice((1, 7, 500)), 1 + below(5))),
        (3, lambda: machine.kill_and_replay(below(2) == 0, below(1_000))),
    ]
    weights = [weight for weight, _ in steps_by_weight]
    for number in range(steps):
        step = chance.choices(steps_by_weight, weights)[0][1]
        try:
            step()
            machine.life.check()
        except BaseException as error:
            error.add_note(f"in step {number} of the walk with seed {seed}")
            raise
    return machine


@pytest.mark.promise("B1", "B5", "B7", "B8", "B19", "B20", "B25", "B29", "B30", "B66")
@pytest.mark.parametrize("seed", range(24))
def test_long_lives_with_kills_and_compaction(seed: int) -> None:
    walk(seed, 200)


def test_the_walks_reach_what_they_are_about() -> None:
    """Otherwise the test above would prove less than it says."""
    machines = [walk(seed, 200) for seed in range(3)]

    assert sum(len(machine.history.removed) for machine in machines) > 200
    assert sum(len(machine.history.fails) for machine in machines) > 10
    assert sum(machine.lives for machine in machines) > 9
    assert sum(machine.restated for machine in machines) > 100
    assert sum(machine.idle_deletions for machine in machines) > 3


EngineMachine.TestCase.settings = settings(stateful_step_count=40)
TestEngineMachine = EngineMachine.TestCase
