"""The pairing as the page shows it: health with timers, events, and the progress of the drain."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from azure.servicebus import ServiceBusMessage

from pairbus.errors import UsageError
from pairbus.model.typed_text import properties_of
from pairbus.pairing.clock import steady_ms, wall_ms
from pairbus.pairing.journal import STATUS, status_row
from pairbus.pairing.journal_states import STATE_AFTER, STATUS_LIFE_MS, status_rows
from pairbus.pairing.naming import entity_key
from pairbus.pairing.rules.health import Health
from pairbus.reports.bill.catalogue import builtin_tables

if TYPE_CHECKING:
    from pairbus.pairing.client.sync import PairedServiceBusClient

EVENTS_MAX: Final = 300
READ_BYTES_MAX: Final = 1_000_000
"""Of a journal, at one look; the rest comes with the next."""
SEND_SECONDS: Final = 15.0
SEND_COUNT_MAX: Final = 100
_PREFIX: Final = "pairing."
_STATES: Final = {kind.removeprefix(_PREFIX): state for kind, state in STATE_AFTER.items()}

_ORDER: Final = [Health.HEALTHY.value, Health.SUSPECT.value, Health.FAILED_OVER.value, Health.REFUSING.value]
"""States from best to worst."""
DRAINED: Final = f"{_PREFIX}drained"
PROGRAMS_MAX: Final = 200
_COUNTS: Final = ("parked", "pings", "spooled", "fenced_sessions")


class JournalTail:
    """The newest events of a journal that several programs append to."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._file_id = 0
        self._rest = b""
        self._count = 0
        self.events: deque[dict[str, object]] = deque(maxlen=EVENTS_MAX)
        self.statuses: dict[str, tuple[int, list[dict[str, object]]]] = {}
        """Of each program: when it last wrote the state of its entities, and that state."""

    def look(self) -> None:
        """Read what was appended since last time. A journal that was replaced is read from its start."""
        try:
            with self._path.open("rb") as file:
                status = self._path.stat()
                if status.st_ino != self._file_id or status.st_size < self._offset:
                    self._file_id, self._offset, self._rest = status.st_ino, 0, b""
                    self._offset = max(0, status.st_size - READ_BYTES_MAX)
                file.seek(self._offset)
                content = file.read(READ_BYTES_MAX)
        except FileNotFoundError:
            return
        self._offset += len(content)
        *lines, self._rest = (self._rest + content).split(b"\n")
        for line in lines:
            self._take(line)

    def _take(self, line: bytes) -> None:
        try:
            event = json.loads(line)
        except ValueError:
            return
        if not isinstance(event, dict) or not isinstance(event.get("at_ms"), int):
            return
        kind, factory = str(event.get("kind", "")), str(event.get("factory", ""))
        if kind == STATUS:
            self.statuses.pop(factory, None)
            self.statuses[factory] = event["at_ms"], status_rows(event.get("entities"))
            while len(self.statuses) > PROGRAMS_MAX:
                self.statuses.pop(next(iter(self.statuses)))
            return
        if kind.removeprefix(_PREFIX) == "closed":
            self.statuses.pop(factory, None)
        self._count += 1
        subject = str(event.get("subject", ""))
        if kind == DRAINED:
            # A queue that trickles is drained several times a second; one line of it must not push the outage out.
            for known in self.events:
                if known["kind"] == "drained" and (known["factory"], known["subject"]) == (factory, subject):
                    self.events.remove(known)
                    break
        self.events.append(
            {
                "id": self._count,
                "at_ms": event["at_ms"],
                "kind": kind.removeprefix(_PREFIX),
                "subject": subject,
                "text": str(event.get("text", "")),
                "factory": factory,
            }
        )


class PairingView:
    """Everything about one pairing: its own client's knowledge, and what other programs wrote to the journal."""

    def __init__(self, client: PairedServiceBusClient, journal: Path) -> None:
        self._client = client
        self._tail = JournalTail(journal)
        self._price = price()

    def snapshot(self) -> dict[str, object]:
        """What there is to see now."""
        self._tail.look()
        events = list(self._tail.events)
        steady, now = steady_ms(), wall_ms()
        own = [
            status_row(report, steady) for path, report in self._client.health().items() if path != "$close"
        ]
        # The page's own client writes to the journal too; its rows are here already.
        self._tail.statuses.pop(self._client.factory_name, None)
        rows = merged([own, *live_statuses(self._tail.statuses, now)])
        for key, row in entities_of(events, now).items():
            known = rows.get(key)
            if known is None or (
                known["state"] == Health.HEALTHY.value and row["state"] != Health.HEALTHY.value
            ):
                rows[key] = row
        return {
            "entities": [rows[key] for key in sorted(rows)],
            "events": events,
            "statistics": asdict(self._client.statistics()),
            "price": self._price,
        }

    def send(self, body: Mapping[str, object]) -> dict[str, object]:
        """Send test messages through the pair; where they went."""
        path, count = body.get("path"), body.get("count", 1)
        if not isinstance(path, str) or not path:
            raise UsageError("path is missing: choose an entity")
        if not isinstance(count, int) or not 1 <= count <= SEND_COUNT_MAX:
            raise UsageError(f"count must be from 1 to {SEND_COUNT_MAX}")
        is_topic = body.get("kind") == "topic"
        make = self._client.get_topic_sender if is_topic else self._client.get_queue_sender
        before = self._parked(path)
        with make(path) as sender:
            sender.send_messages([_message(body) for _ in range(count)], timeout=SEND_SECONDS)
        # Others may park messages for the same entity meanwhile; ours went one way together.
        return {"sent": count, "parked": min(count, self._parked(path) - before)}

    def _parked(self, path: str) -> int:
        return sum(
            report.parked
            for name, report in self._client.health().items()
            if entity_key(name) == entity_key(path)
        )


