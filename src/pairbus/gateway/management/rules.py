"""Management operations on a subscription's rules over AMQP, as RuleManager clients ask them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pairbus.amqp.types import Described, Int, Timestamp, ULong
from pairbus.engine.rules.codec import rules_of, with_rules
from pairbus.engine.rules.sql.action import SqlAction, compile_action
from pairbus.engine.rules.sql.filter import SqlFilter, compile_filter
from pairbus.engine.rules.subscription import (
    CORRELATION_FIELDS,
    CorrelationFilter,
    FalseFilter,
    Rule,
    RuleFilter,
    TrueFilter,
)
from pairbus.errors import ArgumentError, EntityAlreadyExists, EntityNotFound, NotAllowed
from pairbus.gateway.management.request import NoContent, Request
from pairbus.model.entity import SUBSCRIPTION
from pairbus.model.names import check_rule_name

if TYPE_CHECKING:
    from pairbus.engine.rules.subscription import RuleSet

RULE_DESCRIPTION: Final = 0x0000013700000004
EMPTY_ACTION: Final = 0x0000013700000005
SQL_ACTION: Final = 0x0000013700000006
SQL_FILTER: Final = 0x0000001370000006
TRUE_FILTER: Final = 0x0000001370000007
FALSE_FILTER: Final = 0x0000001370000008
CORRELATION_FILTER: Final = 0x0000001370000009
COMPATIBILITY_LEVEL: Final = 20
INT_MAX: Final = 2_147_483_647
RULES_MAX: Final = 2_000
PAGE_MAX: Final = 1_000


def _rules(request: Request) -> RuleSet:
    if request.entity.kind != SUBSCRIPTION:
        raise NotAllowed(f"'{request.entity.path}' is not a subscription: only those have rules.")
    return rules_of(request.entity.settings)


def _change(request: Request, rules: RuleSet) -> None:
    settings = with_rules(request.entity.settings, rules)
    request.connection.broker.namespace.update(request.entity, settings, request.now)


def add(request: Request) -> dict[str, object]:
    name = request.text("rule-name")
    rules = _rules(request)
    if rules.find(name) is not None:
        raise EntityAlreadyExists(f"{request.entity.path}/Rules/{name}")
    check_rule_name(name)
    if len(rules.rules) >= RULES_MAX:
        raise ArgumentError(f"The subscription has {RULES_MAX} rules already: remove one first.")
    description = request.value("rule-description")
    if not isinstance(description, dict):
        raise ArgumentError("'rule-description' is not a map.")
    _change(
        request, rules.with_rule(Rule(name, _filter_of(description), _action_of(description), request.now))
    )
    return {}


def remove(request: Request) -> dict[str, object]:
    name = request.text("rule-name")
    rules = _rules(request)
    if rules.find(name) is None:
        raise EntityNotFound(f"{request.entity.path}/Rules/{name}")
    _change(request, rules.without(name))
    return {}


def enumerate_rules(request: Request) -> dict[str, object]:
    """List rules by name, a page at a time."""
    top = min(request.number("top", 1, INT_MAX), PAGE_MAX)
    skip = request.number("skip", 0, INT_MAX)
    found = sorted(_rules(request).rules, key=_name_key)[skip : skip + top]
    if not found:
        raise NoContent("com.microsoft:message-not-found", "There is no rule to list.")
    return {"rules": [{"rule-description": _described(rule)} for rule in found]}


def _name_key(rule: Rule) -> str:
    return rule.name.lower()


def _filter_of(description: dict[str, object]) -> RuleFilter:
    sql = description.get("sql-filter")
    correlation = description.get("correlation-filter")
    if isinstance(sql, dict):
        return compile_filter(_expression(sql))
    if isinstance(correlation, dict):
        fields = {name.replace("-", ""): _text(correlation, name) for name in CORRELATION_FIELDS}
        properties = correlation.get("properties")
        users = properties.items() if isinstance(properties, dict) else ()
        return CorrelationFilter(fields, {str(key): value for key, value in users})
    raise ArgumentError("'rule-description' needs a 'sql-filter' or a 'correlation-filter'.")


def _action_of(description: dict[str, object]) -> SqlAction | None:
    action = description.get("sql-rule-action")
    if not isinstance(action, dict) or not action.get("expression"):
        return None
    return compile_action(_expression(action))


def _expression(data: dict[str, object]) -> str:
    expression = data.get("expression")
    if not isinstance(expression, str):
        raise ArgumentError("'expression' is not a string.")
    return expression


def _text(data: dict[str, object], name: str) -> str | None:
    value = data.get(name)
    if value is not None and not isinstance(value, str):
        raise ArgumentError(f"'{name}' of the correlation filter is not a string.")
    return value


def _described(rule: Rule) -> Described:
    action = Described(ULong(EMPTY_ACTION), [])
    if rule.action is not None:
        action = Described(ULong(SQL_ACTION), [rule.action.expression, Int(COMPATIBILITY_LEVEL)])
    return Described(
        ULong(RULE_DESCRIPTION),
        [_described_filter(rule.filter), action, rule.name, Timestamp(rule.created_at)],
    )


def _described_filter(kept: RuleFilter) -> Described:
    if isinstance(kept, TrueFilter):
        return Described(ULong(TRUE_FILTER), [])
    if isinstance(kept, FalseFilter):
        return Described(ULong(FALSE_FILTER), [])
    if isinstance(kept, SqlFilter):
        return Described(ULong(SQL_FILTER), [kept.expression, Int(COMPATIBILITY_LEVEL)])
    return Described(
        ULong(CORRELATION_FILTER),
        [*(kept.fields.get(name.replace("-", "")) for name in CORRELATION_FIELDS), dict(kept.properties)],
    )
