"""When a second look is taken at a call without an answer, and what follows from what it finds."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest

from pairbus.storage.table.second_look import (
    PAUSE_SECONDS_MAX,
    PAUSE_SECONDS_MIN,
    SILENT_SECONDS,
    Finding,
    Found,
    Line,
    SecondLooks,
)


class FakeLine:
    def __init__(self, purpose: str, server: str = "db-1") -> None:
        self.purpose = purpose
        self.server = server
        self.waits_since: float | None = None
        self.left: list[str] = []

    def leave(self, why: str) -> None:
        self.left.append(why)
        self.waits_since = None

    def is_beside(self, other: Line) -> bool:
        return isinstance(other, FakeLine) and self.server == other.server


class World:
    """Some connections, and what second looks find."""

    def __init__(self, *lines: FakeLine) -> None:
        self.now = 100.0
        self.lines = lines
        self.finds = Finding(Found.AT_WORK, "a lock")
        self.looks: list[tuple[float, list[str]]] = []
        self.told: list[tuple[str, str]] = []
        self._looks = SecondLooks(
            lambda: self.lines, self._look, lambda *what: self.told.append(what), lambda: self.now
        )

    def _look(self, lines: Sequence[FakeLine]) -> list[Finding]:
        self.looks.append((self.now, [line.purpose for line in lines]))
        return [self.finds] * len(lines)

    def run(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            self._looks.step()
            self.now += self._looks.step_seconds


def test_an_answer_in_time_is_not_looked_at() -> None:
    line = FakeLine("commit")
    world = World(line)
    for _ in range(20):
        line.waits_since = world.now
        world.run(SILENT_SECONDS * 0.9)
    assert world.looks == []


def test_looks_at_a_call_that_goes_on_are_fewer_and_fewer_and_end_with_its_answer() -> None:
    line = FakeLine("commit")
    world = World(line)
    line.waits_since = world.now
    world.run(120)
    times = [at for at, _ in world.looks]
    pauses = [after - before for before, after in pairwise(times)]
    assert SILENT_SECONDS <= times[0] - 100 <= SILENT_SECONDS + 1
    assert PAUSE_SECONDS_MIN <= pauses[0] < 2 * PAUSE_SECONDS_MIN
    assert pauses == sorted(pauses)
    assert PAUSE_SECONDS_MAX <= pauses[-1] < PAUSE_SECONDS_MAX + 1
    assert line.left == []
    assert set(world.told) == {("commit", "a lock")}
    line.waits_since = None
    world.run(1)
    assert world.told[-1] == ("commit", "")
    count = len(world.looks)
    world.run(60)
    assert len(world.looks) == count


def test_a_call_at_a_server_that_was_replaced_ends_and_its_other_connections_are_left_too() -> None:
    stuck, idle, elsewhere = FakeLine("commit"), FakeLine("read"), FakeLine("lease", "db-2")
    world = World(stuck, idle, elsewhere)
    world.finds = Finding(Found.ELSEWHERE, "another server takes writes now")
    stuck.waits_since = world.now
    world.run(SILENT_SECONDS + 1)
    assert [one.rpartition(": ")[2] for one in stuck.left] == ["another server takes writes now"]
    assert len(idle.left) == 1
    assert elsewhere.left == []
    world.run(60)
    assert len(world.looks) == 1


def test_a_call_that_the_server_waits_for_ends_only_when_the_next_look_finds_the_same() -> None:
    line, idle, at_work = FakeLine("commit"), FakeLine("read"), FakeLine("lease")
    world = World(line, idle, at_work)
    world.finds = Finding(Found.IDLE, "lost")
    line.waits_since = world.now
    at_work.waits_since = world.now + 60  # its call begins in between
    world.run(SILENT_SECONDS + 0.6)
    assert (len(world.looks), line.left) == (1, [])
    world.finds = Finding(Found.AT_WORK, "it came late")
    world.run(PAUSE_SECONDS_MIN + 0.5)
    world.finds = Finding(Found.IDLE, "lost")
    world.run(2 * PAUSE_SECONDS_MIN)
    assert (len(world.looks), line.left) == (3, [])
    world.run(4 * PAUSE_SECONDS_MIN + 1)
    assert (len(line.left), len(idle.left), at_work.left) == (1, 1, []), "what has no call goes the same way"


def test_a_call_without_anywhere_to_go_goes_on_and_is_told_of() -> None:
    line = FakeLine("lease")
    world = World(line)
    world.finds = Finding(Found.NOBODY, "nobody answers")
    line.waits_since = world.now
    world.run(60)
    assert line.left == []
    assert set(world.told) == {("lease", "nobody answers")}


@pytest.mark.parametrize("found", [Found.ELSEWHERE, Found.IDLE])
def test_a_call_that_was_answered_during_the_look_is_not_ended_nor_the_next_one(found: Found) -> None:
    line = FakeLine("commit")
    world = World(line)

    def look(lines: Sequence[FakeLine]) -> list[Finding]:
        line.waits_since = world.now + 0.001  # the next call
        return [Finding(found, "late")] * len(lines)

    world._looks._look = look
    line.waits_since = world.now
    world.run(SILENT_SECONDS + 1)
    assert line.left == []
