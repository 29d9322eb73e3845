"""How the demo looks on a terminal: the live picture, and the bill and proof at the end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from pairbus.reports.bill.money import shown
from pairbus.stage.demo.scene import Scene, SideView
from pairbus.stage.screen import bar, health_table, timeline_panel, title

if TYPE_CHECKING:
    from pairbus.stage.demo.story import Result

FINAL_WIDTH: Final = 72
WIDE_COLUMNS: Final = 96
"""Narrowest terminal that shows two panels side by side. Below it they stand one above the other."""
BAR_COLUMNS: Final = 12
ENGINES: Final = {"spark": "Spark", "local": "this process"}


def draw(scene: Scene, messages: int, width: int) -> RenderableType:
    """The live picture of a run that sends this many messages, for a terminal of this width."""
    is_wide = width >= WIDE_COLUMNS
    sides = _arranged(is_wide, _side(scene.primary), _side(scene.secondary))
    health = Panel(health_table(scene), title="health", border_style="dim")
    meters = Panel(_meters(scene, messages), title="meters", border_style="dim")
    head = title("PairBus", scene)
    if not is_wide:
        # A low terminal cuts off the end, so the numbers come first.
        return Group(head, meters, health, sides, timeline_panel(scene))
    return Group(head, sides, _arranged(is_wide, health, meters), timeline_panel(scene))


def _arranged(is_wide: bool, left: RenderableType, right: RenderableType) -> RenderableType:
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


def _meters(scene: Scene, messages: int) -> RenderableType:
    book = scene.book
    statistics = scene.client.statistics() if scene.client is not None else None
    parked = statistics.to_backlog if statistics is not None else 0
    bill = scene.bill()
    grid = Table.grid(padding=(0, 1))
    grid.add_column(min_width=10, no_wrap=True)
    grid.add_column(width=BAR_COLUMNS)
    grid.add_column(justify="right", no_wrap=True)
    for name, value, total in (("accepted", book.accepted_count, messages), ("home", scene.home, parked)):
        grid.add_row(name, bar(value, total, BAR_COLUMNS), f"{value:,} of {total:,}")
    for name, text in (
        ("parked", f"{parked:,}"),
        ("in flight", f"{book.sent_count - book.accepted_count:,}"),
        ("delivered", f"{book.delivery_count:,}, {book.missing_count:,} awaited"),
        ("pings", f"{statistics.pings if statistics is not None else 0:,}"),
        ("operations", f"{bill.operations:,}"),
        ("cost", shown(bill.amount, bill.currency)),
    ):
        grid.add_row(name, "", text)
    return grid


def show_result(console: Console, result: Result) -> None:
    """Print the times, the bill and the proof."""
    verdict = (
        "THE CERTIFICATE HOLDS: nothing accepted was lost"
        if result.holds
        else "THE CERTIFICATE DOES NOT HOLD"
    )
    for heading, content, style in (
        ("what happened", _times(result), "dim"),
        ("the bill", _bill(result), "dim"),
        (verdict, _proof(result), "green" if result.holds else "bold red"),
    ):
        width = min(FINAL_WIDTH, console.width)
        console.print(Panel(content, title=heading, border_style=style, width=width))


def _rows(rows: Iterable[Sequence[str]], columns: int = 2) -> Table:
    grid = Table.grid(expand=True, padding=(0, 2))
    grid.add_column()
    for _ in range(columns - 1):
        grid.add_column(justify="right", no_wrap=columns > 2)
    for row in rows:
        grid.add_row(*row)
    return grid


def _times(result: Result) -> RenderableType:
    drained_by = ENGINES[result.engine]
    return _rows(
        (
            ("every sender continued", f"{result.failover_seconds:.1f} s after the kill"),
            ("every sender was back", f"{result.failback_seconds:.1f} s after the return"),
            ("the backlog was home", f"{result.drain_seconds:.1f} s later, brought by {drained_by}"),
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
    grid = _rows(
        (name, f"{value:,}")
        for name, value in (
            ("accepted", result.accepted),
            ("unknown to the sender", result.unknown),
            ("parked", result.parked),
            ("home", result.home),
            ("lost", result.lost),
            ("duplicated", result.duplicated),
            ("delivered again", result.redelivered),
        )
    )
    if result.spark_certificate is not None:
        grid.add_row("the same question, asked on Spark", str(result.spark_certificate.get("verdict")))
    return grid
