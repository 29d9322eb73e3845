"""Events and states of paired clients in a file, so that another process can show them.

An event is written when something happens. A program whose sends all succeed has no events, so each client also writes
the state of its entities: after a change within STATUS_SECONDS, and at least every BEAT_SECONDS. A reader takes a
program whose last state is older than a few beats for gone.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pairbus.pairing.client.state import PairingState
    from pairbus.pairing.events import Event
    from pairbus.pairing.rules.health import EntityReport

logger = logging.getLogger("pairbus.pairing")

ENVIRONMENT: Final = "PAIRBUS_JOURNAL"
"""Names the file; no journal is kept unless it is set."""
BYTES_MAX: Final = 10_000_000
"""A journal that is larger becomes ``.1`` and a new one begins."""
HEAD_BYTES: Final = 1_000_000
"""How much of a file is looked at to see whether it is a journal: more than the longest status line."""
STATUS: Final = "status"
"""The kind of a line that holds the state of every entity of one client."""
STATUS_SECONDS: Final = 1.0
BEAT_SECONDS: Final = 10.0
STOP_SECONDS: Final = 1.0
ENTITIES_MAX: Final = 1_000
"""Entities in one status line. The busiest programs have some dozens."""


class EventJournal:
    """Appends events to a file that several processes may share: each event is one short write."""

    def __init__(self, path: Path, factory: str) -> None:
        self._path = path
        self._factory = factory
        path.parent.mkdir(parents=True, exist_ok=True)

    def append(self, event: Event, at_ms: int) -> None:
        """Write one event. ``at_ms`` is the time of day."""
        self._write(
            {
                "at_ms": at_ms,
                "factory": self._factory,
                "kind": event.kind.value,
                "subject": event.subject,
                "text": event.text,
                "data": dict(event.data),
            }
        )

    def append_status(self, entities: list[dict[str, object]], at_ms: int) -> None:
        """Write the state of every entity. ``at_ms`` is the time of day."""
        self._write({"at_ms": at_ms, "factory": self._factory, "kind": STATUS, "entities": entities})

    def _write(self, line: dict[str, object]) -> None:
        content = json.dumps(line, separators=(",", ":"), default=str).encode() + b"\n"
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, content)
            size = os.fstat(descriptor).st_size
        finally:
            os.close(descriptor)
        if size > BYTES_MAX:
            self._path.replace(self._path.with_name(self._path.name + ".1"))


class StatusReporter:
    """Writes the state of a client's entities from a thread of its own until it is stopped or the client is gone."""

    def __init__(self, state: PairingState, journal: EventJournal) -> None:
        self._state = weakref.ref(state)
        self._journal = journal
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pairbus-journal", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread. It waits for nothing but its file."""
        self._stop.set()
        self._thread.join(STOP_SECONDS)

    def _run(self) -> None:
        written: tuple[EntityReport, ...] = ()
        since_beat = 0.0
        while not self._stop.wait(STATUS_SECONDS):
            state = self._state()
            if state is None:
                return
            reports = tuple(state.reports().values())[:ENTITIES_MAX]
            since_beat += STATUS_SECONDS
            if reports and (reports != written or since_beat >= BEAT_SECONDS):
                rows = [status_row(report, state.clock()) for report in reports]
                try:
                    self._journal.append_status(rows, state.wall_clock())
                    written, since_beat = reports, 0.0
                except OSError:
                    logger.debug("a state is not in the journal", exc_info=True)
            del state


def status_row(report: EntityReport, now_ms: int) -> dict[str, object]:
    """The state of one entity as the page and the journal have it: times as distances from ``now_ms``."""
    return {
        "path": report.path,
        "state": report.state.value,
        "since_age_ms": now_ms - report.since_ms,
        "why": report.why,
        "next_ping_in_ms": None if report.next_ping_ms is None else max(0, report.next_ping_ms - now_ms),
        "failover_in_ms": None if report.failover_due_ms is None else max(0, report.failover_due_ms - now_ms),
        "parked": report.parked,
        "pings": report.pings_sent,
        "backlog_queue": report.backlog_queue,
        "fenced_sessions": report.fenced_sessions,
        "oldest_parked_age_ms": report.oldest_parked_age_ms,
        "spooled": report.spooled,
        "oldest_spooled_age_ms": report.oldest_spooled_age_ms,
    }


def is_journal(path: Path) -> bool:
    """Whether a file is empty, or its first lines hold an event or a state. A line may be torn."""
    with path.open("rb") as file:
        lines = file.read(HEAD_BYTES).splitlines()
    return not lines or any(_is_line(line) for line in lines)


def _is_line(line: bytes) -> bool:
    try:
        row = json.loads(line)
    except ValueError:
        return False
    return isinstance(row, dict) and {"at_ms", "kind"} <= row.keys()


def read(path: Path) -> Iterator[dict[str, object]]:
    """The events and states of a journal, oldest first; torn lines are left out."""
    for file in (path.with_name(path.name + ".1"), path):
        if file.exists():
            yield from _lines(file.read_text(encoding="utf-8", errors="replace").splitlines())


def _lines(lines: Iterable[str]) -> Iterator[dict[str, object]]:
    for line in lines:
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            yield row
