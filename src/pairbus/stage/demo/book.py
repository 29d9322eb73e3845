"""What senders were told and what consumers got, message by message: the demo's own proof. Safe for many threads."""

from __future__ import annotations

import json
import threading
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Final

NAMED_MAX: Final = 20
"""Lost messages named in the verdict."""


@dataclass(frozen=True, slots=True)
class Sent:
    """One message that a sender handed over."""

    entity: str
    message_id: str
    sha256: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class Got:
    """One delivery that a consumer completed."""

    place: str
    """A queue, or ``topic/Subscriptions/name``."""
    message_id: str
    sha256: str
    sequence_number: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """The certificate in short. ``holds`` when everything accepted arrived whole everywhere it should."""

    holds: bool
    sent: int
    accepted: int
    unknown: int
    """Sends whose outcome the sender could not learn; they may have arrived or not."""
    arrived: int
    lost: int
    duplicated: int
    """Messages that a destination stored more than once."""
    redelivered: int
    """Deliveries of the same stored message a second time: a completion died with the broker."""
    changed: int
    """Messages whose bytes differ from what was sent."""
    unexpected: int
    """Arrived and never sent."""
    lost_names: tuple[str, ...]


class Book:
    def __init__(self, destinations: dict[str, tuple[str, ...]]) -> None:
        """``destinations``: where the messages of each entity must arrive."""
        self._destinations = destinations
        self._lock = threading.Lock()
        self._handed: dict[tuple[str, str], Sent] = {}
        self._accepted: dict[tuple[str, str], Sent] = {}
        self._got: list[Got] = []
        self._seen: Counter[tuple[str, str]] = Counter()
        self._missing: dict[tuple[str, str], None] = {}

    def handed(self, messages: list[Sent]) -> None:
        """A sender is about to send these."""
        with self._lock:
            self._handed.update(((message.entity, message.message_id), message) for message in messages)

    def accepted(self, messages: list[Sent]) -> None:
        """The sender was told that these are safe."""
        with self._lock:
            for message in messages:
                self._accepted[(message.entity, message.message_id)] = message
                for place in self._destinations[message.entity]:
                    if not self._seen[(place, message.message_id)]:
                        self._missing[(place, message.message_id)] = None

    def got(self, delivery: Got) -> None:
        """A consumer has handled a message."""
        with self._lock:
            self._got.append(delivery)
            self._seen[(delivery.place, delivery.message_id)] += 1
            self._missing.pop((delivery.place, delivery.message_id), None)

    @property
    def counts(self) -> tuple[int, int, int]:
        """Handed over, accepted, and deliveries that are still awaited."""
        with self._lock:
            return len(self._handed), len(self._accepted), len(self._missing)

    @property
    def deliveries(self) -> int:
        """How many deliveries were handled."""
        with self._lock:
            return len(self._got)

    def verdict(self) -> Verdict:
        """Judge everything written so far."""
        with self._lock:
            handed, accepted, got = dict(self._handed), dict(self._accepted), list(self._got)
        stored: dict[tuple[str, str], set[int]] = {}
        entity_of = {place: entity for entity, places in self._destinations.items() for place in places}
        changed = unexpected = 0
        for delivery in got:
            stored.setdefault((delivery.place, delivery.message_id), set()).add(delivery.sequence_number)
            original = handed.get((entity_of[delivery.place], delivery.message_id))
            unexpected += original is None
            changed += original is not None and original.sha256 != delivery.sha256
        lost = [
            f"{place}: {message_id}"
            for entity, message_id in accepted
            for place in self._destinations[entity]
            if (place, message_id) not in stored
        ]
        lost_messages = {name.partition(": ")[2] for name in lost}
        duplicated = sum(len(numbers) - 1 for numbers in stored.values())
        return Verdict(
            holds=not lost and not changed and not unexpected and bool(accepted),
            sent=len(handed),
            accepted=len(accepted),
            unknown=len(handed) - len(accepted),
            arrived=sum(1 for key in accepted if key[1] not in lost_messages),
            lost=len(lost),
            duplicated=duplicated,
            redelivered=len(got) - len(stored) - duplicated,
            changed=changed,
            unexpected=unexpected,
            lost_names=tuple(lost[:NAMED_MAX]),
        )

    def write(self, directory: Path) -> tuple[Path, Path]:
        """Both sides as files that ``pairbus reconcile`` reads: what was accepted, what arrived."""
        with self._lock:
            sent = [_row("sent", one.entity, one, None) for one in self._accepted.values()]
            got = [_row("completed", one.place, one, one.sequence_number) for one in self._got]
        files = directory / "sent.jsonl", directory / "received.jsonl"
        for file, rows in zip(files, (sent, got), strict=True):
            file.write_text("\n".join(rows) + "\n")
        return files


def _row(kind: str, entity: str, one: Sent | Got, number: int | None) -> str:
    row = {
        "kind": kind,
        "entity": entity,
        "message_id": one.message_id,
        "sha256": one.sha256,
        "time": str(one.at_ms),
        "sequence_number": number,
    }
    return json.dumps(row)
