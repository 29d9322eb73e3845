"""Who has something to say is asked for it: once, and each time anew."""

from __future__ import annotations

from tests.unit.gateway.wire_bench import WireBench


def test_a_connection_that_was_taken_can_be_touched_again() -> None:
    bench = WireBench()
    broker = bench.broker
    first, second = (
        broker.connect("127.0.0.1:50000", secure=True, loopback=True, now=bench.now) for _ in range(2)
    )
    broker.take_dirty()

    for connection in (first, first, second, first):
        broker.touch(connection)
    assert broker.take_dirty() == [first, second]
    broker.touch(first)
    assert broker.take_dirty() == [first]
    assert broker.take_dirty() == []

    broker.touch(first)
    broker.forget(first)
    broker.touch(first)
    assert broker.take_dirty() == [first], "it was touched after it had been forgotten"
