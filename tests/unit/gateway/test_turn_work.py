"""B63: what counts towards a client's turn is what its sends cost, not how many transfers they are."""

from __future__ import annotations

import pytest

from pairbus.engine.rules.sql.nodes import PUBLISH_STEPS_MAX, STEPS_PER_COPY
from pairbus.gateway.incoming import BATCH_FORMAT
from pairbus.model.entity import SUBSCRIPTION, TOPIC, Settings
from pairbus.server.sockets.turns import STEP_WORK
from tests.simulation.wire import encode_batch
from tests.unit.engine.engine_kit import TRUE_RULE, Bench
from tests.unit.gateway.wire_bench import WireBench, message

SUBSCRIPTIONS = 100


def _topic(bench: WireBench | Bench) -> None:
    namespace = bench.namespace
    namespace.create(TOPIC, "t", Settings(), bench.now)
    for number in range(SUBSCRIPTIONS):
        path = f"t/subscriptions/s{number}"
        namespace.create(SUBSCRIPTION, path, Settings(rules=(TRUE_RULE,)), bench.now)


@pytest.mark.promise("B63")
@pytest.mark.parametrize("kind", ["topic", "batches"])
def test_a_turn_ends_after_as_many_copies_as_it_would_take_transfers(kind: str, bench: WireBench) -> None:
    _topic(bench)
    queue = bench.queue("q")
    peer = bench.peer()
    sender = peer.session.sender("t" if kind == "topic" else "q")
    bench.settle()
    for number in range(STEP_WORK):
        one = message("x", message_id=f"m{number}")
        if kind == "topic":
            sender.send(one)
        else:
            sender.send(encode_batch([one] * SUBSCRIPTIONS), message_format=BATCH_FORMAT)
    stored = bench.namespace.find("t/subscriptions/s0") if kind == "topic" else queue
    assert stored is not None

    peer.gateway.receive(peer.client.take_output(), bench.now, STEP_WORK)

    assert stored.main.stored_ever == (1 if kind == "topic" else SUBSCRIPTIONS)
    assert peer.gateway.is_behind, "the rest waits for the next turn"
    for _ in range(STEP_WORK - 1):
        peer.gateway.receive(b"", bench.now, STEP_WORK)
    assert stored.main.stored_ever == STEP_WORK * (1 if kind == "topic" else SUBSCRIPTIONS)


@pytest.mark.promise("B50", "B63")
def test_what_is_forwarded_to_a_topic_in_one_turn_is_limited_by_its_copies() -> None:
    bench = Bench()
    _topic(bench)
    queue = bench.queue("q")
    messages = 2 * PUBLISH_STEPS_MAX // (STEPS_PER_COPY * SUBSCRIPTIONS)
    for _ in range(messages):
        bench.send(queue)
    entity = bench.find("q")
    bench.namespace.update(entity, Settings(forward_to="t"), bench.now)
    first = bench.find("t/subscriptions/s0").main

    bench.namespace.context.budget.taken_in_burst = 0
    queue.deliver(bench.now)

    assert 0 < first.stored_ever < messages
    assert bench.namespace.next_deadline() == 0, "the rest follows at once"
    bench.wait(0)
    assert first.stored_ever == messages
