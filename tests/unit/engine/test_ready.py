"""The ordered bag of deliverable messages."""

from __future__ import annotations

import pytest

from pairbus.engine.queues.ready import GONE, Ready
from pairbus.model.message import Message


def message(number: int) -> Message:
    return Message(number, 0, 0, 0, None)


@pytest.mark.promise("B21")
def test_first_in_first_out_with_what_returned_in_its_old_place() -> None:
    ready = Ready()
    ones = [message(number) for number in range(1, 5)]
    for one in ones:
        ready.add(one)
    taken = []
    for _ in range(2):
        first = ready.first()
        assert first is not None
        ready.take(first)
        taken.append(first)
    for one in reversed(taken):
        ready.put_back(one)

    out = []
    while (first := ready.first()) is not None:
        ready.take(first)
        out.append(first.sequence_number)
    assert out == [1, 2, 3, 4]


def test_what_left_meanwhile_is_passed_over() -> None:
    ready = Ready()
    ones = [message(number) for number in (1, 2, 3)]
    for one in ones:
        ready.add(one)
    ready.take(ones[0])
    ready.put_back(ones[0])
    ones[0].state = GONE
    ones[1].is_locked = True

    assert ready.first() is ones[2]
    ready.take(ones[2])
    assert ready.first() is None


def test_what_returned_and_left_leaves_the_fresh_ones() -> None:
    ready = Ready()
    late = message(5)
    ready.add(late)
    early = message(1)
    ready.add(early)
    assert ready.first() is early
    early.state = GONE
    assert ready.first() is late
    late.state = GONE
    ready.put_back(late)
    assert ready.first() is None


@pytest.mark.promise("B9")
def test_entries_of_one_number_do_not_disturb_each_other() -> None:
    ready = Ready()
    ready.add(message(9))
    for _ in range(3):
        old = message(1)
        ready.add(old)
        old.state = GONE
    now = message(1)
    ready.add(now)

    assert ready.first() is now


@pytest.mark.promise("B62")
def test_trimming_forgets_what_left() -> None:
    ready = Ready()
    for number in range(2_000, 0, -1):
        one = message(number)
        ready.add(one)
        if number > 3:
            one.state = GONE
    ready.trim(3)
    assert len(ready._fresh) + len(ready._returned) == 3
    ready.trim(3)
    first = ready.first()
    assert first is not None
    assert first.sequence_number == 1
