from __future__ import annotations

import pytest

from pairbus.errors import UsageError
from pairbus.testing import VirtualClock


def test_clock_stands_still_until_it_is_moved() -> None:
    clock = VirtualClock(1_000)

    assert clock() == clock.now() == 1_000
    assert clock.advance(250) == clock() == 1_250


def test_listeners_hear_of_every_move_until_they_leave() -> None:
    clock = VirtualClock(0)
    heard: list[int] = []
    leave = clock.subscribe(lambda: heard.append(clock()))

    clock.advance(5)
    clock.advance(0)
    leave()
    leave()
    clock.advance(7)

    assert heard == [5, 5]


def test_clock_refuses_to_run_backwards() -> None:
    clock = VirtualClock(10)

    with pytest.raises(UsageError, match="backwards"):
        clock.advance(-1)

    assert clock() == 10
