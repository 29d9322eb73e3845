"""Indexes are tidied a part at a time: a million stale entries stop nobody (B62, B63)."""

from __future__ import annotations

from array import array
from heapq import heapify

import pytest

from pairbus.engine.queues.state import _SWEPT_MAX, _TIDY_EVERY
from pairbus.model.message import Message
from tests.unit.engine.engine_kit import START, Bench

STALE = 3 * _SWEPT_MAX
LIVE = 7


class Counted(dict[int, Message]):
    """Messages that count how often somebody asks whether one is there."""

    looks = 0

    def __contains__(self, number: object) -> bool:
        self.looks += 1
        return super().__contains__(number)


def _messages(*numbers: int) -> Counted:
    return Counted({number: Message(number, START, 0, 10, None) for number in numbers})


@pytest.mark.promise("B62", "B63")
def test_stale_numbers_behind_a_live_one_are_swept_a_part_at_a_time() -> None:
    queue = Bench().queue()
    queue.order = array("Q", range(STALE))
    kept = list(range(0, STALE, STALE // LIVE))
    queue.messages = counted = _messages(*kept)
    sweeps = 0
    while len(queue.order) > 2 * len(kept) + _TIDY_EVERY:
        counted.looks = 0
        queue._tidy()
        assert counted.looks <= _SWEPT_MAX + 10
        sweeps += 1
        assert sweeps < 2 * STALE // _SWEPT_MAX, "each sweep gets on"
    assert [number for number in queue.order if number in queue.messages] == kept
    assert list(queue.order) == sorted(queue.order)


@pytest.mark.promise("B62", "B63")
def test_expiries_of_messages_that_left_in_order_are_dropped_at_the_front() -> None:
    queue = Bench().queue()
    queue.expiring = [(START + number, number) for number in range(STALE)]
    queue.messages = counted = _messages(STALE - 1)
    for _ in range(STALE):
        counted.looks = 0
        queue._tidy()
        assert counted.looks <= _SWEPT_MAX + 10
        if len(queue.expiring) <= _TIDY_EVERY + 2:
            break
    assert queue.expiring[-1][1] == STALE - 1
    assert len(queue.expiring) <= _TIDY_EVERY + 2


@pytest.mark.promise("B62")
def test_expiries_of_messages_that_left_in_any_order_are_dropped_too() -> None:
    queue = Bench().queue()
    queue.expiring = [(START + number * 7919 % STALE, number) for number in range(STALE)]
    heapify(queue.expiring)
    live = [entry[1] for entry in sorted(queue.expiring)[:LIVE]]
    queue.messages = _messages(*live)
    queue._tidy()
    assert sorted(entry[1] for entry in queue.expiring) == sorted(live)
    assert queue.expiring == sorted(queue.expiring) or queue.expiring[0] == min(queue.expiring)


@pytest.mark.promise("B62", "B63")
def test_what_left_in_order_is_dropped_from_the_front_of_what_is_ready() -> None:
    queue = Bench().queue()
    gone = [Message(number, START, 0, 10, None) for number in range(1, 5_000)]
    for message in gone:
        queue.ready.add(message)
        message.state = 3
    last = Message(5_000, START, 0, 10, None)
    queue.ready.add(last)
    before = queue.ready._fresh
    queue.ready.trim(1)
    assert list(queue.ready._fresh) == [last]
    assert queue.ready._fresh is before, "it was not built anew"
