from __future__ import annotations

import pytest

from pairbus.amqp.types import Timestamp, Uuid
from pairbus.engine.rules.sql.values import Duration
from pairbus.engine.rules.subscription import CorrelationFilter, FalseFilter, Rule, TrueFilter
from pairbus.errors import InvalidRule
from pairbus.gateway.atom.rules import read_rule, rule_content, typed_text
from pairbus.gateway.atom.xml import SCHEMA, SCHEMA_INSTANCE, SERVICE_BUS, parse


def read(inside: str) -> Rule:
    text = f'<RuleDescription xmlns="{SERVICE_BUS}" xmlns:i="{SCHEMA_INSTANCE}" xmlns:x="{SCHEMA}">{inside}</RuleDescription>'
    return read_rule(parse(text.encode()), "r", 7)


def pair(key: str, value: str, kind: str = "x:string") -> str:
    return f'<KeyValueOfstringanyType><Key>{key}</Key><Value i:type="{kind}">{value}</Value></KeyValueOfstringanyType>'


@pytest.mark.parametrize(
    "inside",
    ["", '<Filter i:nil="true"/>', '<Filter i:type="TrueFilter"/><Action i:nil="true"/>', "<Action/>"],
)
def test_without_filter_and_action_a_rule_takes_everything(inside: str) -> None:
    rule = read(inside)

    assert isinstance(rule.filter, TrueFilter)
    assert rule.action is None
    assert (rule.name, rule.created_at) == ("r", 7)


def test_a_false_filter_is_no_expression() -> None:
    rule = read('<Filter i:type="FalseFilter"><SqlExpression>1=0</SqlExpression></Filter>')

    assert isinstance(rule.filter, FalseFilter)


def test_an_empty_field_is_tested_and_a_missing_one_is_not() -> None:
    # "At the inner levels, Service assigns the empty strings as values to the empty tags" (JavaScript SDK).
    rule = read('<Filter i:type="CorrelationFilter"><Label/><To i:nil="true"/></Filter>')

    assert isinstance(rule.filter, CorrelationFilter)
    assert rule.filter.fields == {"label": ""}
    assert "<Label></Label>" in rule_content(rule)


@pytest.mark.promise("M11")
@pytest.mark.parametrize(
    "inside",
    [
        '<Filter i:type="OtherFilter"/>',
        "<Filter/>",
        '<Filter i:type="SqlFilter"/>',
        '<Filter i:type="SqlFilter"><SqlExpression> </SqlExpression></Filter>',
        '<Action i:type="OtherAction"/>',
        '<Action i:type="SqlRuleAction"/>',
        '<Filter i:type="CorrelationFilter"><Properties><Other/></Properties></Filter>',
        f'<Filter i:type="CorrelationFilter"><Properties>{pair("a", "1")}{pair("a", "2")}</Properties></Filter>',
        f'<Filter i:type="CorrelationFilter"><Properties>{pair("a", "1")}{pair("A", "2")}</Properties></Filter>',
        f'<Filter i:type="CorrelationFilter"><Properties>{pair("a", "one", "x:int")}</Properties></Filter>',
        f'<Filter i:type="CorrelationFilter"><Properties>{pair("a", "1", "x:unheardOf")}</Properties></Filter>',
        '<Filter i:type="CorrelationFilter"><Properties><KeyValueOfstringanyType/></Properties></Filter>',
    ],
)
def test_what_is_no_rule_is_refused(inside: str) -> None:
    with pytest.raises(InvalidRule):
        read(inside)


def test_declared_types_and_texts_come_back_as_they_came() -> None:
    kinds = {"int": "007", "long": "5", "double": "1e3", "boolean": "1", "duration": "P1D", "string": " s "}
    kinds["dateTime"] = "2026-01-02T03:04:05"
    inside = "".join(pair(kind, text, f"x:{kind}") for kind, text in kinds.items())

    written = rule_content(
        read(f'<Filter i:type="CorrelationFilter"><Properties>{inside}</Properties></Filter>')
    )

    for kind, text in kinds.items():
        assert f'<Value i:type="d6p1:{kind}" xmlns:d6p1="{SCHEMA}">{text}</Value>' in written


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("text", ("string", "text")),
        (True, ("boolean", "true")),
        (False, ("boolean", "false")),
        (2**31 - 1, ("int", "2147483647")),
        (-(2**31), ("int", "-2147483648")),
        (2**31, ("long", "2147483648")),
        (0.1, ("double", "0.1")),
        (Timestamp(1_767_225_600_123), ("dateTime", "2026-01-01T00:00:00.123Z")),
        (Duration(90_000), ("duration", "PT1M30S")),
        (Uuid(bytes(range(16))), ("string", "00010203-0405-0607-0809-0a0b0c0d0e0f")),
        (b"\x00\xff", ("base64Binary", "AP8=")),
        (None, ("string", "")),
    ],
)
def test_values_that_came_over_amqp_get_a_type(value: object, expected: tuple[str, str]) -> None:
    assert typed_text(value) == expected
