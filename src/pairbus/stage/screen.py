"""Shows a timeline on a terminal: a live picture for a person, plain lines otherwise."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from pairbus.model.text import safe_text
from pairbus.stage.timeline import Moment, Timeline

FRAMES_PER_SECOND: Final = 6
PRINT_SECONDS: Final = 0.1
LINES_SHOWN: Final = 9
TONES: Final = {"good": "green", "warn": "yellow", "bad": "bold red", "accent": "bright_blue", "": ""}
STATES: Final = {
    "healthy": ("✓ healthy", "green"),
    "suspect": ("! suspect", "yellow"),
    "failed over": ("↷ failed over", "bright_blue"),
    "refusing": ("✗ refusing", "red"),
}


class Screen:
    """Shows a timeline while it is open. ``draw`` makes the live picture."""

    def __init__(self, console: Console, timeline: Timeline, draw: Callable[[], RenderableType]) -> None:
        self._console = console
        self._timeline = timeline
        self._draw = draw
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
        self._print_new()

    def _print_lines(self) -> None:
        while not self._stop.wait(PRINT_SECONDS):
            self._print_new()

    def _print_new(self) -> None:
        new = self._timeline.line_count - self._printed
        self._printed += new
        for moment in list(self._timeline.lines)[-new:] if new else []:
            # For a person lines break between words; for a program a line stays a line.
            self._console.print(_line(moment), soft_wrap=not self._console.is_terminal)


def _line(moment: Moment) -> Text:
    return Text.assemble((f"{moment.at_ms / 1000:6.1f} s  ", "dim"), (moment.text, TONES[moment.tone]))


def title(name: str, timeline: Timeline) -> Text:
    """The first line: the command, the present act and the seconds so far."""
    return Text.assemble(
        (f"{name} ", "bold bright_blue"),
        (timeline.act, "bold"),
        (f"   {timeline.elapsed_ms / 1000:5.1f} s", "dim"),
    )


def timeline_panel(timeline: Timeline) -> Panel:
    """The last lines of the timeline."""
    lines = list(timeline.lines)[-LINES_SHOWN:]
    content = Group(*(_line(line) for line in lines)) if lines else Text("")
    return Panel(content, title="what happened", border_style="dim", height=LINES_SHOWN + 2)


def health_table(timeline: Timeline) -> Table:
    """Each entity of the paired client: state, parked messages, pings."""
    table = Table.grid(expand=True, padding=(0, 1))
    for is_number in (False, False, True, True):
        table.add_column(
            justify="right" if is_number else "left",
            no_wrap=is_number,
            overflow="ellipsis" if is_number else "fold",
        )
    table.add_row(*(Text(name, "dim") for name in ("entity", "state", "parked", "pings")))
    reports = timeline.client.health() if timeline.client is not None else {}
    for path, report in sorted(reports.items()):
        text, style = STATES[report.state.value]
        table.add_row(
            Text(safe_text(path)), Text(text, style), f"{report.parked:,}", f"{report.pings_sent:,}"
        )
    return table


def bar(value: int, total: int, width: int) -> ProgressBar:
    """A progress bar that turns green at its end."""
    return ProgressBar(
        total=max(1, total),
        completed=value,
        width=width,
        complete_style="bright_blue",
        finished_style="green",
        style="grey37",
    )
