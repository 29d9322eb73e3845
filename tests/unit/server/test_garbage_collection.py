"""The collector does not pause the broker for a walk over all objects."""

from __future__ import annotations

import gc
import weakref

import pytest

from pairbus.model.entity import Settings
from pairbus.server.memory import (
    FULL_EVERY_TICKS,
    GARBAGE_OBJECTS_MAX,
    NEVER_COLLECTIONS,
    YOUNG_OBJECTS_MAX,
    CollectorPolicy,
)
from tests.unit.engine.engine_kit import Bench


def test_the_collector_never_walks_everything_by_itself_after_recovery() -> None:
    thresholds = gc.get_threshold()
    try:
        policy = CollectorPolicy()
        policy.recovered()
        assert gc.get_threshold()[2] == NEVER_COLLECTIONS
        frozen = gc.get_freeze_count()
        kept = [[number] for number in range(250_000)]
        policy.tick()
        assert gc.get_freeze_count() > frozen + 200_000
        assert len(kept) == 250_000
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()


def test_the_collector_rests_while_a_restart_recovers_and_works_afterwards() -> None:
    thresholds = gc.get_threshold()
    try:
        policy = CollectorPolicy()
        policy.recovering()
        assert not gc.isenabled()
        policy.gave_up()
        assert gc.isenabled()
        policy.recovering()
        policy.recovered()
        assert gc.isenabled()
    finally:
        gc.enable()
        gc.set_threshold(*thresholds)
        gc.unfreeze()


class Ring:
    """Refers to itself, so that only the collector can free it."""

    def __init__(self) -> None:
        self.me = self


@pytest.mark.promise("B63", "B67")
def test_messages_lead_to_no_full_collection_and_garbage_among_them_does() -> None:
    thresholds = gc.get_threshold()
    full: list[int] = []

    def count(phase: str, info: dict[str, int]) -> None:
        if phase == "start" and info["generation"] == 2 and not gc.get_freeze_count():
            full.append(1)

    messages: list[list[int]] = []
    try:
        policy = CollectorPolicy(held_objects=lambda: len(messages))
        policy.recovered()
        messages += [[number] for number in range(2 * GARBAGE_OBJECTS_MAX)]
        policy.collect()
        gc.callbacks.append(count)
        for _ in range(2 * FULL_EVERY_TICKS):
            policy.tick()
        assert full == [], "what is held explains what is frozen"

        ring = Ring()
        gone = weakref.ref(ring)
        garbage = [[number] for number in range(GARBAGE_OBJECTS_MAX + 1000)]
        policy.collect()
        del ring
        for _ in range(FULL_EVERY_TICKS):
            policy.tick()
        assert len(full) == 1
        assert gone() is None
        for _ in range(2 * FULL_EVERY_TICKS):
            policy.tick()
        assert len(full) == 1, "what is left after a full collection is no garbage"
        assert len(garbage) > GARBAGE_OBJECTS_MAX
    finally:
        gc.callbacks.remove(count)
        gc.set_threshold(*thresholds)
        gc.unfreeze()


def test_what_is_stored_explains_the_objects_that_are_there() -> None:
    bench = Bench()
    plain = bench.queue("plain")
    for _ in range(3):
        bench.send(plain)
    bench.send(plain, scheduled_at=bench.now + 1000)
    bench.topic("t")
    bench.subscription("t/subscriptions/s")
    bench.send(bench.find("t"))
    sessions = bench.queue("sessions", Settings(requires_session=True))
    bench.send(sessions, session_id="one")
    plain.move_to_dead_letter(next(iter(plain.messages.values())), "why", None, b"", bench.now)

    entities = list(bench.namespace.context.queues.values())
    stored = [message for queue in entities for message in queue.messages.values()]
    extras = [message.extra for message in stored if message.extra is not None]

    # Compiled, the collector does not look at messages.
    assert bench.namespace.held_objects() == sum(map(gc.is_tracked, [*stored, *extras])) + 6


@pytest.mark.promise("B63")
def test_what_grows_old_is_frozen_before_it_takes_long_to_look_at() -> None:
    thresholds = gc.get_threshold()
    try:
        policy = CollectorPolicy()
        policy.recovered()
        kept = [[number] for number in range(2 * YOUNG_OBJECTS_MAX + 1_000)]
        frozen = gc.get_freeze_count()
        policy.tick()
        assert gc.get_freeze_count() >= frozen + 2 * YOUNG_OBJECTS_MAX
        assert kept
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()
