"""The access rules of the namespace over HTTP, in JSON: list, set, remove, replace a key, while the broker runs (M5).

    GET    /$accessrules               all rules, without keys
    GET    /$accessrules/NAME          one rule, with its keys
    PUT    /$accessrules/NAME          make or change a rule: {"rights": […], "primary_key": …, "secondary_key": …}
    DELETE /$accessrules/NAME          remove a rule
    POST   /$accessrules/NAME/rotate   replace a key: {"key": "primary" or "secondary", "value": …}

Rule 1: every request needs Manage on the whole namespace, which no rule of an entity gives.
Rule 2: a key that is not given stays as it is, or is made here.
Rule 3: the root rule has all rights and cannot be removed: a namespace that nobody can manage is lost.

The official administration clients have no verbs for rules of a namespace; on Azure they belong to the resource manager.
"""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from pairbus.errors import AccessRuleNotFound, ArgumentError, NotSupported, Refusal
from pairbus.gateway.http import HttpRequest, HttpResponse
from pairbus.model.access import MANAGE, RIGHTS, ROOT_RULE, AccessRule, check_new_key, check_new_name
from pairbus.model.entity import ACCESS_RULES_MAX

if TYPE_CHECKING:
    from pairbus.engine.namespace import Namespace
    from pairbus.gateway.atom.api import Audit, Authorizer

ACCESS_RULES_PATH: Final = "/$accessrules"
KEY_BYTES: Final = 32
PRIMARY: Final = "primary"
SECONDARY: Final = "secondary"
ROTATE: Final = "rotate"
RULE_SHOWN_MAX: Final = 256
"""How much of a name an error repeats."""
_ACTIONS: Final = {"GET": "get", "PUT": "set", "DELETE": "remove", "POST": "rotate key of"}


def names_access_rules(path: str) -> bool:
    """Whether a request is about access rules of the namespace."""
    return path.lower() == ACCESS_RULES_PATH or path.lower().startswith(ACCESS_RULES_PATH + "/")


