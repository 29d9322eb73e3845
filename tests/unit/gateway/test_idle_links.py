"""Links that nobody uses stay attached: the service would detach them after ten minutes."""

from __future__ import annotations

from pairbus.amqp.states import ACCEPTED_CODE
from tests.unit.gateway.wire_bench import WireBench, message

MINUTE = 60_000


def test_a_link_that_is_idle_for_eleven_minutes_can_be_used() -> None:
    bench = WireBench()
    bench.queue("q")
    peer = bench.peer()
    sender, receiver = peer.session.sender("q"), peer.session.receiver("q")
    for _ in range(11):
        bench.wait(MINUTE)
        peer.client.heartbeat()
    sent = sender.send(message("x"))
    receiver.grant(1)
    bench.settle()

    assert sender.outcomes[sent].code == ACCEPTED_CODE
    assert [delivery.message.body for delivery in receiver.deliveries] == ["x"]
