"""What the management API answers: entities become Atom entries and feeds.

The order of the elements is the schema's; the clients read by name, the real service cares. Literal spellings that the
JavaScript client insists on: ``i:type``, ``/Subscriptions/`` and ``/Rules/`` in ids, one ``xmlns:`` on CountDetails.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, final

from pairbus.gateway.atom.read import (
    QUEUE_ELEMENT,
    RULE_ELEMENT,
    SHARED_ACCESS_CLAIM,
    SHARED_ACCESS_RULE,
    SUBSCRIPTION_ELEMENT,
    TOPIC_ELEMENT,
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
from pairbus.model.entity import QUEUE, TOPIC

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
class Address:
    """Where the client found us, and the api version it speaks: what every id and link is made from."""

    __slots__ = ("author", "host", "scheme", "version")

    def __init__(self, scheme: str, host: str, version: str, author: str) -> None:
        self.scheme = scheme
        self.host = host
        self.version = version
        self.author = author

    def url(self, path: str, query: str = "") -> str:
        """The absolute address of a resource."""
        return f"{self.scheme}://{self.host}/{path}?{query}api-version={self.version}"

    def forward_url(self, path: str) -> str:
        """The absolute form in which forwarding destinations are told."""
        return f"sb://{self.host}/{path}"


# --- entries and feeds ------------------------------------------------------------------------------


def entity_entry(entity: Entity, address: Address) -> str:
    """The entry of any entity."""
    if entity.kind == QUEUE:
        name, content = QUEUE_ELEMENT, _queue_content(entity, address)
    elif entity.kind == TOPIC:
        name, content = TOPIC_ELEMENT, _topic_content(entity, address)
    else:
        name, content = SUBSCRIPTION_ELEMENT, _subscription_content(entity, address)
    settings = entity.settings
    return _entry(address, entity.path, entity.name, settings.created_at, settings.updated_at, name, content)


def rule_entry(subscription: Entity, rule: Rule, address: Address) -> str:
    """The entry of one rule."""
    path = f"{subscription.path}/{RULES}/{rule.name}"
    return _entry(
        address, path, rule.name, rule.created_at, rule.created_at, RULE_ELEMENT, rule_content(rule)
    )


def namespace_entry(name: str, created_at: int, address: Address) -> str:
    """The entry about the namespace itself."""
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
    """Which part of a list is told."""

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


def _queue_content(entity: Entity, address: Address) -> str:
    settings, counts = entity.settings, entity.counts()
    parts = [
        element("LockDuration", duration(settings.lock_duration_ms)),
        number("MaxSizeInMegabytes", settings.max_size_mb),
        flag("RequiresDuplicateDetection", settings.requires_duplicate_detection),
        flag("RequiresSession", settings.requires_session),
        element("DefaultMessageTimeToLive", duration(settings.default_ttl_ms)),
        flag("DeadLetteringOnMessageExpiration", settings.dead_letter_on_expiration),
        element("DuplicateDetectionHistoryTimeWindow", duration(settings.duplicate_window_ms)),
        number("MaxDeliveryCount", settings.max_delivery_count),
        flag("EnableBatchedOperations", settings.enable_batched_operations),
        number("SizeInBytes", entity.size_bytes),
        number("MessageCount", counts.total),
        flag("IsAnonymousAccessible", False),
        _access_rules(settings.access_rules),
        element("Status", settings.status),
        *_times(entity),
        flag("SupportOrdering", settings.support_ordering),
        _count_details(counts),
        element("AutoDeleteOnIdle", duration(settings.auto_delete_on_idle_ms)),
        flag("EnablePartitioning", settings.enable_partitioning),
        element("EntityAvailabilityStatus", AVAILABLE),
        flag("EnableExpress", settings.enable_express),
        _forward("ForwardTo", settings.forward_to, address),
        _optional("UserMetadata", settings.user_metadata),
        _forward("ForwardDeadLetteredMessagesTo", settings.forward_dead_letters_to, address),
        _message_size(settings.max_message_kb, address.version),
    ]
    return "".join(parts)


def _topic_content(entity: Entity, address: Address) -> str:
    settings = entity.settings
    parts = [
        element("DefaultMessageTimeToLive", duration(settings.default_ttl_ms)),
        number("MaxSizeInMegabytes", settings.max_size_mb),
        flag("RequiresDuplicateDetection", settings.requires_duplicate_detection),
        element("DuplicateDetectionHistoryTimeWindow", duration(settings.duplicate_window_ms)),
        flag("EnableBatchedOperations", settings.enable_batched_operations),
        number("SizeInBytes", entity.size_bytes),
        flag("FilteringMessagesBeforePublishing", settings.filter_before_publishing),
        flag("IsAnonymousAccessible", False),
        _access_rules(settings.access_rules),
        element("Status", settings.status),
        *_times(entity),
        flag("SupportOrdering", settings.support_ordering),
        _count_details(entity.counts()),
        number("SubscriptionCount", len(entity.subscriptions)),
        _filter_counts(entity, address.version),
        element("AutoDeleteOnIdle", duration(settings.auto_delete_on_idle_ms)),
        flag("EnablePartitioning", settings.enable_partitioning),
        element("EntityAvailabilityStatus", AVAILABLE),
        flag("EnableSubscriptionPartitioning", False),
        flag("EnableExpress", settings.enable_express),
        _optional("UserMetadata", settings.user_metadata),
        _message_size(settings.max_message_kb, address.version),
    ]
    return "".join(parts)


def _subscription_content(entity: Entity, address: Address) -> str:
    settings, counts = entity.settings, entity.counts()
    parts = [
        element("LockDuration", duration(settings.lock_duration_ms)),
        flag("RequiresSession", settings.requires_session),
        element("DefaultMessageTimeToLive", duration(settings.default_ttl_ms)),
        flag("DeadLetteringOnMessageExpiration", settings.dead_letter_on_expiration),
        flag("DeadLetteringOnFilterEvaluationExceptions", settings.dead_letter_on_filter_error),
        number("MessageCount", counts.total),
        number("MaxDeliveryCount", settings.max_delivery_count),
        flag("EnableBatchedOperations", settings.enable_batched_operations),
        element("Status", settings.status),
        _forward("ForwardTo", settings.forward_to, address),
        *_times(entity),
        _count_details(counts),
        _optional("UserMetadata", settings.user_metadata),
        _forward("ForwardDeadLetteredMessagesTo", settings.forward_dead_letters_to, address),
        element("AutoDeleteOnIdle", duration(settings.auto_delete_on_idle_ms)),
        element("EntityAvailabilityStatus", AVAILABLE),
    ]
    return "".join(parts)


def _times(entity: Entity) -> tuple[str, str, str]:
    return (
        element("CreatedAt", instant(entity.settings.created_at)),
        element("UpdatedAt", instant(entity.settings.updated_at)),
        element("AccessedAt", instant(entity.accessed_at)),
    )


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


def _message_size(size_kb: int, version: str) -> str:
    return number("MaxMessageSizeInKilobytes", size_kb) if version >= VERSION_MESSAGE_SIZE else ""


def _forward(name: str, path: str | None, address: Address) -> str:
    return "" if path is None else element(name, address.forward_url(path))


def _optional(name: str, text: str | None) -> str:
    return "" if text is None else element(name, text)


def _access_rules(rules: tuple[AccessRule, ...]) -> str:
    if not rules:
        return "<AuthorizationRules/>"
    return f"<AuthorizationRules>{''.join(_access_rule(rule) for rule in rules)}</AuthorizationRules>"


def _access_rule(rule: AccessRule) -> str:
    # Keys are told: whoever may read this holds Manage, and could replace them anyway.
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
