"""AutoDeleteOnIdle: whatever a client does with an entity is use of it, and what is in use is not deleted (B1).

Every public function of the engine that works on a queue is named here, as use or as something else: a new one fails the first test
until somebody has decided.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

import pytest

from pairbus.engine.namespace import Namespace
from pairbus.engine.queues import browse
from pairbus.engine.queues.consumer import Consumer
from pairbus.engine.queues.queue import Queue
from pairbus.engine.sessions import operations as session_ops
from pairbus.engine.uses import LOOKED_AT_MAX, RECORDED_EVERY_MS, Rounds
from pairbus.model.entity import Settings
from tests.unit.engine.engine_kit import START, Bench, incoming, ping

MINUTE: Final = 60_000
IDLE_MS: Final = 5 * MINUTE
LATER_MS: Final = 4 * MINUTE
PLAIN: Final = Settings(auto_delete_on_idle_ms=IDLE_MS, lock_duration_ms=IDLE_MS)
SESSIONS: Final = Settings(auto_delete_on_idle_ms=IDLE_MS, lock_duration_ms=IDLE_MS, requires_session=True)

Act: TypeAlias = Callable[[], object]
"""What a client does a while after it has prepared for it."""


def settling(
    settle: Callable[[Bench, Queue], Callable[..., object]], *more: object
) -> Callable[[Bench], Act]:
    """A receiver has taken a message and gone; later it does something with the message."""

    def prepare(bench: Bench) -> Act:
        queue = bench.queue("q", PLAIN)
        bench.send(queue)
        bench.send(queue, "stays")
        lock = bench.receive(queue)
        return lambda: settle(bench, queue)(lock, *more, bench.now)

    return prepare


def receiving(*, deletes: bool) -> Callable[[Bench], Act]:
    """A receiver that is attached asks for another message."""

    def prepare(bench: Bench) -> Act:
        queue = bench.queue("q", PLAIN)
        for text in ("first", "second", "stays"):
            bench.send(queue, text)
        consumer = bench.receiver(queue, 1, deletes=deletes)
        bench.pump()

        def act() -> None:
            queue.set_credit(consumer, 1)
            bench.pump()

        return act

    return prepare


def attaching(bench: Bench) -> Act:
    queue = bench.queue("q", PLAIN)
    bench.send(queue)
    return lambda: bench.receiver(queue)


def detaching(bench: Bench) -> Act:
    queue = bench.queue("q", PLAIN)
    bench.send(queue)
    consumer = bench.receiver(queue)
    return lambda: queue.detach(consumer, bench.now)


def sending(message: object) -> Callable[[Bench], Act]:
    def prepare(bench: Bench) -> Act:
        queue = bench.queue("q", PLAIN)
        return lambda: bench.send(queue, message)

    return prepare


def sending_via(bench: Bench) -> Act:
    via = bench.entity("q", settings=PLAIN)
    bench.entity("target")
    return lambda: bench.namespace.send_via(via, "target", incoming("x"), bench.now)


def publishing(message: object) -> Callable[[Bench], Act]:
    def prepare(bench: Bench) -> Act:
        topic = bench.topic("q", PLAIN)
        return lambda: bench.send(topic, message)

    return prepare


def taking_deferred(bench: Bench) -> Act:
    queue = bench.queue("q", PLAIN)
    number = bench.send(queue)
    queue.defer(bench.receive(queue), b"", bench.now)
    return lambda: browse.lock_deferred(queue, [number], None, bench.now)


def cancelling(bench: Bench) -> Act:
    queue = bench.queue("q", PLAIN)
    bench.send(queue)
    number = bench.send(queue, "x", scheduled_at=bench.now + 60 * MINUTE)
    return lambda: browse.cancel_scheduled(queue, [number], bench.now)


def deleting(bench: Bench) -> Act:
    queue = bench.queue("q", PLAIN)
    bench.send(queue)
    return lambda: browse.delete_batch(queue, 1, bench.now, None, bench.now)


def accepting(bench: Bench) -> Act:
    queue = bench.queue("q", SESSIONS)
    bench.send(queue, "x", session_id="a")
    return lambda: bench.holder(queue, "a")


def with_session(act: Callable[[Bench, Queue, Consumer], object]) -> Callable[[Bench], Act]:
    """A receiver holds a session; later it does something with it."""

    def prepare(bench: Bench) -> Act:
        queue = bench.queue("q", SESSIONS)
        bench.send(queue, "x", session_id="a")
        consumer = bench.holder(queue, "a")
        return lambda: act(bench, queue, consumer)

    return prepare


def renewing_session(bench: Bench, queue: Queue, consumer: Consumer) -> None:
    assert consumer.session is not None
    session_ops.renew(queue, consumer.session, bench.now)


def setting_state(bench: Bench, queue: Queue, consumer: Consumer) -> None:
    assert consumer.session is not None
    session_ops.set_state(queue, consumer.session, b"x", bench.now)


USES: Final[dict[str, Callable[[Bench], Act]]] = {
    "Queue.attach": attaching,
    "Queue.detach": detaching,
    "Queue.send": sending("x"),
    "Queue.send of a ping": sending(ping()),
    "Queue.deliver": receiving(deletes=False),
    "Queue.hand_over": receiving(deletes=True),
    "Queue.check_held": settling(lambda _, queue: queue.check_held),
    "Queue.complete": settling(lambda _, queue: queue.complete),
    "Queue.complete_many": settling(lambda _, queue: lambda lock, now: queue.complete_many([lock], now)),
    "Queue.abandon": settling(lambda _, queue: queue.abandon, b""),
    "Queue.release": settling(lambda _, queue: queue.release),
    "Queue.defer": settling(lambda _, queue: queue.defer, b""),
    "Queue.dead_letter": settling(lambda _, queue: queue.dead_letter, None, None, b""),
    "Queue.renew": settling(lambda _, queue: queue.renew),
    "browse.lock_deferred": taking_deferred,
    "browse.cancel_scheduled": cancelling,
    "browse.delete_batch": deleting,
    "session_ops.accept": accepting,
    "session_ops.held_session": with_session(lambda b, q, c: session_ops.held_session(q, c, "a", b.now)),
    "session_ops.renew": with_session(renewing_session),
    "session_ops.set_state": with_session(setting_state),
    "session_ops.give_up": with_session(lambda bench, queue, consumer: queue.detach(consumer, bench.now)),
    "Namespace.send": publishing("x"),
    "Namespace.send of a ping": publishing(ping()),
    "Namespace.send_via": sending_via,
}
"""What is use of an entity, by the name of the engine's function."""

