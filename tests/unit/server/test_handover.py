"""How a move goes on: after a crash at any step at most one side is served, and the same command again ends at the target."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from pairbus.server.offline.handover import Step, into_database, into_files


@dataclass
class Sides:
    """What a crash leaves, as ``server.offline.move`` describes it. Each yield is a place for a crash."""

    source: str | None = None
    """The move that marked the source; None: it counts."""
    named: str | None = None
    copy: str | None = None
    decided: list[Step] = field(default_factory=list)

    def served(self) -> list[str]:
        return [
            *(["source"] if self.source is None else []),
            *(["target"] if self.named is not None else []),
        ]

    def move(self, number: str, decide: Callable[[Sides], Step]) -> Iterator[None]:
        step = decide(self)
        self.decided.append(step)
        if step is Step.COPY:
            self.copy = None
            yield
            self.copy = number
            yield
            self.source = number
            yield
        if step in (Step.COPY, Step.CONFIRM):
            assert self.copy is not None
            self.named, self.copy = self.copy, None
            yield


def _to_files(sides: Sides) -> Step:
    return into_files(
        named=sides.named, copy=sides.copy, mark=sides.source, is_marked=sides.source is not None
    )


def _to_database(sides: Sides) -> Step:
    return into_database(mark=sides.source, named=sides.named, copy=sides.copy)


@pytest.mark.promise("B1", "S3")
@pytest.mark.parametrize("decide", [_to_files, _to_database])
@pytest.mark.parametrize("first", range(6))
@pytest.mark.parametrize("second", range(6))
def test_two_crashes_anywhere_leave_one_side_and_the_third_command_finishes(
    decide: Callable[[Sides], Step], first: int, second: int
) -> None:
    sides = Sides()
    for number, crash in (("a", first), ("b", second), ("c", 99)):
        for place, _ in enumerate(sides.move(number, decide)):
            assert len(sides.served()) <= 1
            if place == crash:
                break
    assert sides.served() == ["target"]
    assert sides.named == sides.source
    assert Step.REFUSE not in sides.decided


@pytest.mark.promise("S3")
def test_a_copy_is_not_confirmed_by_the_mark_of_another_move() -> None:
    assert into_files(named=None, copy="a", mark="b", is_marked=True) is Step.REFUSE
    assert into_files(named=None, copy="a", mark=None, is_marked=True) is Step.REFUSE  # an earlier version's
    assert into_files(named="a", copy=None, mark=None, is_marked=False) is Step.REFUSE  # moved back since
    assert into_database(mark="a", named=None, copy="b") is Step.REFUSE
    assert into_database(mark="a", named="b", copy=None) is Step.REFUSE
