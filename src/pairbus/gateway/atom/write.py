"""What the management API answers: entities become Atom entries and feeds.

The order of the elements is the schema's; the clients read by name, the real service cares. Literal spellings that the
JavaScript client insists on: ``i:type``, ``/Subscriptions/`` and ``/Rules/`` in ids, one ``xmlns:`` on CountDetails.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, final

from pairbus.gateway.atom.read import (
    ENTITY_ELEMENTS,
    RULE_ELEMENT,
    SHARED_ACCESS_CLAIM,
    SHARED_ACCESS_RULE,
    VERSION_FILTER_COUNTS,
    VERSION_MESSAGE_SIZE,
)
from pairbus.gateway.atom.rules import rule_content
from pairbus.gateway.atom.times import duration, instant
from pairbus.gateway.atom.xml import (
    ATOM,
    COUNTS,
    SCHEMA_INSTANCE,
    SERVICE_BUS,
    element,
    escaped,
    flag,
    number,
)
from pairbus.model.entity import DURATION, PATH, SETTINGS, SUBSCRIPTION, Setting

if TYPE_CHECKING:
    from pairbus.engine.entity import Counts, Entity
    from pairbus.engine.rules.subscription import Rule
    from pairbus.model.access import AccessRule

AVAILABLE: Final = "Available"
SKU: Final = "Standard"
NAMESPACE_TYPE: Final = "Messaging"
SUBSCRIPTIONS: Final = "Subscriptions"
RULES: Final = "Rules"


@final
@dataclass(slots=True, eq=False)
class Address:
    """Where the client found us, and the api version it speaks: what every id and link is made from."""

    scheme: str
    host: str
    version: str
    author: str

    def url(self, path: str, query: str = "") -> str:
        """The absolute address of a resource."""
        return f"{self.scheme}://{self.host}/{path}?{query}api-version={self.version}"

    def forward_url(self, path: str) -> str:
        """The absolute form of a forwarding destination."""
        return f"sb://{self.host}/{path}"


# --- entries and feeds ------------------------------------------------------------------------------


def entity_entry(entity: Entity, address: Address) -> str:
    settings = entity.settings
    name, content = ENTITY_ELEMENTS[entity.kind], _content(entity, address)
    return _entry(address, entity.path, entity.name, settings.created_at, settings.updated_at, name, content)


def rule_entry(subscription: Entity, rule: Rule, address: Address) -> str:
    path = f"{subscription.path}/{RULES}/{rule.name}"
    return _entry(
        address, path, rule.name, rule.created_at, rule.created_at, RULE_ELEMENT, rule_content(rule)
    )


def namespace_entry(name: str, created_at: int, address: Address) -> str:
    content = (
        element("CreatedTime", instant(created_at))
        + element("MessagingSKU", SKU)
        + number("MessagingUnits", 0)
        + element("ModifiedTime", instant(created_at))
        + element("Name", name)
        + element("NamespaceType", NAMESPACE_TYPE)
    )
    return _entry(address, "$namespaceinfo", name, created_at, created_at, "NamespaceInfo", content)


def feed(address: Address, path: str, title: str, now: int, entries: list[str], page: Page) -> str:
    """A page of entries. There are exactly two links when more pages follow, which is how Python knows."""
    here = escaped(address.url(path, f"$skip={page.skip}&$top={page.top}&"))
    links = f'<link rel="self" href="{here}"/>'
    if page.has_more:
        following = escaped(address.url(path, f"$skip={page.skip + page.top}&$top={page.top}&"))
        links += f'<link rel="next" href="{following}"/>'
    return (
        f'<feed xmlns="{ATOM}"><title type="text">{escaped(title)}</title><id>{here}</id>'
        f"{element('updated', instant(now))}{links}{''.join(entries)}</feed>"
    )


@final
class Page:
    """Which part of a list is returned."""

    __slots__ = ("has_more", "skip", "top")

    def __init__(self, skip: int, top: int, total: int) -> None:
        self.skip = skip
        self.top = top
        self.has_more = skip + top < total


def _entry(
    address: Address, path: str, title: str, published: int, updated: int, name: str, content: str
) -> str:
    url = escaped(address.url(path))
    return (
        f'<entry xmlns="{ATOM}"><id>{url}</id><title type="text">{escaped(title)}</title>'
        f"{element('published', instant(published))}{element('updated', instant(updated))}"
        f"<author>{element('name', address.author)}</author>"
        f'<link rel="self" href="{url}"/><content type="application/xml">'
        f'<{name} xmlns="{SERVICE_BUS}" xmlns:i="{SCHEMA_INSTANCE}">{content}</{name}></content></entry>'
    )


# --- descriptions -----------------------------------------------------------------------------------


def _accessed_at(entity: Entity) -> int:
    """When a client last used it. Before that: never for a queue or a topic, and its creation for a subscription."""
    return entity.accessed_at or (entity.settings.created_at if entity.kind == SUBSCRIPTION else 0)


def _content(entity: Entity, address: Address) -> str:
    """The children of an entity's description: its settings, and what only the broker writes, in the schema's order."""
    counts = entity.counts()
    settings = entity.settings
    own = {
        "AccessedAt": element("AccessedAt", instant(_accessed_at(entity))),
        "AuthorizationRules": _access_rules(settings.access_rules),
        "CountDetails": _count_details(counts),
        "CreatedAt": element("CreatedAt", instant(settings.created_at)),
        "EnableSubscriptionPartitioning": flag("EnableSubscriptionPartitioning", False),
        "EntityAvailabilityStatus": element("EntityAvailabilityStatus", AVAILABLE),
        "FilterCounts": _filter_counts(entity, address.version),
        "IsAnonymousAccessible": flag("IsAnonymousAccessible", False),
        "MessageCount": number("MessageCount", counts.total),
        "SizeInBytes": number("SizeInBytes", entity.size_bytes),
        "SubscriptionCount": number("SubscriptionCount", len(entity.subscriptions)),
        "UpdatedAt": element("UpdatedAt", instant(settings.updated_at)),
    }
    parts: list[str] = []
    for name in _ORDER[entity.kind]:
        setting = _BY_ELEMENT.get(name)
        if setting is None:
            parts.append(own[name])
        else:
            parts.append(_setting(setting, getattr(settings, setting.field), address))
    return "".join(parts)


_BY_ELEMENT: Final = {setting.element: setting for setting in SETTINGS}
_ORDER: Final = (
    [
        "LockDuration",
        "MaxSizeInMegabytes",
        "RequiresDuplicateDetection",
        "RequiresSession",
        "DefaultMessageTimeToLive",
        "DeadLetteringOnMessageExpiration",
        "DuplicateDetectionHistoryTimeWindow",
        "MaxDeliveryCount",
        "EnableBatchedOperations",
        "SizeInBytes",
        "MessageCount",
        "IsAnonymousAccessible",
        "AuthorizationRules",
        "Status",
        "CreatedAt",
        "UpdatedAt",
        "AccessedAt",
        "SupportOrdering",
        "CountDetails",
        "AutoDeleteOnIdle",
        "EnablePartitioning",
        "EntityAvailabilityStatus",
        "EnableExpress",
        "ForwardTo",
        "UserMetadata",
        "ForwardDeadLetteredMessagesTo",
        "MaxMessageSizeInKilobytes",
    ],
    [
        "DefaultMessageTimeToLive",
        "MaxSizeInMegabytes",
        "RequiresDuplicateDetection",
        "DuplicateDetectionHistoryTimeWindow",
        "EnableBatchedOperations",
        "SizeInBytes",
        "FilteringMessagesBeforePublishing",
        "IsAnonymousAccessible",
        "AuthorizationRules",
        "Status",
        "CreatedAt",
        "UpdatedAt",
        "AccessedAt",
        "SupportOrdering",
        "CountDetails",
        "SubscriptionCount",
        "FilterCounts",
        "AutoDeleteOnIdle",
        "EnablePartitioning",
        "EntityAvailabilityStatus",
        "EnableSubscriptionPartitioning",
        "EnableExpress",
        "UserMetadata",
        "MaxMessageSizeInKilobytes",
    ],
    [
        "LockDuration",
        "RequiresSession",
        "DefaultMessageTimeToLive",
        "DeadLetteringOnMessageExpiration",
        "DeadLetteringOnFilterEvaluationExceptions",
        "MessageCount",
        "MaxDeliveryCount",
        "EnableBatchedOperations",
        "Status",
        "ForwardTo",
        "CreatedAt",
        "UpdatedAt",
        "AccessedAt",
        "CountDetails",
        "UserMetadata",
        "ForwardDeadLetteredMessagesTo",
        "AutoDeleteOnIdle",
        "EntityAvailabilityStatus",
    ],
)
"""The elements of a queue, a topic and a subscription in the order of the service's schema."""


