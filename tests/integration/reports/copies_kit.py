"""Ledgers of messages that were accepted several times with the same id and body, and what must be said of them.

Every copy has a story of its own, so what became of each is known without counting rows: a copy that was destroyed is lost, unless another copy with its
id is still there.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.integration.reports.ledger_kit import BACKLOG_QUEUE, NOON_MS, parked, row, write

COPIES_MAX = 4
STEP_MS = 1_000
"""Between two copies: each is accepted after the one before has ended."""
TTL = "TTLExpiredException"
LATER_CANCELLED = "arrived, then cancelled there"
STORIES = {
    "arrived": "arrived",
    "arrived, then dead-lettered there": "arrived",
    "arrived, then expired there": "arrived",
    LATER_CANCELLED: "arrived",
    "waiting": "in_backlog",
    "set aside": "set_aside",
    "set aside and listed": "set_aside",
    "expired": "expired",
    "expired and listed": "expired",
    "expired and listed without a reason": "expired",
    "cancelled": "cancelled",
    "purged": "",
    "completed and sent nowhere": "",
    "set aside and deleted": "",
}
"""What becomes of a parked copy, and its fate; none for those that are destroyed."""
KEPT = ("arrived", "in_backlog", "set_aside")
"""Fates of copies that are there."""

Rows = dict[str, list[dict[str, object]]]


@dataclass(slots=True)
class Copies:
    """The rows of each input, and what must be found."""

    rows: Rows = field(default_factory=lambda: {"sent": [], "received": [], "backlog": [], "dead-letter": []})
    fates: Counter[str] = field(default_factory=Counter)
    named: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    """How many copies have each fate that is named, by fate, message id and hash."""

    def write(self, directory: Path) -> dict[str, list[str]]:
        return {role: [write(directory / f"{role}.parquet", rows)] for role, rows in self.rows.items()}


def copies(count: int, seed: int) -> Copies:
    """``count`` messages with and without an id, each with up to COPIES_MAX copies."""
    chance = random.Random(seed)
    world = Copies()
    for number in range(count):
        stories = chance.choices(list(STORIES), k=chance.randint(1, COPIES_MAX))
        is_direct = number % 5 == 0 and stories[0] != LATER_CANCELLED
        message_id = "" if number % 4 == 3 else f"message-{number}"
        _add(world, message_id, f"{number:064x}", stories[:1] if is_direct else stories, is_direct)
    return world


def _add(world: Copies, message_id: str, sha256: str, stories: Sequence[str], is_direct: bool) -> None:
    """Stories in the order in which their copies were accepted; before them perhaps a scheduled message that never was in the backlog."""
    fates: Counter[str] = Counter()
    known = {"message_id": message_id, "sha256": sha256}
    if is_direct:
        gone = [{**row("sent", ""), **known}, {**row("cancelled", "", time=NOON_MS + 1), **known}]
        world.rows["sent"].append(gone[0])
        world.rows["received"] += gone
        fates["arrived"] += 1
    for number, story in enumerate(stories, 1):
        at = NOON_MS + number * STEP_MS
        for role, entry in _rows(story, at):
            world.rows[role].append({**entry, **known, "sequence_number": number})
        fates[STORIES[story]] += 1
    # What its destination cancelled does not stand for a copy that was accepted later.
    is_cancelled_last = stories[-1] == LATER_CANCELLED
    is_kept = any(
        STORIES[story] in KEPT and (story != LATER_CANCELLED or is_cancelled_last) for story in stories
    )
    if destroyed := fates.pop("", 0):
        fates["absorbed" if message_id and is_kept else "lost"] += destroyed
    world.fates += fates
    for fate, number in fates.items():
        if fate not in ("arrived", "absorbed"):
            world.named[fate, message_id, sha256] += number


def _rows(story: str, at: int) -> Iterator[tuple[str, dict[str, object]]]:
    """What is written about a parked copy, and where; without its name."""
    yield "sent", parked("sent", "", time=at)
    yield "backlog", parked("sent", "", time=at)
    aside = f"{BACKLOG_QUEUE}/$DeadLetterQueue"
    if story.startswith("arrived"):
        yield "received", row("sent", "", time=at + 10)
        yield "backlog", parked("completed", "", time=at + 11)
        for end, kind, detail in (
            ("dead-lettered there", "dead-lettered", "Refused"),
            ("expired there", "dead-lettered", TTL),
        ):
            if story.endswith(end):
                yield "received", row(kind, "", time=at + 20, detail=detail)
                yield "dead-letter", row("held", "", entity="orders/$DeadLetterQueue", detail=detail)
        if story == LATER_CANCELLED:
            yield "received", row("cancelled", "", time=at + 20)
    elif story.startswith(("set aside", "expired")):
        detail = TTL if story.startswith("expired") else "DestinationNotFound"
        yield "backlog", parked("dead-lettered", "", time=at + 10, detail=detail)
        if "listed" in story:
            reason = "" if story.endswith("reason") else detail
            yield "dead-letter", parked("held", "", entity=aside, detail=reason)
        if story.endswith("deleted"):
            yield "backlog", parked("completed", "", entity=aside, time=at + 20)
    elif story != "waiting":
        yield "backlog", parked(story.partition(" ")[0], "", time=at + 10)