LOOKS: Final = {"browse.peek", "browse.check_deferred", "session_ops.list_sessions"}
"""Questions that take no time as an argument. A client asks them through the management node, where every request is use
(``test_every_request_to_a_management_node_is_use``)."""

STEPS: Final = {
    *(
        f"Queue.{name}"
        for name in ("abolish", "arm", "check_dead_letter", "check_receive", "check_send", "check_transfer")
    ),
    *(f"Queue.{name}" for name in ("drop", "end_lock", "enforce_delivery_limit", "expire", "expiry", "fail")),
    *(
        f"Queue.{name}"
        for name in ("fetched", "find_lock", "fold", "give_back", "lock", "lose_locks", "move")
    ),
    *(
        f"Queue.{name}"
        for name in (
            "messages_of",
            "move_to_dead_letter",
            "record",
            "record_removals",
            "remove",
            "store",
        )
    ),
    *(f"Queue.{name}" for name in ("set_credit", "take_moved", "tick", "unlocked", "watch_expiry")),
    *(f"session_ops.{name}" for name in ("end_hold", "expire", "lose", "lose_all", "serve_waiting")),
    *(
        f"Namespace.{name}"
        for name in ("all_queues", "entities", "entity_count", "entity_page", "find", "held_objects")
    ),
    *(
        f"Namespace.{name}"
        for name in (
            "live_messages",
            "message_count",
            "paths",
            "queue_of",
            "next_deadline",
            "fold",
            "fold_all",
            "replayed",
        )
    ),
    *(
        f"Namespace.{name}"
        for name in ("restate", "record_uses", "pump", "fetched", "tick", "check_send", "check_send_via")
    ),
    *(
        f"Namespace.{name}"
        for name in ("create", "update", "delete", "set_access_rules", "set_audit_stopped")
    ),
}
"""Not operations of a client on messages: steps of the operations above, checks, what happens by itself, and configuration, whose
time is ``updated_at``."""