def _setting(setting: Setting, value: object, address: Address) -> str:
    name = setting.element
    if value is None or (setting.field == "max_message_kb" and address.version < VERSION_MESSAGE_SIZE):
        return ""
    if isinstance(value, bool):
        return flag(name, value)
    if isinstance(value, int):
        return element(name, duration(value)) if setting.holds == DURATION else number(name, value)
    text = str(value)
    return element(name, address.forward_url(text) if setting.holds == PATH else text)


def _count_details(counts: Counts) -> str:
    # The API has no place for deferred messages; Service Bus counts them among the active ones.
    return (
        f'<CountDetails xmlns:d2p1="{COUNTS}">'
        + number("d2p1:ActiveMessageCount", counts.active + counts.deferred)
        + number("d2p1:DeadLetterMessageCount", counts.dead_letter)
        + number("d2p1:ScheduledMessageCount", counts.scheduled)
        + number("d2p1:TransferMessageCount", counts.transfer)
        + number("d2p1:TransferDeadLetterMessageCount", counts.transfer_dead_letter)
        + "</CountDetails>"
    )


def _filter_counts(topic: Entity, version: str) -> str:
    if version < VERSION_FILTER_COUNTS:
        return ""
    total = correlation = 0
    for subscription in topic.subscriptions.values():
        for text in subscription.settings.rules:
            total += 1
            # Read, not compiled: a topic may have a hundred thousand filters.
            correlation += json.loads(text)["filter"]["kind"] == "correlation"
    return number("SqlFilterCount", total - correlation) + number("CorrelationFilterCount", correlation)


def _access_rules(rules: tuple[AccessRule, ...]) -> str:
    if not rules:
        return "<AuthorizationRules/>"
    return f"<AuthorizationRules>{''.join(_access_rule(rule) for rule in rules)}</AuthorizationRules>"


def _access_rule(rule: AccessRule) -> str:
    # Keys are shown: a caller that may read this holds Manage, and could replace them anyway.
    rights = "".join(element("AccessRights", right) for right in rule.rights)
    return (
        f'<AuthorizationRule i:type="{SHARED_ACCESS_RULE}">'
        + element("ClaimType", SHARED_ACCESS_CLAIM)
        + element("ClaimValue", "None")
        + f"<Rights>{rights}</Rights>"
        + element("CreatedTime", instant(rule.created_at))
        + element("ModifiedTime", instant(rule.modified_at))
        + element("KeyName", rule.name)
        + element("PrimaryKey", rule.primary_key)
        + element("SecondaryKey", rule.secondary_key)
        + "</AuthorizationRule>"
    )


# --- errors -----------------------------------------------------------------------------------------


def error_body(status: int, text: str) -> bytes:
    """The body of every answer that is not a success."""
    return f"<Error>{number('Code', status)}{element('Detail', text)}</Error>".encode()
