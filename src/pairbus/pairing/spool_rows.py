"""Messages of a spool as rows: for people, and as a ledger that ``pairbus reconcile`` reads."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from pairbus.errors import RemoteProtocolError
from pairbus.pairing.parking import message_id_text
from pairbus.sdk.messages import sections
from pairbus.spool import reading
from pairbus.spool.file import Content, Spooled

DAMAGED: Final = "its bytes are damaged"
"""The detail of a message whose checksum is another one."""
_DATA = 0x75
_GROUP = 10


def rows(root: Path, problems: list[str]) -> Iterator[dict[str, object]]:
    """One row for each message in the spools of a directory; ``problems`` gets a sentence for each spool that is damaged."""
    for directory, message in reading.messages(root, problems):
        yield row_of(directory, message)


def row_of(directory: Path, message: Spooled) -> dict[str, object]:
    """A message with what can be read of it, and all its bytes (``raw``, base64)."""
    row: dict[str, object] = {
        "spool": str(directory),
        "number": message.number,
        "entity": message.path,
        "time": datetime.fromtimestamp(message.at_ms / 1000, UTC).isoformat(timespec="milliseconds"),
        "kind": "held",
        "detail": DAMAGED if message.is_damaged else message.reason or "",
    }
    parts, properties = _read(message.payload)
    body = b"".join(_body_part(part) for part in parts if part.code in sections.BODIES)
    group = properties[_GROUP] if len(properties) > _GROUP else sections.NULL
    row |= {
        "message_id": _id_text(properties),
        "session_id": None if group == sections.NULL else sections.text_of(group),
        "sha256": hashlib.sha256(body).hexdigest(),
        "body": body.decode("utf-8", "replace"),
        "raw": base64.b64encode(message.payload).decode("ascii"),
    }
    return row


def message_id_of(message: Spooled) -> str:
    """The message id, for people; empty when there is none, or it cannot be read."""
    return _id_text(_read(message.payload)[1])


def left_behind_text(spool: reading.Listed, content: Content, primary: str, address: str, now_ms: int) -> str:
    """Why a client of ``primary`` at ``address`` does not replay what a spool holds, and the way out."""
    about = spool.about
    count = "1 message" if content.count == 1 else f"{content.count:,} messages"
    age_s = (content.age_ms(now_ms) or 0) // 1000
    text = f"{count} in the spool {spool.directory}, the oldest {age_s:,} s old, are not replayed: the spool is for {about.primary} at {about.address}"
    if about.primary.lower() != primary.lower():
        return f"{text}, and this client is for {primary}. A client of {about.primary} replays it, also `pairbus spool replay`"
    return (
        f"{text}, and this client reaches {primary} at {address}. If that is the same broker, give primary_aliases=[{about.address!r}] "
        f"(on the command line --primary-alias {about.address}); if not, a client of that broker replays it"
    )


def _read(payload: bytes) -> tuple[list[sections.Section], list[bytes]]:
    """As much as can be read of the sections, and of the properties: in damaged ones the message id may still be whole."""
    parts: list[sections.Section] = []
    try:
        parts = sections.split(payload)
        value = sections.find(parts, sections.PROPERTIES)
        try:
            return parts, sections.list_items(value)
        except RemoteProtocolError:
            return parts, sections.first_item(value or sections.NULL)
    except (RemoteProtocolError, ValueError, IndexError):
        return parts, []


def _id_text(properties: list[bytes]) -> str:
    return message_id_text(properties[0]) if properties and properties[0] != sections.NULL else ""


def _body_part(part: sections.Section) -> bytes:
    """The bytes of a data section; of another body the encoded value, as the audit log of a broker has it."""
    if part.code != _DATA:
        return part.value
    return part.value[2:] if part.value[0] == 0xA0 else part.value[5:]
