"""Access rules of the namespace are listed, set, removed and rotated while the broker runs (M5)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pairbus.engine.records import NamespacePut
from pairbus.gateway.rights.access_rules import ACCESS_RULES_PATH
from pairbus.model.access import LISTEN, MANAGE, RIGHTS, ROOT_RULE, SEND, AccessRule
from pairbus.model.entity import ACCESS_RULES_MAX, Settings
from pairbus.storage.memory import MemoryDisk, MemoryStore
from tests.unit.gateway.wire_bench import WireBench, rule, token


def ask(
    bench: WireBench, method: str, name: str = "", body: object = None, who: str = "root", status: int = 200
) -> dict[str, Any]:
    content = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    target = f"{ACCESS_RULES_PATH}/{name}" if name else ACCESS_RULES_PATH
    answer = bench.http(method, target, token(who, f"{who}-1"), content)
    assert answer.status == status, answer.body
    bench.settle()
    found = json.loads(answer.body)
    assert isinstance(found, dict)
    return found


def with_root_rule() -> WireBench:
    bench = WireBench()
    bench.namespace.set_access_rules((*bench.namespace.access_rules, rule(ROOT_RULE, MANAGE)), bench.now)
    return bench


def test_rules_are_listed_without_keys_and_one_is_shown_with_them(bench: WireBench) -> None:
    listed = ask(bench, "GET")["rules"]

    assert [row["name"] for row in listed] == ["root", "listener", "sender", "nobody"]
    assert listed[0]["rights"] == list(RIGHTS)
    assert "root-1" not in json.dumps(listed)
    assert ask(bench, "GET", "sender")["primary_key"] == "sender-1"
    assert "sender" in ask(bench, "GET", "Sender", status=404)["error"].lower()


@pytest.mark.promise("M5")
def test_a_rule_that_is_set_opens_the_namespace_at_once_and_after_a_restart() -> None:
    disk = MemoryDisk()
    bench = WireBench(disk)
    bench.queue()

    made = ask(bench, "PUT", "shop.two", {"rights": [SEND]})

    assert "primary_key" not in made
    keys = ask(bench, "GET", "shop.two")
    assert len(keys["primary_key"]) == 44 == len(keys["secondary_key"])
    assert keys["primary_key"] != keys["secondary_key"]
    sender = bench.peer("shop.two", keys["primary_key"]).session.sender("q")
    bench.settle()
    assert sender.is_attached
    ask(bench, "PUT", "given", {"rights": [LISTEN], "primary_key": "abc"})
    changed = ask(bench, "PUT", "given", {"rights": [SEND]})
    assert changed["rights"] == [SEND]
    assert ask(bench, "GET", "given")["primary_key"] == "abc"

    records = [record for record in MemoryStore(disk).replay() if isinstance(record, NamespacePut)]
    assert [one["name"] for one in json.loads(records[-1].settings)["access_rules"]][-2:] == [
        "shop.two",
        "given",
    ]


@pytest.mark.promise("M5")
@pytest.mark.parametrize("way", ["remove", "rotate", "rights"])
def test_links_of_a_rule_that_is_removed_or_changed_end(way: str, bench: WireBench) -> None:
    bench.queue()
    sender, receiver = (
        bench.peer("sender", "sender-1").session.sender("q"),
        bench.peer("listener", "listener-1").session.receiver("q"),
    )
    bench.settle()
    assert sender.is_attached
    assert receiver.is_attached

    if way == "remove":
        ask(bench, "DELETE", "sender")
    elif way == "rotate":
        ask(bench, "POST", "sender/rotate", {"key": "primary"})
    else:
        ask(bench, "PUT", "sender", {"rights": [LISTEN]})

    assert sender.detached
    assert receiver.is_attached


@pytest.mark.promise("M5")
def test_a_rotation_replaces_one_key_and_the_other_works_on() -> None:
    bench = with_root_rule()
    before = ask(bench, "GET", ROOT_RULE)

    ask(bench, "POST", f"{ROOT_RULE}/rotate", {"key": "secondary"})
    after = ask(bench, "GET", ROOT_RULE)
    assert after["primary_key"] == before["primary_key"]
    assert after["secondary_key"] != before["secondary_key"]
    ask(bench, "POST", f"{ROOT_RULE}/rotate", {"value": "given"})
    assert ask(bench, "GET", ROOT_RULE)["primary_key"] == "given"
    assert bench.http("GET", ACCESS_RULES_PATH, token(ROOT_RULE, before["primary_key"])).status == 401


@pytest.mark.promise("M1")
@pytest.mark.parametrize("who", ["listener", "sender", "nobody", "unknown"])
@pytest.mark.parametrize(("method", "name"), [("GET", ""), ("GET", "root"), ("PUT", "x"), ("DELETE", "root"), ("POST", "root/rotate")])  # fmt: skip
def test_only_manage_on_the_whole_namespace_is_enough(who: str, method: str, name: str) -> None:
    bench = WireBench()
    bench.queue("q", Settings(access_rules=(rule("own", MANAGE),)))
    before = bench.namespace.access_rules

    ask(bench, method, name, {"rights": [SEND]}, who, 401)
    of_queue = token("own", "own-1", "q")
    assert bench.http(method, f"{ACCESS_RULES_PATH}/{name}", of_queue).status == 401
    assert bench.http(method, ACCESS_RULES_PATH, None).status == 401

    assert bench.namespace.access_rules == before
    assert not any("-1" in text for event in bench.audits for text in event if text != event[4])


@pytest.mark.parametrize(
    ("method", "name", "body", "status"),
    [
        ("DELETE", ROOT_RULE, None, 400),
        ("PUT", ROOT_RULE, {"rights": [SEND]}, 400),
        ("PUT", "x", {}, 400),
        ("PUT", "x", {"rights": []}, 400),
        ("PUT", "x", {"rights": "Send"}, 400),
        ("PUT", "x", {"rights": ["send"]}, 400),
        ("PUT", "x", {"rights": [MANAGE]}, 400),
        ("PUT", "x", {"rights": [SEND], "primary_key": 7}, 400),
        ("PUT", "x", {"rights": [SEND], "primary_key": "k" * 257}, 400),
        ("PUT", "x" * 257, {"rights": [SEND]}, 400),
        ("PUT", "x", {"rights": [SEND], "primary_key": "\ud800"}, 400),
        ("PUT", "x", {"rights": [SEND], "secondary_key": "a;b"}, 400),
        ("PUT", "x", {"rights": [SEND], "primary_key": ""}, 400),
        ("PUT", "x", {"rights": [SEND], "primary_key": "k\u00e9y"}, 400),
        ("PUT", "x", {"rights": [SEND], "key": "k"}, 400),
        ("PUT", "x", {"rights": [SEND], "\ud800": 1}, 400),
        ("PUT", "x%20y", {"rights": [SEND]}, 400),
        ("PUT", "..", {"rights": [SEND]}, 400),
        ("PUT", "%C3%A9", {"rights": [SEND]}, 400),
        ("PUT", "x", b"[" * 200_000, 400),
        ("POST", f"{ROOT_RULE}/rotate", {"value": "\ud800"}, 400),
        ("POST", f"{ROOT_RULE}/rotate", {"value": "with blank"}, 400),
        ("POST", f"{ROOT_RULE}/rotate", {"primary_key": "abc"}, 400),
        ("PUT", "x", [], 400),
        ("PUT", "x", b"{", 400),
        ("PUT", "", {"rights": [SEND]}, 400),
        ("DELETE", "x", None, 404),
        ("POST", "x/rotate", {}, 404),
        ("POST", "sender/rotate", {"key": "third"}, 400),
        ("POST", "sender", {}, 501),
        ("GET", "sender/rotate", None, 501),
    ],
)
def test_what_cannot_be_done_is_refused_and_changes_nothing(
    method: str, name: str, body: object, status: int
) -> None:
    bench = with_root_rule()
    before = bench.namespace.access_rules

    answer = ask(bench, method, name, body, status=status)

    assert answer["error"]
    assert bench.namespace.access_rules == before


def test_a_key_that_is_refused_is_not_repeated_and_the_way_out_is_named() -> None:
    error = ask(WireBench(), "PUT", "x", {"rights": [SEND], "primary_key": "secret-\ud800"}, status=400)[
        "error"
    ]

    assert "secret" not in error
    assert "'x'" in error
    assert "position 8" in error
    assert "printable ASCII" in error


@pytest.mark.promise("M5")
def test_a_stored_rule_with_a_key_that_no_client_can_have_works_with_its_other_key() -> None:
    disk = MemoryDisk()
    bench = WireBench(disk)
    broken = AccessRule(name="old rule", rights=RIGHTS, primary_key="\ud800", secondary_key="old rule-1")
    bench.namespace.set_access_rules((*bench.namespace.access_rules, broken), bench.now)
    bench.queue()
    bench.settle()

    assert bench.http("GET", ACCESS_RULES_PATH, token("old rule", "wrong")).status == 401
    assert bench.broker.access.log_in("old rule", "\ud800") is None
    assert bench.broker.access.log_in("old rule", "old rule-1") is not None
    ask(bench, "POST", "old%20rule/rotate", {"key": "primary"}, who="old rule")

    (kept,) = [one for one in bench.namespace.access_rules if one.name == "old rule"]
    assert len(kept.primary_key) == 44


def test_the_number_of_rules_is_limited(bench: WireBench) -> None:
    for index in range(ACCESS_RULES_MAX - 4):
        ask(bench, "PUT", f"rule-{index}", {"rights": [SEND]})

    assert str(ACCESS_RULES_MAX) in ask(bench, "PUT", "more", {"rights": [SEND]}, status=400)["error"]
    ask(bench, "PUT", "rule-0", {"rights": [LISTEN]})


@pytest.mark.promise("M13")
def test_every_request_is_in_the_audit(bench: WireBench) -> None:
    ask(bench, "PUT", "shop", {"rights": [SEND]})
    ask(bench, "POST", "shop/rotate", {})
    ask(bench, "DELETE", "shop")

    assert [event[:4] for event in bench.audits] == [
        ("set access rule", "shop", "root", "200"),
        ("rotate key of access rule", "shop", "root", "200"),
        ("remove access rule", "shop", "root", "200"),
    ]
