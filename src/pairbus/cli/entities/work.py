"""What the ``entity`` commands ask of the official administration client, and how its answers are shown."""

from __future__ import annotations

import inspect
import re
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from pairbus.cli.kit.namespace import QUEUE_OR_TOPIC, Target, find_target
from pairbus.errors import UsageError
from pairbus.model.entity import DURATION, FLAG, NUMBER, SETTINGS
from pairbus.reports.text import duration_ms

if TYPE_CHECKING:
    from azure.servicebus.management import ServiceBusAdministrationClient

KINDS: Final = ("queue", "topic", "subscription", "rule")
FLAGS: Final = frozenset(setting.sdk_name for setting in SETTINGS if setting.holds == FLAG)
LIST_COLUMNS: Final = {
    "active_message_count": "active",
    "dead_letter_message_count": "dead_letter",
    "scheduled_message_count": "scheduled",
    "subscription_count": "subscriptions",
}
"""The official client's counts that a list shows, and the names of their columns."""
ROW_ORDER: Final = ("kind", "name", *LIST_COLUMNS.values(), "filter")
DURATIONS: Final = frozenset(setting.sdk_name for setting in SETTINGS if setting.holds == DURATION)
UNLIMITED: Final = "unlimited"
UNLIMITED_DAYS: Final = 10_000_000
_ISO: Final = re.compile(r"P(?=[\dT])(?:\d+D)?(?:T(?=\d)(?:\d+H)?(?:\d+M)?(?:\d+(?:\.\d{1,7})?S)?)?")
_CLOCK: Final = re.compile(r"(?:(\d{1,8}) days?, )?(\d{1,6}):(\d{2}):(\d{2})")
"""As ``entity show`` prints a length of time."""
UNLIMITED_TEXT: Final = "P10675199DT2H48M5.4775807S"
"""The longest time that the management API can write; it stands for no limit."""
NUMBERS: Final = frozenset(setting.sdk_name for setting in SETTINGS if setting.holds == NUMBER)


def rows_of(client: ServiceBusAdministrationClient, path: str | None) -> list[dict[str, object]]:
    """What a list shows: all queues and topics, or what lies under a path."""
    if path is None:
        counted = ("active_message_count", "dead_letter_message_count", "scheduled_message_count")
        queues = [
            _row("queue", counts.name, counts, *counted) for counts in client.list_queues_runtime_properties()
        ]
        topics = [
            _row("topic", counts.name, counts, "scheduled_message_count", "subscription_count")
            for counts in client.list_topics_runtime_properties()
        ]
        return queues + topics
    target = find_target(path)
    if target.kind == "subscription":
        return [
            {"kind": "rule", "name": rule.name, "filter": _expression_of(rule.filter)}
            for rule in client.list_rules(target.name, target.subscription)
        ]
    from azure.core.exceptions import ResourceNotFoundError

    try:
        found = list(client.list_subscriptions_runtime_properties(target.name))
    except ResourceNotFoundError:
        client.get_queue(target.name)  # raises the same where there is no queue of that name either
        raise UsageError(
            f"'{path}' is a queue and has no subscriptions: pairbus entity show {path} shows it"
        ) from None
    return [
        _row("subscription", counts.name, counts, "active_message_count", "dead_letter_message_count")
        for counts in found
    ]


def _row(kind: str, name: str | None, counts: Any, *names: str) -> dict[str, object]:
    row: dict[str, object] = {"kind": kind, "name": name}
    for count in names:
        row[LIST_COLUMNS[count]] = getattr(counts, count)
    return row


def read_entity(client: ServiceBusAdministrationClient, target: Target) -> tuple[str, Any, Any]:
    """What a path names, its settings and its counts."""
    if target.kind == "rule":
        return "rule", client.get_rule(target.name, target.subscription, target.rule), None
    if target.kind == "subscription":
        names = (target.name, target.subscription)
        return (
            "subscription",
            client.get_subscription(*names),
            client.get_subscription_runtime_properties(*names),
        )
    if _is_topic(client, target.name):
        return "topic", client.get_topic(target.name), client.get_topic_runtime_properties(target.name)
    return "queue", client.get_queue(target.name), client.get_queue_runtime_properties(target.name)


def _is_topic(client: ServiceBusAdministrationClient, name: str) -> bool:
    # A queue and a topic share one address, and the client cannot say which it found; only a topic can list
    # its subscriptions.
    from azure.core.exceptions import HttpResponseError

    try:
        next(iter(client.list_subscriptions(name, max_page_size=1)), None)
    except HttpResponseError:
        return False
    return True


