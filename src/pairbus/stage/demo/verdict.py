"""The demo's own proof: whether every accepted message arrived, unchanged, everywhere it should."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pairbus.stage.book import Book

NAMED_MAX: Final = 20
"""Lost messages named in the verdict."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The certificate in short. ``holds`` when everything accepted arrived unchanged everywhere it should."""

    holds: bool
    sent: int
    accepted: int
    unknown: int
    """Sends whose outcome the sender could not learn; they may have arrived or not."""
    arrived: int
    lost: int
    duplicated: int
    """Copies that a destination stored beyond the first."""
    redelivered: int
    """Deliveries of the same stored message a second time: its completion was lost with the broker."""
    changed: int
    """Deliveries whose bytes differ from the bytes that were sent."""
    unexpected: int
    """Deliveries of messages that nobody sent there."""
    lost_names: tuple[str, ...]


def judge(book: Book) -> Verdict:
    """Judge everything written down so far."""
    messages = {message.message_id: message for message in book.messages()}
    deliveries = book.deliveries()
    accepted = [message for message in messages.values() if message.accepted_ms is not None]
    changed = unexpected = 0
    for delivery in deliveries:
        message = messages.get(delivery.message_id)
        is_expected = message is not None and delivery.place in book.destinations[message.entity]
        unexpected += not is_expected
        changed += message is not None and message.sha256 != delivery.sha256
    lost = [
        (place, message.message_id)
        for message in accepted
        for place in book.destinations[message.entity]
        if place not in {copy_place for copy_place, _ in message.copies}
    ]
    stored = {(one.place, one.message_id, one.sequence_number) for one in deliveries}
    duplicated = len(stored) - len({(place, message_id) for place, message_id, _ in stored})
    return Verdict(
        holds=bool(accepted) and not lost and not changed and not unexpected,
        sent=len(messages),
        accepted=len(accepted),
        unknown=len(messages) - len(accepted),
        arrived=len(accepted) - len({message_id for _, message_id in lost}),
        lost=len(lost),
        duplicated=duplicated,
        redelivered=len(deliveries) - len(stored),
        changed=changed,
        unexpected=unexpected,
        lost_names=tuple(f"{place}: {message_id}" for place, message_id in lost[:NAMED_MAX]),
    )


def write_ledgers(book: Book, directory: Path, wall_offset_ms: int) -> tuple[Path, Path]:
    """Write the accepted messages and the deliveries as files that ``pairbus reconcile`` reads; return their paths.

    ``wall_offset_ms`` is what to add to a time of the book for the time since 1970.
    """
    sent = [
        _row(
            "sent",
            message.entity,
            message.message_id,
            message.sha256,
            message.begun_ms + wall_offset_ms,
            None,
        )
        for message in book.messages()
        if message.accepted_ms is not None
    ]
    received = [
        _row(
            "completed",
            one.place,
            one.message_id,
            one.sha256,
            one.at_ms + wall_offset_ms,
            one.sequence_number,
        )
        for one in book.deliveries()
    ]
    files = directory / "sent.jsonl", directory / "received.jsonl"
    for file, rows in zip(files, (sent, received), strict=True):
        file.write_text("\n".join(rows) + "\n")
    return files


def _row(kind: str, entity: str, message_id: str, sha256: str, at_ms: int, number: int | None) -> str:
    return json.dumps(
        {
            "kind": kind,
            "entity": entity,
            "message_id": message_id,
            "sha256": sha256,
            "time": str(at_ms),
            "sequence_number": number,
        }
    )
