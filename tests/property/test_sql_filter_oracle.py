"""The broker's rule language against the oracle's, on many random filters and messages (B55, B58)."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest

from pairbus.engine.rules.index import TopicIndex
from pairbus.engine.rules.message_view import MappingView
from pairbus.engine.rules.sql.action import compile_action
from pairbus.engine.rules.sql.filter import SqlFilter, compile_filter
from pairbus.engine.rules.sql.lexer import EXPRESSION_CHARACTERS_MAX
from pairbus.engine.rules.sql.nodes import Evaluation
from pairbus.engine.rules.subscription import (
    CorrelationFilter,
    FalseFilter,
    Rule,
    RuleFilter,
    RuleSet,
    TrueFilter,
    Verdict,
)
from pairbus.errors import FilterFailed, InvalidRule
from tests.oracles import sql_oracle
from tests.oracles.sql_oracle import Message, Tree, Writer

FILTERS_PER_SEED = 1_500
MESSAGES_PER_FILTER = 10
ACTION = compile_action("SET copied = TRUE")


def outcome_of(compiled: SqlFilter, message: Message) -> str:
    try:
        truth = compiled.truth(Evaluation(MappingView(message.user, message.system)))
    except FilterFailed:
        return "error"
    return {True: "true", False: "false", None: "unknown"}[truth]


@pytest.mark.promise("B55")
@pytest.mark.parametrize("seed", range(8))
def test_filters_say_what_the_oracle_says(seed: int) -> None:
    random = Random(seed)
    writer = Writer(random)
    seen: Counter[str] = Counter()
    for _ in range(FILTERS_PER_SEED):
        tree = sql_oracle.condition_tree(random, random.randint(0, 3))
        text = writer.text(tree)
        if len(text) > EXPRESSION_CHARACTERS_MAX:
            continue
        compiled = compile_filter(text)
        for _ in range(MESSAGES_PER_FILTER):
            message = sql_oracle.random_message(random)
            expected = sql_oracle.outcome(tree, message)

            actual = outcome_of(compiled, message)

            assert actual == expected, (seed, text, message.user, message.system)
            seen[expected] += 1

    # 8 seeds x 13,000 and more: above 100,000 pairs in all, and every kind of outcome among them.
    assert seen.total() > 13_000
    assert min(seen[kind] for kind in ("true", "false", "unknown", "error")) > 500, seen


@pytest.mark.promise("B55")
def test_like_matches_what_the_oracle_matches() -> None:
    random = Random(7)
    for _ in range(2_000):
        pattern = "".join(random.choice("aabb%__") for _ in range(random.randint(0, 9)))
        compiled = compile_filter(f"text LIKE '{pattern}'")
        tree = ("like", ("user", "text"), ("const", pattern), None, False)
        for _ in range(10):
            message = Message(
                {"text": "".join(random.choice("ab") for _ in range(random.randint(0, 12)))}, {}
            )

            assert outcome_of(compiled, message) == sql_oracle.outcome(tree, message), (pattern, message.user)


@pytest.mark.promise("B58")
@pytest.mark.parametrize("seed", range(4))
def test_any_text_is_compiled_or_refused(seed: int) -> None:
    random = Random(seed)
    writer = Writer(random)
    accepted = 0
    for _ in range(2_000):
        text = writer.text(sql_oracle.condition_tree(random, 2))[:EXPRESSION_CHARACTERS_MAX]
        for _ in range(random.randint(0, 3)):
            at = random.randrange(len(text) + 1)
            text = (
                text[:at]
                + random.choice(["", "(", ")", "'", "NOT ", "%", "1", "é", "\0", "]", "@"])
                + text[at + 1 :]
            )
        try:
            compiled = compile_filter(text[:EXPRESSION_CHARACTERS_MAX])
        except InvalidRule:
            continue
        accepted += 1
        outcome_of(compiled, sql_oracle.random_message(random))

    assert 200 < accepted < 1_900


# ---- topics --------------------------------------------------------------------------------------


class Expected:
    """A rule and how the oracle sees it: a tree, a correlation (fields, properties), True or False."""

    def __init__(self, rule: Rule, sight: Tree | tuple[dict[str, str], dict[str, Any]] | bool) -> None:
        self.rule = rule
        self.sight = sight

    def outcome(self, message: Message) -> str:
        if isinstance(self.sight, bool):
            return "true" if self.sight else "false"
        if isinstance(self.sight[0], dict):
            return "true" if correlates(self.sight[0], self.sight[1], message) else "false"
        return sql_oracle.outcome(self.sight, message)


def correlates(fields: dict[str, str], properties: dict[str, Any], message: Message) -> bool:
    wanted = [(message.system.get(name), value) for name, value in fields.items()]
    wanted += [(message.find(name)[1], value) for name, value in properties.items() if value is not None]
    return all(
        found is not None
        and sql_oracle.family(found) == sql_oracle.family(value)
        and sql_oracle.same(found, value)
        for found, value in wanted
    )


def random_rule(random: Random, writer: Writer, name: str) -> Expected:
    action = ACTION if random.random() < 0.3 else None
    draw = random.random()
    if draw < 0.1:
        return Expected(Rule(name, TrueFilter(), action), True)
    if draw < 0.15:
        return Expected(Rule(name, FalseFilter(), action), False)
    if draw < 0.5:
        fields = {
            key: random.choice(sql_oracle.TEXTS) for key in ("label", "messageid") if random.random() < 0.4
        }
        properties = {
            key: random.choice(
                sql_oracle.TEXTS
                if key == "Color"
                else [*sql_oracle.INTEGERS[:6], *sql_oracle.DOUBLES[:3], True, None]
            )
            for key in ("Color", "size", "flag")
            if random.random() < 0.5
        }
        kept: RuleFilter = CorrelationFilter(
            {name: fields.get(name) for name in ("label", "messageid")}, properties
        )
        return Expected(Rule(name, kept, action), (fields, properties))
    tree = sql_oracle.equality_tree(random) if draw < 0.8 else sql_oracle.condition_tree(random, 1)
    return Expected(Rule(name, compile_filter(writer.text(tree)), action), tree)


def change_one_rule(random: Random, rules: list[Expected], new: Expected) -> None:
    """Take out the rule of this name, or put the new one in its place or at the end."""
    names = [expected.rule.name for expected in rules]
    if new.rule.name not in names:
        rules.append(new)
    elif random.random() < 0.5:
        rules[names.index(new.rule.name)] = new
    else:
        del rules[names.index(new.rule.name)]


def expected_verdict(rules: list[Expected], message: Message) -> tuple[bool, list[str], str | None]:
    outcomes = [(expected.rule, expected.outcome(message)) for expected in rules]
    return (
        any(rule.action is None and outcome == "true" for rule, outcome in outcomes),
        [rule.name for rule, outcome in outcomes if rule.action is not None and outcome == "true"],
        next((rule.name for rule, outcome in outcomes if outcome == "error"), None),
    )


def plain_verdict(verdict: Verdict) -> tuple[bool, list[str], str | None]:
    assert (verdict.failure is None) == (verdict.failed_rule is None)
    failed = verdict.failed_rule
    return verdict.plain, [rule.name for rule in verdict.actions], failed.name if failed else None


@pytest.mark.promise("B55")
@pytest.mark.parametrize("seed", range(20))
def test_topics_find_exactly_the_subscriptions_whose_rules_match(seed: int) -> None:
    random = Random(seed)
    writer = Writer(random)
    index: TopicIndex[str] = TopicIndex()
    model: dict[str, list[Expected]] = {}
    answers: Counter[bool] = Counter()
    for _ in range(60):
        key = f"sub{random.randrange(25)}"
        kept = index.rules_of(key)
        if random.random() < 0.2:
            index.remove(key)
            model.pop(key, None)
        elif kept is not None and random.random() < 0.6:
            name = f"rule{random.randrange(5)}"
            change_one_rule(random, model[key], random_rule(random, writer, name))
            rules = {expected.rule.name: expected.rule for expected in model[key]}
            index.put(key, kept.with_rule(rules[name]) if name in rules else kept.without(name))
        else:
            model[key] = [random_rule(random, writer, f"rule{i}") for i in range(random.randint(0, 4))]
            index.put(key, RuleSet([expected.rule for expected in model[key]]))
        for _ in range(5):
            message = sql_oracle.random_message(random)
            view = MappingView(message.user, message.system)
            expected = {name: expected_verdict(sights, message) for name, sights in model.items()}

            found = index.match(view)

            wanted = [(name, verdict) for name, verdict in expected.items() if verdict != (False, [], None)]
            assert [(name, plain_verdict(verdict)) for name, verdict in found] == wanted, (
                message.user,
                message.system,
            )
            for name, verdict in expected.items():
                judged = index.rules_of(name)
                assert judged is not None
                assert plain_verdict(judged.judge(view)) == verdict
                answers[verdict != (False, [], None)] += 1
    for name in list(model):
        index.remove(name)

    assert index.match(MappingView({"color": "a"})) == []
    assert not index._tables
    assert not index._shared
    assert not index._always
    assert index.sql_filter_count == index.correlation_filter_count == 0
    assert min(answers[True], answers[False]) > 100
