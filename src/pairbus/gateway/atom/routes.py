"""Which resource of the management API a request's target names.

    /   /$Resources/queues   /$Resources/topics   /$namespaceinfo
    /{queue or topic}
    /{topic}/subscriptions            /{topic}/subscriptions/{subscription}
    /{topic}/subscriptions/{subscription}/rules            …/rules/{rule}

Rule 1: the path is percent-decoded once and then split, so ``a%2Fb`` and ``a/b`` are the same resource (M2). That is
        unambiguous because no queue or topic may have ``subscriptions`` as a later segment of its name.
Rule 2: fixed segments are compared without case; names keep the spelling they came with.
Rule 3: routing refuses nothing: authorization comes first, then the handler of the route checks the names.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, final
from urllib.parse import parse_qsl, unquote

from pairbus.errors import ArgumentError
from pairbus.gateway.atom.read import VERSION_NEWEST, VERSION_OLDEST, VERSIONS_KNOWN
from pairbus.model.names import subscription_path

ROOT: Final = 0
QUEUES: Final = 1
TOPICS: Final = 2
NAMESPACE_INFO: Final = 3
ENTITY: Final = 4
SUBSCRIPTIONS: Final = 5
SUBSCRIPTION: Final = 6
RULES: Final = 7
RULE: Final = 8
UNKNOWN: Final = 9
NOUNS: Final = (
    "namespace", "queues", "topics", "namespace", "entity", "subscriptions", "subscription", "rules", "rule", "resource"
)  # fmt: skip
"""What the audit log calls each of them."""

PAGE_MAX: Final = 100
SKIP_MAX: Final = 10_000_000
QUERY_FIELDS_MAX: Final = 32

_RESOURCES: Final = "$resources"
_NAMESPACE_INFO: Final = "$namespaceinfo"
_DIGITS: Final = re.compile(r"[0-9]{1,12}")


@final
@dataclass(slots=True, eq=False)
class Route:
    """A resource: what it is, and the names that lead to it."""

    what: int
    resource: str
    """The whole decoded path. Tokens are judged by it, because some clients make one for each address."""
    path: str = ""
    """The queue or topic; empty for what belongs to the namespace."""
    subscription: str = ""
    rule: str = ""

    @property
    def entity_path(self) -> str:
        """The queue, topic or subscription."""
        if self.subscription:
            return subscription_path(self.path, self.subscription)
        return self.path

    @property
    def full_path(self) -> str:
        return f"{self.entity_path}/Rules/{self.rule}" if self.rule else self.entity_path


def route_of(target: str) -> Route:
    path = unquote(target.partition("?")[0]).removeprefix("/").removesuffix("/")
    segments = path.split("/")
    first = segments[0].lower()
    if first == _RESOURCES:
        return _list_route(path, segments)
    if first == _NAMESPACE_INFO:
        return Route(NAMESPACE_INFO if len(segments) == 1 else UNKNOWN, path)
    for index in range(1, len(segments)):
        if segments[index].lower() == "subscriptions":
            return _below_topic(path, "/".join(segments[:index]), segments[index + 1 :])
    return Route(ENTITY, path, path) if path else Route(ROOT, path)


def names_messages(route: Route) -> bool:
    """Whether it is an address of the service's HTTP API for messages, unless an entity has this name: ``queue/messages/…``."""
    return route.what in (ENTITY, UNKNOWN) and "messages" in route.resource.lower().split("/")[1:]


def _list_route(path: str, segments: list[str]) -> Route:
    if len(segments) == 2 and segments[1].lower() == "queues":
        return Route(QUEUES, path)
    if len(segments) == 2 and segments[1].lower() == "topics":
        return Route(TOPICS, path)
    return Route(UNKNOWN, path)


def _below_topic(path: str, topic: str, rest: list[str]) -> Route:
    if not rest:
        return Route(SUBSCRIPTIONS, path, topic)
    if len(rest) == 1 and rest[0]:
        return Route(SUBSCRIPTION, path, topic, rest[0])
    if len(rest) == 2 and rest[0] and rest[1].lower() == "rules":
        return Route(RULES, path, topic, rest[0])
    if len(rest) == 3 and rest[0] and rest[1].lower() == "rules" and rest[2]:
        return Route(RULE, path, topic, rest[0], rest[2])
    return Route(UNKNOWN, path, topic)


@final
@dataclass(slots=True, eq=False)
class Query:
    """What stands after the question mark."""

    version: str
    skip: int
    top: int


def query_of(target: str) -> Query:
    """The api version and the part of a list that is asked for. Raises ArgumentError."""
    try:
        pairs = parse_qsl(target.partition("?")[2], keep_blank_values=True, max_num_fields=QUERY_FIELDS_MAX)
    except ValueError:
        raise ArgumentError(f"The query has more than {QUERY_FIELDS_MAX} fields.") from None
    fields = {name.lower(): value for name, value in pairs}
    version = fields.get("api-version", VERSION_OLDEST)
    if version not in VERSIONS_KNOWN:
        raise ArgumentError(
            f"api-version is '{version[:40]}', which is not known: {VERSION_NEWEST} and {VERSION_OLDEST} are, and those between."
        )
    if "$filter" in fields:
        raise ArgumentError("$filter is not offered: leave it out and choose from the whole list.")
    skip = _count(fields, "$skip", 0, SKIP_MAX)
    top = _count(fields, "$top", PAGE_MAX, SKIP_MAX)
    if top == 0:
        raise ArgumentError(f"$top is 0: it must be between 1 and {PAGE_MAX}.")
    return Query(version, skip, min(top, PAGE_MAX))


def _count(fields: dict[str, str], name: str, default: int, limit: int) -> int:
    text = fields.get(name)
    if text is None:
        return default
    if not _DIGITS.fullmatch(text) or int(text) > limit:
        raise ArgumentError(f"{name} is '{text[:40]}': it must be a number up to {limit}.")
    return int(text)
