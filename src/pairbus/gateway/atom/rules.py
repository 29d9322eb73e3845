"""A subscription's rules in the management API's XML, both ways.

Values keep the type and text they were declared with (``sql_declared``), so that a client reads back what it wrote.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Final

from pairbus.amqp.types import Timestamp, Uuid
from pairbus.engine.rules.sql.action import SqlAction, compile_action
from pairbus.engine.rules.sql.declared import Declared, declared
from pairbus.engine.rules.sql.filter import compile_filter
from pairbus.engine.rules.sql.text import duration_text, instant_text
from pairbus.engine.rules.sql.values import Duration
from pairbus.engine.rules.subscription import (
    CORRELATION_ELEMENTS,
    CorrelationFilter,
    FalseFilter,
    Rule,
    TrueFilter,
)
from pairbus.errors import InvalidRule
from pairbus.gateway.atom.times import instant
from pairbus.gateway.atom.xml import SCHEMA, Node, element, escaped

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pairbus.engine.rules.subscription import RuleFilter

COMPATIBILITY_LEVEL: Final = "20"
PAIR: Final = "KeyValueOfstringanyType"
PREFIX: Final = "d6p1"
"""The JavaScript client cuts the first five characters off a type, so the prefix must have four."""
INT32_MIN: Final = -(2**31)
INT32_MAX: Final = 2**31 - 1


# --- reading ----------------------------------------------------------------------------------------


def read_rule(node: Node, name: str, created_at: int) -> Rule:
    """The rule of a RuleDescription, compiled. Raises InvalidRule when filter or action cannot be understood."""
    return Rule(name, _read_filter(node.child("Filter")), _read_action(node.child("Action")), created_at)


def _read_filter(node: Node | None) -> RuleFilter:
    if node is None or node.is_nil or node.type_name == "TrueFilter":
        return TrueFilter()
    if node.type_name == "FalseFilter":
        return FalseFilter()
    if node.type_name == "SqlFilter":
        return compile_filter(_expression(node), _read_pairs(node.child("Parameters")))
    if node.type_name == "CorrelationFilter":
        fields = {key: _text(node, name) for name, key in CORRELATION_ELEMENTS.items()}
        return CorrelationFilter(fields, _read_pairs(node.child("Properties")))
    raise InvalidRule(
        f"The filter's type is '{node.type_name[:80]}': "
        "it must be SqlFilter, CorrelationFilter, TrueFilter or FalseFilter."
    )


def _read_action(node: Node | None) -> SqlAction | None:
    if node is None or node.is_nil or node.type_name in ("", "EmptyRuleAction"):
        return None
    if node.type_name != "SqlRuleAction":
        raise InvalidRule(
            f"The action's type is '{node.type_name[:80]}': it must be SqlRuleAction or EmptyRuleAction."
        )
    return compile_action(_expression(node), _read_pairs(node.child("Parameters")))


def _expression(node: Node) -> str:
    text = _text(node, "SqlExpression")
    if text is None or not text.strip():
        raise InvalidRule(f"The {node.name.lower()} of type {node.type_name} has no SqlExpression.")
    return text


def _text(node: Node, name: str) -> str | None:
    child = node.child(name)
    return None if child is None or child.is_nil else child.text


def _read_pairs(node: Node | None) -> dict[str, object]:
    pairs: dict[str, object] = {}
    for pair in node.children if node is not None else []:
        key, value = pair.child("Key"), pair.child("Value")
        if pair.name != PAIR or key is None or value is None:
            raise InvalidRule(
                f"Every entry of Parameters and Properties must be a {PAIR} with Key and Value."
            )
        if key.text in pairs:
            raise InvalidRule(f"'{key.text[:80]}' is given twice.")
        pairs[key.text] = None if value.is_nil else declared(value.type_name or "string", value.text)
    return pairs


# --- writing ----------------------------------------------------------------------------------------


def rule_content(rule: Rule) -> str:
    """The children of a RuleDescription."""
    return (
        _filter_element(rule.filter)
        + _action_element(rule.action)
        + element("CreatedAt", instant(rule.created_at))
        + element("Name", rule.name)
    )


def _filter_element(rule_filter: RuleFilter) -> str:
    if isinstance(rule_filter, TrueFilter):
        return f'<Filter i:type="TrueFilter">{_sql("1=1", {})}</Filter>'
    if isinstance(rule_filter, FalseFilter):
        return f'<Filter i:type="FalseFilter">{_sql("1=0", {})}</Filter>'
    if isinstance(rule_filter, CorrelationFilter):
        fields = "".join(
            element(name, rule_filter.fields[key])
            for name, key in CORRELATION_ELEMENTS.items()
            if key in rule_filter.fields
        )
        properties = _pairs("Properties", rule_filter.properties)
        return f'<Filter i:type="CorrelationFilter">{fields}{properties}</Filter>'
    return f'<Filter i:type="SqlFilter">{_sql(rule_filter.expression, rule_filter.parameters)}</Filter>'


def _action_element(action: SqlAction | None) -> str:
    if action is None:
        return '<Action i:type="EmptyRuleAction"/>'
    return f'<Action i:type="SqlRuleAction">{_sql(action.expression, action.parameters)}</Action>'


def _sql(expression: str, parameters: Mapping[str, object]) -> str:
    return (
        element("SqlExpression", expression)
        + element("CompatibilityLevel", COMPATIBILITY_LEVEL)
        + (_pairs("Parameters", parameters) if parameters else "")
        + "<RequiresPreprocessing>true</RequiresPreprocessing>"
    )


def _pairs(name: str, values: Mapping[str, object]) -> str:
    if not values:
        return f"<{name}/>"
    pairs = [
        f"<{PAIR}>{element('Key', key)}{_value_element(value)}</{PAIR}>" for key, value in values.items()
    ]
    return f"<{name}>{''.join(pairs)}</{name}>"


def _value_element(value: object) -> str:
    type_name, text = typed_text(value)
    opened = f'Value i:type="{PREFIX}:{type_name}" xmlns:{PREFIX}="{SCHEMA}"'
    return f"<{opened}>{escaped(text)}</Value>"


def typed_text(value: object) -> tuple[str, str]:
    """The XML schema type and text of a value; those it was declared with where it was declared."""
    if isinstance(value, Declared):
        return value.type_name, value.text
    if isinstance(value, bool):
        return "boolean", "true" if value else "false"
    if isinstance(value, Timestamp):
        return "dateTime", instant_text(value.ms)
    if isinstance(value, Duration):
        return "duration", duration_text(value.ms)
    if isinstance(value, int):
        return ("int" if INT32_MIN <= value <= INT32_MAX else "long"), str(int(value))
    if isinstance(value, float):
        return "double", repr(float(value))
    if isinstance(value, Uuid):
        return "string", str(value)
    if isinstance(value, bytes):
        return "base64Binary", base64.b64encode(value).decode("ascii")
    # A null has no type, and the Python client cannot read a value without one.
    return "string", value if isinstance(value, str) else ""