def _message(body: Mapping[str, object]) -> ServiceBusMessage:
    details: dict[str, Any] = {
        name: str(body[name])
        for name in ("subject", "content_type", "session_id", "message_id")
        if body.get(name)
    }
    users = properties_of(body.get("properties"))
    if users:
        details["application_properties"] = users
    return ServiceBusMessage(str(body.get("body") or ""), **details)


def live_statuses(
    statuses: Mapping[str, tuple[int, list[dict[str, object]]]], now_ms: int
) -> list[list[dict[str, object]]]:
    """What programs that still run last wrote of their entities, with its times moved on to now."""
    found = []
    for at_ms, rows in statuses.values():
        age = max(0, now_ms - at_ms)
        if age <= STATUS_LIFE_MS:
            found.append([_aged(row, age) for row in rows])
    return found


def _aged(row: dict[str, object], age_ms: int) -> dict[str, object]:
    moved = dict(row)
    since = row["since_age_ms"]
    assert isinstance(since, int)
    moved["since_age_ms"] = since + age_ms
    for name in ("oldest_parked_age_ms", "oldest_spooled_age_ms"):
        oldest = row[name]
        if isinstance(oldest, int):
            moved[name] = oldest + age_ms
    for name in ("next_ping_in_ms", "failover_in_ms"):
        due = row[name]
        if isinstance(due, int):
            moved[name] = max(0, due - age_ms)
    return moved


def merged(programs: list[list[dict[str, object]]]) -> dict[str, dict[str, object]]:
    """One row for each entity: the worst state that any program sees, and the counts of all of them."""
    rows: dict[str, dict[str, object]] = {}
    for program in programs:
        for row in program:
            key = entity_key(str(row["path"]))
            known = rows.get(key)
            if known is None:
                rows[key] = dict(row)
                continue
            counts = {name: _whole(known[name]) + _whole(row[name]) for name in _COUNTS}
            ages = {
                name: max((age for age in (known[name], row[name]) if isinstance(age, int)), default=None)
                for name in ("oldest_parked_age_ms", "oldest_spooled_age_ms")
            }
            is_worse = _ORDER.index(str(row["state"])) > _ORDER.index(str(known["state"]))
            rows[key] = {**(row if is_worse else known), **counts, **ages}
    return rows


def _whole(value: object) -> int:
    return value if isinstance(value, int) else 0


def entities_of(events: list[dict[str, object]], now_ms: int) -> dict[str, dict[str, object]]:
    """The health of entities by the events of other programs: the newest event of each program counts, the worst state shows."""
    by_program: dict[tuple[str, str], dict[str, object]] = {}
    pings: dict[tuple[str, str], int] = {}
    for event in events:
        factory, key = str(event["factory"]), entity_key(str(event["subject"]))
        kind = str(event["kind"])
        if kind == "closed":
            by_program = {who: row for who, row in by_program.items() if who[0] != factory}
        elif kind == "ping_sent":
            pings[(factory, key)] = pings.get((factory, key), 0) + 1
        elif kind in _STATES:
            by_program[(factory, key)] = {"event": event, "state": _STATES[kind]}
    worst: dict[str, dict[str, object]] = {}
    for (factory, key), row in by_program.items():
        before = worst.get(key)
        if before is None or _ORDER.index(str(row["state"])) > _ORDER.index(str(before["state"])):
            worst[key] = _row_of_event(row, pings.get((factory, key), 0), now_ms)
    return worst


def _row_of_event(row: dict[str, object], pings: int, now_ms: int) -> dict[str, object]:
    event = row["event"]
    assert isinstance(event, dict)
    return {
        "path": event["subject"],
        "state": row["state"],
        "since_age_ms": max(0, now_ms - int(event["at_ms"])),
        "why": event["text"],
        "next_ping_in_ms": None,
        "failover_in_ms": None,
        "parked": None,
        "pings": pings,
        "backlog_queue": None,
        "fenced_sessions": None,
        "oldest_parked_age_ms": None,
        "spooled": None,
        "oldest_spooled_age_ms": None,
    }


def price() -> dict[str, object] | None:
    """The first paid band of the standard tier, as an example of what an operation costs."""
    for table in builtin_tables():
        paid = [band.price for band in table.operations if band.price is not None and band.price > Decimal(0)]
        if table.tier == "standard" and table.currency == "USD" and paid:
            first = table.operations[0]
            included = (
                f", after the first {first.up_to:,} a month" if first.price == 0 and first.up_to else ""
            )
            label = f"standard tier, {table.region}{included}"
            return {"currency": table.currency, "per_million": float(paid[0]), "label": label}
    return None
