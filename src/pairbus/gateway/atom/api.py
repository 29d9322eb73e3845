"""The management API of the official administration clients: a request in, an answer out.

Rule 1: authorization comes before everything else, existence and well-formedness included (M1, M6).
Rule 2: everything is checked before the namespace is asked to change: a refused request leaves no trace (M11).
Rule 3: every request yields exactly one audit event, refused ones too (M13).
Rule 4: GET changes nothing (M10).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from pairbus.engine.rules.codec import rules_of, with_rules
from pairbus.engine.rules.subscription import DEFAULT_RULE_NAME, Rule, RuleSet, TrueFilter
from pairbus.errors import (
    ArgumentError,
    EntityAlreadyExists,
    EntityNotFound,
    NotSupported,
    Refusal,
    Unauthorized,
)
from pairbus.gateway.atom import routes
from pairbus.gateway.atom.read import (
    ENTITY_ELEMENTS,
    RULE_ELEMENT,
    read_description,
    read_settings,
)
from pairbus.gateway.atom.routes import Query, Route, query_of
from pairbus.gateway.atom.rules import read_rule
from pairbus.gateway.atom.write import (
    Address,
    Page,
    entity_entry,
    error_body,
    feed,
    namespace_entry,
    rule_entry,
)
from pairbus.gateway.atom.xml import BODY_BYTES_MAX, Node
from pairbus.gateway.http import HttpRequest, HttpResponse
from pairbus.gateway.rights.access import claimed_rule
from pairbus.model.access import LISTEN, MANAGE, SEND
from pairbus.model.entity import KIND_NAMES, QUEUE, SUBSCRIPTION, TOPIC
from pairbus.model.names import canonical, check_entity_name, check_rule_name, subscription_path

if TYPE_CHECKING:
    from collections.abc import Callable

    from pairbus.engine.entity import Entity
    from pairbus.engine.namespace import Namespace
    from pairbus.gateway.telemetry.tracking import Tracker
    from pairbus.model.entity import Settings

ENTRY_TYPE: Final = "application/atom+xml;type=entry;charset=utf-8"
FEED_TYPE: Final = "application/atom+xml;type=feed;charset=utf-8"
ERROR_TYPE: Final = "application/xml; charset=utf-8"
HELP: Final = "To know more visit https://aka.ms/sbResourceMgrExceptions."
FORWARD_HEADER: Final = "servicebussupplementaryauthorization"
DEAD_LETTER_FORWARD_HEADER: Final = "servicebusdlqsupplementaryauthorization"
HOST_LENGTH_MAX: Final = 255
PATH_SHOWN_MAX: Final = 300
"""How much of a path an error repeats."""

_HOST: Final = re.compile(r"[A-Za-z0-9._-]+(:[0-9]{1,5})?|\[[0-9a-fA-F:.]+\](:[0-9]{1,5})?")
_METHODS: Final = ("GET", "PUT", "DELETE")


class Authorizer(Protocol):
    """Judges the tokens of HTTP requests."""

    def check_http(self, header: str | None, path: str, right: str, now: int) -> str:
        """The name of the access rule that grants this right on this path. Raises Unauthorized."""


Audit: TypeAlias = "Callable[[str, str, str, str, str], None]"
"""Gets what was asked, of what, by which access rule (empty: nobody known), with which HTTP status, from where."""


class ManagementApi:
    """The API on one namespace."""

    __slots__ = ("_access", "_audit", "_audit_refusal", "_namespace", "_tracker")

    def __init__(
        self,
        namespace: Namespace,
        access: Authorizer,
        tracker: Tracker,
        audit: Audit,
        audit_refusal: Audit | None = None,
    ) -> None:
        self._namespace = namespace
        self._access = access
        self._tracker = tracker
        self._audit = audit
        self._audit_refusal = audit_refusal or audit

    def handle(self, request: HttpRequest, route: Route, now: int) -> HttpResponse:
        """Answer one request; ``route`` is the resource of its target."""
        who = ""
        try:
            header = request.headers.get("authorization")
            who = self._who(header, route, now)
            response = self._answer(request, route, now)
        except Refusal as refusal:
            response = self._error(refusal.status, refusal.description, route, now)
        audit = self._audit
        if not who:
            audit = self._audit_refusal
            who = claimed_rule(request.headers.get("authorization") or "")
        audit(_action(request, route), route.resource, who, str(response.status), request.peer)
        return response

    def _who(self, header: str | None, route: Route, now: int) -> str:
        """The access rule that lets the caller manage. Raises a Refusal."""
        try:
            return self._access.check_http(header, route.resource, MANAGE, now)
        except Unauthorized as refusal:
            if not routes.names_messages(route):
                raise
            for right in (SEND, LISTEN):
                if self._may(header, route, right, now):
                    raise _no_messages(route) from None
            raise refusal from None

    def _may(self, header: str | None, route: Route, right: str, now: int) -> bool:
        try:
            self._access.check_http(header, route.resource, right, now)
        except Unauthorized:
            return False
        return True

    def _asks_for_messages(self, request: HttpRequest, route: Route) -> bool:
        """Whether it is a request for messages: an entity may have the same name."""
        if not routes.names_messages(route):
            return False
        if request.method == "POST":
            return True
        is_free = route.what == routes.UNKNOWN or self._namespace.find(route.path) is None
        return is_free and (request.method == "DELETE" or (request.method == "PUT" and not request.body))

    def _answer(self, request: HttpRequest, route: Route, now: int) -> HttpResponse:
        if self._asks_for_messages(request, route):
            raise _no_messages(route)
        query = query_of(request.target)
        if request.method not in _METHODS:
            return self._error(
                405, f"The method {request.method[:20]} is not offered: use GET, PUT or DELETE.", route, now
            )
        if len(request.body) > BODY_BYTES_MAX:
            return self._error(413, f"The body is larger than {BODY_BYTES_MAX} bytes.", route, now)
        address = self._address(request, query.version)
        if request.method == "GET":
            return self._get(route, query, address, now)
        if route.what not in (routes.ENTITY, routes.SUBSCRIPTION, routes.RULE):
            raise ArgumentError(
                f"'{request.target[:PATH_SHOWN_MAX]}' names nothing that can be created or deleted: give an entity's name."
            )
        condition = request.headers.get("if-match")
        if condition is not None and condition.strip() != "*":
            return self._error(412, "If-Match knows '*' only: entities have no other versions.", route, now)
        if request.method == "DELETE":
            return self._delete(route, now)
        node = read_description(request.body)
        if condition is None:
            return _entry_response(201, self._create(request, route, node, address, now))
        return _entry_response(200, self._update(request, route, node, address, now))

    # --- reading ------------------------------------------------------------------------------------

    def _get(self, route: Route, query: Query, address: Address, now: int) -> HttpResponse:
        if route.what == routes.NAMESPACE_INFO:
            namespace = self._namespace
            return _entry_response(200, namespace_entry(namespace.name, namespace.created_at, address))
        if route.what in (routes.ENTITY, routes.SUBSCRIPTION):
            return _entry_response(200, entity_entry(self._entity(route), address))
        if route.what == routes.RULE:
            subscription = self._entity(route)
            rule = _rule_of(rules_of(subscription.settings), route)
            return _entry_response(200, rule_entry(subscription, rule, address))
        if route.what == routes.ROOT:
            # The service lists what registers itself as public here; queues and topics do not.
            body = feed(address, "", "Publicly Listed Services", now, [], Page(0, query.top, 0))
            return _feed_response(body)
        if route.what == routes.UNKNOWN:
            raise ArgumentError("The address names no resource of the management API: give an entity's name.")
        return self._list(route, query, address, now)

    def _list(self, route: Route, query: Query, address: Address, now: int) -> HttpResponse:
        first, last = query.skip, query.skip + query.top
        if route.what == routes.RULES:
            subscription = self._entity(route)
            rules = sorted(rules_of(subscription.settings).rules, key=_rule_key)
            path, title, total = f"{subscription.path}/Rules", "Rules", len(rules)
            entries = [rule_entry(subscription, rule, address) for rule in rules[first:last]]
        else:
            path, title, total, found = self._listed(route, first, last)
            entries = [entity_entry(entity, address) for entity in found]
        body = feed(address, path, title, now, entries, Page(query.skip, query.top, total))
        return _feed_response(body)

    def _listed(self, route: Route, first: int, last: int) -> tuple[str, str, int, list[Entity]]:
        """Address and title of a list of entities, how many there are, and those of the page."""
        if route.what == routes.SUBSCRIPTIONS:
            topic = self._topic(route)
            names = sorted(topic.subscriptions)
            found = [topic.subscriptions[name] for name in names[first:last]]
            return f"{topic.path}/Subscriptions", "Subscriptions", len(names), found
        kind, path, title = QUEUE, "$Resources/queues", "Queues"
        if route.what == routes.TOPICS:
            kind, path, title = TOPIC, "$Resources/topics", "Topics"
        namespace = self._namespace
        return path, title, namespace.entity_count(kind), namespace.entity_page(kind, first, last)

    def _entity(self, route: Route) -> Entity:
        """The queue, topic or subscription of a route. Raises EntityNotFound."""
        entity = self._namespace.find(route.entity_path)
        if entity is None or canonical(entity.path) != route.entity_path.lower():
            # The second half: extra slashes make another name, not another spelling.
            raise EntityNotFound(route.entity_path)
        return entity

    def _topic(self, route: Route) -> Entity:
        topic = self._namespace.find(route.path)
        if topic is None or topic.kind != TOPIC or canonical(topic.path) != route.path.lower():
            raise EntityNotFound(route.path)
        return topic

    # --- changing -----------------------------------------------------------------------------------

    def _create(self, request: HttpRequest, route: Route, node: Node, address: Address, now: int) -> str:
        if route.what == routes.RULE:
            return self._create_rule(route, node, address, now)
        kind = _kind_of(route, node)
        path = route.path
        if kind == SUBSCRIPTION:
            path = subscription_path(self._topic(route).path, route.subscription)
        else:
            # As it stands in the path: the namespace would take extra slashes off, and no other method finds it by those.
            check_entity_name(path)
        settings = _read_settings(kind, node, None, address.version, now)
        self._check_forwarding(request, None, settings, now)
        return entity_entry(self._namespace.create(kind, path, settings, now), address)

    def _update(self, request: HttpRequest, route: Route, node: Node, address: Address, now: int) -> str:
        entity = self._entity(route)
        if route.what == routes.RULE:
            return self._update_rule(entity, route, node, address, now)
        kind = _kind_of(route, node)
        if kind != entity.kind:
            raise ArgumentError(
                f"'{entity.path}' is a {KIND_NAMES[entity.kind]}: it cannot be updated by a {node.name}."
            )
        settings = _read_settings(kind, node, entity.settings, address.version, now)
        self._check_forwarding(request, entity.settings, settings, now)
        self._namespace.update(entity, settings, now)
        return entity_entry(entity, address)

    def _delete(self, route: Route, now: int) -> HttpResponse:
        entity = self._entity(route)
        if route.what == routes.RULE:
            rules = rules_of(entity.settings)
            self._put_rules(entity, rules.without(_rule_of(rules, route).name), now)
        else:
            self._namespace.delete(entity, now)
        return HttpResponse(200, list(_HEADERS), b"")

    def _create_rule(self, route: Route, node: Node, address: Address, now: int) -> str:
        subscription = self._entity(route)
        rules = rules_of(subscription.settings)
        if rules.find(route.rule) is not None:
            raise EntityAlreadyExists(route.full_path)
        check_rule_name(route.rule)
        rule = _read_rule(node, route.rule, now)
        self._put_rules(subscription, rules.with_rule(rule), now)
        return rule_entry(subscription, rule, address)

    def _update_rule(self, subscription: Entity, route: Route, node: Node, address: Address, now: int) -> str:
        rules = rules_of(subscription.settings)
        old = _rule_of(rules, route)
        rule = _read_rule(node, old.name, old.created_at)
        self._put_rules(subscription, rules.with_rule(rule), now)
        return rule_entry(subscription, rule, address)

    def _put_rules(self, subscription: Entity, rules: RuleSet, now: int) -> None:
        self._namespace.update(subscription, with_rules(subscription.settings, rules), now)

    def _check_forwarding(self, request: HttpRequest, old: Settings | None, new: Settings, now: int) -> None:
        """Refuse a caller that lets an entity forward to a destination it may not send to (M1)."""
        before, before_dead = (None, None) if old is None else (old.forward_to, old.forward_dead_letters_to)
        for header, was, path in (
            (FORWARD_HEADER, before, new.forward_to),
            (DEAD_LETTER_FORWARD_HEADER, before_dead, new.forward_dead_letters_to),
        ):
            if path is not None and (was is None or canonical(was) != canonical(path)):
                token = request.headers.get(header) or request.headers.get("authorization")
                self._access.check_http(token, path, SEND, now)

    # --- answers ------------------------------------------------------------------------------------

    def _address(self, request: HttpRequest, version: str) -> Address:
        host = request.headers.get("host", "")
        if len(host) > HOST_LENGTH_MAX or not _HOST.fullmatch(host):
            host = self._namespace.name
        return Address("https" if request.secure else "http", host, version, self._namespace.name)

    def _error(self, status: int, text: str, route: Route, now: int) -> HttpResponse:
        text = self._tracker.describe(f"{text} {HELP}", route.resource[:PATH_SHOWN_MAX], now)
        return HttpResponse(status, [*_HEADERS, ("content-type", ERROR_TYPE)], error_body(status, text))


# Answers hold keys and change from one moment to the next: nobody on the way may keep them.
_HEADERS: Final = (("cache-control", "no-store"), ("x-content-type-options", "nosniff"))


def _rule_of(rules: RuleSet, route: Route) -> Rule:
    rule = rules.find(route.rule)
    if rule is None:
        raise EntityNotFound(route.full_path)
    return rule


def _rule_key(rule: Rule) -> str:
    return rule.name.lower()


def _read_rule(node: Node, name: str, created_at: int) -> Rule:
    if node.name != RULE_ELEMENT:
        raise ArgumentError(f"A rule is described by a {RULE_ELEMENT}, not by a {node.name[:80]}.")
    return read_rule(node, name, created_at)


def _kind_of(route: Route, node: Node) -> int:
    """The kind of entity that a description is about. Raises ArgumentError where the path cannot be one."""
    kind = ENTITY_ELEMENTS.index(node.name) if node.name in ENTITY_ELEMENTS else -1
    queue, topic, subscription = ENTITY_ELEMENTS
    if route.what == routes.SUBSCRIPTION:
        if kind != SUBSCRIPTION:
            raise ArgumentError(
                f"A subscription is described by a {subscription}, not by a {node.name[:80]}."
            )
    elif kind not in (QUEUE, TOPIC):
        raise ArgumentError(
            f"'{route.path[:PATH_SHOWN_MAX]}' is described by a {queue} or {topic}, not by a {node.name[:80]}."
        )
    return kind


def _read_settings(kind: int, node: Node, old: Settings | None, version: str, now: int) -> Settings:
    settings = read_settings(kind, node, old, version, now)
    if kind != SUBSCRIPTION or old is not None:
        return settings
    description = node.child("DefaultRuleDescription")
    if description is None or description.is_nil:
        rule = Rule(DEFAULT_RULE_NAME, TrueFilter(), None, now)
    else:
        name = description.value("Name") or DEFAULT_RULE_NAME
        check_rule_name(name)
        rule = read_rule(description, name, now)
    return with_rules(settings, RuleSet([rule]))


def _entry_response(status: int, body: str) -> HttpResponse:
    return HttpResponse(status, [*_HEADERS, ("content-type", ENTRY_TYPE)], body.encode("utf-8", "replace"))


def _feed_response(body: str) -> HttpResponse:
    return HttpResponse(200, [*_HEADERS, ("content-type", FEED_TYPE)], body.encode("utf-8", "replace"))


def _no_messages(route: Route) -> NotSupported:
    return NotSupported(
        f"'{route.resource[:PATH_SHOWN_MAX]}' is an address for messages, and messages are not sent or received over HTTP: use "
        "AMQP, with any Service Bus client. HTTP is for the management of entities."
    )


def _action(request: HttpRequest, route: Route) -> str:
    if request.method == "PUT":
        verb = "update" if "if-match" in request.headers else "create"
    elif request.method == "GET":
        is_list = route.what in (routes.QUEUES, routes.TOPICS, routes.SUBSCRIPTIONS, routes.RULES)
        verb = "list" if is_list else "get"
    else:
        verb = "delete" if request.method == "DELETE" else "other"
    return f"{verb} {routes.NOUNS[route.what]}"
