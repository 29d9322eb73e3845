"""What the engine does by itself is told to whoever counts it, while the bytes can still be read."""

from __future__ import annotations

from pairbus.engine.context import Timers
from pairbus.engine.queues.browse import cancel_scheduled, delete_batch
from pairbus.engine.queues.queue import Queue
from pairbus.model.entity import KIND_NAMES, Settings
from pairbus.model.message import Message
from tests.unit.engine.engine_kit import SECOND, START, Bench, rule

MINUTE = 60 * SECOND


class Watcher:
    """Writes down what it is told."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self.told: list[tuple[str, ...]] = []
        bench.namespace.context.watcher = self

    def lock_expired(self, queue: Queue) -> None:
        self.told.append(("lock expired", queue.path))

    def dropped(self, queue: Queue, message: Message, why: str, now: int) -> None:
        assert self._bench.journal.read(message.location, message.size)
        self.told.append((why, queue.path))

    def dead_lettered(self, queue: Queue, message: Message, reason: str | None, now: int) -> None:
        assert self._bench.journal.read(message.location, message.size)
        self.told.append(("dead-lettered", queue.path, str(reason)))

    def forwarded(self, queue: Queue, message: Message, target: str, now: int) -> None:
        self.told.append(("forwarded", queue.path, target))

    def entity_deleted(self, path: str, now: int) -> None:
        self.told.append(("deleted", path))

    def idle_deleted(self, kind: int, path: str) -> None:
        self.told.append(("idle", KIND_NAMES[kind], path))


def test_messages_that_go_unreceived_are_told(bench: Bench) -> None:
    watcher = Watcher(bench)
    queue = bench.queue()
    bench.send(queue, ttl_ms=SECOND)
    bench.wait(SECOND)
    cancel_scheduled(queue, [bench.send(queue, scheduled_at=START + MINUTE)], bench.now)
    bench.send(queue)
    delete_batch(queue, 1, bench.now + 1, None, bench.now)

    assert watcher.told == [("expired", "q"), ("cancelled", "q"), ("purged", "q")]


def test_expired_locks_and_dead_letters_are_told(bench: Bench) -> None:
    watcher = Watcher(bench)
    settings = Settings(max_delivery_count=1, requires_session=True)
    plain, sessions = bench.queue(), bench.queue("s", settings)
    bench.send(plain)
    bench.receive(plain)
    bench.send(sessions, session_id="a")
    bench.holder(sessions, "a", 1)
    bench.wait(MINUTE)

    assert ("lock expired", "q") in watcher.told
    assert ("lock expired", "s") in watcher.told
    assert ("dead-lettered", "s", "MaxDeliveryCountExceeded") in watcher.told


def test_forwarding_failed_filters_and_deletion_are_told(bench: Bench) -> None:
    watcher = Watcher(bench)
    topic = bench.topic()
    bad = bench.subscription("t/Subscriptions/bad", rules=[rule("r", "n / 0 = 1")])
    source = bench.entity("source", settings=Settings(forward_to="t"))
    bench.send(source, properties={"n": 1})
    bench.pump()
    bench.namespace.delete(topic, bench.now)

    assert watcher.told == [
        ("forwarded", "source", "t"),
        ("dead-lettered", bad.path, "FilterException"),
        ("deleted", bad.path),
        ("deleted", "t"),
    ]


def test_a_deadline_asked_for_twice_comes_once() -> None:
    timers = Timers()
    timers.arm(5, 1)
    timers.arm(5, 1)
    timers.arm(9, 2)
    timers.arm(3, 2)

    assert timers.next_deadline() == 3
    assert timers.due(10) == [2, 1]
    assert timers.due(10) == []
    assert timers.next_deadline() is None


def test_a_deletion_of_an_idle_entity_is_told_apart_from_one_by_hand(bench: Bench) -> None:
    watcher = Watcher(bench)
    bench.entity("idle", settings=Settings(auto_delete_on_idle_ms=5 * MINUTE))
    bench.namespace.delete(bench.entity("q"), bench.now)
    bench.wait(5 * MINUTE)

    assert watcher.told == [("deleted", "q"), ("deleted", "idle"), ("idle", "queue", "idle")]
