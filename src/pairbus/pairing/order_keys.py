"""What a message is kept in order by: read from a message that is to be sent, and from one that a look has shown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pairbus.pairing import parking
from pairbus.pairing.naming import PrimaryIdentity, entity_key
from pairbus.pairing.parking import Passport, order_key
from pairbus.pairing.rules.order_values import Seen
from pairbus.sdk.messages import sections

if TYPE_CHECKING:
    from collections.abc import Mapping

_MESSAGE_ID, _GROUP = 0, 10


def key_of(payload: bytes, order: str) -> str | None:
    """The session or partition key of an encoded message; None when it has no order, as every scheduled one."""
    parts = sections.split(payload)
    properties = sections.list_items(sections.find(parts, sections.PROPERTIES))
    session = sections.text_of(properties[_GROUP]) if len(properties) > _GROUP else None
    partition = None
    for key, value in sections.map_items(sections.find(parts, sections.MESSAGE_ANNOTATIONS)):
        name = sections.text_of(key)
        if name == parking.ANNOTATION_SCHEDULE and sections.timestamp_of(value) is not None:
            return None
        if name == parking.ANNOTATION_PARTITION:
            partition = sections.text_of(value)
    return order_key(order, session, partition)


def message_id_of(payload: bytes) -> str:
    """The message id of an encoded message, for people."""
    properties = sections.list_items(sections.find(sections.split(payload), sections.PROPERTIES))
    return parking.message_id_text(properties[_MESSAGE_ID]) if properties else ""


def seen_of(message: Any, order: str, identity: PrimaryIdentity) -> Seen | None:
    """A peeked backlog message as the order sees it. None when it has none there, or belongs to another primary."""
    given: Mapping[Any, Any] = message.application_properties or {}
    path = _text(given, parking.ALIAS_PATH)
    if path is None or _value(given, parking.ALIAS_SCHEDULE) is not None:
        return None
    key = order_key(order, _text(given, parking.ALIAS_SESSION), _text(given, parking.ALIAS_PARTITION))
    if key is None:
        return None
    passport = _passport(_text(given, parking.ALIAS_PASSPORT))
    if not identity.accepts(passport.primary):
        return None
    return Seen(
        (entity_key(path), key),
        str(message.message_id or ""),
        passport.factory,
        passport.detour,
        passport.first_send_ms,
    )


def _passport(text: str | None) -> Passport:
    try:
        return Passport.parse(text or "")
    except (ValueError, TypeError, LookupError, ArithmeticError, RecursionError):
        # The retired SDK writes none, and other programs may write anything. It is in the queue, and that is what counts.
        return Passport("", 0, 0, "")


def _value(given: Mapping[Any, Any], name: str) -> Any:
    found = given.get(name.encode())
    return given.get(name) if found is None else found


def _text(given: Mapping[Any, Any], name: str) -> str | None:
    value = _value(given, name)
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return value if isinstance(value, str) else None
