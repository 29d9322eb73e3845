"""Tokens on a connection: what they cover, what they cost, and what a strange one does."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pairbus.amqp.types import Array, Long, Symbol, Timestamp
from pairbus.engine.entity import Entity
from pairbus.gateway.rights.access import Grant
from pairbus.model.entity import SUBSCRIPTION, TOPIC, Settings
from tests.unit.engine.engine_kit import TRUE_RULE, rule
from tests.unit.gateway.wire_bench import HOUR, START, WireBench, message, token


@pytest.mark.promise("M3")
def test_expiry_with_thousands_of_digits_is_refused_and_audited(bench: WireBench) -> None:
    bench.queue()
    peer = bench.peer(None)
    good = token("root", "root-1", "q")
    bad = good.replace(f"se={(START + HOUR) // 1000}", "se=" + "9" * 5_000)

    assert peer.put_token(bad, "q") == 401
    assert [event for event in bench.audits if event[0] == "put-token"]
    answer = bench.http("GET", "/q?api-version=2021-05", bad)
    assert answer.status == 401


@pytest.mark.promise("M12")
@pytest.mark.uncompiled
def test_token_with_a_very_long_resource_costs_little(bench: WireBench) -> None:
    resource = "sb%3a%2f%2flocalhost%2f" + "a/" * 3_900
    text = token("nobody-knows", "key", quoted=resource)
    peer = bench.peer(None)
    looked = 0
    find = bench.namespace.find

    def counted(path: str) -> Entity | None:
        nonlocal looked
        looked += 1
        return find(path)

    bench.namespace.find = counted  # type: ignore[method-assign]

    assert peer.put_token(text, "q") == 401
    assert looked < 100


@pytest.mark.promise("M2")
def test_token_for_a_dead_letter_queue_neither_schedules_nor_cancels_in_the_queue_itself() -> None:
    bench = WireBench()
    entity = bench.queue()
    owner = bench.peer()
    later = START + HOUR
    annotations = {Symbol("x-opt-scheduled-enqueue-time"): Timestamp(later)}
    scheduled = {"messages": [{"message-id": "1", "message": message("x", message_annotations=annotations)}]}
    owner.answer("q", "schedule-message", scheduled)
    assert entity.main.scheduled_count == 1
    peer = bench.peer(None)
    place = "q/$DeadLetterQueue"
    assert peer.put_token(token("root", "root-1", place), place) == 202

    assert peer.refusal(place, "schedule-message", scheduled)[0] == 401
    numbers = Array([Long(1)])
    assert peer.refusal(place, "cancel-scheduled-message", {"sequence-numbers": numbers})[0] == 401
    assert entity.main.scheduled_count == 1


@pytest.mark.promise("M2")
def test_token_for_a_dead_letter_queue_does_not_change_the_rules_of_its_subscription() -> None:
    bench = WireBench()
    bench.namespace.create(TOPIC, "t", Settings(), START)
    path = "t/Subscriptions/s"
    subscription = bench.namespace.create(SUBSCRIPTION, path, Settings(rules=(TRUE_RULE,)), START)
    place = path + "/$DeadLetterQueue"
    peer = bench.peer(None)
    assert peer.put_token(token("root", "root-1", place), place) == 202

    assert peer.refusal(place, "remove-rule", {"rule-name": "$Default"})[0] == 401
    assert peer.refusal(place, "enumerate-rules", {"top": 10, "skip": 0})[0] == 401
    assert len(subscription.settings.rules) == 1


@pytest.mark.promise("B63")
@pytest.mark.uncompiled
def test_tokens_for_many_entities_on_one_connection_are_checked_one_by_one(bench: WireBench) -> None:
    count = 40
    for number in range(count):
        bench.queue(f"q{number}")
    peer = bench.peer(None)
    asked = 0
    allows = bench.broker.access.allows

    def counted(grant: Grant, path: str, right: str, now: int) -> bool:
        nonlocal asked
        asked += 1
        return allows(grant, path, right, now)

    bench.broker.access.allows = counted  # type: ignore[method-assign]
    for _ in range(2):
        for number in range(count):
            assert peer.put_token(token("root", "root-1", f"q{number}"), f"q{number}") == 202
            peer.session.sender(f"q{number}", name=f"s{number}")
            bench.settle()

    assert asked < 10 * count
    assert all(link.is_attached for link in peer.session.links.values() if link.name.startswith("s"))


def _forget_rights(bench: WireBench) -> None:
    for connection in bench.broker.connections:
        for context in connection.links.values():
            context.allowed_until = 0


def _looked_at(bench: WireBench) -> int:
    """Links whose right was looked at anew since it was forgotten."""
    links = [context for connection in bench.broker.connections for context in connection.links.values()]
    return sum(1 for context in links if context.allowed_until)


@pytest.mark.promise("B63")
def test_new_entities_and_filters_do_not_have_every_link_looked_at(bench: WireBench) -> None:
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
