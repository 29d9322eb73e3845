"""Rules of a subscription, the index of a topic, and rules as JSON."""

from __future__ import annotations

import json
import math

import pytest

from pairbus.amqp.types import Decimal64, Timestamp, Uuid
from pairbus.engine.rules.codec import rule_from_json, rule_to_json, value_from_json, value_to_json
from pairbus.engine.rules.index import TopicIndex
from pairbus.engine.rules.message_view import MappingView
from pairbus.engine.rules.sql.action import compile_action
from pairbus.engine.rules.sql.declared import declared
from pairbus.engine.rules.sql.filter import compile_filter
from pairbus.engine.rules.sql.values import Duration
from pairbus.engine.rules.subscription import (
    CORRELATION_ELEMENTS,
    DEFAULT_RULE_NAME,
    CorrelationFilter,
    FalseFilter,
    Rule,
    RuleSet,
    TrueFilter,
)
from pairbus.errors import InvalidRule, QuotaExceeded


def sql(name: str, expression: str, action: str | None = None) -> Rule:
    return Rule(name, compile_filter(expression), compile_action(action) if action else None)


RED = MappingView({"color": "red", "size": 3}, {"label": "news", "messageid": "m1"})


# ---- correlation filters


def test_correlation_filter_wants_all_its_fields() -> None:
    assert CorrelationFilter({"label": "news", "messageid": "m1"}, properties={"Color": "red"}).matches(RED)
    assert not CorrelationFilter({"label": "news"}, properties={"Color": "blue"}).matches(RED)
    assert not CorrelationFilter({"label": "news", "to": "x"}).matches(RED)
    assert not CorrelationFilter({}, properties={"missing": "red"}).matches(RED)


def test_correlation_filter_compares_texts_with_case_and_numbers_by_value() -> None:
    assert not CorrelationFilter({"label": "News"}).matches(RED)
    assert CorrelationFilter({}, properties={"size": 3.0}).matches(RED)
    assert not CorrelationFilter({}, properties={"size": "3"}).matches(RED)
    assert not CorrelationFilter({}, properties={"one": True}).matches(MappingView({"one": 1}))
    assert CorrelationFilter({}, properties={"size": declared("int", "3")}).matches(RED)


def test_correlation_filter_does_not_test_what_is_null() -> None:
    assert CorrelationFilter({}).matches(RED)
    assert CorrelationFilter({}, properties={"size": None}).matches(RED)


@pytest.mark.parametrize("value", [math.nan, [1], Decimal64(bytes(8))])
def test_correlation_filter_refuses_values_that_cannot_be_equal(value: object) -> None:
    with pytest.raises(InvalidRule):
        CorrelationFilter({}, properties={"a": value})


# ---- rule sets


@pytest.mark.promise("B55")
def test_plain_rules_ask_for_one_copy_and_actions_for_one_each() -> None:
    rules = RuleSet(
        [
            sql("a", "size = 3"),
            Rule("b", TrueFilter()),
            sql("c", "color = 'red'", "SET x = 1"),
            sql("d", "color = 'blue'", "SET x = 1"),
            Rule("e", CorrelationFilter({"label": "news"}), compile_action("REMOVE size")),
        ]
    )

    verdict = rules.judge(RED)

    assert verdict.plain
    assert [rule.name for rule in verdict.actions] == ["c", "e"]
    assert verdict.failure is None
    assert not verdict.is_empty


def test_no_rules_want_nothing() -> None:
    assert RuleSet([]).judge(RED).is_empty
    assert RuleSet([Rule("none", FalseFilter())]).judge(RED).is_empty


def test_new_subscription_takes_everything() -> None:
    rules = RuleSet([Rule(DEFAULT_RULE_NAME, TrueFilter(), None, 5)])

    assert rules.judge(RED).plain
    found = rules.find("$DEFAULT")
    assert found is not None
    assert (found.name, found.created_at) == (DEFAULT_RULE_NAME, 5)


@pytest.mark.promise("B58")
def test_failing_rule_is_told_beside_what_the_others_say() -> None:
    rules = RuleSet([Rule("all", TrueFilter()), sql("bad", "size = 'x'"), sql("worse", "1/0 = 1")])

    verdict = rules.judge(RED)

    assert verdict.plain
    assert verdict.failed_rule is rules.rules[1]
    assert verdict.failure is not None