def public_functions() -> set[str]:
    found: set[str] = set()
    for owner, prefix in ((Queue, "Queue"), (Namespace, "Namespace")):
        names = [name for name in dir(owner) if not name.startswith("_") and callable(getattr(owner, name))]
        found |= {f"{prefix}.{name}" for name in names}
    for module, prefix in ((browse, "browse"), (session_ops, "session_ops")):
        for name, value in vars(module).items():
            is_own = getattr(value, "__module__", None) == module.__name__
            if callable(value) and is_own and not name.startswith("_"):
                found.add(f"{prefix}.{name}")
    return found


@pytest.mark.uncompiled
def test_every_function_of_the_engine_is_use_or_known_not_to_be() -> None:
    named = {name.partition(" ")[0] for name in USES}
    assert public_functions() == named | LOOKS | STEPS
    assert not named & (LOOKS | STEPS)


@pytest.mark.promise("B1")
@pytest.mark.parametrize("name", USES)
def test_whatever_a_client_does_keeps_an_entity(name: str, bench: Bench) -> None:
    act = USES[name](bench)
    entity = bench.find("q")
    bench.wait(LATER_MS)
    act()

    assert entity.accessed_at == bench.now
    bench.wait(IDLE_MS - 1)
    assert not entity.is_deleted


@pytest.mark.promise("B1")
@pytest.mark.parametrize("deletes", [False, True])
def test_an_attached_receiver_keeps_an_entity_however_little_it_takes(deletes: bool, bench: Bench) -> None:
    queue = bench.queue("q", Settings(auto_delete_on_idle_ms=IDLE_MS))
    topic = bench.topic("t", PLAIN)
    subscription = bench.subscription("t/Subscriptions/s", PLAIN)
    bench.send(queue)
    consumers = [
        (place, bench.receiver(place, deletes=deletes))
        for place in (queue, bench.find("q").dead_letter, subscription.main)
    ]
    bench.wait(60 * MINUTE)
    assert not any(entity.is_deleted for entity in (bench.find("q"), topic, subscription))
    assert queue.active_count == 1

    for place, consumer in consumers:
        place.detach(consumer, bench.now)
        place.detach(consumer, bench.now)  # a second end of the same receiver counts for nothing
    bench.wait(IDLE_MS - 1)
    assert not any(entity.is_deleted for entity in (bench.find("q"), topic, subscription))
    bench.wait(1)
    assert [bench.namespace.find(path) for path in ("q", "t", "t/Subscriptions/s")] == [None, None, None]


@pytest.mark.promise("B1")
def test_a_lock_that_ran_out_was_use_until_then(bench: Bench) -> None:
    queue = bench.queue("q", PLAIN)
    bench.send(queue)
    bench.receive(queue)
    bench.wait(LATER_MS)
    ended_at = bench.now + IDLE_MS - LATER_MS
    bench.wait(IDLE_MS)

    assert bench.find("q").accessed_at == ended_at
    bench.wait(LATER_MS - 1)
    assert queue.active_count == 1
    bench.wait(1)
    assert bench.namespace.find("q") is None


@pytest.mark.promise("B1")
def test_a_session_was_used_as_long_as_it_was_held_and_waited_for() -> None:
    for session_id, timeout_ms in (("a", 1), (None, LATER_MS)):
        bench = Bench()
        queue = bench.queue("q", Settings(auto_delete_on_idle_ms=IDLE_MS, requires_session=True))
        bench.holder(queue, session_id, timeout_ms=timeout_ms)
        bench.wait(LATER_MS)
        ended_at = bench.find("q").accessed_at
        assert len(bench.outbox.detached) == 1
        assert ended_at == bench.now - LATER_MS + (MINUTE if session_id else timeout_ms)
        bench.wait(ended_at + IDLE_MS - bench.now - 1)
        assert not bench.find("q").is_deleted


