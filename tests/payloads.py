"""Reads encoded messages for tests that compare what was sent with what arrived."""

from __future__ import annotations

from pairbus.drain.rules.order import Seen
from pairbus.errors import InvalidParkedPropertyError
from pairbus.pairing import parking
from pairbus.sdk.messages import sections


def message_id_of(payload: bytes) -> str:
    """The message id of an encoded message as text; empty when there is none."""
    properties = sections.list_items(sections.find(sections.split(payload), sections.PROPERTIES))
    return parking.message_id_text(properties[0]) if properties and properties[0] != sections.NULL else ""


def seen_of(number: int, payload: bytes | None, enqueued_ms: int | None) -> Seen:
    """A backlog message as browsing shows it."""
    try:
        restored = None if payload is None else parking.restore(payload, 0)
    except InvalidParkedPropertyError:
        restored = None
    if restored is None:
        return Seen(number, "", None, enqueued_ms)
    key = restored.partition_key if restored.session_id is None else restored.session_id
    passport = "" if restored.passport is None else restored.passport.text()
    return Seen(number, restored.path, key, enqueued_ms, passport)
