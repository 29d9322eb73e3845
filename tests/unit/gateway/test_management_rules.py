"""The management node of a subscription: rules (B57, B58)."""

from __future__ import annotations

import pytest

from pairbus.amqp.types import Int
from pairbus.model.entity import SUBSCRIPTION, TOPIC, Settings
from tests.unit.gateway.wire_bench import START, Peer, WireBench, message

TRUE_RULE = '{"name":"$Default","created_at":0,"filter":{"kind":"true"},"action":null}'

PATH = "t/Subscriptions/s"


def with_subscription() -> tuple[WireBench, Peer]:
    bench = WireBench()
    bench.namespace.create(TOPIC, "t", Settings(), bench.now)
    bench.namespace.create(SUBSCRIPTION, PATH, Settings(), bench.now)
    return bench, bench.peer()


def add(name: str, expression: str, action: str | None = None) -> dict[str, object]:
    description: dict[str, object] = {
        "sql-filter": {"expression": expression},
        "sql-rule-action": None if action is None else {"expression": action},
    }
    return {"rule-name": name, "rule-description": description}


def active(bench: WireBench) -> int:
    entity = bench.namespace.find(PATH)
    assert entity is not None
    return entity.counts().active


@pytest.mark.promise("B57")
def test_a_rule_counts_from_its_acknowledgement_on() -> None:
    bench, peer = with_subscription()
    sender = peer.session.sender("t")
    bench.settle()
    sender.send(message("before"))
    bench.settle()
    peer.answer(PATH, "add-rule", add("red", "color = 'red'"))
    sender.send(message("after", application_properties={"color": "red"}))
    sender.send(message("after", application_properties={"color": "blue"}))
    bench.settle()
    assert active(bench) == 1

    peer.answer(PATH, "remove-rule", {"rule-name": "red"})
    sender.send(message("later", application_properties={"color": "red"}))
    bench.settle()
    assert active(bench) == 1


def test_rules_are_listed_a_page_at_a_time() -> None:
    _, peer = with_subscription()
    for name in "abc":
        peer.answer(PATH, "add-rule", add(name, "1 = 1", "SET x = 1" if name == "b" else None))
    entries = peer.answer(PATH, "enumerate-rules", {"skip": Int(1), "top": Int(5)})["rules"]
    assert isinstance(entries, list)
    assert len(entries) == 2


def test_rules_are_listed_by_name() -> None:
    _, peer = with_subscription()
    for name in ("zebra", "Apple", "mango"):
        peer.answer(PATH, "add-rule", add(name, "1 = 1"))
    entries = peer.answer(PATH, "enumerate-rules", {"skip": Int(0), "top": Int(5)})["rules"]
    assert isinstance(entries, list)
    assert [entry["rule-description"].value[2] for entry in entries] == ["Apple", "mango", "zebra"]
    second = peer.answer(PATH, "enumerate-rules", {"skip": Int(1), "top": Int(1)})["rules"]
    assert isinstance(second, list)
    assert [entry["rule-description"].value[2] for entry in second] == ["mango"]


def test_a_page_beyond_the_last_rule_is_no_content() -> None:
    _, peer = with_subscription()
    peer.answer(PATH, "add-rule", add("a", "1 = 1"))
    status, _ = peer.refusal(PATH, "enumerate-rules", {"skip": Int(9), "top": Int(5)})
    assert status == 204


@pytest.mark.promise("M11")
@pytest.mark.parametrize(
    "body",
    [
        add("", "1 = 1"),
        add("bad/name", "1 = 1"),
        add("r", "this is ("),
        add("r", "1 = 1", "SET"),
        {"rule-name": "r"},
        {"rule-name": "r", "rule-description": {}},
        {"rule-name": 5, "rule-description": {}},
    ],
)
def test_a_rule_that_cannot_be_is_refused_and_leaves_nothing(body: dict[str, object]) -> None:
    bench, peer = with_subscription()
    entity = bench.namespace.find(PATH)
    assert entity is not None
    before = entity.settings.rules
    assert peer.refusal(PATH, "add-rule", body)[0] == 400
    assert entity.settings.rules == before


def test_names_of_rules_are_taken_once_and_must_be_there_to_go() -> None:
    _, peer = with_subscription()
    peer.answer(PATH, "add-rule", add("r", "1 = 1"))
    assert peer.refusal(PATH, "add-rule", add("r", "1 = 1"))[0] == 409
    assert peer.refusal(PATH, "remove-rule", {"rule-name": "missing"})[0] == 404


def test_only_subscriptions_have_rules() -> None:
    bench, peer = with_subscription()
    bench.queue()
    assert peer.refusal("q", "add-rule", add("r", "1 = 1"))[0] == 400


@pytest.mark.promise("M13")
def test_rules_changed_over_amqp_are_audited_like_those_over_http(bench: WireBench) -> None:
    bench.namespace.create(TOPIC, "t", Settings(), START)
    path = "t/Subscriptions/s"
    bench.namespace.create(SUBSCRIPTION, path, Settings(rules=(TRUE_RULE,)), START)
    peer = bench.peer()

    peer.answer(path, "remove-rule", {"rule-name": "$Default"})
    peer.refusal(path, "remove-rule", {"rule-name": "$Default"})
    listener = bench.peer("listener", "listener-1")
    listener.refusal(path, "remove-rule", {"rule-name": "$Default"})

    told = [event[1:4] for event in bench.audits if event[0] == "delete rule"]
    resource = path + "/rules/$Default"
    assert told == [(resource, "root", "200"), (resource, "root", "404"), (resource, "", "401")]
