"""Ledgers of messages that were accepted several times with the same id and body, and what must be said of them.

Every copy has a story of its own, so what became of each is known without counting rows: a copy that was destroyed is lost, unless another copy with its
id is still there.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from tests.integration.reports import ledger_kit
from tests.integration.reports.ledger_kit import BACKLOG_QUEUE, NOON_MS, row, write, write_log

COPIES_MAX = 4
STEP_MS = 1_000
"""Between two copies: each is accepted after the one before has ended."""
TTL = "TTLExpiredException"
LATER_CANCELLED = "arrived, then cancelled there"
NOWHERE = "completed and sent nowhere"
WITH_QUEUE = "destroyed with its queue"
OLD_LISTINGS = ("purged, and in an old listing", "set aside and deleted, and in an old listing")
"""A listing from before. Where there was no audit since, nothing tells that it is old."""
SECONDARY = "standby"
"""The namespace that has the backlog queues."""
DELETED_QUEUE = "contoso/x-servicebus-transfer/4"
OTHER_QUEUE = "other/x-servicebus-transfer/3"
"""A backlog queue of another primary."""
MESSAGE_MS = 10_000
"""Between the first copies of two messages."""
STORIES = {
    "arrived": "arrived",
    "arrived, then dead-lettered there": "arrived",
    "arrived, then expired there": "arrived",
    LATER_CANCELLED: "arrived",
    "waiting": "in_backlog",
    "waiting and listed twice": "in_backlog",
    "set aside": "set_aside",
    "set aside and listed": "set_aside",
    "set aside and listed twice": "set_aside",
    "expired": "expired",
    "expired and listed": "expired",
    "expired and listed without a reason": "expired",
    "cancelled": "cancelled",
    "purged": "",
    NOWHERE: "",
    WITH_QUEUE: "",
    "set aside and deleted": "",
    **dict.fromkeys(OLD_LISTINGS, ""),
    "redriven, then arrived": "arrived",
    "redriven, then arrived, then cancelled there": "arrived",
    "redriven, then waiting": "in_backlog",
    "redriven, then set aside and listed": "set_aside",
    "redriven, then expired and listed": "expired",
    "redriven, then cancelled": "cancelled",
    "redriven, then purged": "",
    "redriven, then redriven, then arrived": "arrived",
    "redriven, then redriven, then set aside": "set_aside",
    "redriven, then redriven, then set aside and deleted": "",
}
"""What becomes of a parked copy, and its fate; none for those that are destroyed."""
REDRIVEN = "redriven, then "
KEPT = ("arrived", "in_backlog", "set_aside")
"""Fates of copies that are there."""
DIRECT_CANCELLED = "sent directly before, and cancelled there"
DIRECT_BEFORE = "sent directly before"
DIRECT_LATER = "sent directly after"
DIRECT = (DIRECT_CANCELLED, DIRECT_BEFORE, DIRECT_LATER)
NO_MESSAGE: dict[str, object] = {"entity": "", "sha256": "", "sequence_number": 0}

Rows = dict[str, list[dict[str, object]]]


@dataclass(slots=True)
class Copies:
    """The rows of each input, and what must be found."""

    rows: Rows = field(default_factory=lambda: {"sent": [], "received": [], "backlog": [], "dead-letter": []})
    fates: Counter[str] = field(default_factory=Counter)
    named: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    """How many copies have each fate that is named, by fate, message id and hash."""

    last_ms: int = NOON_MS
    """When the backlog queue was deleted, after everything else."""

    def write(self, directory: Path, layout: str = "") -> dict[str, list[str]]:
        """One file for each input; or as brokers keep their audit logs."""
        if not layout:
            return {role: [write(directory / f"{role}.parquet", rows)] for role, rows in self.rows.items()}
        middle = (NOON_MS + self.last_ms) // 2
        return {role: write_log(directory / role, rows, layout, middle) for role, rows in self.rows.items()}

    def rows_of_others(self, number: int, message_id: str, whose: str) -> None:
        """A message with the same name of another primary that has its backlog queues there too, or of a queue of the secondary itself. Neither says
        anything about those of this primary.
        """
        known: dict[str, object] = {"sha256": f"{number:064x}", "time": NOON_MS + number * MESSAGE_MS}
        if whose == "other primary":
            entry = parked("sent", message_id, **{**known, "entity": OTHER_QUEUE})
        elif whose:
            entry = row("sent", message_id, **{**known, "namespace": SECONDARY})
        else:
            return
        self.rows["sent"].append(entry)
        self.rows["backlog"].append(entry)


def parked(kind: str, message_id: str, **changes: object) -> dict[str, object]:
    """One row of the secondary about a message in a backlog queue."""
    return ledger_kit.parked(kind, message_id, **{"namespace": SECONDARY, **changes})


def copies(count: int, seed: int) -> Copies:
    """``count`` messages with and without an id, each with up to COPIES_MAX parked copies, and perhaps one that was sent directly. The first of them
    were accepted before a time without audit ended; every second world has the audit log of the primary as a ledger of sends.
    """
    chance = random.Random(seed)
    world = Copies()
    hidden = count // 4
    for number in range(count):
        stories = chance.choices(list(STORIES), k=chance.randint(1, COPIES_MAX))
        message_id = "" if number % 4 == 3 else f"message-{number}"
        _Message(
            world,
            {"message_id": message_id, "sha256": f"{number:064x}"},
            NOON_MS + number * MESSAGE_MS,
            is_hidden=number < hidden,
            is_audit_sent=seed % 2 == 0,
        ).add(stories, chance.choice(["", "", *DIRECT]))
        world.rows_of_others(number, message_id, chance.choice(["", "", "other primary", "secondary"]))
    # The audits of both brokers stopped before the first message, and resumed before the one after the last hidden one.
    stopped = datetime.fromtimestamp(NOON_MS / 1000 - 60, UTC)
    resumed = NOON_MS + hidden * MESSAGE_MS
    world.last_ms = NOON_MS + count * MESSAGE_MS
    deletion = parked("entity-deleted", "", entity=DELETED_QUEUE, time=world.last_ms, sequence_number=0)
    world.rows["backlog"].append({**deletion, "sha256": "", "destination": ""})
    for role, namespace in (("received", "contoso"), ("backlog", SECONDARY)):
        of_log = {**NO_MESSAGE, "namespace": namespace}
        note = row("audit-resumed", "", time=resumed, detail=stopped.isoformat(), **of_log)
        begun = row("audit-begun", "", time=NOON_MS - 120_000, **of_log)
        world.rows[role] += [
            note,
            {**note, "kind": "audit-stopped", "time": NOON_MS - 60_000, "detail": ""},
            begun,
        ]
    return world


@dataclass(slots=True)
class _Message:
    """The copies of one message."""

    world: Copies
    known: dict[str, object]
    base: int
    is_hidden: bool
    is_audit_sent: bool
    fates: Counter[str] = field(default_factory=Counter)

    def add(self, stories: Sequence[str], direct: str) -> None:
        """Stories in the order in which their parked copies were accepted; before or after them one that never was in the backlog."""
        if self.is_hidden:
            # A listing need not give reasons: beside a copy that expired and is not listed, one that is listed may be that one.
            stories = [
                "expired and listed" if story == "expired" else story.removesuffix(", and in an old listing")
                for story in stories
            ]
        if not self._is_told_apart(stories, direct):
            direct = ""
        if direct:
            self._add_direct(direct, len(stories))
        for number, story in enumerate(stories, 1):
            for role, entry in _rows(story, self.base + number * STEP_MS, self.is_audit_sent):
                self.world.rows[role].append({**entry, **self.known, "sequence_number": number})
            self.fates[self._fate(story)] += 1
        self._sum_up(self._is_kept(stories, direct), _sent_again(stories, direct))

    def _is_told_apart(self, stories: Sequence[str], direct: str) -> bool:
        """Whether the ledgers tell a direct send from one of the drain, or from one whose answer never came.

        With an id it must have been cancelled before, or a parked copy must have ended in the backlog.
        """
        if not self.known["message_id"] or direct == DIRECT_CANCELLED:
            return True
        has_ended = any(STORIES[story] in ("expired", "cancelled") for story in stories)
        return has_ended and not (self.is_audit_sent and NOWHERE in stories)

    def _add_direct(self, direct: str, parked: int) -> None:
        at = self.base + (parked + 1) * STEP_MS if direct == DIRECT_LATER else self.base
        sent = {**row("sent", "", time=at), **self.known}
        self.world.rows["sent"].append(sent)
        self.world.rows["received"].append(sent)
        if direct == DIRECT_CANCELLED:
            self.world.rows["received"].append({**row("cancelled", "", time=at + 1), **self.known})
        self.fates["arrived"] += 1

    def _fate(self, story: str) -> str:
        fate = STORIES[story]
        is_listed = "listed" in story
        return "" if self.is_hidden and fate in ("in_backlog", "set_aside") and not is_listed else fate

    def _is_kept(self, stories: Sequence[str], direct: str) -> bool:
        # What its destination cancelled does not stand for a copy that was accepted later.
        is_cancelled_last = stories[-1].endswith(LATER_CANCELLED)
        return direct in (DIRECT_BEFORE, DIRECT_LATER) or any(
            self._fate(story) in KEPT and (not story.endswith(LATER_CANCELLED) or is_cancelled_last)
            for story in stories
        )

    def _sum_up(self, is_kept: bool, sent_again: int) -> None:
        message_id, sha256 = str(self.known["message_id"]), str(self.known["sha256"])
        if nowhere := self.fates.pop("", 0):
            lost = "unproven" if self.is_hidden else "lost"
            if not message_id and not self.is_hidden and sent_again:
                self.fates["sent_again"] += min(nowhere, sent_again)
                nowhere -= min(nowhere, sent_again)
            self.fates["absorbed" if message_id and is_kept else lost] += nowhere
        self.world.fates += self.fates
        for fate, number in self.fates.items():
            if number and fate not in ("arrived", "absorbed"):
                self.world.named[fate, message_id, sha256] += number


def _sent_again(stories: Sequence[str], direct: str) -> int:
    """How many messages may have been taken out of the dead-letter queue and sent again, as far as their times tell."""
    taken = sum("deleted" in story for story in stories)
    first = next(
        (at for at, story in enumerate(stories) if story.startswith(("set aside", REDRIVEN))), len(stories)
    )
    return min(taken, len(stories[first + 1 :]) + (direct == DIRECT_LATER))


def _rows(story: str, at: int, is_audit_sent: bool) -> Iterator[tuple[str, dict[str, object]]]:
    """What is written about a parked copy, and where; without its name."""
    if story.startswith(REDRIVEN):
        yield from _redriven_rows(story.removeprefix(REDRIVEN), at, is_audit_sent)
        return
    queue = DELETED_QUEUE if story == WITH_QUEUE else BACKLOG_QUEUE
    yield "sent", parked("sent", "", time=at, entity=queue)
    yield "backlog", parked("sent", "", time=at, entity=queue)
    aside = f"{BACKLOG_QUEUE}/$DeadLetterQueue"
    if story.startswith("arrived"):
        yield "received", row("sent", "", time=at + 10)
        if is_audit_sent:
            yield "sent", row("sent", "", time=at + 10)
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
        if "listed" in story or story in OLD_LISTINGS:
            reason = "" if story.endswith("reason") else detail
            for _ in range(1 + story.endswith("twice")):
                yield "dead-letter", parked("held", "", entity=aside, detail=reason)
        if "deleted" in story:
            yield "backlog", parked("completed", "", entity=aside, time=at + 20)
    elif story == "waiting and listed twice":
        yield from [("backlog", parked("held", "", time=at))] * 2
    elif story not in ("waiting", WITH_QUEUE):
        yield "backlog", parked(re.split("[ ,]", story)[0], "", time=at + 10)
        if story in OLD_LISTINGS:
            yield "backlog", parked("held", "", time=at)


def _redriven_rows(story: str, at: int, is_audit_sent: bool) -> Iterator[tuple[str, dict[str, object]]]:
    """A copy that was dead-lettered and put back, with what then became of it."""
    yield from _rows("set aside", at, is_audit_sent)
    for role, entry in _rows(story, at + 20, is_audit_sent):
        is_back = entry["kind"] == "sent" and entry["entity"] == BACKLOG_QUEUE and not entry["detail"]
        yield role, {**entry, "detail": "redriven"} if is_back else entry
    yield "backlog", parked("completed", "", entity=f"{BACKLOG_QUEUE}/$DeadLetterQueue", time=at + 22)
