"""What happened so far, as lines with their time; several threads write it, the screen reads it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

from pairbus.model.text import safe_text
from pairbus.pairing.client.sync import PairedServiceBusClient
from pairbus.pairing.clock import steady_ms
from pairbus.pairing.events import Event, Kind
from pairbus.stage.book import Book

LINES_MAX: Final = 500
_EVENTS: Final = {
    Kind.PAIRED: ("is paired", "good"),
    Kind.SUSPECT: ("is suspect", "warn"),
    Kind.FAILED_OVER: ("failed over: sends go to the backlog", "accent"),
    Kind.RECOVERED: ("answers pings again: sends go to the primary", "good"),
    Kind.REFUSED: ("no longer exists", "bad"),
    Kind.QUEUE_EVICTED: ("left the rotation", "warn"),
    Kind.SET_ASIDE: ("has dead-lettered messages", "warn"),
    Kind.DRAINED: ("is drained", "good"),
    Kind.FAULTED: ("failed", "bad"),
}
"""Events that a person wants to read. Pings are counted elsewhere."""
_ONCE: Final = frozenset({Kind.SET_ASIDE, Kind.QUEUE_EVICTED, Kind.DRAINED})
"""Shown once for each subject: there may be thousands."""


@dataclass(frozen=True, slots=True)
class Moment:
    at_ms: int
    text: str
    tone: str


class Timeline:
    """The lines of one run, its present act, and the client and book whose numbers the screen shows."""

    def __init__(self, book: Book | None = None) -> None:
        self.begun_ms = steady_ms()
        self.act = ""
        self.book = book or Book()
        self.client: PairedServiceBusClient | None = None
        self.lines: deque[Moment] = deque(maxlen=LINES_MAX)
        self.line_count = 0
        """Lines so far, also those that are no longer kept."""
        self._seen: set[tuple[Kind, str]] = set()

    @property
    def elapsed_ms(self) -> int:
        return steady_ms() - self.begun_ms

    def say(self, text: str, tone: str = "") -> None:
        """Add a line. Names and errors come from elsewhere, so control characters are escaped (M8)."""
        self.lines.append(Moment(self.elapsed_ms, safe_text(text), tone))
        self.line_count += 1

    def event(self, event: Event) -> None:
        """Add a line for an event of the paired client. Serves as its listener."""
        if event.kind not in _EVENTS or (event.kind in _ONCE and (event.kind, event.subject) in self._seen):
            return
        self._seen.add((event.kind, event.subject))
        text, tone = _EVENTS[event.kind]
        detail = f": {event.text}" if event.kind is Kind.FAULTED else ""
        self.say(f"{event.subject} {text}{detail}", tone)
