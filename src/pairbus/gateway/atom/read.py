"""What a management request asks for: the XML of an entry becomes settings.

Rule 1: a missing element means the default. An update replaces everything that can be written, so there a missing
        element means the default as well, except where that would change what cannot change after creation.
Rule 2: elements that only the broker writes (counts, times, sizes) are ignored, for clients send back what they read.
Rule 3: ranges are the model's business (``check_settings``); here a text only has to be of its type.
"""

from __future__ import annotations

from typing import Final

from pairbus.engine.rules.sql.text import integer_from
from pairbus.errors import ArgumentError
from pairbus.gateway.atom.times import duration_ms, instant_ms
from pairbus.gateway.atom.xml import ATOM, SERVICE_BUS, Node, parse
from pairbus.model.access import AccessRule
from pairbus.model.entity import ACCESS_RULES_MAX, MAX_MESSAGE_KB_MAX, MAX_SIZE_MB_MAX, Settings

VERSION_OLDEST: Final = "2017-04"
VERSIONS_KNOWN: Final = frozenset(
    (
        "2012-03", "2012-08", "2013-04", "2013-07", "2013-08", "2013-10", "2014-01", "2014-05", "2014-09",
        "2015-01", "2016-07", VERSION_OLDEST, "2021-05", "2024-01", "2024-05",
    )
)  # fmt: skip
"""Versions of the API that clients speak. Those before the oldest that is told apart are answered as that one."""
VERSION_MESSAGE_SIZE: Final = "2021-05"
"""From this version on clients know MaxMessageSizeInKilobytes."""
VERSION_NEWEST: Final = "2024-05"
VERSION_FILTER_COUNTS: Final = "2024-05"
"""From this version on clients know SqlFilterCount and CorrelationFilterCount."""

QUEUE_ELEMENT: Final = "QueueDescription"
TOPIC_ELEMENT: Final = "TopicDescription"
SUBSCRIPTION_ELEMENT: Final = "SubscriptionDescription"
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


def read_queue(node: Node, old: Settings | None, version: str, now: int) -> Settings:
    """The settings of a queue; ``old`` are those it has when this is an update."""
    base = Settings() if old is None else old
    _refuse_true(node, "IsAnonymousAccessible", "anonymous access is not offered")
    return Settings(
        lock_duration_ms=_duration(node, "LockDuration", _DEFAULTS.lock_duration_ms),
        max_size_mb=_size(node, old),
        requires_duplicate_detection=_flag(
            node, "RequiresDuplicateDetection", base.requires_duplicate_detection
        ),
        requires_session=_flag(node, "RequiresSession", base.requires_session),
        default_ttl_ms=_duration(node, "DefaultMessageTimeToLive", _DEFAULTS.default_ttl_ms),
        dead_letter_on_expiration=_flag(node, "DeadLetteringOnMessageExpiration", False),
        duplicate_window_ms=_duration(
            node, "DuplicateDetectionHistoryTimeWindow", _DEFAULTS.duplicate_window_ms
        ),
        max_delivery_count=_integer(node, "MaxDeliveryCount", _DEFAULTS.max_delivery_count),
        enable_batched_operations=_flag(node, "EnableBatchedOperations", True),
        access_rules=read_access_rules(node, base.access_rules, now),
        status=node.value("Status") or _DEFAULTS.status,
        support_ordering=_flag(node, "SupportOrdering", True),
        auto_delete_on_idle_ms=_duration(node, "AutoDeleteOnIdle", _DEFAULTS.auto_delete_on_idle_ms),
        enable_partitioning=_flag(node, "EnablePartitioning", base.enable_partitioning),
        enable_express=_flag(node, "EnableExpress", False),
        forward_to=_destination(node, "ForwardTo"),
        user_metadata=_verbatim(node, "UserMetadata"),
        forward_dead_letters_to=_destination(node, "ForwardDeadLetteredMessagesTo"),
        max_message_kb=_message_size(node, base, version),
        created_at=base.created_at or now,
        updated_at=now,
    )


