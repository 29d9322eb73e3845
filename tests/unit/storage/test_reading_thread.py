"""The thread that reads bodies of frames, with a false table: it goes on whoever waits, and tells of whatever ends it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from pairbus.errors import StorageError
from pairbus.storage.table.bodies import Bodies, BodyTable, HeadRequest
from pairbus.storage.table.ports import FrameHead, TableFailed
from pairbus.storage.table.replay import LogEnd
from tests.waiting import wait_until

SECONDS_MAX = 20
MEETING_SECONDS = 0.2
"""How long two threads wait for each other where they must not meet."""


class FalseTable:
    def __init__(self) -> None:
        self.while_reading: list[Callable[[], object]] = []
        """What happens during the next reads."""

    def oldest(self) -> int:
        return 1

    def _read(self) -> None:
        if self.while_reading:
            self.while_reading.pop(0)()

    def heads(self, first: int, end: int) -> Iterator[FrameHead]:
        self._read()
        return iter(())

    def bodies(self, sequences: Sequence[int]) -> dict[int, bytes]:
        self._read()
        return dict.fromkeys(sequences, b"body")

    def reconnect(self) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.fixture
def table() -> FalseTable:
    return FalseTable()


@pytest.fixture
def bodies(table: FalseTable) -> Iterator[Bodies]:
    made = Bodies(
        table, BodyTable(12), LogEnd(1, 100), 1 << 20, pause=lambda _: None, is_background=True, name="test"
    )
    yield made
    made.stop()


class Meeting:
    """Brings a caller that has its body, and forgets its wait, together with the thread that chooses what it reads next."""

    def __init__(self, bodies: Bodies) -> None:
        is_leaving, is_choosing, has_left = threading.Event(), threading.Event(), threading.Event()

        class Awaited(dict[int, bytes | None]):
            def pop(self, sequence: int, *default: Any) -> bytes | None:
                is_leaving.set()
                is_choosing.wait(MEETING_SECONDS)
                found: bytes | None = super().pop(sequence, *default)
                has_left.set()
                return found

        class Wanted(dict[int, set[int]]):
            def __contains__(self, sequence: object) -> bool:
                if is_leaving.is_set():
                    is_choosing.set()
                    has_left.wait(MEETING_SECONDS)
                return super().__contains__(sequence)

        bodies._awaited, bodies._wanted = Awaited(), Wanted()

        def has_arrived() -> None:
            """The thread calls it between two choices."""
            if bodies.get(1) is not None:
                is_leaving.wait(SECONDS_MAX)

        bodies.on_arrival = has_arrived


def test_the_reading_thread_survives_a_caller_that_leaves_while_it_chooses(
    bodies: Bodies, table: FalseTable
) -> None:
    Meeting(bodies)
    table.while_reading = [
        lambda: wait_until(lambda: 1 in bodies._awaited, seconds=SECONDS_MAX),
        lambda: bodies.ask([2], tag=7),  # so there is something to choose next
    ]
    bodies.ask([3], tag=5)
    bodies.start()
    assert bodies.wait(1) == b"body"
    wait_until(lambda: 7 in bodies.take_arrived(), seconds=SECONDS_MAX)
    assert bodies.get(2) == b"body"
    assert not bodies._awaited


@pytest.mark.parametrize("error", [RuntimeError("for this reason"), TableFailed("for this reason")])
@pytest.mark.parametrize("what", ["bodies", "heads"])
def test_whatever_ends_the_reading_is_told_to_who_waits(
    bodies: Bodies, table: FalseTable, what: str, error: Exception
) -> None:
    def fail() -> None:
        raise error

    table.while_reading = [fail]
    if what == "heads":
        bodies.ask_heads(HeadRequest(1, 3))
    bodies.ask([2], tag=7)
    bodies.start()
    wait_until(lambda: 7 in bodies.take_arrived(), seconds=SECONDS_MAX)
    with pytest.raises(StorageError, match="for this reason"):
        bodies.wait(2)
