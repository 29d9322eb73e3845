"""Ledgers of messages that were accepted before and after a moment, and what a certificate of those after it must say (``--since``); and of messages
that entities forwarded, beside those that were sent to the same entities.

As in ``copies_kit``, every copy has a story of its own. The rows follow from the stories, and so does what must be found: it is never counted in rows.
Many copies share an id, or have none and the same body.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from typing import Final

from tests.integration.reports.copies_kit import Copies, parked
from tests.integration.reports.ledger_kit import BACKLOG_QUEUE, NOON_MS, row

SINCE_MS: Final = NOON_MS + 1_000_000
SPAN_MS: Final = 1_000_000
"""Before and after the moment."""
COPIES_MAX: Final = 4
TOPIC: Final = "events"
SUBSCRIPTIONS: Final = tuple(f"{TOPIC}/Subscriptions/{name}" for name in "ab")
TTL: Final = "TTLExpiredException"
ASIDE: Final = f"{BACKLOG_QUEUE}/$DeadLetterQueue"
NOWHERE: Final = "completed by hand"
REDRIVEN: Final = "redriven"
PARKED: Final = {
    "drained": "arrived",
    "waiting": "in_backlog",
    "set aside": "set_aside",
    "expired": "expired",
    "cancelled": "cancelled",
    "purged": "",
    NOWHERE: "",
    REDRIVEN: "arrived",
}
"""What becomes of a parked copy, and its fate; none for those that are destroyed."""
LOST: Final = "confirmed, and stored nowhere"
ENDS: Final = ("completed", "dead-lettered", "taken", "waiting")
"""What becomes of a message at its destination."""
KEPT: Final = ("arrived", "in_backlog", "set_aside")

Event = tuple[int, str, dict[str, object]]
"""When it happened, the role of the ledger that has it, and the row."""


def moment() -> datetime:
    return datetime.fromtimestamp(SINCE_MS / 1000, UTC)


@dataclass(frozen=True, slots=True)
class Ledgers:
    """Whose ledgers there are."""

    own_sends: bool
    """The senders', in place of the audit logs'."""
    own_arrivals: bool
    """The receivers', in place of the primary's audit log."""
    is_pruned: bool = False
    """Rows before the moment are gone."""


@dataclass(slots=True)
class _Copy:
    """One copy of a message: when it was accepted, and what happened to it."""

    accepted_ms: int
    fate: str
    events: list[Event]
    stored_ms: int | None = None
    """When its destination stored it."""
    ended_ms: int | None = None
    """When it was taken at its destination, or dead-lettered there."""
    redriven_ms: int | None = None


@dataclass(slots=True)
class _Times:
    """Times in order, each once; those of a pair are on the same side of the moment."""

    chance: random.Random
    used: set[int] = field(default_factory=set)

    def after(self, ms: int, until: int) -> int:
        while True:
            at = self.chance.randint(ms + 1, max(ms + 10, until))
            if not {at, at + 1, at + 2} & self.used and not at < SINCE_MS <= at + 2:
                self.used |= {at, at + 1, at + 2}
                return at


def since_world(count: int, seed: int) -> Copies:
    """``count`` messages around the moment."""
    chance = random.Random(seed)
    own_arrivals = seed % 4 == 3
    ledgers = Ledgers(own_arrivals or seed % 2 == 1, own_arrivals, is_pruned=chance.random() < 0.3)
    world = Copies()
    events: list[Event] = []
    for number in range(count):
        events += _message(world, chance, number, ledgers)
    # At each destination something is stored in the end.
    for place in ("orders", TOPIC):
        known = {"message_id": f"last-{place}", "sha256": "f" * 64, "entity": place}
        entry = {**row("sent", "", time=SINCE_MS + 3 * SPAN_MS), **known}
        world.rows["sent"].append(entry)
        end = entry if not own_arrivals else {**entry, "kind": "received"}
        events.append((SINCE_MS + 3 * SPAN_MS, "received", end))
        world.fates["arrived"] += 1
    _number(world, events)
    if ledgers.is_pruned and not own_arrivals:
        for role, rows in world.rows.items():
            world.rows[role] = [entry for entry in rows if int(str(entry["time"])) >= SINCE_MS]
    return world


def _number(world: Copies, events: Sequence[Event]) -> None:
    """Write the events down, in their order: each queue gives its numbers so, and later rows about a copy have the number of the first."""
    given: Counter[str] = Counter()
    numbers: dict[tuple[str, object], int] = {}
    for ms, role, entry in sorted(events, key=lambda event: event[0]):
        copy, plain = entry.pop("copy", None), {**entry, "time": ms}
        if role != "sent" or plain["namespace"] is not None:
            place = str(entry["entity"]).removesuffix("/$DeadLetterQueue")
            key = place, copy
            if key not in numbers or (entry["kind"] == "sent" and role == "backlog"):
                given[place] += 1
                numbers[key] = given[place]
            plain["sequence_number"] = numbers[key]
        world.rows[role].append(plain)
        if (role == "backlog" and entry["kind"] == "sent" and "both" in entry) or (
            role == "received" and "both" in entry
        ):
            del plain["both"]
            world.rows["sent"].append(plain)


def _message(world: Copies, chance: random.Random, number: int, ledgers: Ledgers) -> Iterator[Event]:
    message_id = "" if number % 2 else f"message-{number}"
    known: dict[str, object] = {"message_id": message_id, "sha256": f"{number:064x}"}
    destination = chance.choice(["orders", TOPIC])
    times = _Times(chance)
    stories = _told_apart(_stories(chance, ledgers, is_named=bool(message_id)), ledgers, bool(message_id))
    copies = []
    for at, (story, end, accepted) in enumerate(stories):
        maker = _Maker(known, destination, ledgers, times, f"{number}-{at}")
        copies.append(maker.copy(story, end, accepted))
    _expect(world, known, copies, ledgers)
    for copy in copies:
        yield from copy.events


Story = tuple[str, str, int]
"""What becomes of a copy before its destination has it (empty: sent directly), what becomes of it there, and about when it was accepted."""


def _stories(chance: random.Random, ledgers: Ledgers, *, is_named: bool) -> list[Story]:
    found = []
    direct = [""] * 3 + [LOST] * ledgers.own_sends
    kinds = chance.choice([direct, list(PARKED)]) if is_named else [*direct, *PARKED]
    for _ in range(chance.randint(1, COPIES_MAX)):
        is_older = chance.random() < 0.5
        accepted = SINCE_MS + chance.randint(*((-SPAN_MS, -SPAN_MS // 3) if is_older else (10, SPAN_MS)))
        # Nothing tells receivers' ledgers which of the older copies are still to come.
        older = ["", "drained", REDRIVEN] if ledgers.own_arrivals else [*direct, *PARKED]
        story = chance.choice(older if is_older else kinds)
        end = "completed" if ledgers.own_arrivals else chance.choice(ENDS)
        found.append((story, end, accepted))
    return found


def _told_apart(stories: Sequence[Story], ledgers: Ledgers, is_named: bool) -> list[Story]:
    """Without mixtures that ledgers cannot tell (decisions 0120 and 0207)."""
    recent = [story for story, _, accepted in stories if accepted >= SINCE_MS]
    is_unsure = NOWHERE in recent or (ledgers.own_sends and not {*recent} <= {"", LOST})
    found = []
    for story, end, accepted in stories:
        if accepted < SINCE_MS and recent:
            if story in (NOWHERE, LOST) or (story == REDRIVEN and is_named):
                continue
        elif (accepted < SINCE_MS and story == REDRIVEN and len(stories) > 1) or (
            accepted >= SINCE_MS and not is_named and is_unsure and story in ("", LOST)
        ):
            continue
        found.append((story, end, accepted))
    return found


@dataclass(slots=True)
class _Maker:
    known: dict[str, object]
    destination: str
    ledgers: Ledgers
    times: _Times
    name: str
    events: list[Event] = field(default_factory=list)

    def copy(self, story: str, end: str, accepted: int) -> _Copy:
        at = self.times.after(accepted, accepted + 1_000)
        copy = _Copy(at, PARKED.get(story, "" if story == LOST else "arrived"), self.events)
        later = max(at, SINCE_MS) + SPAN_MS // 3
        if story in ("", LOST):
            self._confirm(at, {"entity": self.destination})
            if not story:
                self._store(copy, at, end)
            return copy
        self._park(at)
        then = self.times.after(at, later)
        if story == "drained":
            self._drain(copy, then, end)
        elif story == REDRIVEN:
            copy.redriven_ms = self._redrive(then)
            self._drain(copy, self.times.after(copy.redriven_ms + 2, copy.redriven_ms + SPAN_MS // 4), end)
        elif story != "waiting":
            kind = {"set aside": "dead-lettered", "expired": "dead-lettered", NOWHERE: "completed"}.get(story, story)  # fmt: skip
            detail = {"set aside": "DestinationNotFound", "expired": TTL}.get(story, "")
            self._secondary(then, kind, detail=detail)
        return copy

    def _add(self, ms: int, role: str, entry: dict[str, object]) -> None:
        self.events.append((ms, role, {**entry, **self.known}))

    def _confirm(self, ms: int, place: dict[str, object]) -> None:
        """What the sender's own ledger has."""
        if self.ledgers.own_sends:
            own = {"namespace": None, "sequence_number": 0, **place}
            self._add(ms, "sent", row("accepted", "", **own))

    def _secondary(self, ms: int, kind: str, **changes: object) -> None:
        self._add(
            ms, "backlog", {**parked(kind, "", destination=self.destination, **changes), "copy": self.name}
        )

    def _park(self, ms: int) -> None:
        both = {} if self.ledgers.own_sends else {"both": True}
        self._secondary(ms, "sent", **both)
        self._confirm(ms, {"entity": BACKLOG_QUEUE, "destination": self.destination})

    def _redrive(self, ms: int) -> int:
        self._secondary(ms, "dead-lettered", detail="DestinationNotFound")
        at = self.times.after(ms, ms + SPAN_MS // 4)
        both = {} if self.ledgers.own_sends else {"both": True}
        again = {**parked("sent", "", destination=self.destination, detail="redriven", **both)}
        self._secondary(at + 1, "completed", entity=ASIDE)
        self.name += "-again"
        self._add(at, "backlog", {**again, "copy": self.name})
        return at

    def _drain(self, copy: _Copy, ms: int, end: str) -> None:
        self._store(copy, ms, end)
        self._secondary(ms + 1, "completed")

    def _store(self, copy: _Copy, ms: int, end: str) -> None:
        copy.stored_ms = ms
        if not self.ledgers.own_arrivals:
            both = {} if self.ledgers.own_sends else {"both": True}
            self._add(ms, "received", {**row("sent", "", entity=self.destination, **both), "copy": self.name})
        if end == "waiting":
            return
        copy.ended_ms = then = self.times.after(ms, max(ms, SINCE_MS) + SPAN_MS // 4)
        places = SUBSCRIPTIONS if self.destination == TOPIC else (self.destination,)
        for place in places:
            kind = "dead-lettered" if end == "taken" else end
            self._add(then, "received", {**row(kind, "", entity=place), "copy": f"{self.name}-{place}"})
            if end == "taken":
                taken = row("completed", "", entity=f"{place}/$DeadLetterQueue")
                self._add(then + 1, "received", {**taken, "copy": f"{self.name}-{place}"})


def _expect(world: Copies, known: dict[str, object], copies: Sequence[_Copy], ledgers: Ledgers) -> None:
    """What must be said of the copies that were accepted since."""
    is_named = bool(known["message_id"])
    recent = [copy for copy in copies if copy.accepted_ms >= SINCE_MS]
    # Of a dead letter that was put back since, the audit log has a send.
    again = [copy for copy in copies if copy.accepted_ms < SINCE_MS <= (copy.redriven_ms or 0)]
    again = [] if ledgers.own_sends else again
    fates: Counter[str] = Counter(copy.fate for copy in [*recent, *again])
    # An older copy is there if its destination stored or gave it out since: with its id it is the same message.
    is_kept = any(fates[fate] for fate in KEPT) or any(
        ms is not None and ms >= SINCE_MS for copy in copies for ms in (copy.stored_ms, copy.ended_ms)
    )
    if nowhere := fates.pop("", 0):
        fates["absorbed" if is_named and is_kept else "lost"] += nowhere
    world.fates += fates
    for fate, number in fates.items():
        if number and fate not in ("arrived", "absorbed"):
            world.named[fate, str(known["message_id"]), str(known["sha256"])] += number


# -- forwarding ---------------------------------------------------------------------------------------

CHAIN: Final = ("first", "second", "orders")
"""Each forwards to the next."""
WAY: Final = "way"
"""Nobody says that they send to it: it forwards what programs send by way of it in transactions."""


def forwarding_world(count: int, seed: int) -> Copies:
    """``count`` messages, sent to the entities of a chain, and lost on the way there, or not."""
    chance = random.Random(seed)
    ledgers = Ledgers(own_sends=seed % 3 > 0, own_arrivals=seed % 3 == 2)
    world = Copies()
    for number in range(count):
        _forwarded(world, chance, number, ledgers)
    return world


def _forwarded(world: Copies, chance: random.Random, number: int, ledgers: Ledgers) -> None:
    message_id = "" if number % 2 else f"message-{number}"
    known: dict[str, object] = {"message_id": message_id, "sha256": f"{number:064x}"}
    came: Counter[str] = Counter()
    missing: Counter[str] = Counter()
    # Where the target stored a message with the same name, nothing tells of one that was sent by way of another entity.
    by_way = chance.choice(CHAIN) if ledgers.own_sends and chance.random() < 0.4 else None
    for at in range(chance.randint(1, COPIES_MAX)):
        ms = NOON_MS + number * 10_000 + at * 1_000
        start = chance.choice(CHAIN)
        is_lost = ledgers.own_sends and (chance.random() < 0.4 or start == by_way)
        (missing if is_lost else came)[start] += 1
        rows = [] if is_lost else list(_hops(CHAIN[CHAIN.index(start) :], chance, ledgers))
        _write(world, {**known, "time": ms}, start, rows, ledgers)
    if by_way:
        rows = list(_hops((WAY, *CHAIN[CHAIN.index(by_way) :]), chance, ledgers, hops_min=2))
        _write(world, {**known, "time": NOON_MS + number * 10_000 + 9_000}, by_way, rows, ledgers)
        came[by_way] += 1
        world.fates["unexpected"] += 1
        world.named["unexpected", message_id, str(known["sha256"])] += 1
    for place in CHAIN:
        world.fates["arrived"] += came[place]
        fate = "absorbed" if message_id and came[place] else "lost"
        world.fates[fate] += missing[place]
        if missing[place] and fate == "lost":
            world.named[f"lost at {place}", message_id, str(known["sha256"])] += missing[place]


def _hops(
    places: Sequence[str], chance: random.Random, ledgers: Ledgers, hops_min: int = 0
) -> Iterator[dict[str, object]]:
    """What is written about a message on its way through some of these places."""
    if not ledgers.own_arrivals:
        yield row("sent", "", entity=places[0])
    last = chance.randint(min(hops_min, len(places) - 1), len(places) - 1)
    for place, target in pairwise(places[: last + 1]):
        yield row("forwarded", "", entity=place, detail=target)
    # A receiver's ledger tells of what was received.
    if ledgers.own_arrivals or hops_min or chance.random() < 0.7:
        yield row("completed", "", entity=places[last])


def _write(
    world: Copies,
    known: dict[str, object],
    start: str,
    rows: Sequence[dict[str, object]],
    ledgers: Ledgers,
) -> None:
    entries = [{**entry, **known} for entry in rows]
    world.rows["received"] += entries
    if ledgers.own_sends:
        world.rows["sent"].append({**row("accepted", "", entity=start), **known, "namespace": None})
    else:
        world.rows["sent"] += entries