def read_topic(node: Node, old: Settings | None, version: str, now: int) -> Settings:
    """The settings of a topic; ``old`` are those it has when this is an update."""
    base = Settings() if old is None else old
    _refuse_true(node, "IsAnonymousAccessible", "anonymous access is not offered")
    _refuse_true(node, "EnableSubscriptionPartitioning", "partitioned subscriptions are not offered")
    return Settings(
        default_ttl_ms=_duration(node, "DefaultMessageTimeToLive", _DEFAULTS.default_ttl_ms),
        max_size_mb=_size(node, old),
        requires_duplicate_detection=_flag(
            node, "RequiresDuplicateDetection", base.requires_duplicate_detection
        ),
        duplicate_window_ms=_duration(
            node, "DuplicateDetectionHistoryTimeWindow", _DEFAULTS.duplicate_window_ms
        ),
        enable_batched_operations=_flag(node, "EnableBatchedOperations", True),
        filter_before_publishing=_flag(node, "FilteringMessagesBeforePublishing", False),
        access_rules=read_access_rules(node, base.access_rules, now),
        status=node.value("Status") or _DEFAULTS.status,
        support_ordering=_flag(node, "SupportOrdering", True),
        auto_delete_on_idle_ms=_duration(node, "AutoDeleteOnIdle", _DEFAULTS.auto_delete_on_idle_ms),
        enable_partitioning=_flag(node, "EnablePartitioning", base.enable_partitioning),
        enable_express=_flag(node, "EnableExpress", False),
        user_metadata=_verbatim(node, "UserMetadata"),
        max_message_kb=_message_size(node, base, version),
        created_at=base.created_at or now,
        updated_at=now,
    )


def read_subscription(node: Node, old: Settings | None, now: int) -> Settings:
    """The settings of a subscription, its rules as they were; the caller adds those of a new one."""
    base = Settings() if old is None else old
    return Settings(
        lock_duration_ms=_duration(node, "LockDuration", _DEFAULTS.lock_duration_ms),
        requires_session=_flag(node, "RequiresSession", base.requires_session),
        default_ttl_ms=_duration(node, "DefaultMessageTimeToLive", _DEFAULTS.default_ttl_ms),
        dead_letter_on_expiration=_flag(node, "DeadLetteringOnMessageExpiration", False),
        dead_letter_on_filter_error=_flag(node, "DeadLetteringOnFilterEvaluationExceptions", True),
        max_delivery_count=_integer(node, "MaxDeliveryCount", _DEFAULTS.max_delivery_count),
        enable_batched_operations=_flag(node, "EnableBatchedOperations", True),
        status=node.value("Status") or _DEFAULTS.status,
        forward_to=_destination(node, "ForwardTo"),
        user_metadata=_verbatim(node, "UserMetadata"),
        forward_dead_letters_to=_destination(node, "ForwardDeadLetteredMessagesTo"),
        auto_delete_on_idle_ms=_duration(node, "AutoDeleteOnIdle", _DEFAULTS.auto_delete_on_idle_ms),
        max_message_kb=base.max_message_kb,
        rules=base.rules,
        created_at=base.created_at or now,
        updated_at=now,
    )


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
    return AccessRule(
        name=name,
        rights=tuple(right.text.strip() for right in rights.children) if rights is not None else (),
        primary_key=node.value("PrimaryKey") or "",
        secondary_key=node.value("SecondaryKey") or "",
        created_at=_instant(node, "CreatedTime", known.created_at if known is not None else now),
        modified_at=_instant(node, "ModifiedTime", now),
    )


def _duration(node: Node, name: str, default: int) -> int:
    text = node.value(name)
    return default if text is None else duration_ms(name, text)


def _instant(node: Node, name: str, default: int) -> int:
    text = node.value(name)
    return default if text is None else instant_ms(name, text)


def _integer(node: Node, name: str, default: int) -> int:
    text = node.value(name)
    if text is None:
        return default
    value = integer_from(text)
    if value is None or abs(value) > INTEGER_MAX:
        raise ArgumentError(f"{name} is '{text[:80]}': it must be an integer.")
    return value


def _flag(node: Node, name: str, default: bool) -> bool:
    text = node.value(name)
    if text is None:
        return default
    if text in ("true", "1", "True"):
        return True
    if text in ("false", "0", "False"):
        return False
    raise ArgumentError(f"{name} is '{text[:80]}': it must be true or false.")


def _verbatim(node: Node, name: str) -> str | None:
    """Text with its white space; empty is the same as absent."""
    child = node.child(name)
    return None if child is None or child.is_nil else child.text or None


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
