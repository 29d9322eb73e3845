"""Indexes are tidied a part at a time: a million stale entries stop nobody (B62, B63)."""

from __future__ import annotations

from heapq import heapify

import pytest

from pairbus.engine.queues.state import _SWEPT_MAX, _TIDY_EVERY
from pairbus.engine.queues.table import MessageTable
from pairbus.model.message import Message
from tests.unit.engine.engine_kit import START, Bench

STALE = 3 * _SWEPT_MAX
LIVE = 7


def _messages(*numbers: int) -> MessageTable:
    table = MessageTable()
    for number in numbers:
        table.add(Message(number, START, 0, 10, None))
    return table


@pytest.mark.promise("B62", "B63")
def test_expiries_of_messages_that_left_in_order_are_dropped_at_the_front() -> None:
    queue = Bench().queue()
    queue.expiring = [(START + number, number) for number in range(STALE)]
    queue.messages = _messages(STALE - 1)
    for _ in range(STALE):
        before = len(queue.expiring)
        queue._tidy()
        assert before - len(queue.expiring) <= _SWEPT_MAX
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