@pytest.mark.promise("B57")
def test_changing_a_set_makes_another() -> None:
    first = RuleSet([sql("a", "1=1")])

    second = first.with_rule(sql("B", "1=0"))
    third = second.with_rule(sql("A", "1=0"))
    fourth = third.without("b")

    assert [rule.name for rule in first.rules] == ["a"]
    assert [rule.name for rule in second.rules] == ["a", "B"]
    assert [rule.name for rule in third.rules] == ["A", "B"]
    assert [rule.name for rule in fourth.rules] == ["A"]
    assert fourth.without("missing").rules == fourth.rules
    with pytest.raises(InvalidRule):
        RuleSet([sql("a", "1=1"), sql("A", "1=1")])


def test_copy_of_a_rule_with_action_tells_the_rules_name() -> None:
    rule = sql("mine", "1=1", "SET color = 'blue'")

    assert rule.changes(RED).user_properties({"color": "red"}) == {"color": "blue", "RuleName": "mine"}
    assert sql("plain", "1=1").changes(RED).changes == []


# ---- the index of a topic


def keys(index: TopicIndex[str], view: MappingView) -> list[str]:
    return [key for key, _ in index.match(view)]


def test_topic_answers_in_the_order_subscriptions_were_added() -> None:
    index: TopicIndex[str] = TopicIndex()
    index.put("scan", RuleSet([sql("r", "color like 'r%'")]))
    index.put("all", RuleSet([Rule(DEFAULT_RULE_NAME, TrueFilter())]))
    index.put("table", RuleSet([Rule("r", CorrelationFilter({"label": "news"}))]))
    index.put("equal", RuleSet([sql("r", "size = 3 and color = 'red'")]))
    index.put("never", RuleSet([sql("r", "1=0")]))
    index.put("always", RuleSet([sql("r", "1=1"), Rule("e", CorrelationFilter({}))]))

    assert keys(index, RED) == ["scan", "all", "table", "equal", "always"]

    index.put("scan", RuleSet([Rule("r", CorrelationFilter({"label": "news"}))]))
    index.remove("all")
    index.remove("unknown")
    index.put("all", RuleSet([Rule(DEFAULT_RULE_NAME, TrueFilter())]))

    assert keys(index, RED) == ["scan", "table", "equal", "always", "all"]
    assert index.rules_of("nobody") is None


def test_topic_shares_filters_of_one_text_but_not_with_parameters() -> None:
    index: TopicIndex[str] = TopicIndex()
    for number in range(4):
        index.put(f"s{number}", RuleSet([sql("r", "size > 2")]))
        index.put(f"p{number}", RuleSet([Rule("r", compile_filter("size > @n", {"n": number}))]))

    assert len(index._shared) == 5
    assert keys(index, RED) == ["s0", "p0", "s1", "p1", "s2", "p2", "s3"]

    index.remove("s0")

    assert keys(index, RED) == ["p0", "s1", "p1", "s2", "p2", "s3"]


@pytest.mark.promise("B58")
def test_failure_in_one_subscription_leaves_the_others_alone() -> None:
    index: TopicIndex[str] = TopicIndex()
    index.put("bad", RuleSet([sql("r", "color = 5")]))
    index.put("worse", RuleSet([sql("r", "1/0 = 1")]))
    index.put("good", RuleSet([sql("r", "color = 'red'")]))

    verdicts = dict(index.match(RED))

    assert list(verdicts) == ["bad", "worse", "good"]
    assert verdicts["bad"].failure is not None
    assert verdicts["worse"].failure is not None
    assert verdicts["good"].failure is None
    assert verdicts["good"].plain


def test_topic_does_not_mix_booleans_with_numbers() -> None:
    index: TopicIndex[str] = TopicIndex()
    index.put("number", RuleSet([Rule("r", CorrelationFilter({}, properties={"flag": 1}))]))
    index.put("boolean", RuleSet([Rule("r", CorrelationFilter({}, properties={"flag": True}))]))

    assert keys(index, MappingView({"flag": True})) == ["boolean"]
    assert keys(index, MappingView({"flag": 1.0})) == ["number"]


