"""Paths that no backlog message may be delivered to. No clock, no I/O."""

from __future__ import annotations

from typing import Final

from pairbus.pairing.naming import TRANSFER_SEGMENT
from pairbus.pairing.parking import PATH_CHARACTERS_MAX

_NEVER_IN_NAMES: Final = "%@?#*\\"
"""No entity has these characters in its name. An address with them means another entity, or none, depending on which
program decodes it: ``a%2fb`` would be refused for ever."""

_SUBSCRIPTIONS: Final = "subscriptions"
"""No queue or topic has this as a later segment of its name."""


def forbidden(path: str) -> str | None:
    """Why no message may go to a path, or None when it may."""
    segments = path.strip("/").split("/")
    if len(path) > PATH_CHARACTERS_MAX:
        return f"expected at most {PATH_CHARACTERS_MAX} characters, found {len(path)}"
    if any(segment.startswith("$") for segment in segments):
        return f"expected an entity, found the system path {path!r}"
    if any(segment.lower() == TRANSFER_SEGMENT for segment in segments):
        return f"expected an entity, found the backlog queue {path!r}: the message would go round for ever"
    strange = next((one for one in path if one in _NEVER_IN_NAMES or not one.isprintable()), None)
    if strange is not None:
        return f"expected the name of an entity, found {path!r}: no name contains {strange!r}"
    if any(segment.lower() == _SUBSCRIPTIONS for segment in segments[1:]):
        return (
            f"expected a queue or a topic, found {path!r}: a subscription takes messages from its topic only"
        )
    if any(segment in ("", ".", "..") for segment in segments):
        return f"expected an entity, found {path!r}"
    return None
