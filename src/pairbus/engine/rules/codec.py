"""Rules as plain JSON and back; entity settings keep them in this form.

    {"name": …, "created_at": ms, "filter": {"kind": "sql", "expression": …, "parameters": {…}}, "action": null}

A value is ``{"type": …, "value": …}``; one with a declared type has ``declared`` and ``text`` besides.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import TYPE_CHECKING

from pairbus.amqp.types import Timestamp, Uuid
from pairbus.engine.rules.sql.action import SqlAction, compile_action
from pairbus.engine.rules.sql.declared import SPECIAL_DOUBLES, Declared
from pairbus.engine.rules.sql.filter import SqlFilter, compile_filter
from pairbus.engine.rules.sql.text import uuid_octets_from
from pairbus.engine.rules.sql.values import Duration
from pairbus.engine.rules.subscription import (
    CORRELATION_ELEMENTS,
    CorrelationFilter,
    FalseFilter,
    Rule,
    RuleFilter,
    RuleSet,
    TrueFilter,
)
from pairbus.errors import InvalidRule

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pairbus.model.entity import Settings


def rules_of(settings: Settings) -> RuleSet:
    """A subscription's rules, compiled, in the order they were made. Raises InvalidRule."""
    return RuleSet([rule_from_json(json.loads(text)) for text in settings.rules])


def rule_text(rule: Rule) -> str:
    """A rule in the form that settings keep."""
    return json.dumps(rule_to_json(rule), separators=(",", ":"))


def with_rules(settings: Settings, rules: RuleSet) -> Settings:
    return replace(settings, rules=tuple(rule_text(rule) for rule in rules.rules))


def rule_to_json(rule: Rule) -> dict[str, object]:
    """The rule as what ``json.dumps`` takes."""
    action = rule.action
    return {
        "name": rule.name,
        "created_at": rule.created_at,
        "filter": _filter_to_json(rule.filter),
        "action": None
        if action is None
        else {"expression": action.expression, "parameters": _values_to_json(action.parameters)},
    }


def rule_from_json(data: Mapping[str, object]) -> Rule:
    """The rule of what :func:`rule_to_json` gave. Raises InvalidRule for anything else."""
    return Rule(
        _text(data, "name"),
        _filter_from_json(_mapping(data.get("filter"), "filter")),
        _action_from_json(data.get("action")),
        _integer(data.get("created_at"), "created_at"),
    )


def _filter_to_json(kept: RuleFilter) -> dict[str, object]:
    if isinstance(kept, SqlFilter):
        return {
            "kind": "sql",
            "expression": kept.expression,
            "parameters": _values_to_json(kept.parameters),
        }
    if isinstance(kept, CorrelationFilter):
        return {
            "kind": "correlation",
            "fields": dict(kept.fields),
            "properties": _values_to_json(kept.properties),
        }
    return {"kind": "true" if isinstance(kept, TrueFilter) else "false"}


def _filter_from_json(data: Mapping[str, object]) -> RuleFilter:
    kind = _text(data, "kind")
    if kind == "true":
        return TrueFilter()
    if kind == "false":
        return FalseFilter()
    if kind == "sql":
        return compile_filter(_text(data, "expression"), _values_from_json(data.get("parameters")))
    if kind != "correlation":
        raise InvalidRule(f"a filter of kind {kind[:40]!r} is not known")
    fields = _mapping(data.get("fields"), "fields")
    present = {
        name: _text(fields, name) for name in CORRELATION_ELEMENTS.values() if fields.get(name) is not None
    }
    return CorrelationFilter(present, _values_from_json(data.get("properties")))


def _action_from_json(data: object) -> SqlAction | None:
    if data is None:
        return None
    action = _mapping(data, "action")
    return compile_action(_text(action, "expression"), _values_from_json(action.get("parameters")))


def _values_to_json(values: Mapping[str, object]) -> dict[str, object]:
    return {name: value_to_json(value) for name, value in values.items()}


def _values_from_json(data: object) -> dict[str, object]:
    return {name: value_from_json(value) for name, value in _mapping(data, "values").items()}


def value_to_json(value: object) -> dict[str, object]:
    """A value with its type. Raises InvalidRule for one no rule can have."""
    if isinstance(value, Declared):
        return {**value_to_json(value.value), "declared": value.type_name, "text": value.text}
    if value is None:
        return {"type": "null", "value": None}
    if isinstance(value, bool):
        return {"type": "boolean", "value": value}
    if isinstance(value, str):
        return {"type": "string", "value": str(value)}
    if isinstance(value, int):
        return {"type": "integer", "value": int(value)}
    if isinstance(value, float):
        # JSON has no infinities.
        return {"type": "double", "value": value if math.isfinite(value) else str(value)}
    if isinstance(value, bytes):
        return {"type": "binary", "value": value.hex()}
    if isinstance(value, Timestamp):
        return {"type": "instant", "value": value.ms}
    if isinstance(value, Duration):
        return {"type": "duration", "value": value.ms}
    if isinstance(value, Uuid):
        return {"type": "uuid", "value": str(value)}
    raise InvalidRule(f"a value of type {type(value).__name__} cannot be kept in a rule")


def value_from_json(data: object) -> object:
    """The value of what :func:`value_to_json` gave. Raises InvalidRule for anything else."""
    typed = _mapping(data, "value")
    value = _plain_from_json(_text(typed, "type"), typed.get("value"))
    if "declared" in typed:
        return Declared(value, _text(typed, "declared"), _text(typed, "text"))
    return value


def _plain_from_json(type_name: str, value: object) -> object:
    if type_name == "null":
        return None
    if type_name == "boolean" and isinstance(value, bool):
        return value
    if type_name == "integer":
        return _integer(value, type_name)
    if type_name == "instant":
        return Timestamp(_integer(value, type_name))
    if type_name == "duration":
        return Duration(_integer(value, type_name))
    if type_name == "double":
        return _double(value)
    if isinstance(value, str):
        return _plain_from_text(type_name, value)
    raise InvalidRule(f"a value of type {type_name[:40]!r} is not {type(value).__name__}")


def _plain_from_text(type_name: str, text: str) -> object:
    if type_name == "string":
        return text
    if type_name == "uuid":
        octets = uuid_octets_from(text)
        if octets is not None:
            return Uuid(octets)
    elif type_name == "binary":
        try:
            return bytes.fromhex(text)
        except ValueError:
            raise InvalidRule(f"a binary value is not in hexadecimal: {text[:40]!r}") from None
    raise InvalidRule(f"{text[:40]!r} is not a value of type {type_name[:40]!r}")


def _double(value: object) -> float:
    if isinstance(value, str) and value in SPECIAL_DOUBLES:
        return SPECIAL_DOUBLES[value]
    if isinstance(value, float) or (isinstance(value, int) and not isinstance(value, bool)):
        return float(value)
    raise InvalidRule(f"a double is not {type(value).__name__}")


def _integer(value: object, what: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise InvalidRule(f"{what} is not a whole number but {type(value).__name__}")


def _text(data: Mapping[str, object], name: str) -> str:
    value = data.get(name)
    if isinstance(value, str):
        return value
    raise InvalidRule(f"{name} is not a text but {type(value).__name__}")


def _mapping(data: object, what: str) -> Mapping[str, object]:
    if isinstance(data, dict) and all(isinstance(name, str) for name in data):
        return data
    raise InvalidRule(f"{what} is not an object but {type(data).__name__}")
