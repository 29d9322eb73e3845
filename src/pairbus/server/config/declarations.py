"""What a configuration file declares: entities, access rules, quotas. Microsoft's emulator's JSON is read as it is.

    {"UserConfig": {"Namespaces": [{"Name": …, "Queues": […], "Topics": [{…, "Subscriptions": [{…, "Rules": […]}]}]}],
                    "Logging": {"Type": "File"}},
     "PairBus": {"AccessRules": [{"Name": …, "Rights": […], "PrimaryKeyEnv": …}], "Quotas": {…}, "TlsNames": […]}}

Every error names the key path and the line. What a file leaves out keeps its default.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from pairbus.engine.rules.codec import with_rules
from pairbus.engine.rules.sql.action import SqlAction, compile_action
from pairbus.engine.rules.sql.filter import compile_filter
from pairbus.engine.rules.subscription import (
    CORRELATION_ELEMENTS,
    DEFAULT_RULE_NAME,
    CorrelationFilter,
    FalseFilter,
    Rule,
    RuleFilter,
    RuleSet,
    TrueFilter,
)
from pairbus.errors import Refusal, UsageError
from pairbus.gateway.atom.times import duration_ms
from pairbus.model.access import RIGHTS, ROOT_RULE, AccessRule, check_new_key, check_new_name
from pairbus.model.entity import (
    ACCESS_RULES_MAX,
    DURATION,
    FLAG,
    NUMBER,
    QUEUE,
    SUBSCRIPTION,
    TOPIC,
    Settings,
    check_settings,
    settings_of,
)
from pairbus.model.names import check_entity_name, check_rule_name, check_subscription_name, subscription_path
from pairbus.server.config.located_json import Located, parse

T = TypeVar("T")
ReadSecret = Callable[[str, str], str]
"""Gives the secret that lies in (``"Env"`` or ``"File"``, name); raises UsageError when there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessRuleDeclaration:
    """An access rule to have. A key that is None is made at random when the rule is first made."""

    name: str
    rights: tuple[str, ...]
    primary_key: str | None = field(default=None, repr=False)
    secondary_key: str | None = field(default=None, repr=False)

    def check(self) -> None:
        """Refuse a rule that the namespace would refuse later, while the file and the line are known."""
        check_new_name(self.name)
        for key in (self.primary_key, self.secondary_key):
            if key is not None:
                check_new_key(self.name, key)
        random_key = "x"
        AccessRule(
            name=self.name,
            rights=self.rights,
            primary_key=self.primary_key or random_key,
            secondary_key=self.secondary_key or random_key,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EntityDeclaration:
    """An entity to have; one that exists already is left as it is."""

    kind: int
    path: str
    settings: Settings
    access_rules: tuple[AccessRuleDeclaration, ...] = ()
    where: str = ""
    """Key path and line, for errors that show only when it is made."""
    places: Mapping[str, str] = field(default_factory=dict)
    """The same of each property."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Declarations:
    """Everything that a configuration file declares."""

    namespace: str | None = None
    entities: tuple[EntityDeclaration, ...] = ()
    access_rules: tuple[AccessRuleDeclaration, ...] = ()
    quotas: Mapping[str, int] = field(default_factory=dict)
    tls_names: tuple[str, ...] = ()
    file: str = ""
    """Where all this was read."""


_HOST_NAME: Final = re.compile(r"(\*\.)?[A-Za-z0-9_]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9_])?\.?")
"""A name for a certificate: letters, digits, hyphens and dots, perhaps with a wildcard in front."""
QUOTAS: Final = ("MaxConnections", "MaxHttpBodyBytes")
_CORRELATION: Final = {**CORRELATION_ELEMENTS, "Subject": "label"}


def read_declarations(text: str, read_secret: ReadSecret) -> Declarations:
    """What the file's text declares. Raises UsageError naming key path and line."""
    whole = parse(text)
    if whole.value is None:
        # Inside the file null stands for what is left out; a file that is nothing else declares nothing by mistake.
        raise whole.fail("expected an object {…}")
    root = _object(whole, ("UserConfig", "PairBus"))
    namespace: str | None = None
    entities: list[EntityDeclaration] = []
    if "UserConfig" in root:
        user = _object(root["UserConfig"], ("Namespaces", "Logging"))
        namespaces = _list(user.get("Namespaces"))
        if len(namespaces) > 1:
            raise namespaces[1].fail("a broker serves one namespace; start another broker for the second")
        for item in namespaces:
            namespace, entities = _namespace(item, read_secret)
    ours = _object(root.get("PairBus"), ("AccessRules", "Quotas", "TlsNames"))
    return Declarations(
        namespace=namespace,
        entities=tuple(entities),
        access_rules=_access_rules(ours.get("AccessRules"), read_secret, with_root=True),
        quotas=_quotas(ours.get("Quotas")),
        tls_names=tuple(_tls_name(name) for name in _list(ours.get("TlsNames"))),
    )


def is_tls_name(text: str) -> bool:
    """Whether a certificate can be for this: a host name or an IP address."""
    if _HOST_NAME.fullmatch(text):
        return True
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _tls_name(item: Located) -> str:
    name = _text(item)
    if not is_tls_name(name):
        raise item.fail(f"{name!r} is neither a host name nor an IP address")
    return name


def _namespace(item: Located, read_secret: ReadSecret) -> tuple[str, list[EntityDeclaration]]:
    keys = _object(item, ("Name", "Queues", "Topics"))
    name = _required_text(item, keys, "Name")
    entities: list[EntityDeclaration] = []
    for queue in _list(keys.get("Queues")):
        parts = _object(queue, ("Name", "Properties", "AuthorizationRules"))
        path = _named(queue, parts, check_entity_name)
        entities.append(_entity(QUEUE, path, queue, parts, read_secret))
    for topic in _list(keys.get("Topics")):
        parts = _object(topic, ("Name", "Properties", "Subscriptions", "AuthorizationRules"))
        path = _named(topic, parts, check_entity_name)
        entities.append(_entity(TOPIC, path, topic, parts, read_secret))
        entities += [_subscription(path, sub, read_secret) for sub in _list(parts.get("Subscriptions"))]
    seen: dict[str, EntityDeclaration] = {}
    for entity in entities:
        if entity.path.lower() in seen:
            raise UsageError(
                f"{entity.where}: '{entity.path}' is declared twice, first at {seen[entity.path.lower()].where}"
            )
        seen[entity.path.lower()] = entity
    return name, entities


def _subscription(topic: str, item: Located, read_secret: ReadSecret) -> EntityDeclaration:
    parts = _object(item, ("Name", "Properties", "Rules"))
    path = subscription_path(topic, _named(item, parts, check_subscription_name))
    entity = _entity(SUBSCRIPTION, path, item, parts, read_secret)
    rules = [_rule(rule) for rule in _list(parts.get("Rules"))] or [Rule(DEFAULT_RULE_NAME, TrueFilter())]
    names = [rule.name.lower() for rule in rules]
    if len(set(names)) != len(names):
        raise item.fail("two rules of the subscription have the same name")
    return replace(entity, settings=with_rules(entity.settings, RuleSet(rules)))


def _entity(
    kind: int, path: str, item: Located, parts: dict[str, Located], read_secret: ReadSecret
) -> EntityDeclaration:
    known = {setting.element: setting for setting in settings_of(kind)}
    given: dict[str, object] = {}
    properties = _object(parts.get("Properties"), tuple(known))
    for key, value in properties.items():
        # The emulator's own examples write "" for a forward that is not wanted.
        if value.value is not None and value.value != "":
            given[known[key].field] = _setting(value, known[key].holds)
    settings = replace(Settings(), **given)  # type: ignore[arg-type]
    try:
        check_settings(settings)
    except Refusal as error:
        culprit = next((value for key, value in properties.items() if key in error.description), item)
        raise culprit.fail(error.description) from error
    return EntityDeclaration(
        kind=kind,
        path=path,
        settings=settings,
        access_rules=_access_rules(parts.get("AuthorizationRules"), read_secret),
        where=item.place,
        places={key: value.place for key, value in properties.items()},
    )


def _setting(value: Located, holds: str) -> object:
    if holds == DURATION:
        return _located(value, lambda: duration_ms(value.path.rpartition(".")[2], _text(value)))
    if holds == FLAG:
        return _boolean(value)
    return _integer(value) if holds == NUMBER else _text(value)


def _rule(item: Located) -> Rule:
    parts = _object(item, ("Name", "Properties"))
    name = _named(item, parts, check_rule_name)
    keys = _object(parts.get("Properties"), ("FilterType", "CorrelationFilter", "SqlFilter", "Action"))
    where = parts.get("Properties", item)
    return _located(where, lambda: Rule(name, _filter(where, keys), _action(keys.get("Action"))))


def _filter(item: Located, keys: dict[str, Located]) -> RuleFilter:
    kind = _text(keys["FilterType"]).lower() if "FilterType" in keys else ""
    if kind == "sql" or (not kind and "SqlFilter" in keys):
        if "SqlFilter" not in keys:
            raise item.fail("the key 'SqlFilter' is missing")
        where = keys["SqlFilter"]
        parts = _object(where, ("SqlExpression",))
        expression = _required_text(where, parts, "SqlExpression")
        return _located(parts["SqlExpression"], lambda: compile_filter(expression, {}))
    if kind == "correlation" or (not kind and "CorrelationFilter" in keys):
        return _correlation(_object(keys.get("CorrelationFilter"), (*_CORRELATION, "Properties")))
    if kind in ("", "true"):
        return TrueFilter()
    if kind == "false":
        return FalseFilter()
    raise keys["FilterType"].fail("FilterType is Sql, Correlation, True or False")


def _correlation(keys: dict[str, Located]) -> RuleFilter:
    fields: dict[str, str | None] = {
        _CORRELATION[key]: _text(value) for key, value in keys.items() if key != "Properties"
    }
    properties: dict[str, object] = {}
    for name, value in _object(keys.get("Properties"), None).items():
        if not isinstance(value.value, (str, int, float)):
            raise value.fail("a property to compare with is a text, a number, true or false")
        properties[name] = value.value
    return CorrelationFilter(fields, properties)


def _action(item: Located | None) -> SqlAction | None:
    if item is None or item.value is None:
        return None
    keys = _object(item, ("SqlExpression",))
    expression = _text(keys["SqlExpression"]) if "SqlExpression" in keys else ""
    if not expression.strip():
        return None
    return _located(keys["SqlExpression"], lambda: compile_action(expression, {}))


def _access_rules(
    item: Located | None, read_secret: ReadSecret, *, with_root: bool = False
) -> tuple[AccessRuleDeclaration, ...]:
    """The rules of a list. ``with_root``: of the namespace, which has the root rule, declared or not."""
    keys = ("PrimaryKey", "SecondaryKey")
    allowed = ("Name", "Rights", *(key + form for key in keys for form in ("", "Env", "File")))
    rules = []
    seen: dict[str, Located] = {}
    for rule in _list(item):
        parts = _object(rule, allowed)
        rights = tuple(_text(right) for right in _list(parts.get("Rights")))
        if not rights or any(right not in RIGHTS for right in rights):
            raise parts.get("Rights", rule).fail(f"Rights is a list of one or more of {', '.join(RIGHTS)}")
        declared = AccessRuleDeclaration(
            name=_required_text(rule, parts, "Name"),
            rights=rights,
            primary_key=_secret(parts, "PrimaryKey", read_secret),
            secondary_key=_secret(parts, "SecondaryKey", read_secret),
        )
        _located(rule, declared.check)
        if declared.name in seen:
            raise rule.fail(
                f"the access rule '{declared.name}' is declared twice, first at {seen[declared.name].place}"
            )
        seen[declared.name] = rule
        if len(seen.keys() | ({ROOT_RULE} if with_root else set())) > ACCESS_RULES_MAX:
            counted = f", with {ROOT_RULE}" if with_root else ""
            raise rule.fail(f"at most {ACCESS_RULES_MAX} access rules are allowed{counted}: remove one")
        rules.append(declared)
    return tuple(rules)


def _secret(parts: dict[str, Located], key: str, read_secret: ReadSecret) -> str | None:
    given = [(form, parts[key + form]) for form in ("", "Env", "File") if key + form in parts]
    if len(given) > 1:
        raise given[1][1].fail(f"{key} is given in two ways; keep one")
    for form, value in given:
        text = _text(value)
        if not form and not text:
            raise value.fail(f"the key is empty: write one, or leave {key} out, and a random one is made")
        try:
            return text if not form else read_secret(form, text)
        except UsageError as error:
            raise value.fail(str(error)) from error
    return None


def _quotas(item: Located | None) -> dict[str, int]:
    quotas = {key: (_integer(value), value) for key, value in _object(item, QUOTAS).items()}
    for number, where in quotas.values():
        if number < 1:
            raise where.fail(f"a quota is at least 1, not {number}")
    return {key: number for key, (number, _) in quotas.items()}


# Shapes.


def _object(item: Located | None, allowed: tuple[str, ...] | None) -> dict[str, Located]:
    """An object's members; one that is absent or null has none. Unknown keys are refused, with the known ones."""
    if item is None or item.value is None:
        return {}
    if not isinstance(item.value, dict):
        raise item.fail("expected an object {…}")
    members: dict[str, Located] = item.value
    if allowed is not None:
        for key, value in members.items():
            if key not in allowed:
                raise value.fail(f"the key {key!r} is not known here; known are {', '.join(allowed)}")
    return members


def _list(item: Located | None) -> list[Located]:
    if item is None or item.value is None:
        return []
    if not isinstance(item.value, list):
        raise item.fail("expected a list […]")
    return item.value


def _text(item: Located) -> str:
    if not isinstance(item.value, str):
        raise item.fail("expected a text in double quotes")
    return item.value


def _integer(item: Located) -> int:
    if isinstance(item.value, bool) or not isinstance(item.value, int):
        raise item.fail("expected a whole number")
    return item.value


def _boolean(item: Located) -> bool:
    if not isinstance(item.value, bool):
        raise item.fail("expected true or false")
    return item.value


def _required_text(item: Located, parts: dict[str, Located], key: str) -> str:
    if key not in parts:
        raise item.fail(f"the key {key!r} is missing")
    return _text(parts[key])


def _named(item: Located, parts: dict[str, Located], check: Callable[[str], None]) -> str:
    name = _required_text(item, parts, "Name")
    _located(parts["Name"], lambda: check(name))
    return name


def _located(item: Located, make: Callable[[], T]) -> T:
    """What ``make`` gives; its refusal is reported with the item's place."""
    try:
        return make()
    except Refusal as error:
        raise item.fail(error.description) from error
