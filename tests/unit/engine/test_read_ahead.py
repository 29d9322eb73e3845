"""Blobs that are on another machine: who needs one waits its turn, and nobody else does."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pairbus.engine.context import FETCH_MESSAGES_MAX
from pairbus.engine.queues.queue import Queue
from pairbus.model.entity import Settings
from tests.unit.engine.engine_kit import SECOND, Bench


class FarBlobs:
    """Nothing is at hand until ``arrive`` is called."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self.here: set[int] = set()
        self.asked: dict[int, list[int]] = {}
        bench.namespace.context.read_ahead = self
        original = bench.journal.read

        def read(location: int, size: int) -> bytes:
            assert location in self.here, "a blob was read that is not here: everybody waits"
            return original(location, size)

        bench.journal.read = read  # type: ignore[method-assign]

    def is_at_hand(self, location: int) -> bool:
        return location in self.here

    def fetch(self, locations: list[int], tag: int) -> None:
        self.asked.setdefault(tag, []).extend(locations)

    def arrive(self) -> None:
        """What was asked for comes."""
        asked, self.asked = self.asked, {}
        for locations in asked.values():
            self.here.update(locations)
        self._bench.namespace.fetched(sorted(asked), self._bench.now)
        self._bench.pump()


def test_a_delivery_waits_for_its_bytes_and_comes_in_order(bench: Bench, queue: Queue) -> None:
    for _ in range(5):
        bench.send(queue)
    far = FarBlobs(bench)
    bench.receiver(queue, 3)
    bench.pump()
    assert bench.outbox.numbers() == []
    assert queue.is_fetching, "a drain would end before them"
    assert len(far.asked[queue.queue_id]) == 5  # more than the credit: the next ones are wanted soon
    far.arrive()
    assert bench.outbox.numbers() == [1, 2, 3]
    assert queue.messages[1].is_locked


@pytest.mark.promise("B63")
def test_a_queue_that_waits_for_bytes_holds_up_no_other(bench: Bench) -> None:
    slow, quick = bench.queue("slow"), bench.queue("quick")
    bench.send(slow)
    bench.send(quick)
    far = FarBlobs(bench)
    far.here.update(message.location for message in quick.messages.values())
    bench.receiver(slow, 1)
    served = bench.receiver(quick, 1)
    bench.pump()
    assert [consumer for consumer, _, _ in bench.outbox.delivered] == [served]
    far.arrive()
    assert len(bench.outbox.delivered) == 2


def test_what_is_asked_for_at_once_is_bounded(bench: Bench, queue: Queue) -> None:
    for _ in range(FETCH_MESSAGES_MAX + 100):
        bench.send(queue)
    far = FarBlobs(bench)
    bench.receiver(queue, 10_000, deletes=True)
    bench.pump()
    assert len(far.asked[queue.queue_id]) == FETCH_MESSAGES_MAX
    far.arrive()
    assert len(bench.outbox.delivered) == FETCH_MESSAGES_MAX
    far.arrive()
    assert len(bench.outbox.delivered) == FETCH_MESSAGES_MAX + 100


def test_a_session_waits_for_its_bytes_without_the_others(bench: Bench) -> None:
    queue = bench.queue("s", replace(Settings(), requires_session=True))
    for session in ("a", "b", "a", "b"):
        bench.send(queue, session_id=session)
    far = FarBlobs(bench)
    far.here.update(m.location for m in queue.messages.values() if m.session_id == "b")
    bench.holder(queue, "a", 5)
    bench.holder(queue, "b", 5)
    bench.pump()
    assert bench.outbox.numbers() == [2, 4]
    far.arrive()
    assert bench.outbox.numbers() == [2, 4, 1, 3]


def test_what_is_forwarded_and_what_falls_due_waits_for_its_bytes(bench: Bench) -> None:
    target = bench.queue("target")
    source = bench.queue("source", replace(Settings(), forward_to="target"))
    later = bench.queue("later")
    bench.send(later, scheduled_at=bench.now + 5 * SECOND)
    far = FarBlobs(bench)
    bench.send(source)
    bench.pump()
    assert not target.messages
    far.arrive()
    assert len(target.messages) == 1
    bench.wait(6 * SECOND)
    assert later.active_count == 0
    assert later.scheduled_count == 1
    far.arrive()
    bench.wait(1)
    assert (later.active_count, later.scheduled_count) == (1, 0)


def test_a_message_that_expires_while_its_bytes_are_under_way_is_not_delivered(bench: Bench) -> None:
    queue = bench.queue()
    bench.send(queue, ttl_ms=2 * SECOND)
    bench.send(queue)
    far = FarBlobs(bench)
    bench.receiver(queue, 5)
    bench.pump()
    bench.wait(3 * SECOND)
    far.arrive()
    far.arrive()
    assert bench.outbox.numbers() == [2]