class AccessRulesApi:
    """Answers requests about the access rules of one namespace.

    Args:
        namespace: Holds the rules.
        access: Judges tokens.
        audit: Gets every request, with its result.
        audit_refusal: Gets those of callers without the right.
        secret: New keys are made from it; 32 bytes that are used for nothing else, new in each life.
    """

    def __init__(
        self, namespace: Namespace, access: Authorizer, audit: Audit, audit_refusal: Audit, secret: bytes
    ) -> None:
        self._namespace = namespace
        self._access = access
        self._audit = audit
        self._audit_refusal = audit_refusal
        self._secret = secret
        self._keys_made = 0

    def handle(self, request: HttpRequest, now: int) -> HttpResponse:
        """Answer one request."""
        path = unquote(request.target.partition("?")[0])
        name, _, verb = path[len(ACCESS_RULES_PATH) + 1 :].partition("/")
        who = ""
        try:
            who = self._access.check_http(request.headers.get("authorization"), "", MANAGE, now)
            status, answer = 200, self._answer(request, name, verb, now)
        except Refusal as refusal:
            status, answer = refusal.status, {"error": refusal.description}
        action = _ACTIONS.get(request.method, "other") + " access rule"
        (self._audit if who else self._audit_refusal)(action, name, who, str(status), request.peer)
        return HttpResponse(
            status,
            [
                ("Content-Type", "application/json"),
                ("cache-control", "no-store"),
                ("x-content-type-options", "nosniff"),
            ],
            json.dumps(answer).encode(),
        )

    def _answer(self, request: HttpRequest, name: str, verb: str, now: int) -> dict[str, object]:
        method = request.method
        if not name:
            if method != "GET":
                raise ArgumentError(f"{method[:20]} needs the name of a rule: {ACCESS_RULES_PATH}/NAME.")
            return {"rules": [self._shown(rule) for rule in self._namespace.access_rules]}
        if method == "POST" and verb == ROTATE:
            return self._rotate(self._rule(name), _object(request.body), now)
        if verb or method not in ("GET", "PUT", "DELETE"):
            raise NotSupported(
                f"{method[:20]} on this address is not offered: use GET, PUT or DELETE with the name of a rule, or POST with "
                f"NAME/{ROTATE}."
            )
        if method == "PUT":
            return self._set(name, _object(request.body), now)
        rule = self._rule(name)
        if method == "DELETE":
            return self._remove(rule, now)
        keys = {"primary_key": rule.primary_key, "secondary_key": rule.secondary_key}
        return {**self._shown(rule), **keys}

    def _set(self, name: str, given: dict[str, object], now: int) -> dict[str, object]:
        rules = {rule.name: rule for rule in self._namespace.access_rules}
        held = rules.get(name)
        _check_fields(given, ("rights", "primary_key", "secondary_key"))
        if held is None:
            check_new_name(name)
        rights = given.get("rights", list(held.rights) if held is not None else None)
        if not isinstance(rights, list) or not rights or not all(isinstance(one, str) for one in rights):
            raise ArgumentError(f"'rights' must be a list of one or more of {', '.join(RIGHTS)}.")
        wanted = tuple(dict.fromkeys(rights))
        if name == ROOT_RULE and set(wanted) != set(RIGHTS):
            raise ArgumentError(f"'{ROOT_RULE}' has all rights, and keeps them: make another rule.")
        if held is None and len(rules) >= ACCESS_RULES_MAX:
            raise ArgumentError(
                f"The namespace has {len(rules)} access rules: at most {ACCESS_RULES_MAX} are allowed. Remove one first."
            )
        primary, secondary = _key(given, "primary_key", name), _key(given, "secondary_key", name)
        if held is None:
            rule = AccessRule(
                name=name,
                rights=wanted,
                primary_key=primary or self._new_key(now),
                secondary_key=secondary or self._new_key(now),
                created_at=now,
                modified_at=now,
            )
        else:
            rule = replace(
                held,
                rights=wanted,
                primary_key=primary or held.primary_key,
                secondary_key=secondary or held.secondary_key,
                modified_at=now,
            )
        rules[name] = rule
        self._namespace.set_access_rules(tuple(rules.values()), now)
        return self._shown(rule)

    def _rotate(self, rule: AccessRule, given: dict[str, object], now: int) -> dict[str, object]:
        _check_fields(given, ("key", "value"))
        which = given.get("key", PRIMARY)
        if which not in (PRIMARY, SECONDARY):
            raise ArgumentError(f"'key' must be {PRIMARY} or {SECONDARY}: it says which one is replaced.")
        key = _key(given, "value", rule.name) or self._new_key(now)
        changed = (
            replace(rule, primary_key=key, modified_at=now)
            if which == PRIMARY
            else replace(rule, secondary_key=key, modified_at=now)
        )
        rules = tuple(changed if one.name == rule.name else one for one in self._namespace.access_rules)
        self._namespace.set_access_rules(rules, now)
        return self._shown(changed)

    def _remove(self, rule: AccessRule, now: int) -> dict[str, object]:
        if rule.name == ROOT_RULE:
            raise ArgumentError(
                f"'{ROOT_RULE}' cannot be removed: somebody must be able to manage the namespace. Replace its keys instead."
            )
        rules = tuple(one for one in self._namespace.access_rules if one.name != rule.name)
        self._namespace.set_access_rules(rules, now)
        return self._shown(rule)

    def _rule(self, name: str) -> AccessRule:
        for rule in self._namespace.access_rules:
            if rule.name == name:
                return rule
        raise AccessRuleNotFound(f"The namespace has no access rule '{name[:RULE_SHOWN_MAX]}'.")

    def _shown(self, rule: AccessRule) -> dict[str, object]:
        return {
            "name": rule.name,
            "rights": list(rule.rights),
            "declared": rule.name in self._namespace.declared_rules,
            "created_at": rule.created_at,
            "modified_at": rule.modified_at,
        }

    def _new_key(self, now: int) -> str:
        self._keys_made += 1
        made = hashlib.blake2b(
            f"{now} {self._keys_made}".encode(), digest_size=KEY_BYTES, key=self._secret
        ).digest()
        return base64.b64encode(made).decode("ascii")


def _object(body: bytes) -> dict[str, object]:
    try:
        value = json.loads(body) if body else {}
    except ValueError as error:
        raise ArgumentError(f"The body is not JSON: {error}.") from None
    except RecursionError:
        raise ArgumentError(
            "The body is nested too deeply: it is one JSON object without further ones."
        ) from None
    if not isinstance(value, dict):
        raise ArgumentError("The body must be a JSON object.")
    return value


def _check_fields(given: dict[str, object], known: tuple[str, ...]) -> None:
    for field in given:
        if field not in known:
            raise ArgumentError(
                f"The body has the unknown field {field[:RULE_SHOWN_MAX]!a}: the fields are {', '.join(known)}."
            )


def _key(given: dict[str, object], field: str, name: str) -> str | None:
    """A key that is given for a rule; None: it is not."""
    value = given.get(field)
    if value is None:
        return None
    if not isinstance(value, str):
        raise ArgumentError(f"'{field}' must be a text.")
    check_new_key(name, value)
    return value
