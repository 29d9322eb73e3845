"""What a management request asks for: the XML of an entry becomes settings.

Rule 1: a missing element means the default. An update replaces everything that can be written, so there a missing
        element means the default as well, except where that would change what cannot change after creation.
Rule 2: elements that only the broker writes (counts, times, sizes) are ignored, for clients send back what they read.
Rule 3: ranges are the model's business (``check_settings``); here a text only has to be of its type.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from pairbus.engine.rules.sql.text import integer_from
from pairbus.errors import ArgumentError
from pairbus.gateway.atom.times import duration_ms, instant_ms
from pairbus.gateway.atom.xml import ATOM, SERVICE_BUS, Node, parse
from pairbus.model.access import AccessRule, check_new_key, check_new_name
from pairbus.model.entity import (
    ACCESS_RULES_MAX,
    DURATION,
    FLAG,
    MAX_MESSAGE_KB_MAX,
    MAX_SIZE_MB_MAX,
    NUMBER,
    PATH,
    SUBSCRIPTION,
    TOPIC,
    Setting,
    Settings,
    settings_of,
)

VERSION_OLDEST: Final = "2017-04"
VERSIONS_KNOWN: Final = frozenset(
    (
        "2012-03", "2012-08", "2013-04", "2013-07", "2013-08", "2013-10", "2014-01", "2014-05", "2014-09",
        "2015-01", "2016-07", VERSION_OLDEST, "2021-05", "2024-01", "2024-05",
    )
)  # fmt: skip
"""Versions of the API that clients speak. Those before ``VERSION_OLDEST`` are answered as that one."""
VERSION_MESSAGE_SIZE: Final = "2021-05"
"""From this version on clients know MaxMessageSizeInKilobytes."""
VERSION_NEWEST: Final = "2024-05"
VERSION_FILTER_COUNTS: Final = "2024-05"
"""From this version on clients know SqlFilterCount and CorrelationFilterCount."""

ENTITY_ELEMENTS: Final = ("QueueDescription", "TopicDescription", "SubscriptionDescription")
"""By kind of entity."""
RULE_ELEMENT: Final = "RuleDescription"

SHARED_ACCESS_RULE: Final = "SharedAccessAuthorizationRule"
SHARED_ACCESS_CLAIM: Final = "SharedAccessKey"
INTEGER_MAX: Final = 2**63 - 1
LARGE_MESSAGE_KB_MIN: Final = 1_024
"""The least that can be asked for: below it there is only the default."""
PARTITIONS: Final = 16
"""Of a partitioned entity on the service; the size that is asked for is that of one."""


def read_description(body: bytes) -> Node:
    """The description inside an Atom entry: ``entry/content/*Description``. Raises ArgumentError."""
    root = parse(body)
    if root.name != "entry" or root.namespace != ATOM:
        raise ArgumentError(
            f"The request's body is a <{root.name}>: it must be an <entry> of the namespace {ATOM}."
        )
    content = root.child("content", ATOM)
    if content is None or len(content.children) != 1:
        raise ArgumentError("The request's entry needs one <content> with one description in it.")
    description = content.children[0]
    if description.namespace != SERVICE_BUS:
        raise ArgumentError(f"<{description.name}> must be of the namespace {SERVICE_BUS}.")
    return description


def read_settings(kind: int, node: Node, old: Settings | None, version: str, now: int) -> Settings:
    """The settings of an entity; ``old`` are those it has when this is an update. A subscription keeps its rules as they were;
    the caller adds those of a new one.
    """
    base = _DEFAULTS if old is None else old
    values: dict[str, object] = {}
    for setting in settings_of(kind):
        default = getattr(base if setting.is_fixed else _DEFAULTS, setting.field)
        values[setting.field] = _read(node, setting, default)
    if kind == SUBSCRIPTION:
        values["max_message_kb"] = base.max_message_kb
    else:
        _refuse_true(node, "IsAnonymousAccessible", "anonymous access is not offered")
        if (
            kind == TOPIC
        ):  # the service reads it of topics only, and passes over elements that it does not know
            _refuse_true(node, "EnableSubscriptionPartitioning", "partitioned subscriptions are not offered")
        values["max_size_mb"] = _size(node, old)
        values["max_message_kb"] = _message_size(node, base, version)
        values["access_rules"] = read_access_rules(node, base.access_rules, now)
    created_at = base.created_at or now
    settings = replace(_DEFAULTS, rules=base.rules, created_at=created_at, updated_at=now)
    return replace(settings, **values)  # type: ignore[arg-type]


def _read(node: Node, setting: Setting, default: object) -> object:
    name = setting.element
    if setting.holds == PATH:
        return _destination(node, name)
    if setting.field == "user_metadata":
        # Text with its white space; empty is the same as absent.
        child = node.child(name)
        return None if child is None or child.is_nil else child.text or None
    text = node.value(name)
    if text is None:
        return default
    if setting.holds == DURATION:
        return duration_ms(name, text)
    if setting.holds == FLAG:
        return _flag_of(name, text)
    return _integer_of(name, text) if setting.holds == NUMBER else text


def read_access_rules(node: Node, old: tuple[AccessRule, ...], now: int) -> tuple[AccessRule, ...]:
    """The shared access rules of a queue or topic; absent means none."""
    parent = node.child("AuthorizationRules")
    if parent is None:
        return ()
    if len(parent.children) > ACCESS_RULES_MAX:
        raise ArgumentError(
            f"{len(parent.children)} authorization rules: at most {ACCESS_RULES_MAX} are allowed on an entity."
        )
    before = {rule.name: rule for rule in old}
    rules: dict[str, AccessRule] = {}
    for child in parent.children:
        rule = _access_rule(child, before, now)
        if rule.name in rules:
            raise ArgumentError(f"The authorization rule '{rule.name}' is given twice: names must differ.")
        rules[rule.name] = rule
    return tuple(rules.values())


def _access_rule(node: Node, before: dict[str, AccessRule], now: int) -> AccessRule:
    if node.name != "AuthorizationRule" or node.type_name not in ("", SHARED_ACCESS_RULE):
        raise ArgumentError(
            f"AuthorizationRules holds a {node.name} of type '{node.type_name}': only {SHARED_ACCESS_RULE} is offered."
        )
    claim = node.value("ClaimType")
    if claim not in (None, SHARED_ACCESS_CLAIM):
        raise ArgumentError(f"ClaimType is '{claim}': only {SHARED_ACCESS_CLAIM} is offered.")
    name = node.value("KeyName") or ""
    rights = node.child("Rights")
    known = before.get(name)
    primary, secondary = node.value("PrimaryKey") or "", node.value("SecondaryKey") or ""
    if known is None:
        check_new_name(name)
    for key in (primary, secondary):
        if known is None or key not in (known.primary_key, known.secondary_key):
            check_new_key(name, key, is_needed=True)
    return AccessRule(
        name=name,
        rights=tuple(right.text.strip() for right in rights.children) if rights is not None else (),
        primary_key=primary,
        secondary_key=secondary,
        created_at=_instant(node, "CreatedTime", known.created_at if known is not None else now),
        modified_at=_instant(node, "ModifiedTime", now),
    )


def _instant(node: Node, name: str, default: int) -> int:
    text = node.value(name)
    return default if text is None else instant_ms(name, text)


def _integer(node: Node, name: str, default: int) -> int:
    text = node.value(name)
    return default if text is None else _integer_of(name, text)


def _integer_of(name: str, text: str) -> int:
    value = integer_from(text)
    if value is None or abs(value) > INTEGER_MAX:
        raise ArgumentError(f"{name} is '{text[:80]}': it must be an integer.")
    return value


def _flag(node: Node, name: str, default: bool) -> bool:
    text = node.value(name)
    return default if text is None else _flag_of(name, text)


def _flag_of(name: str, text: str) -> bool:
    if text in ("true", "1", "True"):
        return True
    if text in ("false", "0", "False"):
        return False
    raise ArgumentError(f"{name} is '{text[:80]}': it must be true or false.")


def _destination(node: Node, name: str) -> str | None:
    """The path of the entity to forward to. Clients write an absolute address; its host is ours under some name."""
    text = node.value(name)
    if text is None:
        return None
    scheme, separator, rest = text.partition("://")
    if separator:
        if scheme.lower() not in ("sb", "https", "http", "amqp", "amqps"):
            raise ArgumentError(
                f"{name} is '{text[:300]}': it must be a path or an address such as sb://host/path."
            )
        text = rest.partition("/")[2]
    path = text.strip("/")
    if not path:
        raise ArgumentError(f"{name} names no entity: give its path.")
    return path


def _size(node: Node, old: Settings | None) -> int:
    """The largest size of an entity. As on the service, a partitioned entity is given the size of one partition and has 16 of them.

    What it tells afterwards is the size of all, and that may be sent back.
    """
    size = _integer(node, "MaxSizeInMegabytes", _DEFAULTS.max_size_mb)
    is_partitioned = _flag(node, "EnablePartitioning", old is not None and old.enable_partitioning)
    is_whole = size * PARTITIONS > MAX_SIZE_MB_MAX or (old is not None and size == old.max_size_mb)
    return size * PARTITIONS if is_partitioned and not is_whole else size


def _message_size(node: Node, base: Settings, version: str) -> int:
    """The largest message. Service Bus offers this on its Premium tier only; here every entity takes it, up to
    the model's limit, although the namespace calls itself Standard as the clients' own tests expect.
    """
    if version < VERSION_MESSAGE_SIZE:
        if node.value("MaxMessageSizeInKilobytes") is not None:
            raise ArgumentError(
                f"MaxMessageSizeInKilobytes is not part of api-version {version}: "
                f"leave it out or use {VERSION_MESSAGE_SIZE} or later."
            )
        # A client that has never heard of the setting cannot have meant to change it.
        return base.max_message_kb
    size = _integer(node, "MaxMessageSizeInKilobytes", _DEFAULTS.max_message_kb)
    # What an entity has already may be sent back, and so may the default, which is the Standard tier's limit.
    if size not in (_DEFAULTS.max_message_kb, base.max_message_kb) and not (
        LARGE_MESSAGE_KB_MIN <= size <= MAX_MESSAGE_KB_MAX
    ):
        raise ArgumentError(
            f"SubCode=40000. The property value for 'MaxMessageSizeInKilobytes' must be between {LARGE_MESSAGE_KB_MIN} "
            f"and {MAX_MESSAGE_KB_MAX}, or {_DEFAULTS.max_message_kb}; it is {size}."
        )
    return size


def _refuse_true(node: Node, name: str, reason: str) -> None:
    if _flag(node, name, False):
        raise ArgumentError(f"{name} is true: {reason}; leave it false.")


_DEFAULTS: Final = Settings()
