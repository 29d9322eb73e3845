"""Reads encoded messages for tests that compare what was sent with what arrived."""

from __future__ import annotations

from pairbus.pairing import parking
from pairbus.sdk import sections


def message_id_of(payload: bytes) -> str:
    """The message id of an encoded message as text; empty when there is none."""
    properties = sections.list_items(sections.find(sections.split(payload), sections.PROPERTIES))
    return parking.message_id_text(properties[0]) if properties and properties[0] != sections.NULL else ""
