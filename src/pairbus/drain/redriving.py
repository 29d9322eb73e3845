"""A dead letter of the backlog as it goes back into its backlog queue."""

from __future__ import annotations

from typing import Final

from pairbus.pairing import parking
from pairbus.pairing.client.sending.limits import (
    BACKLOG_LIMIT_BYTES,
    ENVELOPE_BYTES,
    HEADER_LIMIT_BYTES,
    header_bytes,
)
from pairbus.pairing.parking import ALIAS_REDRIVEN
from pairbus.sdk.messages import sections

MARKS: Final = ("DeadLetterReason", "DeadLetterErrorDescription", ALIAS_REDRIVEN)
_TRUE: Final = b"\x41"


def redriven(payload: bytes) -> bytes:
    """The message as it was before it was dead-lettered, with the mark that tells the audit log that nobody sent it again. One that just fits into
    its queue goes without.
    """
    marked = _written(payload, is_marked=True)
    fits = len(marked) + ENVELOPE_BYTES <= BACKLOG_LIMIT_BYTES and header_bytes(marked) <= HEADER_LIMIT_BYTES
    return marked if fits else _written(payload, is_marked=False)


def _written(payload: bytes, *, is_marked: bool) -> bytes:
    parts = sections.split(payload)
    items = sections.map_items(sections.find(parts, sections.APPLICATION_PROPERTIES))
    kept = [item for item in items if sections.text_of(item[0]) not in MARKS]
    if is_marked:
        kept.append((sections.encode_text(ALIAS_REDRIVEN), _TRUE))
    annotations = [
        item
        for item in sections.map_items(sections.find(parts, sections.MESSAGE_ANNOTATIONS))
        if sections.text_of(item[0]) not in sections.BROKER_ANNOTATIONS
    ]
    parts = sections.replace(parking.without_broker_parts(parts), sections.HEADER, None)
    for code, items in (
        (sections.APPLICATION_PROPERTIES, kept),
        (sections.MESSAGE_ANNOTATIONS, annotations),
    ):
        parts = sections.replace(parts, code, sections.encode_map(items) if items else None)
    return sections.join(parts)
