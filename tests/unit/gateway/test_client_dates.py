"""Dates that clients give and get are dates of the wall clock, also while the broker's own clock is ahead of it."""

from __future__ import annotations

import pytest

from pairbus.amqp.message.whole import decode_message
from pairbus.amqp.types import Array, Int, Long, Symbol, Timestamp, UInt
from pairbus.engine.queues.due import WALL_CLOCK_CHECK_MS
from pairbus.gateway.outgoing import LOCKED_UNTIL, TICKS_AT_EPOCH, TICKS_PER_MS
from pairbus.model.entity import SUBSCRIPTION, TOPIC, Settings
from pairbus.storage.memory import MemoryDisk
from tests.simulation.wire import ClientReceiver
from tests.unit.gateway.slipping import Slipping
from tests.unit.gateway.wire_bench import HOUR, Peer, message

MINUTE = 60_000
SLIP_MS = 30 * MINUTE
LOCK_MS = 60_000
LATE_MS = 5
RULE = '{"name":"all","created_at":0,"filter":{"kind":"true"},"action":null}'
SCHEDULED = Symbol("x-opt-scheduled-enqueue-time")


def schedule(world: Slipping, peer: Peer, way: str, date: int, path: str = "q") -> None:
    """Schedule one message, by the management node or by an annotation of a message that is sent."""
    payload = message("later", message_annotations={SCHEDULED: Timestamp(date)})
    if way == "management":
        peer.answer(path, "schedule-message", {"messages": [{"message-id": "m", "message": payload}]})
    else:
        sender = peer.session.sender(path)
        world.bench.settle()
        sender.send(payload)
        world.bench.settle()


def receiver_of(world: Slipping, peer: Peer, path: str = "q") -> ClientReceiver:
    receiver = peer.session.receiver(path, credit=5)
    world.bench.settle()
    return receiver


def arrives_at(world: Slipping, until: int, path: str = "q") -> int:
    """The date at which the scheduled message becomes active; 0: it does not."""
    entity = world.bench.namespace.find(path)
    assert entity is not None
    while world.date < until:
        world.wake()
        if entity.counts().active:
            return world.date
    return 0


def peeked(peer: Peer) -> dict[object, object]:
    body = {"from-sequence-number": Long(0), "message-count": Int(1)}
    entries = peer.answer("q", "peek-message", body)["messages"]
    assert isinstance(entries, list)
    return dict(decode_message(entries[0]["message"]).message_annotations)


@pytest.mark.promise("B44", "B45", "B65")
@pytest.mark.parametrize("way", ["management", "send"])
@pytest.mark.parametrize("slip_ms", [SLIP_MS, 10_000])
def test_a_schedule_is_kept_by_the_clock_of_the_client_that_gave_it(way: str, slip_ms: int) -> None:
    world = Slipping()
    world.slip(slip_ms)
    peer = world.bench.peer()
    due = world.date + 20 * MINUTE

    schedule(world, peer, way, due)

    assert due <= arrives_at(world, due + HOUR) <= due + LATE_MS


@pytest.mark.promise("B44", "B65")
def test_a_message_that_is_published_is_due_by_the_wall_clock() -> None:
    world = Slipping()
    now = world.bench.now
    world.bench.namespace.create(TOPIC, "t", Settings(), now)
    world.bench.namespace.create(SUBSCRIPTION, "t/Subscriptions/s", Settings(rules=(RULE,)), now)
    world.slip(SLIP_MS)
    peer = world.bench.peer()
    due = world.date + MINUTE

    schedule(world, peer, "send", due, "t")

    assert due <= arrives_at(world, due + HOUR, "t/Subscriptions/s") <= due + LATE_MS


@pytest.mark.promise("B44", "B45", "B65")
def test_a_clock_that_is_set_back_after_the_schedule_brings_nothing_early() -> None:
    world = Slipping()
    peer = world.bench.peer()
    due = world.date + 20 * MINUTE
    schedule(world, peer, "management", due)

    world.step(-SLIP_MS)

    assert due <= arrives_at(world, due + 2 * HOUR) <= due + LATE_MS


