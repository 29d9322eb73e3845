"""Who may do what: shared-access signatures, rules, rights (M1–M5).

Rule 1: denied unless granted; authorisation is checked before existence.
Rule 2: a token's scope is compared by whole path segments on one canonical form (M2).
Rule 3: a token ends by the wall clock, as its issuer meant it. The broker's own clock may be ahead of that for hours after the
        machine's clock was set back, so its lead is added to every expiry.
Rule 4: keys and signatures are compared in constant time and appear in no text (M7).
Rule 5: nobody learns before he has shown a key whether a rule of some name exists: an unknown name and a wrong signature have
        the same answer, after the same work.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, unquote_plus

from pairbus.errors import Unauthorized
from pairbus.gateway.addressing import parse, path_of
from pairbus.gateway.atom.times import instant
from pairbus.model.access import LISTEN, MANAGE, SEND, AccessRule, key_bytes
from pairbus.model.names import canonical

if TYPE_CHECKING:
    from collections.abc import Callable

    from pairbus.engine.namespace import Namespace

PATH_LENGTH_MAX: Final = 400
"""More than the longest path: a topic's 260 characters, ``/subscriptions/``, a subscription's 50."""
TOKEN_LENGTH_MAX: Final = 8_192
RULE_NAME_SHOWN_MAX: Final = 256
_PREFIX: Final = "sharedaccesssignature"
_EXPIRY_MAX: Final = 253_402_300_799
"""The last second of the year 9999."""
_EXPIRY_DIGITS: Final = 12
FOREVER: Final = 1 << 62
_NOBODY: Final = AccessRule(name="nobody", rights=(), primary_key="0" * 44, secondary_key="1" * 44)
"""Stands for a rule that does not exist, so that looking for one takes the same time. It opens nothing."""


@dataclass(slots=True, eq=False, repr=False)
class Grant:
    """What one verified token, or one SASL PLAIN log-in, allows."""

    path: str
    """Canonical path of the token's scope; empty: the whole namespace."""
    rule_path: str | None
    """The entity that holds the rule; None: the namespace does."""
    rule_name: str
    key: str
    expires_at: int
    """By the wall clock; see ``Access.ends_at``."""
    second_path: str | None = None
    """An entity whose rule has the same name and the same key as the namespace's: the key opens what either of them allows."""

    def __repr__(self) -> str:
        return f"Grant(path={self.path!r}, rule={self.rule_name!r})"

    def renews(self, other: Grant) -> bool:
        """Whether this allows all that another one did, and for as long."""
        return (
            self.path == other.path
            and self.rule_path == other.rule_path
            and self.second_path == other.second_path
            and self.rule_name == other.rule_name
            and self.key == other.key
            and self.expires_at >= other.expires_at
        )


def _no_lead() -> int:
    return 0


def covers(scope: str, path: str) -> bool:
    """Whether a canonical scope covers a canonical path: equal, or above it by whole segments."""
    return not scope or path == scope or path.startswith(scope + "/")


def is_part_of(entity: str, path: str) -> bool:
    """Whether a canonical path is an entity's own: itself, its subscriptions, or one of its nodes.

    Not simply everything below: ``a/b`` may be another entity, which a key of ``a`` must not open.
    """
    if path == entity:
        return True
    rest = path[len(entity) + 1 :] if path.startswith(entity + "/") else ""
    return rest.startswith(("subscriptions/", "$")) or rest == "subscriptions"


