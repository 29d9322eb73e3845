"""Names of entities: what is allowed, and the one form in which they are compared (M2, M9)."""

from __future__ import annotations

from typing import Final

from pairbus.errors import InvalidEntity

ENTITY_NAME_MAX: Final = 260
SUBSCRIPTION_NAME_MAX: Final = 50
RULE_NAME_MAX: Final = 50
_PUNCTUATION: Final = "._-"


def canonical(path: str) -> str:
    """The form in which paths are compared: no slashes at the ends, letter case folded."""
    return path.strip("/").lower()


def check_entity_name(name: str) -> None:
    """Refuse a queue or topic name that Service Bus would refuse."""
    _check(name, ENTITY_NAME_MAX, "queue or topic", slashes=True)
    segments = name.split("/")
    if "" in segments or "." in segments or ".." in segments:
        raise InvalidEntity(f"'{name}' is not a queue or topic name: a path segment is empty, '.' or '..'.")
    if any(segment.lower() == "subscriptions" for segment in segments[1:]):
        raise InvalidEntity(f"'{name}' is not a queue or topic name: 'subscriptions' is a reserved segment.")


def check_subscription_name(name: str) -> None:
    """Refuse a subscription name that Service Bus would refuse."""
    _check(name, SUBSCRIPTION_NAME_MAX, "subscription", slashes=False)


def check_rule_name(name: str) -> None:
    """Refuse a rule name that Service Bus would refuse; ``$Default`` is the one with a dollar sign."""
    if name.lower() != "$default":
        _check(name, RULE_NAME_MAX, "rule", slashes=False)


def subscription_path(topic: str, subscription: str) -> str:
    """The path under which a subscription is received from."""
    return f"{topic}/Subscriptions/{subscription}"


def _check(name: str, limit: int, kind: str, slashes: bool) -> None:
    if not name or len(name) > limit:
        raise InvalidEntity(
            f"'{name[:80]}' is not a {kind} name: it needs 1 to {limit} characters, not {len(name)}."
        )
    allowed = _PUNCTUATION + "/" if slashes else _PUNCTUATION
    for character in name:
        if not (character.isascii() and character.isalnum()) and character not in allowed:
            raise InvalidEntity(
                f"'{name}' is not a {kind} name: {character!r} is not allowed; use letters, digits and {allowed}."
            )
    if not (name[0].isalnum() and name[-1].isalnum()):
        raise InvalidEntity(f"'{name}' is not a {kind} name: it must begin and end with a letter or digit.")