def test_an_entity_that_is_used_no_more_goes(bench: Bench) -> None:
    queue = bench.queue("q", PLAIN)
    bench.send(queue)
    lock = bench.receive(queue)
    bench.wait(LATER_MS)
    queue.complete(lock, bench.now)
    bench.wait(IDLE_MS)

    assert bench.namespace.find("q") is None


def test_what_others_publish_is_no_use_of_a_subscription(bench: Bench) -> None:
    topic = bench.topic("t")
    bench.subscription("t/Subscriptions/s", PLAIN)
    for _ in range(6):
        bench.send(topic)
        bench.wait(MINUTE)

    assert bench.namespace.find("t/Subscriptions/s") is None


# -- the last use survives a restart (decision 0125)


def use(bench: Bench, path: str) -> None:
    queue = bench.find(path).main
    queue.detach(bench.receiver(queue), bench.now)


def test_the_last_use_is_recorded_now_and_then_and_at_the_end(bench: Bench) -> None:
    entities = [
        bench.entity("q"),
        bench.topic("t"),
        bench.subscription("t/Subscriptions/s"),
        bench.entity("unused"),
    ]
    paths = [entity.path for entity in entities]
    first = bench.now
    use(bench, "q")
    use(bench, "t/Subscriptions/s")
    bench.send(entities[1])
    bench.namespace.record_uses(bench.now)

    def seen(life: Bench) -> list[int]:
        return [life.find(path).accessed_at for path in paths]

    assert seen(bench.restart()) == [first, first, first, 0]
    bench.wait(RECORDED_EVERY_MS - 1)
    use(bench, "q")
    bench.namespace.record_uses(bench.now)
    assert seen(bench.restart()) == [first, first, first, 0]
    used_at = bench.now
    bench.wait(1)
    bench.namespace.record_uses(bench.now)
    assert seen(bench.restart()) == [used_at, first, first, 0]

    use(bench, "t/Subscriptions/s")
    bench.namespace.record_uses(bench.now, is_last=True)
    after = bench.restart()
    assert seen(after) == [used_at, first, bench.now, 0]
    again = len(after.journal.records)
    after.wait(RECORDED_EVERY_MS)
    after.namespace.record_uses(after.now, is_last=True)
    assert len(after.journal.records) == again  # nothing was used: nothing is written


def test_what_was_sent_was_used_even_if_the_broker_is_killed(bench: Bench) -> None:
    queue, topic = bench.entity("q"), bench.topic()
    bench.subscription("t/Subscriptions/s")
    bench.wait(MINUTE)
    bench.send(queue)
    bench.send(topic)
    sent_at = bench.now
    bench.wait(MINUTE)
    after = bench.restart()

    assert after.find("q").accessed_at == sent_at
    assert after.find("t/Subscriptions/s").accessed_at == 0  # copies alone are no use of it


@pytest.mark.promise("B12")
def test_a_full_disk_records_no_uses(bench: Bench) -> None:
    bench.send(bench.queue())
    before = len(bench.journal.records)
    bench.journal.room = 0
    bench.namespace.record_uses(bench.now, is_last=True)
    assert len(bench.journal.records) == before


def test_uses_of_many_entities_are_recorded_a_part_at_a_time() -> None:
    rounds = Rounds()
    ids = range(1, 2 * LOOKED_AT_MAX + 2)
    parts = [rounds.next_part(ids, START, False) for _ in range(4)]
    assert [len(part) for part in parts] == [LOOKED_AT_MAX, LOOKED_AT_MAX, 1, 0]
    assert sorted(one for part in parts for one in part) == list(ids)
    assert rounds.next_part(ids, START + RECORDED_EVERY_MS - 1, False) == []
    assert len(rounds.next_part(ids, START + RECORDED_EVERY_MS, False)) == LOOKED_AT_MAX


@pytest.mark.promise("B16")
def test_the_last_use_of_a_deleted_entity_is_not_that_of_its_successor(bench: Bench) -> None:
    bench.send(bench.queue())
    bench.namespace.record_uses(bench.now)
    bench.namespace.delete(bench.find("q"), bench.now)
    bench.queue()
    assert bench.find("q").accessed_at == bench.restart().find("q").accessed_at == 0