class Access:
    """Judges tokens against the namespace's rules as they are at this moment, so rotation needs no restart."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self.lead_ms: Callable[[], int] = _no_lead
        """How far the clock that gives ``now`` is ahead of the wall clock."""

    def ends_at(self, grant: Grant) -> int:
        """When a grant ends, by the clock that gives ``now``."""
        return grant.expires_at + self.lead_ms()

    def _rules_named(self, name: str, path: str) -> list[tuple[AccessRule, str | None]]:
        """Two rules of this name: the namespace's, and that of the nearest entity at or above the path, with the entity. Both may exist,
        with different keys or with the same. ``_NOBODY`` stands for each that does not.
        """
        own = next((rule for rule in self._namespace.access_rules if rule.name == name), _NOBODY)
        return [(own, None), self._entity_rule(name, path)]

    def _entity_rule(self, name: str, path: str) -> tuple[AccessRule, str | None]:
        path = parse(path).path
        if len(path) > PATH_LENGTH_MAX:
            return (
                _NOBODY,
                None,
            )  # nothing has such a name, and strangers make us look: once for each of its segments
        while path:  # a token may name something that is still to be made, such as a new subscription
            entity = self._namespace.find(path)
            if entity is not None:
                for rule in entity.settings.access_rules:
                    if rule.name == name:
                        return rule, canonical(entity.path)
            path = path.rpartition("/")[0]
        return _NOBODY, None

    def log_in(self, user: str, password: str) -> Grant | None:
        """SASL PLAIN: a namespace rule's name and one of its keys, as text."""
        rule = next((rule for rule in self._namespace.access_rules if rule.name == user), _NOBODY)
        given = key_bytes(password)
        key = None if given is None else _matching_key(rule, given)
        return None if rule is _NOBODY or key is None else Grant("", None, user, key, FOREVER)

    def verify(self, token: str, now: int) -> Grant:
        """Check a shared-access signature. Raises Unauthorized with the service's wording."""
        fields = _fields_of(token)
        scope = _scope_of(fields["sr"])
        expiry = fields["se"]
        # The length first: Python refuses to read thousands of digits.
        if (
            len(expiry) > _EXPIRY_DIGITS
            or not (expiry.isascii() and expiry.isdigit())
            or int(expiry) > _EXPIRY_MAX
        ):
            raise Unauthorized("MalformedToken: The token's expiry is not a number of seconds in range.")
        expires_at = int(expiry) * 1000
        name = unquote(fields["skn"])
        signed, signature = (fields["sr"] + "\n" + expiry).encode(), unquote(fields["sig"])
        key: str | None = None
        rule_path: str | None = None
        second_path: str | None = None
        for rule, path in self._rules_named(name, scope):
            # Each is tried, whatever the first one gave: the time tells nothing (rule 5).
            found = _signing_key(rule, signed, signature)
            if found is None or rule is _NOBODY:
                continue
            if key is None:
                key, rule_path = found, path
            elif path is not None and is_part_of(path, scope):
                second_path = path
        if key is None:
            raise Unauthorized(
                "InvalidSignature: The token has an invalid signature, or names an unknown authorization rule."
            )
        if rule_path is not None and not is_part_of(rule_path, scope):
            raise Unauthorized("InvalidAudience: The token's scope is wider than its authorization rule.")
        if expires_at + self.lead_ms() <= now:
            raise Unauthorized(
                f"ExpiredToken: The token is expired. Expiration time: '{instant(expires_at)}'."
            )
        return Grant(scope, rule_path, name, key, expires_at, second_path)

    def allows(self, grant: Grant, path: str, right: str, now: int) -> bool:
        """Whether a grant still gives a right on a path: not expired, key not replaced, scope wide enough."""
        if self.ends_at(grant) <= now or not covers(grant.path, canonical(path)):
            return False
        if self._rule_allows(grant, grant.rule_path, path, right):
            return True
        return grant.second_path is not None and self._rule_allows(grant, grant.second_path, path, right)

    def _rule_allows(self, grant: Grant, rule_path: str | None, path: str, right: str) -> bool:
        """Whether the rule that this entity, or the namespace, has now gives the right on a path to the grant's key."""
        if rule_path is None:
            rules = self._namespace.access_rules
        else:
            entity = self._namespace.find(rule_path)
            rules = () if entity is None else entity.settings.access_rules
            if not is_part_of(rule_path, canonical(path)):
                return False
        for rule in rules:
            if rule.name == grant.rule_name:
                return rule.grants(right) and grant.key in (rule.primary_key, rule.secondary_key)
        return False

    def knows(self, header: str | None, now: int) -> bool:
        """Whether an Authorization header proves that the caller holds a key, whatever right that key gives."""
        if not header:
            return False
        try:
            basic = _basic(header)
            if basic is not None:
                return self.log_in(*basic) is not None
            self.verify(header, now)
        except Unauthorized:
            return False
        return True

    def check_scrape(self, header: str | None, now: int) -> None:
        """Any right on the whole namespace is enough to read its counts. By token, or by a rule's name and key (Basic)."""
        grant = _basic(header or "")
        if grant is not None:
            if self.log_in(*grant) is None:
                raise Unauthorized("InvalidCredentials: The rule's name or its key is wrong.")
            return
        for right in (LISTEN, SEND, MANAGE):
            try:
                self.check_http(header, "", right, now)
            except Unauthorized:
                if right == MANAGE:
                    raise
            else:
                return

    def check_http(self, header: str | None, path: str, right: str, now: int) -> str:
        """Authorise one HTTP request by its header; the name of the rule that did."""
        if not header:
            raise Unauthorized("MissingToken: The request has no Authorization header.")
        grant = self.verify(header, now)
        if not self.allows(grant, path, right, now):
            raise Unauthorized(missing_claim(right, path))
        return grant.rule_name


