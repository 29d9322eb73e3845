"""Message bytes that come from another machine: the thread that brings them wakes the loop, and the broker is told once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable

import pytest

from pairbus.errors import StoreFenced
from pairbus.server.loop import Driver
from tests.unit.server.fakes import FakeBroker, FakeStore
from tests.waiting import until


class Far:
    """What a store brings from elsewhere."""

    def __init__(self) -> None:
        self.arrived: set[int] = set()
        self.call: Callable[[], None] = lambda: None

    def is_at_hand(self, location: int) -> bool:
        return False

    def fetch(self, locations: Iterable[int], tag: int) -> None:
        return None

    def take_fetched(self) -> set[int]:
        taken, self.arrived = self.arrived, set()
        return taken

    def on_fetched(self, call: Callable[[], None]) -> None:
        self.call = call

    def arrive(self, *tags: int) -> None:
        """As the thread that reads does."""
        self.arrived.update(tags)
        thread = threading.Thread(target=self.call)
        thread.start()
        thread.join()


class FarStore(FakeStore):
    def __init__(self) -> None:
        super().__init__()
        self.far = Far()

    @property
    def read_ahead(self) -> Far:
        return self.far


class Told(FakeBroker):
    def __init__(self, store: FakeStore) -> None:
        super().__init__(store)
        self.told: list[list[int]] = []
        self.pumps = 0
        self.pump_breaks: Exception | None = None
        self.breaks: Exception | None = None

    def fetched(self, queue_ids: list[int], now: int) -> None:
        if self.breaks is not None:
            raise self.breaks
        self.told.append(queue_ids)

    def pump(self, now: int) -> None:
        self.pumps += 1
        if self.pump_breaks is not None:
            raise self.pump_breaks


def driver(errors: list[Exception]) -> tuple[Driver, Told, Far]:
    store = FarStore()
    broker = Told(store)
    made = Driver(
        broker, store, lambda: 5_000, outputs=list, set_reading=lambda _: None, failed=errors.append
    )
    made.start()
    return made, broker, store.far


async def test_bytes_that_have_come_are_told_to_the_broker_and_lead_to_a_turn() -> None:
    made, broker, far = driver([])
    await until(lambda: broker.pumps > 0)
    pumps = broker.pumps
    far.arrive(9, 4)
    await until(lambda: broker.pumps > pumps)
    assert broker.told == [[4, 9]]
    far.arrive()
    await asyncio.sleep(0)
    assert broker.told == [[4, 9]]
    made.stop()


async def test_a_broker_that_breaks_over_them_ends_the_server(caplog: pytest.LogCaptureFixture) -> None:
    errors: list[Exception] = []
    made, broker, far = driver(errors)
    broker.breaks = RuntimeError("a fault of the broker")
    far.arrive(4)
    await until(lambda: bool(errors))
    assert made.is_failed
    (told,) = (one for one in caplog.records if getattr(one, "event", "") == "server.broke")
    assert told.exc_info is not None
    made.stop()


@pytest.mark.parametrize("where", ["bytes that have come", "a turn"])
async def test_that_a_node_was_fenced_is_no_fault_of_the_broker(
    where: str, caplog: pytest.LogCaptureFixture
) -> None:
    errors: list[Exception] = []
    made, broker, far = driver(errors)
    fenced = StoreFenced("frame 8 was written by another owner")
    if where == "a turn":
        broker.pump_breaks = fenced
        made.ask_turn()
    else:
        broker.breaks = fenced
        far.arrive(4)
    await until(lambda: bool(errors))
    assert errors == [fenced]
    (told,) = (one for one in caplog.records if getattr(one, "event", "").startswith(("server.", "cluster.")))
    assert (told.__dict__["event"], told.levelname, told.exc_info) == ("server.fenced", "WARNING", None)
    assert told.__dict__["error"] == "frame 8 was written by another owner"
    made.stop()


async def test_a_read_that_ends_after_the_server_is_ignored() -> None:
    made, broker, far = driver([])
    await until(lambda: broker.pumps > 0)
    made.stop()
    far.arrive(4)
    await asyncio.sleep(0)
    assert broker.told == []