def test_topic_refuses_more_filters_than_its_quota() -> None:
    index: TopicIndex[str] = TopicIndex(sql_filters_max=2, correlation_filters_max=1)
    index.put("a", RuleSet([sql("r", "1=1"), sql("q", "1=0"), Rule("t", TrueFilter())]))
    index.put("b", RuleSet([Rule("r", CorrelationFilter({"label": "x"}))]))

    with pytest.raises(QuotaExceeded, match="3 SQL filters"):
        index.put("c", RuleSet([sql("r", "1=1")]))
    with pytest.raises(QuotaExceeded, match="2 correlation filters"):
        index.put("c", RuleSet([Rule("r", CorrelationFilter({"label": "x"}))]))

    assert keys(index, RED) == ["a"]
    assert (index.sql_filter_count, index.correlation_filter_count) == (2, 1)


# ---- JSON

VALUES: list[object] = [
    None,
    True,
    5,
    -(2**63),
    2.5,
    math.inf,
    "text",
    b"\x00\xff",
    Timestamp(5),
    Duration(-5),
    Uuid(bytes(range(16))),
    declared("long", "5"),
    declared("dateTime", "2020-07-05T11:12:13"),
    declared("double", "-INF"),
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_values_survive_json(value: object) -> None:
    data = json.loads(json.dumps(value_to_json(value), allow_nan=False))

    result = value_from_json(data)

    assert result == value
    assert type(result) is type(value)


@pytest.mark.parametrize(
    "rule",
    [
        Rule("true", TrueFilter(), None, 1),
        Rule("false", FalseFilter(), None, 2),
        Rule("sql", compile_filter("a = @b", {"@b": 5}), compile_action("SET a = @c", {"c": "x"}), 3),
        Rule(
            "all",
            CorrelationFilter(
                {name: str(number) for number, name in enumerate(CORRELATION_ELEMENTS.values())},
                properties={"N": 1, "when": Timestamp(5), "none": None, "long": declared("long", "5")},
            ),
            compile_action("REMOVE a"),
            4,
        ),
    ],
    ids=lambda rule: rule.name,
)
def test_rules_survive_json(rule: Rule) -> None:
    data = json.loads(json.dumps(rule_to_json(rule)))

    again = rule_from_json(data)

    assert rule_to_json(again) == rule_to_json(rule)
    assert (again.name, again.created_at, type(again.filter)) == (
        rule.name,
        rule.created_at,
        type(rule.filter),
    )


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"name": "a", "filter": {"kind": "true"}},
        {"name": "a", "filter": 5, "created_at": 0},
        {"name": "a", "filter": {"kind": "other"}, "created_at": 0},
        {"name": "a", "filter": {"kind": "sql", "expression": "=", "parameters": {}}, "created_at": 0},
        {
            "name": "a",
            "filter": {"kind": "sql", "expression": "1=1", "parameters": {"a": 5}},
            "created_at": 0,
        },
        {
            "name": "a",
            "filter": {"kind": "correlation", "fields": {"to": 5}, "properties": {}},
            "created_at": 0,
        },
        {"name": "a", "filter": {"kind": "true"}, "created_at": 0, "action": "SET a = 1"},
    ],
)
def test_json_that_is_no_rule_is_refused(data: dict[str, object]) -> None:
    with pytest.raises(InvalidRule):
        rule_from_json(data)


@pytest.mark.parametrize(
    "data",
    [
        {"type": "integer", "value": True},
        {"type": "integer", "value": 1.5},
        {"type": "boolean", "value": 1},
        {"type": "double", "value": "x"},
        {"type": "binary", "value": "0g"},
        {"type": "uuid", "value": "1"},
        {"type": "other", "value": "1"},
        {"type": "string", "value": 1},
        {"value": 1},
    ],
)
def test_json_that_is_no_value_is_refused(data: dict[str, object]) -> None:
    with pytest.raises(InvalidRule):
        value_from_json(data)


def test_values_no_rule_can_have_are_not_kept() -> None:
    with pytest.raises(InvalidRule):
        value_to_json(Decimal64(bytes(8)))