def _basic(header: str) -> tuple[str, str] | None:
    """User and password of HTTP's Basic scheme; None if the header is of another."""
    scheme, _, rest = header.strip().partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        user, _, password = base64.b64decode(rest.strip(), validate=True).decode().partition(":")
    except ValueError:
        raise Unauthorized("MalformedToken: The Basic credentials cannot be read.") from None
    return user, password


def missing_claim(right: str, path: str) -> str:
    """The service's wording for a right that is not there."""
    return (
        f"Unauthorized access. '{right}' claim(s) are required to perform this operation. Resource: '{path}'."
    )


def claimed_rule(token: str) -> str:
    """The rule that a token names, for logs alone: nothing is verified. Empty if there is none."""
    try:
        return unquote(_fields_of(token)["skn"])[:RULE_NAME_SHOWN_MAX]
    except Unauthorized:
        return ""


def _fields_of(token: str) -> dict[str, str]:
    name, _, rest = token.strip().partition(" ")
    if len(token) > TOKEN_LENGTH_MAX or name.lower() != _PREFIX:
        raise Unauthorized("MalformedToken: The token is not a shared access signature.")
    fields: dict[str, str] = {}
    for part in rest.strip().split("&"):
        key, separator, value = part.partition("=")
        if not separator or key in fields:
            raise Unauthorized("MalformedToken: The token is not a shared access signature.")
        fields[key] = value
    if set(fields) != {"sr", "sig", "se", "skn"}:
        raise Unauthorized("MalformedToken: The token needs exactly the fields sr, sig, se and skn.")
    return fields


def _scope_of(resource: str) -> str:
    """The canonical path that a token's ``sr`` names. The host is not compared: a broker may have many names."""
    # Some clients quote with '+', others with '%20'; names hold neither, so both decode alike.
    text = unquote_plus(resource).partition("?")[0]
    scope = canonical(path_of(text if "://" in text else "sb://" + text))
    if (
        "%" in scope
        or "\\" in scope
        or any(part in ("", ".", "..") for part in scope.split("/")[1:])
        or scope in (".", "..")
    ):
        raise Unauthorized("InvalidAudience: The token's resource is not a plain path.")
    return scope


def _signing_key(rule: AccessRule, signed: bytes, signature: str) -> str | None:
    found: str | None = None
    for key in (rule.primary_key, rule.secondary_key):
        held = key_bytes(key)
        if held is None:
            continue
        expected = base64.b64encode(hmac.new(held, signed, hashlib.sha256).digest())
        if hmac.compare_digest(expected, signature.encode()):
            found = key
    return found


def _matching_key(rule: AccessRule, password: bytes) -> str | None:
    found: str | None = None
    for key in (rule.primary_key, rule.secondary_key):
        held = key_bytes(key)
        if held is not None and hmac.compare_digest(held, password):
            found = key
    return found
