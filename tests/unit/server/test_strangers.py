"""How much of the loop's time strangers get, and how many of them there may be."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from pairbus.server.heap import GROWTH_BYTES, Heap, system_heap
from pairbus.server.memory import FULL_EVERY_TICKS, CollectorPolicy
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
    try:
        policy = CollectorPolicy(clock)
        policy.recovered()
        gc.callbacks.append(count)
        while ticks < 2_500:
            ticks += 1
            policy.tick()
    finally:
        gc.callbacks.remove(count)
        gc.set_threshold(*thresholds)
        gc.unfreeze()

    assert collections == [600, 1_600]


@pytest.mark.promise("B67")
def test_freed_memory_is_given_back_when_the_process_has_grown() -> None:
    resident, free, in_use = 10 * GROWTH_BYTES, GROWTH_BYTES, 10 * GROWTH_BYTES
    trims: list[int] = []

    def trim() -> None:
        nonlocal resident
        trims.append(ticks)
        resident = in_use

    heap = Heap(lambda: resident, lambda: free, trim)
    heap.tick()
    resident = in_use = 15 * GROWTH_BYTES
    for ticks in range(200):
        if ticks == 100:
            in_use -= 4 * GROWTH_BYTES
        heap.tick()
    assert trims[:4] == [3, 13, 33, 73]  # all in use: tried more and more rarely
    assert trims[4] == 153  # given back
    assert trims[5] == 158  # from then on tried as often as at first
    assert resident == 11 * GROWTH_BYTES

    free = GROWTH_BYTES - 1  # there is nothing to give back
    trims.clear()
    for _ in range(1_000):
        heap.tick()
    assert trims == []
    system_heap().tick()  # whatever the system is
