"""The demo on a terminal: live side by side when somebody watches, calm lines when nobody does."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from pairbus.reports.bill.money import shown
from pairbus.stage.demo.scene import Scene, SideView

if TYPE_CHECKING:
    from pairbus.stage.demo.story import Result

FRAMES_PER_SECOND: Final = 6
TIMELINE_LINES: Final = 9
FINAL_WIDTH: Final = 72
WIDE_COLUMNS: Final = 96
"""Narrowest terminal that shows two panels side by side. Below it they stand one above the other."""
BAR_COLUMNS: Final = 12
ENGINES: Final = {"spark": "Spark", "local": "this process"}
TONES: Final = {"good": "green", "warn": "yellow", "bad": "bold red", "accent": "bright_blue", "": ""}
STATES: Final = {
    "healthy": ("✓ healthy", "green"),
    "suspect": ("! suspect", "yellow"),
    "failed over": ("↷ failed over", "bright_blue"),
    "refusing": ("✗ refusing", "red"),
}


class Screen:
    """Shows a scene until it is left."""

    def __init__(self, console: Console, *, messages: int) -> None:
        self._console = console
        self._messages = messages
        self._scene: Scene | None = None
        self._printed = 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._live: Live | None = None

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
            self._print_rest()
        if self._thread is not None:
            self._thread.join(2)
            self._print_rest()

    def show(self, scene: Scene) -> None:
        """The scene to show from now on."""
        self._scene = scene

    # -- nobody watches ------------------------------------------------------------------------

    def _print_lines(self) -> None:
        while not self._stop.wait(0.1):
            self._print_rest()

    def _print_rest(self) -> None:
        scene = self._scene
        if scene is None:
            return
        lines = list(scene.lines)
        new = scene.told - self._printed
        self._printed = scene.told
        for line in lines[-new:] if new else []:
            # For a person lines break between words; for a program a line stays a line.
            self._console.print(
                Text.assemble((f"{line.at:6.1f} s  ", "dim"), (line.text, TONES[line.tone])),
                soft_wrap=not self._console.is_terminal,
            )

    # -- somebody watches ----------------------------------------------------------------------

    def _draw(self) -> RenderableType:
        scene = self._scene
        if scene is None:
            return Text("Setting the stage …")
        title = Text.assemble(
            ("PairBus ", "bold bright_blue"), (scene.act, "bold"), (f"   {scene.seconds:5.1f} s", "dim")
        )
        is_wide = self._console.width >= WIDE_COLUMNS
        sides = _arranged(is_wide, _side(scene.primary), _side(scene.secondary))
        health = Panel(_health(scene), title="health", border_style="dim")
        meters = Panel(
            self._meters(scene),
            title="meters",
            border_style="dim",
        )
        if not is_wide:
            # A low terminal cuts off the end, so the numbers come first.
            return Group(title, meters, health, sides, _timeline(scene))
        return Group(title, sides, _arranged(is_wide, health, meters), _timeline(scene))

    def _meters(self, scene: Scene) -> RenderableType:
        handed, accepted, awaited = scene.book.counts
        statistics = scene.client.statistics() if scene.client is not None else None
        parked = statistics.to_backlog if statistics is not None else 0
        bill = scene.bill()
        grid = Table.grid(padding=(0, 1))
        grid.add_column(min_width=10, no_wrap=True)
        grid.add_column(width=BAR_COLUMNS)
        grid.add_column(justify="right", no_wrap=True)
        for name, value, total in (
            ("accepted", accepted, self._messages),
            ("home", scene.home, max(parked, 1)),
        ):
            grid.add_row(
                name,
                _bar(value, total),
                f"{value:,} of {total if name == 'accepted' else parked:,}",
            )
        rows = [
            ("parked", f"{parked:,}"),
            ("in flight", f"{handed - accepted:,}"),
            ("delivered", f"{scene.book.deliveries:,}, {awaited:,} awaited"),
            ("pings", f"{statistics.pings if statistics is not None else 0:,}"),
            ("operations", f"{bill.operations:,}"),
            ("cost", shown(bill.amount, bill.currency)),
        ]
        for name, text in rows:
            grid.add_row(name, "", text)
        return grid


def _bar(value: int, total: int) -> ProgressBar:
    return ProgressBar(
        total=total,
        completed=value,
        width=BAR_COLUMNS,
        complete_style="bright_blue",
        finished_style="green",
        style="grey37",
    )


def _arranged(is_wide: bool, left: RenderableType, right: RenderableType) -> RenderableType:
    """Two panels side by side, or one above the other where the terminal is too narrow for their numbers."""
    if not is_wide:
        return Group(left, right)
    grid = Table.grid(expand=True, padding=(0, 1))
    grid.add_column(ratio=1)
    grid.add_column(ratio=1)
    grid.add_row(left, right)
    return grid


def _side(side: SideView) -> Panel:
    grid = Table.grid(expand=True, padding=(0, 1))
    grid.add_column(overflow="fold")
    grid.add_column(justify="right", no_wrap=True)
    state = Text("● serving", "green") if side.is_serving else Text("○ not answering", "bold red")
    grid.add_row(state, Text(f"{side.operations:,} operations", "dim"))
    for path, active in sorted(side.entities.items()):
        grid.add_row(path.replace("/Subscriptions/", " › "), Text(f"{active:,}", "" if active else "dim"))
    if side.role == "secondary":
        grid.add_row("backlog", Text(f"{side.backlog:,}", "bright_blue" if side.backlog else "dim"))
    border = "green" if side.is_serving else "red"
    return Panel(grid, title=f"{side.role} · {side.name}", border_style=border)


def _health(scene: Scene) -> RenderableType:
    table = Table.grid(expand=True, padding=(0, 1))
    for _ in range(2):
        table.add_column()
    for _ in range(2):
        table.add_column(justify="right", no_wrap=True)
    table.add_row(*(Text(name, "dim") for name in ("entity", "state", "parked", "pings")))
    reports = scene.client.health() if scene.client is not None else {}
    for path, report in sorted(reports.items()):
        text, style = STATES[report.state.value]
        table.add_row(path, Text(text, style), f"{report.parked:,}", f"{report.pings_sent:,}")
    return table


def _timeline(scene: Scene) -> Panel:
    lines = list(scene.lines)[-TIMELINE_LINES:]
    texts = [Text.assemble((f"{line.at:6.1f} s  ", "dim"), (line.text, TONES[line.tone])) for line in lines]
    return Panel(
        Group(*texts) if texts else Text(""),
        title="what happened",
        border_style="dim",
        height=TIMELINE_LINES + 2,
    )


def final(console: Console, result: Result) -> None:
    """The bill and the proof."""
    panels = (
        ("what happened", _times(result), "dim"),
        ("the bill", _bill(result), "dim"),
        (
            "THE CERTIFICATE HOLDS: nothing accepted was lost"
            if result.holds
            else "THE CERTIFICATE DOES NOT HOLD",
            _proof(result),
            "green" if result.holds else "bold red",
        ),
    )
    for title, content, style in panels:
        console.print(Panel(content, title=title, border_style=style, width=min(FINAL_WIDTH, console.width)))


def _rows(rows: Iterable[Sequence[str]], columns: int = 2) -> Table:
    grid = Table.grid(expand=True, padding=(0, 2))
    grid.add_column()
    for _ in range(columns - 1):
        grid.add_column(justify="right", no_wrap=columns > 2)
    for row in rows:
        grid.add_row(*row)
    return grid


def _times(result: Result) -> RenderableType:
    return _rows(
        (
            ("every sender went on", f"{result.failover_seconds:.1f} s after the kill"),
            ("every sender was back", f"{result.failback_seconds:.1f} s after the return"),
            (
                "the backlog was home",
                f"{result.drain_seconds:.1f} s later, brought by {ENGINES[result.engine]}",
            ),
        )
    )


def _bill(result: Result) -> RenderableType:
    lines = [(str(line["purpose"]), f"{line['operations']:,}", str(line["cost"])) for line in result.bill]
    lines.append(("together", f"{result.operations:,}", result.cost))
    lines.append(("of it for the pairing", f"{result.pairing_operations:,}", result.pairing_cost))
    places = max(len(cost.partition(".")[2]) for _, _, cost in lines)
    grid = _rows(
        [("", "operations", result.currency)]
        + [(name, count, cost.ljust(cost.index(".") + 1 + places, "0")) for name, count, cost in lines],
        3,
    )
    return Group(grid, Text(f"Prices: {result.price_source}.", "dim"))


def _proof(result: Result) -> RenderableType:
    rows = [
        ("accepted", result.accepted),
        ("unknown to the sender", result.unknown),
        ("parked", result.parked),
        ("home", result.home),
        ("lost", result.lost),
        ("duplicated", result.duplicated),
        ("delivered again", result.redelivered),
    ]
    grid = _rows((name, f"{value:,}") for name, value in rows)
    if result.spark_certificate is not None:
        grid.add_row("the same question, asked on Spark", str(result.spark_certificate.get("verdict")))
    return grid