def create_entity(
    client: Any,
    kind: str,
    target: Target,
    settings: dict[str, object],
    expression: str | None,
    action: str | None,
) -> None:
    if kind == "rule":
        from azure.servicebus.management import SqlRuleAction, SqlRuleFilter, TrueRuleFilter

        if settings:
            raise UsageError("a rule has no settings: use --filter and --action")
        client.create_rule(
            *target.names,
            filter=SqlRuleFilter(expression) if expression else TrueRuleFilter(),
            action=SqlRuleAction(action) if action else None,
        )
        return
    method = getattr(client, f"create_{kind}")
    known = [name for name, p in inspect.signature(method).parameters.items() if p.kind is p.KEYWORD_ONLY]
    _check_names(kind, settings, [*known, "status"])
    method(*target.names, **settings)


def update_entity(client: Any, target: Target, settings: dict[str, object]) -> str:
    """Change some settings; the kind of entity it was."""
    kind, properties, _ = read_entity(client, target)
    _check_names(kind, settings, [name for name in vars(properties) if not name.startswith("_")])
    if kind == "subscription":
        client.update_subscription(target.name, properties, **settings)
    else:
        getattr(client, f"update_{kind}")(properties, **settings)
    return kind


def delete_entity(client: Any, target: Target) -> None:
    # Queues and topics are deleted by the same request.
    kind = "queue" if target.kind == QUEUE_OR_TOPIC else target.kind
    getattr(client, f"delete_{kind}")(*target.names)


def _check_names(kind: str, settings: dict[str, object], known: list[str]) -> None:
    offered = sorted(set(known) - {"name", "authorization_rules"})
    for name in settings:
        if name not in offered:
            raise UsageError(f"{name} is no setting of a {kind}; there are {', '.join(offered)}")


def settings_of(pairs: tuple[str, ...]) -> dict[str, object]:
    """The settings of ``NAME=VALUE`` pairs. Raises UsageError."""
    settings: dict[str, object] = {}
    for pair in pairs:
        name, separator, text = pair.partition("=")
        if not separator:
            raise UsageError(f"--set {pair}: write NAME=VALUE")
        settings[name] = _value(name, text)
    return settings


def _value(name: str, text: str) -> object:
    if not text:
        return None
    if name in FLAGS:
        if text not in ("true", "false"):
            raise UsageError(f"{name} is {text!r}: it must be true or false")
        return text == "true"
    if name in NUMBERS:
        if not (text.isascii() and text.isdigit()):
            raise UsageError(f"{name} is {text!r}: it must be a number")
        return int(text)
    return _duration(name, text) if name in DURATIONS else text


def _duration(name: str, text: str) -> str:
    """A length of time as the management API writes it. Raises UsageError."""
    if text.lower() == UNLIMITED:
        return UNLIMITED_TEXT
    try:
        if _ISO.fullmatch(text.upper()):
            return text.upper()
        clock = _CLOCK.fullmatch(text)
        milliseconds = duration_ms(
            text if clock is None else f"{clock[1] or 0}d{clock[2]}h{clock[3]}m{clock[4]}s"
        )
    except UsageError:
        raise UsageError(
            f"{name} is {text!r}: write 30s, 5m, 2h or 7d, 0:05:00, PT5M, or {UNLIMITED}"
        ) from None
    return f"PT{milliseconds / 1000:g}S" if milliseconds % 1000 else f"PT{milliseconds // 1000}S"


def displayable(properties: Any) -> dict[str, object]:
    """What may be shown of properties: no keys, and times and durations as text."""
    shown: dict[str, object] = {}
    if properties is None:
        return shown
    names = [name for name in dir(properties) if not name.startswith("_")]
    for name in names:
        value = getattr(properties, name)
        if callable(value):
            continue
        if name == "authorization_rules":
            shown["access_rules"] = [rule.key_name for rule in value or []]
        elif name in ("filter", "action"):
            shown[name] = _expression_of(value)
        elif isinstance(value, timedelta) and value.days > UNLIMITED_DAYS:
            shown[name] = UNLIMITED
        elif isinstance(value, datetime) and value.year == 1:
            shown[name] = None  # how the management API writes a time that there is none of
        else:
            shown[name] = value if isinstance(value, bool | int) or value is None else str(value)
    return shown


def _expression_of(part: Any) -> str | None:
    """A filter or action in a few words."""
    if part is None:
        return None
    expression = getattr(part, "sql_expression", None)
    if expression is not None:
        return str(expression)
    fields = {name: value for name, value in vars(part).items() if value and not name.startswith("_")}
    fields |= {f"properties.{name}": value for name, value in (fields.pop("properties", None) or {}).items()}
    return " AND ".join(f"{name} = {value!r}" for name, value in fields.items())
