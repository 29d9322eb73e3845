"""What there is to see of a drill at any moment, and how it is shown: live for a person, calm lines otherwise."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from pairbus.pairing.clock import steady_ms
from pairbus.pairing.events import Event, Kind
from pairbus.stage.drill.book import Book

if TYPE_CHECKING:
    from pairbus.drain.client import PairedServiceBusClient
    from pairbus.stage.drill.card import Card

FRAMES_PER_SECOND: Final = 5
BAR_COLUMNS: Final = 20
LINES_SHOWN: Final = 8
LINES_MAX: Final = 500
PRINT_SECONDS: Final = 0.1
TONES: Final = {"good": "green", "warn": "yellow", "bad": "bold red", "accent": "bright_blue", "": ""}
STATES: Final = {
    "healthy": ("✓ healthy", "green"),
    "suspect": ("! suspect", "yellow"),
    "failed over": ("↷ failed over", "bright_blue"),
    "refusing": ("✗ refusing", "red"),
}
VERDICTS: Final = {
    "pass": ("✓ pass", "green"),
    "fail": ("✗ FAIL", "bold red"),
    "not tested": ("– not tested", "yellow"),
    "told": ("· told", "dim"),
}
_WORDS: Final = {
    Kind.SUSPECT: ("is suspect", "warn"),
    Kind.FAILED_OVER: ("failed over: sends go to the backlog", "accent"),
    Kind.RECOVERED: ("is back: sends go to the primary", "good"),
    Kind.REFUSED: ("is gone", "bad"),
    Kind.QUEUE_EVICTED: ("left the rotation", "warn"),
    Kind.SET_ASIDE: ("has messages set aside", "warn"),
}
"""Events that a person wants to read; pings are counted."""
_ONCE: Final = frozenset({Kind.SET_ASIDE, Kind.QUEUE_EVICTED})
"""Told once for each subject: there may be thousands."""


@dataclass(frozen=True, slots=True)
class Said:
    """One line of what happened."""

    at_ms: int
    text: str
    tone: str


class Scene:
    """Gathers what several threads tell; whoever shows it takes what is there."""

    def __init__(self) -> None:
        self.begun_ms = steady_ms()
        self.act = ""
        self.book: Book = Book()
        self.client: PairedServiceBusClient | None = None
        self.lines: deque[Said] = deque(maxlen=LINES_MAX)
        self.told = 0
        self._seen: set[tuple[Kind, str]] = set()
        self.span: tuple[int, int] | None = None
        """When the outage began and when it ends."""

    def say(self, text: str, tone: str = "") -> None:
        """Add a line. Names and errors come from elsewhere: they are shown as text, whatever is in them (M8)."""
        self.lines.append(Said(steady_ms() - self.begun_ms, inert(text), tone))
        self.told += 1

    def outage(self, begun_ms: int, ends_ms: int) -> None:
        self.span = begun_ms, ends_ms

    def event(self, event: Event) -> None:
        """The paired client's listener."""
        if event.kind not in _WORDS or (event.kind in _ONCE and (event.kind, event.subject) in self._seen):
            return
        self._seen.add((event.kind, event.subject))
        words, tone = _WORDS[event.kind]
        self.say(f"{event.subject} {words}", tone)


class Screen:
    """Shows a scene until it is left."""

    def __init__(self, console: Console, scene: Scene) -> None:
        self._console = console
        self._scene = scene
        self._printed = 0
        self._stop = threading.Event()
        self._live: Live | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live = Live(
                console=self._console,
                refresh_per_second=FRAMES_PER_SECOND,
                get_renderable=self._draw,
                transient=True,
            )
            self._live.start()
        else:
            self._thread = threading.Thread(target=self._print_lines, name="lines", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._live is not None:
            self._live.stop()
        if self._thread is not None:
            self._thread.join()
        self._print_rest()

    def _print_lines(self) -> None:
        while not self._stop.wait(PRINT_SECONDS):
            self._print_rest()

    def _print_rest(self) -> None:
        new = self._scene.told - self._printed
        self._printed += new
        for said in list(self._scene.lines)[-new:] if new else []:
            self._console.print(_said(said), soft_wrap=not self._console.is_terminal)

    def _draw(self) -> RenderableType:
        scene = self._scene
        title = Text.assemble(
            ("PairBus drill ", "bold bright_blue"),
            (scene.act, "bold"),
            (f"   {(steady_ms() - scene.begun_ms) / 1000:.0f} s", "dim"),
        )
        lines = list(scene.lines)[-LINES_SHOWN:]
        happened = Panel(
            Group(*(_said(one) for one in lines)) if lines else Text(""),
            title="what happened",
            border_style="dim",
            height=LINES_SHOWN + 2,
        )
        return Group(title, _remaining(scene), _entities(scene), happened)


def _remaining(scene: Scene) -> RenderableType:
    if scene.span is None:
        return Text("")
    begun, ends = scene.span
    left = max(0, ends - steady_ms())
    grid = Table.grid(padding=(0, 1))
    grid.add_row(
        Text("outage"),
        ProgressBar(total=max(1, ends - begun), completed=min(ends, steady_ms()) - begun, width=BAR_COLUMNS),
        Text(f"ends by itself in {left / 1000:.0f} s" if left else "is over", "dim"),
    )
    return grid


def _entities(scene: Scene) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    table.add_column(overflow="fold")
    for _ in range(3):
        table.add_column(no_wrap=True)
    table.add_row(*(Text(name, "dim") for name in ("entity", "state", "parked", "pings")))
    reports = scene.client.health() if scene.client is not None else {}
    for path, report in sorted(reports.items()):
        text, style = STATES[report.state.value]
        table.add_row(Text(inert(path)), Text(text, style), f"{report.parked:,}", f"{report.pings_sent:,}")
    begun, accepted, refused = scene.book.counts()
    return Group(table, Text(f"{begun:,} probes, {accepted:,} accepted, {refused:,} sends refused", "dim"))


def _said(said: Said) -> Text:
    return Text.assemble((f"{said.at_ms / 1000:6.1f} s  ", "dim"), (said.text, TONES[said.tone]))


def show_card(console: Console, card: Card) -> None:
    """The report card, for people."""
    title = "passed" if card.passed else "FAILED"
    if card.is_early:
        title += ", ended early"
    console.print(Text(f"Report card of drill {card.drill} ({card.outage}): {title}", "bold"), soft_wrap=True)
    width = max(len(line.promise) for line in card.lines)
    for line in card.lines:
        words, style = VERDICTS[line.verdict]
        console.print(
            Text.assemble(
                (f"  {words:<13}", style), f" {line.promise:<{width}}  ", (inert(line.figure), "dim")
            ),
            soft_wrap=True,
        )
    for name in card.lost:
        console.print(Text(f"  lost: {inert(name)}", "bold red"), soft_wrap=True)


def inert(text: str) -> str:
    """Text from elsewhere, which cannot move a terminal's cursor."""
    return "".join(character if character.isprintable() else "?" for character in text)
