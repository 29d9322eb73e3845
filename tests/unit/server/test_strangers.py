"""How much of the loop's time strangers get, and how many of them there may be."""

from __future__ import annotations

import asyncio
import gc
import itertools
import weakref

import pytest

from pairbus.server.heap import GROWTH_BYTES, LAST_PAUSE_TICKS, Heap, system_heap
from pairbus.server.main import COLLECTOR_TICK_SECONDS, COLLECTOR_TICKS_PER_HEAP_TICK
from pairbus.server.memory import FULL_EVERY_TICKS, GARBAGE_OBJECTS_MAX, CollectorPolicy
from pairbus.server.sockets import strangers as strangers_module
from pairbus.server.sockets.strangers import REST_FACTOR, SLICE_NS, Strangers

STEP_NS = SLICE_NS // 5


class Room:
    """A clock that moves only while a stranger works, and what known clients have sent."""

    def __init__(self) -> None:
        self.now = 1
        self.known_bytes = 0
        self.order: list[str] = []
        self.strangers = Strangers(lambda: self.known_bytes, lambda: self.now)


class Busy:
    """A stranger with so many steps to take."""

    def __init__(self, room: Room, name: str, steps: int) -> None:
        self.sent_as_stranger = 0
        self.evicted = ""
        self.unread = False
        self._room, self._name, self._steps = room, name, steps

    def take_step(self) -> bool:
        self._room.now += STEP_NS
        self._room.order.append(self._name)
        self._steps -= 1
        return self._steps > 0

    def has_sent(self) -> bool:
        return self.unread

    def evict(self, reason: str) -> None:
        self.evicted = reason


@pytest.mark.promise("B63")
async def test_a_stranger_gets_one_slice_then_everybody_else_has_a_turn() -> None:
    room = Room()
    flood = Busy(room, "flood", 1_000)
    room.strangers.arrived(flood)
    room.strangers.has_work(flood)

    assert len(room.order) == SLICE_NS // STEP_NS
    others = len(room.order)
    await asyncio.sleep(0)
    assert len(room.order) == 2 * others, "one more slice in one more round of the loop"
    room.strangers.close()


@pytest.mark.promise("B63")
async def test_strangers_take_turns_however_much_one_sends() -> None:
    room = Room()
    flood = Busy(room, "flood", 1_000)
    quiet = [Busy(room, f"quiet {number}", 1) for number in range(3)]
    room.strangers.has_work(flood)
    for one in quiet:
        room.strangers.has_work(one)
    del room.order[:]
    await asyncio.sleep(0)

    assert [name for name in room.order if name != "flood"] == ["quiet 0", "quiet 1", "quiet 2"]
    room.strangers.close()


@pytest.mark.promise("B63")
async def test_while_known_clients_are_busy_strangers_get_a_third_of_the_time() -> None:
    room = Room()
    flood = Busy(room, "flood", 1_000)
    room.known_bytes += 1
    room.strangers.has_work(flood)
    taken, began = len(room.order), room.now
    another = Busy(room, "another", 1)
    room.strangers.has_work(another)
    await asyncio.sleep(0)
    assert len(room.order) == taken, "they rest"

    room.now += REST_FACTOR * SLICE_NS
    room.strangers._run()  # what the timer calls by then
    assert len(room.order) == 2 * taken
    assert room.now - began == (REST_FACTOR + 1) * SLICE_NS
    room.strangers.close()


@pytest.mark.promise("M12")
def test_of_silent_strangers_the_oldest_goes_first_and_one_that_is_known_does_not() -> None:
    room = Room()
    crowd = [Busy(room, str(number), 1) for number in range(4)]
    for one in crowd:
        room.strangers.arrived(one)
    room.strangers.left(crowd[0])
    room.strangers.evict_one("strangers_max")

    assert [one.evicted for one in crowd] == ["", "strangers_max", "", ""]
    assert len(room.strangers) == 2


def crowd_of(room: Room, count: int) -> list[Busy]:
    crowd = [Busy(room, str(number), 1) for number in range(count)]
    for one in crowd:
        room.strangers.arrived(one)
    return crowd


