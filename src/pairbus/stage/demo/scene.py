"""What there is to see at any moment of the demo: both namespaces, the pairing, the meters. A picture is a plain value."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from pairbus.errors import ManagementFailed
from pairbus.local.management import ManagementClient
from pairbus.reports.bill.marginal import standard_table
from pairbus.stage.demo.bill import Bill, billed, made

if TYPE_CHECKING:
    from pairbus.drain.client import PairedServiceBusClient
    from pairbus.pairing.events import Event
    from pairbus.stage.demo.book import Book

POLL_SECONDS: Final = 0.25
LINES_MAX: Final = 200
TOLD: Final = frozenset(
    {
        "paired",
        "failed_over",
        "recovered",
        "refused",
        "queue_evicted",
        "set_aside",
        "drained",
        "faulted",
        "suspect",
    }
)
"""Events that a person wants to read; pings are counted."""


@dataclass(slots=True)
class SideView:
    name: str
    role: str
    is_serving: bool = False
    entities: dict[str, int] = field(default_factory=dict)
    """Messages in each."""
    backlog: int = 0
    counted: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Units by stage and operation, of its present life."""
    counted_before: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Of lives that ended."""

    @property
    def operations(self) -> int:
        """Billed, in every life."""
        return billed(self.counted + self.counted_before).total()


@dataclass(frozen=True, slots=True)
class Moment:
    """One line of the timeline."""

    at: float
    text: str
    tone: str


class Scene:
    """Gathers everything, from several threads; whoever draws takes what is there."""

    def __init__(self, book: Book, primary: str, secondary: str) -> None:
        self.book = book
        self.primary = SideView(primary, "primary")
        self.secondary = SideView(secondary, "secondary")
        self.started_at = time.monotonic()
        self.act = "Setting the stage"
        self.lines: deque[Moment] = deque(maxlen=LINES_MAX)
        self.told = 0
        self.home = 0
        self.client: PairedServiceBusClient | None = None
        self._prices = standard_table()
        self._clients: dict[str, ManagementClient] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watch", daemon=True)

    @property
    def seconds(self) -> float:
        """Since the story began."""
        return time.monotonic() - self.started_at

    @property
    def counted(self) -> Counter[tuple[str, str]]:
        """Units of both namespaces by stage and operation, in every life of them."""
        found: Counter[tuple[str, str]] = Counter()
        for side in (self.primary, self.secondary):
            found += side.counted + side.counted_before
        return found

    def bill(self) -> Bill:
        """What it costs so far."""
        return made(self.counted, self._prices)

    def say(self, text: str, tone: str = "") -> None:
        """Add a line to the timeline."""
        self.lines.append(Moment(self.seconds, text, tone))
        self.told += 1

    def event(self, event: Event) -> None:
        """The paired client's listener."""
        kind = event.kind.value.removeprefix("pairing.")
        if kind not in TOLD:
            return
        words = {
            "paired": ("paired", "good"),
            "suspect": ("is suspect", "warn"),
            "failed_over": ("failed over: sends go to the backlog", "accent"),
            "recovered": ("answers pings again: sends go to the primary", "good"),
        }
        text, tone = words.get(kind, (f"{kind.replace('_', ' ')}: {event.text}", "warn"))
        self.say(f"{event.subject} {text}" if kind != "paired" else f"{event.subject} {event.text}", tone)

    # -- watching ------------------------------------------------------------------------------

    def watch(self, primary: ManagementClient, secondary: ManagementClient) -> None:
        """Begin to look at both brokers."""
        self._clients = {"primary": primary, "secondary": secondary}
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(2)

    def look(self) -> None:
        for side in (self.primary, self.secondary):
            try:
                overview = json.loads(self._clients[side.role].request("GET", "/$page/api/overview"))
            except ManagementFailed:
                side.is_serving = False
                continue
            _take(side, overview)

    def _watch(self) -> None:
        while not self._stop.is_set():
            self.look()
            self._stop.wait(POLL_SECONDS)


def _take(side: SideView, overview: dict[str, object]) -> None:
    side.is_serving = True
    rows = overview["entities"]
    assert isinstance(rows, list)
    side.entities = {
        row["path"]: row["active"] for row in rows if not row["backlog"] and row["kind"] != "topic"
    }
    side.backlog = sum(row["active"] + row["scheduled"] for row in rows if row["backlog"])
    operations = overview["operations"]
    assert isinstance(operations, dict)
    counted = Counter(
        {
            (stage, operation): units
            for stage, row in operations.items()
            for operation, units in row["by_operation"].items()
        }
    )
    if counted.total() < side.counted.total():
        side.counted_before += side.counted  # a new life counts from nought
    side.counted = counted
