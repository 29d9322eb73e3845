"""The times that a delivery shows."""

from __future__ import annotations

import pytest

from pairbus.amqp.message.whole import decode_message
from pairbus.gateway.outgoing import encode_delivery
from tests.unit.engine.engine_kit import SECOND, START, Bench


@pytest.mark.promise("B65")
@pytest.mark.parametrize(("ttl_ms", "shown"), [(7_205 * SECOND, 3_605 * SECOND), (5 * SECOND, 5 * SECOND)])
def test_the_time_to_live_is_never_negative_after_a_restart_with_an_earlier_clock(
    ttl_ms: int, shown: int
) -> None:
    """Enqueued time and time to live together give the true end of the life; where they cannot, it is the sender's own."""
    bench = Bench()
    bench.send(bench.queue())
    again = bench.restart(now=START - 3_600 * SECOND)
    queue = again.find("q").main
    number = again.send(queue, ttl_ms=ttl_ms)
    message = queue.messages[number]

    parts = encode_delivery(queue, message, again.journal.read(message.location, message.size), 0, b"")

    assert decode_message(b"".join(parts)).header[2] == shown
