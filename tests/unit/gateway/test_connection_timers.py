"""A connection has at most one timer, and none after it has gone."""

from __future__ import annotations

import gc

import pytest

from pairbus.gateway.connection import GatewayConnection
from tests.unit.gateway.wire_bench import HOUR, START, WireBench, token


def connections_alive() -> int:
    return sum(type(thing) is GatewayConnection for thing in gc.get_objects())


@pytest.mark.promise("B67")
def test_connections_that_have_gone_are_not_held_by_a_timer(bench: WireBench) -> None:
    gc.collect()
    before = connections_alive()
    gc.disable()
    try:
        for _ in range(3_000):
            gone = bench.broker.connect("127.0.0.1:1", secure=True, loopback=True, now=bench.now)
            gone.lost(bench.now)
        del gone
        assert connections_alive() == before
    finally:
        gc.enable()

    assert len(bench.broker._timers._heap) < 300


@pytest.mark.promise("B67")
@pytest.mark.uncompiled
def test_a_connection_has_one_timer_however_often_its_deadline_came_nearer(bench: WireBench) -> None:
    bench.queue()
    peer = bench.peer(None)
    for number in range(100):
        text = token("root", "root-1", "q", expires_at=START + 200_000 - number * 1_000)
        assert peer.put_token(text, "q") == 202
    ticks = 0
    tick = peer.gateway.tick

    def counted(now: int) -> None:
        nonlocal ticks
        ticks += 1
        tick(now)

    peer.gateway.tick = counted  # type: ignore[method-assign]
    while (deadline := bench.broker.next_deadline()) is not None and deadline <= START + 2 * HOUR:
        bench.now = max(bench.now, deadline)
        bench.broker.tick(bench.now)
        peer.client.heartbeat()
        bench.settle()
    assert ticks < 100