@pytest.mark.promise("M12")
async def test_who_has_come_further_outlasts_any_number_of_silent_peers() -> None:
    room = Room()
    client, opened = crowd_of(room, 2)
    room.strangers.has_work(client)
    room.strangers.opened(opened)
    silent = crowd_of(room, 6)
    for _ in range(100):
        room.strangers.evict_one("strangers_max")
        silent += crowd_of(room, 1)

    assert (client.evicted, opened.evicted) == ("", "")
    assert [bool(one.evicted) for one in silent] == [True] * 100 + [False] * 6


@pytest.mark.promise("M12")
async def test_of_those_who_have_spoken_who_opened_stays() -> None:
    room = Room()
    opened, *others = crowd_of(room, 3)
    for one in others:
        room.strangers.has_work(one)
    room.strangers.opened(opened)
    room.strangers.evict_one("strangers_max")

    assert [one.evicted for one in (opened, *others)] == ["", "strangers_max", ""]


@pytest.mark.promise("M12")
def test_peers_that_opened_and_wait_keep_no_newcomer_out() -> None:
    room = Room()
    waiting = crowd_of(room, 8)
    for one in waiting:
        room.strangers.opened(one)
    newcomers = []
    for _ in range(2):
        room.strangers.evict_one("strangers_max")
        newcomers += crowd_of(room, 1)

    assert [bool(one.evicted) for one in waiting] == [True] * 2 + [False] * 6
    assert not any(one.evicted for one in newcomers)


@pytest.mark.promise("M12")
def test_a_peer_whose_bytes_are_still_in_the_socket_is_not_silent() -> None:
    room = Room()
    client, *silent = crowd_of(room, 4)
    client.unread = True
    room.strangers.evict_one("strangers_max")

    assert [bool(one.evicted) for one in (client, *silent)] == [False, True, False, False]


@pytest.mark.promise("B62")
def test_silent_peers_are_not_cut_for_the_bytes_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strangers_module, "HELD_BYTES_MAX", 1_000)
    room = Room()
    silent = crowd_of(room, 5)
    loud = crowd_of(room, 2)
    for one in loud:
        room.strangers.holds(one, 600)

    assert [bool(one.evicted) for one in (*silent, *loud)] == [False] * 5 + [True, False]
    assert room.strangers.held_bytes == 600


@pytest.mark.promise("B62")
def test_what_all_strangers_hold_together_has_a_limit_and_comes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(strangers_module, "HELD_BYTES_MAX", 1_000)
    room = Room()
    crowd = [Busy(room, str(number), 1) for number in range(20)]
    for one in crowd:
        room.strangers.arrived(one)
        room.strangers.holds(one, 100)

    assert room.strangers.held_bytes == 1_000
    assert [bool(one.evicted) for one in crowd] == [True] * 10 + [False] * 10
    for one in crowd:
        room.strangers.left(one)
    assert room.strangers.held_bytes == 0


class Ring:
    """Refers to itself, so that only the collector can free it."""

    def __init__(self) -> None:
        self.me = self


@pytest.mark.promise("B67")
def test_garbage_among_many_frozen_objects_is_collected() -> None:
    thresholds = gc.get_threshold()
    try:
        policy = CollectorPolicy()
        policy.recovered()
        kept = [[number] for number in range(250_000)]
        ring = Ring()
        gone = weakref.ref(ring)
        policy.tick()
        assert gc.get_freeze_count() > 200_000
        del ring
        for _ in range(FULL_EVERY_TICKS):
            policy.tick()
        assert gone() is None
        assert len(kept) == 250_000
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()


def test_a_full_collection_takes_at_most_a_thousandth_of_the_time() -> None:
    thresholds = gc.get_threshold()
    now = 0
    collections: list[int] = []

    def clock() -> int:
        nonlocal now
        now += 1_000_000_000  # so a collection takes one second
        return now

    def count(phase: str, info: dict[str, int]) -> None:
        if phase == "stop" and info["generation"] == 2:
            collections.append(ticks)

    ticks = 0
    held = 0
    try:
        # There is always more than is explained.
        policy = CollectorPolicy(clock, lambda: held)
        policy.recovered()
        gc.callbacks.append(count)
        while ticks < 2_500:
            ticks += 1
            held -= GARBAGE_OBJECTS_MAX
            policy.tick()
    finally:
        gc.callbacks.remove(count)
        gc.set_threshold(*thresholds)
        gc.unfreeze()

    assert collections == [600, 1_600]


