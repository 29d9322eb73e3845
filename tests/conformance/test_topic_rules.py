"""Rules through real senders and receivers: which subscription gets a copy, and how an action changes it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError
from azure.servicebus import ServiceBusMessage
from azure.servicebus.management import (
    CorrelationRuleFilter,
    FalseRuleFilter,
    SqlRuleAction,
    SqlRuleFilter,
    TrueRuleFilter,
)

from tests.conformance.sdk import Bus, spec
from tests.conformance.topic_kit import consume, peek, publish, reasons

DEFAULT = "$Default"


def message(body: str, subject: str | None = None, **properties: Any) -> ServiceBusMessage:
    named: dict[Any, Any] = properties
    return ServiceBusMessage(body, subject=subject, application_properties=named)


def properties_of(messages: list[Any]) -> list[dict[str, Any]]:
    """Application properties with text keys and values, whatever the flavour of the client says."""
    return [
        {plain(key): plain(value) for key, value in (m.application_properties or {}).items()}
        for m in messages
    ]


def plain(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


@spec("a new subscription has $Default, which is true; without rules nothing comes")
def test_default_rule_takes_everything_until_it_is_removed(
    bus: Bus, admin: Any, make_topic: Callable[..., str]
) -> None:
    topic = make_topic(one={})
    assert [rule.name for rule in admin.list_rules(topic, "one")] == [DEFAULT]
    publish(bus, topic, message("before"))
    admin.delete_rule(topic, "one", DEFAULT)
    publish(bus, topic, message("never"))
    admin.create_rule(topic, "one", DEFAULT, filter=TrueRuleFilter())
    publish(bus, topic, message("after"))

    assert peek(bus, topic, "one") == ["before", "after"]


@pytest.mark.promise("B57")
@spec("a rule change counts for messages accepted afterwards")
def test_changed_rule_judges_what_comes_later(bus: Bus, admin: Any, make_topic: Callable[..., str]) -> None:
    topic = make_topic(one={})
    rule = admin.get_rule(topic, "one", DEFAULT)
    with bus.client().get_topic_sender(topic) as sender:  # the same link sees every change
        for text, expression in (("a", "colour = 'red'"), ("b", "colour = 'blue'"), ("c", "1=1")):
            rule.filter = SqlRuleFilter(expression)
            admin.update_rule(topic, "one", rule)
            for colour in ("red", "blue"):
                sender.send_messages(message(text + colour, colour=colour))

    assert peek(bus, topic, "one") == ["ared", "bblue", "cred", "cblue"]


@pytest.mark.promise("B55")
@spec("every field of a correlation filter; all that are given must be equal")
@pytest.mark.parametrize(
    ("given", "wanted", "other"),
    [
        ({"correlation_id": "c"}, {"correlation_id": "c"}, {"correlation_id": "C"}),
        ({"message_id": "m"}, {"message_id": "m"}, {"message_id": "n"}),
        ({"to": "t"}, {"to": "t"}, {"to": "u"}),
        ({"reply_to": "r"}, {"reply_to": "r"}, {"reply_to": "s"}),
        ({"label": "l"}, {"subject": "l"}, {"subject": "L"}),
        ({"session_id": "s"}, {"session_id": "s"}, {"session_id": "z"}),
        ({"reply_to_session_id": "s"}, {"reply_to_session_id": "s"}, {"reply_to_session_id": "z"}),
        ({"content_type": "x/y"}, {"content_type": "x/y"}, {"content_type": "x/z"}),
        (
            {"label": "l", "properties": {"n": 5}},
            {"subject": "l", "application_properties": {"n": 5}},
            {"subject": "l", "application_properties": {"n": 6}},
        ),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else None,
)
def test_correlation_filter(
    bus: Bus,
    admin: Any,
    make_topic: Callable[..., str],
    given: dict[str, Any],
    wanted: dict[str, Any],
    other: dict[str, Any],
) -> None:
    topic = make_topic(one={})
    admin.delete_rule(topic, "one", DEFAULT)
    admin.create_rule(topic, "one", "r", filter=CorrelationRuleFilter(**given))

    publish(
        bus,
        topic,
        ServiceBusMessage("wanted", **wanted),
        ServiceBusMessage("other", **other),
        ServiceBusMessage("bare"),
    )

    assert peek(bus, topic, "one") == ["wanted"]


@pytest.mark.promise("B55")
@spec("SQL filters: scopes, logic of three values, LIKE, IN, EXISTS, arithmetic, parameters")
@pytest.mark.parametrize(
    ("expression", "chosen"),
    [
        ("size > 5", "bd"),
        ("size + 1 = 10 OR sys.Label = 'urgent'", "bc"),
        ("colour LIKE 'r_d%'", "ab"),
        ("colour NOT IN ('red', 'green')", "d"),
        ("EXISTS(colour) AND colour <> 'blue'", "ab"),
        ("colour IS NULL", "ce"),
        ("NOT (size > 5)", "a"),
        ("size > 5 OR missing = 1", "bd"),
        ("user.Size = 1 AND [colour] = 'red'", "a"),
        ("sys.Label = 'urgent'", "c"),
        ("flag", "d"),
    ],
)
def test_sql_filter(
    bus: Bus, admin: Any, make_topic: Callable[..., str], expression: str, chosen: str
) -> None:
    topic = make_topic(one={})
    admin.delete_rule(topic, "one", DEFAULT)
    admin.create_rule(topic, "one", "r", filter=SqlRuleFilter(expression))

    publish(
        bus,
        topic,
        [
            message("a", colour="red", size=1),
            message("b", colour="red", size=9),
            message("c", subject="urgent"),
            message("d", colour="blue", size=7, flag=True),
            message("e"),
        ],
    )

    assert "".join(peek(bus, topic, "one")) == chosen


@spec("parameters of a filter keep their types")
def test_sql_parameters(bus: Bus, admin: Any, make_topic: Callable[..., str]) -> None:
    topic = make_topic(one={})
    admin.delete_rule(topic, "one", DEFAULT)
    parameters: dict[str, Any] = {
        "@text": "red",
        "@limit": 5,
        "@when": dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
    }
    filtered = SqlRuleFilter("colour = @text AND size < @limit AND made > @when", parameters=parameters)
    admin.create_rule(topic, "one", "r", filter=filtered)
    later, earlier = dt.datetime(2026, 2, 1, tzinfo=dt.UTC), dt.datetime(2025, 2, 1, tzinfo=dt.UTC)

    publish(
        bus,
        topic,
        message("yes", colour="red", size=4, made=later),
        message("large", colour="red", size=5, made=later),
        message("old", colour="red", size=4, made=earlier),
    )

    assert peek(bus, topic, "one") == ["yes"]


@pytest.mark.promise("B55")
@spec("rules without action: one copy; each with action: one of its own")
def test_one_copy_for_plain_rules_and_one_for_each_action(
    bus: Bus, admin: Any, make_topic: Callable[..., str]
) -> None:
    topic = make_topic(one={})
    admin.create_rule(topic, "one", "also", filter=SqlRuleFilter("n = 1"))
    for name in ("first", "second"):
        admin.create_rule(
            topic, "one", name, filter=SqlRuleFilter("n = 1"), action=SqlRuleAction(f"SET by = '{name}'")
        )
    admin.create_rule(topic, "one", "no", filter=FalseRuleFilter(), action=SqlRuleAction("SET by = 'no'"))

    publish(bus, topic, message("x", n=1))

    copies = consume(bus, topic, "one", 3)
    assert sorted(properties_of(copies), key=lambda p: p.get("by", "")) == [
        {"n": 1},
        {"n": 1, "by": "first", "RuleName": "first"},
        {"n": 1, "by": "second", "RuleName": "second"},
    ]
    assert sorted(copy.sequence_number for copy in copies) == [1, 2, 3]
    assert {copy.enqueued_sequence_number for copy in copies} == {1}
    assert peek(bus, topic, "one") == []


@pytest.mark.promise("B56")
@spec("SET and REMOVE of user and system properties, left to right")
def test_action_sets_and_removes(bus: Bus, admin: Any, make_topic: Callable[..., str]) -> None:
    topic = make_topic(one={}, two={})
    admin.delete_rule(topic, "one", DEFAULT)
    action = "SET sys.Label = 'changed'; SET total = price * 2; SET again = total + 1; REMOVE secret; SET price = '7'"
    admin.create_rule(topic, "one", "r", filter=TrueRuleFilter(), action=SqlRuleAction(action))

    publish(bus, topic, message("x", subject="s", price=10, secret="s", kept="k"))

    (changed,) = consume(bus, topic, "one", 1)
    assert (str(changed), changed.subject) == ("x", "changed")
    assert properties_of([changed]) == [
        {"price": 7, "kept": "k", "total": 20, "again": 21, "RuleName": "r"}  # price stays a number
    ]
    (plain_copy,) = consume(bus, topic, "two", 1)
    assert plain_copy.subject == "s"
    assert properties_of([plain_copy]) == [{"price": 10, "secret": "s", "kept": "k"}]


@pytest.mark.promise("B58")
@spec("a filter that fails on a message: dead-lettered, or dropped for this one")
def test_failing_filter_follows_the_subscription_s_policy(
    bus: Bus, admin: Any, make_topic: Callable[..., str]
) -> None:
    topic = make_topic(
        told={"dead_lettering_on_filter_evaluation_exceptions": True},
        quiet={"dead_lettering_on_filter_evaluation_exceptions": False},
        other={},
    )
    for name in ("told", "quiet"):
        admin.delete_rule(topic, name, DEFAULT)
        admin.create_rule(topic, name, "r", filter=SqlRuleFilter("10 / n > 1"))

    publish(bus, topic, message("fine", n=5), message("zero", n=0))

    assert peek(bus, topic, "told") == ["fine"] == peek(bus, topic, "quiet")
    assert peek(bus, topic, "other") == ["fine", "zero"]
    (buried,) = consume(bus, topic, "told", 1, sub_queue="deadletter")
    assert reasons([buried]) == [("zero", "FilterException")]
    assert buried.dead_letter_error_description
    assert peek(bus, topic, "quiet", sub_queue="deadletter") == []


@spec("a malformed expression is refused at creation")
@pytest.mark.parametrize("expression", ["a = ", "a ==== 1", "sys.NoSuchThing = 1", "x" * 1025 + " = 1"])
def test_malformed_filter_is_refused(admin: Any, make_topic: Callable[..., str], expression: str) -> None:
    topic = make_topic(one={})

    with pytest.raises(HttpResponseError) as caught:
        admin.create_rule(topic, "one", "bad", filter=SqlRuleFilter(expression))

    assert caught.value.status_code == 400
    assert [rule.name for rule in admin.list_rules(topic, "one")] == [DEFAULT]
