"""Ledgers with everything planted that can become of a message, and what must be found: told by plain counting, without Spark."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow

from pairbus.reports.certificate.value import BOUNDS_MS
from tests.integration.reports.ledger_kit import BACKLOG_QUEUE, NOON_MS, SCHEMA, write_table

DELETED_QUEUE = "contoso/x-servicebus-transfer/4"
"""A backlog queue that is deleted with what is in it, and made again."""

DESTINATIONS = 3
STEP_MS = 20
"""Between two sends."""
DIRECT_MS = 5
HOME_MS = 3_600_000
"""How long a message takes that goes straight, and one through the backlog."""
STRIDE = 7
"""Between two sequence numbers, so that few messages fill several slices of them."""
FEW = {
    "lost": 7, "lost_parked": 4, "altered": 2, "repeated": 40, "absorbed": 6, "dead_lettered": 12, "unexpected": 5,
    "held": 25, "deferred": 10, "set_aside": 15, "expired": 9, "in_spool": 8,
    "destroyed": 6, "destroyed_aside": 3, "made_again": 4, "cancelled": 5,
    "lost_after_cancel": 5, "lost_after_cancels": 3, "lost_after_expiry": 4, "home_after_cancel": 6,
    "stored_in_doubt": 12,
}  # fmt: skip
"""How many messages of each kind are planted."""
PARKED = (
    "lost_parked", "held", "deferred", "set_aside", "expired", "destroyed", "destroyed_aside", "made_again", "cancelled",
    "lost_after_cancel", "lost_after_cancels", "lost_after_expiry", "home_after_cancel",
    "stored_in_doubt",
)  # fmt: skip
IN_DOUBT_MS = 2_000
"""How long a sender waits for the answer to an attempt that its destination has stored, before it parks the message."""
EARLIER = {
    "lost_after_cancel": ("cancelled",),
    "lost_after_cancels": ("cancelled", "cancelled"),
    "lost_after_expiry": ("expired",),
    "home_after_cancel": ("cancelled",),
}
"""How earlier copies of a message with the same id and body ended in the backlog, each before the next one was accepted."""

SESSIONS = 50
"""Half of the messages belong to one of so many sessions, each of which has messages at every destination."""

Row = tuple[int, str, str, int, str, str, str, str, str | None]
"""Time, kind, entity, sequence number, message id, hash, destination, detail, session."""


@dataclass(frozen=True, slots=True)
class Planted:
    """The rows of each input, and the answer."""

    rows: dict[str, list[Row]]
    counts: dict[str, int]
    names: set[tuple[str, str]]
    """Fate and message id of every message that is not simply there."""
    delays: Counter[tuple[int, bool]]
    reordered: Counter[tuple[int, bool]]
    sessions: dict[tuple[str, str], tuple[int, int]]
    """Destination and name of every session with overtaken messages, how many, and by how much at most."""
    outages: list[int]
    """How many sends were parked in each."""

    def write(self, directory: Path, files: int, chance: random.Random | None) -> list[str]:
        """As Parquet in so many files for each input, mixed if ``chance`` is given; the arguments of ``pairbus reconcile``."""
        arguments: list[str] = []
        for role, rows in self.rows.items():
            rows = list(rows)
            if chance is not None:
                chance.shuffle(rows)
            for at in range(files):
                write_table(
                    directory / role / f"{at}.parquet",
                    _table(rows[at::files]),
                    row_group_size=None if chance is None else 20_011,
                )
            arguments += [f"--{role}", str(directory / role)]
        return arguments


def plant(count: int, seed: int) -> Planted:
    """``count`` messages, two outages, and FEW of each kind at places that chance chooses."""
    chance = random.Random(seed)
    outages = (
        range(count // 5, count // 5 + count // 20),
        range(count * 4 // 5, count * 4 // 5 + count // 20),
    )
    parked = {number for outage in outages for number in outage}
    kinds = _chosen(chance, count, parked)
    rows: dict[str, list[Row]] = {"sent": [], "received": [], "backlog": [], "dead-letter": [], "spool": []}
    arrivals: list[tuple[int, int]] = []
    for number in range(count):
        kind = kinds.get(number, "")
        _send(rows, number, kind, number in parked)
        if kind == "stored_in_doubt":
            arrivals.append((_told(number) + DIRECT_MS, number))
        elif kind == "home_after_cancel" or kind not in {
            "lost",
            "altered",
            "dead_lettered",
            "in_spool",
            *PARKED,
        }:
            arrivals.append((_told(number) + (HOME_MS if number in parked else DIRECT_MS), number))
    arrivals.sort()
    again = [(at + 1, number) for at, number in arrivals if kinds.get(number) == "repeated"]
    again += [(_told(number) + HOME_MS, number) for number in kinds if kinds[number] == "stored_in_doubt"]
    for place, (at, number) in enumerate([*arrivals, *sorted(again)]):
        rows["received"].append(_row(at, "sent", _queue(number), number, sequence=place * STRIDE))
    for at in range(FEW["unexpected"]):
        rows["received"].append(_row(NOON_MS, "completed", "orders-0", count + at))
    deleted = _told(count) + 2 * HOME_MS
    rows["backlog"].append((deleted, "entity-deleted", DELETED_QUEUE, 0, "", "", "", "", None))
    rows["backlog"] += [
        _row(deleted + 1, "sent", DELETED_QUEUE, number, destination=_queue(number))
        for number in kinds
        if kinds[number] == "made_again"
    ]
    rows["received"] += [
        _row(_told(number), "completed", _queue(number), number, sha="f" * 64)
        for number in kinds
        if kinds[number] == "altered"
    ]
    return Planted(
        rows,
        _counts(count, len(arrivals), len(parked)),
        _names(kinds, count),
        Counter((bucket(at - _told(number)), number in parked) for at, number in arrivals),
        _overtaken(arrivals, parked),
        _overtaken_sessions(arrivals),
        [
            len(outage) + sum(len(EARLIER.get(kinds.get(number, ""), ())) for number in outage)
            for outage in outages
        ],
    )


def bucket(milliseconds: int) -> int:
    """Which bar of a histogram."""
    return next((at for at, bound in enumerate(BOUNDS_MS) if milliseconds < bound), len(BOUNDS_MS))


def _chosen(chance: random.Random, count: int, parked: set[int]) -> dict[int, str]:
    direct = chance.sample(
        sorted(set(range(count)) - parked), sum(FEW[kind] for kind in FEW if kind not in PARKED)
    )
    detoured = chance.sample(sorted(parked), sum(FEW[kind] for kind in PARKED))
    kinds: dict[int, str] = {}
    for kind, number in FEW.items():
        if kind != "unexpected":
            source = detoured if kind in PARKED else direct
            kinds.update((source.pop(), kind) for _ in range(number))
    return kinds


def _send(rows: dict[str, list[Row]], number: int, kind: str, is_parked: bool) -> None:
    queue, at = _queue(number), _told(number)
    if kind == "stored_in_doubt":
        rows["sent"] += [_row(at, "accepted", queue, number), _row(at + HOME_MS, "accepted", queue, number)]
        at += IN_DOUBT_MS
    if not is_parked:
        if kind == "in_spool":
            rows["spool"].append(_row(at, "held", queue, number))
            if number % 2:
                return  # no broker and no ledger of the sender knows it
        rows["sent"].append(_row(at, "accepted", queue, number))
        if kind == "absorbed":
            rows["sent"].append(_row(at + 1, "duplicate", queue, number))
        if kind == "dead_lettered":
            rows["dead-letter"].append(
                _row(at, "held", f"{queue}/$DeadLetterQueue", number, detail="MaxDeliveryCountExceeded")
            )
        return
    place = DELETED_QUEUE if kind in ("destroyed", "destroyed_aside", "made_again") else BACKLOG_QUEUE
    last = at + 2 * len(EARLIER.get(kind, ()))
    rows["sent"].append(_row(last, "sent", place, number, destination=queue))
    if place == DELETED_QUEUE:
        rows["backlog"].append(_row(at, "sent", place, number, destination=queue))
        if kind == "destroyed_aside":
            gone = _row(
                at + 9, "dead-lettered", place, number, destination=queue, detail="DestinationNotFound"
            )
            rows["backlog"].append(gone)
        return
    if kind == "deferred":
        # A listing tells what is there; an audit, what came and what left.
        rows["backlog"].append(_row(at, "deferred", BACKLOG_QUEUE, number, destination=queue))
        return
    for copy, end in enumerate(EARLIER.get(kind, ())):
        first = _row(at + 2 * copy, "sent", BACKLOG_QUEUE, number, destination=queue)
        rows["sent"].append(first)
        rows["backlog"] += [first, _row(at + 2 * copy + 1, end, BACKLOG_QUEUE, number, destination=queue)]
    rows["backlog"].append(_row(last, "sent", BACKLOG_QUEUE, number, destination=queue))
    if kind == "cancelled":
        rows["backlog"].append(_row(at + 9, "cancelled", BACKLOG_QUEUE, number, destination=queue))
        return
    left = {"held": "", "set_aside": "DestinationNotFound", "expired": "TTLExpiredException"}.get(kind)
    if left is None:
        rows["backlog"].append(_row(at + HOME_MS, "completed", BACKLOG_QUEUE, number, destination=queue))
    elif left:
        rows["backlog"].append(
            _row(at + 9, "dead-lettered", BACKLOG_QUEUE, number, destination=queue, detail=left)
        )


def _counts(count: int, arrived: int, parked: int) -> dict[str, int]:
    lost = FEW["lost"] + FEW["lost_parked"] + FEW["altered"] + FEW["destroyed"] + FEW["destroyed_aside"]
    lost += FEW["lost_after_cancel"] + FEW["lost_after_cancels"] + FEW["lost_after_expiry"]
    earlier = Counter({"cancelled": 0, "expired": 0})
    for kind, ends in EARLIER.items():
        earlier.update({end: FEW[kind] * number for end, number in Counter(ends).items()})
    repeated = FEW["repeated"] + FEW["stored_in_doubt"]
    unexpected = FEW["unexpected"] + FEW["altered"]
    return {
        "accepted": count + FEW["absorbed"] + earlier.total(),
        "messages": count,
        "detoured": parked,
        "arrived": arrived,
        "in_backlog": FEW["held"] + FEW["deferred"] + FEW["made_again"],
        "in_spool": FEW["in_spool"],
        "set_aside": FEW["set_aside"],
        "dead_lettered": FEW["dead_lettered"],
        "expired": FEW["expired"] + earlier["expired"],
        "cancelled": FEW["cancelled"] + earlier["cancelled"],
        "in_flight": 0,
        "lost": lost,
        "altered": FEW["altered"],
        "absorbed": FEW["absorbed"],
        "repeated": repeated,
        "unexpected": unexpected,
        "received": arrived + repeated + unexpected,
    }


def _names(kinds: dict[int, str], count: int) -> set[tuple[str, str]]:
    fates = {"lost_parked": "lost", "altered": "lost", "held": "in_backlog", "deferred": "in_backlog"}
    fates |= {"destroyed": "lost", "destroyed_aside": "lost", "made_again": "in_backlog"}
    fates |= {"stored_in_doubt": "repeated"}
    fates |= dict.fromkeys(EARLIER, "lost")
    quiet = ("absorbed", "home_after_cancel")
    found = {(fates.get(kind, kind), _id(number)) for number, kind in kinds.items() if kind not in quiet}
    found |= {(end, _id(number)) for number, kind in kinds.items() for end in EARLIER.get(kind, ())}
    found |= {("unexpected", _id(number)) for number, kind in kinds.items() if kind == "altered"}
    return found | {("unexpected", _id(count + at)) for at in range(FEW["unexpected"])}


def _overtaken(arrivals: Iterable[tuple[int, int]], parked: set[int]) -> Counter[tuple[int, bool]]:
    latest = dict.fromkeys(range(DESTINATIONS), 0)
    found: Counter[tuple[int, bool]] = Counter()
    for _, number in arrivals:
        lag = latest[number % DESTINATIONS] - _told(number)
        if lag > 0:
            found[bucket(lag), number in parked] += 1
        latest[number % DESTINATIONS] = max(latest[number % DESTINATIONS], _told(number))
    return found


def _overtaken_sessions(arrivals: Iterable[tuple[int, int]]) -> dict[tuple[str, str], tuple[int, int]]:
    latest: dict[tuple[str, str], int] = {}
    found: dict[tuple[str, str], tuple[int, int]] = {}
    for _, number in arrivals:
        name = _session(number)
        if name is None:
            continue
        key = _queue(number), name
        lag = latest.get(key, 0) - _told(number)
        if lag > 0:
            messages, most = found.get(key, (0, 0))
            found[key] = messages + 1, max(most, lag)
        latest[key] = max(latest.get(key, 0), _told(number))
    return found


def _session(number: int) -> str | None:
    return f"session-{number % SESSIONS}" if number % SESSIONS % 2 else None


def _told(number: int) -> int:
    return NOON_MS + number * STEP_MS


def _queue(number: int) -> str:
    return f"orders-{number % DESTINATIONS}"


def _id(number: int) -> str:
    return f"message-{number}"


def _row(
    at: int,
    kind: str,
    entity: str,
    number: int,
    *,
    sequence: int = 0,
    sha: str = "",
    destination: str = "",
    detail: str = "",
) -> Row:
    return (
        at,
        kind,
        entity,
        sequence,
        _id(number),
        sha or f"{number:064x}",
        destination,
        detail,
        _session(number),
    )


def _table(rows: Sequence[Row]) -> pyarrow.Table:
    time, kind, entity, sequence, message_id, sha256, destination, detail, session = (
        zip(*rows, strict=True) if rows else ([],) * 9
    )
    columns = {
        "time": time, "namespace": ["contoso"] * len(rows), "kind": kind, "entity": entity, "sequence_number": sequence,
        "message_id": message_id, "size": sequence, "sha256": sha256, "destination": destination, "detail": detail, "session_id": session,
    }  # fmt: skip
    return pyarrow.table({name: list(values) for name, values in columns.items()}, schema=SCHEMA)