class FakeMemory:
    """A process: memory in use, free parts of pages in use, free pages that the C library keeps, and those given back."""

    def __init__(self) -> None:
        self.used = 10 * GROWTH_BYTES
        self.scattered = 0
        self.kept = GROWTH_BYTES // 2
        self.returned = 0
        self.ticks = 0
        self.trims: list[int] = []
        self.heap = Heap(
            lambda: self.used + self.scattered + self.kept,
            lambda: self.scattered + self.kept + self.returned,
            self.trim,
        )

    def trim(self) -> None:
        self.trims.append(self.ticks)
        self.returned += self.kept
        self.kept = 0

    def tick(self, count: int) -> list[int]:
        """So many looks; those at which free pages were given back, counted from the first of them."""
        self.trims.clear()
        for self.ticks in range(count):
            self.heap.tick()
        return self.trims

    def use(self, count: int) -> None:
        self.used += count
        from_kept = min(self.kept, count)
        from_returned = min(self.returned, count - from_kept)
        self.kept -= from_kept
        self.returned -= from_returned

    def free(self, count: int) -> None:
        self.used -= count
        self.kept += count


@pytest.mark.promise("B67")
@pytest.mark.parametrize("ticks_present", [1, 2, 10, 1_000])
def test_what_a_crowd_held_is_given_back_at_the_first_look_after_it_has_gone(ticks_present: int) -> None:
    memory = FakeMemory()
    memory.tick(10)
    memory.use(6 * GROWTH_BYTES)
    memory.scattered = 3 * GROWTH_BYTES
    memory.tick(ticks_present)
    memory.free(6 * GROWTH_BYTES)
    memory.kept += memory.scattered
    memory.scattered = 0

    assert memory.tick(1) == [0]
    assert memory.kept == 0
    assert COLLECTOR_TICK_SECONDS * COLLECTOR_TICKS_PER_HEAP_TICK <= 10, "seconds between two looks"


@pytest.mark.promise("B67")
def test_buffers_that_come_and_go_between_two_looks_are_given_back() -> None:
    memory = FakeMemory()
    memory.tick(10)
    for _ in range(3):
        memory.use(6 * GROWTH_BYTES)
        memory.free(6 * GROWTH_BYTES)
        assert memory.tick(2)[:1] == [0]
        memory.tick(2)


@pytest.mark.promise("B67")
def test_giving_back_is_repeated_until_it_brings_nothing() -> None:
    memory = FakeMemory()
    memory.tick(2)
    memory.use(6 * GROWTH_BYTES)
    memory.tick(1)
    memory.free(5 * GROWTH_BYTES)
    memory.tick(1)
    memory.free(GROWTH_BYTES - 1)

    assert memory.tick(1) == [0]
    assert memory.tick(10) == [0], "the last one brought something, so there is one more"
    assert memory.kept == 0


@pytest.mark.promise("B67")
def test_while_a_process_grows_and_all_is_in_use_giving_back_is_tried_more_and_more_rarely() -> None:
    memory = FakeMemory()
    memory.kept, memory.returned = 0, 2 * GROWTH_BYTES
    looks: list[int] = []
    for look in range(1_000):
        memory.used += GROWTH_BYTES
        if memory.tick(1):
            looks.append(look)

    pauses = [after - before for before, after in itertools.pairwise(looks)]
    assert pauses[:6] == [2, 4, 8, 16, 32, LAST_PAUSE_TICKS]
    assert set(pauses[6:]) == {LAST_PAUSE_TICKS}
    memory.tick(LAST_PAUSE_TICKS)
    assert memory.tick(1_000) == [], "it grows no more"


def test_a_process_that_stays_as_it_is_gives_nothing_back() -> None:
    memory = FakeMemory()
    assert memory.tick(1_000) == []
    system_heap(lambda: None).tick()  # whatever the system is
