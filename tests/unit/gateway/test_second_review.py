"""What another reading of the gateway found: each of these went wrong once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pairbus.amqp.types import Symbol, UInt
from pairbus.gateway.connection import NO_LINK_MS
from pairbus.model.entity import SUBSCRIPTION, TOPIC, Settings
from tests.unit.engine.engine_kit import TRUE_RULE, rule
from tests.unit.gateway.wire_bench import Peer, WireBench

SESSION_FILTER = "com.microsoft:session-filter"
MINUTE = 60_000


def _keep_alive(bench: WireBench, peer: Peer, ms: int) -> None:
    for _ in range(ms // MINUTE):
        peer.client.heartbeat()
        bench.wait(MINUTE)


def test_a_connection_whose_wait_for_a_session_ends_may_try_again() -> None:
    """The end of its last link begins the time that it may go without any, whoever ended it."""
    bench = WireBench()
    bench.queue("q", Settings(requires_session=True))
    peer = bench.peer()
    for _ in range(3):
        waiting = peer.session.receiver(
            "q",
            filter={Symbol(SESSION_FILTER): None},
            properties={Symbol("com.microsoft:timeout"): UInt(8 * MINUTE)},
        )
        _keep_alive(bench, peer, 8 * MINUTE + NO_LINK_MS - MINUTE)
        assert waiting.detached
        assert not peer.client.closed

    _keep_alive(bench, peer, NO_LINK_MS + MINUTE)
    assert peer.client.closed


def _forget_rights(bench: WireBench) -> None:
    for connection in bench.broker.connections:
        for context in connection.links.values():
            context.allowed_until = 0


def _looked_at(bench: WireBench) -> int:
    """Links whose right was looked at anew since it was forgotten."""
    links = [context for connection in bench.broker.connections for context in connection.links.values()]
    return sum(1 for context in links if context.allowed_until)


@pytest.mark.promise("B63")
def test_new_entities_and_filters_do_not_have_every_link_looked_at() -> None:
    bench = WireBench()
    entity = bench.queue("q")
    for _ in range(3):
        bench.peer().session.receiver("q")
    bench.settle()
    _forget_rights(bench)

    for number in range(5):
        bench.queue(f"new-{number}")
        bench.settle()
    bench.namespace.create(TOPIC, "t", Settings(), bench.now)
    subscription = bench.namespace.create(
        SUBSCRIPTION, "t/Subscriptions/s", Settings(rules=(TRUE_RULE,)), bench.now
    )
    bench.settle()
    bench.namespace.update(
        subscription, replace(subscription.settings, rules=(rule("r", "n = 1"),)), bench.now
    )
    bench.settle()
    assert _looked_at(bench) == 0

    bench.namespace.update(entity, replace(entity.settings, user_metadata="x"), bench.now)
    bench.settle()
    assert _looked_at(bench) == 3
