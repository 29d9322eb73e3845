"""A publish works for values at the edge of their type, and for more ids than a small counter holds."""

from __future__ import annotations

import json

import pytest

from pairbus.amqp.types import ULong
from pairbus.engine.entity import Entity
from tests.unit.engine.engine_kit import SECOND, START, Bench, rule

HUGE = 2**64 - 1


@pytest.mark.promise("B15")
def test_publish_with_an_unsigned_property_and_an_action_reaches_every_subscription(bench: Bench) -> None:
    topic = bench.topic()
    plain = bench.subscription("t/Subscriptions/a")
    acting = bench.subscription("t/Subscriptions/b", rules=[rule("r", "1=1", "SET copy = wide")])

    bench.send(topic, "x", properties={"wide": ULong(HUGE)})

    assert plain.main.active_count == 1
    assert acting.main.active_count == 1


@pytest.mark.promise("B59")
def test_scheduled_message_with_an_unsigned_property_does_not_stop_the_pump(bench: Bench) -> None:
    topic = bench.topic()
    acting = bench.subscription("t/Subscriptions/b", rules=[rule("r", "1=1", "SET copy = wide")])
    bench.send(topic, "x", properties={"wide": ULong(HUGE)}, scheduled_at=START + SECOND)

    bench.wait(2 * SECOND)

    assert acting.main.active_count == 1


@pytest.mark.promise("B58")
@pytest.mark.long
def test_more_fresh_ids_than_two_bytes_count_do_not_stop_a_publish(bench: Bench, topic: Entity) -> None:
    many = {"expression": "; ".join(f"SET p{i} = newid()" for i in range(32)), "parameters": {}}
    texts = [
        json.dumps({"name": f"r{i}", "created_at": 0, "filter": {"kind": "true"}, "action": many})
        for i in range(70)
    ]
    for i in range(30):
        bench.subscription(f"t/Subscriptions/s{i}", rules=texts)

    bench.send(topic, "x")

    assert all(s.main.active_count == 70 for s in topic.subscriptions.values())
