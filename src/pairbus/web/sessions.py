"""Who is signed in to the page: a bounded number of sessions with a bounded life, each with the rights of one rule.

Rule 1: a session is as strong as its rule is now: rotation of the key ends it at once (M5).
Rule 2: the cookie alone changes nothing; every change also needs the session's anti-forgery token (M10).
Rule 3: secrets are compared in constant time and shown by nothing here (M7).
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from typing import Final

from pairbus.gateway.rights.access import FOREVER, Access, Grant
from pairbus.model.access import LISTEN, MANAGE, SEND, AccessRule, key_bytes
from pairbus.model.names import canonical

SESSIONS_MAX: Final = 64
"""The oldest goes when there are more."""
LIFE_MS: Final = 8 * 3_600_000
FAILURES_MAX: Final = 10
"""Wrong keys from one address within a minute; then that address waits."""
FAILURES_WINDOW_MS: Final = 60_000
ADDRESSES_MAX: Final = 1_000
COOKIE_PREFIX: Final = "pairbus-"
RIGHTS: Final = (LISTEN, SEND, MANAGE)
_NOBODY: Final = AccessRule(name="nobody", rights=(LISTEN,), primary_key="-" * 44, secondary_key="-" * 44)
"""Stands in for a rule that does not exist, so that the answer takes as long as for one that does."""


class Session:
    __slots__ = ("ends_at", "forgery_token", "grant")

    def __init__(self, grant: Grant, forgery_token: str, ends_at: int) -> None:
        self.grant = grant
        self.forgery_token = forgery_token
        self.ends_at = ends_at

    def __repr__(self) -> str:
        return f"Session(grant={self.grant!r})"


class Sessions:
    """All sessions of one page. ``new_secret`` gives fresh, unguessable text."""

    def __init__(self, new_secret: Callable[[], str]) -> None:
        self._new_secret = new_secret
        self._sessions: dict[str, Session] = {}
        self._failures: dict[str, list[int]] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, grant: Grant, now: int) -> tuple[str, Session]:
        """Begin a session; the cookie's value and the session."""
        self._forget(now)
        while len(self._sessions) >= SESSIONS_MAX:
            del self._sessions[next(iter(self._sessions))]
        cookie, session = self._new_secret(), Session(grant, self._new_secret(), now + LIFE_MS)
        self._sessions[cookie] = session
        return cookie, session

    def find(self, cookie: str, now: int) -> Session | None:
        """The session behind a cookie, if it still lives."""
        session = self._sessions.get(cookie)
        return session if session is not None and session.ends_at > now else None

    def close(self, cookie: str) -> None:
        """End a session. Idempotent."""
        self._sessions.pop(cookie, None)

    def _forget(self, now: int) -> None:
        for cookie in [cookie for cookie, session in self._sessions.items() if session.ends_at <= now]:
            del self._sessions[cookie]

    # -- wrong keys ----------------------------------------------------------------------------

    def must_wait_ms(self, address: str, now: int) -> int:
        """How long an address must wait before it may try a key again; 0: not at all."""
        recent = [at for at in self._failures.get(address, ()) if at > now - FAILURES_WINDOW_MS]
        return recent[0] + FAILURES_WINDOW_MS - now if len(recent) >= FAILURES_MAX else 0

    def failed(self, address: str, now: int) -> None:
        """A wrong key came from an address."""
        recent = [at for at in self._failures.pop(address, ()) if at > now - FAILURES_WINDOW_MS]
        while len(self._failures) >= ADDRESSES_MAX:
            del self._failures[next(iter(self._failures))]
        self._failures[address] = [*recent, now]


def sign_in(
    access: Access, rules: tuple[AccessRule, ...], entity_path: str | None, name: str, key: str
) -> Grant | None:
    """The grant of a rule's name and one of its keys; ``entity_path`` when an entity holds the rule."""
    if entity_path is None:
        return access.log_in(name, key) or _compare(_NOBODY, None, key)
    found = next((rule for rule in rules if rule.name == name), _NOBODY)
    return _compare(found, entity_path, key)


def _compare(rule: AccessRule, entity_path: str | None, key: str) -> Grant | None:
    matching: str | None = None
    given = key_bytes(key)
    for held in (rule.primary_key, rule.secondary_key):
        known = key_bytes(held)
        if known is not None and given is not None and hmac.compare_digest(known, given):
            matching = held
    if matching is None or rule is _NOBODY or entity_path is None:
        return None
    path = canonical(entity_path)
    return Grant(path, path, rule.name, matching, FOREVER)


def rights_of(access: Access, grant: Grant, path: str, now: int) -> list[str]:
    """The rights that a grant gives on a path at this moment."""
    return [right for right in RIGHTS if access.allows(grant, path, right, now)]
