"""What the demo's screen shows besides the timeline: both namespaces, as their brokers report them."""

from __future__ import annotations

import json
import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

from pairbus.errors import ManagementFailed
from pairbus.local.management import ManagementClient
from pairbus.reports.bill.marginal import standard_table
from pairbus.stage.book import Book
from pairbus.stage.demo.bill import Bill, bill_of, billed
from pairbus.stage.timeline import Timeline

POLL_SECONDS: Final = 0.25


@dataclass(slots=True)
class SideView:
    name: str
    role: str
    is_serving: bool = False
    entities: dict[str, int] = field(default_factory=dict)
    """Active messages by path."""
    backlog: int = 0
    counted: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Units by stage and operation since the broker process started."""
    counted_before: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Units that earlier processes of this broker counted."""

    @property
    def all_counted(self) -> Counter[tuple[str, str]]:
        """Units of every process of this broker."""
        return self.counted + self.counted_before

    @property
    def operations(self) -> int:
        return billed(self.all_counted).total()

    def update(self, overview: dict[str, Any]) -> None:
        """Take over what the broker's overview says."""
        self.is_serving = True
        rows = overview["entities"]
        self.entities = {
            row["path"]: row["active"] for row in rows if not row["backlog"] and row["kind"] != "topic"
        }
        self.backlog = sum(row["active"] + row["scheduled"] for row in rows if row["backlog"])
        counted = Counter(
            {
                (stage, operation): units
                for stage, row in overview["operations"].items()
                for operation, units in row["by_operation"].items()
            }
        )
        if counted.total() < self.counted.total():
            self.counted_before += self.counted  # a new process counts from zero
        self.counted = counted


class Scene(Timeline):
    """The timeline and both namespaces, which a thread asks for their numbers."""

    def __init__(self, book: Book, primary: str, secondary: str) -> None:
        super().__init__(book)
        self.act = "Setting the stage"
        self.primary = SideView(primary, "primary")
        self.secondary = SideView(secondary, "secondary")
        self.home = 0
        """Messages that were drained to the primary."""
        self._prices = standard_table()
        self._clients: dict[str, ManagementClient] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watch", daemon=True)

    def bill(self) -> Bill:
        """What the run costs so far."""
        return bill_of(self.primary.all_counted + self.secondary.all_counted, self._prices)

    def watch(self, primary: ManagementClient, secondary: ManagementClient) -> None:
        """Begin to ask both brokers for their numbers."""
        self._clients = {"primary": primary, "secondary": secondary}
        self._thread.start()

    def stop(self) -> None:
        """End the watching thread."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(2)

    def look(self) -> None:
        """Ask both brokers now."""
        for side in (self.primary, self.secondary):
            try:
                side.update(json.loads(self._clients[side.role].request("GET", "/$page/api/overview")))
            except ManagementFailed:
                side.is_serving = False

    def _watch(self) -> None:
        while not self._stop.is_set():
            self.look()
            self._stop.wait(POLL_SECONDS)