@pytest.mark.promise("B45", "B65")
def test_a_clock_that_is_set_forward_while_the_own_clock_is_ahead_delays_nothing_for_long() -> None:
    world = Slipping()
    world.slip(SLIP_MS)
    peer = world.bench.peer()
    due = world.date + 20 * MINUTE
    schedule(world, peer, "management", due)
    world.wake()

    world.wall += 19 * MINUTE * 1_000_000  # nobody asks the broker to look at once

    assert due <= arrives_at(world, due + HOUR) <= due + WALL_CLOCK_CHECK_MS * 100 // 99 + LATE_MS


@pytest.mark.promise("B44", "B45")
def test_a_restart_changes_no_schedule_though_the_own_clock_was_ahead() -> None:
    disk = MemoryDisk()
    before = Slipping(disk)
    before.slip(SLIP_MS)
    due = before.date + 20 * MINUTE
    schedule(before, before.bench.peer(), "management", due)

    world = Slipping(disk, before.date + MINUTE)

    assert due <= arrives_at(world, due + HOUR) <= due + LATE_MS


def test_a_peek_shows_the_date_that_the_client_gave_and_always_the_same_enqueued_time() -> None:
    world = Slipping()
    world.slip(SLIP_MS)
    peer = world.bench.peer()
    due = world.date + HOUR
    schedule(world, peer, "management", due)
    first = peeked(peer)
    world.wait(MINUTE)

    assert first["x-opt-scheduled-enqueue-time"] == Timestamp(due)
    assert peeked(peer) == first


@pytest.mark.promise("B26", "B65")
def test_a_lock_is_announced_as_a_date_of_the_wall_clock() -> None:
    world = Slipping()
    world.slip(SLIP_MS)
    peer = world.bench.peer()
    schedule(world, peer, "send", world.date)  # due already
    receiver = receiver_of(world, peer)
    (delivery,) = receiver.deliveries
    assert delivery.annotation("x-opt-locked-until") == Timestamp(world.date + LOCK_MS)

    world.wait(10_000)
    token = delivery.message.delivery_annotations["x-opt-lock-token"]
    renewed = peer.answer("q", "renew-lock", {"lock-tokens": Array([token])}, receiver.name)
    assert renewed["expirations"] == [Timestamp(world.date + LOCK_MS)]
    receiver.defer(delivery)
    world.bench.settle()
    wanted = {"sequence-numbers": Array([Long(1)]), "receiver-settle-mode": UInt(1)}
    entries = peer.answer("q", "receive-by-sequence-number", wanted, receiver.name)["messages"]
    assert isinstance(entries, list)
    annotations = decode_message(entries[0]["message"]).message_annotations
    assert annotations["x-opt-locked-until"] == Timestamp(world.date + LOCK_MS)


@pytest.mark.promise("B26", "B65")
def test_the_hold_on_a_session_is_announced_as_a_date_of_the_wall_clock() -> None:
    world = Slipping()
    world.bench.queue("s", Settings(requires_session=True))
    world.slip(SLIP_MS)
    peer = world.bench.peer()
    sender = peer.session.sender("s")
    world.bench.settle()
    sender.send(message("x", group_id="a"))
    receiver = peer.session.receiver("s", filter={Symbol("com.microsoft:session-filter"): "a"}, credit=1)
    world.bench.settle()
    assert receiver.answer is not None
    ticks = receiver.answer.properties[LOCKED_UNTIL]
    assert isinstance(ticks, int)
    assert (ticks - TICKS_AT_EPOCH) // TICKS_PER_MS == world.date + LOCK_MS
    assert receiver.deliveries[0].annotation("x-opt-locked-until") == Timestamp(world.date + LOCK_MS)

    world.wait(10_000)
    renewed = peer.answer("s", "renew-session-lock", {"session-id": "a"}, receiver.name)
    assert renewed["expiration"] == Timestamp(world.date + LOCK_MS)
